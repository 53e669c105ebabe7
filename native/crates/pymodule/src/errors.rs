//! Errors of the plane as exceptions: `urds.common.errors` makes them from its table.

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use urds_dataplane::errors::{ErrorReason, Rejected};

// The same on every Linux; the binding makes no system calls that would need more of libc.
pub const EIO: i32 = 5;
pub const EBADF: i32 = 9;
pub const EBUSY: i32 = 16;
pub const EINVAL: i32 = 22;

static OS_ERROR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static ERROR_REASON: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Return the exception for an error. Never fails: an error on the way is returned in its place.
#[cold]
pub fn exception(py: Python<'_>, refused: &Rejected) -> PyErr {
    match refused.reason {
        ErrorReason::System(errno) => os_error(errno, refused.detail()),
        reason => match reason.name() {
            Some(name) => named(py, name, refused).unwrap_or_else(|failure| failure),
            None => os_error(EIO, &format!("a fault of urds: {refused}")),
        },
    }
}

/// Return the exception for an error of the binding itself.
#[cold]
pub fn refuse(py: Python<'_>, reason: ErrorReason, detail: &str) -> PyErr {
    exception(py, &reason.because(detail))
}

/// Return the exception for an error inside the plane: EIO.
#[cold]
pub fn fault(py: Python<'_>) -> PyErr {
    let detail = "a panic of the compiled plane, told on stderr; restart the process";
    refuse(py, ErrorReason::NodeFailed, detail)
}

fn named(py: Python<'_>, name: &str, refused: &Rejected) -> PyResult<PyErr> {
    let reason = ERROR_REASON
        .import(py, "urds.common.errors", "ErrorReason")?
        .getattr(name)?;
    let attributes = PyDict::new(py);
    attributes.set_item("limit", refused.limit())?;
    attributes.set_item("peer", refused.peer().map(|peer| peer.to_string()))?;
    let error = OS_ERROR
        .import(py, "urds.common.errors", "os_error")?
        .call((reason, refused.detail()), Some(&attributes))?;
    Ok(PyErr::from_value(error))
}

/// Return an `OSError` of a number, with its text and a detail.
pub fn os_error(errno: i32, detail: &str) -> PyErr {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    let plain = text.split(" (os error").next().unwrap_or_default();
    let text = if detail.is_empty() {
        plain.to_owned()
    } else {
        format!("{plain}: {detail}")
    };
    PyOSError::new_err((errno, text))
}
