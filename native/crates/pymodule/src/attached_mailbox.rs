//! A socket whose owner is a node, another process, with the calls of a mailbox.
//!
//! The calls of each message are in `attached_calls`.
//!
//! Every call is made with the interpreter, but for waits. A wait polls the descriptor, or sleeps
//! until the node tells of room at one destination.

use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use urds_channel::socket_memory::layout::{WAIT_ROOM, WAIT_SLEEPERS};
use urds_channel::sys::area::Area;
use urds_client::information::Information;
use urds_client::{Flags, Message, Name, Outgoing, ReceivedKind, Socket, Trace, Word};
use urds_dataplane::clock::Clock;
use urds_dataplane::errors::{ErrorReason, too_long};
use urds_dataplane::mailbox::MailboxSettings;
use urds_dataplane::sys::sockets::poll_for;
use urds_path::{Address, NO_EXTENSION, Payload, SocketAddress};

use crate::addresses::{self, Sources, Targets};
use crate::mailbox::gathered;
use crate::sys::Held;
use crate::values::{self, SettingsTuple};
use crate::{deferred, errors, sys};

const FOREVER: u64 = u64::MAX;
/// How often a wait looks for signals, and whether the descriptor was closed.
const LOOK_MS: u64 = 100;
const MS: u64 = 1_000_000;

/// The words that Python reads and sets by name.
const WORDS: [(&str, Word); 18] = [
    ("send_bytes", Word::SendBytes),
    ("receive_bytes", Word::ReceiveBytes),
    ("report_errors", Word::ReportErrors),
    ("monitor", Word::Monitor),
    ("has_mask", Word::HasMask),
    ("mask_low", Word::MaskLow),
    ("mask_high", Word::MaskHigh),
    ("timestamp", Word::Timestamp),
    ("traces", Word::Traces),
    ("transport", Word::Transport),
    ("tos", Word::Tos),
    ("reuse_address", Word::ReuseAddress),
    ("broadcast", Word::Broadcast),
    ("keep_alive", Word::KeepAlive),
    ("zero_copy", Word::ZeroCopy),
    ("linger", Word::Linger),
    ("busy_poll", Word::BusyPoll),
    ("has_route", Word::HasRoute),
];

type NameTuple = ([u8; 16], u32, u16);

/// See the stub.
#[pyclass(frozen, subclass, weakref, module = "urds_native")]
pub struct AttachedMailbox {
    socket: Socket,
    /// -1 once closed.
    descriptor: AtomicI32,
    /// No plane's: a child of a fork goes on with it.
    owned: Mutex<Option<OwnedFd>>,
    place: Vec<u8>,
    send_wait_ns: AtomicU64,
    receive_wait_ns: AtomicU64,
    targets: Held<Targets>,
    sources: Held<Sources>,
}

/// A message as it was taken.
pub struct Taken<'py> {
    pub payload: Option<PyResult<Bound<'py, PyBytes>>>,
    pub message: Message,
}

/// Return an error number of a call as the exception that a mailbox raises.
#[cold]
fn exception(py: Python<'_>, errno: i32, sends: bool) -> PyErr {
    let reason = match errno {
        EAGAIN if sends => ErrorReason::QueueFull,
        EAGAIN => ErrorReason::NothingToReceive,
        errors::EIO => ErrorReason::NodeFailed,
        errors::EBADF => ErrorReason::Closed,
        other => ErrorReason::System(other),
    };
    errors::refuse(py, reason, "")
}

/// Return the exception for what the node at a place answered, or did not answer.
#[cold]
fn of_node(py: Python<'_>, errno: i32, place: &[u8]) -> PyErr {
    let place = String::from_utf8_lossy(place);
    let (reason, detail) = match errno {
        errors::EIO => (
            ErrorReason::NodeFailed,
            format!("the node at {place} has ended; once one runs there, make the socket anew"),
        ),
        ENOENT | ECONNREFUSED => (
            ErrorReason::System(errno),
            format!("no node at {place}: start one with `urds node --socket {place}`"),
        ),
        EAGAIN => (
            ErrorReason::System(errno),
            format!(
                "the node at {place} gave no answer within ten seconds: `urds node status --socket {place}` and its log tell more"
            ),
        ),
        EPROTO => (
            ErrorReason::System(errno),
            format!(
                "the node at {place} is of another release: restart it, or this program, with the release of the other"
            ),
        ),
        other => (ErrorReason::System(other), String::new()),
    };
    errors::refuse(py, reason, &detail)
}

