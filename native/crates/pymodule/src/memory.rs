//! Python memory in messages: sent by reference, and received into.

use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};
use urds_path::constants::LONG_BYTES;
use urds_path::{ArrivingPayload, Body, Memory, Payload};

use crate::deferred::{Deferred, defer};
use crate::sys::{self, BytesBytes, Export, NewBytes};

/// From this length on, a payload is kept by reference until it is acknowledged.
pub const REFERENCE_BYTES: usize = 8192;

/// A `bytes` object that is sent, or that a transport of messages delivered.
struct PythonBytes(Option<BytesBytes>);

impl Memory for PythonBytes {
    fn bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], BytesBytes::bytes)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut []
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Drop for PythonBytes {
    fn drop(&mut self) {
        if let Some(bytes) = self.0.take() {
            let length = bytes.bytes().len();
            defer(Deferred::Object(bytes.into_object().into_any()), length);
        }
    }
}

/// A buffer that is sent, exported until it is released.
struct SentExport(Option<Export>);

impl Memory for SentExport {
    fn bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], Export::bytes)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut []
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Drop for SentExport {
    fn drop(&mut self) {
        if let Some(export) = self.0.take() {
            let length = export.length();
            defer(Deferred::Export(export), length);
        }
    }
}

/// Return the bytes of plain `bytes` that are short enough to be copied.
#[inline]
pub fn short_bytes<'a>(object: Borrowed<'a, '_, PyAny>) -> Option<&'a [u8]> {
    let bytes = sys::bytes_in(object.cast_exact::<PyBytes>().ok()?);
    (bytes.len() < REFERENCE_BYTES).then_some(bytes)
}

/// Return a payload that does not change: `bytes` and views of it as they are, else a copy.
///
/// Raises `TypeError` for an object without bytes.
pub fn payload_of(object: &Bound<'_, PyAny>) -> PyResult<Payload> {
    if let Some(bytes) = short_bytes(object.as_borrowed()) {
        return Ok(Payload::copy_of(bytes));
    }
    if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        let sent = PythonBytes(Some(BytesBytes::of(bytes)));
        return Ok(Payload::Foreign(Arc::new(sent)));
    }
    if shows_bytes(object)? {
        return payload_referring_to(object);
    }
    payload_of_export(object, |_| false)
}

/// The same, but a long payload in one piece is the caller's own memory, even if that may change.
pub fn payload_referring_to(object: &Bound<'_, PyAny>) -> PyResult<Payload> {
    payload_of_export(object, |bytes| bytes >= REFERENCE_BYTES)
}

/// Return whether an object is a view of `bytes`.
///
/// A read-only view may still be of memory that other code writes: only `bytes` never change.
fn shows_bytes(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Ok(view) = object.cast::<PyMemoryView>() else {
        return Ok(false);
    };
    Ok(view
        .getattr(intern!(view.py(), "obj"))?
        .is_instance_of::<PyBytes>())
}

fn payload_of_export(
    object: &Bound<'_, PyAny>,
    refers: impl FnOnce(usize) -> bool,
) -> PyResult<Payload> {
    let py = object.py();
    let mut export = Export::of(object)?;
    if !export.is_contiguous() {
        let gathered = export.gather(py);
        export.release(py);
        return Ok(Payload::Owned(gathered?.into()));
    }
    if refers(export.length()) {
        return Ok(Payload::Foreign(Arc::new(SentExport(Some(export)))));
    }
    let payload = Payload::copy_of(export.bytes());
    export.release(py);
    Ok(payload)
}

/// A `bytes` object that a long message is read into.
struct Received(Option<NewBytes>);

impl Memory for Received {
    fn bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], NewBytes::bytes)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_mut().map_or(&mut [], NewBytes::bytes_mut)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if let Some(bytes) = self.0.take() {
            let length = bytes.bytes().len();
            defer(Deferred::Object(bytes.into_object().into_any()), length);
        }
    }
}

/// Return a payload that a transport delivers; a long one is the very object that is taken later.
pub fn arriving<'a>(bytes: &'a Bound<'_, PyBytes>) -> ArrivingPayload<'a> {
    if bytes.as_bytes().len() < LONG_BYTES {
        return ArrivingPayload::Borrowed(bytes.as_bytes());
    }
    let delivered = PythonBytes(Some(BytesBytes::of(bytes)));
    ArrivingPayload::Whole(Body::Foreign(Box::new(delivered)))
}

thread_local! {
    static HELPS: Cell<bool> = const { Cell::new(false) };
}

/// Run `work` as the progress thread, which must never wait for the interpreter.
pub fn as_progress_thread<R>(work: impl FnOnce() -> R) -> R {
    let before = HELPS.replace(true);
    let result = work();
    HELPS.set(before);
    result
}

/// Return whether this thread is a progress thread at work.
pub fn is_progress_thread() -> bool {
    HELPS.get()
}

/// Return memory for a long message, as a Python object if the thread may wait for one.
///
/// The caller holds no lock of ours.
pub fn allocate(bytes: usize) -> Body {
    if is_progress_thread() {
        return Body::zeroed(bytes);
    }
    let object = Python::try_attach(|py| NewBytes::to_be_filled(py, bytes).ok()).flatten();
    match object {
        Some(object) => Body::Foreign(Box::new(Received(Some(object)))),
        None => Body::zeroed(bytes),
    }
}

/// Return a received message as `bytes`; copied only if it lies in memory of ours.
pub fn bytes_of(py: Python<'_>, body: Body) -> Bound<'_, PyBytes> {
    match body {
        Body::Owned(bytes) => PyBytes::new(py, &bytes),
        Body::Foreign(memory) => match memory.into_any().downcast::<Received>() {
            Ok(mut received) => match received.0.take() {
                Some(bytes) => bytes.into_object().into_bound(py),
                None => PyBytes::new(py, &[]),
            },
            Err(memory) => match memory.downcast::<PythonBytes>() {
                Ok(mut delivered) => match delivered.0.take() {
                    Some(bytes) => bytes.into_object().into_bound(py),
                    None => PyBytes::new(py, &[]),
                },
                Err(_) => PyBytes::new(py, &[]), // received messages have no other kind
            },
        },
    }
}
