//! Arguments of C as slices. A pointer that is null with a length is EFAULT, as in the kernel;
//! one that is wild is a fault of the program, where the kernel would say EFAULT.

use core::ffi::c_void;
use core::slice;

use libc::{iovec, msghdr, sockaddr, socklen_t};

use crate::{Answer, Errno};

/// Most parts of one message. Source: linux v6.12 include/uapi/linux/uio.h (`UIO_MAXIOV`).
pub const PARTS_MAX: usize = 1024;

/// Return the bytes at a pointer; none for a length of 0.
///
/// # Errors
/// EFAULT for a null pointer.
///
/// # Safety
/// `length` bytes at `first` can be read and stay so for `'a`.
pub unsafe fn bytes<'a>(first: *const c_void, length: usize) -> Answer<&'a [u8]> {
    if length == 0 {
        return Ok(&[]);
    }
    if first.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's promise; no object is larger than isize::MAX.
    Ok(unsafe { slice::from_raw_parts(first.cast(), length.min(isize::MAX as usize)) })
}

/// Return the name argument of a call: None without one.
///
/// # Errors
/// EINVAL for a negative or absurd length.
///
/// # Safety
/// As `bytes`.
pub unsafe fn name<'a>(first: *const sockaddr, length: socklen_t) -> Answer<Option<&'a [u8]>> {
    if first.is_null() {
        return Ok(None);
    }
    if length as usize > size_of::<libc::sockaddr_storage>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    unsafe { bytes(first.cast(), length as usize) }.map(Some)
}

/// Return the parts of a message, and their bytes together.
///
/// # Errors
/// `too_many` beyond 1024; EFAULT for a null part with a length; EINVAL for more than `SSIZE_MAX`.
///
/// # Safety
/// `count` records at `first` can be read and stay so for `'a`.
pub unsafe fn parts<'a>(
    first: *const iovec,
    count: usize,
    too_many: Errno,
) -> Answer<(&'a [iovec], usize)> {
    if count == 0 {
        return Ok((&[], 0));
    }
    if count > PARTS_MAX {
        return Err(too_many);
    }
    if first.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    let parts = unsafe { slice::from_raw_parts(first, count) };
    let mut whole = 0usize;
    for part in parts {
        if part.iov_base.is_null() && part.iov_len > 0 {
            return Err(libc::EFAULT);
        }
        whole = whole.checked_add(part.iov_len).ok_or(libc::EINVAL)?;
    }
    if whole > isize::MAX as usize {
        return Err(libc::EINVAL);
    }
    Ok((parts, whole))
}

/// Return bytes that may be written; none for a null pointer.
///
/// # Safety
/// `length` bytes at `first` can be written and nothing else uses them for `'a`.
pub unsafe fn bytes_mut<'a>(first: *mut c_void, length: usize) -> &'a mut [u8] {
    if first.is_null() || length > isize::MAX as usize {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts_mut(first.cast(), length) }
}

/// Return a count of a message's record: libcs give it different types.
pub fn count(value: impl TryInto<usize>) -> usize {
    value.try_into().unwrap_or(usize::MAX)
}

/// Set a count of a message's record.
pub fn set_count<T: TryFrom<usize>>(place: &mut T, value: usize) {
    if let Ok(value) = T::try_from(value) {
        *place = value;
    }
}

/// Return the record of a message.
///
/// # Errors
/// EFAULT for null.
///
/// # Safety
/// `message` is null or a valid record that nothing else uses for `'a`.
pub unsafe fn message<'a>(message: *mut msghdr) -> Answer<&'a mut msghdr> {
    // SAFETY: the caller's promise.
    unsafe { message.as_mut() }.ok_or(libc::EFAULT)
}

/// Write a value of the kernel's into the caller's buffer: what fits, and how much it was.
///
/// # Errors
/// EFAULT for null, EINVAL for a negative length.
///
/// # Safety
/// `length` is null or valid, and what it says can be written at `first`.
pub unsafe fn give(value: &[u8], first: *mut c_void, length: *mut socklen_t) -> Answer {
    // SAFETY: the caller's promise.
    let length = unsafe { length.as_mut() }.ok_or(libc::EFAULT)?;
    let room = i32::try_from(*length)
        .map_err(|_| libc::EINVAL)?
        .cast_unsigned() as usize;
    let taken = room.min(value.len());
    if taken > 0 && first.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: `taken` bytes fit at `first` by the caller's promise; ours are elsewhere.
    unsafe { first.cast::<u8>().copy_from(value.as_ptr(), taken) };
    *length = u32::try_from(value.len()).unwrap_or(u32::MAX);
    Ok(0)
}