// The same on every Linux.
const ENOENT: i32 = 2;
const EAGAIN: i32 = 11;
const EACCES: i32 = 13;
const EPROTO: i32 = 71;
const EUSERS: i32 = 87;
const EMSGSIZE: i32 = 90;
const ENOBUFS: i32 = 105;
const ETIMEDOUT: i32 = 110;
const ECONNREFUSED: i32 = 111;
const EHOSTUNREACH: i32 = 113;

fn name_of(address: &Address, port: u16) -> Name {
    let bytes = match address.ip() {
        std::net::IpAddr::V4(four) => four.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(six) => six.octets(),
    };
    Name {
        address: bytes,
        port,
        scope: address.scope,
    }
}

/// Return how a message without an extension goes to a destination.
pub fn outgoing_to(target: &SocketAddress) -> Outgoing {
    Outgoing {
        to: name_of(&target.address, target.port),
        ..Outgoing::default()
    }
}

fn address_of(name: &Name) -> SocketAddress {
    let six = std::net::Ipv6Addr::from(name.address);
    let ip = six.to_ipv4_mapped().map_or(six.into(), Into::into);
    SocketAddress::new(Address::scoped(ip, name.scope), name.port)
}

/// How long a wait may still last.
struct Deadline(Option<u64>);

impl Deadline {
    fn new(wait_ns: Option<u64>) -> Self {
        Self(wait_ns.map(|wait_ns| Clock::Monotonic.now_ns().saturating_add(wait_ns)))
    }

    /// Return how long to sleep before the next look, `None` once the time is over.
    fn left_ns(&self) -> Option<u64> {
        let look_ns = LOOK_MS * MS;
        let Some(until_ns) = self.0 else {
            return Some(look_ns);
        };
        let left_ns = until_ns.saturating_sub(Clock::Monotonic.now_ns());
        (left_ns > 0).then_some(left_ns.min(look_ns))
    }
}

impl AttachedMailbox {
    /// Return an error number of a call as the exception that a mailbox raises.
    #[cold]
    fn failed(&self, py: Python<'_>, errno: i32, sends: bool) -> PyErr {
        match errno {
            errors::EIO | ENOENT | ECONNREFUSED | EPROTO => of_node(py, errno, &self.place),
            other => exception(py, other, sends),
        }
    }

    fn fd(&self) -> i32 {
        self.descriptor.load(Relaxed)
    }

    /// Return the descriptor. Raises EBADF once closed.
    fn open_fd(&self, py: Python<'_>) -> PyResult<i32> {
        let descriptor = self.fd();
        if descriptor < 0 {
            return Err(exception(py, errors::EBADF, false));
        }
        Ok(descriptor)
    }

    pub fn target(&self, given: Borrowed<'_, '_, PyAny>) -> PyResult<SocketAddress> {
        let py = given.py();
        let known = self
            .targets
            .with(py, |targets| targets.find(given).copied());
        if let Some(target) = known.flatten() {
            return Ok(target);
        }
        if given.is_none() {
            return Err(errors::refuse(py, ErrorReason::NoDestinationGiven, ""));
        }
        let local = self.socket.local().unwrap_or_default();
        let target = addresses::parse_target(given, &address_of(&local).address)?;
        if addresses::is_literal(given) {
            drop(self.targets.with(py, |targets| targets.keep(given, target)));
        }
        Ok(target)
    }

