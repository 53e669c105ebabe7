//! System calls of a client, and its `unsafe`.
//!
//! Most go by their number: in a preloaded library libc's names are that library's own. The two
//! that wait go through pointers, which such a library sets to libc's functions.

pub mod parts;

use core::ffi::CStr;
use core::mem::{self, MaybeUninit};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// `ssize_t recv(int, void *, size_t, int)` that a waiting receive calls; null: the system call.
pub static WAIT_RECV: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
/// `ssize_t send(int, const void *, size_t, int)` that a waiting send calls; null: the system call.
pub static WAIT_SEND: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Descriptors that come with an answer, at most.
pub const DESCRIPTORS: usize = 3;

const DESCRIPTOR_BYTES: u32 = 4;
const FAMILY: libc::sa_family_t = 1; // AF_UNIX

type WaitCall = unsafe extern "C" fn(i32, *mut libc::c_void, usize, i32) -> isize;

/// Return the number of the call that has just failed.
pub fn errno() -> i32 {
    // SAFETY: the place of the calling thread's own number, always readable.
    unsafe { *libc::__errno_location() }
}

fn checked(result: libc::c_long) -> Result<usize, i32> {
    usize::try_from(result).map_err(|_| errno())
}

fn wait_call(
    of_library: &AtomicPtr<()>,
    number: libc::c_long,
    descriptor: i32,
    byte: &mut u8,
    flags: i32,
) -> Result<usize, i32> {
    let call = of_library.load(Ordering::Acquire);
    let byte = ptr::from_mut(byte).cast::<libc::c_void>();
    let result = if call.is_null() {
        let none = ptr::null_mut::<libc::c_void>();
        // SAFETY: one byte is readable and writable there.
        unsafe { libc::syscall(number, descriptor, byte, 1usize, flags, none, none) }
    } else {
        // SAFETY: who sets the pointer gives a function of this type; as above.
        unsafe {
            let call = mem::transmute::<*mut (), WaitCall>(call);
            call(descriptor, byte, 1, flags) as libc::c_long
        }
    };
    checked(result)
}

/// Wait until a byte is there, without taking it; 0 is the end of the node.
///
/// # Errors
/// EAGAIN, EINTR; of the system.
pub fn wait_readable(descriptor: i32) -> Result<usize, i32> {
    let mut byte = 0;
    let number = libc::SYS_recvfrom;
    wait_call(&WAIT_RECV, number, descriptor, &mut byte, libc::MSG_PEEK)
}

/// Wait until there is room for a byte, and send it.
///
/// # Errors
/// EAGAIN, EINTR, EPIPE; of the system.
pub fn wait_writable(descriptor: i32) -> Result<usize, i32> {
    let mut byte = 1;
    let number = libc::SYS_sendto;
    wait_call(
        &WAIT_SEND,
        number,
        descriptor,
        &mut byte,
        libc::MSG_NOSIGNAL,
    )
}

/// Return whether calls on a descriptor shall not wait.
pub fn is_nonblocking(descriptor: i32) -> bool {
    // SAFETY: no memory is passed.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    flags < 0 || flags & libc::O_NONBLOCK != 0
}

/// Return whether the other end of a descriptor is closed.
pub fn has_ended(descriptor: i32) -> bool {
    let mut one = libc::pollfd {
        fd: descriptor,
        events: 0,
        revents: 0,
    };
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let none = ptr::null::<libc::c_void>();
    // SAFETY: one record is writable there, `now` readable.
    unsafe {
        libc::syscall(
            libc::SYS_ppoll,
            &raw mut one,
            1usize,
            &raw const now,
            none,
            0usize,
        )
    };
    one.revents & libc::POLLHUP != 0
}

/// Return `SO_SNDTIMEO` in nanoseconds, None without one.
pub fn send_timeout_ns(descriptor: i32) -> Option<u64> {
    let mut time = MaybeUninit::<libc::timeval>::zeroed();
    let mut length = size_of::<libc::timeval>();
    // SAFETY: both places are writable and as long as they say.
    let (result, time) = unsafe {
        let result = libc::syscall(
            libc::SYS_getsockopt,
            descriptor,
            libc::SOL_SOCKET,
            libc::SO_SNDTIMEO,
            time.as_mut_ptr(),
            &raw mut length,
        );
        (result, time.assume_init())
    };
    let ns = time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_usec.unsigned_abs() * 1000;
    (result == 0 && ns > 0).then_some(ns)
}

/// Return the monotonic clock in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Read bytes of a file from an offset on.
///
/// # Errors
/// Of the system.
pub fn read_at(file: i32, bytes: &mut [u8], offset: usize) -> Result<usize, i32> {
    // SAFETY: all of `bytes` is writable.
    checked(unsafe {
        libc::syscall(
            libc::SYS_pread64,
            file,
            bytes.as_mut_ptr(),
            bytes.len(),
            offset,
        )
    })
}

/// A descriptor that is closed with its owner.
#[derive(Debug)]
pub struct Owned(pub i32);

impl Owned {
    /// Keep it open; it is the caller's now.
    pub fn release(self) -> i32 {
        let descriptor = self.0;
        mem::forget(self);
        descriptor
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        urds_channel::sys::raw::close(self.0);
    }
}

