//! The engine of one opened device, and its objects by number.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

use parking_lot::Mutex;
use pyo3::PyClass;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyWeakrefMethods, PyWeakrefReference};
use urds_channel::slots::PAYLOAD_BYTES_MAX;
use urds_dataplane::clock::Clock;
use urds_stream_link::News;
use urds_verbs::Engine as Machine;
use urds_verbs::attributes::Link;
use urds_verbs::errors::{EOPNOTSUPP, Rejected};
use urds_verbs::numbers::{GID_BYTES, QpKind};
use urds_verbs::queue_pair::Setup;
use urds_verbs::time::Now;
use urds_verbs::work::{Completion, Element, Event};
use urds_verbs_shm::Channels;

use crate::deferred;
use crate::errors::{EIO, os_error};
use crate::verbs::couriers::Couriers;
use crate::verbs::looking::Looks;
use crate::verbs::queue_pair::{Kept, QueuePair};
use crate::verbs::queues::{CompletionQueue, SharedReceiveQueue};
use crate::verbs::regions::{MemoryWindow, Region, Registered, random_keys};
use crate::verbs::values::{Gid, cap_of, domain_of, integer, refused, route_of, tables};
use crate::verbs::waiting::Waits;

/// What calls work on, behind one lock: a second one costs each call as much as its checks.
pub struct Guarded {
    pub machine: Machine,
    /// Where packets go, of an engine whose own they are.
    pub channels: Channels,
}

/// What the handles of one engine share.
///
/// Locks: that of `guarded` is held without any Python code; the maps' for a look-up.
pub struct Core {
    pub guarded: Mutex<Guarded>,
    pub is_broken: AtomicBool,
    pub looks: Looks,
    /// Streams whose links have something to do.
    pub news: Arc<News>,
    /// Connections of RDS whose plain traffic passes here.
    pub couriers: Couriers,
    /// When a call made progress last, for the thread that makes it otherwise.
    pub progressed_ns: AtomicI64,
    /// Threads that wait; there are channels if it is there.
    pub waits: Option<Waits>,
    /// Handles by what they stand for: events name them.
    elements: Mutex<HashMap<Element, Py<PyWeakrefReference>>>,
    pub registered: Registered,
}

impl Core {
    /// Do work on the machine, wake the threads that wait for what it brought, release what it dropped.
    ///
    /// After a panic every call fails: EIO.
    pub fn call<T>(&self, py: Python<'_>, work: impl FnOnce(&mut Machine) -> T) -> PyResult<T> {
        self.call_with(py, |machine, _| work(machine))
    }

