//! A bound socket, as Python holds it. The calls of each message are in `fast_calls`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use urds_dataplane::errors::ErrorReason;
use urds_dataplane::mailbox::Route;
use urds_dataplane::operations::OperationNotice;
use urds_dataplane::plane::Plane as Shell;
use urds_dataplane::state::MailboxId;
use urds_dataplane::waiting::WaitFor;
use urds_path::{Address, Payload, SocketAddress};

use crate::addresses::{self, Sources, Targets};
use crate::external::ExternalPath;
use crate::fast_calls::Room;
use crate::path::Path;
use crate::plane::Plane;
use crate::signals::Signals;
use crate::subscriptions::Subscription;
use crate::sys::Held;
use crate::values::{self, SettingsTuple};
use crate::{attached, errors, fast_calls, memory};

/// See `contract.Mailbox` and the stub.
#[pyclass(frozen, subclass, weakref, module = "urds_native")]
pub struct Mailbox {
    pub(crate) id: MailboxId,
    pub(crate) shell: Arc<Shell>,
    pub(crate) plane: Py<Plane>,
    pub(crate) local: Address,
    /// As in the settings; `FOREVER` for ever.
    send_wait_ns: AtomicU64,
    receive_wait_ns: AtomicU64,
    busy_polls: AtomicBool,
    /// Positions of latency traces that a message reports.
    traces: Mutex<Vec<i64>>,
    targets: Held<Targets>,
    sources: Held<Sources>,
}

const FOREVER: u64 = u64::MAX;

impl Mailbox {
    /// Begin a call; see `Plane::enter`.
    pub(crate) fn enter(&self, py: Python<'_>) -> PyResult<&Arc<Shell>> {
        self.plane.get().enter(py)
    }

    /// Begin a call of an application's thread that sends or takes.
    pub(crate) fn begin(&self, py: Python<'_>) -> PyResult<()> {
        let plane = self.plane.get();
        plane.give_way(py);
        plane.enter(py)?;
        Ok(())
    }

    fn call<T>(&self, py: Python<'_>, work: impl FnOnce(&Arc<Shell>) -> T) -> PyResult<T> {
        self.plane.get().call(py, work)
    }

    pub(crate) fn send_wait_ns(&self) -> Option<u64> {
        Some(self.send_wait_ns.load(Relaxed)).filter(|&wait_ns| wait_ns != FOREVER)
    }

    pub(crate) fn receive_wait_ns(&self) -> Option<u64> {
        Some(self.receive_wait_ns.load(Relaxed)).filter(|&wait_ns| wait_ns != FOREVER)
    }

    /// Return whether a wait for a message polls first.
    pub(crate) fn busy_polls(&self) -> bool {
        self.busy_polls.load(Relaxed)
    }

