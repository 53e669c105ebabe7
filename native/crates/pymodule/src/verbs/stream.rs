//! The stream of an rsocket over a `shm` device: its core, and the calls that move bytes.
//!
//! Connecting, flags, timeouts, readiness and the end are Python's (`urds.rsocket`), which calls the
//! methods here; `send`, `recv` and `recv_into` are placed in a socket. They do what can be done at once,
//! look for news without the interpreter for a moment, and leave the rest to Python.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed, Ordering::SeqCst};

use parking_lot::Mutex;
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use urds_stream::{Mapped, Refused, Region, Shut, StreamCore, StreamSettings};
use urds_stream_link::{self as link, Attention, FILLED, Link, SharedLink};
use urds_verbs::memory::Memory;

use crate::deferred;
use crate::verbs::engine::Core;
use crate::verbs::memory::Buffer;
use crate::verbs::queue_pair::QueuePair;
use crate::verbs::stream_bytes::{Given, Sent, WAITALL};

/// Memory of a stream: a buffer of Python's.
#[derive(Clone)]
pub struct Ram(pub Arc<Buffer>);

impl Ram {
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Buffer::of(object).map(Arc::new).map(Self)
    }
}

impl urds_stream::Memory for Ram {
    fn read(&self, at: usize, to: &mut [u8]) {
        Memory::read(&*self.0, at, to);
    }

    fn write(&self, at: usize, from: &[u8]) {
        Memory::write(&*self.0, at, from);
    }
}

/// See the stub.
#[pyclass(frozen, weakref, module = "urds_native")]
pub struct Stream {
    pub core: Arc<Core>,
    pub qp: Py<QueuePair>,
    pub link: SharedLink<Ram>,
    pub attention: Arc<Attention>,
    /// The device's memory, with `allocate` and `release`.
    pub source: Mutex<Option<Py<PyAny>>>,
    /// Records of the source, by key.
    pub memories: Mutex<HashMap<u32, Py<PyAny>>>,
    /// Does what the placed methods do not do at once.
    pub transfer: Mutex<Option<Py<PyAny>>>,
    /// How long a call may wait, -1 for ever.
    pub wait_ns: AtomicI64,
    /// How long a call looks for news before it sleeps.
    pub look_ns: AtomicI64,
    /// Whether a receive has given its memory to the peer, and others wait.
    pub is_expecting: AtomicBool,
    /// The socket is closed: no call waits any more.
    pub is_closed: Arc<AtomicBool>,
    /// Whether something shows readiness, and is told after each call.
    pub has_watchers: AtomicBool,
}

/// Return a region of the source's record: view, address, key.
pub fn region_of(memory: &Bound<'_, PyAny>) -> PyResult<Region<Ram>> {
    let py = memory.py();
    let view = memory.getattr(intern!(py, "view"))?;
    let memory_view = Ram::of(&view)?;
    Ok(Region {
        length: memory_view.0.length(),
        memory: memory_view,
        address: memory.getattr(intern!(py, "address"))?.extract()?,
        rkey: memory.getattr(intern!(py, "rkey"))?.extract()?,
    })
}

/// Return the settings of `urds.rsocket.core.stream.records`.
pub fn stream_settings_of(given: &Bound<'_, PyAny>) -> PyResult<StreamSettings> {
    let number = |name: &str| given.getattr(name)?.extract::<usize>();
    let short = |name: &str| given.getattr(name)?.extract::<u16>();
    let flag = |name: &str| given.getattr(name)?.extract::<bool>();
    Ok(StreamSettings {
        send_queue: short("send_queue")?,
        receive_queue: short("receive_queue")?,
        receive_bytes: number("receive_bytes")?,
        is_receive_fixed: flag("is_receive_fixed")?,
        ring_first_bytes: number("ring_first_bytes")?,
        ring_max_bytes: number("ring_max_bytes")?,
        held_wait_bytes: number("held_wait_bytes")?,
        send_bytes: number("send_bytes")?,
        chunk_max_bytes: number("chunk_max_bytes")?,
        iomap_slots: short("iomap_slots")?,
        table_entries: given.getattr("table_entries")?.extract()?,
        is_big_endian: given.getattr("byte_order")?.eq("big")?,
        no_delay: flag("no_delay")?,
        keepalive_ns: given.getattr("keepalive_ns")?.extract()?,
    })
}

#[allow(clippy::needless_pass_by_value)] // as `map_err` calls it
fn raised(refused: Refused) -> PyErr {
    PyOSError::new_err((refused.errno, refused.detail))
}

