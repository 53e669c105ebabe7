//! Completion channels of a device with channels: their events are queued, waited for and taken in the
//! engine, without the interpreter.
//!
//! The owner, `urds.verbs.CompChannel`, has the descriptor and the tasks of event loops. Once it has any
//! of these it is told of each event as well, at the end of the pass, and called when one was taken.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};

use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyFloatMethods, PyWeakrefMethods};
use urds_verbs::Engine as Machine;
use urds_verbs::work::Element;

use crate::verbs::engine::{Core, now_ns};
use crate::verbs::queues::CompletionQueue;
use crate::verbs::values::{closed, late, raised_by_verbs};
use crate::verbs::waiting::{Awaited, Woken};

const NS: f64 = 1e9;
/// Times that need no look by Python; `urds.common.seconds` checks the others.
const PLAIN_S: Range<f64> = 0.0..1e9;
/// One of another device, whose events never come here.
const NO_QUEUE: u32 = u32::MAX;

/// See the stub.
#[pyclass(frozen, weakref, module = "urds_native")]
pub struct CompletionChannel {
    pub number: u64,
    core: Arc<Core>,
    is_closed: Arc<AtomicBool>,
    on_taken: Py<PyAny>,
}

/// The queue whose events are wanted, any if none is given.
struct Wanted<'py> {
    queue: Option<Bound<'py, CompletionQueue>>,
    number: Option<u32>,
}

impl<'py> Wanted<'py> {
    fn demand_open(&self, py: Python<'py>) -> PyResult<()> {
        let queue = self.queue.as_ref();
        queue.map_or(Ok(()), |queue| queue.get().demand_open(py))
    }
}

impl CompletionChannel {
    pub fn new(py: Python<'_>, core: &Arc<Core>, on_taken: Py<PyAny>) -> PyResult<Self> {
        let number = core.call(py, |machine| machine.shared.outbox.channel())?;
        Ok(Self {
            number,
            core: Arc::clone(core),
            is_closed: Arc::default(),
            on_taken,
        })
    }

    fn demand_open(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_closed.load(Relaxed) {
            return Err(closed(py, "CompChannel"));
        }
        Ok(())
    }

    /// Take the oldest event; return the object whose queue it is of.
    fn take_wanted(&self, py: Python<'_>, wanted: &Wanted<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.demand_open(py)?;
        wanted.demand_open(py)?;
        loop {
            let taken = self.core.call(py, |machine| {
                let channel = machine.shared.outbox.channels.get_mut(&self.number)?;
                let queue = channel.take(wanted.number)?;
                Some((queue, channel.is_told))
            });
            let Some((number, is_told)) = taken.map_err(|error| raised_by_verbs(py, error))? else {
                return Ok(None);
            };
            let found = self.owner_of(py, number)?;
            if is_told {
                self.on_taken.call0(py)?;
            }
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    /// Return the owner of a queue, of which an event was taken; `None` if it is gone.
    fn owner_of(&self, py: Python<'_>, number: u32) -> PyResult<Option<Py<PyAny>>> {
        let Some(handle) = self.core.handle(py, Element::CompletionQueue(number)) else {
            return Ok(None);
        };
        let queue = handle.cast::<CompletionQueue>()?.get();
        let owner = queue.owner.lock().as_ref().map(|owner| owner.clone_ref(py));
        let owner = owner.and_then(|owner| owner.bind(py).upgrade());
        if owner.is_some() {
            queue.unacked.fetch_add(1, SeqCst);
        }
        Ok(owner.map(Bound::unbind))
    }

    fn wanted<'py>(&self, cq: Option<&Bound<'py, PyAny>>) -> PyResult<Wanted<'py>> {
        let engine = cq.map(|cq| cq.getattr(intern!(cq.py(), "engine")));
        let queue =
            engine.map(|engine| engine?.cast_into::<CompletionQueue>().map_err(PyErr::from));
        let queue = queue.transpose().map_err(|_| no_queue(cq))?;
        let number = queue.as_ref().map(|queue| {
            let is_ours = Arc::ptr_eq(&queue.get().core, &self.core);
            if is_ours {
                queue.get().number
            } else {
                NO_QUEUE
            }
        });
        Ok(Wanted { queue, number })
    }
}

