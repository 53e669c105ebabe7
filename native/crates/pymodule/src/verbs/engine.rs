//! The engine of one opened device, and its objects by number.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering::Relaxed};

use parking_lot::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PyWeakrefMethods, PyWeakrefReference};
use urds_channel::slots::PAYLOAD_BYTES_MAX;
use urds_channel::sys::{Errno, random};
use urds_dataplane::clock::Clock;
use urds_stream_link::News;
use urds_verbs::Engine as Machine;
use urds_verbs::attributes::Link;
use urds_verbs::errors::{EOPNOTSUPP, Rejected};
use urds_verbs::keys::{Draw, Registration};
use urds_verbs::numbers::{GID_BYTES, QpKind};
use urds_verbs::queue_pair::Setup;
use urds_verbs::work::{Completion, Element, Event};
use urds_verbs_shm::Channels;

use crate::deferred;
use crate::errors::{EIO, os_error};
use crate::verbs::couriers::Couriers;
use crate::verbs::looking::Looks;
use crate::verbs::memory::Buffer;
use crate::verbs::queue_pair::QueuePair;
use crate::verbs::queues::{CompletionQueue, SharedReceiveQueue};
use crate::verbs::regions::{Extent, MemoryWindow, Region};
use crate::verbs::values::{cap_of, domain_of, gid_of, integer, refused, route_of, tables, wide};
use crate::verbs::waiting::Waits;

/// Random numbers of one system call.
const DRAWN_MAX: usize = 32;

/// What the handles of one engine share.
///
/// Locks: the machine's is held without any Python code; the maps' for a look-up.
pub struct Core {
    pub machine: Mutex<Machine>,
    pub is_broken: AtomicBool,
    /// Where packets go, of an engine whose own they are. Its lock is taken inside the machine's.
    pub channels: Mutex<Channels>,
    pub has_channels: AtomicBool,
    pub looks: Looks,
    /// Streams whose links have something to do.
    pub news: Arc<News>,
    /// Connections of RDS whose plain traffic passes here.
    pub couriers: Couriers,
    /// When a call made progress last, for the thread that makes it otherwise.
    pub progressed_ns: AtomicI64,
    /// Threads that wait, if there are channels.
    pub waits: Option<Waits>,
    /// Handles by what they stand for: events name them.
    elements: Mutex<HashMap<Element, Py<PyWeakrefReference>>>,
    /// Regions by key and windows by number, which are there until they are taken back.
    regions: Mutex<HashMap<u32, Py<Region>>>,
    windows: Mutex<HashMap<u64, Py<MemoryWindow>>>,
}

impl Core {
    /// Do work on the machine, then release what it dropped.
    ///
    /// After a panic every call fails: EIO.
    pub fn call<T>(&self, py: Python<'_>, work: impl FnOnce(&mut Machine) -> T) -> PyResult<T> {
        let is_broken = || self.is_broken.load(Relaxed);
        // Before the lock as well: in the child of a fork it may be held for ever.
        let result = if is_broken() {
            None
        } else {
            let mut machine = self.machine.lock();
            machine.counters.entered += 1;
            let work = || catch_unwind(AssertUnwindSafe(|| work(&mut machine))).ok();
            let result = if is_broken() { None } else { work() };
            let wakes = self.ready_waiters(&machine, None);
            drop(machine);
            self.wake(&wakes);
            result
        };
        deferred::drain(py);
        result.ok_or_else(|| {
            self.is_broken.store(true, Relaxed);
            os_error(EIO, "a panic of the verbs engine, told on stderr")
        })
    }