    pub fn source<'py>(&self, py: Python<'py>, name: &Name) -> PyResult<Bound<'py, PyTuple>> {
        let source = address_of(name);
        let known = self.sources.with(py, |sources| sources.find(py, &source));
        if let Some(tuple) = known.flatten() {
            return Ok(tuple);
        }
        let tuple = addresses::source_tuple(py, &source)?;
        let kept = tuple.clone().unbind();
        drop(self.sources.with(py, |sources| sources.keep(source, kept)));
        Ok(tuple)
    }

    /// Return how long a send of the socket waits; `None` for ever.
    pub fn send_wait_ns(&self) -> Option<u64> {
        limit_of(&self.send_wait_ns)
    }

    /// Return how long a receive of the socket waits; `None` for ever.
    pub fn receive_wait_ns(&self) -> Option<u64> {
        limit_of(&self.receive_wait_ns)
    }

    /// Send one message and let its payload go.
    pub fn send_payload(
        &self,
        py: Python<'_>,
        payload: Payload,
        outgoing: &Outgoing,
        wait_ns: Option<u64>,
    ) -> PyResult<usize> {
        let sent = self.send_bytes(py, payload.bytes(), outgoing, wait_ns);
        drop(payload);
        deferred::drain(py); // no plane does it
        sent
    }

    /// Send one message; ask for a route and wait for room without the interpreter.
    pub fn send_bytes(
        &self,
        py: Python<'_>,
        payload: &[u8],
        outgoing: &Outgoing,
        wait_ns: Option<u64>,
    ) -> PyResult<usize> {
        let deadline = Deadline::new(wait_ns);
        let mut event = None;
        loop {
            let descriptor = self.open_fd(py)?;
            let (socket, place) = (&self.socket, &self.place);
            let to = &outgoing.to;
            let ask = || py.detach(|| socket.ask_route(descriptor, place, to, socket.side().tos()));
            let sent = sys::send_attached(socket, descriptor, outgoing, payload, ask);
            let errno = match sent {
                Ok(bytes) => return Ok(bytes),
                Err(errno) => errno,
            };
            if errno == ENOBUFS && socket.side().is_over_quota() {
                let detail = "its user is over quota.memory of the node";
                return Err(errors::refuse(py, ErrorReason::System(errno), detail));
            }
            let is_busy = errno == EAGAIN || errno == ENOBUFS;
            if !is_busy || wait_ns == Some(0) {
                return Err(self.send_error(py, errno, payload.len(), outgoing));
            }
            let Some(left_ns) = deadline.left_ns() else {
                return Err(self.send_error(py, ETIMEDOUT, payload.len(), outgoing));
            };
            if errno == EAGAIN {
                py.detach(|| self.poll(descriptor, POLLOUT, left_ns));
            } else if let Some(event) = event.take() {
                let side = self.socket.side();
                let _ = py.detach(|| side.sleep_for_room(event, Some(left_ns)));
            } else {
                // Told before the next look, so that no change in between is missed.
                event = Some(self.socket.side().room_event());
                self.socket.side().wait_for(0, WAIT_SLEEPERS | WAIT_ROOM);
                continue;
            }
            py.check_signals()?;
        }
    }

    /// Return the exception for a send that failed, with the limit or the peer that it is about.
    #[cold]
    fn send_error(&self, py: Python<'_>, errno: i32, bytes: usize, outgoing: &Outgoing) -> PyErr {
        let SocketAddress {
            address: peer,
            port,
        } = address_of(&outgoing.to);
        let refused = match errno {
            EMSGSIZE => {
                let (of_socket, of_node) = self.socket.side().lengths_max();
                too_long(bytes, of_socket, of_node)
            }
            ETIMEDOUT => ErrorReason::TimedOut
                .because(format!("no room to send to {peer} port {port}"))
                .towards(peer),
            ENOBUFS => ErrorReason::PeerCongested
                .because(format!("no room for {peer} port {port}"))
                .towards(peer),
            EACCES => ErrorReason::PeerNotAllowed
                .because(format!("{peer}: see the node's setting allow"))
                .towards(peer),
            EUSERS => ErrorReason::TooManyPeers
                .because(format!(
                    "{peer}: see the node's setting peers_max and quota.peers"
                ))
                .towards(peer),
            EHOSTUNREACH => ErrorReason::PeerUnreachable.because("").towards(peer),
            other => return self.failed(py, other, true),
        };
        errors::exception(py, &refused)
    }

    #[allow(clippy::unused_self)] // keeps the descriptor open
    fn poll(&self, descriptor: i32, mask: i16, left_ns: u64) -> i16 {
        let ms = i32::try_from(left_ns.div_ceil(MS)).unwrap_or(i32::MAX);
        poll_for(descriptor, mask, ms)
    }

    /// Take one message or notification; wait for it without the interpreter.
    pub fn take<'py>(
        &self,
        py: Python<'py>,
        bytes_max: usize,
        wait_ns: Option<u64>,
        peek: bool,
    ) -> PyResult<Option<Taken<'py>>> {
        let deadline = Deadline::new(wait_ns);
        let mut flags = Flags {
            dontwait: true,
            peek,
            polls: wait_ns != Some(0),
        };
        loop {
            let descriptor = self.open_fd(py)?;
            let mut payload = None;
            let make = |area: &Area, at: usize, length: usize| {
                let length = length.min(bytes_max);
                // The collector does not track `bytes`: no code of Python runs under the lock.
                payload = Some(PyBytes::new_with(py, length, |bytes| {
                    area.copy_out(at, bytes);
                    Ok(())
                }));
                length
            };
            match self.socket.receive_with(descriptor, flags, make) {
                Ok(message) => return Ok(Some(Taken { payload, message })),
                Err(EAGAIN) if wait_ns == Some(0) => return Ok(None),
                Err(EAGAIN) => {}
                Err(errno) => return Err(self.failed(py, errno, false)),
            }
            flags.polls = false;
            let Some(left_ns) = deadline.left_ns() else {
                return Ok(None);
            };
            let shown = py.detach(|| self.poll(descriptor, POLLIN, left_ns));
            if shown & (POLLHUP | POLLERR) != 0 && !self.socket.side().has_something() {
                return Err(self.failed(py, errors::EIO, false));
            }
            py.check_signals()?;
        }
    }
}

