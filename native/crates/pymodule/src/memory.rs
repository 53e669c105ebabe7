//! Memory of Python's in messages: what is sent by reference, what long messages are read into.

use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};
use urds_path::{Body, Memory, Payload};

use crate::grave::{Remains, bury};
use crate::sys::{BytesOctets, Export, NewBytes};

/// From so many octets on, a payload is kept by reference until it is acknowledged.
pub const REFERENCE_BYTES: usize = 8192;

/// A `bytes` object that is sent.
struct Sent(Option<BytesOctets>);

impl Memory for Sent {
    fn octets(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], BytesOctets::octets)
    }

    fn octets_mut(&mut self) -> &mut [u8] {
        &mut []
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        if let Some(octets) = self.0.take() {
            let length = octets.octets().len();
            bury(Remains::Object(octets.into_object().into_any()), length);
        }
    }
}

/// A buffer that is sent, held as long as it is exported.
struct SentExport(Option<Export>);

impl Memory for SentExport {
    fn octets(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], Export::octets)
    }

    fn octets_mut(&mut self) -> &mut [u8] {
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
            bury(Remains::Export(export), length);
        }
    }
}

/// Return the octets of plain `bytes` that are short enough to be copied.
#[inline]
pub fn short_octets<'a>(object: &'a Bound<'_, PyAny>) -> Option<&'a [u8]> {
    let octets = object.cast_exact::<PyBytes>().ok()?.as_bytes();
    (octets.len() < REFERENCE_BYTES).then_some(octets)
}

/// Return a payload that does not change: `bytes` and views of it as they are, else a copy.
///
/// Raises `TypeError` for what has no octets.
pub fn payload_of(object: &Bound<'_, PyAny>) -> PyResult<Payload> {
    if let Some(octets) = short_octets(object) {
        return Ok(Payload::copy_of(octets));
    }
    if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        let sent = Sent(Some(BytesOctets::of(bytes)));
        return Ok(Payload::Foreign(Arc::new(sent)));
    }
    if shows_bytes(object)? {
        return payload_referring_to(object);
    }
    payload_of_export(object, |_| false)
}

/// The same, but a long payload in one piece is the caller's own memory, whatever it is.
pub fn payload_referring_to(object: &Bound<'_, PyAny>) -> PyResult<Payload> {
    payload_of_export(object, |octets| octets >= REFERENCE_BYTES)
}

/// Tell whether an object is a view of `bytes`.
///
/// A view that is read-only may still be of memory that others write: only `bytes` never change.
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
    let payload = Payload::copy_of(export.octets());
    export.release(py);
    Ok(payload)
}

/// A `bytes` object that a long message is read into.
struct Received(Option<NewBytes>);

impl Memory for Received {
    fn octets(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], NewBytes::octets)
    }

    fn octets_mut(&mut self) -> &mut [u8] {
        self.0.as_mut().map_or(&mut [], NewBytes::octets_mut)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if let Some(bytes) = self.0.take() {
            let length = bytes.octets().len();
            bury(Remains::Object(bytes.into_object().into_any()), length);
        }
    }
}

thread_local! {
    static HELPS: Cell<bool> = const { Cell::new(false) };
}

/// Run `work` as the helper, which must never wait for the interpreter.
pub fn as_helper<R>(work: impl FnOnce() -> R) -> R {
    let before = HELPS.replace(true);
    let result = work();
    HELPS.set(before);
    result
}

/// Tell whether this thread is a helper at work.
pub fn is_helper() -> bool {
    HELPS.get()
}

/// Return memory for a long message, as an object of Python if the thread may wait for that.
///
/// The caller holds no lock of ours.
pub fn allocate(octets: usize) -> Body {
    if is_helper() {
        return Body::zeroed(octets);
    }
    let bytes = Python::try_attach(|py| NewBytes::to_be_filled(py, octets).ok()).flatten();
    match bytes {
        Some(bytes) => Body::Foreign(Box::new(Received(Some(bytes)))),
        None => Body::zeroed(octets),
    }
}

/// Return a received message as `bytes`; copied only if it lies in memory of ours.
pub fn bytes_of(py: Python<'_>, body: Body) -> Bound<'_, PyBytes> {
    match body {
        Body::Owned(octets) => PyBytes::new(py, &octets),
        Body::Foreign(memory) => match memory.into_any().downcast::<Received>() {
            Ok(mut received) => match received.0.take() {
                Some(bytes) => bytes.into_object().into_bound(py),
                None => PyBytes::new(py, &[]),
            },
            Err(_) => PyBytes::new(py, &[]), // no other kind is ever received into
        },
    }
}
