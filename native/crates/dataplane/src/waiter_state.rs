//! What the thread of a waiter is doing, in one word: all of the plane that no lock guards.
//!
//! `native/loom` drives this file through every order of two threads, with its own `atomics`.

use crate::atomics::{AtomicU32, Ordering};

const RUNNING: u32 = 0;
const IN_POLL: u32 = 1;
const AT_GATE: u32 = 2;
const NOTIFIED: u32 = 3;

/// How to wake the thread that was notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// It runs, or was notified before: it looks before it sleeps.
    Needless,
    /// It leads and may be in epoll.
    Kick,
    /// It may be at its gate.
    Gate,
}

/// The word of a waiter. It goes to sleep under the plane's lock only; notifying it needs the lock,
/// too, but waking up does not.
#[derive(Debug)]
pub struct Word(AtomicU32);

impl Word {
    pub fn new() -> Self {
        Self(AtomicU32::new(RUNNING))
    }

    /// Note that the thread is about to sleep in epoll. Lock held.
    pub fn sit_in_poll(&self) {
        self.0.store(IN_POLL, Ordering::Release);
    }

    /// Note that the thread runs and looks at its word: nobody need wake it. Lock held.
    pub fn sit_awake(&self) {
        self.0.store(RUNNING, Ordering::Release);
    }

    /// Tell whether the thread was notified since.
    pub fn is_notified(&self) -> bool {
        self.0.load(Ordering::Acquire) == NOTIFIED
    }

    /// Note that the thread is about to sleep at its gate. Lock held.
    pub fn sit_at_gate(&self) {
        self.0.store(AT_GATE, Ordering::Release);
    }

    /// Mark the thread, then say how to wake it. Lock held.
    pub fn notify(&self) -> Wake {
        match self.0.swap(NOTIFIED, Ordering::AcqRel) {
            IN_POLL => Wake::Kick,
            AT_GATE => Wake::Gate,
            _ => Wake::Needless,
        }
    }

    /// Mark a thread that runs; return false if it does not. Lock held.
    pub fn notify_running(&self) -> bool {
        if self.0.load(Ordering::Acquire) != RUNNING {
            return false;
        }
        self.0.store(NOTIFIED, Ordering::Release);
        true
    }

    /// Return what to sleep on at the gate; as an error if somebody was faster: then do not sleep.
    pub fn before_gate(&self) -> Result<u32, u32> {
        match self.0.load(Ordering::Acquire) {
            AT_GATE => Ok(AT_GATE),
            other => Err(other),
        }
    }

    /// Note that the leader is out of its poll, unless it was notified. No lock needed.
    pub fn rise(&self) {
        let _ = self
            .0
            .compare_exchange(IN_POLL, RUNNING, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Note that the thread runs; return whether it was notified. Lock held.
    pub fn stand(&self) -> bool {
        self.0.swap(RUNNING, Ordering::AcqRel) == NOTIFIED
    }

    /// Tell whether the thread is not in epoll, nor about to be: it looks before it sleeps.
    pub fn is_out_of_poll(&self) -> bool {
        self.0.load(Ordering::Relaxed) != IN_POLL
    }

    /// The word as the system call takes it.
    pub fn atomic(&self) -> &AtomicU32 {
        &self.0
    }
}
