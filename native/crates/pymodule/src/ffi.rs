//! The end of a call from Python: its work there besides the result.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pyo3::prelude::*;

use crate::{deferred, memory};

thread_local! {
    /// An exception of Python code that the plane ran, such as a stream: no result of the plane can
    /// contain it, so the call raises it at its end.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Whether some thread's call may have one to raise: calls that do not `leave` look here.
static IS_ANY_RAISED: AtomicBool = AtomicBool::new(false);

/// Have this thread's call raise an exception once the plane is done with it.
pub fn raise_later(error: PyErr) {
    IS_ANY_RAISED.store(true, Relaxed);
    RAISED.with(|raised| {
        raised.borrow_mut().get_or_insert(error);
    });
}

/// Take what this thread's call is to raise.
pub fn take_raised() -> Option<PyErr> {
    let taken = RAISED.with(|raised| raised.borrow_mut().take());
    if taken.is_some() {
        IS_ANY_RAISED.store(false, Relaxed); // another thread's waits until that leaves
    }
    taken
}

/// End a call that neither released the interpreter nor read: raise what a callback raised.
#[inline]
pub fn leave_quickly(py: Python<'_>) -> PyResult<()> {
    if IS_ANY_RAISED.load(Relaxed) {
        leave(py)
    } else {
        Ok(())
    }
}

/// End a call that released the interpreter, read or wrote: run deferred releases.
///
/// Raises what a stream raised meanwhile.
pub fn leave(py: Python<'_>) -> PyResult<()> {
    deferred::drain(py);
    take_raised().map_or(Ok(()), Err)
}

/// Run Python code of `owner` that no exception may prevent: a second call does no harm.
///
/// A signal's handler runs where Python code begins, and may raise, as Ctrl-C does; the code is
/// called again then. The exception is this thread's call's, but a progress thread's is reported.
pub fn call_surely(
    py: Python<'_>,
    owner: &Bound<'_, PyAny>,
    mut code: impl FnMut() -> PyResult<()>,
) {
    let Err(raised) = code() else { return };
    if let Err(again) = code() {
        again.write_unraisable(py, Some(owner));
    }
    if memory::is_progress_thread() {
        raised.write_unraisable(py, Some(owner));
    } else {
        raise_later(raised);
    }
}

/// Call a method without arguments.
///
/// With the stable ABI pyo3's `call_method0` is a C function with any number of arguments, which
/// `sys::exit` cannot replace.
pub fn call<'py>(object: &Bound<'py, PyAny>, method: &str) -> PyResult<Bound<'py, PyAny>> {
    object.getattr(method)?.call0()
}
