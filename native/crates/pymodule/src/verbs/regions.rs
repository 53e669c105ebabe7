//! Registered memory and memory windows, and where their keys come from.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use parking_lot::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};
use urds_channel::sys::{Errno, random};
use urds_verbs::errors::Rejected;
use urds_verbs::keys::{Draw, Registration};
use urds_verbs::numbers::KNOWN_ACCESS;

use crate::deferred;
use crate::verbs::engine::Core;
use crate::verbs::memory::Buffer;
use crate::verbs::values::{domain_of, integer, refused, tables, wide};

/// Random numbers of one system call.
const DRAWN_MAX: usize = 32;

/// Handles of regions by key and of windows by number, which are there until they are taken back.
#[derive(Default)]
pub struct Registered {
    regions: Mutex<HashMap<u32, Py<Region>>>,
    windows: Mutex<HashMap<u64, Py<MemoryWindow>>>,
}

impl Registered {
    /// Return the region of a key.
    pub fn region(&self, py: Python<'_>, key: u32) -> Option<Py<Region>> {
        let regions = self.regions.lock();
        regions.get(&key).map(|region| region.clone_ref(py))
    }

    /// Let go of all handles, whose engine is gone.
    pub fn forget_all(&self) {
        let regions = std::mem::take(&mut *self.regions.lock());
        let windows = std::mem::take(&mut *self.windows.lock());
        drop((regions, windows));
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some(regions) = self.regions.try_lock() {
            for region in regions.values() {
                visit.call(region)?;
            }
        }
        if let Some(windows) = self.windows.try_lock() {
            for window in windows.values() {
                visit.call(window)?;
            }
        }
        Ok(())
    }
}

/// What a region is now; a new registration changes it.
pub struct Extent {
    pub pd: Py<PyAny>,
    pub memory: Option<Arc<Buffer>>,
    /// The memory as Python gave it; empty once it is gone.
    pub view: Py<PyAny>,
    pub address: u64,
    pub access: i64,
}

