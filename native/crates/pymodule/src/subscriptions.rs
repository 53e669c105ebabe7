//! Callbacks in the place of a waiting thread: the tasks of an event loop wait so.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use urds_dataplane::mailbox::{Callback as Listed, Place};
use urds_dataplane::plane::Plane as Shell;
use urds_dataplane::state::MailboxId;
use urds_dataplane::waiting::WaitFor;
use urds_path::Address;

use crate::deferred::{self, Deferred, defer};
use crate::ffi;
use crate::gil::Claim;

/// A Python callable that any thread may call, and drop last.
struct Callback(Mutex<Option<Py<PyAny>>>);

impl Callback {
    fn call(&self) {
        let _claim = Claim::new(); // to its end: Python's code may give the interpreter up
        Python::try_attach(|py| {
            let callback = self
                .0
                .lock()
                .as_ref()
                .map(|callback| callback.clone_ref(py));
            if let Some(callback) = callback {
                let callback = callback.bind(py);
                ffi::call_surely(py, callback, || callback.call0().map(drop));
            }
        });
    }
}

impl Drop for Callback {
    fn drop(&mut self) {
        if let Some(callback) = self.0.get_mut().take() {
            defer(Deferred::Object(callback), 0);
        }
    }
}

/// The result of `subscribe`: a call cancels it, or passes the notification to the next waiter.
#[pyclass(frozen, module = "urds_native")]
pub struct Subscription {
    shell: Arc<Shell>,
    mailbox: MailboxId,
    /// Where it is listed, once it is.
    place: OnceLock<Place>,
    callback: Arc<Callback>,
    /// The plane's list entry; it holds `callback` too.
    listed: Listed,
}

impl Subscription {
    /// Make one that is not listed yet.
    pub fn new(shell: &Arc<Shell>, mailbox: MailboxId, callback: Py<PyAny>) -> Self {
        let callback = Arc::new(Callback(Mutex::new(Some(callback))));
        let called = Arc::clone(&callback);
        let listed: Listed = Arc::new(move || called.call());
        Self {
            shell: Arc::clone(shell),
            mailbox,
            place: OnceLock::new(),
            callback,
            listed,
        }
    }

    /// Have the plane call it; at once if the awaited thing is there. The interpreter is held.
    pub fn list(&self, what: WaitFor, peer: Option<Address>) {
        let listed = Arc::clone(&self.listed);
        let place = self.shell.subscribe(self.mailbox, what, peer, listed);
        let _ = self.place.set(place); // it is listed once
    }
}

#[pymethods]
impl Subscription {
    fn __call__(&self, py: Python<'_>) {
        if let Some(&place) = self.place.get() {
            self.shell.unsubscribe(self.mailbox, place, &self.listed);
        }
        deferred::drain(py);
    }

    #[allow(clippy::needless_pass_by_value)] // as pyo3 calls it
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Listed in the plane it is in use, whatever else refers to it.
        if Arc::strong_count(&self.listed) == 1
            && let Some(callback) = self.callback.0.try_lock()
        {
            visit.call(&*callback)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let callback = self.callback.0.lock().take();
        drop(callback); // may run Python code: with no lock held
    }
}
