//! Refusals of the plane as exceptions: `urds.errors` makes them, for it has the table.

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use urds_dataplane::refusal::{Refusal, Refused};

// Of every Linux; the binding makes no system calls that would need more of libc.
pub const EIO: i32 = 5;
pub const EBADF: i32 = 9;
pub const EINVAL: i32 = 22;

static OS_ERROR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static REFUSALS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Return the exception for a refusal. Never fails: what cannot be made is raised in its place.
#[cold]
pub fn exception(py: Python<'_>, refused: &Refused) -> PyErr {
    match refused.refusal {
        Refusal::System(errno) => os_error(errno, &refused.detail),
        refusal => match refusal.name() {
            Some(name) => named(py, name, &refused.detail).unwrap_or_else(|failure| failure),
            None => os_error(EIO, &format!("a fault of urds: {refused}")),
        },
    }
}

/// Return the exception for a refusal of the binding itself.
#[cold]
pub fn refuse(py: Python<'_>, refusal: Refusal, detail: &str) -> PyErr {
    exception(py, &refusal.because(detail))
}

/// Return the exception for a fault of ours: EIO.
#[cold]
pub fn fault(py: Python<'_>) -> PyErr {
    let detail = "a panic of the compiled plane, told on stderr; restart the process";
    refuse(py, Refusal::NodeFailed, detail)
}

fn named(py: Python<'_>, name: &str, detail: &str) -> PyResult<PyErr> {
    let refusal = REFUSALS
        .import(py, "urds.errors", "Refusal")?
        .getattr(name)?;
    let error = OS_ERROR
        .import(py, "urds.errors", "os_error")?
        .call1((refusal, detail))?;
    Ok(PyErr::from_value(error))
}

fn os_error(errno: i32, detail: &str) -> PyErr {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    let plain = text.split(" (os error").next().unwrap_or_default();
    let text = if detail.is_empty() {
        plain.to_owned()
    } else {
        format!("{plain}: {detail}")
    };
    PyOSError::new_err((errno, text))
}
