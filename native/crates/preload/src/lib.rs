//! `liburds_preload.so`: the socket calls of libc, each one line over `urds-shim`.
//!
//! `urds run` has the loader put these names before libc's. What is not a socket of ours goes to the
//! next library that has the name. Not here, because the kernel is right without us: poll, ppoll,
//! select, pselect, epoll, fcntl, dup, fork, vfork, clone, `posix_spawn`, exec, daemon, sigaction.
//! `tests/shim/names.toml` lists both kinds, and a test compares it with what libc exports.

#![cfg_attr(panic = "abort", no_std)]

use core::ffi::{c_int, c_uint, c_ulong, c_void};

use libc::{FILE, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use urds_shim::calls::{names, numbers, receive, send, values};
use urds_shim::sys::originals;

/// Define a hook, and other names of libc for the same call.
macro_rules! hooks {
    ($($call:path => fn $($name:ident)|+ ($($argument:ident: $kind:ty),* $(,)?) -> $back:ty;)*) => {
        $(hooks!(@each $call, ($($argument: $kind),*), $back, $($name)+);)*
    };
    (@each $call:path, $arguments:tt, $back:ty, $($name:ident)+) => {
        $(hooks!(@one $call, $arguments, $back, $name);)+
    };
    (@one $call:path, ($($argument:ident: $kind:ty),*), $back:ty, $name:ident) => {
        /// As libc's function of this name.
        ///
        /// # Safety
        /// As that function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $back {
            #[allow(unused_unsafe)] // some of these calls are safe
            // SAFETY: the caller's promise.
            unsafe { $call($($argument),*) }
        }
    };
}

type Length = *mut socklen_t;
type Name = *const sockaddr;
type NameRoom = *mut sockaddr;

hooks! {
    names::socket => fn socket | __socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    names::bind => fn bind(fd: c_int, name: Name, length: socklen_t) -> c_int;
    names::connect => fn connect | __connect(fd: c_int, name: Name, length: socklen_t) -> c_int;
    names::getsockname => fn getsockname(fd: c_int, name: NameRoom, length: Length) -> c_int;
    names::getpeername => fn getpeername(fd: c_int, name: NameRoom, length: Length) -> c_int;
    names::listen => fn listen(fd: c_int, count: c_int) -> c_int;
    names::accept => fn accept(fd: c_int, name: NameRoom, length: Length) -> c_int;
    names::accept4 => fn accept4(fd: c_int, name: NameRoom, length: Length, flags: c_int) -> c_int;
    names::shutdown => fn shutdown(fd: c_int, how: c_int) -> c_int;

    send::send => fn send | __send(fd: c_int, first: *const c_void, count: size_t, flags: c_int)
        -> ssize_t;
    send::sendto => fn sendto(fd: c_int, first: *const c_void, count: size_t, flags: c_int,
        name: Name, length: socklen_t) -> ssize_t;
    send::sendmsg => fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    send::sendmmsg => fn sendmmsg | __sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint,
        flags: c_int) -> c_int;
    send::write => fn write | __write(fd: c_int, first: *const c_void, count: size_t) -> ssize_t;
    send::writev => fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;

    receive::recv => fn recv | __recv(fd: c_int, first: *mut c_void, count: size_t, flags: c_int)
        -> ssize_t;
    receive::recvfrom => fn recvfrom(fd: c_int, first: *mut c_void, count: size_t, flags: c_int,
        name: NameRoom, length: Length) -> ssize_t;
    receive::recvmsg => fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    receive::recvmmsg => fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int,
        patience: *mut timespec) -> c_int;
    receive::read => fn read | __read(fd: c_int, first: *mut c_void, count: size_t) -> ssize_t;
    receive::readv => fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;

    values::getsockopt => fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void,
        length: Length) -> c_int;
    values::setsockopt => fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void,
        length: socklen_t) -> c_int;
    // Variadic in C; three fixed arguments are the same call on x86-64 and on aarch64.
    values::ioctl => fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;

    numbers::sendfile => fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t)
        -> ssize_t;
    numbers::sendfile64 => fn sendfile64(out: c_int, from: c_int, offset: *mut off_t,
        count: size_t) -> ssize_t;
    numbers::splice => fn splice(from: c_int, from_offset: *mut i64, to: c_int,
        to_offset: *mut i64, count: size_t, flags: c_uint) -> ssize_t;

    numbers::close => fn close | __close | __res_iclose(fd: c_int) -> c_int;
    numbers::dup2 => fn dup2 | __dup2(old: c_int, new: c_int) -> c_int;
    numbers::dup3 => fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    numbers::close_range => fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    numbers::closefrom => fn closefrom(first: c_int) -> ();
    numbers::fclose => fn fclose(file: *mut FILE) -> c_int;
}

/// As glibc's: more than the room is its affair, which ends the program.
///
/// # Safety
/// As recv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(
    fd: c_int,
    first: *mut c_void,
    count: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    if count > room {
        // SAFETY: it does not return.
        return unsafe { originals::__recv_chk(fd, first, count, room, flags) };
    }
    // SAFETY: the caller's promise.
    unsafe { receive::recv(fd, first, count, flags) }
}

/// As `__recv_chk`.
///
/// # Safety
/// As recvfrom.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    first: *mut c_void,
    count: size_t,
    room: size_t,
    flags: c_int,
    name: NameRoom,
    length: Length,
) -> ssize_t {
    if count > room {
        // SAFETY: it does not return.
        return unsafe { originals::__recvfrom_chk(fd, first, count, room, flags, name, length) };
    }
    // SAFETY: the caller's promise.
    unsafe { receive::recvfrom(fd, first, count, flags, name, length) }
}

/// As `__recv_chk`.
///
/// # Safety
/// As read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(
    fd: c_int,
    first: *mut c_void,
    count: size_t,
    room: size_t,
) -> ssize_t {
    if count > room {
        // SAFETY: it does not return.
        return unsafe { originals::__read_chk(fd, first, count, room) };
    }
    // SAFETY: the caller's promise.
    unsafe { receive::read(fd, first, count) }
}