const POLLIN: i16 = 0x1;
const POLLOUT: i16 = 0x4;
const POLLERR: i16 = 0x8;
const POLLHUP: i16 = 0x10;

fn word_of(name: &str) -> PyResult<Word> {
    let known = WORDS.iter().find(|(known, _)| *known == name);
    known
        .map(|&(_, word)| word)
        .ok_or_else(|| PyKeyError::new_err(name.to_owned()))
}

fn unpacked(peer: Option<&[u8]>, scope: u32, port: u16) -> PyResult<Option<Name>> {
    let address = peer
        .map(|peer| addresses::unpack(peer, scope))
        .transpose()?;
    Ok(address.map(|address| name_of(&address, port)))
}

fn times_of(trace: &Trace) -> Vec<(u8, u64)> {
    let count = usize::from(trace.count.min(3));
    let positions = trace.positions.iter().copied();
    positions.zip(trace.ns).take(count).collect()
}

#[pymethods]
impl AttachedMailbox {
    #[new]
    #[pyo3(signature = (place, address, scope, port, transport, settings, /))]
    fn new(
        py: Python<'_>,
        place: &[u8],
        address: &[u8],
        scope: u32,
        port: u16,
        transport: u32,
        settings: SettingsTuple,
    ) -> PyResult<Self> {
        let name = name_of(&addresses::unpack(address, scope)?, port);
        let (settings, traces) = values::settings(settings);
        let words = words_of(&settings, &traces);
        let made = py.detach(|| Socket::open_bound(place, 0, &name, transport, &words));
        let (descriptor, socket) = made.map_err(|errno| of_node(py, errno, place))?;
        Ok(Self {
            socket,
            descriptor: descriptor.into(),
            owned: Mutex::new(Some(sys::owned(descriptor))),
            place: place.to_vec(),
            send_wait_ns: settings.send_wait_ns.unwrap_or(FOREVER).into(),
            receive_wait_ns: settings.receive_wait_ns.unwrap_or(FOREVER).into(),
            targets: Held::default(),
            sources: Held::default(),
        })
    }

