//! Whose turn it is at the interpreter: hot calls give way to the control thread.
//!
//! A thread that waits for the interpreter lock asks its holder to give it up after 5 ms in which
//! nobody did (`take_gil`, `Python/ceval_gil.h` of 3.11). A holder that gives it up often and
//! for a moment only, as an event loop does at each look at its descriptors, wakes the waiter each
//! time, has it again before the waiter runs, and so is never asked. What takes the Python plane
//! long enough in a system call takes us no time: beside a flood the control thread came to run
//! once in 50 ms, and a connection took seconds.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use urds_dataplane::plane::Plane as Shell;

/// Long enough for a thread to be woken on another processor, with the system's timer slack.
const PAUSE: Duration = Duration::from_micros(50);
/// Between two pauses, so that a control thread which is busy for long leaves others their pace.
const BETWEEN_NS: u64 = 250_000;

/// Whether the control thread may want the interpreter, and when somebody gave way last.
#[derive(Default)]
pub struct Turn {
    control_is_out: AtomicBool,
    gave_way_ns: AtomicU64,
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

    #[cold]
    fn pause(&self, py: Python<'_>, shell: &Shell) {
        if shell.now_ns() < self.gave_way_ns.load(Relaxed) + BETWEEN_NS {
            return;
        }
        crate::boundary::without_python(py, shell, || thread::sleep(PAUSE));
        self.gave_way_ns.store(shell.now_ns(), Relaxed);
    }
}
