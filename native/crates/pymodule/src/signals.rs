//! Signals during a wait: their handlers run, and the exception of one ends the wait.

use pyo3::prelude::*;
use urds_dataplane::refusal::{Refusal, Refused};

use crate::refusals;

/// What the handlers of one call raised.
#[derive(Default)]
pub struct Signals(Option<PyErr>);

impl Signals {
    /// Run due handlers; true ends the wait. Takes the interpreter: no lock of ours held.
    pub fn check(&mut self) -> bool {
        if self.0.is_none() {
            // Without an interpreter there is nobody to wait for.
            #[allow(clippy::redundant_closure_for_method_calls)] // of any lifetime
            let checked = Python::try_attach(|py| py.check_signals());
            self.0 = checked.and_then(Result::err);
        }
        self.0.is_some()
    }

    /// Return the result of a call; an interrupted one raises what the handler did.
    pub fn settle<T>(self, py: Python<'_>, result: Result<T, Refused>) -> PyResult<T> {
        result.map_err(|refused| match (refused.refusal, self.0) {
            (Refusal::Interrupted, Some(raised)) => raised,
            _ => refusals::exception(py, &refused),
        })
    }
}
