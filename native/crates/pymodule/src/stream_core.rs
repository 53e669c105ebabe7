//! The stream core of rsockets as Python sees it: flat calls and plain values, to be compared with
//! `urds.rsocket.core.stream`.
//!
//! Tests alone call it. It is in each build nevertheless: behind a feature, they would compare another module
//! than the one that is installed.

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList};
use urds_stream::core::StreamCore as Machine;
use urds_stream::{
    Mapped, Post, PostKind, ProtocolError, Refused, Region, Shut, Source, StreamSettings,
};
use urds_verbs::memory::Memory as _;

use crate::deferred;
use crate::verbs::{Ram, stream_settings_of};

static REMOTE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static LOCAL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

impl Source for Ram {
    fn length(&self) -> usize {
        self.0.length()
    }

    fn copy_out(&self, at: usize, to: &mut [u8]) {
        self.0.read(at, to);
    }
}

fn region_of(memory: &Bound<'_, PyAny>, address: u64, rkey: u32) -> PyResult<Region<Ram>> {
    let memory = Ram::of(memory)?;
    let length = memory.length();
    Ok(Region {
        memory,
        address,
        rkey,
        length,
    })
}

fn made(py: Python<'_>, lock: &PyOnceLock<Py<PyAny>>, class: &str, text: &str) -> PyErr {
    let made = lock
        .import(py, "urds.common.errors", class)
        .and_then(|class| class.call1((text,)));
    made.map_or_else(|failure| failure, PyErr::from_value)
}

fn refused(error: Refused) -> PyErr {
    PyOSError::new_err((error.errno, error.detail))
}

fn remote(py: Python<'_>, error: &ProtocolError) -> PyErr {
    made(py, &REMOTE, "RemoteProtocolError", &error.0)
}

/// Read the settings of a stream to another of ours.
fn settings_of(given: &Bound<'_, PyAny>) -> PyResult<StreamSettings> {
    if !given.getattr("is_urds")?.extract::<bool>()? {
        return Err(PyValueError::new_err("librdmacm is emulated in Python"));
    }
    stream_settings_of(given)
}

fn kind_name(kind: PostKind) -> &'static str {
    match kind {
        PostKind::Data => "DATA",
        PostKind::Iomap => "IOMAP",
        PostKind::Direct => "DIRECT",
        PostKind::Credit => "CREDIT",
        PostKind::Control => "CONTROL",
        PostKind::Keepalive => "KEEPALIVE",
    }
}

/// Kind, bytes or range of a send, address, key, immediate data.
type PlainPost<'py> = (
    &'static str,
    Option<Bound<'py, PyBytes>>,
    (u64, usize, usize),
    u64,
    u32,
    Option<u32>,
);

fn plain<'py>(py: Python<'py>, post: &Post) -> PlainPost<'py> {
    let own = post.data.own_bytes().map(|bytes| PyBytes::new(py, bytes));
    let range = match post.data {
        urds_stream::Data::Caller { send, at, length } => (send, at, length),
        _ => (0, 0, 0),
    };
    (
        kind_name(post.kind),
        own,
        range,
        post.address,
        post.rkey,
        post.word,
    )
}

/// One side of a stream.
#[pyclass(module = "urds_native")]
pub struct StreamCore(Machine<Ram>);

#[pymethods]
impl StreamCore {
    #[new]
    fn new(
        settings: &Bound<'_, PyAny>,
        memory: &Bound<'_, PyAny>,
        address: u64,
        rkey: u32,
    ) -> PyResult<Self> {
        let settings = settings_of(settings)?;
        let region = region_of(memory, address, rkey)?;
        if region.length < settings.region_bytes() {
            return Err(PyValueError::new_err("less memory than region_bytes"));
        }
        Ok(Self(Machine::new(settings, region)))
    }

    #[staticmethod]
    fn region_bytes(settings: &Bound<'_, PyAny>) -> PyResult<usize> {
        Ok(settings_of(settings)?.region_bytes())
    }

