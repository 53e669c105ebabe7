//! The calls that give a number away: what is known of it is forgotten, the rest is libc's affair.
//!
//! Forgotten twice around a call: before it, so that another thread that opens a file with this
//! number is not mistaken; after it, for an answer that was under way meanwhile.

use core::ffi::{c_int, c_uint};

use libc::{FILE, off_t, size_t, ssize_t};

use super::{Whose, whose};
use crate::sys::{errno, originals};
use crate::table;

/// As close(2).
pub fn close(fd: c_int) -> c_int {
    // SAFETY: an integer. Whether it may be closed is the caller's affair.
    replaced(fd, || unsafe { originals::close(fd) })
}

/// As dup2(2).
pub fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: integers.
    replaced(new, || unsafe { originals::dup2(old, new) })
}

/// As dup3(2).
pub fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: integers.
    replaced(new, || unsafe { originals::dup3(old, new, flags) })
}

fn replaced(new: c_int, call: impl FnOnce() -> c_int) -> c_int {
    table::forget(new);
    let done = call();
    table::forget(new);
    done
}

/// As `close_range(2)`. With `CLOSE_RANGE_CLOEXEC` nothing is closed, and asking again does no harm.
pub fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    table::forget_range(first, last);
    // SAFETY: integers.
    unsafe { originals::close_range(first, last, flags) }
}

/// As closefrom(3).
pub fn closefrom(first: c_int) {
    table::forget_range(first.max(0).cast_unsigned(), c_uint::MAX);
    // SAFETY: an integer.
    unsafe { originals::closefrom(first) };
}

/// As fclose(3).
///
/// # Safety
/// An open stream.
pub unsafe fn fclose(file: *mut FILE) -> c_int {
    if !file.is_null() {
        let before = errno::get();
        // SAFETY: the caller's promise.
        table::forget(unsafe { libc::fileno(file) });
        errno::set(before);
    }
    // SAFETY: the caller's promise.
    unsafe { originals::fclose(file) }
}

/// Tell whether a descriptor is ours, where a call for files must not touch it.
fn is_ours(fd: c_int) -> bool {
    matches!(whose(fd), Whose::Ours(_) | Whose::Lost)
}

fn refused() -> ssize_t {
    errno::set(libc::EINVAL);
    -1
}

/// As sendfile(2): EINVAL for one of ours, whose readiness the bytes would spoil.
///
/// # Safety
/// `offset` is null or valid.
pub unsafe fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    if is_ours(out) || is_ours(from) {
        return refused();
    }
    // SAFETY: the caller's promise.
    unsafe { originals::sendfile(out, from, offset, count) }
}

/// As `sendfile`.
///
/// # Safety
/// As `sendfile`.
pub unsafe fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    if is_ours(out) || is_ours(from) {
        return refused();
    }
    // SAFETY: the caller's promise.
    unsafe { originals::sendfile64(out, from, offset, count) }
}

/// As splice(2): EINVAL for one of ours.
///
/// # Safety
/// The offsets are null or valid.
pub unsafe fn splice(
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    if is_ours(from) || is_ours(to) {
        return refused();
    }
    // SAFETY: the caller's promise.
    unsafe { originals::splice(from, from_offset, to, to_offset, count, flags) }
}
