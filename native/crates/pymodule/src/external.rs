//! The plane's part of a path that a transport of messages has, as Python holds it.
//!
//! The transport calls with its own locks held, so nothing here waits or runs Python code, but
//! `wait_for_charge`, which is called without.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use urds_dataplane::errors::ErrorReason;
use urds_dataplane::external::{Charge, ExternalId};
use urds_dataplane::host::MapBytes;
use urds_dataplane::plane::Plane as Shell;

use crate::gathered::GatheredMessages;
use crate::mailbox::Mailbox;
use crate::plane::Plane;
use crate::signals::Signals;
use crate::sys::Export;
use crate::{addresses, errors, memory, values};

/// See `contract.ExternalPath` and the stub.
#[pyclass(frozen, subclass, weakref, module = "urds_native")]
pub struct ExternalPath {
    pub(crate) id: ExternalId,
    shell: Arc<Shell>,
    plane: Py<Plane>,
}

impl ExternalPath {
    /// Return the plane that it is a part of.
    pub fn plane(&self) -> &Arc<Shell> {
        &self.shell
    }

    fn call<T>(&self, py: Python<'_>, work: impl FnOnce(&Arc<Shell>) -> T) -> PyResult<T> {
        self.plane.get().call_inside(py, work)
    }
}

#[pymethods]
impl ExternalPath {
    #[new]
    #[pyo3(signature = (plane, local, local_scope, peer, peer_scope, tos, message_bytes_max, /))]
    #[allow(clippy::too_many_arguments)] // the values of one record
    fn new(
        py: Python<'_>,
        plane: &Bound<'_, Plane>,
        local: &[u8],
        local_scope: u32,
        peer: &[u8],
        peer_scope: u32,
        tos: u8,
        message_bytes_max: usize,
    ) -> PyResult<Self> {
        let local = addresses::unpack(local, local_scope)?;
        let peer = addresses::unpack(peer, peer_scope)?;
        let own = plane.get();
        let id = own.call_inside(py, |shell| {
            shell.external(local, peer, tos, message_bytes_max)
        })?;
        Ok(Self {
            id,
            shell: Arc::clone(&own.shell),
            plane: plane.clone().unbind(),
        })
    }

    #[getter]
    fn number(&self) -> u64 {
        self.id.to_u64()
    }

