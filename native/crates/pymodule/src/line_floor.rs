//! The time of a cache line between two processors, for commands that print figures.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use urds_dataplane::line_floor::{NoFloor, measure};

use crate::errors::{EBUSY, os_error};

/// So long a measurement takes at most: a tenth of it, unless others have the processors.
const LIMIT: Duration = Duration::from_millis(500);

/// See the stub.
#[pyfunction]
#[pyo3(signature = (first, second, /))]
pub fn line_floor_ns(py: Python<'_>, first: usize, second: usize) -> PyResult<f64> {
    match py.detach(|| measure(first, second, LIMIT)) {
        Ok(floor) => Ok(floor.nanoseconds),
        Err(reason @ NoFloor::Busy) => Err(os_error(EBUSY, &reason.to_string())),
        Err(reason) => Err(PyValueError::new_err(reason.to_string())),
    }
}