    /// Do work on the machine and its channels, at the time of the system's clock.
    pub fn through<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Machine, &mut Channels, i64) -> T,
    ) -> PyResult<T> {
        self.couriers.held(|| {
            self.call(py, |machine| {
                let (mut channels, now_ns) = (self.channels.lock(), now_ns());
                let result = work(machine, &mut channels, now_ns);
                self.couriers.serve(machine, &mut channels, now_ns);
                result
            })
        })
    }

    /// Send what queue pairs have to send, if there are channels.
    pub fn flush(&self, py: Python<'_>) -> PyResult<()> {
        if !self.has_channels.load(Relaxed) {
            return Ok(());
        }
        self.through(py, |machine, channels, now_ns| {
            channels.flush(machine, now_ns);
        })
    }

    /// Take completions of a queue.
    pub fn take(&self, py: Python<'_>, number: u32, count: usize) -> PyResult<Vec<Completion>> {
        let mut taken = Vec::new();
        let mut poll = |machine: &mut Machine| {
            if let Some(queue) = machine.shared.completions.get_mut(number) {
                queue.poll(count, &mut taken);
            }
        };
        if self.couriers.has_any() {
            // In the same section: what is a courier's must not be told to others.
            self.couriers.held(|| {
                self.call(py, |machine| {
                    let (mut channels, now_ns) = (self.channels.lock(), now_ns());
                    self.couriers.serve(machine, &mut channels, now_ns);
                    poll(machine);
                })
            })?;
        } else {
            self.call(py, poll)?;
        }
        Ok(taken)
    }

    /// Do work that may be refused.
    pub fn attempt<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Machine) -> Result<T, Rejected>,
    ) -> PyResult<T> {
        self.call(py, work)?.map_err(|error| refused(&error))
    }

    fn remember(&self, element: Element, handle: &Bound<'_, PyAny>) -> PyResult<()> {
        let reference = PyWeakrefReference::new(handle)?.unbind();
        let before = self.elements.lock().insert(element, reference);
        drop(before);
        Ok(())
    }

    /// Forget a handle that is gone, and what it stands for.
    pub fn forget(&self, element: Element) {
        if self.is_broken.load(Relaxed) {
            return;
        }
        let reference = self.elements.lock().remove(&element);
        drop(reference);
        let mut machine = self.machine.lock();
        let told = &mut machine.shared.told;
        told.events.retain(|event| match event {
            Event::Async(_, about) => *about != element,
            Event::Completed(number) => Element::CompletionQueue(*number) != element,
        });
        match element {
            Element::QueuePair(number) => machine.close_queue_pair(number),
            Element::CompletionQueue(number) => {
                told.fed.retain(|fed| *fed != number);
                machine.shared.completions.remove(number);
            }
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
        match (self.machine.try_lock(), self.channels.try_lock()) {
            (Some(_), Some(mut channels)) => channels.abandon(),
            _ => self.is_broken.store(true, Relaxed),
        }
    }

    fn handle<'py>(&self, py: Python<'py>, element: Element) -> Option<Bound<'py, PyAny>> {
        let reference = self.elements.lock().get(&element)?.clone_ref(py);
        reference.bind(py).upgrade()
    }

    /// Let go of the handles of regions and windows, whose engine is gone.
    fn forget_memory(&self) {
        let regions = std::mem::take(&mut *self.regions.lock());
        let windows = std::mem::take(&mut *self.windows.lock());
        drop((regions, windows));
    }

    /// Return the region of a key.
    pub fn region(&self, py: Python<'_>, key: u32) -> Option<Py<Region>> {
        let regions = self.regions.lock();
        regions.get(&key).map(|region| region.clone_ref(py))
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // What keys and requests held is released now: no call may come that does it.
        *self.machine.get_mut() = Machine::new(None, false);
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

pub fn now_ns() -> i64 {
    i64::try_from(Clock::Monotonic.now_ns()).unwrap_or(i64::MAX)
}

/// Return draws for keys, of the system's random bytes: who has seen some foresees no other.
fn draw() -> Result<Draw, Rejected> {
    let mut drawn = Drawn::default();
    drawn
        .refill()
        .map_err(|error| Rejected::new(error.0, "no random bytes"))?;
    Ok(Box::new(move || drawn.next()))
}

/// Random numbers that were drawn together: a system call costs more than all of them.
#[derive(Default)]
struct Drawn {
    numbers: [[u8; 8]; DRAWN_MAX],
    left: usize,
}

impl Drawn {
    fn refill(&mut self) -> Result<(), Errno> {
        random::fill(self.numbers.as_flattened_mut())?;
        self.left = DRAWN_MAX;
        Ok(())
    }

    /// Return the next one, which nothing remembers.
    fn next(&mut self) -> u64 {
        if self.left == 0 {
            self.refill().expect("the system had some before");
        }
        self.left -= 1;
        u64::from_ne_bytes(std::mem::take(&mut self.numbers[self.left]))
    }
}

impl Engine {
    pub fn core(&self) -> Arc<Core> {
        Arc::clone(&self.core)
    }

    /// Make an engine, whose packets go through channels if there are any.
    pub fn over(
        link: &Bound<'_, PyAny>,
        gid: &Bound<'_, PyAny>,
        checksum: bool,
        channels: Option<Channels>,
        looks: Looks,
        waits: Option<Waits>,
        has_random_keys: bool,
    ) -> PyResult<Self> {
        let holds = |name: &str| link.getattr(name)?.extract::<bool>();
        if !(holds("lossless")? && holds("names_places")?) {
            let detail = "the compiled engine is for links without loss whose packets name their \
                          places";
            return Err(refused(&Rejected::new(EOPNOTSUPP, detail)));
        }
        let most = u32::try_from(PAYLOAD_BYTES_MAX).unwrap_or(u32::MAX);
        let has_channels = channels.is_some();
        let payload_bytes_max = has_channels.then_some(most);
        let draw = has_random_keys.then(draw).transpose();
        let mut machine = Machine::new(draw.map_err(|error| refused(&error))?, checksum);
        machine.tells_failures = has_channels;
        Ok(Self {
            core: Arc::new(Core {
                machine: Mutex::new(machine),
                is_broken: AtomicBool::new(false),
                has_channels: AtomicBool::new(has_channels),
                channels: Mutex::new(channels.unwrap_or_default()),
                looks,
                waits,
                news: Arc::default(),
                couriers: Couriers::default(),
                progressed_ns: AtomicI64::new(0),
                elements: Mutex::default(),
                regions: Mutex::default(),
                windows: Mutex::default(),
            }),
            link: Link {
                mtu_bytes: link.getattr("mtu_bytes")?.extract()?,
                payload_bytes_max,
                retries: holds("retries")?,
                // Channels keep acknowledgements back by themselves.
                acks_wait: !has_channels && holds("acks_wait").unwrap_or(false),
            },
            link_traits: link.clone().unbind(),
            gid: gid_of(gid)?,
        })
    }
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (link, *, gid, checksum=false, has_random_keys=false))]
    fn new(
        link: &Bound<'_, PyAny>,
        gid: &Bound<'_, PyAny>,
        checksum: bool,
        has_random_keys: bool,
    ) -> PyResult<Self> {
        let looks = Looks::default();
        Self::over(link, gid, checksum, None, looks, None, has_random_keys)
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
        let core = Arc::clone(&self.core);
        let made = Bound::new(
            py,
            CompletionQueue {
                number,
                core,
                sink,
                is_closed: Arc::default(),
            },
        )?;
        let element = Element::CompletionQueue(number);
        self.core.remember(element, made.as_any())?;
        Ok(made)
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
        let made = Bound::new(py, made)?;
        let element = Element::ReceiveQueue(number);
        self.core.remember(element, made.as_any())?;
        Ok(made)
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
        let made = QueuePair::new(py, &self.core, number, &setup, &self.link_traits)?;
        let made = Bound::new(py, made.keeping(pd, send_cq, recv_cq, srq))?;
        let element = Element::QueuePair(number);
        self.core.remember(element, made.as_any())?;
        Ok(made)
    }

    // -- memory

    #[pyo3(signature = (pd, memory, address, access, *, key=None))]
    fn register<'py>(
        &self,
        py: Python<'py>,
        pd: &Bound<'py, PyAny>,
        memory: &Bound<'py, PyAny>,
        address: &Bound<'py, PyAny>,
        access: &Bound<'py, PyAny>,
        key: Option<i64>,
    ) -> PyResult<Bound<'py, Region>> {
        let view = bytes_view(memory)?;
        let buffer = Arc::new(Buffer::of(&view)?);
        let (address, access) = (wide(address)?, integer(access)?);
        let registration = registration_of(&buffer, address, access);
        let domain = domain_of(pd)?.own;
        let (id, key) = self.core.attempt(py, |machine| {
            machine.shared.keys.register(domain, registration, key)
        })?;
        let region = Region {
            id,
            key: AtomicU32::new(key),
            extent: Mutex::new(Extent {
                pd: pd.clone().unbind(),
                memory: Some(buffer),
                view: view.unbind(),
                address: u64::try_from(address).unwrap_or(0), // checked
                access: significant(access),
            }),
            tag: Mutex::new(py.None()),
            core: Arc::clone(&self.core),
        };
        let region = Bound::new(py, region)?;
        let kept = region.clone().unbind();
        self.core.regions.lock().insert(key, kept);
        Ok(region)
    }

    #[pyo3(signature = (region, *, pd=None, view=None, address=None, access=None))]
    fn reregister(
        &self,
        py: Python<'_>,
        region: &Bound<'_, Region>,
        pd: Option<&Bound<'_, PyAny>>,
        view: Option<&Bound<'_, PyAny>>,
        address: Option<&Bound<'_, PyAny>>,
        access: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let found = region.get();
        let (id, key) = (found.id, found.key.load(Relaxed));
        let keeps_keys = view.is_none() && address.is_none();
        let (old_memory, old_address, old_access) = {
            let extent = found.extent.lock();
            (extent.memory.clone(), extent.address, extent.access)
        };
        let view = view.map(bytes_view).transpose()?;
        let buffer = match (&view, old_memory) {
            (Some(view), _) => Arc::new(Buffer::of(view)?),
            (None, Some(memory)) => memory,
            (None, None) => {
                let detail = format!("region {key:#x} was deregistered before");
                return Err(refused(&Rejected::invalid(detail)));
            }
        };
        let address = address.map_or(Ok(i128::from(old_address)), wide)?;
        let access = access.map_or(Ok(old_access), integer)?;
        let registration = registration_of(&buffer, address, access);
        let domain = pd
            .map(|pd| domain_of(pd).map(|domain| domain.own))
            .transpose()?;
        let new_key = self.core.attempt(py, |machine| {
            let keys = &mut machine.shared.keys;
            keys.reregister(id, key, domain, registration, keeps_keys)
        })?;
        let before = {
            let mut extent = found.extent.lock();
            let pd = pd.map_or_else(|| extent.pd.clone_ref(py), |pd| pd.clone().unbind());
            let view = view.map_or_else(|| extent.view.clone_ref(py), Bound::unbind);
            let changed = Extent {
                pd,
                memory: Some(buffer),
                view,
                address: u64::try_from(address).unwrap_or(0), // checked
                access: significant(access),
            };
            std::mem::replace(&mut *extent, changed)
        };
        found.key.store(new_key, Relaxed);
        {
            let mut regions = self.core.regions.lock();
            if let Some(kept) = regions.remove(&key) {
                regions.insert(new_key, kept);
            }
        }
        drop(before);
        deferred::drain(py);
        Ok(())
    }

    #[pyo3(signature = (region, *, unbind=false))]
    fn deregister(&self, py: Python<'_>, region: &Bound<'_, Region>, unbind: bool) -> PyResult<()> {
        let found = region.get();
        let (id, key) = (found.id, found.key.load(Relaxed));
        self.core.attempt(py, |machine| {
            let keys = &mut machine.shared.keys;
            if unbind {
                keys.unbind_all(key);
            }
            keys.deregister(id, key).map(drop)
        })?;
        let empty = PyMemoryView::from(&PyBytes::new(py, b""))?
            .into_any()
            .unbind();
        let (memory, view) = {
            let mut extent = found.extent.lock();
            let view = std::mem::replace(&mut extent.view, empty);
            (extent.memory.take(), view)
        };
        let kept = self.core.regions.lock().remove(&key);
        drop((memory, view, kept));
        deferred::drain(py);
        Ok(())
    }

    fn find_region(&self, py: Python<'_>, lkey: i64) -> Option<Py<Region>> {
        self.core.region(py, u32::try_from(lkey).ok()?)
    }

    #[getter]
    fn region_count(&self, py: Python<'_>) -> PyResult<usize> {
        self.core
            .call(py, |machine| machine.shared.keys.region_count())
    }

    fn window<'py>(
        &self,
        py: Python<'py>,
        pd: &Bound<'py, PyAny>,
        kind: i64,
    ) -> PyResult<Bound<'py, MemoryWindow>> {
        let domain = domain_of(pd)?.own;
        let id = self
            .core
            .attempt(py, |machine| machine.shared.keys.new_window(domain, kind))?;
        let window = MemoryWindow {
            id,
            kind: u8::try_from(kind).unwrap_or(0), // checked
            pd: pd.clone().unbind(),
            last_key: AtomicU32::new(0),
            is_free: AtomicBool::new(false),
            core: Arc::clone(&self.core),
        };
        let window = Bound::new(py, window)?;
        let kept = window.clone().unbind();
        self.core.windows.lock().insert(id, kept);
        Ok(window)
    }

    fn free_window(&self, py: Python<'_>, window: &Bound<'_, MemoryWindow>) -> PyResult<()> {
        let found = window.get();
        let id = found.id;
        let last_key = self.core.call(py, |machine| {
            let keys = &mut machine.shared.keys;
            let key = keys.window(id).map(|window| window.rkey);
            keys.free(id);
            key
        })?;
        if let Some(key) = last_key {
            found.last_key.store(key, Relaxed);
        }
        found.is_free.store(true, Relaxed);
        let kept = self.core.windows.lock().remove(&id);
        drop(kept);
        Ok(())
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
        if let Ok(bytes) = data.cast_exact::<PyBytes>() {
            let bytes = bytes.as_bytes();
            return self
                .core
                .call(py, |machine| machine.receive(bytes, route, now_ns));
        }
        let mut buffer = crate::sys::Export::of(data)?;
        let bytes = buffer.gather(py);
        buffer.release(py);
        let bytes = bytes?;
        self.core
            .call(py, |machine| machine.receive(&bytes, route, now_ns))
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
        self.core.call(py, |machine| machine.shared.told.fed.len())
    }

    /// How many events wait.
    #[getter]
    fn events(&self, py: Python<'_>) -> PyResult<usize> {
        self.core
            .call(py, |machine| machine.shared.told.events.len())
    }

    fn feed_sinks(&self, py: Python<'_>) -> PyResult<()> {
        loop {
            let next = self.core.call(py, |machine| {
                let fed = &mut machine.shared.told.fed;
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
            std::mem::take(&mut machine.shared.told.events)
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
        if let Some(regions) = self.core.regions.try_lock() {
            for region in regions.values() {
                visit.call(region)?;
            }
        }
        if let Some(windows) = self.core.windows.try_lock() {
            for window in windows.values() {
                visit.call(window)?;
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        self.core.forget_memory();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Each holds the core, which holds them.
        self.core.forget_memory();
    }
}

/// Return a view of an object's bytes.
fn bytes_view<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let view = PyMemoryView::from(object)?.into_any();
    let dimensions: usize = view.getattr("ndim")?.extract()?;
    if dimensions == 1 && view.getattr("format")?.eq("B")? {
        return Ok(view);
    }
    view.call_method1("cast", ("B",))
}

fn registration_of(buffer: &Arc<Buffer>, address: i128, access: i64) -> Registration {
    Registration {
        length: buffer.length() as u64,
        is_readonly: buffer.is_readonly(),
        memory: buffer.clone(),
        address,
        access,
    }
}

/// Return the access bits that count: hints are dropped.
fn significant(access: i64) -> i64 {
    access & i64::from(urds_verbs::numbers::KNOWN_ACCESS)
}
