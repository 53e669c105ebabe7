//! Streams that belong to Python objects.
//!
//! The plane uses the descriptor of a plain TCP socket: reading and writing need no Python, and
//! once it is done the object is closed with the interpreter held (`deferred`). For any other
//! object every call is a call of Python, for which the interpreter is taken.

use std::any::Any;
use std::io::{self, IoSlice};
use std::os::fd::RawFd;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::{PyBlockingIOError, PyOSError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use urds_dataplane::shm_stream::ShmStream as RingStream;
use urds_dataplane::stream::{Stream, TcpStream};
use urds_path::SocketAddress;

use crate::deferred::{Deferred, defer};
use crate::errors::{self, EBADF};
use crate::ffi::{call, raise_later};
use crate::shm_stream::ShmStream;
use crate::sys::Unowned;

/// The owner of a stream; dropping this has it closed, unless it was taken back before.
struct Owner(Mutex<Option<Py<PyAny>>>);

impl Owner {
    fn new(object: Py<PyAny>) -> Self {
        Self(Mutex::new(Some(object)))
    }

    fn is_taken(&self) -> bool {
        self.0.lock().is_none()
    }

    fn take(&self) -> Option<Py<PyAny>> {
        self.0.lock().take()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(object) = self.take() {
            defer(Deferred::Stream(object), 0);
        }
    }
}

/// Any object that is a `contract.Stream`.
pub struct ObjectStream {
    object: Py<PyAny>,
    descriptor: RawFd,
    owner: Owner,
}

/// A stream that needs no Python to be read and written, and the object that it is of.
pub struct PlainStream<S: Plain> {
    source: S,
    owner: Owner,
}

/// What such a stream is made of.
pub trait Plain: Send + Sync + 'static {
    type Stream: Stream;

    fn stream(&self) -> &Self::Stream;

    /// Its object was not taken back: end what need not wait for the interpreter.
    fn end(&self) {}
}

/// The descriptor of a TCP socket.
impl Plain for Unowned<TcpStream> {
    type Stream = TcpStream;

    fn stream(&self) -> &TcpStream {
        self.get()
    }
}

/// A shm stream; its descriptors end with its last user.
impl Plain for Arc<RingStream> {
    type Stream = RingStream;

    fn stream(&self) -> &RingStream {
        self
    }

    fn end(&self) {
        RingStream::end(self); // at once: the peer need not wait for the interpreter
    }
}

impl<S: Plain> Drop for PlainStream<S> {
    fn drop(&mut self) {
        if !self.owner.is_taken() {
            self.source.end();
        }
    }
}

/// Make a stream of an object; `descriptor` is that of a plain TCP socket, else -1.
///
/// Raises `OSError` for a shm stream that is closed, and the errors of another object's `fileno`.
pub fn stream_of(object: &Bound<'_, PyAny>, descriptor: RawFd) -> PyResult<Arc<dyn Stream>> {
    let owner = Owner::new(object.clone().unbind());
    if let Ok(given) = object.cast::<ShmStream>() {
        return match given.get().stream() {
            Some(source) => Ok(Arc::new(PlainStream { source, owner })),
            None => Err(errors::os_error(EBADF, "")),
        };
    }
    if descriptor >= 0 {
        let source = Unowned::new(descriptor, TcpStream::new, TcpStream::into_descriptor);
        return Ok(Arc::new(PlainStream { source, owner }));
    }
    let descriptor = match call(object, "fileno").and_then(|it| it.extract()) {
        Ok(descriptor) => descriptor,
        Err(failure) => {
            owner.take(); // still the caller's, as after every other error below
            return Err(failure);
        }
    };
    Ok(Arc::new(ObjectStream {
        object: object.clone().unbind(),
        descriptor,
        owner,
    }))
}

/// Return the object of a stream made here; dropping the stream no longer closes it.
pub fn object_of(stream: &dyn Stream) -> Option<Py<PyAny>> {
    let stream = stream.as_any();
    if let Some(given) = stream.downcast_ref::<PlainStream<Unowned<TcpStream>>>() {
        return given.owner.take();
    }
    if let Some(given) = stream.downcast_ref::<PlainStream<Arc<RingStream>>>() {
        return given.owner.take();
    }
    stream
        .downcast_ref::<ObjectStream>()
        .and_then(|object| object.owner.take())
}

