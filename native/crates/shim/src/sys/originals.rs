//! Libc's functions behind the hooks: what the next library in the loader's order has.
//!
//! Found at their first use, so also before any constructor ran. Where there is none of that name
//! (a static program, another libc), the system call itself serves.

use core::ffi::{CStr, c_int, c_uint, c_ulong, c_void};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};

use urds_client::sys::{WAIT_RECV, WAIT_SEND};

use libc::{FILE, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

use super::{errno, lookup};

/// The place of one function.
struct Original {
    name: &'static str, // with its zero
    found: AtomicPtr<c_void>,
}

/// In the place of a function that does not exist.
static ABSENT: u8 = 0;

impl Original {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            found: AtomicPtr::new(ptr::null_mut()),
        }
    }

    #[inline]
    fn get(&self) -> Option<NonNull<c_void>> {
        let mut known = self.found.load(Ordering::Acquire);
        if known.is_null() {
            known = self.look();
        }
        let is_absent = ptr::eq(known, absent());
        if is_absent { None } else { NonNull::new(known) }
    }

    #[cold]
    fn look(&self) -> *mut c_void {
        let before = errno::get();
        let name = CStr::from_bytes_with_nul(self.name.as_bytes()).unwrap_or_default();
        let found = lookup::next(name);
        let known = if found.is_null() { absent() } else { found };
        self.found.store(known, Ordering::Release);
        errno::set(before);
        known
    }
}

fn absent() -> *mut c_void {
    (&raw const ABSENT).cast_mut().cast()
}

/// The value of a system call, in the type of libc's function.
trait Lower<T> {
    fn lower(self) -> T;
}

impl Lower<c_int> for i64 {
    fn lower(self) -> c_int {
        c_int::try_from(self).unwrap_or(-1)
    }
}

impl Lower<ssize_t> for i64 {
    fn lower(self) -> ssize_t {
        ssize_t::try_from(self).unwrap_or(-1)
    }
}

impl<T> Lower<T> for T {
    fn lower(self) -> T {
        self
    }
}

macro_rules! originals {
    ($(fn $name:ident($($argument:ident: $kind:ty),*) -> $back:ty => $fallback:expr;)*) => {$(
        /// Call libc's function of this name.
        ///
        /// # Safety
        /// As that function.
        #[inline]
        pub unsafe fn $name($($argument: $kind),*) -> $back {
            static ORIGINAL: Original = Original::new(concat!(stringify!($name), "\0"));
            match ORIGINAL.get() {
                Some(found) => {
                    // SAFETY: libc's function of this name has this signature, and the caller
                    // promised what it asks.
                    unsafe {
                        let call = core::mem::transmute::<
                            NonNull<c_void>,
                            unsafe extern "C" fn($($kind),*) -> $back,
                        >(found);
                        call($($argument),*)
                    }
                }
                #[allow(unused_unsafe)] // some of these calls are safe
                // SAFETY: the system call of that name, with the same promises.
                None => Lower::lower(unsafe { $fallback }),
            }
        }
    )*};
}

type Length = *mut socklen_t;