impl Extent {
    /// Of a registration that was accepted: the address fits, and hints are no access.
    pub fn new(
        pd: Py<PyAny>,
        memory: Arc<Buffer>,
        view: Py<PyAny>,
        address: i128,
        access: i64,
    ) -> Self {
        Self {
            pd,
            memory: Some(memory),
            view,
            address: u64::try_from(address).unwrap_or(0),
            access: access & i64::from(KNOWN_ACCESS),
        }
    }
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

impl Region {
    /// Register memory: its address and access.
    pub fn register<'py>(
        core: &Arc<Core>,
        pd: &Bound<'py, PyAny>,
        memory: &Bound<'py, PyAny>,
        (address, access): (&Bound<'py, PyAny>, &Bound<'py, PyAny>),
        key: Option<i64>,
    ) -> PyResult<Bound<'py, Self>> {
        let py = pd.py();
        let view = bytes_view(memory)?;
        let buffer = Arc::new(Buffer::of(&view)?);
        let (address, access) = (wide(address)?, integer(access)?);
        let registration = registration_of(&buffer, address, access);
        let domain = domain_of(pd)?.own;
        let (id, key) = core.attempt(py, |machine| {
            machine.shared.keys.register(domain, registration, key)
        })?;
        let extent = Extent::new(pd.clone().unbind(), buffer, view.unbind(), address, access);
        let region = Self {
            id,
            key: AtomicU32::new(key),
            extent: Mutex::new(extent),
            tag: Mutex::new(py.None()),
            core: Arc::clone(core),
        };
        let region = Bound::new(py, region)?;
        let kept = region.clone().unbind();
        core.registered.regions.lock().insert(key, kept);
        Ok(region)
    }

    /// Change what is given, and the keys if memory or address is.
    pub fn reregister(
        &self,
        py: Python<'_>,
        pd: Option<&Bound<'_, PyAny>>,
        view: Option<&Bound<'_, PyAny>>,
        (address, access): (Option<&Bound<'_, PyAny>>, Option<&Bound<'_, PyAny>>),
    ) -> PyResult<()> {
        let (id, key) = (self.id, self.key.load(Relaxed));
        let keeps_keys = view.is_none() && address.is_none();
        let (old_memory, old_address, old_access) = {
            let extent = self.extent.lock();
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
        let domain = pd.map(domain_of).transpose()?.map(|domain| domain.own);
        let new_key = self.core.attempt(py, |machine| {
            let keys = &mut machine.shared.keys;
            keys.reregister(id, key, domain, registration, keeps_keys)
        })?;
        let before = {
            let mut extent = self.extent.lock();
            let pd = pd.map_or_else(|| extent.pd.clone_ref(py), |pd| pd.clone().unbind());
            let view = view.map_or_else(|| extent.view.clone_ref(py), Bound::unbind);
            let changed = Extent::new(pd, buffer, view, address, access);
            std::mem::replace(&mut *extent, changed)
        };
        self.key.store(new_key, Relaxed);
        {
            let mut regions = self.core.registered.regions.lock();
            if let Some(kept) = regions.remove(&key) {
                regions.insert(new_key, kept);
            }
        }
        drop(before);
        deferred::drain(py);
        Ok(())
    }

    /// Give the memory back; `unbind` ends windows on it before.
    pub fn deregister(&self, py: Python<'_>, unbind: bool) -> PyResult<()> {
        let (id, key) = (self.id, self.key.load(Relaxed));
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
            let mut extent = self.extent.lock();
            let view = std::mem::replace(&mut extent.view, empty);
            (extent.memory.take(), view)
        };
        let kept = self.core.registered.regions.lock().remove(&key);
        drop((memory, view, kept));
        deferred::drain(py);
        Ok(())
    }
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
        self.core.call(py, |machine| {
            let found = machine.shared.keys.region(key);
            let found = found.filter(|region| region.id == id);
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

impl MemoryWindow {
    /// Make a window of a kind.
    pub fn make<'py>(
        core: &Arc<Core>,
        pd: &Bound<'py, PyAny>,
        kind: i64,
    ) -> PyResult<Bound<'py, Self>> {
        let py = pd.py();
        let domain = domain_of(pd)?.own;
        let id = core.attempt(py, |machine| machine.shared.keys.new_window(domain, kind))?;
        let window = Self {
            id,
            kind: u8::try_from(kind).unwrap_or(0), // checked
            pd: pd.clone().unbind(),
            last_key: AtomicU32::new(0),
            is_free: AtomicBool::new(false),
            core: Arc::clone(core),
        };
        let window = Bound::new(py, window)?;
        let kept = window.clone().unbind();
        core.registered.windows.lock().insert(id, kept);
        Ok(window)
    }

    pub fn free(&self, py: Python<'_>) -> PyResult<()> {
        let id = self.id;
        let last_key = self.core.call(py, |machine| {
            let keys = &mut machine.shared.keys;
            let key = keys.window(id).map(|window| window.rkey);
            keys.free(id);
            key
        })?;
        if let Some(key) = last_key {
            self.last_key.store(key, Relaxed);
        }
        self.is_free.store(true, Relaxed);
        let kept = self.core.registered.windows.lock().remove(&id);
        drop(kept);
        Ok(())
    }
}

#[pymethods]
impl MemoryWindow {
    #[getter]
    fn rkey(&self, py: Python<'_>) -> PyResult<u32> {
        let id = self.id;
        let found = self.core.call(py, |machine| {
            machine.shared.keys.window(id).map(|window| window.rkey)
        })?;
        Ok(found.unwrap_or_else(|| self.last_key.load(Relaxed)))
    }

    /// The region that it is bound to; `None` unbound.
    #[getter]
    fn region(&self, py: Python<'_>) -> PyResult<Option<Py<Region>>> {
        let id = self.id;
        let key = self.core.call(py, |machine| {
            let window = machine.shared.keys.window(id);
            window.and_then(|window| window.region)
        })?;
        Ok(key.and_then(|key| self.core.registered.region(py, key)))
    }

    #[allow(clippy::needless_pass_by_value)] // as pyo3 calls it
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.pd)
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

// -- keys

/// Return draws for keys, of the system's random bytes: who has seen some foresees no other.
pub fn random_keys() -> Result<Draw, Rejected> {
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
