//! The end of a call from Python: its work there besides the result.

use std::cell::RefCell;

use pyo3::prelude::*;

use crate::deferred;

thread_local! {
    /// An exception of Python code that the plane ran, such as a stream: no result of the plane can
    /// contain it, so the call raises it at its end.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Have this thread's call raise an exception once the plane is done with it.
pub fn raise_later(error: PyErr) {
    RAISED.with(|raised| {
        raised.borrow_mut().get_or_insert(error);
    });
}

/// End a call that released the interpreter, read or wrote: run deferred releases.
///
/// Raises what a stream raised meanwhile.
pub fn leave(py: Python<'_>) -> PyResult<()> {
    deferred::drain(py);
    RAISED
        .with(|raised| raised.borrow_mut().take())
        .map_or(Ok(()), Err)
}

/// Call a method without arguments.
///
/// With the stable ABI pyo3's `call_method0` is a C function with any number of arguments, which
/// `sys::exit` cannot replace.
pub fn call<'py>(object: &Bound<'py, PyAny>, method: &str) -> PyResult<Bound<'py, PyAny>> {
    object.getattr(method)?.call0()
}
