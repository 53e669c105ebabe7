//! What a waiter's thread is doing, in one atomic: the only state of the plane without a lock.
//!
//! `native/loom` tests this file in every interleaving of two threads, with its own `atomics`.

use crate::atomics::{AtomicU32, Ordering};

const RUNNING: u32 = 0;
const IN_POLL: u32 = 1;
const PARKED: u32 = 2;
const NOTIFIED: u32 = 3;

/// How to wake the notified thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// It runs, or was notified before: it looks before it sleeps.
    Needless,
    /// It leads and may be in epoll.
    Kick,
    /// It may be parked.
    Parked,
}

/// The state of a waiter. Its thread goes to sleep under the plane's lock only; notifying needs the
/// lock too, but waking up does not.
#[derive(Debug)]
pub struct WaiterState(AtomicU32);

impl WaiterState {
    pub fn new() -> Self {
        Self(AtomicU32::new(RUNNING))
    }

    /// Note that the thread is about to sleep in epoll. Lock held.
    pub fn lead_in_poll(&self) {
        self.0.store(IN_POLL, Ordering::Release);
    }

    /// Note that the thread runs and looks at this state: no wake-up needed. Lock held.
    pub fn lead_awake(&self) {
        self.0.store(RUNNING, Ordering::Release);
    }

    /// Return whether the thread was notified since.
    pub fn is_notified(&self) -> bool {
        self.0.load(Ordering::Acquire) == NOTIFIED
    }

    /// Note that the thread is about to park. Lock held.
    pub fn park(&self) {
        self.0.store(PARKED, Ordering::Release);
    }

    /// Mark the thread as notified, return how to wake it. Lock held.
    pub fn notify(&self) -> Wake {
        match self.0.swap(NOTIFIED, Ordering::AcqRel) {
            IN_POLL => Wake::Kick,
            PARKED => Wake::Parked,
            _ => Wake::Needless,
        }
    }

    /// Mark a thread that runs as notified; return false if it does not run. Lock held.
    pub fn notify_running(&self) -> bool {
        if self.0.load(Ordering::Acquire) != RUNNING {
            return false;
        }
        self.0.store(NOTIFIED, Ordering::Release);
        true
    }

    /// Return the value to park on; as an error if the thread was notified: it must not sleep.
    pub fn parked_value(&self) -> Result<u32, u32> {
        match self.0.load(Ordering::Acquire) {
            PARKED => Ok(PARKED),
            other => Err(other),
        }
    }

    /// Note that the leader has left epoll, unless it was notified. No lock needed.
    pub fn leave_poll(&self) {
        let _ = self
            .0
            .compare_exchange(IN_POLL, RUNNING, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Note that the thread runs; return whether it was notified. Lock held.
    pub fn end_wait(&self) -> bool {
        self.0.swap(RUNNING, Ordering::AcqRel) == NOTIFIED
    }

    /// Return whether the thread is not in epoll, nor about to be: it looks before it sleeps.
    pub fn is_out_of_poll(&self) -> bool {
        self.0.load(Ordering::Relaxed) != IN_POLL
    }

    /// The atomic that the futex call takes.
    pub fn atomic(&self) -> &AtomicU32 {
        &self.0
    }
}
