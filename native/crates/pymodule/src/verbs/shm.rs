//! The engine of a `shm` device: its packets go through channels in shared memory.
//!
//! Python meets peers and greets them, and does what `take_channel_events` says; posting, polling and
//! whatever a doorbell is for happen here.

use std::sync::atomic::Ordering::Relaxed;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use urds_channel::channel_memory::ChannelMemory;
use urds_channel::sys::Errno;
use urds_verbs_shm::{Channels, Event, Lead, PLACED_BYTES_MIN, Region, Wakes};

use crate::deferred;
use crate::errors::os_error;
use crate::verbs::completion_channel::CompletionChannel;
use crate::verbs::engine::{Core, Engine};
use crate::verbs::looking::{DEVICES, Looks};
use crate::verbs::queues::CompletionQueue;
use crate::verbs::values::Gid;
use crate::verbs::waiting::{Awaited, Waits, Woken};

/// See the stub.
#[pyclass(extends = Engine, frozen, subclass, weakref, module = "urds_native")]
pub struct ShmEngine {
    core: std::sync::Arc<Core>,
}

fn raised(error: Errno) -> PyErr {
    os_error(error.0, "")
}

impl ShmEngine {
    pub fn core(&self) -> std::sync::Arc<Core> {
        self.core.clone()
    }

    fn with<T>(&self, py: Python<'_>, work: impl FnOnce(&mut Channels) -> T) -> PyResult<T> {
        self.core.call_with(py, |_, channels| work(channels))
    }

    fn waits(&self) -> &Waits {
        let waits = self.core.waits.as_ref();
        waits.expect("an engine with channels has them")
    }

    fn wake(&self, work: impl FnOnce(&Lead<Awaited>) -> Wakes<Awaited>) {
        let waits = self.waits();
        waits.wake(&work(&waits.lead));
    }
}

