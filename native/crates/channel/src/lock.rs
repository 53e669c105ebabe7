//! A lock between processes that may be killed at any instruction, in one word of shared memory.
//!
//! The word holds the number of the thread that has the lock. If that is killed the kernel sets
//! `OWNER_DIED` and wakes one of those that wait: the next holder is told, and mends what it finds.
//! A signal handler that interrupts the holder's own thread is refused instead of waiting for ever.

use core::sync::atomic::Ordering;

use crate::atomics::AtomicU32;
use crate::sys::futex;
use crate::sys::thread::Thread;

const WAITERS: u32 = 0x8000_0000;
const OWNER_DIED: u32 = 0x4000_0000;
const NUMBER: u32 = 0x3fff_ffff;

/// The calling thread holds the lock already: it is in a signal handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlock;

/// The lock is held until this is dropped.
pub struct Guard<'a> {
    word: &'a AtomicU32,
    thread: Thread,
    /// What the kernel was to give free before.
    before: usize,
    /// The holder before was killed while it held the lock.
    pub is_inherited: bool,
}

/// Take the lock; waits for the holder.
///
/// # Errors
/// `Deadlock`.
#[allow(clippy::inline_always)] // its result would be written to memory, to be read at once
#[inline(always)]
pub fn lock(word: &AtomicU32) -> Result<Guard<'_>, Deadlock> {
    let thread = Thread::current();
    let (name, before) = (thread.name_of(word.as_ptr()), thread.pending());
    // The number tells it too when another lock was taken inside of this one. A thread of another
    // PID namespace may have the same number: then this is an EAGAIN too many.
    let holder = word.load(Ordering::Relaxed) & NUMBER;
    let is_ours = holder == thread.number || (name != 0 && before == name);
    if is_ours {
        return Err(Deadlock);
    }
    thread.set_pending(name);
    let taken = word.compare_exchange(0, thread.number, Ordering::Acquire, Ordering::Relaxed);
    let is_inherited = taken.is_err() && wait(word, thread.number);
    Ok(Guard {
        word,
        thread,
        before,
        is_inherited,
    })
}

/// Take the lock if no thread has it, nor was killed with it: for a caller that may not wait, nor mend.
pub fn try_lock(word: &AtomicU32) -> Option<Guard<'_>> {
    let thread = Thread::current();
    let before = thread.pending();
    thread.set_pending(thread.name_of(word.as_ptr()));
    let taken = word.compare_exchange(0, thread.number, Ordering::Acquire, Ordering::Relaxed);
    if taken.is_err() {
        thread.set_pending(before);
        return None;
    }
    Some(Guard {
        word,
        thread,
        before,
        is_inherited: false,
    })
}

/// Wait for the lock and take it; return whether its holder was killed.
#[cold]
fn wait(word: &AtomicU32, number: u32) -> bool {
    let mut waiters = 0;
    loop {
        let value = word.load(Ordering::Relaxed);
        if value & NUMBER == 0 {
            let mine = number | waiters | (value & WAITERS);
            let taken = word.compare_exchange(value, mine, Ordering::Acquire, Ordering::Relaxed);
            if taken.is_ok() {
                return value & OWNER_DIED != 0;
            }
            continue;
        }
        let marked = value | WAITERS;
        let is_marked = value == marked
            || word
                .compare_exchange(value, marked, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_marked {
            waiters = WAITERS; // others may sleep too: the next to leave wakes one
            let _ = futex::wait(word, marked, None); // a signal: look again
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.word.swap(0, Ordering::Release) & WAITERS != 0 {
            futex::wake(self.word, 1);
        }
        self.thread.set_pending(self.before);
    }
}

#[cfg(test)]
#[path = "lock_tests.rs"]
mod tests;
