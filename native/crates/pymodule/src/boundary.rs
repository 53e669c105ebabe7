//! The way back into Python: what a call has to do there besides its result.

use std::cell::RefCell;

use pyo3::prelude::*;
use urds_dataplane::plane::Plane as Shell;

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

/// Do something without the interpreter; `close` waits until we have it again.
pub fn without_python<T: Send>(
    py: Python<'_>,
    shell: &Shell,
    work: impl Send + FnOnce() -> T,
) -> T {
    let _inside = shell.inside();
    py.detach(work)
}
