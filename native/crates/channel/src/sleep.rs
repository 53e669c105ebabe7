//! The order of a sleeper and of its waker, over one word in shared memory.
//!
//! | sleeper | waker |
//! |---|---|
//! | asleep := 1 | does its work (release) |
//! | fence | fence |
//! | looks for work (acquire) | looks at asleep, swaps it for 0, rings |
//!
//! Both fences are in one total order, so one of the two sees what the other wrote: no wake-up is
//! lost. `native/loom` tests this file in every interleaving, with its own `atomics`.

use crate::atomics::{AtomicU32, Ordering, fence};

/// Return whether to ring, after the work was published: the other side slept, and is shown it now.
#[inline]
pub fn must_ring(asleep: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
}

/// The same for a sleeper that waits for more than any work: `is_due` judges what it wrote.
///
/// Only what is due wakes it: else its word stays.
#[inline]
pub fn must_ring_if(asleep: &AtomicU32, is_due: impl FnOnce(u32) -> bool) -> bool {
    fence(Ordering::SeqCst);
    let what = asleep.load(Ordering::Relaxed);
    what != 0 && is_due(what) && asleep.swap(0, Ordering::Relaxed) != 0
}

/// Set the word; the process that looks after this call sees what was published before the waker's look.
#[inline]
pub fn set_asleep(asleep: &AtomicU32) {
    set_waiting(asleep, 1);
}

/// Set the word to what this side waits for, not 0; as `set_asleep`.
#[inline]
pub fn set_waiting(asleep: &AtomicU32, what: u32) {
    // Not a store: it comes after a waker's swap in the one order of this word, which loom then sees.
    asleep.swap(what, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Note that this side looks by itself: no ring until it sleeps again.
#[inline]
pub fn awake(asleep: &AtomicU32) {
    if asleep.load(Ordering::Relaxed) != 0 {
        asleep.store(0, Ordering::Relaxed);
    }
}
