//! The data plane as Python sees it: raw handles and plain values; `native/urds_native.pyi`.
//!
//! Thin: `urds_dataplane` decides what a call means. Here is the interpreter's part: Python objects
//! and bytes, exceptions, signals, and when the interpreter lock is released.
//!
//! Locks. A thread that holds the interpreter may take the plane's lock; no thread waits for the
//! interpreter while it holds a lock of ours. Objects whose last user may not hold the interpreter
//! are released by `deferred`.

mod addresses;
mod attached;
mod attached_calls;
mod attached_mailbox;
mod burst_calls;
mod deferred;
mod errors;
mod events;
mod external;
mod fast_calls;
mod ffi;
mod gathered;
mod gil;
mod line_floor;
mod mailbox;
mod memory;
mod path;
mod plane;
mod shm_stream;
mod signals;
mod snapshots;
mod stream_core;
mod streams;
mod subscriptions;
#[cfg(feature = "broken-rules")]
mod switches;
mod sys;
mod values;
mod verbs;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

/// The compiled plane, raw.
#[pymodule(gil_used = true)]
fn urds_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    refuse_without_interpreter_lock(module.py())?;
    urds_dataplane::background::return_early_if(deferred::is_worth_a_return);
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<plane::Plane>()?;
    module.add_class::<mailbox::Mailbox>()?;
    module.add_class::<attached_mailbox::AttachedMailbox>()?;
    module.add_class::<path::Path>()?;
    module.add_class::<external::ExternalPath>()?;
    module.add_class::<gathered::GatheredMessages>()?;
    module.add_class::<shm_stream::ShmStream>()?;
    verbs::add(module)?;
    module.add_class::<stream_core::StreamCore>()?;
    module.add_function(wrap_pyfunction!(attached::open_socket, module)?)?;
    module.add_function(wrap_pyfunction!(attached::memory_formats, module)?)?;
    module.add_function(wrap_pyfunction!(line_floor::line_floor_ns, module)?)?;
    #[cfg(feature = "broken-rules")]
    switches::add(module)?;
    let mailbox = module.py().get_type::<mailbox::Mailbox>();
    fast_calls::add_methods(&mailbox)?;
    burst_calls::add_methods(&mailbox)?;
    attached_calls::add_methods(&module.py().get_type::<attached_mailbox::AttachedMailbox>())
}

/// A free-threaded interpreter enables its lock for us, unless it was configured not to.
fn refuse_without_interpreter_lock(py: Python<'_>) -> PyResult<()> {
    let is_enabled = py.import("sys")?.getattr_opt("_is_gil_enabled")?;
    if is_enabled.is_none_or(|ask| ask.call0().is_ok_and(|on| on.is_truthy().unwrap_or(false))) {
        return Ok(());
    }
    let text =
        "urds_native needs the interpreter lock: leave PYTHON_GIL unset, or URDS_IMPL=python";
    Err(PyImportError::new_err(text))
}