    /// As `call`, with the channels as well.
    #[inline]
    pub fn call_with<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Machine, &mut Channels) -> T,
    ) -> PyResult<T> {
        let result = self.enter(work, true);
        deferred::drain(py);
        result.ok_or_else(|| os_error(EIO, "a panic of the verbs engine, told on stderr"))
    }

    /// Work on the machine and its channels without the interpreter; `None` after a panic.
    pub fn outside<T>(&self, work: impl FnOnce(&mut Machine, &mut Channels) -> T) -> Option<T> {
        self.enter(work, false)
    }

    #[inline]
    fn enter<T>(
        &self,
        work: impl FnOnce(&mut Machine, &mut Channels) -> T,
        wakes: bool,
    ) -> Option<T> {
        let is_broken = || self.is_broken.load(Relaxed);
        // Before the lock as well: in the child of a fork it may be held for ever.
        if is_broken() {
            return None;
        }
        let mut guarded = self.guarded.lock();
        let Guarded { machine, channels } = &mut *guarded;
        machine.counters.entered += 1;
        let work = || catch_unwind(AssertUnwindSafe(|| work(machine, channels))).ok();
        let result = if is_broken() { None } else { work() };
        if result.is_none() {
            self.is_broken.store(true, Relaxed);
        }
        if wakes {
            let wakes = self.ready_waiters(&guarded.machine, None);
            drop(guarded);
            self.wake(&wakes);
        }
        result
    }

    /// Do work on the machine and its channels, with the system's clock.
    pub fn through<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Machine, &mut Channels, Now) -> T,
    ) -> PyResult<T> {
        self.couriers.held(|| {
            self.call_with(py, |machine, channels| {
                let now = time_of(machine);
                let result = work(machine, channels, now);
                self.couriers.serve(machine, channels, now);
                result
            })
        })
    }

    /// Do work on the machine and its channels, then have the adapter do what that leaves to it.
    pub fn through_pass<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Machine, &mut Channels, Now) -> T,
    ) -> PyResult<T> {
        let (result, left) = self.through(py, |machine, channels, now| {
            let pushed = machine.shared.outbox.pushed;
            let result = work(machine, channels, now);
            (result, self.left(machine, channels, pushed))
        })?;
        self.finish_pass(py, left)?;
        Ok(result)
    }

    /// Do work on the machine that gives nothing to send, then have the adapter tell what completed.
    pub fn call_pass<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Machine) -> T,
    ) -> PyResult<T> {
        let (result, has_completed) = self.call(py, |machine| {
            let pushed = machine.shared.outbox.pushed;
            let result = work(machine);
            (result, machine.shared.outbox.pushed != pushed)
        })?;
        if has_completed {
            self.pass(py)?;
        }
        Ok(result)
    }

    /// Send what queue pairs have to send, if there are channels.
    pub fn flush(&self, py: Python<'_>) -> PyResult<()> {
        if self.waits.is_none() {
            return Ok(());
        }
        self.through(py, |machine, channels, now| {
            channels.flush(machine, now);
        })
    }

    /// Take completions of a queue.
    pub fn take(&self, py: Python<'_>, number: u32, count: usize) -> PyResult<Taken> {
        if !self.couriers.has_any() {
            return self.call(py, |machine| taken_of(machine, number, count));
        }
        // In the same section: what is a courier's must not be told to others.
        self.couriers.held(|| {
            self.call_with(py, |machine, channels| {
                self.couriers.serve(machine, channels, time_of(machine));
                taken_of(machine, number, count)
            })
        })
    }

    /// Do work that may be refused.
    pub fn attempt<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Machine) -> Result<T, Rejected>,
    ) -> PyResult<T> {
        self.call(py, work)?.map_err(|error| refused(&error))
    }

    /// Make the handle of what events name.
    fn handle_of<'py, T>(
        &self,
        py: Python<'py>,
        element: Element,
        handle: T,
    ) -> PyResult<Bound<'py, T>>
    where
        T: PyClass + Into<PyClassInitializer<T>>,
    {
        let handle = Bound::new(py, handle)?;
        let reference = PyWeakrefReference::new(handle.as_any())?.unbind();
        let before = self.elements.lock().insert(element, reference);
        drop(before);
        Ok(handle)
    }

    /// Forget a handle that is gone, and what it stands for.
    pub fn forget(&self, element: Element) {
        if self.is_broken.load(Relaxed) {
            return;
        }
        let reference = self.elements.lock().remove(&element);
        drop(reference);
        let machine = &mut self.guarded.lock().machine;
        let outbox = &mut machine.shared.outbox;
        outbox.events.retain(|event| match event {
            Event::Async(_, about) => *about != element,
            Event::Completed(number) => Element::CompletionQueue(*number) != element,
        });
        match element {
            Element::QueuePair(number) => machine.close_queue_pair(number),
            Element::CompletionQueue(number) => machine.close_completion_queue(number),
            Element::ReceiveQueue(number) => {
                machine.shared.receives.remove(number);
            }
        }
    }

    /// Forget all channels in the child of a fork. Where a thread of the parent was at work in that
    /// moment, every call fails from now on, as after a panic.
    pub fn abandon_in_child(&self) {
        if let Some(waits) = &self.waits {
            waits.lead.abandon_in_child();
        }
        match self.guarded.try_lock() {
            Some(mut guarded) => guarded.channels.abandon(),
            None => self.is_broken.store(true, Relaxed),
        }
    }

    pub fn handle<'py>(&self, py: Python<'py>, element: Element) -> Option<Bound<'py, PyAny>> {
        let reference = self.elements.lock().get(&element)?.clone_ref(py);
        reference.bind(py).upgrade()
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // What keys and requests held is released now: no call may come that does it.
        self.guarded.get_mut().machine = Machine::new(None, false);
        Python::try_attach(deferred::drain);
    }
}

/// See `contract.Engine` and the stub.
#[pyclass(frozen, subclass, weakref, module = "urds_native")]
pub struct Engine {
    core: Arc<Core>,
    link: Link,
    #[pyo3(get, name = "link")]
    link_traits: Py<PyAny>,
    gid: [u8; GID_BYTES],
}

/// Completions that were taken; one costs no allocation.
#[derive(Default)]
pub enum Taken {
    #[default]
    None,
    One(Completion),
    Many(Vec<Completion>),
}

