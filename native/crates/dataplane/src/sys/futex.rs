//! Sleeping on a word: unlike a park, it lets a signal end the sleep.

use std::io;
use std::sync::atomic::AtomicU32;

/// Sleep while `word` is `value`; returns at once if it is not.
///
/// # Errors
/// `Interrupted` by a signal; a timeout is no error.
pub fn wait(word: &AtomicU32, value: u32, timeout_ns: Option<u64>) -> io::Result<()> {
    let time = timeout_ns.map(super::timespec);
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `word` and `time` live through the call; the word is aligned, as every atomic is.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            value,
            time,
        )
    };
    if result < 0 {
        let failure = io::Error::last_os_error();
        if failure.kind() == io::ErrorKind::Interrupted {
            return Err(failure);
        }
    }
    Ok(())
}

/// Wake the thread that sleeps on `word`, if one does.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the kernel looks at the address only.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            1,
        )
    };
}
