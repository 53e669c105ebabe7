//! A queue pair as Python holds it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use urds_verbs::attributes::{Attributes, FIELDS};
use urds_verbs::numbers::{QpKind, QpState, SEND_SIGNALED};
use urds_verbs::queue_pair::{QueuePair as Machine, Setup, Shared};
use urds_verbs::receives::HeldWord;
use urds_verbs::work::{Element, Route};

use crate::verbs::engine::Core;
use crate::verbs::public_calls;
use crate::verbs::queues::{CompletionQueue, SharedReceiveQueue};
use crate::verbs::requests::{each, recv_work, send_work};
use crate::verbs::values::{Gid, attributes_of, closed, domain_of, integer, tables};

/// What remains of a queue pair that is closed.
#[derive(Clone, Copy)]
struct Last {
    state: QpState,
    attributes: Attributes,
    peer: Option<Route>,
    mtu_bytes: u32,
}

impl Last {
    fn of(machine: &Machine) -> Self {
        Self {
            state: machine.state,
            attributes: machine.attributes,
            peer: machine.peer,
            mtu_bytes: machine.mtu_bytes,
        }
    }
}

/// Objects that a queue pair uses, which live as long as it does.
pub struct Kept {
    pub link: Py<PyAny>,
    pub pd: Mutex<Py<PyAny>>,
    pub send_cq: Py<CompletionQueue>,
    pub recv_cq: Py<CompletionQueue>,
    pub srq: Option<Py<SharedReceiveQueue>>,
}

/// See `contract.QueuePair` and the stub.
#[pyclass(frozen, weakref, module = "urds_native")]
pub struct QueuePair {
    number: u32,
    is_closed: AtomicBool,
    setup: Setup,
    pub core: Arc<Core>,
    word: HeldWord,
    kept: Kept,
    last: Mutex<Option<Last>>,
    gid: Mutex<[u8; urds_verbs::numbers::GID_BYTES]>,
}

impl QueuePair {
    pub fn new(
        py: Python<'_>,
        core: &Arc<Core>,
        number: u32,
        setup: &Setup,
        kept: Kept,
    ) -> PyResult<Self> {
        let word = core.call(py, |machine| {
            let found = machine.get(number);
            found
                .map(|found| found.tracker.word.clone())
                .unwrap_or_default()
        })?;
        Ok(Self {
            number,
            is_closed: AtomicBool::new(false),
            setup: *setup,
            core: Arc::clone(core),
            word,
            kept,
            last: Mutex::new(None),
            gid: Mutex::new(setup.gid),
        })
    }

    /// Return its number in the engine; once it is closed another may have the same.
    pub fn number(&self) -> u32 {
        if self.is_closed.load(Relaxed) {
            u32::MAX
        } else {
            self.number
        }
    }

    pub fn is_datagram(&self) -> bool {
        self.setup.kind == QpKind::Ud
    }

    /// Raise `VerbsClosedError` for a closed one.
    #[inline]
    pub fn demand_open(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_closed.load(Relaxed) {
            return Err(closed(py, "QP"));
        }
        Ok(())
    }

    fn look(&self, py: Python<'_>) -> PyResult<Last> {
        let found = self.read(py, |machine, _| Some(Last::of(machine)))?;
        let last = found.or(*self.last.lock());
        Ok(last.unwrap_or_else(|| Last::of(&Machine::new(self.setup))))
    }

    /// Work on the machine's queue pair; nothing, and the default, of one that is closed.
    fn change<T: Default>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Machine, &mut Shared) -> T,
    ) -> PyResult<T> {
        let number = self.number();
        let done = self.core.call(py, |machine| machine.with(number, work))?;
        Ok(done.unwrap_or_default())
    }

    /// Read something of the machine's queue pair; the default of one that is closed.
    fn read<T: Default>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(&Machine, &Shared) -> T,
    ) -> PyResult<T> {
        let number = self.number();
        self.core.call(py, |machine| {
            let found = machine.get(number);
            found.map_or_else(T::default, |found| read(found, &machine.shared))
        })
    }
}

#[pymethods]
impl QueuePair {
    #[getter]
    pub fn qpn(&self) -> u32 {
        self.setup.qpn
    }

    #[getter]
    fn qp_type(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(tables(py)?.kinds[self.setup.kind as usize].clone_ref(py))
    }

    #[getter]
    #[allow(clippy::unused_self)] // as pyo3 calls it
    fn receive_order(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(tables(py)?.in_order.clone_ref(py))
    }

