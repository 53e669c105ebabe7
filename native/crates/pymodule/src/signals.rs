//! Signals during a wait: their handlers run, and an exception of one ends the wait.

use pyo3::prelude::*;
use urds_dataplane::errors::{ErrorReason, Rejected};

use crate::{errors, ffi};

/// The exception of the handlers of one call.
#[derive(Default)]
pub struct Signals(Option<PyErr>);

impl Signals {
    /// Run due handlers; true ends the wait, as does what one raised before. Takes the interpreter: no lock of ours held.
    pub fn check(&mut self) -> bool {
        if self.0.is_none() {
            // Without an interpreter there is nothing to wait for.
            #[allow(clippy::redundant_closure_for_method_calls)] // of any lifetime
            let checked = Python::try_attach(|py| py.check_signals());
            self.0 = checked.and_then(Result::err).or_else(ffi::take_raised);
        }
        self.0.is_some()
    }

    /// Return the result of a call; an interrupted one raises the handler's exception.
    pub fn finish_pass<T>(self, py: Python<'_>, result: Result<T, Rejected>) -> PyResult<T> {
        result.map_err(|refused| match (refused.reason, self.0) {
            (ErrorReason::Interrupted, Some(raised)) => raised,
            _ => errors::exception(py, &refused),
        })
    }
}