#[pymethods]
impl ShmEngine {
    #[new]
    #[pyo3(signature = (
        link, *, gid, on_pass=None, on_idle=None, owner=None, set=-1, doorbell=-1,
        placed_bytes_min=PLACED_BYTES_MIN
    ))]
    #[allow(clippy::too_many_arguments)] // as Python names them
    fn new(
        link: &Bound<'_, PyAny>,
        gid: Gid,
        on_pass: Option<Py<PyAny>>,
        on_idle: Option<Py<PyAny>>,
        owner: Option<Py<PyAny>>,
        set: i32,
        doorbell: i32,
        placed_bytes_min: u64,
    ) -> PyResult<PyClassInitializer<Self>> {
        let mtu_bytes: usize = link.getattr("mtu_bytes")?.extract()?;
        let channels = Channels::new(gid.0, mtu_bytes, placed_bytes_min);
        let engine = {
            let looks = Looks::new(on_pass, on_idle, owner);
            let channels = Some((channels, Waits::new(set, doorbell)));
            Engine::over(link, gid, false, channels, looks, true)?
        };
        let core = engine.core();
        DEVICES.fetch_add(1, Relaxed);
        Ok(PyClassInitializer::from(engine).add_subclass(Self { core }))
    }

    /// Use a channel after its greeting; both descriptors stay the caller's, and the socket open until
    /// `detach` or `abandon`.
    #[pyo3(signature = (gid, memory, socket, is_connector, /))]
    fn attach(
        &self,
        py: Python<'_>,
        gid: Gid,
        memory: i32,
        socket: i32,
        is_connector: bool,
    ) -> PyResult<()> {
        let memory = ChannelMemory::map(memory).map_err(raised)?;
        self.core.through(py, |machine, channels, now| {
            channels.attach(gid.0, memory, socket, is_connector);
            machine.resume();
            channels.flush(machine, now);
        })
    }

    #[pyo3(signature = (gid, /))]
    fn detach(&self, py: Python<'_>, gid: Gid) -> PyResult<()> {
        self.core.call_with(py, |machine, channels| {
            channels.detach(&gid.0);
            machine.resume();
        })
    }

    /// Forget all channels in the child of a fork, without a word to peers.
    fn abandon_in_child(&self) {
        deferred::after_fork_in_child();
        self.core.abandon_in_child();
    }

    /// Send nothing any more: what is posted from here on stays in its queue pair.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |channels| channels.is_closed = true)
    }

    // -- progress

    /// Read all channels and send what is due; return whether packets came.
    fn progress(&self, py: Python<'_>) -> PyResult<bool> {
        self.core
            .through(py, |machine, channels, now| channels.progress(machine, now))
    }

    /// Read what is left of a peer that is gone, as `progress`.
    #[pyo3(signature = (gid, /))]
    fn drain(&self, py: Python<'_>, gid: Gid) -> PyResult<bool> {
        self.core.through(py, |machine, channels, now| {
            channels.drain(&gid.0, machine, now)
        })
    }

    /// Whether a reader stopped where receives ran dry, which sinks may give back.
    #[getter]
    fn is_paused(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |channels| channels.is_paused)
    }

    /// Send all acknowledgements that wait, as far as there is room.
    fn acknowledge(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Channels::acknowledge)
    }

    /// How many acknowledgements wait.
    #[getter]
    fn waiting_acks(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |channels| channels.waiting_acks())
    }

    /// Whether a channel was written to since its memory was given back.
    #[getter]
    fn is_stirred(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |channels| channels.is_stirred())
    }

    /// Give memory of idle channels back; return whether others are busy.
    fn trim(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, Channels::trim)
    }

    /// Read on behind the messages that were told: the device has done what they say.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Channels::release)
    }

    /// Send what queue pairs have to send.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.core.through(py, |machine, channels, now| {
            channels.flush(machine, now);
        })
    }

    /// Have peers ring from now on; false if there is something to do instead.
    fn arm_doorbell(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, Channels::sleep)
    }

    fn disarm_doorbell(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |channels| channels.awake())
    }

    /// Return what the device has to do, as tuples that begin with a word, and forget it.
    fn take_channel_events<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (events, failed) = self.core.call_with(py, |machine, channels| {
            let events = std::mem::take(&mut channels.events);
            (events, std::mem::take(&mut machine.failed))
        })?;
        let list = PyList::empty(py);
        // First: behind a message its channel is held, so what failed did so before it.
        for qpn in failed {
            list.append(("failed", qpn))?;
        }
        for event in events {
            let bytes = |content: &[u8]| PyBytes::new(py, content);
            let tuple = match event {
                Event::Message(gid, qkey, content) => {
                    ("message", bytes(&gid), qkey, bytes(&content)).into_bound_py_any(py)?
                }
                Event::Connect(gid) => ("connect", bytes(&gid)).into_bound_py_any(py)?,
                Event::Map(gid, qpn, key) => {
                    ("map", bytes(&gid), qpn, key).into_bound_py_any(py)?
                }
                Event::Gone(gid) => ("gone", bytes(&gid)).into_bound_py_any(py)?,
                Event::Error(gid, error) => {
                    ("error", bytes(&gid), format!("{error:?}")).into_bound_py_any(py)?
                }
            };
            list.append(tuple)?;
        }
        if self.core.news.has() {
            for qpn in self.core.news.take() {
                list.append(("stream", qpn))?;
            }
        }
        Ok(list)
    }

    /// Send a message to a peer's connection manager; false without a channel or room.
    #[pyo3(signature = (gid, qkey, content, /))]
    fn send_message(&self, py: Python<'_>, gid: Gid, qkey: u32, content: &[u8]) -> PyResult<bool> {
        self.with(py, |channels| channels.send_message(&gid.0, qkey, content))
    }

    /// Note when the adapter's timer runs; a call that needs it sooner tells `on_pass`.
    #[pyo3(signature = (at_ns, /))]
    fn plan(&self, at_ns: Option<i64>) {
        self.core.plan(at_ns);
    }

    /// Count a thread that waits for completions, 1, or one that is done, -1.
    #[pyo3(signature = (change, /))]
    fn watch(&self, change: isize) {
        let watchers = &self.core.looks.watchers;
        if change > 0 {
            watchers.fetch_add(1, Relaxed);
        } else {
            watchers.fetch_sub(1, Relaxed);
        }
    }

    /// Make a completion channel; `on_taken` is called when an event was taken that was told.
    #[pyo3(signature = (on_taken, /))]
    fn completion_channel(
        &self,
        py: Python<'_>,
        on_taken: Py<PyAny>,
    ) -> PyResult<CompletionChannel> {
        CompletionChannel::new(py, &self.core, on_taken)
    }

    // -- threads that wait, and the loop in whose set they sleep

    /// Begin a wait for what the loop tells, with a number of its own; `end_wait` ends it.
    #[pyo3(signature = (number, asks, /))]
    fn begin_wait(&self, number: u64, asks: bool) {
        self.waits().begin(number, asks);
    }

    #[pyo3(signature = (number, /))]
    fn end_wait(&self, number: u64) {
        self.waits().end(number);
    }

    /// Tell a thread that its wait is over, or may be.
    #[pyo3(signature = (number, /))]
    fn tell(&self, number: u64) {
        self.waits().tell(number);
    }

    /// Wait until the loop has told since the last return, or until `until_ns` of the clock; return
    /// false then, and where no thread may wait any more.
    #[pyo3(signature = (number, until_ns, cq=None, /))]
    fn wait(
        &self,
        py: Python<'_>,
        number: u64,
        until_ns: Option<i64>,
        cq: Option<&Bound<'_, CompletionQueue>>,
    ) -> PyResult<bool> {
        let fed = cq.map(|cq| cq.get().number);
        let woken = self.core.wait_told(py, number, until_ns, fed)?;
        Ok(woken == Woken::Ready)
    }

    /// Have no doorbell any more: the loop closes it.
    fn forget_doorbell(&self) {
        self.waits().forget_doorbell();
    }

    /// Have no plane serve the engine any more: the loop is about to close the set.
    fn leave_plane(&self) {
        self.core.couriers.leave_plane();
    }

    /// The longest sleep of a thread, the net below a lost ring.
    #[getter]
    fn nap_ns(&self) -> i64 {
        self.waits().nap_ns.load(Relaxed)
    }

    #[setter]
    fn set_nap_ns(&self, nap_ns: i64) {
        self.waits().nap_ns.store(nap_ns, Relaxed);
    }

    /// How many threads sleep, or are about to.
    #[getter]
    fn sleepers(&self) -> usize {
        self.waits().lead.sleepers()
    }

    #[getter]
    fn has_waiters(&self) -> bool {
        self.waits().lead.has_waiters()
    }

    /// Have the loop called before the next sleep.
    fn note_due(&self) {
        self.wake(|lead| lead.note_due(None));
    }

    /// Have the loop called at a time, if that is sooner than planned.
    #[pyo3(signature = (at_ns, /))]
    fn note_timer(&self, at_ns: i64) {
        self.wake(|lead| lead.note_due(Some(at_ns)));
    }

    /// Have the loop called at a time, `None` for never, instead of what was planned.
    #[pyo3(signature = (at_ns, /))]
    fn plan_loop(&self, at_ns: Option<i64>) {
        self.wake(|lead| lead.plan(at_ns.unwrap_or(i64::MAX)));
    }

    /// Have the leader arm its doorbells anew: they may have been heard by another thread.
    fn rearm(&self) {
        self.wake(Lead::rearm);
    }

    /// Have the progress thread lead; false while a thread waits.
    fn lead_in_thread(&self) -> bool {
        self.waits().lead.lead_in_thread()
    }

    /// Take the lead from the progress thread.
    fn take_from_thread(&self) {
        self.wake(Lead::take_from_thread);
    }

    /// Ask for `handle_left` when no thread waits any more; false if none does, and none is coming.
    #[pyo3(signature = (is_coming=false, /))]
    fn want(&self, is_coming: bool) -> bool {
        self.waits().lead.want(is_coming)
    }

    /// End all waits.
    fn end_waits(&self) {
        self.wake(Lead::end);
    }

    /// Whether a timer of the loop gives memory of idle channels back.
    #[pyo3(signature = (is_planned, /))]
    fn note_trim(&self, is_planned: bool) {
        self.waits().is_trim_planned.store(is_planned, Relaxed);
    }

    // -- memory of peers

    /// Map the memory behind a key, as the peer's answer says. The file stays the caller's.
    #[pyo3(signature = (gid, qpn, key, file, address, length, generation, /))]
    #[allow(clippy::too_many_arguments)] // as the answer has them
    fn map(
        &self,
        py: Python<'_>,
        gid: Gid,
        qpn: u32,
        key: u32,
        file: i32,
        address: u64,
        length: u64,
        generation: u64,
    ) -> PyResult<()> {
        let region = Region {
            file,
            address,
            length,
            generation,
        };
        let mapped = self.with(py, |channels| channels.map(&gid.0, qpn, key, Some(region)))?;
        mapped.map_err(raised)
    }

    /// Remember that the memory behind a key is not to be mapped.
    #[pyo3(signature = (gid, qpn, key, /))]
    fn reject_map(&self, py: Python<'_>, gid: Gid, qpn: u32, key: u32) -> PyResult<()> {
        let mapped = self.with(py, |channels| channels.map(&gid.0, qpn, key, None))?;
        mapped.map_err(raised)
    }

    /// Forget what was mapped for a queue pair of a peer.
    #[pyo3(signature = (gid, qpn, /))]
    fn unmap(&self, py: Python<'_>, gid: Gid, qpn: u32) -> PyResult<()> {
        self.with(py, |channels| channels.unmap(&gid.0, qpn))
    }

    /// Return whether a peer says that it is copying into our memory.
    #[pyo3(signature = (gid, /))]
    fn is_placing(&self, py: Python<'_>, gid: Gid) -> PyResult<bool> {
        self.with(py, |channels| channels.is_placing(&gid.0))
    }

    /// Slots sent and received, doorbells rung, waits for room, writes placed, memory given back,
    /// packets lost.
    fn channel_counters(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64, u64, u64, u64)> {
        let (found, lost) =
            self.with(py, |channels| (channels.counters(), channels.packets_lost))?;
        Ok((
            found.slots_sent,
            found.slots_received,
            found.doorbells_rung,
            found.waits_for_room,
            found.writes_placed,
            found.trims,
            lost,
        ))
    }

    /// What work cost: the engine's lock taken, bytes put into channels, taken out, placed.
    fn costs(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64)> {
        self.core.through(py, |machine, channels, _| {
            let copied = channels.counters();
            (
                machine.counters.entered,
                copied.bytes_put,
                copied.bytes_taken,
                copied.bytes_placed,
            )
        })
    }

    /// How many regions of peers are mapped.
    #[getter]
    fn regions_mapped(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |channels| channels.mapped())
    }

    /// When a call of a stream looked at the channels last, on the monotonic clock; 0 for never.
    #[getter]
    fn progressed_ns(&self) -> i64 {
        self.core.progressed_ns.load(Relaxed)
    }
}

impl Drop for ShmEngine {
    fn drop(&mut self) {
        DEVICES.fetch_sub(1, Relaxed);
    }
}
