//! The plane of a process, as Python holds it.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use urds_dataplane::clock::ClockFn;
use urds_dataplane::events::Interest;
use urds_dataplane::plane::Plane as Shell;
use urds_dataplane::state::{MailboxId, PathId};
use urds_path::Received;

use crate::events::event_tuple;
use crate::gil::{Claim, GilUse};
use crate::mailbox::Mailbox;
use crate::path::{Path, ReceivedTuple};
use crate::{addresses, attached, deferred, errors, ffi, gil, memory, snapshots, values};

/// A Python clock. It is read at the start of each call, while no lock of ours is held; that value
/// is the time for the whole call.
struct Clock {
    ask: Py<PyAny>,
    now_ns: Arc<AtomicU64>,
}

/// An address as Python takes it: its bytes and its scope.
type PackedAddress<'py> = (Bound<'py, PyBytes>, u32);

/// The objects of paths, for events, which refer to the very object that was made.
#[derive(Default)]
struct Paths {
    known: HashMap<PathId, Py<Path>>,
    /// Closed ones; an event reported before may still refer to them.
    closed: Vec<PathId>,
}

/// See `contract.Plane` and the stub.
#[pyclass(frozen, subclass, weakref, module = "urds_native")]
pub struct Plane {
    pub(crate) shell: Arc<Shell>,
    resolve: Mutex<Option<Py<PyAny>>>,
    clock: Option<Clock>,
    paths: Mutex<Paths>,
    gil: GilUse,
}

impl Plane {
    /// Begin a call: read the clock, if it is the caller's, and run deferred releases.
    pub(crate) fn enter(&self, py: Python<'_>) -> PyResult<&Arc<Shell>> {
        deferred::drain(py);
        if let Some(clock) = &self.clock {
            clock
                .now_ns
                .store(clock.ask.call0(py)?.extract(py)?, Relaxed);
        }
        Ok(&self.shell)
    }

    /// Yield the interpreter to the control thread, if it may want it; see `gil`.
    #[inline]
    pub(crate) fn give_way(&self, py: Python<'_>) {
        if self.clock.is_none() {
            self.gil.give_way(py, &self.shell);
        }
    }

    /// Return the state of the interpreter lock's use.
    pub(crate) fn gil(&self) -> &GilUse {
        &self.gil
    }

    /// Make one call of the shell with the interpreter held: one that never waits, nor writes much.
    pub(crate) fn call<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Arc<Shell>) -> T,
    ) -> PyResult<T> {
        let shell = self.enter(py)?;
        let result = catch_unwind(AssertUnwindSafe(|| work(shell)));
        ffi::leave(py)?;
        result.map_err(|_| self.break_off(py))
    }

    /// Make a call for a transport of messages, whose locks may be held: it runs no Python code but
    /// the caller's clock.
    pub(crate) fn call_inside<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Arc<Shell>) -> T,
    ) -> PyResult<T> {
        if let Some(clock) = &self.clock {
            clock
                .now_ns
                .store(clock.ask.call0(py)?.extract(py)?, Relaxed);
        }
        let result = catch_unwind(AssertUnwindSafe(|| work(&self.shell)));
        result.map_err(|_| self.break_off(py))
    }

    /// Make one call of the shell with the interpreter released.
    pub(crate) fn call_detached<T: Send>(
        &self,
        py: Python<'_>,
        work: impl Send + FnOnce(&Arc<Shell>) -> T,
    ) -> PyResult<T> {
        self.call(py, |shell| py.detach(|| work(shell)))
    }

    /// Have the control plane route a mailbox to a peer.
    pub(crate) fn resolve(
        &self,
        mailbox: &Bound<'_, PyAny>,
        peer: &urds_path::Address,
    ) -> PyResult<()> {
        let py = mailbox.py();
        let resolve = self
            .resolve
            .lock()
            .as_ref()
            .map(|resolve| resolve.clone_ref(py));
        if let Some(resolve) = resolve {
            resolve.call1(py, (mailbox, addresses::pack(py, peer), peer.scope))?;
        }
        Ok(())
    }

    /// Register the object of a path.
    pub(crate) fn remember(&self, path: &Bound<'_, Path>) {
        let id = path.get().id;
        let mut paths = self.paths.lock();
        paths
            .known
            .entry(id)
            .or_insert_with(|| path.clone().unbind());
    }

    /// Return the object of a path, unless it was closed long ago.
    pub(crate) fn path<'py>(&self, py: Python<'py>, id: PathId) -> Option<Bound<'py, Path>> {
        self.paths
            .lock()
            .known
            .get(&id)
            .map(|path| path.bind(py).clone())
    }

    pub(crate) fn forget(&self, path: PathId) {
        self.paths.lock().closed.push(path);
    }

    /// Forget the objects of paths; releasing them may run Python code.
    fn forget_all(&self, py: Python<'_>) {
        let paths = std::mem::take(&mut *self.paths.lock());
        for path in paths.known.into_values() {
            drop(path.into_bound(py));
        }
    }

    /// After a panic: fail every call from now on; return the exception for this one.
    #[cold]
    pub(crate) fn break_off(&self, py: Python<'_>) -> PyErr {
        // At a panic the state may be half changed; failing is all that is left.
        let failed = catch_unwind(AssertUnwindSafe(|| py.detach(|| self.shell.fail())));
        drop(failed);
        errors::fault(py)
    }
}

