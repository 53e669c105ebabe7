//! Python buffers as memory of the engine.

use std::sync::atomic::AtomicU8;

use pyo3::prelude::*;
use urds_verbs::memory::Memory;

use crate::deferred::{Deferred, defer};
use crate::errors::{EINVAL, os_error};
use crate::sys::Export;

/// A contiguous buffer, exported until the engine is done with it.
pub struct Buffer(Option<Export>);

impl Buffer {
    /// Export an object's bytes. Raises `TypeError` without any, `OSError` if not contiguous.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let export = Export::of(object)?;
        if export.is_contiguous() {
            return Ok(Self(Some(export)));
        }
        export.release(object.py());
        Err(os_error(EINVAL, "memory that is not in one piece"))
    }

    fn export(&self) -> &Export {
        self.0.as_ref().expect("released by drop only")
    }

    /// Release it at once, where nothing of the engine has it and no lock is held: may run Python code.
    pub fn release(mut self, py: Python<'_>) {
        if let Some(export) = self.0.take() {
            export.release(py);
        }
    }

    pub fn length(&self) -> usize {
        self.export().length()
    }

    pub fn is_readonly(&self) -> bool {
        self.export().is_readonly()
    }

    /// Copy bytes of another buffer in, at once.
    pub fn copy_from(&self, at: usize, from: &Self, from_at: usize, length: usize) {
        self.export().copy_from(at, from.export(), from_at, length);
    }
}

impl Memory for Buffer {
    fn read(&self, at: usize, to: &mut [u8]) {
        self.export().copy_out(at, to);
    }

    fn write(&self, at: usize, from: &[u8]) {
        self.export().copy_in(at, from);
    }

    fn copy_to(&self, at: usize, to: &[AtomicU8]) {
        self.export().copy_to(at, to);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Under the engine's lock as well: releasing may run Python code.
        if let Some(export) = self.0.take() {
            let length = export.length();
            defer(Deferred::Export(export), length);
        }
    }
}