impl Taken {
    pub fn as_slice(&self) -> &[Completion] {
        match self {
            Self::None => &[],
            Self::One(completion) => std::slice::from_ref(completion),
            Self::Many(completions) => completions,
        }
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }
}

/// Take completions of a queue.
#[inline]
pub fn taken_of(machine: &mut Machine, number: u32, count: usize) -> Taken {
    let Some(queue) = machine.shared.completions.get_mut(number) else {
        return Taken::None;
    };
    if count.min(queue.len()) > 1 {
        let mut taken = Vec::new();
        queue.poll(count, &mut taken);
        return Taken::Many(taken);
    }
    let one = if count > 0 { queue.take() } else { None };
    one.map_or(Taken::None, Taken::One)
}

/// Return the time for a call: read once where a timer runs, for each packet may move it.
#[inline]
pub fn time_of(machine: &Machine) -> Now {
    match machine.poll_timeout() {
        Some(_) => Now::At(now_ns()),
        None => Now::Told(now_ns),
    }
}

pub fn now_ns() -> i64 {
    i64::try_from(Clock::Monotonic.now_ns()).unwrap_or(i64::MAX)
}

impl Engine {
    pub fn core(&self) -> Arc<Core> {
        Arc::clone(&self.core)
    }

    /// Make an engine, whose packets go through channels if there are any, for which threads wait.
    pub fn over(
        link: &Bound<'_, PyAny>,
        gid: Gid,
        checksum: bool,
        channels: Option<(Channels, Waits)>,
        looks: Looks,
        has_random_keys: bool,
    ) -> PyResult<Self> {
        let holds = |name: &str| link.getattr(name)?.extract::<bool>();
        if !(holds("lossless")? && holds("names_places")?) {
            let detail = "the compiled engine is for links without loss whose packets name their \
                          places";
            return Err(refused(&Rejected::new(EOPNOTSUPP, detail)));
        }
        let most = u32::try_from(PAYLOAD_BYTES_MAX).unwrap_or(u32::MAX);
        let (channels, waits) = channels.unzip();
        let has_channels = waits.is_some();
        let payload_bytes_max = has_channels.then_some(most);
        let draw = has_random_keys.then(random_keys).transpose();
        let mut machine = Machine::new(draw.map_err(|error| refused(&error))?, checksum);
        machine.tells_failures = has_channels;
        Ok(Self {
            core: Arc::new(Core {
                guarded: Mutex::new(Guarded {
                    machine,
                    channels: channels.unwrap_or_default(),
                }),
                is_broken: AtomicBool::new(false),
                looks,
                waits,
                news: Arc::default(),
                couriers: Couriers::default(),
                progressed_ns: AtomicI64::new(0),
                elements: Mutex::default(),
                registered: Registered::default(),
            }),
            link: Link {
                mtu_bytes: link.getattr("mtu_bytes")?.extract()?,
                payload_bytes_max,
                retries: holds("retries")?,
                // Channels keep acknowledgements back by themselves.
                acks_wait: !has_channels && holds("acks_wait").unwrap_or(false),
            },
            link_traits: link.clone().unbind(),
            gid: gid.0,
        })
    }
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (link, *, gid, checksum=false, has_random_keys=false))]
    fn new(
        link: &Bound<'_, PyAny>,
        gid: Gid,
        checksum: bool,
        has_random_keys: bool,
    ) -> PyResult<Self> {
        Self::over(link, gid, checksum, None, Looks::default(), has_random_keys)
    }

    #[getter]
    fn gid<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.gid)
    }

    // -- objects

    #[pyo3(signature = (capacity, *, sink=None))]
    fn completion_queue<'py>(
        &self,
        py: Python<'py>,
        capacity: i64,
        sink: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, CompletionQueue>> {
        let has_sink = sink.is_some();
        let number = self
            .core
            .attempt(py, |machine| machine.completion_queue(capacity, has_sink))?;
        let made = CompletionQueue {
            number,
            core: Arc::clone(&self.core),
            sink,
            is_closed: Arc::default(),
            owner: Mutex::default(),
            unacked: AtomicI64::new(0),
        };
        let element = Element::CompletionQueue(number);
        self.core.handle_of(py, element, made)
    }

    #[pyo3(signature = (capacity, sge_max, *, pd))]
    fn shared_receive_queue<'py>(
        &self,
        py: Python<'py>,
        capacity: i64,
        sge_max: i64,
        pd: Py<PyAny>,
    ) -> PyResult<Bound<'py, SharedReceiveQueue>> {
        let number = self
            .core
            .call(py, |machine| machine.receive_queue(capacity, sge_max))?;
        let made = SharedReceiveQueue {
            number,
            core: Arc::clone(&self.core),
            pd,
            attached: AtomicI64::new(0),
        };
        self.core.handle_of(py, Element::ReceiveQueue(number), made)
    }

    #[pyo3(signature = (
        *, qpn, kind, pd, send_cq, recv_cq, cap, srq=None, sq_sig_all=false, receive_order=None
    ))]
    #[allow(clippy::too_many_arguments)] // as Python names them
    fn queue_pair<'py>(
        &self,
        py: Python<'py>,
        qpn: u32,
        kind: &Bound<'py, PyAny>,
        pd: &Bound<'py, PyAny>,
        send_cq: &Bound<'py, CompletionQueue>,
        recv_cq: &Bound<'py, CompletionQueue>,
        cap: &Bound<'py, PyAny>,
        srq: Option<&Bound<'py, SharedReceiveQueue>>,
        sq_sig_all: bool,
        receive_order: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, QueuePair>> {
        if receive_order.is_some_and(|order| order.extract::<i64>().is_ok_and(|order| order != 0)) {
            let detail = "the compiled engine accepts messages in order alone";
            return Err(refused(&Rejected::new(EOPNOTSUPP, detail)));
        }
        let domain = domain_of(pd)?;
        let shared_domain = srq.map(|srq| srq.get().domain(py)).transpose()?.flatten();
        let Some(kind) = QpKind::of(integer(kind)?) else {
            return Err(refused(&Rejected::invalid("no such type of queue pair")));
        };
        let setup = Setup {
            qpn,
            kind,
            domain,
            receive_domain: shared_domain.unwrap_or(domain),
            send_cq: send_cq.get().number,
            recv_cq: recv_cq.get().number,
            srq: srq.map(|srq| srq.get().number),
            cap: cap_of(cap)?,
            sq_sig_all,
            link: self.link,
            gid: self.gid,
        };
        let number = self.core.attempt(py, |machine| {
            if machine.has_qpn(qpn) {
                let detail = format!("queue pair {qpn} is there already");
                return Err(Rejected::invalid(detail));
            }
            Ok(machine.queue_pair(setup))
        })?;
        let kept = Kept {
            link: self.link_traits.clone_ref(py),
            pd: Mutex::new(pd.clone().unbind()),
            send_cq: send_cq.clone().unbind(),
            recv_cq: recv_cq.clone().unbind(),
            srq: srq.map(|srq| srq.clone().unbind()),
        };
        let made = QueuePair::new(py, &self.core, number, &setup, kept)?;
        self.core.handle_of(py, Element::QueuePair(number), made)
    }

    // -- memory

    #[pyo3(signature = (pd, memory, address, access, *, key=None))]
    fn register<'py>(
        &self,
        pd: &Bound<'py, PyAny>,
        memory: &Bound<'py, PyAny>,
        address: &Bound<'py, PyAny>,
        access: &Bound<'py, PyAny>,
        key: Option<i64>,
    ) -> PyResult<Bound<'py, Region>> {
        Region::register(&self.core, pd, memory, (address, access), key)
    }

    #[pyo3(signature = (region, *, pd=None, view=None, address=None, access=None))]
    #[allow(clippy::unused_self)] // as pyo3 calls it
    fn reregister(
        &self,
        py: Python<'_>,
        region: &Bound<'_, Region>,
        pd: Option<&Bound<'_, PyAny>>,
        view: Option<&Bound<'_, PyAny>>,
        address: Option<&Bound<'_, PyAny>>,
        access: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        region.get().reregister(py, pd, view, (address, access))
    }

    #[pyo3(signature = (region, *, unbind=false))]
    #[allow(clippy::unused_self)] // as pyo3 calls it
    fn deregister(&self, py: Python<'_>, region: &Bound<'_, Region>, unbind: bool) -> PyResult<()> {
        region.get().deregister(py, unbind)
    }

    fn find_region(&self, py: Python<'_>, lkey: i64) -> Option<Py<Region>> {
        self.core.registered.region(py, u32::try_from(lkey).ok()?)
    }

    #[getter]
    fn region_count(&self, py: Python<'_>) -> PyResult<usize> {
        self.core
            .call(py, |machine| machine.shared.keys.region_count())
    }

    fn window<'py>(&self, pd: &Bound<'py, PyAny>, kind: i64) -> PyResult<Bound<'py, MemoryWindow>> {
        MemoryWindow::make(&self.core, pd, kind)
    }

    #[allow(clippy::unused_self)] // as pyo3 calls it
    fn free_window(&self, py: Python<'_>, window: &Bound<'_, MemoryWindow>) -> PyResult<()> {
        window.get().free(py)
    }

    // -- packets and time

    fn receive(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        source: &Bound<'_, PyAny>,
        now_ns: i64,
    ) -> PyResult<()> {
        let route = route_of(source)?;
        let receive = |bytes: &[u8]| {
            let core = &self.core;
            core.call(py, |machine| machine.receive(bytes, route, now_ns))
        };
        if let Ok(bytes) = data.cast_exact::<PyBytes>() {
            return receive(bytes.as_bytes());
        }
        let mut buffer = crate::sys::Export::of(data)?;
        let bytes = buffer.gather(py);
        buffer.release(py);
        receive(&bytes?)
    }

    fn poll_transmit<'py>(
        &self,
        py: Python<'py>,
        now_ns: i64,
    ) -> PyResult<Option<(Bound<'py, PyAny>, Bound<'py, PyBytes>)>> {
        let Some((route, bytes)) = self
            .core
            .call(py, |machine| machine.poll_transmit(now_ns))?
        else {
            return Ok(None);
        };
        let route = tables(py)?.route(py, &route)?;
        Ok(Some((route, PyBytes::new(py, &bytes))))
    }

    fn poll_timeout(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        self.core.call(py, |machine| machine.poll_timeout())
    }

    fn handle_timeout(&self, py: Python<'_>, now_ns: i64) -> PyResult<()> {
        self.core.call(py, |machine| machine.handle_timeout(now_ns))
    }

    // -- what there is to tell

    /// How many queues have sinks that are due.
    #[getter]
    fn fed(&self, py: Python<'_>) -> PyResult<usize> {
        self.core
            .call(py, |machine| machine.shared.outbox.fed.len())
    }

    /// How many events wait.
    #[getter]
    fn events(&self, py: Python<'_>) -> PyResult<usize> {
        self.core
            .call(py, |machine| machine.shared.outbox.events.len())
    }

    fn feed_sinks(&self, py: Python<'_>) -> PyResult<()> {
        loop {
            let next = self.core.call(py, |machine| {
                let fed = &mut machine.shared.outbox.fed;
                (!fed.is_empty()).then(|| fed.remove(0))
            })?;
            let Some(number) = next else {
                return Ok(());
            };
            if let Some(queue) = self.core.handle(py, Element::CompletionQueue(number)) {
                queue.cast::<CompletionQueue>()?.get().drain(py)?;
            }
        }
    }

    fn take_events<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let events = self.core.call(py, |machine| {
            std::mem::take(&mut machine.shared.outbox.events)
        })?;
        let tables = tables(py)?;
        let list = PyList::empty(py);
        for event in events {
            let (element, kind) = match event {
                Event::Async(kind, element) => (element, Some(kind)),
                Event::Completed(number) => (Element::CompletionQueue(number), None),
            };
            let Some(handle) = self.core.handle(py, element) else {
                continue;
            };
            list.append(match kind {
                Some(kind) => {
                    let kind = tables.events[kind as usize].bind(py);
                    tables.engine_event.bind(py).call1((kind, handle))?
                }
                None => tables.completed.bind(py).call1((handle,))?,
            })?;
        }
        Ok(list)
    }

    /// Packets: sent, received, malformed, unknown queue pair, other source; then what there is:
    /// queue pairs, regions.
    fn snapshot(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64, u64, usize, usize)> {
        self.core.call(py, |machine| {
            let counters = machine.counters;
            (
                counters.sent,
                counters.received,
                counters.dropped_malformed,
                counters.dropped_unknown,
                counters.dropped_source,
                machine.queue_pair_count(),
                machine.shared.keys.region_count(),
            )
        })
    }

    #[allow(clippy::needless_pass_by_value)] // as pyo3 calls it
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.core.looks.traverse(&visit)?;
        self.core.registered.traverse(&visit)
    }

    fn __clear__(&self) {
        self.core.registered.forget_all();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Each holds the core, which holds them.
        self.core.registered.forget_all();
    }
}
