//! A shm stream to another process of this host, as Python holds it.
//!
//! Python connects to the other process and checks it; from then on a shm stream needs no Python.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use urds_dataplane::shm_stream::{ShmStream as RingStream, Side, memory_bytes};
use urds_dataplane::stream::Stream;
use urds_path::SocketAddress;

use crate::addresses;
use crate::errors::{self, EBADF, EINVAL};

const CLOSED: i32 = -1;
const READ_BYTES_MAX: usize = 1 << 20;
const SHUT_RD: i32 = 0;

/// See the stub.
#[pyclass(frozen, subclass, weakref, module = "urds_native")]
pub struct ShmStream {
    stream: Mutex<Option<Arc<RingStream>>>,
    /// Its value when the stream was closed.
    has_protocol_error: AtomicBool,
}

impl ShmStream {
    /// Return the stream, `None` once closed.
    pub fn stream(&self) -> Option<Arc<RingStream>> {
        self.stream.lock().clone()
    }

    fn open(&self) -> PyResult<Arc<RingStream>> {
        let stream = self.stream();
        stream.ok_or_else(|| errors::os_error(EBADF, ""))
    }
}

#[pymethods]
impl ShmStream {
    #[new]
    #[pyo3(signature = (line, memory, ring_bytes, dials, local, peer, /))]
    fn new(
        line: i32,
        memory: i32,
        ring_bytes: usize,
        dials: bool,
        local: (Vec<u8>, u32, u16),
        peer: (Vec<u8>, u32, u16),
    ) -> PyResult<Self> {
        let side = if dials { Side::Dials } else { Side::Accepts };
        let end = |(bytes, scope, port): (Vec<u8>, u32, u16)| {
            PyResult::Ok(SocketAddress::new(addresses::unpack(&bytes, scope)?, port))
        };
        let ends = (end(local)?, end(peer)?);
        let stream = RingStream::new(line, memory, ring_bytes, side, ends).map_err(refused)?;
        Ok(Self {
            stream: Mutex::new(Some(Arc::new(stream))),
            has_protocol_error: AtomicBool::new(false),
        })
    }

    #[staticmethod]
    #[pyo3(signature = (ring_bytes, /))]
    fn memory_bytes(ring_bytes: usize) -> usize {
        memory_bytes(ring_bytes)
    }

    #[getter]
    fn has_protocol_error(&self) -> bool {
        let now = self
            .stream()
            .is_some_and(|stream| stream.has_protocol_error());
        now || self.has_protocol_error.load(Ordering::Relaxed)
    }

    fn fileno(&self) -> i32 {
        self.stream().map_or(CLOSED, |stream| stream.descriptor())
    }

    fn waiting(&self) -> usize {
        self.stream().map_or(0, |stream| stream.waiting())
    }

    fn unacknowledged(&self) -> PyResult<u64> {
        Ok(self.open()?.unacknowledged()?)
    }

    #[pyo3(signature = (bytes_max, /))]
    fn recv<'py>(&self, py: Python<'py>, bytes_max: usize) -> PyResult<Bound<'py, PyBytes>> {
        let stream = self.open()?;
        let mut bytes = vec![0; bytes_max.min(READ_BYTES_MAX)];
        stream.hear();
        let taken = stream.read(&mut bytes, &mut [])?;
        Ok(PyBytes::new(py, &bytes[..taken]))
    }

    #[pyo3(signature = (buffers, ancillary=None, flags=0, /))]
    #[allow(clippy::needless_pass_by_value)] // as pyo3 gives it
    fn sendmsg(
        &self,
        buffers: Vec<Vec<u8>>,
        ancillary: Option<Bound<'_, PyAny>>,
        flags: i32,
    ) -> PyResult<usize> {
        let _ = (ancillary, flags); // a ring has neither rights nor signals
        let slices: Vec<_> = buffers.iter().map(|bytes| IoSlice::new(bytes)).collect();
        Ok(self.open()?.write(&slices)?)
    }

    #[pyo3(signature = (how, /))]
    fn shutdown(&self, how: i32) -> PyResult<()> {
        let stream = self.open()?;
        if how != SHUT_RD {
            stream.shutdown()?;
        }
        Ok(())
    }

    #[pyo3(signature = (bytes, /))]
    fn expect(&self, bytes: usize) {
        if let Some(stream) = self.stream() {
            stream.expect(bytes);
        }
    }

    fn rest_memory(&self) {
        if let Some(stream) = self.stream() {
            stream.rest_memory();
        }
    }

    fn end(&self) {
        if let Some(stream) = self.stream() {
            stream.end();
        }
    }

    fn close(&self) {
        let stream = self.stream.lock().take();
        if let Some(stream) = stream {
            let has_protocol_error = stream.has_protocol_error();
            self.has_protocol_error
                .fetch_or(has_protocol_error, Ordering::Relaxed);
            stream.end();
        }
    }
}

/// Memory rejected for its content has no errno of the system.
fn refused(failure: io::Error) -> PyErr {
    if failure.raw_os_error().is_some() {
        return failure.into();
    }
    PyOSError::new_err((EINVAL, failure.to_string()))
}
