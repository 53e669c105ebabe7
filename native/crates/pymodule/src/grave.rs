//! Objects of Python whose last user may not hold the interpreter: they go when somebody does.
//!
//! A thread that reads or writes for the plane drops buffers without the interpreter lock, often
//! under the plane's own. Releasing them may run code of Python, which may call us. So they are
//! buried here, and every call from Python looks whether something is, before it does its work.
//! What can lie here is bounded by what lies in send accounts, for only calls put something there.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::memory;
use crate::sys::Export;

/// Something to be released by who holds the interpreter.
pub enum Remains {
    Object(Py<PyAny>),
    Export(Export),
    /// A stream of Python's: it is closed.
    Stream(Py<PyAny>),
}

static GRAVES: [Mutex<Vec<Remains>>; 2] = [const { Mutex::new(Vec::new()) }; 2];
/// Which of them is in use: a fork may leave the other locked for ever.
static CURRENT: AtomicUsize = AtomicUsize::new(0);
static FILLED: AtomicBool = AtomicBool::new(false);
static BY_HELPERS: AtomicUsize = AtomicUsize::new(0);
static OCTETS_BY_HELPERS: AtomicUsize = AtomicUsize::new(0);

const ENTRIES_MAX: usize = 64;
const OCTETS_MAX: usize = 4 << 20;

/// Leave something to who holds the interpreter next. Any thread, any lock of ours held.
pub fn bury(remains: Remains, octets: usize) {
    if memory::is_helper() {
        BY_HELPERS.fetch_add(1, Relaxed);
        OCTETS_BY_HELPERS.fetch_add(octets, Relaxed);
    }
    grave().lock().push(remains);
    FILLED.store(true, Relaxed);
}

/// Tell whether a helper should come back to release what helpers have buried: much, or anything
/// before a long sleep. Other threads are soon back by themselves.
pub fn is_worth_a_visit(before_long_sleep: bool) -> bool {
    let entries = BY_HELPERS.load(Relaxed);
    entries >= ENTRIES_MAX
        || OCTETS_BY_HELPERS.load(Relaxed) >= OCTETS_MAX
        || (before_long_sleep && entries > 0)
}

/// Release what is buried, if anything is; no lock of ours held.
#[inline]
pub fn visit(py: Python<'_>) {
    if FILLED.load(Relaxed) {
        empty(py);
    }
}

#[cold]
fn empty(py: Python<'_>) {
    let remains = {
        let mut grave = grave().lock();
        FILLED.store(false, Relaxed);
        BY_HELPERS.store(0, Relaxed);
        OCTETS_BY_HELPERS.store(0, Relaxed);
        mem::take(&mut *grave)
    };
    for one in remains {
        match one {
            Remains::Object(object) => drop(object.into_bound(py)),
            Remains::Export(export) => export.release(py),
            Remains::Stream(stream) => {
                if let Err(error) = stream.call_method0(py, "close") {
                    error.write_unraisable(py, Some(stream.bind(py)));
                }
                drop(stream.into_bound(py));
            }
        }
    }
}

fn grave() -> &'static Mutex<Vec<Remains>> {
    &GRAVES[CURRENT.load(Relaxed) & 1]
}

/// Leave a grave that another thread of the parent was at; in the child, which has one thread.
pub fn after_fork_in_child() {
    if grave().is_locked() {
        CURRENT.fetch_add(1, Relaxed);
    }
}
