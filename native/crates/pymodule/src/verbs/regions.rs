//! Registered memory and memory windows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use parking_lot::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::verbs::engine::Core;
use crate::verbs::memory::Buffer;
use crate::verbs::values::tables;

/// What a region is now; a new registration changes it.
pub struct Extent {
    pub pd: Py<PyAny>,
    pub memory: Option<Arc<Buffer>>,
    /// The memory as Python gave it; empty once it is gone.
    pub view: Py<PyAny>,
    pub address: u64,
    pub access: i64,
}

/// See `urds.verbs.engine.keys.Region` and the stub.
#[pyclass(frozen, weakref, module = "urds_native")]
pub struct Region {
    pub id: u64,
    pub key: AtomicU32,
    pub extent: Mutex<Extent>,
    /// A provider's own.
    pub tag: Mutex<Py<PyAny>>,
    pub core: Arc<Core>,
}

#[pymethods]
impl Region {
    #[getter]
    fn lkey(&self) -> u32 {
        self.key.load(Relaxed)
    }

    #[getter]
    fn rkey(&self) -> u32 {
        self.key.load(Relaxed)
    }

    #[getter]
    fn address(&self) -> u64 {
        self.extent.lock().address
    }

    #[getter]
    fn length(&self) -> usize {
        let extent = self.extent.lock();
        extent.memory.as_ref().map_or(0, |memory| memory.length())
    }

    #[getter]
    fn view(&self, py: Python<'_>) -> Py<PyAny> {
        self.extent.lock().view.clone_ref(py)
    }

    #[getter]
    fn pd(&self, py: Python<'_>) -> Py<PyAny> {
        self.extent.lock().pd.clone_ref(py)
    }

    #[getter]
    fn access(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let bits = self.extent.lock().access;
        Ok(tables(py)?.access_flag.bind(py).call1((bits,))?.unbind())
    }

    #[getter]
    fn windows(&self, py: Python<'_>) -> PyResult<u32> {
        let (id, key) = (self.id, self.key.load(Relaxed));
        self.core.call(py, |engine| {
            let found = engine
                .shared
                .keys
                .region(key)
                .filter(|region| region.id == id);
            found.map_or(0, |region| region.windows)
        })
    }

    #[getter]
    fn tag(&self, py: Python<'_>) -> Py<PyAny> {
        self.tag.lock().clone_ref(py)
    }

    #[setter]
    fn set_tag(&self, tag: Py<PyAny>) {
        let before = std::mem::replace(&mut *self.tag.lock(), tag);
        drop(before);
    }

    #[allow(clippy::needless_pass_by_value)] // as pyo3 calls it
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some(extent) = self.extent.try_lock() {
            visit.call(&extent.pd)?;
            visit.call(&extent.view)?;
        }
        if let Some(tag) = self.tag.try_lock() {
            visit.call(&*tag)?;
        }
        Ok(())
    }
}

/// See `urds.verbs.engine.keys.MemoryWindow` and the stub.
#[pyclass(frozen, weakref, module = "urds_native")]
pub struct MemoryWindow {
    pub id: u64,
    #[pyo3(get)]
    pub kind: u8,
    #[pyo3(get)]
    pub pd: Py<PyAny>,
    /// The last key, once it is freed.
    pub last_key: AtomicU32,
    pub is_free: AtomicBool,
    pub core: Arc<Core>,
}

#[pymethods]
impl MemoryWindow {
    #[getter]
    fn rkey(&self, py: Python<'_>) -> PyResult<u32> {
        let id = self.id;
        let found = self.core.call(py, |engine| {
            engine.shared.keys.window(id).map(|window| window.rkey)
        })?;
        Ok(found.unwrap_or_else(|| self.last_key.load(Relaxed)))
    }

    /// The region that it is bound to; `None` unbound.
    #[getter]
    fn region(&self, py: Python<'_>) -> PyResult<Option<Py<Region>>> {
        let id = self.id;
        let key = self.core.call(py, |engine| {
            engine
                .shared
                .keys
                .window(id)
                .and_then(|window| window.region)
        })?;
        Ok(key.and_then(|key| self.core.region(py, key)))
    }

    #[allow(clippy::needless_pass_by_value)] // as pyo3 calls it
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.pd)
    }
}
