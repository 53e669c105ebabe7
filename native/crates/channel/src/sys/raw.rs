//! System calls without libc's names: in a preloaded library those are its own hooks.

use super::Errno;

fn checked(result: libc::c_long) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| Errno::last())
}

/// Close a descriptor.
pub fn close(descriptor: i32) {
    // SAFETY: the number is the caller's.
    unsafe { libc::syscall(libc::SYS_close, descriptor) };
}

/// Send bytes without waiting; never raises SIGPIPE.
///
/// # Errors
/// EAGAIN without room, EPIPE without the other side; of the system.
pub fn send_bytes_now(descriptor: i32, bytes: &[u8]) -> Result<usize, Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: all of `bytes` is readable.
    checked(unsafe {
        libc::syscall(
            libc::SYS_sendto,
            descriptor,
            bytes.as_ptr(),
            bytes.len(),
            flags,
            core::ptr::null::<u8>(),
            0usize,
        )
    })
}

/// Receive bytes without waiting; 0 is the end.
///
/// # Errors
/// EAGAIN without any; of the system.
pub fn receive_bytes_now(descriptor: i32, bytes: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: all of `bytes` is writable.
    checked(unsafe {
        libc::syscall(
            libc::SYS_recvfrom,
            descriptor,
            bytes.as_mut_ptr(),
            bytes.len(),
            libc::MSG_DONTWAIT,
            core::ptr::null_mut::<u8>(),
            core::ptr::null_mut::<u8>(),
        )
    })
}