    #[pyo3(signature = (mailbox, port, payload_bytes, may_wait, /))]
    fn charge(
        &self,
        py: Python<'_>,
        mailbox: &Bound<'_, Mailbox>,
        port: u16,
        payload_bytes: usize,
        may_wait: bool,
    ) -> PyResult<&'static str> {
        let id = mailbox.get().id;
        let charged = self.call(py, |shell| {
            shell.charge(self.id, id, port, payload_bytes, may_wait)
        })?;
        let charged = charged.map_err(|refused| errors::exception(py, &refused))?;
        Ok(match charged {
            Charge::Queued { asks: false } => "QUEUED",
            Charge::Queued { asks: true } => "ASKS",
            Charge::Busy(ErrorReason::PeerCongested) => "CONGESTED",
            Charge::Busy(_) => "NO_ROOM",
            Charge::NoRoute => "NO_ROUTE",
        })
    }

    #[pyo3(signature = (mailbox, port, payload_bytes, is_first, wait_ns, /))]
    fn wait_for_charge(
        &self,
        py: Python<'_>,
        mailbox: &Bound<'_, Mailbox>,
        port: u16,
        payload_bytes: usize,
        is_first: bool,
        wait_ns: Option<u64>,
    ) -> PyResult<bool> {
        let charge = (self.id, mailbox.get().id, port, payload_bytes);
        let mut signals = Signals::default();
        let plane = self.plane.get();
        let shell = plane.enter(py)?;
        let room = plane.gil().wait_outside(py, shell, || {
            shell.wait_for_charge(charge, is_first, wait_ns, &mut || signals.check())
        });
        crate::ffi::leave(py)?;
        signals.finish_pass(py, room)
    }

    #[pyo3(signature = (mailbox, /))]
    fn held(&self, py: Python<'_>, mailbox: &Bound<'_, Mailbox>) -> PyResult<(usize, usize)> {
        let id = mailbox.get().id;
        let held = self.call(py, |shell| shell.external_held(self.id, id))?;
        Ok((held.messages, held.bytes))
    }

    #[pyo3(signature = (mailbox, messages, payload_bytes, /))]
    fn refund(
        &self,
        py: Python<'_>,
        mailbox: &Bound<'_, Mailbox>,
        messages: usize,
        payload_bytes: usize,
    ) -> PyResult<()> {
        let id = mailbox.get().id;
        self.call(py, |shell| {
            shell.refund(self.id, id, messages, payload_bytes);
        })
    }

    #[pyo3(signature = (source_port, target_port, payload, extension, /))]
    fn deliver(
        &self,
        py: Python<'_>,
        source_port: u16,
        target_port: u16,
        payload: &Bound<'_, PyBytes>,
        extension: &[u8],
    ) -> PyResult<bool> {
        let extension = values::extension(extension)?;
        let arriving = memory::arriving(payload);
        self.call(py, |shell| {
            shell.deliver(self.id, source_port, target_port, arriving, extension)
        })
    }

    #[pyo3(signature = (room_bytes, /))]
    fn set_gathering(&self, py: Python<'_>, room_bytes: usize) -> PyResult<()> {
        self.call(py, |shell| shell.set_gathering(self.id, room_bytes))
    }

    fn take_gathered(&self, py: Python<'_>) -> PyResult<Option<GatheredMessages>> {
        let taken = self.call(py, |shell| shell.take_gathered(self.id))?;
        Ok((!taken.messages.is_empty()).then_some(GatheredMessages(taken)))
    }

    #[pyo3(signature = (frame, payload_bytes_max, sequence_expected, /))]
    fn deliver_plain(
        &self,
        py: Python<'_>,
        frame: &Bound<'_, PyAny>,
        payload_bytes_max: usize,
        sequence_expected: u64,
    ) -> PyResult<(usize, u64, usize, usize, bool)> {
        let export = Export::of(frame)?;
        let delivered = self.call(py, |shell| {
            let bytes = export.bytes();
            shell.deliver_plain(self.id, bytes, payload_bytes_max, sequence_expected)
        });
        export.release(py);
        let found = delivered?;
        let (messages, asked) = (found.messages, found.asked);
        let expected = found.sequence_expected;
        Ok((found.bytes, expected, messages, asked, found.pauses))
    }

    #[pyo3(signature = (data, /))]
    fn take_peer_map(&self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        let bytes: &MapBytes = data
            .try_into()
            .map_err(|_| PyValueError::new_err("a congestion map has 8192 bytes"))?;
        self.call(py, |shell| shell.take_peer_map(self.id, bytes))
    }

    fn local_map<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.call(py, |shell| shell.local_map(self.id))?;
        Ok(PyBytes::new(py, &bytes))
    }

    #[pyo3(signature = (port, /))]
    fn peer_is_congested(&self, port: u16) -> bool {
        self.shell.external_peer_is_congested(self.id, port)
    }

    #[pyo3(signature = (full, /))]
    fn set_full(&self, py: Python<'_>, full: bool) -> PyResult<()> {
        self.call(py, |shell| shell.set_full(self.id, full))
    }

    #[pyo3(signature = (connected, /))]
    fn set_connected(&self, py: Python<'_>, connected: bool) -> PyResult<()> {
        self.call(py, |shell| shell.set_connected(self.id, connected))
    }

    #[pyo3(signature = (mailbox, /))]
    fn fail(&self, py: Python<'_>, mailbox: &Bound<'_, Mailbox>) -> PyResult<()> {
        let id = mailbox.get().id;
        self.call(py, |shell| shell.fail_external(self.id, id))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |shell| shell.close_external(self.id))
    }

    #[allow(clippy::needless_pass_by_value)] // as pyo3 calls it
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.plane)
    }
}
