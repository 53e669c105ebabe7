//! Use of the interpreter lock: hot calls yield to the control thread, and keep their half of it
//! next to a computing thread.
//!
//! A thread that waits for the interpreter lock requests it after 5 ms without a release
//! (`take_gil`, `Python/ceval_gil.h` of 3.11). A holder that releases it often and only for a
//! moment, as an event loop does at each poll of its descriptors, wakes the waiter each time, has
//! it again before the waiter runs, and so never gets a request. The Python plane spends long
//! enough in each system call, we do not: under a flood the control thread ran once in 50 ms, and a
//! connection took seconds. A progress thread that wakes a task of an event loop writes to the
//! loop's pipe, where it gives the interpreter up: it had it back after up to two seconds, in which
//! no other thread read the streams that it was about to read.
//!
//! A computing thread gets requests, but each of our waits without the interpreter costs 5 ms, in
//! which no more can arrive than the accounts hold: the one-way rate falls to a sixth. So where the
//! way back was long, the next waits keep the interpreter for a moment. The eval loop releases it
//! on request, after 5 ms: both threads have a half. An empty wait, another call that wants the
//! interpreter, and time end this.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use pyo3::prelude::*;
use urds_dataplane::plane::Plane as Shell;
use urds_dataplane::sys;

/// Long enough for a thread to be woken on another processor, with the system's timer slack.
const PAUSE: Duration = Duration::from_micros(50);
/// So often while a progress thread claims the interpreter: a processor that idled may take longer
/// to wake.
const PAUSES_MAX: usize = 40;
/// Between two pauses, so that a control thread that is busy for long does not stop other threads.
const BETWEEN_NS: u64 = 250_000;

/// Taking the interpreter back for this long means that another thread computes.
const CROWDED_NS: u64 = 500_000;
/// How long that is assumed; then a wait releases the interpreter, and so measures again.
const CROWD_NS: u64 = 50_000_000;
/// This long between two such waits, and another thread took it meanwhile: it still computes.
const TAKEN_NS: u64 = 4_000_000;
/// Longer than the pauses in a busy stream. With longer ones a computing thread loses this once in
/// each of its 5 ms.
const HELD_NS: u64 = 500_000;

/// Progress threads, of all planes, that are to have the interpreter now.
static CLAIMS: AtomicUsize = AtomicUsize::new(0);

/// One of them, until this is dropped: hot calls of other threads yield to it.
pub struct Claim;

impl Claim {
    /// Begin to claim; any thread.
    pub fn new() -> Self {
        CLAIMS.fetch_add(1, Relaxed);
        Self
    }

    fn is_made() -> bool {
        CLAIMS.load(Relaxed) > 0
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Not below 0: a fork within the claim has forgotten it in the child.
        let _ = CLAIMS.fetch_update(Relaxed, Relaxed, |claims| claims.checked_sub(1));
    }
}

/// Forget threads of the parent; in the child of a fork, which has one.
pub fn after_fork_in_child() {
    CLAIMS.store(0, Relaxed);
}

/// Which threads may want the interpreter, and when a call yielded last.
#[derive(Default)]
pub struct GilUse {
    control_is_out: AtomicBool,
    gave_way_ns: AtomicU64,
    /// Calls that are done with a wait and take the interpreter back.
    wanting: AtomicUsize,
    /// 0 or past: no thread is known to compute.
    crowded_until_ns: AtomicU64,
    /// When a wait was last told to keep the interpreter.
    held_at_ns: AtomicU64,
}

impl GilUse {
    /// The control thread enters `help`: it needs no interpreter.
    pub fn control_enters(&self) {
        self.control_is_out.store(false, Relaxed);
    }

    /// The control thread is about to leave `help` for work in Python.
    pub fn control_leaves(&self) {
        self.control_is_out.store(true, Relaxed);
    }

    /// Yield to the control thread, if it is out of `help`, or to a progress thread that claims the
    /// interpreter, unless a call did so just now.
    #[inline]
    pub fn give_way(&self, py: Python<'_>, shell: &Shell) {
        if self.control_is_out.load(Relaxed) || Claim::is_made() {
            self.pause(py, shell);
        }
    }

    /// Wait without the interpreter, and measure how long taking it back lasts.
    pub fn wait_outside<T: Send>(
        &self,
        py: Python<'_>,
        shell: &Shell,
        work: impl Send + FnOnce() -> T,
    ) -> T {
        let (result, done_ns) = py.detach(|| {
            let result = work();
            self.wanting.fetch_add(1, Relaxed);
            (result, shell.now_ns())
        });
        self.wanting.fetch_sub(1, Relaxed);
        let now_ns = shell.now_ns();
        if now_ns.saturating_sub(done_ns) >= CROWDED_NS {
            self.crowded_until_ns.store(now_ns + CROWD_NS, Relaxed);
        }
        result
    }

    /// Return how long to wait with the interpreter first; `None` if not at all.
    #[inline]
    pub fn held_ns(&self, shell: &Shell, wait_ns: Option<u64>) -> Option<u64> {
        let until_ns = self.crowded_until_ns.load(Relaxed);
        if until_ns == 0 {
            return None;
        }
        self.held_ns_until(until_ns, shell.now_ns(), wait_ns)
    }

    fn held_ns_until(&self, until_ns: u64, now_ns: u64, wait_ns: Option<u64>) -> Option<u64> {
        let since_ns = now_ns.saturating_sub(self.held_at_ns.swap(now_ns, Relaxed));
        let was_taken = (TAKEN_NS..CROWD_NS).contains(&since_ns);
        if was_taken {
            self.crowded_until_ns.store(now_ns + CROWD_NS, Relaxed);
        }
        let is_crowded = was_taken || now_ns < until_ns;
        let is_kept = is_crowded && self.wanting.load(Relaxed) == 0;
        is_kept.then(|| wait_ns.map_or(HELD_NS, |wait_ns| wait_ns.min(HELD_NS)))
    }

    /// The wait was empty: the stream is not busy, so the next wait releases the interpreter.
    pub fn held_for_nothing(&self) {
        self.crowded_until_ns.store(0, Relaxed);
    }

    #[cold]
    fn pause(&self, py: Python<'_>, shell: &Shell) {
        let now_ns = shell.now_ns();
        if now_ns < self.gave_way_ns.load(Relaxed) + BETWEEN_NS {
            return;
        }
        if now_ns < self.crowded_until_ns.load(Relaxed) {
            return; // another waiter requests it from us: we keep it
        }
        py.detach(|| {
            sys::pause(PAUSE);
            for _ in 1..PAUSES_MAX {
                if !Claim::is_made() {
                    break;
                }
                sys::pause(PAUSE);
            }
        });
        self.gave_way_ns.store(shell.now_ns(), Relaxed);
    }
}