    /// Return the latency traces of a message: all at one position, the earlier ones take no time.
    pub(crate) fn trace<'py>(
        &self,
        py: Python<'py>,
        last: i64,
        queued_ns: u64,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let traces = self.traces.lock().clone();
        let times = traces
            .into_iter()
            .map(|at| (at, if at == last { queued_ns } else { 0 }));
        PyTuple::new(py, times.collect::<Vec<_>>())
    }

    /// Return `None` for a message with operations that a transport of messages has to send.
    ///
    /// Raises for every other: no path of this plane supports operations.
    fn send_operations(
        slf: &Bound<'_, Self>,
        address: Borrowed<'_, '_, PyAny>,
    ) -> PyResult<Option<usize>> {
        let (py, own) = (slf.py(), slf.get());
        let peer = own.target(address)?.address;
        let route = || {
            let state = own.shell.lock();
            let open = state
                .mailboxes
                .get(own.id)
                .filter(|mailbox| !mailbox.closed);
            let route = open.map(|mailbox| mailbox.routes.get(&peer).copied());
            route.ok_or(state.closed_reason)
        };
        let refused = |reason| errors::refuse(py, reason, "");
        if route().map_err(refused)?.is_none() {
            own.plane.get().resolve(slf.as_any(), &peer)?;
        }
        let refused = match route().map_err(refused)? {
            Some(Route::External(_)) => return Ok(None),
            Some(Route::Stream(_) | Route::Loop) => {
                ErrorReason::NotSupported.because(format!("no operations on the way to {peer}"))
            }
            None => ErrorReason::PeerUnreachable.because(format!("no route to {peer}")),
        };
        Err(errors::exception(py, &refused.towards(peer)))
    }

    /// Return the destination of a program's address; a literal is parsed once.
    pub(crate) fn target(&self, given: Borrowed<'_, '_, PyAny>) -> PyResult<SocketAddress> {
        self.with_target(given, |target| *target)
    }

    /// Call `work`, which runs no code of Python, with the destination: it is not copied.
    #[inline]
    pub(crate) fn with_target<R>(
        &self,
        given: Borrowed<'_, '_, PyAny>,
        mut work: impl FnMut(&SocketAddress) -> R,
    ) -> PyResult<R> {
        match self.with_known_target(given, &mut work) {
            Some(result) => Ok(result),
            None => Ok(work(&self.read_target(given)?)),
        }
    }

    /// The same if the address was parsed before, else `None`. Runs no code of Python.
    #[inline]
    pub(crate) fn with_known_target<R>(
        &self,
        given: Borrowed<'_, '_, PyAny>,
        work: impl FnOnce(&SocketAddress) -> R,
    ) -> Option<R> {
        let find = |targets: &mut Targets| targets.find(given).map(work);
        self.targets.with(given.py(), find).flatten()
    }

    #[cold]
    fn read_target(&self, given: Borrowed<'_, '_, PyAny>) -> PyResult<SocketAddress> {
        let py = given.py();
        if given.is_none() {
            return Err(errors::refuse(
                given.py(),
                ErrorReason::NoDestinationGiven,
                "",
            ));
        }
        let target = addresses::parse_target(given, &self.local)?;
        if addresses::is_literal(given) {
            drop(self.targets.with(py, |targets| targets.keep(given, target)));
        }
        Ok(target)
    }

    /// Return the tuple of a source if it was made before. Runs no code of Python.
    #[inline]
    pub(crate) fn known_source<'py>(
        &self,
        py: Python<'py>,
        source: &SocketAddress,
    ) -> Option<Bound<'py, PyTuple>> {
        let find = |sources: &mut Sources| sources.find(py, source);
        self.sources.with(py, find).flatten()
    }

    /// Return the tuple of a source; made once.
    pub(crate) fn source<'py>(
        &self,
        py: Python<'py>,
        source: &SocketAddress,
    ) -> PyResult<Bound<'py, PyTuple>> {
        if let Some(tuple) = self.known_source(py, source) {
            return Ok(tuple);
        }
        let tuple = addresses::source_tuple(py, source)?;
        let kept = tuple.clone().unbind();
        drop(self.sources.with(py, |sources| sources.keep(*source, kept)));
        Ok(tuple)
    }
}

#[pymethods]
impl Mailbox {
    #[new]
    #[pyo3(signature = (plane, local, scope, port, settings, made, /))]
    fn new(
        py: Python<'_>,
        plane: &Bound<'_, Plane>,
        local: &[u8],
        scope: u32,
        port: u16,
        settings: SettingsTuple,
        made: &Bound<'_, PyList>,
    ) -> PyResult<Self> {
        let local = addresses::unpack(local, scope)?;
        let (settings, traces) = values::settings(settings);
        let own = plane.get();
        let (send_wait_ns, receive_wait_ns) = (settings.send_wait_ns, settings.receive_wait_ns);
        let busy_polls = settings.busy_poll_ns > 0;
        let id = own.call(py, |shell| shell.mailbox(local, port, settings))?;
        made.append(id.to_u64())?; // the caller closes it, should this object get lost
        Ok(Self {
            busy_polls: busy_polls.into(),
            send_wait_ns: send_wait_ns.unwrap_or(FOREVER).into(),
            receive_wait_ns: receive_wait_ns.unwrap_or(FOREVER).into(),
            id,
            shell: Arc::clone(&own.shell),
            plane: plane.clone().unbind(),
            local,
            traces: Mutex::new(traces),
            targets: Held::default(),
            sources: Held::default(),
        })
    }

    #[getter]
    fn has_route(&self) -> bool {
        self.shell.has_route(self.id)
    }

    #[pyo3(signature = (buffers, address, wait_ns, extension=b"".as_slice(), operations=false, copy=true, /))]
    #[allow(clippy::too_many_arguments)] // as Python passes them
    fn send(
        slf: &Bound<'_, Self>,
        buffers: &Bound<'_, PyAny>,
        address: &Bound<'_, PyAny>,
        wait_ns: Option<u64>,
        extension: &[u8],
        operations: bool,
        copy: bool,
    ) -> PyResult<Option<usize>> {
        slf.get().begin(slf.py())?;
        let (payload, extension) = (gathered(buffers, copy)?, values::extension(extension)?);
        if operations {
            return Self::send_operations(slf, address.as_borrowed());
        }
        let address = address.as_borrowed();
        fast_calls::guarded(slf, || {
            fast_calls::send(slf, payload, extension, address, wait_ns)
        })
    }