    #[getter]
    fn sq_sig_all(&self) -> bool {
        self.setup.sq_sig_all
    }

    #[getter]
    fn link(&self, py: Python<'_>) -> Py<PyAny> {
        self.kept.link.clone_ref(py)
    }

    #[getter]
    fn pd(&self, py: Python<'_>) -> Py<PyAny> {
        self.kept.pd.lock().clone_ref(py)
    }

    /// Use the keys of another domain from now on.
    #[setter]
    fn set_pd(&self, py: Python<'_>, pd: &Bound<'_, PyAny>) -> PyResult<()> {
        let domain = domain_of(pd)?;
        let srq = self.kept.srq.as_ref();
        let shared = srq.map(|srq| srq.get().domain(py)).transpose()?.flatten();
        self.change(py, |machine, _| {
            machine.setup.domain = domain;
            machine.setup.receive_domain = shared.unwrap_or(domain);
        })?;
        let before = std::mem::replace(&mut *self.kept.pd.lock(), pd.clone().unbind());
        drop(before);
        Ok(())
    }

    #[getter]
    fn send_cq(&self, py: Python<'_>) -> Py<CompletionQueue> {
        self.kept.send_cq.clone_ref(py)
    }

    #[getter]
    fn recv_cq(&self, py: Python<'_>) -> Py<CompletionQueue> {
        self.kept.recv_cq.clone_ref(py)
    }

    #[getter]
    fn srq(&self, py: Python<'_>) -> Option<Py<SharedReceiveQueue>> {
        self.kept.srq.as_ref().map(|srq| srq.clone_ref(py))
    }

    #[getter]
    fn state(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let state = self.look(py)?.state;
        Ok(tables(py)?.states[state as usize].clone_ref(py))
    }

