//! Deferred release of Python objects, by the next thread that holds the interpreter.
//!
//! A thread that reads or writes for the plane drops buffers without the interpreter lock, often
//! under the plane's own. Releasing them may run Python code, which may call in here. So they are
//! deferred, and every call from Python releases what is deferred before it does its work. The send
//! accounts bound the amount, for only calls put objects here.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::ffi;
use crate::memory;
use crate::sys::Export;

/// An object to be released with the interpreter held.
pub enum Deferred {
    Object(Py<PyAny>),
    Export(Export),
    /// A Python stream: it is closed.
    Stream(Py<PyAny>),
}

static LISTS: [Mutex<Vec<Deferred>>; 2] = [const { Mutex::new(Vec::new()) }; 2];
/// Which of them is in use: a fork may leave the other locked for ever.
static CURRENT: AtomicUsize = AtomicUsize::new(0);
static FILLED: AtomicBool = AtomicBool::new(false);
static BY_PROGRESS_THREADS: AtomicUsize = AtomicUsize::new(0);
static BYTES_BY_PROGRESS_THREADS: AtomicUsize = AtomicUsize::new(0);

const ENTRIES_MAX: usize = 64;
const BYTES_MAX: usize = 4 << 20;

/// Defer a release. From any thread, under any of our locks.
pub fn defer(deferred: Deferred, bytes: usize) {
    if memory::is_progress_thread() {
        BY_PROGRESS_THREADS.fetch_add(1, Relaxed);
        BYTES_BY_PROGRESS_THREADS.fetch_add(bytes, Relaxed);
    }
    list().lock().push(deferred);
    FILLED.store(true, Relaxed);
}

/// Return whether the progress thread should return to Python to run deferred releases: many, or
/// any before a long sleep. Other threads soon return by themselves.
pub fn is_worth_a_return(before_long_sleep: bool) -> bool {
    let entries = BY_PROGRESS_THREADS.load(Relaxed);
    entries >= ENTRIES_MAX
        || BYTES_BY_PROGRESS_THREADS.load(Relaxed) >= BYTES_MAX
        || (before_long_sleep && entries > 0)
}

/// Run deferred releases, if there are any; no lock of ours held.
#[inline]
pub fn drain(py: Python<'_>) {
    if FILLED.load(Relaxed) {
        empty(py);
    }
}

#[cold]
fn empty(py: Python<'_>) {
    let deferred = {
        let mut deferred = list().lock();
        FILLED.store(false, Relaxed);
        BY_PROGRESS_THREADS.store(0, Relaxed);
        BYTES_BY_PROGRESS_THREADS.store(0, Relaxed);
        mem::take(&mut *deferred)
    };
    for one in deferred {
        match one {
            Deferred::Object(object) => drop(object.into_bound(py)),
            Deferred::Export(export) => export.release(py),
            Deferred::Stream(stream) => {
                let stream = stream.into_bound(py);
                ffi::call_surely(py, &stream, || ffi::call(&stream, "close").map(drop));
            }
        }
    }
}

fn list() -> &'static Mutex<Vec<Deferred>> {
    &LISTS[CURRENT.load(Relaxed) & 1]
}

/// Use the other list, as the parent may hold this one; in the child, which has one thread.
pub fn after_fork_in_child() {
    if list().is_locked() {
        CURRENT.fetch_add(1, Relaxed);
    }
}
