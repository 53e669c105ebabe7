//! One ordered stream to a peer, as Python holds it.
//!
//! Calls of the control plane; each may write, or wait for a thread that is reading, so the
//! interpreter is released for all that use a stream.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use urds_dataplane::path::Agreement;
use urds_dataplane::plane::Plane as Shell;
use urds_dataplane::state::PathId;

use crate::ffi::call;
use crate::plane::Plane;
use crate::streams::{object_of, stream_of};
use crate::{addresses, values};

/// `contract.Received`, field by field.
pub type ReceivedTuple = (
    u64,
    Option<u64>,
    Option<u64>,
    Option<u64>,
    Option<u64>,
    bool,
);

/// See `contract.Path` and the stub.
#[pyclass(frozen, subclass, weakref, module = "urds_native")]
pub struct Path {
    pub(crate) id: PathId,
    shell: Arc<Shell>,
    plane: Py<Plane>,
    /// The last attached object: after a fork, the child closes its copy.
    attached: Mutex<Option<Py<PyAny>>>,
}

impl Path {
    /// Run a call that may write or wait, without the interpreter.
    fn detached<T: Send>(
        &self,
        py: Python<'_>,
        work: impl Send + FnOnce(&Arc<Shell>) -> T,
    ) -> PyResult<T> {
        self.plane.get().call_detached(py, work)
    }

    fn keep_attached(&self, py: Python<'_>, stream: Option<Py<PyAny>>) {
        let before = std::mem::replace(&mut *self.attached.lock(), stream);
        drop(before.map(|stream| stream.into_bound(py)));
    }

    pub(crate) fn abandon_in_child(&self, py: Python<'_>) {
        let stream = self.attached.lock().take();
        if let Some(stream) = stream
            && let Err(error) = call(stream.bind(py), "close")
        {
            error.write_unraisable(py, None);
        }
    }
}

#[pymethods]
impl Path {
    #[new]
    #[pyo3(signature = (plane, local, local_scope, peer, peer_scope, index, sequence_first, /))]
    #[allow(clippy::too_many_arguments)] // the values of one record
    fn new(
        py: Python<'_>,
        plane: &Bound<'_, Plane>,
        local: &[u8],
        local_scope: u32,
        peer: &[u8],
        peer_scope: u32,
        index: u32,
        sequence_first: u64,
    ) -> PyResult<Self> {
        let local = addresses::unpack(local, local_scope)?;
        let peer = addresses::unpack(peer, peer_scope)?;
        let own = plane.get();
        let id = own.call(py, |shell| shell.path(local, peer, index, sequence_first))?;
        let shell = Arc::clone(&own.shell);
        Ok(Self {
            id,
            shell,
            plane: plane.clone().unbind(),
            attached: Mutex::default(),
        })
    }

    /// Register the object with the plane: events refer to it.
    #[pyo3(signature = (*_values, **_named))]
    fn __init__(
        slf: &Bound<'_, Self>,
        _values: &Bound<'_, PyTuple>,
        _named: Option<&Bound<'_, PyDict>>,
    ) {
        slf.get().plane.get().remember(slf);
    }

    #[getter]
    fn attachment(&self) -> u64 {
        self.shell.attachment(self.id)
    }

    #[pyo3(signature = (stream, descriptor, hold, probe, /))]
    fn attach(
        slf: &Bound<'_, Self>,
        stream: &Bound<'_, PyAny>,
        descriptor: i32,
        hold: &str,
        probe: Option<&[u8]>,
    ) -> PyResult<()> {
        let py = slf.py();
        let path = slf.get();
        let hold = values::hold(hold)?;
        let probe = probe.map(values::extension).transpose()?;
        let made = stream_of(stream, descriptor)?;
        path.keep_attached(py, Some(stream.clone().unbind()));
        let id = path.id;
        path.detached(py, |shell| shell.attach(id, made, hold, probe))
    }

    fn detach(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let id = self.id;
        let stream = self.detached(py, |shell| shell.detach(id))?;
        self.keep_attached(py, None);
        Ok(stream.and_then(|stream| object_of(&*stream)))
    }

    #[pyo3(signature = (received_by_peer, /))]
    fn end_hold(&self, py: Python<'_>, received_by_peer: Option<u64>) -> PyResult<()> {
        let id = self.id;
        self.detached(py, |shell| shell.end_hold(id, received_by_peer))
    }

    #[pyo3(signature = (agreement, /))]
    fn agree(&self, py: Python<'_>, agreement: (String, bool, usize)) -> PyResult<()> {
        let (ack_mode, checksum, message_bytes_max) = agreement;
        let agreement = Agreement {
            ack_mode: values::ack_mode(&ack_mode)?,
            checksum,
            message_bytes_max,
        };
        let id = self.id;
        self.detached(py, |shell| shell.agree(id, agreement))
    }

    fn restart_peer(&self, py: Python<'_>) -> PyResult<usize> {
        let id = self.id;
        self.detached(py, |shell| shell.restart_peer(id))
    }

    #[pyo3(signature = (generation, /))]
    fn remember_handshake(&self, py: Python<'_>, generation: Option<u64>) -> PyResult<()> {
        let id = self.id;
        self.detached(py, |shell| shell.remember_handshake(id, generation))
    }

    #[pyo3(signature = (source_port, target_port, extension, hello=false, /))]
    fn control(
        &self,
        py: Python<'_>,
        source_port: u16,
        target_port: u16,
        extension: &[u8],
        hello: bool,
    ) -> PyResult<()> {
        let extension = values::extension(extension)?;
        let (id, ports) = (self.id, (source_port, target_port));
        self.detached(py, |shell| shell.control(id, ports, extension, hello))
    }

    fn probe_dead_stream(&self, py: Python<'_>) -> PyResult<()> {
        let id = self.id;
        self.detached(py, |shell| shell.probe_dead_stream(id))
    }

    #[pyo3(signature = (port, /))]
    fn peer_is_congested(&self, port: u16) -> bool {
        self.shell.peer_is_congested(self.id, port)
    }

    #[pyo3(signature = (other, /))]
    fn hold_behind(&self, py: Python<'_>, other: Option<&Bound<'_, Self>>) -> PyResult<()> {
        let (id, other) = (self.id, other.map(|other| other.get().id));
        self.detached(py, |shell| shell.hold_behind(id, other))
    }

    fn holds_messages(&self) -> bool {
        self.shell.holds_messages(self.id)
    }

    fn has_delivered(&self) -> bool {
        self.shell.has_delivered(self.id)
    }

    fn activity(&self) -> (u64, Option<u64>, u64) {
        self.shell.activity(self.id)
    }

    fn drop_queue(&self, py: Python<'_>) -> PyResult<usize> {
        let id = self.id;
        self.detached(py, |shell| shell.drop_queue(id))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let id = self.id;
        self.detached(py, |shell| shell.close_path(id))?;
        self.keep_attached(py, None);
        self.plane.get().forget(id);
        Ok(())
    }

    #[allow(clippy::needless_pass_by_value)] // as pyo3 calls it
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.plane)?;
        if let Some(attached) = self.attached.try_lock() {
            visit.call(&*attached)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let attached = self.attached.lock().take();
        drop(attached); // may run Python code: with no lock held
    }
}