impl Stream {
    /// Change the stream's core; its word tells what that has changed.
    fn change<T>(&self, work: impl FnOnce(&mut StreamCore<Ram>) -> T) -> T {
        let mut link = self.link.lock();
        let result = work(&mut link.core);
        link.update();
        result
    }
}

#[pymethods]
impl Stream {
    #[new]
    #[pyo3(signature = (engine, qp, settings, source))]
    fn new(
        py: Python<'_>,
        engine: &Bound<'_, crate::verbs::shm::ShmEngine>,
        qp: &Bound<'_, QueuePair>,
        settings: &Bound<'_, PyAny>,
        source: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let given = stream_settings_of(settings)?;
        let core = engine.get().core();
        let memory = source.call_method1("allocate", (given.region_bytes(),))?;
        let region = region_of(&memory)?;
        let rkey = region.rkey;
        let qpn = qp.get().qpn();
        let attention = Arc::new(Attention::new(qpn, Arc::clone(&core.news)));
        let stream = StreamCore::new(given, region);
        let early_max = usize::from(given.receive_queue);
        let made = Link::new(stream, Arc::clone(&attention), early_max);
        let made = Arc::new(Mutex::new(made));
        let number = qp.get().number();
        core.attempt(py, |machine| link::attach(machine, number, &made))?;
        Ok(Self {
            core,
            qp: qp.clone().unbind(),
            link: made,
            attention,
            source: Mutex::new(Some(source.clone().unbind())),
            memories: Mutex::new(HashMap::from([(rkey, memory.unbind())])),
            transfer: Mutex::new(None),
            wait_ns: AtomicI64::new(-1),
            look_ns: AtomicI64::new(0),
            is_expecting: AtomicBool::new(false),
            is_closed: Arc::default(),
            has_watchers: AtomicBool::new(false),
        })
    }

    // -- connecting

