//! Completion queues and shared receive queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed, Ordering::SeqCst};

use parking_lot::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyAnyMethods, PyList, PyWeakrefReference};
use urds_verbs::completions::{CompletionQueue as Machine, Outbox};
use urds_verbs::errors::Rejected;
use urds_verbs::keys::Domain;
use urds_verbs::receives::ReceiveQueue;
use urds_verbs::work::{Completion, Element};

use crate::verbs::completion_channel::CompletionChannel;
use crate::verbs::engine::{Core, Taken, taken_of};
use crate::verbs::public_calls;
use crate::verbs::requests::{each, recv_work};
use crate::verbs::values::{closed, domain_of, raised_by_verbs, refused, tables};
use crate::verbs::waiting::{Awaited, Woken};

/// See `contract.CompletionQueue` and the stub.
#[pyclass(frozen, weakref, module = "urds_native")]
pub struct CompletionQueue {
    pub number: u32,
    pub core: Arc<Core>,
    pub sink: Option<Py<PyAny>>,
    pub is_closed: Arc<AtomicBool>,
    /// The object whose events come to a completion channel.
    pub owner: Mutex<Option<Py<PyWeakrefReference>>>,
    /// Events taken from there and not acknowledged.
    pub unacked: AtomicI64,
}

impl CompletionQueue {
    /// Raise `VerbsClosedError` for one whose owner is closed.
    #[inline]
    pub fn demand_open(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_closed.load(Relaxed) {
            return Err(closed(py, "CQ"));
        }
        Ok(())
    }

    fn take(&self, py: Python<'_>, count: i64) -> PyResult<Taken> {
        let count = usize::try_from(count).unwrap_or(0);
        self.core.poll(py, self.number, count)
    }

    fn feed(&self, py: Python<'_>, taken: &[Completion]) -> PyResult<()> {
        match &self.sink {
            Some(sink) if !taken.is_empty() => {
                sink.bind(py).call1((listed(py, taken)?,))?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn with<T: Default>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Machine) -> T,
    ) -> PyResult<T> {
        let number = self.number;
        self.core.call(py, |engine| {
            let queue = engine.shared.completions.get_mut(number);
            queue.map(work).unwrap_or_default()
        })
    }
}

/// Make the records of completions, with no lock held.
pub fn listed<'py>(py: Python<'py>, completions: &[Completion]) -> PyResult<Bound<'py, PyList>> {
    let tables = tables(py)?;
    if let [completion] = completions {
        return PyList::new(py, [tables.completion(py, completion)?]);
    }
    let list = PyList::empty(py);
    for completion in completions {
        list.append(tables.completion(py, completion)?)?;
    }
    Ok(list)
}

/// Return the error of a call that the machine rejected.
fn accepted(rejected: Option<Rejected>) -> PyResult<()> {
    rejected.map_or(Ok(()), |error| Err(refused(&error)))
}

#[pymethods]
impl CompletionQueue {
    #[pyo3(signature = (count=1, /))]
    fn poll<'py>(&self, py: Python<'py>, count: i64) -> PyResult<Bound<'py, PyList>> {
        listed(py, self.take(py, count)?.as_slice())
    }

    /// As `urds.verbs.CQ.poll`: see `public_calls`.
    #[pyo3(signature = (num_entries=1))]
    fn public_poll<'py>(
        &self,
        py: Python<'py>,
        num_entries: i64,
    ) -> PyResult<(usize, Bound<'py, PyList>)> {
        public_calls::poll(self, py, num_entries)
    }

    /// Wait until `count` completions are queued and take them; `None` at `until_ns` of the clock, and
    /// where no thread may wait any more. Raises `VerbsClosedError`.
    #[pyo3(signature = (count, until_ns, /))]
    fn wait_for<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        until_ns: Option<i64>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let is_closed = Arc::clone(&self.is_closed);
        let awaited = Awaited::Completions(self.number, count, is_closed);
        loop {
            self.demand_open(py)?;
            let taken = self.core.call(py, |machine| {
                let queue = machine.shared.completions.get(self.number);
                let has_all = queue.is_some_and(|queue| queue.len() >= count);
                has_all.then(|| taken_of(machine, self.number, count))
            })?;
            if let Some(taken) = taken {
                return listed(py, taken.as_slice()).map(Some);
            }
            if self.core.wait(py, &awaited, until_ns)? != Woken::Ready {
                self.demand_open(py)?;
                return Ok(None);
            }
        }
    }

    /// Have the events come to a channel, or to none; a thread that takes one gets `owner`, kept weakly.
    #[pyo3(signature = (channel, owner, /))]
    fn join(
        &self,
        py: Python<'_>,
        channel: Option<&Bound<'_, CompletionChannel>>,
        owner: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let owner = PyWeakrefReference::new(owner)?.unbind();
        let before = self.owner.lock().replace(owner);
        drop(before);
        let channel = channel.map(|channel| channel.get().number);
        self.core
            .call(py, |machine| machine.join(self.number, channel))
    }

    /// As `urds.verbs.CQ.req_notify`.
    #[pyo3(signature = (solicited_only=false))]
    fn public_req_notify(&self, py: Python<'_>, solicited_only: bool) -> PyResult<()> {
        self.demand_open(py)?;
        self.arm(py, solicited_only)
    }

    /// As `urds.verbs.CQ.ack_events`.
    #[pyo3(signature = (num_events))]
    fn public_ack_events(&self, py: Python<'_>, num_events: i64) -> PyResult<()> {
        self.demand_open(py)?;
        let acknowledged = |open: i64| (0..=open).contains(&num_events).then(|| open - num_events);
        match self.unacked.fetch_update(SeqCst, SeqCst, acknowledged) {
            Ok(_) => Ok(()),
            Err(open) => {
                let detail = format!("{num_events} events to acknowledge, {open} are open");
                Err(raised_by_verbs(py, refused(&Rejected::invalid(detail))))
            }
        }
    }

    /// How many events of the queue were taken from its channel and not acknowledged.
    #[getter]
    fn unacked_events(&self) -> i64 {
        self.unacked.load(SeqCst)
    }

    /// End the public calls: the object that had them is closed.
    fn close(&self, py: Python<'_>) {
        self.is_closed.store(true, SeqCst);
        // An engine that has failed has no events.
        let _ = self
            .core
            .call(py, |machine| machine.join(self.number, None));
        if let Some(waits) = &self.core.waits {
            waits.wake_all();
        }
    }

    /// Give the sink what is queued, if anything is.
    ///
    /// It does not look at channels: what arrives there is the next pass's.
    pub fn drain(&self, py: Python<'_>) -> PyResult<()> {
        let taken = self.core.take(py, self.number, usize::MAX)?;
        self.feed(py, taken.as_slice())
    }

    /// Look at the channels; give the sink what completed, if nothing else is to be told.
    ///
    /// Else a pass tells it all, in its order. Return whether there was anything. The caller holds
    /// the adapter's lock, as sinks ask.
    fn look(&self, py: Python<'_>) -> PyResult<bool> {
        let (taken, left) = self.core.take_fed(py, self.number)?;
        self.feed(py, taken.as_slice())?;
        self.core.finish_pass(py, left)?;
        Ok(left.is_due || !taken.is_empty())
    }

    #[pyo3(signature = (solicited_only=false))]
    fn arm(&self, py: Python<'_>, solicited_only: bool) -> PyResult<()> {
        self.with(py, |queue| queue.arm(solicited_only))
    }

    fn resize(&self, py: Python<'_>, capacity: i64) -> PyResult<()> {
        accepted(self.with(py, |queue| queue.resize(capacity).err())?)
    }

    fn discard(&self, py: Python<'_>, qpn: u32) -> PyResult<()> {
        self.with(py, |queue| queue.discard(qpn))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |queue| queue.len())
    }

    #[getter]
    fn capacity(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |queue| queue.capacity)
    }

    #[getter]
    fn overrun(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |queue| queue.overrun)
    }

    #[getter]
    fn lost_count(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |queue| queue.lost_count)
    }

    #[allow(clippy::needless_pass_by_value)] // as pyo3 calls it
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.sink)
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.core.forget(Element::CompletionQueue(self.number));
    }
}