#[pymethods]
impl Plane {
    #[new]
    #[pyo3(signature = (limits, resolve, clock_ns=None, generation=None, /))]
    fn new(
        py: Python<'_>,
        limits: [u64; 14],
        resolve: Py<PyAny>,
        clock_ns: Option<Py<PyAny>>,
        generation: Option<u32>,
    ) -> PyResult<Self> {
        let clock = match clock_ns {
            Some(ask) => {
                let now_ns = AtomicU64::new(ask.call0(py)?.extract(py)?);
                Some(Clock {
                    ask,
                    now_ns: Arc::new(now_ns),
                })
            }
            None => None,
        };
        let tell = clock.as_ref().map(|clock| {
            let now_ns = Arc::clone(&clock.now_ns);
            Arc::new(move || now_ns.load(Relaxed)) as ClockFn
        });
        let shell = Shell::new(
            values::limits(limits),
            tell,
            generation,
            Some(Arc::new(memory::allocate)),
        )
        .map_err(|refused| errors::exception(py, &refused))?;
        Ok(Self {
            shell,
            resolve: Mutex::new(Some(resolve)),
            clock,
            paths: Mutex::default(),
            gil: GilUse::default(),
        })
    }

    #[getter]
    fn batches(&self) -> bool {
        self.shell.has_batches()
    }

    #[pyo3(signature = (path, /))]
    fn received(&self, py: Python<'_>, path: &Bound<'_, Path>) -> PyResult<ReceivedTuple> {
        let received = self.call(py, |shell| shell.received(path.get().id))?;
        let received = received.ok_or_else(|| PyValueError::new_err("the path is closed"))?;
        Ok((
            received.sequence_expected,
            received.floor,
            received.probe_sequence,
            received.generation,
            received.map_generation,
            received.watch_restarts,
        ))
    }

    #[pyo3(signature = (number, /))]
    fn discard_mailbox(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        let id = MailboxId::from_u64(number);
        let closed = self.call(py, |shell| shell.close_mailbox(id, Some(0), &mut || false))?;
        closed.map_err(|refused| errors::exception(py, &refused))
    }

    #[pyo3(signature = (path, other, mailboxes, /))]
    #[allow(clippy::needless_pass_by_value)] // as pyo3 calls it
    fn move_queue(
        &self,
        py: Python<'_>,
        path: &Bound<'_, Path>,
        other: &Bound<'_, Path>,
        mailboxes: Vec<Bound<'_, Mailbox>>,
    ) -> PyResult<()> {
        let (path, other) = (path.get().id, other.get().id);
        let moving: Vec<_> = mailboxes.iter().map(|mailbox| mailbox.get().id).collect();
        self.call_detached(py, |shell| shell.move_queue(path, other, &moving))
    }