    #[getter]
    fn connect_data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let data = *self.link.lock().core.connect_data();
        PyBytes::new(py, &data)
    }

    /// Take the private data of the peer; returns what is wrong with them.
    fn adopt(&self, data: &[u8]) -> Option<String> {
        let problem = self.change(|core| core.adopt(data).err());
        problem.map(|error| error.to_string())
    }

    /// Take words that came before the connect data, and begin to send.
    fn begin(&self, py: Python<'_>) -> PyResult<()> {
        self.link.lock().begin();
        self.finish(py)
    }

    // -- bytes, without waiting

    /// Take bytes to send; return how many.
    #[pyo3(signature = (data, may_zero_copy=true))]
    fn send_some(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        may_zero_copy: bool,
    ) -> PyResult<usize> {
        let given = Given::of(data)?;
        let taken = self.through(py, |machine, channels, number| {
            let content = given.content(0);
            link::send(
                machine,
                number,
                &self.link,
                &content,
                may_zero_copy,
                channels,
            )
        })?;
        given.release(py);
        taken.map_err(raised)
    }

    /// Write into buffers of the peer; return how many bytes were taken.
    fn write_some(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let taken = self.write(py, Given::of(data)?, offset)?;
        taken.map_err(raised)
    }

    fn take_some<'py>(
        &self,
        py: Python<'py>,
        bytes_max: usize,
        peek: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.take_bytes(py, bytes_max, peek)
    }

    fn take_some_into(
        &self,
        py: Python<'_>,
        view: &Bound<'_, PyAny>,
        peek: bool,
    ) -> PyResult<usize> {
        let buffer = Buffer::of(view)?;
        let taken = self.take_into(py, &buffer, (0, buffer.length()), peek);
        buffer.release(py);
        taken
    }

    /// Post what the stream has to send.
    fn post_pending(&self, py: Python<'_>) -> PyResult<()> {
        self.finish(py)
    }

    // -- in place

    fn expect(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, PyAny>,
        byte_count: usize,
    ) -> PyResult<usize> {
        let region = region_of(memory)?;
        let result = self.change(|core| core.expect(region, byte_count));
        let at =
            result.map_err(|_| PyRuntimeError::new_err("another receive is expected already"))?;
        self.finish(py)?;
        Ok(at)
    }

    fn end_expect(&self, py: Python<'_>) -> PyResult<usize> {
        let taken = self.change(StreamCore::end_expect);
        self.finish(py)?;
        deferred::drain(py);
        Ok(taken)
    }

    /// Take bytes in front of those that are expected, while looking finds some; return how many.
    fn take_ahead(&self, py: Python<'_>, view: &Bound<'_, PyAny>) -> PyResult<usize> {
        let buffer = Buffer::of(view)?;
        let taken = self.take_before_expected(py, &buffer);
        buffer.release(py);
        taken
    }

    /// Look for a moment whether all that is expected has come.
    fn look_filled(&self, py: Python<'_>) -> PyResult<bool> {
        let is_filled = self.attention.word() & FILLED != 0;
        Ok(is_filled || self.look(py, FILLED)?)
    }

    fn holds(&self, address: u64, length: usize) -> bool {
        self.link.lock().core.receive_ring.holds(address, length)
    }

    // -- mapped buffers

    fn map_buffer(
        &self,
        py: Python<'_>,
        address: u64,
        rkey: u32,
        length: u64,
        offset: i128,
    ) -> PyResult<()> {
        let mapped = Mapped {
            name: u64::from(rkey),
            address,
            rkey,
            length,
        };
        let result = self.link.lock().core.map_buffer(&mapped, Some(offset));
        result.map_err(raised)?;
        self.finish(py)
    }

    fn unmap(&self, py: Python<'_>, rkey: u32, address: u64) -> PyResult<()> {
        let result = self.link.lock().core.unmap(u64::from(rkey), address);
        result.map_err(raised)?;
        self.finish(py)
    }

    fn is_mapped(&self, offset: u64) -> bool {
        self.link.lock().core.iomap.is_mapped(offset)
    }

    // -- the end

    fn shut_down(&self, py: Python<'_>, how: u8) -> PyResult<()> {
        let how = match how {
            0 => Shut::Rd,
            1 => Shut::Wr,
            _ => Shut::RdWr,
        };
        self.change(|core| core.lifecycle.shut_down(how));
        self.finish(py)
    }

    fn handle_disconnected(&self, py: Python<'_>, reason: &str, error: i32) -> PyResult<()> {
        self.change(|core| core.handle_disconnected(reason, error));
        self.tend(py)
    }

    fn take_error(&self) -> i32 {
        self.change(|core| core.lifecycle.take_error())
    }

    /// Why the connection is to be cut, once.
    fn take_cut(&self) -> Option<String> {
        self.link.lock().cut.clone()
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.change(StreamCore::close);
        self.tend(py)?;
        let source = self.source.lock().take();
        let transfer = self.transfer.lock().take();
        let left: Vec<Py<PyAny>> = self.memories.lock().drain().map(|(_, one)| one).collect();
        if let Some(source) = &source {
            for memory in left {
                source.call_method1(py, intern!(py, "release"), (memory,))?;
            }
        }
        drop((source, transfer));
        Ok(())
    }

    // -- time and options

    fn poll_timeout(&self) -> Option<i64> {
        self.link.lock().core.poll_timeout()
    }

    fn handle_timeout(&self, py: Python<'_>, now_ns: i64) -> PyResult<()> {
        self.link.lock().core.handle_timeout(now_ns);
        self.finish(py)
    }

    #[pyo3(signature = (interval_ns, /))]
    fn set_keepalive(&self, interval_ns: Option<i64>) {
        self.link.lock().core.keepalive.set_interval(interval_ns);
    }

    fn set_no_delay(&self, no_delay: bool) {
        self.link.lock().core.sending.set_no_delay(no_delay);
    }

    // -- state

    /// Bits: readable, writable, ended, can read, can write, over, wants to disconnect, cut.
    #[getter]
    fn word(&self) -> u32 {
        self.attention.word()
    }

    fn listen(&self) {
        self.attention.listen();
    }

    fn leave(&self) {
        self.attention.leave();
    }

    #[getter]
    fn state(&self) -> &'static str {
        self.link.lock().core.lifecycle.state.name()
    }

    #[getter]
    fn reason(&self) -> String {
        self.link.lock().core.lifecycle.reason.clone()
    }

    #[getter]
    fn error(&self) -> i32 {
        self.link.lock().core.lifecycle.error
    }

    #[getter]
    fn is_connected(&self) -> bool {
        self.link.lock().core.lifecycle.is_connected
    }

    #[getter]
    fn is_urds_peer(&self) -> bool {
        self.link.lock().core.is_urds_peer
    }

    /// Readable, expected and missing, unsent bytes; whether a mapped write would take something.
    fn counts(&self) -> (usize, usize, usize, bool) {
        let link = self.link.lock();
        let core = &link.core;
        (
            core.receive_ring.readable_bytes(),
            core.receive_ring.expected_left(),
            core.unsent_bytes(),
            core.can_write_mapped(),
        )
    }

    #[getter]
    fn is_drained(&self) -> bool {
        self.link.lock().core.is_drained()
    }

    /// The fields of `StreamStats`, in their order.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.link.lock().core.stats.counts())
    }

    // -- methods of a socket

    /// Have `transfer` do what the placed methods leave.
    fn place(&self, transfer: Py<PyAny>, look_ns: i64) {
        let before = self.transfer.lock().replace(transfer);
        drop(before);
        self.look_ns.store(look_ns, Relaxed);
    }

    /// How long calls may wait, -1 for ever.
    fn set_wait_ns(&self, wait_ns: i64) {
        self.wait_ns.store(wait_ns, Relaxed);
    }

    fn set_expecting(&self, is_expecting: bool) {
        self.is_expecting.store(is_expecting, Relaxed);
    }

    /// End the waits of placed methods: the socket is closed.
    fn end_waits(&self) {
        self.is_closed.store(true, SeqCst);
        if let Some(waits) = &self.core.waits {
            waits.wake_all();
        }
    }

    fn set_watched(&self, is_watched: bool) {
        if self.has_watchers.swap(is_watched, Relaxed) == is_watched {
            return;
        }
        if is_watched {
            self.attention.listen();
        } else {
            self.attention.leave();
        }
    }

    #[pyo3(signature = (data, flags=0, /))]
    fn send<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        flags: i64,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self.send_now(py, data, flags)? {
            Sent::All(count) => Ok(count.into_pyobject(py)?.into_any()),
            Sent::Part(count) => self.leave_to(py, "send_rest_given", (data, count)),
            Sent::Nothing => self.leave_to(py, "send_given", (data, flags)),
        }
    }

    #[pyo3(signature = (data, flags=0, /))]
    fn sendall<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        flags: i64,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self.send_now(py, data, flags)? {
            Sent::All(_) => Ok(py.None().into_bound(py)),
            Sent::Part(count) => self.leave_to(py, "send_all_given", (data, flags, count)),
            Sent::Nothing => self.leave_to(py, "send_all_given", (data, flags, 0)),
        }
    }

    #[pyo3(signature = (data, offset, flags=0))]
    fn write_mapped<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        offset: &Bound<'py, PyAny>,
        flags: i64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut written = 0;
        if flags == 0
            && let Ok(from) = offset.extract::<u64>()
            && let Ok(given) = Given::of(data)
        {
            let length = given.length();
            written = self.write(py, given, from)?.unwrap_or(0);
            if written > 0 && written == length {
                return Ok(written.into_pyobject(py)?.into_any());
            }
        }
        self.leave_to(py, "write_mapped_given", (data, offset, flags, written))
    }

    #[pyo3(signature = (bytes_max, flags=0, /))]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        bytes_max: i64,
        flags: i64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let wanted = usize::try_from(bytes_max).unwrap_or(0);
        let mut until_ns = None;
        if flags == 0 && wanted > 0 {
            while !self.is_expecting.load(Relaxed) {
                let bytes = self.take_bytes(py, wanted, false)?;
                if !bytes.as_bytes().is_empty() {
                    self.tell(py)?;
                    return Ok(bytes.into_any());
                }
                if !self.may_take(py, &mut until_ns)? {
                    break;
                }
            }
        }
        self.leave_to(py, "receive_given", (bytes_max, flags))
    }

    #[pyo3(signature = (buffer, nbytes=0, flags=0))]
    fn recv_into<'py>(
        &self,
        py: Python<'py>,
        buffer: &Bound<'py, PyAny>,
        nbytes: i64,
        flags: i64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let is_whole = flags == WAITALL;
        let room = match Buffer::of(buffer) {
            Ok(room) if (flags == 0 || is_whole) && !room.is_readonly() => room,
            _ => return self.leave_to(py, "receive_into_given", (buffer, nbytes, flags, 0)),
        };
        let (mut taken, mut is_done) = (0, false);
        let wanted = match usize::try_from(nbytes) {
            Ok(0) => room.length(),
            Ok(wanted) if wanted <= room.length() => wanted,
            _ => 0, // Python says what is wrong
        };
        if wanted > 0 && !(is_whole && self.may_arrive_in_place(py, buffer, wanted)?) {
            (taken, is_done) = self.fill(py, &room, wanted, is_whole)?;
        }
        room.release(py);
        if is_done {
            self.tell(py)?;
            return Ok(taken.into_pyobject(py)?.into_any());
        }
        self.leave_to(py, "receive_into_given", (buffer, nbytes, flags, taken))
    }

    #[allow(clippy::needless_pass_by_value)] // as pyo3 calls it
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.qp)?;
        if let Some(source) = self.source.try_lock() {
            visit.call(&*source)?;
        }
        if let Some(transfer) = self.transfer.try_lock() {
            visit.call(&*transfer)?;
        }
        if let Some(memories) = self.memories.try_lock() {
            for memory in memories.values() {
                visit.call(memory)?;
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        let source = self.source.lock().take();
        let transfer = self.transfer.lock().take();
        let memories = std::mem::take(&mut *self.memories.lock());
        drop((source, transfer, memories));
    }
}
