//! The switches of `urds_dataplane::rules` for scenarios in Python; in no release.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use urds_dataplane::rules::{Moment, Switches};

/// Add the functions to the module.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(break_rule, module)?)?;
    module.add_function(wrap_pyfunction!(stop_at, module)?)?;
    module.add_function(wrap_pyfunction!(go_on, module)?)?;
    module.add_function(wrap_pyfunction!(seen, module)?)
}

fn unknown(name: &str) -> PyErr {
    PyValueError::new_err(format!("no rule or moment {name}"))
}

fn moment_of(name: &str) -> PyResult<Moment> {
    Switches::moment(name).ok_or_else(|| unknown(name))
}

/// Break a rule from now on, in this process.
#[pyfunction]
fn break_rule(name: &str) -> PyResult<()> {
    Switches::break_rule(name)
        .then_some(())
        .ok_or_else(|| unknown(name))
}

/// Stop the next thread that reaches a moment.
#[pyfunction]
fn stop_at(moment: &str) -> PyResult<()> {
    Switches::stop_at(moment_of(moment)?);
    Ok(())
}

/// Release it.
#[pyfunction]
fn go_on(moment: &str) -> PyResult<()> {
    Switches::go_on(moment_of(moment)?);
    Ok(())
}

/// Return how many threads reached a moment, and whether one stopped there.
#[pyfunction]
fn seen(moment: &str) -> PyResult<(u64, bool)> {
    Ok(Switches::seen(moment_of(moment)?))
}
