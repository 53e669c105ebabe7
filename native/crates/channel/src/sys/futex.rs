//! Sleeping on a word that other processes have mapped too.

use core::ptr;

use super::Errno;
use crate::atomics::AtomicU32;

/// Sleep while the word has this value; return at once if it has not.
///
/// # Errors
/// EINTR: a signal came; ETIMEDOUT after `timeout_ns`. EAGAIN (another value) is no error.
pub fn wait(word: &AtomicU32, value: u32, timeout_ns: Option<u64>) -> Result<(), Errno> {
    let time = timeout_ns.map(|ns| libc::timespec {
        // Both fit: 2^64 ns are less than 2^35 seconds.
        tv_sec: libc::time_t::try_from(ns / 1_000_000_000).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::try_from(ns % 1_000_000_000).unwrap_or(0),
    });
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the word is mapped, and `time` is null or lives until the call returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            value,
            time,
        )
    };
    match Errno::last() {
        _ if result == 0 => Ok(()),
        Errno(libc::EAGAIN) => Ok(()),
        failure => Err(failure),
    }
}

/// Wake up to `count` of those that sleep on the word.
pub fn wake(word: &AtomicU32, count: i32) {
    // SAFETY: the word is mapped.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, count) };
}