    #[staticmethod]
    #[pyo3(signature = (place, /))]
    fn status<'py>(py: Python<'py>, place: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let asked = py.detach(|| Information::status(place));
        Ok(listed(py, asked)?.1)
    }

    #[pyo3(signature = (option, /))]
    fn info<'py>(&self, py: Python<'py>, option: u32) -> PyResult<(i32, Bound<'py, PyBytes>)> {
        let (place, descriptor) = (&self.place, self.open_fd(py)?);
        let asked = py.detach(|| Information::ask(place, option, Some(descriptor)));
        listed(py, asked)
    }

    #[getter]
    fn cookie(&self) -> u64 {
        self.socket.cookie()
    }

    #[pyo3(signature = (peer, scope, port, /))]
    fn set_peer(&self, py: Python<'_>, peer: Option<&[u8]>, scope: u32, port: u16) -> PyResult<()> {
        let name = unpacked(peer, scope, port)?;
        let set = self.socket.set_peer(name);
        set.map_err(|errno| exception(py, errno, true))
    }

    /// The name that it is bound to.
    #[getter]
    fn name(&self) -> NameTuple {
        let name = self.socket.local().unwrap_or_default();
        (name.address, name.scope, name.port)
    }

    #[pyo3(signature = (peer, scope, port, /))]
    fn cancel(
        &self,
        py: Python<'_>,
        peer: Option<&[u8]>,
        scope: u32,
        port: Option<u16>,
    ) -> PyResult<u32> {
        let name = unpacked(peer, scope, port.unwrap_or(0))?;
        let descriptor = self.open_fd(py)?;
        let taken_back = py.detach(|| self.socket.cancel(descriptor, &self.place, name.as_ref()));
        taken_back.map_err(|errno| self.failed(py, errno, true))
    }

    #[pyo3(signature = (level, name, value, /))]
    fn set_option(&self, py: Python<'_>, level: i32, name: i32, value: &[u8]) -> PyResult<()> {
        let descriptor = self.open_fd(py)?;
        let (socket, place) = (&self.socket, &self.place);
        let set = py.detach(|| socket.set_option(descriptor, place, level, name, value));
        set.map_err(|errno| of_node(py, errno, &self.place))
    }

    #[pyo3(signature = (name, /))]
    fn word(&self, name: &str) -> PyResult<u32> {
        Ok(self.socket.options().get(word_of(name)?))
    }

    #[pyo3(signature = (name, value, /))]
    fn set_word(&self, name: &str, value: u32) -> PyResult<()> {
        self.socket.options().set(word_of(name)?, value);
        Ok(())
    }

    /// Greatest `SO_SNDBUF` and `SO_RCVBUF`, longest message.
    fn limits(&self) -> (u32, u32, u32) {
        self.socket.side().limits()
    }

    #[getter]
    fn is_strict(&self) -> bool {
        self.socket.side().is_strict()
    }

    #[getter]
    fn has_route(&self) -> bool {
        self.socket.options().get(Word::HasRoute) != 0
    }

    #[pyo3(signature = (settings, /))]
    fn configure(&self, settings: SettingsTuple) {
        let (settings, traces) = values::settings(settings);
        self.send_wait_ns
            .store(settings.send_wait_ns.unwrap_or(FOREVER), Relaxed);
        self.receive_wait_ns
            .store(settings.receive_wait_ns.unwrap_or(FOREVER), Relaxed);
        let options = self.socket.options();
        for (word, value) in words_of(&settings, &traces) {
            // With which option they were asked for, another process may have said.
            if word != Word::Timestamp || (options.get(word) != 0) != settings.timestamps {
                options.set(word, value);
            }
        }
        if !settings.monitor {
            self.socket.side().forget_groups();
        }
    }

    #[pyo3(signature = (buffers, address, wait_ns, extension=b"".as_slice(), operations=false, copy=true, /))]
    #[allow(clippy::too_many_arguments)] // as Python passes them
    fn send(
        &self,
        py: Python<'_>,
        buffers: &Bound<'_, PyAny>,
        address: &Bound<'_, PyAny>,
        wait_ns: Option<u64>,
        extension: &[u8],
        operations: bool,
        copy: bool,
    ) -> PyResult<usize> {
        let _ = copy; // into the memory of the socket, always
        if operations {
            let detail = "a node sends no operations";
            return Err(errors::refuse(py, ErrorReason::NotSupported, detail));
        }
        let extension = values::extension(extension)?;
        let target = self.target(address.as_borrowed())?;
        let payload = gathered(buffers, false)?;
        let outgoing = Outgoing {
            extension,
            extension_bytes: if extension == NO_EXTENSION { 0 } else { 16 },
            ..outgoing_to(&target)
        };
        self.send_payload(py, payload, &outgoing, wait_ns)
    }

    #[pyo3(signature = (wait_ns, peek=false, notices_max=1, /))]
    fn receive<'py>(
        &self,
        py: Python<'py>,
        wait_ns: Option<u64>,
        peek: bool,
        notices_max: i64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = notices_max; // of operations, of which there are none
        let Some(Taken { payload, message }) = self.take(py, usize::MAX, wait_ns, peek)? else {
            return Ok(py.None().into_bound(py));
        };
        if let ReceivedKind::CongestionUpdate(groups) = message.kind {
            return Ok(groups.into_pyobject(py)?.into_any());
        }
        let payload = payload.unwrap_or_else(|| Ok(PyBytes::new(py, b"")))?;
        let extension = if message.extension_bytes == 0 {
            &NO_EXTENSION
        } else {
            &message.extension
        };
        let told = (
            payload,
            self.source(py, &message.source)?,
            values::extension_bytes(extension),
            message.wall_ns,
            PyTuple::new(py, times_of(&message.trace))?,
        );
        Ok(told.into_pyobject(py)?.into_any())
    }

    fn queued_bytes(&self) -> u64 {
        self.socket.side().queued_bytes()
    }

    #[getter]
    fn has_something(&self) -> bool {
        self.socket.side().has_something()
    }

    fn fileno(&self) -> i32 {
        self.fd()
    }

    fn detach(&self) -> i32 {
        let descriptor = self.descriptor.swap(-1, Relaxed);
        if let Some(owned) = self.owned.lock().take() {
            let _ = owned.into_raw_fd(); // the caller's now
        }
        descriptor
    }

    /// In a signal handler inside a send 1 while any bytes are left; also after `close`.
    fn unacknowledged(&self) -> usize {
        let side = self.socket.side();
        let any = |_| usize::from(side.queued_bytes() > 0);
        side.unacknowledged().unwrap_or_else(any)
    }

    fn close(&self) {
        self.descriptor.store(-1, Relaxed);
        drop(self.owned.lock().take());
    }
}

