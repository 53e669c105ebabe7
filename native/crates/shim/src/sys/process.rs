//! What a process knows: its variables, the network namespace of the calling thread.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ptr;

use super::originals;

/// Return a variable of the environment.
///
/// As getenv: it must not be changed at the same time by another thread.
pub fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: a string of C; the value stays while no thread changes the environment.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes())
    }
}

/// Return the number of the network namespace that the calling thread is in.
///
/// Before Linux 5.14 it is that of the namespace's file; 0 without `/proc`.
pub fn namespace() -> u64 {
    cookie().unwrap_or_else(inode)
}

fn cookie() -> Option<u64> {
    const SO_NETNS_COOKIE: i32 = 71; // Source: linux v5.14 include/uapi/asm-generic/socket.h
    let mut value = 0u64;
    let mut length = 8;
    // SAFETY: the descriptor is made and closed here; the place has the length that is given.
    unsafe {
        let fd = originals::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return None;
        }
        let place = ptr::from_mut(&mut value).cast();
        let level = libc::SOL_SOCKET;
        let failed = originals::getsockopt(fd, level, SO_NETNS_COOKIE, place, &raw mut length);
        originals::close(fd);
        (failed == 0).then_some(value)
    }
}

fn inode() -> u64 {
    let mut found = MaybeUninit::<libc::stat>::zeroed();
    let path = c"/proc/thread-self/ns/net".as_ptr();
    // SAFETY: a string of C, and a place for the kernel's record; libc has the same one.
    unsafe {
        let place = found.as_mut_ptr();
        let failed = libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path, place, 0) != 0;
        if failed {
            0
        } else {
            found.assume_init().st_ino
        }
    }
}