/// See `contract.SharedReceiveQueue` and the stub.
#[pyclass(frozen, weakref, module = "urds_native")]
pub struct SharedReceiveQueue {
    pub number: u32,
    pub core: Arc<Core>,
    #[pyo3(get)]
    pub pd: Py<PyAny>,
    /// Queue pairs that take from here: its owner counts.
    pub attached: AtomicI64,
}

impl SharedReceiveQueue {
    fn with<T: Default>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut ReceiveQueue, &mut Outbox) -> T,
    ) -> PyResult<T> {
        let number = self.number;
        self.core.call(py, |engine| {
            let shared = &mut engine.shared;
            let queue = shared.receives.get_mut(number);
            queue
                .map(|queue| work(queue, &mut shared.outbox))
                .unwrap_or_default()
        })
    }

    /// Return the domain whose keys the receives use; `None` without one.
    pub fn domain(&self, py: Python<'_>) -> PyResult<Option<Domain>> {
        let pd = self.pd.bind(py);
        (!pd.is_none()).then(|| domain_of(pd)).transpose()
    }
}

#[pymethods]
impl SharedReceiveQueue {
    /// Post a receive, or several.
    #[pyo3(signature = (wr, /))]
    fn post(&self, py: Python<'_>, wr: &Bound<'_, PyAny>) -> PyResult<()> {
        each(wr, |one| {
            let work = recv_work(one)?;
            accepted(self.with(py, |queue, _| queue.post(work).err())?)
        })
    }

    fn arm_limit(&self, py: Python<'_>, limit: i64) -> PyResult<()> {
        accepted(self.with(py, |queue, outbox| queue.arm_limit(limit, outbox).err())?)
    }

    fn resize(&self, py: Python<'_>, capacity: i64) -> PyResult<()> {
        accepted(self.with(py, |queue, _| queue.resize(capacity).err())?)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |queue, _| queue.len())
    }

    #[getter]
    fn capacity(&self, py: Python<'_>) -> PyResult<i64> {
        self.with(py, |queue, _| queue.capacity)
    }

    #[setter]
    fn set_capacity(&self, py: Python<'_>, capacity: i64) -> PyResult<()> {
        self.with(py, |queue, _| queue.capacity = capacity)
    }

    #[getter]
    fn max_sge(&self, py: Python<'_>) -> PyResult<i64> {
        self.with(py, |queue, _| queue.max_sge)
    }

    #[getter]
    fn limit(&self, py: Python<'_>) -> PyResult<i64> {
        self.with(py, |queue, _| queue.limit)
    }

    #[getter]
    fn attached(&self) -> i64 {
        self.attached.load(Relaxed)
    }

    #[setter]
    fn set_attached(&self, count: i64) {
        self.attached.store(count, Relaxed);
    }

    #[allow(clippy::needless_pass_by_value)] // as pyo3 calls it
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.pd)
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        self.core.forget(Element::ReceiveQueue(self.number));
    }
}