originals! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int
        => libc::syscall(libc::SYS_socket, domain, kind, protocol);
    fn bind(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int
        => libc::syscall(libc::SYS_bind, fd, name, length);
    fn connect(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int
        => libc::syscall(libc::SYS_connect, fd, name, length);
    fn getsockname(fd: c_int, name: *mut sockaddr, length: Length) -> c_int
        => libc::syscall(libc::SYS_getsockname, fd, name, length);
    fn getpeername(fd: c_int, name: *mut sockaddr, length: Length) -> c_int
        => libc::syscall(libc::SYS_getpeername, fd, name, length);
    fn listen(fd: c_int, count: c_int) -> c_int => libc::syscall(libc::SYS_listen, fd, count);
    fn accept(fd: c_int, name: *mut sockaddr, length: Length) -> c_int
        => libc::syscall(libc::SYS_accept4, fd, name, length, 0);
    fn accept4(fd: c_int, name: *mut sockaddr, length: Length, flags: c_int) -> c_int
        => libc::syscall(libc::SYS_accept4, fd, name, length, flags);
    fn shutdown(fd: c_int, how: c_int) -> c_int => libc::syscall(libc::SYS_shutdown, fd, how);
    fn send(fd: c_int, first: *const c_void, count: size_t, flags: c_int) -> ssize_t
        => libc::syscall(libc::SYS_sendto, fd, first, count, flags, ptr::null::<c_void>(), 0);
    fn sendto(fd: c_int, first: *const c_void, count: size_t, flags: c_int, name: *const sockaddr,
              length: socklen_t) -> ssize_t
        => libc::syscall(libc::SYS_sendto, fd, first, count, flags, name, length);
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t
        => libc::syscall(libc::SYS_sendmsg, fd, message, flags);
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int
        => libc::syscall(libc::SYS_sendmmsg, fd, messages, count, flags);
    fn write(fd: c_int, first: *const c_void, count: size_t) -> ssize_t
        => libc::syscall(libc::SYS_write, fd, first, count);
    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t
        => libc::syscall(libc::SYS_writev, fd, parts, count);
    fn recv(fd: c_int, first: *mut c_void, count: size_t, flags: c_int) -> ssize_t
        => libc::syscall(libc::SYS_recvfrom, fd, first, count, flags, ptr::null::<c_void>(),
                         ptr::null::<c_void>());
    fn recvfrom(fd: c_int, first: *mut c_void, count: size_t, flags: c_int, name: *mut sockaddr,
                length: Length) -> ssize_t
        => libc::syscall(libc::SYS_recvfrom, fd, first, count, flags, name, length);
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t
        => libc::syscall(libc::SYS_recvmsg, fd, message, flags);
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int,
                patience: *mut timespec) -> c_int
        => libc::syscall(libc::SYS_recvmmsg, fd, messages, count, flags, patience);
    fn read(fd: c_int, first: *mut c_void, count: size_t) -> ssize_t
        => libc::syscall(libc::SYS_read, fd, first, count);
    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t
        => libc::syscall(libc::SYS_readv, fd, parts, count);
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: Length) -> c_int
        => libc::syscall(libc::SYS_getsockopt, fd, level, name, value, length);
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t)
        -> c_int => libc::syscall(libc::SYS_setsockopt, fd, level, name, value, length);
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int
        => libc::syscall(libc::SYS_ioctl, fd, request, argument);
    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t
        => libc::syscall(libc::SYS_sendfile, out, from, offset, count);
    fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t
        => sendfile(out, from, offset, count);
    fn splice(from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, count: size_t,
              flags: c_uint) -> ssize_t
        => libc::syscall(libc::SYS_splice, from, from_offset, to, to_offset, count, flags);
    fn close(fd: c_int) -> c_int => libc::syscall(libc::SYS_close, fd);
    fn dup2(old: c_int, new: c_int) -> c_int => if old == new {
        if libc::fcntl(old, libc::F_GETFD) < 0 { -1 } else { i64::from(old) }
    } else {
        libc::syscall(libc::SYS_dup3, old, new, 0)
    };
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int
        => libc::syscall(libc::SYS_dup3, old, new, flags);
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int
        => libc::syscall(libc::SYS_close_range, first, last, flags);
    fn closefrom(first: c_int) -> () => {
        libc::syscall(libc::SYS_close_range, first.max(0), c_uint::MAX, 0);
    };
    fn fclose(file: *mut FILE) -> c_int => { let _ = file; -1 };
    fn __recv_chk(fd: c_int, first: *mut c_void, count: size_t, room: size_t, flags: c_int)
        -> ssize_t => recv(fd, first, count.min(room), flags);
    fn __recvfrom_chk(fd: c_int, first: *mut c_void, count: size_t, room: size_t, flags: c_int,
                      name: *mut sockaddr, length: Length) -> ssize_t
        => recvfrom(fd, first, count.min(room), flags, name, length);
    fn __read_chk(fd: c_int, first: *mut c_void, count: size_t, room: size_t) -> ssize_t
        => read(fd, first, count.min(room));
}

/// Have the two calls of a client that wait be libc's, so that a thread that waits can be cancelled.
pub fn serve_waits() {
    let pointer = |call: *const ()| call.cast_mut();
    WAIT_RECV.store(pointer(waiting_recv as *const ()), Ordering::Release);
    WAIT_SEND.store(pointer(waiting_send as *const ()), Ordering::Release);
}

unsafe extern "C" fn waiting_recv(
    fd: c_int,
    first: *mut c_void,
    count: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { recv(fd, first, count, flags) }
}

unsafe extern "C" fn waiting_send(
    fd: c_int,
    first: *const c_void,
    count: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { send(fd, first, count, flags) }
}
