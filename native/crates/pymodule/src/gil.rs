//! Whose turn it is at the interpreter: hot calls give way to the control thread, and keep their
//! half of it beside a thread that computes.
//!
//! A thread that waits for the interpreter lock asks its holder to give it up after 5 ms in which
//! nobody did (`take_gil`, `Python/ceval_gil.h` of 3.11). A holder that gives it up often
//! and for a moment only, as an event loop does at each look at its descriptors, wakes the waiter
//! each time, has it again before the waiter runs, and so is never asked. What takes the Python
//! plane long enough in a system call takes us no time: beside a flood the control thread came to
//! run once in 50 ms, and a connection took seconds.
//!
//! A thread that computes is asked, but each wait of ours that gives up the interpreter costs those
//! 5 ms, in which no more can arrive than the accounts hold: one way the rate fell to a sixth. So
//! where the way back was long, the next waits keep the interpreter for a moment. The eval loop
//! gives it up when it is asked to, after 5 ms: both threads have a half. A wait in vain, a thread
//! of ours that wants the interpreter, and time end this.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use pyo3::prelude::*;
use urds_dataplane::plane::Plane as Shell;
use urds_dataplane::sys;

/// Long enough for a thread to be woken on another processor, with the system's timer slack.
const PAUSE: Duration = Duration::from_micros(50);
/// Between two pauses, so that a control thread which is busy for long leaves others their pace.
const BETWEEN_NS: u64 = 250_000;

/// A way back to the interpreter of so long led past a thread that computes.
const CROWDED_NS: u64 = 500_000;
/// How long that is taken to be so; then a wait gives up the interpreter, and so asks again.
const CROWD_NS: u64 = 50_000_000;
/// So long between two such waits, and it was taken from us meanwhile: somebody still computes.
const TAKEN_NS: u64 = 4_000_000;
/// Longer than the pauses in a busy stream. Of one that pauses longer a computing thread loses this
/// once in the 5 ms that it has.
const HELD_NS: u64 = 500_000;

/// Who may want the interpreter, and when somebody gave way last.
#[derive(Default)]
pub struct Turn {
    control_is_out: AtomicBool,
    gave_way_ns: AtomicU64,
    /// Calls that are done with a wait and on their way back.
    wanting: AtomicUsize,
    /// 0 or past: nobody computes, as far as is known.
    crowded_until_ns: AtomicU64,
    /// When a wait was last asked to keep the interpreter.
    held_at_ns: AtomicU64,
}

impl Turn {
    /// The control thread enters `help`: it needs no interpreter.
    pub fn control_enters(&self) {
        self.control_is_out.store(false, Relaxed);
    }

    /// It is about to leave `help` for what only Python can do.
    pub fn control_leaves(&self) {
        self.control_is_out.store(true, Relaxed);
    }

    /// Let the control thread in, if it is out and nobody did so for a while.
    #[inline]
    pub fn give_way(&self, py: Python<'_>, shell: &Shell) {
        if self.control_is_out.load(Relaxed) {
            self.pause(py, shell);
        }
    }

    /// Wait without the interpreter, and note how long the way back takes.
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

    /// Nothing came meanwhile: the stream is not busy, so the next wait gives up the interpreter.
    pub fn held_in_vain(&self) {
        self.crowded_until_ns.store(0, Relaxed);
    }

    #[cold]
    fn pause(&self, py: Python<'_>, shell: &Shell) {
        let now_ns = shell.now_ns();
        if now_ns < self.gave_way_ns.load(Relaxed) + BETWEEN_NS {
            return;
        }
        if now_ns < self.crowded_until_ns.load(Relaxed) {
            return; // whoever waits for it asks us for it, since we keep it throughout
        }
        py.detach(|| sys::pause(PAUSE));
        self.gave_way_ns.store(shell.now_ns(), Relaxed);
    }
}