/// Connect to a socket of the file system, at most ten seconds for each call on it.
///
/// # Errors
/// ENOENT, ECONNREFUSED, EACCES; ENAMETOOLONG; of the system.
pub fn connect(path: &[u8]) -> Result<Owned, i32> {
    let mut address = MaybeUninit::<libc::sockaddr_un>::zeroed();
    let most = size_of::<libc::sockaddr_un>() - size_of::<libc::sa_family_t>();
    if path.is_empty() || path.len() >= most {
        return Err(libc::ENAMETOOLONG);
    }
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    let time = libc::timeval {
        tv_sec: 10,
        tv_usec: 0,
    };
    // SAFETY: the address is as long as it says, its path shorter than its room; `time` is readable.
    unsafe {
        (*address.as_mut_ptr()).sun_family = FAMILY;
        let room = (&raw mut (*address.as_mut_ptr()).sun_path).cast::<u8>();
        ptr::copy_nonoverlapping(path.as_ptr(), room, path.len());
        let made = checked(libc::syscall(libc::SYS_socket, libc::AF_UNIX, kind, 0))?;
        let connection = Owned(i32::try_from(made).unwrap_or(-1));
        for option in [libc::SO_SNDTIMEO, libc::SO_RCVTIMEO] {
            libc::syscall(
                libc::SYS_setsockopt,
                connection.0,
                libc::SOL_SOCKET,
                option,
                &raw const time,
                size_of::<libc::timeval>(),
            );
        }
        let length = size_of::<libc::sa_family_t>() + path.len() + 1;
        repeated(|| {
            checked(libc::syscall(
                libc::SYS_connect,
                connection.0,
                address.as_ptr(),
                length,
            ))
        })?;
        Ok(connection)
    }
}

/// Make a call again that a signal ended.
fn repeated(mut call: impl FnMut() -> Result<usize, i32>) -> Result<usize, i32> {
    loop {
        match call() {
            Err(libc::EINTR) => {}
            result => return result,
        }
    }
}

/// Room for the control message of up to `DESCRIPTORS` descriptors, aligned as the system wants it.
#[repr(C, align(8))]
struct ControlRoom([u8; 64]);

/// Send bytes with a descriptor, or none.
///
/// # Errors
/// Of the system.
pub fn send_with(connection: &Owned, bytes: &[u8], descriptor: Option<i32>) -> Result<(), i32> {
    let mut room = ControlRoom([0; 64]);
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: zeros are a message; what it points to lives until the call returns.
    unsafe {
        let mut message = MaybeUninit::<libc::msghdr>::zeroed().assume_init();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if let Some(descriptor) = descriptor {
            let bytes = DESCRIPTOR_BYTES;
            message.msg_control = (&raw mut room).cast();
            message.msg_controllen = libc::CMSG_SPACE(bytes) as _;
            let first = libc::CMSG_FIRSTHDR(&raw const message);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(bytes) as _;
            libc::CMSG_DATA(first)
                .cast::<i32>()
                .write_unaligned(descriptor);
        }
        repeated(|| {
            checked(libc::syscall(
                libc::SYS_sendmsg,
                connection.0,
                &raw const message,
                libc::MSG_NOSIGNAL,
            ))
        })?;
    }
    Ok(())
}

/// Receive bytes and the descriptors with them; return how many bytes.
///
/// # Errors
/// EAGAIN after ten seconds; EMFILE where the process may have no more descriptors; of the system.
pub fn receive_with(
    connection: &Owned,
    bytes: &mut [u8],
    descriptors: &mut [Option<Owned>; DESCRIPTORS],
) -> Result<usize, i32> {
    let mut room = ControlRoom([0; 64]);
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: as in `send_with`; the control messages are walked as the system laid them.
    unsafe {
        let mut message = MaybeUninit::<libc::msghdr>::zeroed().assume_init();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut room).cast();
        message.msg_controllen = size_of::<ControlRoom>() as _;
        let received = repeated(|| {
            checked(libc::syscall(
                libc::SYS_recvmsg,
                connection.0,
                &raw mut message,
                libc::MSG_CMSG_CLOEXEC,
            ))
        })?;
        let mut next = 0;
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header);
                for index in 0..bytes / size_of::<i32>() {
                    let number = data.add(index * size_of::<i32>());
                    let owned = Owned(ptr::read_unaligned(number.cast()));
                    if next < DESCRIPTORS {
                        descriptors[next] = Some(owned);
                        next += 1;
                    }
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
        if message.msg_flags & libc::MSG_CTRUNC != 0 {
            return Err(libc::EMFILE); // there is room for all of them
        }
        Ok(received)
    }
}

/// Return the value of an environment variable, empty if it is unset.
pub fn environment(name: &CStr) -> &'static [u8] {
    // SAFETY: a name that ends with zero; the value lives until the program changes it, which a
    // program with several threads must not.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        if value.is_null() {
            b""
        } else {
            CStr::from_ptr(value).to_bytes()
        }
    }
}

/// Return whether a path is a folder of the calling user that no other may enter; a link to one is
/// none.
pub fn is_private_folder(path: &CStr) -> bool {
    let mut found = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: a string of C, and a place for the kernel's record, of which zeros are one too.
    let (result, found) = unsafe {
        let result = libc::syscall(
            libc::SYS_newfstatat,
            libc::AT_FDCWD,
            path.as_ptr(),
            found.as_mut_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
        );
        (result, found.assume_init())
    };
    let is_folder = result == 0 && found.st_mode & libc::S_IFMT == libc::S_IFDIR;
    let of_others = libc::S_IRWXG | libc::S_IRWXO;
    is_folder && found.st_uid == user() && found.st_mode & of_others == 0
}

/// Return the effective user of the program.
pub fn user() -> u32 {
    // SAFETY: no memory is passed.
    unsafe { libc::geteuid() }
}