fn limit_of(wait_ns: &AtomicU64) -> Option<u64> {
    Some(wait_ns.load(Relaxed)).filter(|&wait_ns| wait_ns != FOREVER)
}

#[allow(clippy::cast_possible_truncation)] // the lower half is meant
fn narrow_half(mask: u64) -> u32 {
    mask as u32
}

/// Return the words that settings are.
fn words_of(settings: &MailboxSettings, traces: &[i64]) -> [(Word, u32); 9] {
    let narrow = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    let mask = settings.monitor_mask;
    let mut wanted = [0u8; 4];
    for (place, at) in wanted[1..].iter_mut().zip(traces) {
        *place = u8::try_from(*at).unwrap_or(0);
    }
    wanted[0] = u8::try_from(traces.len().min(3)).unwrap_or(0);
    [
        (Word::SendBytes, narrow(settings.send_bytes_max)),
        (Word::ReceiveBytes, narrow(settings.receive_bytes_max)),
        (Word::MaskLow, narrow_half(mask)),
        (Word::MaskHigh, narrow_half(mask >> 32)),
        (Word::HasMask, u32::from(mask != u64::MAX)),
        (Word::Monitor, u32::from(settings.monitor)),
        (Word::Timestamp, u32::from(settings.timestamps)),
        (Word::Traces, u32::from_le_bytes(wanted)),
        (Word::Tos, u32::from(settings.tos)),
    ]
}

/// Copy a list out of the node's memory.
fn listed(py: Python<'_>, asked: Result<Information, i32>) -> PyResult<(i32, Bound<'_, PyBytes>)> {
    let failed = |errno| errors::refuse(py, ErrorReason::System(errno), "");
    let list = asked.map_err(failed)?;
    let bytes = PyBytes::new_with(py, list.bytes, |bytes| {
        list.copy(bytes, 0).map(drop).map_err(failed)
    })?;
    Ok((list.element_bytes, bytes))
}