impl<S: Plain> Stream for PlainStream<S> {
    fn descriptor(&self) -> RawFd {
        self.source.stream().descriptor()
    }

    fn read(&self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        self.source.stream().read(first, second)
    }

    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.source.stream().write(slices)
    }

    fn shutdown(&self) -> io::Result<()> {
        self.source.stream().shutdown()
    }

    fn expect(&self, bytes: usize) {
        self.source.stream().expect(bytes);
    }

    fn waiting(&self) -> usize {
        self.source.stream().waiting()
    }

    fn has_come(&self, bytes: usize) -> bool {
        self.source.stream().has_come(bytes)
    }

    fn unacknowledged(&self) -> io::Result<u64> {
        self.source.stream().unacknowledged()
    }

    fn rings(&self) -> bool {
        self.source.stream().rings()
    }

    fn hear(&self) {
        self.source.stream().hear();
    }

    fn rest(&self) -> bool {
        self.source.stream().rest()
    }

    fn wake(&self) {
        self.source.stream().wake();
    }

    fn has_news(&self) -> bool {
        self.source.stream().has_news()
    }

    fn has_room(&self) -> bool {
        self.source.stream().has_room()
    }

    fn carrier(&self) -> &'static str {
        self.source.stream().carrier()
    }

    fn addresses(&self) -> Option<(SocketAddress, SocketAddress)> {
        self.source.stream().addresses()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

const MSG_NOSIGNAL: i32 = 0x4000; // a Python object may be a socket
const READ_BYTES_MAX: usize = 1 << 20;
const SHUT_WR: i32 = 1;

impl ObjectStream {
    fn ask<T>(
        &self,
        call: impl for<'py> FnOnce(&Bound<'py, PyAny>) -> PyResult<T>,
    ) -> io::Result<T> {
        let ended = || io::Error::from(io::ErrorKind::NotConnected);
        Python::try_attach(|py| {
            let object = self.object.bind(py);
            call(object).map_err(|error| io_error(py, error))
        })
        .unwrap_or_else(|| Err(ended()))
    }
}

/// Return an exception as the error of a system call.
fn io_error(py: Python<'_>, error: PyErr) -> io::Error {
    if error.is_instance_of::<PyBlockingIOError>(py) {
        return io::ErrorKind::WouldBlock.into();
    }
    if error.is_instance_of::<PyOSError>(py) {
        let number = error
            .value(py)
            .getattr("errno")
            .and_then(|number| number.extract::<i32>());
        if let Ok(number) = number {
            return io::Error::from_raw_os_error(number);
        }
    }
    raise_later(error); // such as an interrupt: how much the stream took or gave is not known
    io::ErrorKind::Other.into()
}

impl Stream for ObjectStream {
    fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    fn read(&self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        let bytes_max = (first.len() + second.len()).min(READ_BYTES_MAX);
        self.ask(|object| {
            let read = object.call_method1("recv", (bytes_max,))?;
            let bytes = read.cast::<PyBytes>()?.as_bytes();
            let (start, rest) = bytes.split_at(bytes.len().min(first.len()));
            first[..start.len()].copy_from_slice(start);
            second[..rest.len()].copy_from_slice(rest);
            Ok(bytes.len())
        })
    }

    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.ask(|object| {
            let pieces = slices.iter().map(|slice| PyBytes::new(object.py(), slice));
            let pieces = PyList::new(object.py(), pieces.collect::<Vec<_>>())?;
            let no_ancillary = PyTuple::empty(object.py());
            object
                .call_method1("sendmsg", (pieces, no_ancillary, MSG_NOSIGNAL))?
                .extract()
        })
    }

    fn shutdown(&self) -> io::Result<()> {
        self.ask(|object| object.call_method1("shutdown", (SHUT_WR,)).map(drop))
    }

    fn expect(&self, bytes: usize) {
        drop(self.ask(|object| object.call_method1("expect", (bytes,)).map(drop)));
    }

    fn waiting(&self) -> usize {
        self.ask(|object| call(object, "waiting")?.extract())
            .unwrap_or(0)
    }

    fn unacknowledged(&self) -> io::Result<u64> {
        self.ask(|object| call(object, "unacknowledged")?.extract())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