    fn begin_at(&mut self, messages: u64) {
        self.0.begin_at(messages);
    }

    #[getter]
    fn connect_data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.connect_data())
    }

    fn adopt(&mut self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        self.0.adopt(data).map_err(|error| remote(py, &error))
    }

    fn send(&mut self, data: &Bound<'_, PyAny>, may_zero_copy: bool) -> PyResult<(usize, u64)> {
        let data = Ram::of(data)?;
        let taken = self.0.send(&data, may_zero_copy).map_err(refused)?;
        Ok((taken, self.0.sending.last_send()))
    }

    fn write_mapped(
        &mut self,
        data: &Bound<'_, PyAny>,
        offset: u64,
        may_zero_copy: bool,
    ) -> PyResult<(usize, u64)> {
        let data = Ram::of(data)?;
        let taken = self.0.write_mapped(&data, offset, may_zero_copy);
        Ok((taken.map_err(refused)?, self.0.sending.last_send()))
    }

    fn poll_transmit<'py>(&mut self, py: Python<'py>) -> Option<PlainPost<'py>> {
        self.0.poll_transmit().map(|post| plain(py, &post))
    }

    fn handle_posted(&mut self) {
        self.0.handle_posted();
    }

    fn handle_sent(&mut self) {
        self.0.handle_sent();
    }

    fn handle_disconnected(&mut self, reason: &str, error: i32) {
        self.0.handle_disconnected(reason, error);
    }

    fn receive_data(&mut self, py: Python<'_>, word: u32) -> PyResult<()> {
        let taken = self.0.receive_data(word);
        deferred::drain(py);
        taken.map_err(|error| remote(py, &error))
    }

    fn receive<'py>(&mut self, py: Python<'py>, wanted: usize, peek: bool) -> Bound<'py, PyBytes> {
        let wanted = wanted.min(self.0.receive_ring.available());
        let mut out = Vec::with_capacity(wanted);
        let mut take = |memory: &Ram, at: usize, length: usize| {
            memory.0.append_to(at, length, &mut out);
        };
        self.0.receive_into(wanted, peek, &mut take);
        deferred::drain(py);
        PyBytes::new(py, &out)
    }

    #[getter]
    fn wanted_ring(&self) -> Option<usize> {
        self.0.wanted_ring()
    }

    fn grow(&mut self, memory: &Bound<'_, PyAny>, address: u64, rkey: u32) -> PyResult<()> {
        self.0.grow(region_of(memory, address, rkey)?);
        deferred::drain(memory.py());
        Ok(())
    }

    fn refuse_growth(&mut self) {
        self.0.refuse_growth();
    }

    /// Address and key of memory that is released, in order.
    fn take_released(&mut self, py: Python<'_>) -> Vec<(u64, u32)> {
        let mut taken = Vec::new();
        while let Some(region) = self.0.take_released() {
            taken.push((region.address, region.rkey));
        }
        deferred::drain(py);
        taken
    }

    fn expect(
        &mut self,
        memory: &Bound<'_, PyAny>,
        address: u64,
        rkey: u32,
        byte_count: usize,
    ) -> PyResult<usize> {
        let region = region_of(memory, address, rkey)?;
        self.0.expect(region, byte_count).map_err(|_| {
            let text = "another receive is expected already";
            made(memory.py(), &LOCAL, "LocalProtocolError", text)
        })
    }

    fn end_expect(&mut self, py: Python<'_>) -> usize {
        let landed = self.0.end_expect();
        deferred::drain(py);
        landed
    }

    fn holds(&self, address: u64, length: usize) -> bool {
        self.0.receive_ring.holds(address, length)
    }

    #[pyo3(signature = (name, address, rkey, length, offset))]
    fn map_buffer(
        &mut self,
        name: u64,
        address: u64,
        rkey: u32,
        length: u64,
        offset: Option<i128>,
    ) -> PyResult<i128> {
        let buffer = Mapped {
            name,
            address,
            rkey,
            length,
        };
        self.0.map_buffer(&buffer, offset).map_err(refused)
    }

    fn unmap(&mut self, name: u64, address: u64) -> PyResult<()> {
        self.0.unmap(name, address).map_err(refused)
    }

    fn is_mapped(&self, offset: u64) -> bool {
        self.0.iomap.is_mapped(offset)
    }

    fn shut_down(&mut self, how: u8) {
        self.0.lifecycle.shut_down(match how {
            0 => Shut::Rd,
            1 => Shut::Wr,
            _ => Shut::RdWr,
        });
    }

    fn take_error(&mut self) -> i32 {
        self.0.lifecycle.take_error()
    }

    #[pyo3(signature = (interval_ns))]
    fn set_keepalive(&mut self, interval_ns: Option<i64>) {
        self.0.keepalive.set_interval(interval_ns);
    }

    fn set_no_delay(&mut self, no_delay: bool) {
        self.0.sending.set_no_delay(no_delay);
    }

    fn poll_timeout(&self) -> Option<i64> {
        self.0.poll_timeout()
    }

    fn handle_timeout(&mut self, now_ns: i64) {
        self.0.handle_timeout(now_ns);
    }

    fn close(&mut self, py: Python<'_>) {
        self.0.close();
        deferred::drain(py);
    }

    /// All that can be seen of the stream, by the names of Python's core.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let core = &self.0;
        let values = PyDict::new(py);
        let flags: [(&str, bool); 15] = [
            ("is_urds_peer", core.is_urds_peer),
            ("is_writable", core.is_writable()),
            ("is_readable", core.is_readable()),
            ("is_ended", core.is_ended()),
            ("can_write_mapped", core.can_write_mapped()),
            ("is_drained", core.is_drained()),
            ("wants_disconnect", core.wants_disconnect()),
            ("lifecycle.is_connected", core.lifecycle.is_connected),
            ("lifecycle.is_sending", core.lifecycle.is_sending),
            ("lifecycle.can_read", core.lifecycle.can_read),
            ("lifecycle.can_write", core.lifecycle.can_write),
            ("sending.can_post", core.sending.can_post()),
            ("sending.can_zero_copy", core.sending.can_zero_copy()),
            ("sending.is_idle", core.sending.is_idle()),
            ("receive_ring.is_stopped", core.receive_ring.is_stopped),
        ];
        for (name, value) in flags {
            values.set_item(name, value)?;
        }
        let (ring_bytes, step, unfilled_bytes) = core.receive_ring.sizes();
        let counts: [(&str, usize); 13] = [
            ("unsent_bytes", core.unsent_bytes()),
            ("sending.pending_bytes", core.sending.pending_bytes),
            ("sending.buffered_bytes", core.sending.buffered_bytes),
            ("sending.zero_copy_bytes", core.sending.zero_copy_bytes),
            ("sending.credits", core.sending.credits as usize),
            ("sending.data_slots", core.sending.data_slots),
            ("sending.control_slots", core.sending.control_slots),
            ("sending.room", core.sending.room()),
            (
                "receive_ring.readable_bytes",
                core.receive_ring.readable_bytes(),
            ),
            (
                "receive_ring.expected_left",
                core.receive_ring.expected_left(),
            ),
            ("ring_bytes", ring_bytes),
            ("ring_step", step),
            ("unfilled_bytes", unfilled_bytes),
        ];
        for (name, value) in counts {
            values.set_item(name, value)?;
        }
        values.set_item("lifecycle.state", core.lifecycle.state.name())?;
        values.set_item("lifecycle.error", core.lifecycle.error)?;
        values.set_item("lifecycle.reason", &core.lifecycle.reason)?;
        Ok(values)
    }

    /// Counters, in the order of `StreamStats` of Python.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.0.stats.counts())
    }
}
