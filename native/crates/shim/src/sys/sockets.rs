//! Questions to the kernel about a descriptor.

use core::ptr;

use super::{errno, originals};
use crate::{Answer, Errno};

/// Room for the longest name of an `AF_UNIX` socket.
pub const NAME_BYTES: usize = size_of::<libc::sockaddr_un>();

/// Return the abstract name of an `AF_UNIX` socket, without its leading zero; empty if it has none.
///
/// # Errors
/// EBADF, ENOTSOCK; EINVAL for a socket of another family.
pub fn abstract_name(fd: i32, place: &mut [u8; NAME_BYTES]) -> Answer<&[u8]> {
    let mut length = u32::try_from(NAME_BYTES).unwrap_or(0);
    // SAFETY: the place has the length that is given.
    let failed =
        unsafe { originals::getsockname(fd, place.as_mut_ptr().cast(), &raw mut length) } != 0;
    if failed {
        return Err(errno::get());
    }
    let family = u16::from_ne_bytes([place[0], place[1]]);
    if i32::from(family) != libc::AF_UNIX {
        return Err(libc::EINVAL);
    }
    let end = (length as usize).clamp(2, NAME_BYTES);
    Ok(place[2..end].strip_prefix(&[0]).unwrap_or_default())
}

/// Return the number that the kernel gives a socket, the same for all its descriptors.
///
/// # Errors
/// EBADF, ENOTSOCK.
pub fn cookie(fd: i32) -> Answer<u64> {
    let mut value = 0u64;
    let mut length = 8;
    // SAFETY: the place has the length that is given.
    let failed = unsafe {
        originals::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            ptr::from_mut(&mut value).cast(),
            &raw mut length,
        )
    } != 0;
    if failed { Err(errno::get()) } else { Ok(value) }
}

/// Return the same socket under the lowest free number, as socket(2) gives one, and close this one.
pub fn lowest(fd: i32) -> i32 {
    // SAFETY: this request takes integers.
    let low = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if low < 0 {
        return fd;
    }
    let (kept, spare) = if low < fd { (low, fd) } else { (fd, low) };
    // SAFETY: a descriptor that was made here, or came with the answer of a node.
    unsafe { originals::close(spare) };
    kept
}

/// Set or clear `FD_CLOEXEC` and `O_NONBLOCK` of a new descriptor.
///
/// # Errors
/// EBADF.
pub fn set_flags(fd: i32, close_on_exec: bool, non_blocking: bool) -> Result<(), Errno> {
    let on_exec = if close_on_exec { libc::FD_CLOEXEC } else { 0 };
    let waiting = if non_blocking { libc::O_NONBLOCK } else { 0 };
    // SAFETY: these requests take integers.
    let failed = unsafe {
        libc::fcntl(fd, libc::F_SETFD, on_exec) < 0
            || libc::fcntl(fd, libc::F_SETFL, libc::O_RDWR | waiting) < 0
    };
    if failed { Err(errno::get()) } else { Ok(()) }
}
