//! Sleeping on an atomic: unlike a park of `std`, it lets a signal end the sleep.

use std::io;
use std::sync::atomic::AtomicU32;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};

/// Sleep while `word` is `value`; return at once if it is not.
///
/// # Errors
/// `Interrupted` by a signal; a timeout is no error.
pub fn wait(word: &AtomicU32, value: u32, timeout_ns: Option<u64>) -> io::Result<()> {
    let time = timeout_ns.map(super::exactly);
    match futex::wait(word, Flags::PRIVATE, value, time.as_ref()) {
        Err(Errno::INTR) => Err(Errno::INTR.into()),
        _ => Ok(()),
    }
}

/// Wake the thread that sleeps on `word`, if one does.
pub fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, Flags::PRIVATE, 1);
}