#[pymethods]
impl CompletionChannel {
    /// As `urds.verbs.CompChannel.get_cq_event`.
    #[pyo3(signature = (cq=None, timeout_s=None))]
    fn public_get_cq_event(
        &self,
        py: Python<'_>,
        cq: Option<&Bound<'_, PyAny>>,
        timeout_s: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let wanted = self.wanted(cq)?;
        let left_s = timeout_s.map(waiting_time).transpose()?.flatten();
        if let Some(found) = self.take_wanted(py, &wanted)? {
            return Ok(found);
        }
        #[allow(clippy::cast_possible_truncation)] // saturates
        let until_ns = left_s.map(|seconds| now_ns().saturating_add((seconds * NS) as i64));
        let is_queue_closed = wanted.queue.as_ref().map(|queue| &queue.get().is_closed);
        let queue = wanted.number.zip(is_queue_closed.map(Arc::clone));
        let awaited = Awaited::Event(self.number, queue, Arc::clone(&self.is_closed));
        loop {
            let woken = self.core.wait(py, &awaited, until_ns)?;
            if let Some(found) = self.take_wanted(py, &wanted)? {
                return Ok(found);
            }
            if woken != Woken::Ready {
                let wait_s = timeout_s.map_or_else(|| "None".to_string(), ToString::to_string);
                return Err(late(py, &format!("no completion event in {wait_s} s")));
            }
        }
    }

    /// Take the oldest event, of one queue if it is given, and return its owner; `None` without one.
    #[pyo3(signature = (cq, /))]
    fn take(&self, py: Python<'_>, cq: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Py<PyAny>>> {
        self.take_wanted(py, &self.wanted(cq)?)
    }

    /// Have the owner told of each event from here on.
    fn tell(&self, py: Python<'_>) -> PyResult<()> {
        self.core.call(py, |machine| {
            if let Some(channel) = machine.shared.outbox.channels.get_mut(&self.number) {
                channel.is_told = true;
            }
        })
    }

    /// Whether an event waits.
    #[getter]
    fn has_event(&self, py: Python<'_>) -> bool {
        let has = |machine: &mut Machine| machine.shared.outbox.has_event(self.number, None);
        // An engine that has failed has no events.
        self.core.call(py, has).unwrap_or(false)
    }

    /// End the public calls and drop what waits.
    fn close(&self, py: Python<'_>) {
        self.is_closed.store(true, SeqCst);
        let _ = self.core.call(py, |machine| {
            machine.shared.outbox.channels.remove(&self.number);
        });
        if let Some(waits) = &self.core.waits {
            waits.wake_all();
        }
    }

    #[allow(clippy::needless_pass_by_value)] // as pyo3 calls it
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.on_taken)
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        if !self.is_closed.load(Relaxed) && !self.core.is_broken.load(Relaxed) {
            let mut guarded = self.core.guarded.lock();
            guarded.machine.shared.outbox.channels.remove(&self.number);
        }
    }
}

/// Return how many seconds to wait, `None` for ever. Raises `TypeError`, `VerbsArgumentError`.
fn waiting_time(given: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
    let plain = given.cast_exact::<PyFloat>().map(PyFloatMethods::value);
    if let Some(seconds) = plain.ok().filter(|seconds| PLAIN_S.contains(seconds)) {
        return Ok(Some(seconds));
    }
    let errors = given.py().import("urds.verbs.errors")?;
    let checked = errors.getattr("demand_waiting_time")?.call1((given,))?;
    checked.extract()
}

/// Return the error of a call that was given something else for a completion queue.
#[cold]
fn no_queue(given: Option<&Bound<'_, PyAny>>) -> PyErr {
    let kind = given.and_then(|given| given.get_type().name().ok());
    let kind = kind.map_or_else(|| "None".to_string(), |kind| kind.to_string());
    PyTypeError::new_err(format!("get_cq_event(): cq must be CQ, not {kind}"))
}