    #[pyo3(signature = (wait_ns, peek=false, notices_max=1, /))]
    fn receive<'py>(
        slf: &Bound<'py, Self>,
        wait_ns: Option<u64>,
        peek: bool,
        notices_max: i64,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().begin(slf.py())?;
        fast_calls::guarded(slf, || fast_calls::receive(slf, wait_ns, peek, notices_max))
    }

    #[pyo3(signature = (*given, **named))]
    fn recv_into(
        slf: &Bound<'_, Self>,
        given: &Bound<'_, PyTuple>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<usize> {
        let py = slf.py();
        let plain = if named.is_none() {
            Room::of(given)
        } else {
            None
        };
        let room = if let Some(room) = plain {
            room
        } else {
            let checked = slf.as_any().call_method("recv_into_given", given, named)?;
            let room = Room::of(checked.cast()?);
            room.ok_or_else(|| PyTypeError::new_err("recv_into() needs a buffer"))?
        };
        let begun = slf.get().begin(py);
        let taken = fast_calls::guarded(slf, || {
            begun.and_then(|()| fast_calls::recv_into(slf, &room))
        });
        room.release(py);
        taken
    }

    #[pyo3(signature = (peer, scope, path, /))]
    fn route(
        &self,
        py: Python<'_>,
        peer: &[u8],
        scope: u32,
        path: Option<&Bound<'_, Path>>,
    ) -> PyResult<()> {
        let peer = addresses::unpack(peer, scope)?;
        let route = path.map(|path| Route::Stream(path.get().id));
        self.call(py, |shell| shell.route(self.id, peer, route))
    }

    #[pyo3(signature = (peer, scope, path, /))]
    fn route_external(
        &self,
        py: Python<'_>,
        peer: &[u8],
        scope: u32,
        path: &Bound<'_, ExternalPath>,
    ) -> PyResult<()> {
        let peer = addresses::unpack(peer, scope)?;
        let route = Some(Route::External(path.get().id));
        self.call(py, |shell| shell.route(self.id, peer, route))
    }

    #[pyo3(signature = (peer, scope, /))]
    fn route_loop(&self, py: Python<'_>, peer: &[u8], scope: u32) -> PyResult<()> {
        let peer = addresses::unpack(peer, scope)?;
        self.call(py, |shell| shell.route(self.id, peer, Some(Route::Loop)))
    }

    #[pyo3(signature = (peer, scope, /))]
    fn sends_by_loop_to(&self, peer: &[u8], scope: u32) -> PyResult<bool> {
        let peer = addresses::unpack(peer, scope)?;
        let state = self.shell.lock();
        Ok(state
            .mailboxes
            .get(self.id)
            .is_some_and(|mailbox| mailbox.sends_by_loop_to(&peer)))
    }

    #[pyo3(signature = (callback, room, peer, scope, /))]
    fn subscribe(
        &self,
        py: Python<'_>,
        callback: Py<PyAny>,
        room: bool,
        peer: Option<&[u8]>,
        scope: u32,
    ) -> PyResult<Py<Subscription>> {
        let shell = self.enter(py)?;
        let peer = peer
            .map(|peer| addresses::unpack(peer, scope))
            .transpose()?;
        let what = if room {
            WaitFor::Room
        } else {
            WaitFor::Arrival
        };
        let subscription = Py::new(py, Subscription::new(shell, self.id, callback))?;
        subscription.get().list(what, peer);
        Ok(subscription)
    }

    #[pyo3(signature = (settings, /))]
    fn configure(&self, py: Python<'_>, settings: SettingsTuple) -> PyResult<()> {
        let (settings, traces) = values::settings(settings);
        *self.traces.lock() = traces;
        self.send_wait_ns
            .store(settings.send_wait_ns.unwrap_or(FOREVER), Relaxed);
        self.receive_wait_ns
            .store(settings.receive_wait_ns.unwrap_or(FOREVER), Relaxed);
        self.busy_polls.store(settings.busy_poll_ns > 0, Relaxed);
        self.call(py, |shell| shell.configure(self.id, settings))
    }

    #[pyo3(signature = (peer, scope, port, /))]
    fn cancel(
        &self,
        py: Python<'_>,
        peer: Option<&[u8]>,
        scope: u32,
        port: Option<u16>,
    ) -> PyResult<usize> {
        let peer = peer
            .map(|peer| addresses::unpack(peer, scope))
            .transpose()?;
        self.call(py, |shell| shell.cancel(self.id, peer, port))
    }

    #[getter]
    fn number(&self) -> u64 {
        self.id.to_u64()
    }

    #[pyo3(signature = (peer, scope, /))]
    fn route_number(&self, py: Python<'_>, peer: &[u8], scope: u32) -> PyResult<(u32, u32)> {
        let peer = addresses::unpack(peer, scope)?;
        let found = self.call(py, |shell| shell.route_number(self.id, peer))?;
        found.map_err(|refused| errors::exception(py, &refused))
    }

    #[pyo3(signature = (peer, scope, errno, /))]
    fn fail_route(&self, py: Python<'_>, peer: &[u8], scope: u32, errno: i32) -> PyResult<()> {
        let peer = addresses::unpack(peer, scope)?;
        self.call(py, |shell| shell.fail_route(self.id, peer, errno))
    }

    #[pyo3(signature = (is_over_quota, /))]
    fn restrict(&self, py: Python<'_>, is_over_quota: bool) -> PyResult<()> {
        self.call(py, |shell| shell.restrict(self.id, is_over_quota))
    }

    fn take_rest(&self, py: Python<'_>) -> PyResult<bool> {
        self.call(py, |shell| shell.take_rest(self.id))
    }

    #[getter]
    fn is_over(&self) -> bool {
        self.shell.is_over(self.id)
    }

    fn words<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let words = self
            .shell
            .read_attached(self.id, |side| attached::words(py, side));
        words.unwrap_or_else(|| Err(attached::not_attached()))
    }

    #[pyo3(signature = (wants_notice, token, status, /))]
    fn note_operation(
        &self,
        py: Python<'_>,
        wants_notice: bool,
        token: u64,
        status: i32,
    ) -> PyResult<()> {
        let notice = wants_notice.then_some(OperationNotice { token, status });
        let plane = self.plane.get();
        plane.call_inside(py, |shell| shell.note_operation(self.id, notice))
    }

    fn operations_ended(&self, py: Python<'_>) -> PyResult<u64> {
        let ended = self.call(py, |shell| shell.operations_ended(self.id))?;
        ended.map_err(|refused| errors::exception(py, &refused))
    }

    #[pyo3(signature = (seen, wait_ns, /))]
    fn wait_operation(&self, py: Python<'_>, seen: u64, wait_ns: Option<u64>) -> PyResult<bool> {
        let mut signals = Signals::default();
        let plane = self.plane.get();
        let ended = plane.call_detached(py, |shell| {
            shell.wait_operation(self.id, seen, wait_ns, &mut || signals.check())
        })?;
        signals.finish_pass(py, ended)
    }

    fn request_acks(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |shell| shell.request_acks_of(self.id))
    }

    fn unacknowledged(&self, py: Python<'_>) -> PyResult<usize> {
        self.call(py, |shell| shell.unacknowledged(self.id))
    }

    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let descriptor = self.call(py, |shell| shell.fileno(self.id))?;
        descriptor.map_err(|refused| errors::exception(py, &refused))
    }

    #[pyo3(signature = (linger_ns=None, /))]
    fn close(&self, py: Python<'_>, linger_ns: Option<u64>) -> PyResult<()> {
        let mut signals = Signals::default();
        let plane = self.plane.get();
        let closed = plane.call_detached(py, |shell| {
            shell.close_mailbox(self.id, linger_ns, &mut || signals.check())
        })?;
        signals.finish_pass(py, closed)
    }

    #[allow(clippy::needless_pass_by_value)] // as pyo3 calls it
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.plane)
    }
}

/// Return the buffers as one payload; several are always copied, once.
pub fn gathered(buffers: &Bound<'_, PyAny>, copy: bool) -> PyResult<Payload> {
    if buffers.len()? == 1 {
        let buffer = buffers.get_item(0)?;
        return if copy {
            memory::payload_of(&buffer)
        } else {
            memory::payload_referring_to(&buffer)
        };
    }
    let joined = PyBytes::new(buffers.py(), b"").call_method1("join", (buffers,))?;
    memory::payload_of(&joined)
}