    /// A copy of the attributes.
    #[getter]
    fn attr<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let attributes = self.look(py)?.attributes;
        let tables = tables(py)?;
        let made = tables.attributes.bind(py).call0()?;
        made.setattr("qp_state", &tables.states[attributes.state as usize])?;
        for ((_, name, _), value) in FIELDS.iter().zip(attributes.numbers()) {
            made.setattr(*name, value)?;
        }
        let access = made.getattr("qp_access_flags")?;
        made.setattr(
            "qp_access_flags",
            tables.access_flag.bind(py).call1((access,))?,
        )?;
        made.setattr("path_mtu", attributes.path_mtu)?;
        let route = attributes.route.map(|route| tables.route(py, &route));
        made.setattr("ah_attr", route.transpose()?)?;
        let cap = attributes.cap;
        let values = (
            cap.max_send_wr,
            cap.max_recv_wr,
            cap.max_send_sge,
            cap.max_recv_sge,
            cap.max_inline_data,
        );
        made.setattr("cap", tables.capacities.bind(py).call1(values)?)?;
        Ok(made)
    }

    #[getter]
    fn peer<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let peer = self.look(py)?.peer;
        peer.map(|route| tables(py)?.route(py, &route)).transpose()
    }

    #[getter]
    fn mtu_bytes(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.look(py)?.mtu_bytes)
    }

    #[setter]
    fn set_mtu_bytes(&self, py: Python<'_>, mtu_bytes: u32) -> PyResult<()> {
        self.change(py, |machine, _| machine.mtu_bytes = mtu_bytes)
    }

    #[getter]
    fn gid<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &*self.gid.lock())
    }

    #[setter]
    fn set_gid(&self, py: Python<'_>, gid: Gid) -> PyResult<()> {
        *self.gid.lock() = gid.0;
        self.change(py, |machine, _| machine.setup.gid = gid.0)
    }

    #[getter]
    fn outstanding_requests(&self, py: Python<'_>) -> PyResult<i64> {
        self.read(py, |machine, _| machine.outstanding_requests())
    }

    /// How many receives wait for its next messages.
    #[getter]
    fn receives(&self, py: Python<'_>) -> PyResult<usize> {
        self.read(py, Machine::waiting_receives)
    }

    // -- states

    #[pyo3(signature = (attr, mask, now_ns=0))]
    fn modify(
        &self,
        py: Python<'_>,
        attr: &Bound<'_, PyAny>,
        mask: &Bound<'_, PyAny>,
        now_ns: i64,
    ) -> PyResult<()> {
        let _ = now_ns; // as the Python engine takes it
        let mask = u32::try_from(integer(mask)?)?;
        let given = attributes_of(attr, mask, self.setup.cap)?;
        let number = self.number();
        self.core
            .attempt(py, |machine| machine.modify(number, &given, mask))?;
        self.core.flush(py)
    }

    fn enter_error(&self, py: Python<'_>) -> PyResult<()> {
        self.change(py, Machine::enter_error)
    }

    fn discard_completions(&self, py: Python<'_>) -> PyResult<()> {
        let setup = self.setup;
        self.core
            .call(py, |machine| setup.discard_completions(&mut machine.shared))
    }

    /// End the service of the queue pair; nothing completes any more.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let last = self.look(py)?;
        if !self.is_closed.swap(true, Relaxed) {
            *self.last.lock() = Some(last);
            self.core.forget(Element::QueuePair(self.number));
        }
        Ok(())
    }

    // -- work

    #[pyo3(signature = (wr, now_ns=0, /))]
    fn post_send(&self, py: Python<'_>, wr: &Bound<'_, PyAny>, now_ns: i64) -> PyResult<()> {
        let _ = now_ns; // as the Python engine takes it
        let number = self.number();
        each(wr, |one| {
            let (work, doubts) = send_work(one)?;
            self.core
                .attempt(py, |machine| machine.post_send(number, work, &doubts))
        })?;
        self.core.flush(py)
    }

    #[pyo3(signature = (wr, now_ns=0, /))]
    fn post_recv(&self, py: Python<'_>, wr: &Bound<'_, PyAny>, now_ns: i64) -> PyResult<()> {
        let _ = now_ns; // as the Python engine takes it
        let number = self.number();
        each(wr, |one| {
            let work = recv_work(one)?;
            self.core
                .attempt(py, |machine| machine.post_recv(number, work))
        })
    }

    fn detach_data(&self, py: Python<'_>) -> PyResult<u64> {
        self.change(py, |queue_pair, _| queue_pair.detach_data())
    }

    // -- work, as `urds.verbs.QP` has it: see `public_calls`

    fn public_post_send(&self, wr: &Bound<'_, PyAny>) -> PyResult<()> {
        public_calls::post_send(self, wr)
    }

    fn public_post_recv(&self, wr: &Bound<'_, PyAny>) -> PyResult<()> {
        public_calls::post_recv(self, wr)
    }

    #[pyo3(signature = (data, wr_id=0, flags=SEND_SIGNALED))]
    fn public_send(&self, data: &Bound<'_, PyAny>, wr_id: u64, flags: u32) -> PyResult<()> {
        public_calls::send(self, data, wr_id, flags)
    }

    #[pyo3(signature = (data, address, rkey, wr_id=0, flags=SEND_SIGNALED))]
    fn public_write(
        &self,
        data: &Bound<'_, PyAny>,
        address: u64,
        rkey: u32,
        wr_id: u64,
        flags: u32,
    ) -> PyResult<()> {
        public_calls::write(self, data, address, rkey, wr_id, flags)
    }

    // -- receive buffers

    fn recv_query(&self) -> (u32, u32) {
        self.word.get()
    }

    fn set_recv_watermarks(
        &self,
        py: Python<'_>,
        soft: Option<i64>,
        hard: Option<i64>,
    ) -> PyResult<()> {
        self.change(py, |machine, shared| machine.set_marks(soft, hard, shared))
    }

    #[getter]
    fn hold_receives(&self, py: Python<'_>) -> PyResult<bool> {
        self.read(py, |machine, _| machine.holds_receives)
    }

    #[setter]
    fn set_hold_receives(&self, py: Python<'_>, hold: bool) -> PyResult<()> {
        self.change(py, |machine, shared| machine.hold_receives(hold, shared))
    }

    /// Whether an acknowledgement waits for a packet to ride on.
    #[getter]
    fn ack_pending(&self, py: Python<'_>) -> PyResult<bool> {
        self.read(py, |machine, _| machine.ack_pending())
    }

    /// Let the acknowledgement that waits go alone.
    fn hurry_ack(&self, py: Python<'_>) -> PyResult<()> {
        self.change(py, |machine, _| machine.hurry_ack())
    }

    fn poll_timeout(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        self.read(py, |machine, _| machine.poll_timeout())
    }

    #[allow(clippy::needless_pass_by_value)] // as pyo3 calls it
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some(pd) = self.kept.pd.try_lock() {
            visit.call(&*pd)?;
        }
        visit.call(&self.kept.send_cq)?;
        visit.call(&self.kept.recv_cq)?;
        visit.call(&self.kept.srq)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if !*self.is_closed.get_mut() {
            self.core.forget(Element::QueuePair(self.number));
        }
    }
}