    #[pyo3(signature = (path, received, /))]
    fn expect(
        &self,
        py: Python<'_>,
        path: &Bound<'_, Path>,
        received: ReceivedTuple,
    ) -> PyResult<()> {
        let (sequence_expected, floor, probe_sequence, generation, map_generation, watch_restarts) =
            received;
        let received = Received {
            sequence_expected,
            floor,
            probe_sequence,
            generation,
            map_generation,
            watch_restarts,
        };
        self.call(py, |shell| shell.expect(path.get().id, received))
    }

    #[pyo3(signature = (descriptor, interest, /))]
    fn watch(&self, py: Python<'_>, descriptor: i32, interest: u8) -> PyResult<()> {
        let result = self.call(py, |shell| shell.watch(descriptor, Interest(interest)))?;
        result.map_err(|refused| errors::exception(py, &refused))
    }

    #[pyo3(signature = (descriptor, /))]
    fn unwatch(&self, py: Python<'_>, descriptor: i32) -> PyResult<()> {
        self.call(py, |shell| shell.unwatch(descriptor))
    }

    #[pyo3(signature = (deadline_ns, /))]
    fn help<'py>(&self, py: Python<'py>, deadline_ns: Option<i64>) -> PyResult<Bound<'py, PyList>> {
        let closed = std::mem::take(&mut self.paths.lock().closed);
        let deadline_ns = deadline_ns.map(|at_ns| u64::try_from(at_ns).unwrap_or(0));
        self.gil.control_enters();
        let (events, claim) = self.call_detached(py, |shell| {
            let events = memory::as_progress_thread(|| shell.help(deadline_ns));
            self.gil.control_leaves();
            (events, Claim::new())
        })?;
        drop(claim);
        let list = PyList::empty(py);
        for event in events {
            let event = event_tuple(py, event, |id| Some(self.path(py, id)?.into_any()))?;
            if let Some(event) = event {
                list.append(event)?;
            }
        }
        for id in closed {
            let path = self.paths.lock().known.remove(&id);
            drop(path.map(|path| path.into_bound(py)));
        }
        Ok(list)
    }

    fn wake(&self) {
        self.shell.wake();
    }

    fn adopt(&self) {
        self.shell.adopt();
    }

    fn abandon(&self) {
        self.shell.abandon();
    }

    fn progress(&self, py: Python<'_>) -> PyResult<usize> {
        self.give_way(py);
        self.call(py, |shell| shell.progress())
    }

    fn congestion_memory(&self, py: Python<'_>) -> PyResult<i32> {
        let made = self.call(py, |shell| shell.congestion_memory())?;
        let (to_read, _) = made.map_err(|refused| errors::exception(py, &refused))?;
        Ok(to_read)
    }

    fn congestion_file(&self, py: Python<'_>) -> PyResult<i32> {
        let made = self.call(py, |shell| shell.congestion_memory())?;
        let (_, file) = made.map_err(|refused| errors::exception(py, &refused))?;
        Ok(file)
    }

    #[pyo3(signature = (file, /))]
    fn take_congestion_memory(&self, py: Python<'_>, file: i32) -> PyResult<()> {
        let file = attached::duplicate(file)?;
        let taken = self.call(py, |shell| shell.take_congestion_memory(file))?;
        taken.map_err(|refused| errors::exception(py, &refused))
    }

    fn path_journal(&self, py: Python<'_>) -> PyResult<i32> {
        let made = self.call(py, |shell| shell.path_journal())?;
        made.map_err(|refused| errors::exception(py, &refused))
    }

    #[pyo3(signature = (file, /))]
    fn take_path_journal(&self, py: Python<'_>, file: i32) -> PyResult<u32> {
        let file = attached::duplicate(file)?;
        let taken = self.call(py, |shell| shell.take_path_journal(file))?;
        taken.map_err(|refused| errors::exception(py, &refused))
    }

    fn npaths_before<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Vec<(PackedAddress<'py>, PackedAddress<'py>, u32)>> {
        let found = self.call(py, |shell| shell.npaths_before())?;
        let packed = |address: urds_path::Address| (addresses::pack(py, &address), address.scope);
        let counts = found.into_iter();
        Ok(counts
            .map(|(local, peer, count)| (packed(local), packed(peer), count))
            .collect())
    }

    fn finish_restore<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Vec<(PackedAddress<'py>, PackedAddress<'py>)>> {
        let connected = self.call_detached(py, |shell| shell.finish_restore())?;
        let packed = |address: urds_path::Address| (addresses::pack(py, &address), address.scope);
        let pairs = connected.into_iter();
        Ok(pairs
            .map(|(local, peer)| (packed(local), packed(peer)))
            .collect())
    }

    #[pyo3(signature = (mailbox, node_end, memory, journal, was_left=false, /))]
    #[allow(clippy::too_many_arguments)] // as Python passes them
    fn attach(
        &self,
        py: Python<'_>,
        mailbox: &Bound<'_, Mailbox>,
        node_end: i32,
        memory: i32,
        journal: i32,
        was_left: bool,
    ) -> PyResult<()> {
        let parts = attached::parts(node_end, memory, journal, was_left)?;
        let attached = self.call(py, |shell| shell.attach_socket(mailbox.get().id, parts))?;
        attached.map_err(|refused| errors::exception(py, &refused))
    }

    fn finish_pass(&self, py: Python<'_>) -> PyResult<()> {
        self.call_inside(py, |shell| shell.finish_pass())
    }

    fn fileno(&self) -> i32 {
        self.shell.descriptor()
    }

    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let taken = self.call_detached(py, |shell| shell.snapshot())?;
        snapshots::tuple_of(py, &taken)
    }

    #[pyo3(signature = (drain_ns, /))]
    fn drain(&self, py: Python<'_>, drain_ns: u64) -> PyResult<usize> {
        self.call_detached(py, |shell| shell.drain(drain_ns))
    }

    #[pyo3(signature = (flush_ns=0, /))]
    fn end_streams(&self, py: Python<'_>, flush_ns: u64) -> PyResult<()> {
        self.gil.control_enters(); // for good
        self.call_detached(py, |shell| shell.end_streams(flush_ns))
    }

    #[pyo3(signature = (drain_ns, /))]
    fn close(&self, py: Python<'_>, drain_ns: u64) -> PyResult<usize> {
        self.gil.control_enters(); // for good
        self.call_detached(py, |shell| shell.close(drain_ns))
    }

    fn fail(&self, py: Python<'_>) {
        py.detach(|| self.shell.fail());
        deferred::drain(py);
    }

    fn release(&self, py: Python<'_>) {
        self.shell.release();
        deferred::drain(py);
        self.forget_all(py);
    }

    fn abandon_in_child(&self, py: Python<'_>) {
        deferred::after_fork_in_child();
        gil::after_fork_in_child();
        self.shell.abandon_in_child();
        let paths: Vec<_> = self
            .paths
            .lock()
            .known
            .values()
            .map(|path| path.clone_ref(py))
            .collect();
        for path in paths {
            path.bind(py).get().abandon_in_child(py);
            drop(path.into_bound(py));
        }
    }

    #[allow(clippy::needless_pass_by_value)] // as pyo3 calls it
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A lock that is held belongs to a thread that holds a part of this: no garbage.
        if let Some(resolve) = self.resolve.try_lock() {
            visit.call(&*resolve)?;
        }
        if let Some(clock) = &self.clock {
            visit.call(&clock.ask)?;
        }
        if let Some(paths) = self.paths.try_lock() {
            for path in paths.known.values() {
                visit.call(path)?;
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        // The release may run Python code: with no lock held.
        let resolve = self.resolve.lock().take();
        let paths = std::mem::take(&mut *self.paths.lock());
        drop((resolve, paths));
    }
}
