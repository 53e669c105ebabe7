//! The way back into Python: what a call has to do there besides its result.

use std::cell::RefCell;

use pyo3::prelude::*;

use crate::grave;

thread_local! {
    /// What code of Python raised while the plane ran it, a stream's: no result of the plane's can
    /// carry it, so the call raises it at its end.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Have this thread's call raise an exception once the plane is done with it.
pub fn raise_later(error: PyErr) {
    RAISED.with(|raised| {
        raised.borrow_mut().get_or_insert(error);
    });
}

/// End a call that gave up the interpreter, or may have read or written: release what is buried.
///
/// Raises what a stream raised meanwhile.
pub fn leave(py: Python<'_>) -> PyResult<()> {
    grave::visit(py);
    RAISED
        .with(|raised| raised.borrow_mut().take())
        .map_or(Ok(()), Err)
}
