//! The calls of each message: `sendto` and `recvfrom`, with the signature of `socket.socket`.
//!
//! Those of many messages are in `burst_calls`, on the same parts.
//!
//! They are called without a tuple of arguments and allocate nothing but the result. The
//! interpreter is held throughout, except for writes of more than 128 KiB and for waits, unless
//! `gil` says otherwise: releasing it for a write of 4 us gives it to a computing thread for 5 ms.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyTuple, PyType};
use urds_dataplane::errors::{ErrorReason, Rejected};
use urds_dataplane::receive_side::{Received, Taken};
use urds_dataplane::send_side::{Leaving, Message, Sent};
use urds_path::{ArrivingPayload, Body, Extension, NO_EXTENSION, Payload, SocketAddress};

use crate::mailbox::Mailbox;
use crate::signals::Signals;
use crate::sys::{self, Arguments, Export, fast_function};
use crate::{deferred, errors, ffi, memory, values};

const MSG_OOB: i64 = 0x1;
const MSG_PEEK: i64 = 0x2;
const MSG_TRUNC: i64 = 0x20;
const MSG_DONTWAIT: i64 = 0x40;
const MSG_ERRQUEUE: i64 = 0x2000;
const MSG_NOSIGNAL: i64 = 0x4000;
const MSG_ZEROCOPY: i64 = 0x400_0000;

/// From this length on, written without the interpreter.
const LONG_WRITE_BYTES: usize = 128 << 10;
/// How long a socket that polls does so with the interpreter: to give it up and take it back costs as
/// much as an answer's way, and another thread hardly notices.
const POLLED_NS: u64 = 4_000;
/// A peer may be evicted between its route and our message.
const RESOLVES_MAX: usize = 3;
/// From queueing to the application; the earlier stages coincide here.
const LAST_POSITION: i64 = 2;

/// Add the methods to the class.
pub fn add_methods(class: &Bound<'_, PyType>) -> PyResult<()> {
    let function = fast_function!(Mailbox, sendto, rescue);
    let doc = c"Queue one message, as `socket.socket.sendto`; return its length.";
    sys::add_fast_method(class, c"sendto", doc, function)?;
    let function = fast_function!(Mailbox, recvfrom, rescue);
    let doc = c"Take one message, as `socket.socket.recvfrom`; an excess is discarded.";
    sys::add_fast_method(class, c"recvfrom", doc, function)
}

/// After a panic: every call on the plane fails, and so does this one.
#[cold]
pub fn rescue(mailbox: &Bound<'_, Mailbox>) -> PyErr {
    mailbox.get().plane.get().break_off(mailbox.py())
}

/// Do a part of a call that no `fast_function` guards.
pub fn guarded<T>(mailbox: &Bound<'_, Mailbox>, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(rescue(mailbox)))
}

// -- sending

fn sendto<'py>(
    mailbox: &Bound<'py, Mailbox>,
    arguments: Arguments<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = mailbox.py();
    let own = mailbox.get();
    own.begin(py)?;
    let (payload, address, wait_ns) = sendto_arguments(arguments, own.send_wait_ns())?;
    let bytes = send_one(mailbox, payload, address, wait_ns)?;
    Ok(bytes.into_pyobject(py)?.into_any())
}

/// Return payload, address and how long `sendto` may wait, where the socket waits for `wait_ns`.
#[inline]
pub fn sendto_arguments<'a, 'py>(
    arguments: Arguments<'a, 'py>,
    wait_ns: Option<u64>,
) -> PyResult<(
    Borrowed<'a, 'py, PyAny>,
    Borrowed<'a, 'py, PyAny>,
    Option<u64>,
)> {
    match *arguments {
        [payload, address, last] if last.is_none() => Ok((payload, address, wait_ns)),
        [payload, flags, address] if flags.is_truthy()? => {
            Ok((payload, address, wait_of_flags(flags, wait_ns)?))
        }
        [payload, address] | [payload, _, address] => Ok((payload, address, wait_ns)),
        _ => Err(wrong_count("sendto", "two or three", arguments.len())),
    }
}

/// Queue one message; return its length.
pub fn send_one(
    mailbox: &Bound<'_, Mailbox>,
    payload: Borrowed<'_, '_, PyAny>,
    address: Borrowed<'_, '_, PyAny>,
    wait_ns: Option<u64>,
) -> PyResult<usize> {
    let own = mailbox.get();
    let (bytes, sent) = if let Some(bytes) = memory::short_bytes(payload) {
        let send = |target: &_| own.shell.send_copy(own.id, target, bytes, wait_ns);
        (bytes.len(), own.with_target(address, send)?)
    } else {
        let kept = memory::payload_of(&payload)?;
        let (bytes, target) = (kept.len(), own.target(address)?);
        let message = Message::new(own.id, target, kept, NO_EXTENSION);
        (bytes, own.shell.send_now(message, wait_ns))
    };
    finish_one(mailbox, payload, address, sent, wait_ns)?;
    Ok(bytes)
}

/// Finish the send of one message, by the binding in Python if another transport has its route.
pub fn finish_one(
    mailbox: &Bound<'_, Mailbox>,
    payload: Borrowed<'_, '_, PyAny>,
    address: Borrowed<'_, '_, PyAny>,
    sent: Result<Sent, Rejected>,
    wait_ns: Option<u64>,
) -> PyResult<()> {
    match sent {
        Ok(Sent::Done) => ffi::leave_quickly(mailbox.py())?,
        Ok(Sent::Leaves(leaving)) => finish(mailbox, *leaving)?,
        unfinished => {
            if !send_on(mailbox, unfinished, wait_ns)? {
                send_outside(mailbox, payload, address, wait_ns)?;
            }
        }
    }
    Ok(())
}

/// Have the binding in Python hand a message to the transport that has its route.
#[cold]
fn send_outside(
    mailbox: &Bound<'_, Mailbox>,
    payload: Borrowed<'_, '_, PyAny>,
    address: Borrowed<'_, '_, PyAny>,
    wait_ns: Option<u64>,
) -> PyResult<()> {
    let arguments = ((payload.to_owned(),), address.to_owned(), wait_ns);
    mailbox.as_any().call_method1("send_outside", arguments)?;
    Ok(())
}

/// Queue a message gathered by `Mailbox.send`; return its length.
///
/// `None`: a transport of messages has its route.
pub fn send(
    mailbox: &Bound<'_, Mailbox>,
    payload: Payload,
    extension: Extension,
    address: Borrowed<'_, '_, PyAny>,
    wait_ns: Option<u64>,
) -> PyResult<Option<usize>> {
    let own = mailbox.get();
    let bytes = payload.len();
    let target = own.target(address)?;
    let message = Message::new(own.id, target, payload, extension).gathered();
    let sent = own.shell.send_now(message, wait_ns);
    let is_sent = send_on(mailbox, sent, wait_ns)?;
    Ok(is_sent.then_some(bytes))
}

/// Finish a send: resolve, wait, write; return false if a transport of messages has the route.
fn send_on(
    mailbox: &Bound<'_, Mailbox>,
    mut sent: Result<Sent, Rejected>,
    mut wait_ns: Option<u64>,
) -> PyResult<bool> {
    let py = mailbox.py();
    let own = mailbox.get();
    let gil = own.plane.get().gil();
    let mut signals = Signals::default();
    let mut resolves = 0;
    loop {
        let message = match sent {
            Ok(Sent::Done) => return ffi::leave_quickly(py).map(|()| true),
            Ok(Sent::External) => return Ok(false),
            Ok(Sent::Leaves(leaving)) => {
                finish(mailbox, *leaving)?;
                return Ok(true);
            }
            Ok(Sent::Waits(message)) => {
                sent = if let Some(held_ns) = gil.held_ns(&own.shell, wait_ns) {
                    wait_ns = wait_ns.map(|wait_ns| wait_ns - held_ns);
                    let sent = own
                        .shell
                        .send_shortly(*message, held_ns, &mut || signals.check());
                    if matches!(sent, Ok(Sent::Waits(_))) {
                        gil.held_for_nothing();
                    }
                    sent
                } else {
                    gil.wait_outside(py, &own.shell, || {
                        own.shell
                            .send_waiting(*message, wait_ns, &mut || signals.check())
                    })
                };
                ffi::leave(py)?;
                continue;
            }
            Ok(Sent::NoRoute(message)) => message,
            Err(refused) => {
                own.shell.sync(own.id); // it has looked at a map that the descriptor shows
                ffi::leave(py)?; // the payload may be released now
                return signals.finish_pass(py, Err(refused));
            }
        };
        let peer = message.target.address;
        if resolves == RESOLVES_MAX {
            let refused = ErrorReason::PeerUnreachable.because(format!("no route to {peer}"));
            return Err(errors::exception(py, &refused.towards(peer)));
        }
        resolves += 1;
        own.plane.get().resolve(mailbox.as_any(), &peer)?;
        sent = own.shell.send_now(*message, wait_ns);
    }
}

pub fn finish(mailbox: &Bound<'_, Mailbox>, leaving: Leaving) -> PyResult<()> {
    let shell = &mailbox.get().shell;
    if leaving.bytes() > LONG_WRITE_BYTES {
        mailbox.py().detach(|| shell.finish_send(leaving));
    } else {
        shell.finish_send(leaving);
    }
    ffi::leave(mailbox.py())
}

/// Return the wait for the flags: 0 for `MSG_DONTWAIT`; `MSG_NOSIGNAL` has no effect.
///
/// Every other flag is an error, `MSG_ZEROCOPY` because there is no cookie.
pub fn wait_of_flags(
    flags: Borrowed<'_, '_, PyAny>,
    wait_ns: Option<u64>,
) -> PyResult<Option<u64>> {
    let py = flags.py();
    if !flags.is_instance_of::<PyInt>() {
        let kind = flags.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "flags must be an integer, not {kind}"
        )));
    }
    let flags = sys::integer(flags)?;
    if flags & !(MSG_DONTWAIT | MSG_NOSIGNAL | MSG_ZEROCOPY) != 0 {
        let detail = format!("flags {flags:#x}");
        return Err(errors::refuse(py, ErrorReason::FlagsNotSupported, &detail));
    }
    if flags & MSG_ZEROCOPY != 0 {
        let detail = "MSG_ZEROCOPY needs one ZCOPY_COOKIE";
        return Err(errors::refuse(py, ErrorReason::BadCmsg, detail));
    }
    Ok(if flags & MSG_DONTWAIT == 0 {
        wait_ns
    } else {
        Some(0)
    })
}

#[cold]
pub fn wrong_count(name: &str, wanted: &str, given: usize) -> PyErr {
    PyTypeError::new_err(format!("{name}() takes {wanted} arguments ({given} given)"))
}

// -- receiving

fn recvfrom<'py>(
    mailbox: &Bound<'py, Mailbox>,
    arguments: Arguments<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = mailbox.py();
    let own = mailbox.get();
    own.begin(py)?;
    let Some(Wanted {
        bytes_max,
        wait_ns,
        peek,
    }) = recvfrom_arguments(py, arguments, own.receive_wait_ns())?
    else {
        return nothing(py);
    };
    let make = |received: Received<'_>| Came::of(own, py, received, bytes_max);
    let taken = take(mailbox, wait_ns, peek, make)?;
    named(mailbox, taken, wait_ns)?.into_pair(own, py, bytes_max)
}

/// What `recv_into` is to fill, and its flags. Its owner releases it.
pub struct Room {
    export: Export,
    bytes_max: usize,
    flags: i64,
}

impl Room {
    /// Return what these arguments name; `None` for any that Python checks.
    pub fn of(given: &Bound<'_, PyTuple>) -> Option<Self> {
        let number = |place| match given.get_borrowed_item(place) {
            Ok(number) if number.is_instance_of::<PyInt>() => number.extract::<i64>().ok(),
            Ok(_) => None,
            Err(_) => Some(0),
        };
        let buffer = given.get_item(0).ok()?;
        let (bytes_max, flags) = (usize::try_from(number(1)?).ok()?, number(2)?);
        if given.len() > 3 {
            return None;
        }
        let export = Export::of(&buffer).ok()?;
        let bytes = export.length();
        if export.is_readonly() || !export.is_contiguous() || bytes_max > bytes {
            export.release(given.py());
            return None;
        }
        Some(Self {
            export,
            bytes_max: if bytes_max == 0 { bytes } else { bytes_max },
            flags,
        })
    }

    /// Copy in what fits of a payload; return how many bytes that is, and the payload's.
    fn fill(&self, payload: &[u8]) -> Filled {
        let copied = payload.len().min(self.bytes_max);
        if copied > 0 {
            self.export.copy_in(0, &payload[..copied]);
        }
        Filled {
            copied,
            whole: payload.len(),
        }
    }

    pub fn release(self, py: Python<'_>) {
        self.export.release(py);
    }
}

/// Bytes that were copied of a payload, and how many it has.
#[derive(Clone, Copy, Default)]
struct Filled {
    copied: usize,
    whole: usize,
}

/// Take one message into memory of the caller; return as `Socket.recv_into` does, which is in Python.
pub fn recv_into(mailbox: &Bound<'_, Mailbox>, room: &Room) -> PyResult<usize> {
    let (py, own, flags) = (mailbox.py(), mailbox.get(), room.flags);
    if flags & MSG_OOB != 0 {
        return Ok(0); // as of an empty one, kernel parity
    }
    if flags & MSG_ERRQUEUE != 0 {
        return Err(none_came(py, Some(0)));
    }
    let wait_ns = match flags & MSG_DONTWAIT {
        0 => own.receive_wait_ns(),
        _ => Some(0),
    };
    // A short one is copied under the plane's lock, a long one after it.
    let make = |received: Received<'_>| match received.payload {
        ArrivingPayload::Borrowed(bytes) => Ok(room.fill(bytes)),
        ArrivingPayload::Whole(body) => Err(Box::new(body)),
    };
    let filled = match take(mailbox, wait_ns, flags & MSG_PEEK != 0, make)? {
        Taken::Message(Ok(filled)) => filled,
        Taken::Message(Err(body)) => {
            let filled = room.fill(body.bytes());
            drop(body);
            deferred::drain(py);
            filled
        }
        Taken::Operations => {
            own.shell.take_notices(own.id, 1); // lost, as by `recvfrom`
            Filled::default()
        }
        Taken::Congestion(_) => Filled::default(),
        Taken::Nothing => return Err(none_came(py, wait_ns)),
    };
    Ok(if flags & MSG_TRUNC == 0 {
        filled.copied
    } else {
        filled.whole
    })
}

/// What `recvfrom` is asked for.
pub struct Wanted {
    pub bytes_max: usize,
    pub wait_ns: Option<u64>,
    pub peek: bool,
}

/// Return what `recvfrom` is asked for, where the socket waits for `wait_ns`.
///
/// `None` for `MSG_OOB`: the answer is that to an empty message, kernel parity.
#[allow(clippy::inline_always)] // its result would be written to memory, to be read at once
#[inline(always)]
pub fn recvfrom_arguments(
    py: Python<'_>,
    arguments: Arguments<'_, '_>,
    wait_ns: Option<u64>,
) -> PyResult<Option<Wanted>> {
    let (bytes_max, flags) = match *arguments {
        [bytes_max] => (sys::integer(bytes_max)?, 0),
        [bytes_max, flags] => (sys::integer(bytes_max)?, sys::integer(flags)?),
        _ => return Err(wrong_count("recvfrom", "one or two", arguments.len())),
    };
    let Ok(bytes_max) = usize::try_from(bytes_max) else {
        return Err(PyValueError::new_err("negative buffersize in recvfrom"));
    };
    if flags & MSG_OOB != 0 {
        return Ok(None);
    }
    if flags & MSG_ERRQUEUE != 0 {
        let reason = ErrorReason::NothingToReceive;
        return Err(errors::refuse(py, reason, "MSG_ERRQUEUE"));
    }
    let never_waits = flags & MSG_DONTWAIT != 0;
    Ok(Some(Wanted {
        bytes_max,
        wait_ns: if never_waits { Some(0) } else { wait_ns },
        peek: flags & MSG_PEEK != 0,
    }))
}

/// Return what was taken as a message, a notice as an empty one without a name; nothing is an error.
#[allow(clippy::inline_always)] // it would be written to memory, to be read at once
#[inline(always)]
pub fn named<'py>(
    mailbox: &Bound<'py, Mailbox>,
    taken: Taken<Came<'py>>,
    wait_ns: Option<u64>,
) -> PyResult<Came<'py>> {
    let (py, own) = (mailbox.py(), mailbox.get());
    match taken {
        Taken::Message(came) => Ok(came),
        Taken::Operations => {
            own.shell.take_notices(own.id, 1); // kernel parity: no place for it, so it is lost
            Ok(Came::nothing(py))
        }
        Taken::Congestion(_) => Ok(Came::nothing(py)),
        Taken::Nothing => Err(none_came(py, wait_ns)),
    }
}

/// Return the error of a receive that found nothing, or waited for nothing.
#[cold]
pub fn none_came(py: Python<'_>, wait_ns: Option<u64>) -> PyErr {
    let reason = if wait_ns == Some(0) {
        ErrorReason::NothingToReceive
    } else {
        ErrorReason::TimedOut
    };
    errors::refuse(py, reason, "")
}

/// The result of `socket.recvfrom` for a message without a name.
pub fn nothing(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    Ok((PyBytes::new(py, b""), py.None())
        .into_pyobject(py)?
        .into_any())
}

/// What `recvfrom` returns of a message, before it is a tuple. Four words, for it is moved.
pub struct Came<'py> {
    payload: Payloads<'py>,
    source: Source<'py>,
}

/// The source of a message.
enum Source<'py> {
    Known(Bound<'py, PyAny>),
    /// Its tuple is still to be made.
    New(Box<SocketAddress>),
}

impl<'py> Came<'py> {
    /// Copy it out of the queue: allowed under the plane's lock.
    #[allow(clippy::inline_always)] // the message would be written to memory, to be read at once
    #[inline(always)]
    pub fn of(own: &Mailbox, py: Python<'py>, received: Received<'_>, bytes_max: usize) -> Self {
        Self {
            payload: payload_of(py, received.payload, bytes_max),
            source: match own.known_source(py, &received.source) {
                Some(tuple) => Source::Known(tuple.into_any()),
                None => Source::New(Box::new(received.source)),
            },
        }
    }

    /// What stands for a notice.
    fn nothing(py: Python<'py>) -> Self {
        Self {
            payload: Payloads::Bytes(Some(PyBytes::new(py, b""))),
            source: Source::Known(py.None().into_bound(py)),
        }
    }

    /// Return it as `recvfrom` does.
    #[allow(clippy::inline_always)] // it would be written to memory, to be read at once
    #[inline(always)]
    pub fn into_pair(
        self,
        own: &Mailbox,
        py: Python<'py>,
        bytes_max: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let payload = match self.payload {
            Payloads::Bytes(Some(bytes)) => bytes, // seen here, so that it is not moved through memory
            rare => rare.into_bytes(py, bytes_max)?,
        };
        let source = match self.source {
            Source::Known(tuple) => tuple,
            Source::New(source) => own.source(py, &source)?.into_any(),
        };
        Ok((payload, source).into_pyobject(py)?.into_any())
    }
}

/// A payload between the queue and Python.
enum Payloads<'py> {
    /// None: there was no memory for them.
    Bytes(Option<Bound<'py, PyBytes>>),
    /// A long one, to be turned into `bytes` without the plane's lock.
    Whole(Box<Body>),
}

/// Copy a short payload into `bytes`: allowed under the plane's lock, for the collector does not
/// track them.
#[inline]
fn payload_of<'py>(
    py: Python<'py>,
    payload: ArrivingPayload<'_>,
    bytes_max: usize,
) -> Payloads<'py> {
    match payload {
        ArrivingPayload::Borrowed(bytes) => {
            Payloads::Bytes(sys::copied_bytes(py, &bytes[..bytes.len().min(bytes_max)]))
        }
        ArrivingPayload::Whole(body) => Payloads::Whole(Box::new(body)),
    }
}

impl<'py> Payloads<'py> {
    fn into_bytes(self, py: Python<'py>, bytes_max: usize) -> PyResult<Bound<'py, PyBytes>> {
        match self {
            Self::Bytes(bytes) => {
                bytes.ok_or_else(|| PyMemoryError::new_err("no memory for a message"))
            }
            Self::Whole(body) if body.len() > bytes_max => {
                sys::bytes_of(py, &body.bytes()[..bytes_max])
            }
            Self::Whole(body) => Ok(memory::bytes_of(py, *body)),
        }
    }
}

/// Take what is next, with the interpreter; wait for it without.
pub fn take<T>(
    mailbox: &Bound<'_, Mailbox>,
    wait_ns: Option<u64>,
    peek: bool,
    mut make: impl FnMut(Received<'_>) -> T,
) -> PyResult<Taken<T>> {
    let py = mailbox.py();
    let own = mailbox.get();
    let shell = &own.shell;
    let mut until_ns = None;
    loop {
        match shell.take(own.id, peek, &mut make) {
            Ok(Taken::Nothing) => {}
            Ok(taken) => return Ok(taken),
            Err(refused) => return Err(errors::exception(py, &refused)),
        }
        let mut signals = Signals::default();
        let came = if wait_ns == Some(0) {
            shell.wait_arrival(own.id, wait_ns, &mut || false) // one pass, which never blocks
        } else {
            let left_ns = wait_ns.map(|wait_ns| {
                let now_ns = shell.now_ns();
                until_ns
                    .get_or_insert(now_ns.saturating_add(wait_ns))
                    .saturating_sub(now_ns)
            });
            wait_arrival(mailbox, left_ns, &mut signals)
        };
        if let Err(raised) = ffi::leave(py) {
            shell.pass_on_arrival(own.id);
            return Err(raised);
        }
        if !signals.finish_pass(py, came)? {
            return Ok(Taken::Nothing);
        }
    }
}

/// Wait for a message: first with the interpreter if another thread computes, then without.
fn wait_arrival(
    mailbox: &Bound<'_, Mailbox>,
    wait_ns: Option<u64>,
    signals: &mut Signals,
) -> Result<bool, Rejected> {
    let own = mailbox.get();
    let (shell, gil) = (&own.shell, own.plane.get().gil());
    let mut left_ns = wait_ns;
    if own.busy_polls() {
        let polled_ns = wait_ns.map_or(POLLED_NS, |wait_ns| wait_ns.min(POLLED_NS));
        if shell.poll_for_arrival(own.id, polled_ns, &mut || signals.check())? {
            return Ok(true);
        }
        left_ns = wait_ns.map(|wait_ns| wait_ns - polled_ns);
    }
    if let Some(held_ns) = gil.held_ns(shell, left_ns) {
        if shell.look_for_arrival(own.id, held_ns, &mut || signals.check())? {
            return Ok(true);
        }
        gil.held_for_nothing();
        left_ns = left_ns.map(|left_ns| left_ns - held_ns);
    }
    gil.wait_outside(mailbox.py(), shell, || {
        shell.wait_arrival(own.id, left_ns, &mut || signals.check())
    })
}

/// Take what is next with all of its details; see the stub.
pub fn receive<'py>(
    mailbox: &Bound<'py, Mailbox>,
    wait_ns: Option<u64>,
    peek: bool,
    notices_max: i64,
) -> PyResult<Bound<'py, PyAny>> {
    let py = mailbox.py();
    let own = mailbox.get();
    let make = |received: Received<'_>| Detailed {
        payload: payload_of(py, received.payload, usize::MAX),
        source: received.source,
        extension: received.extension,
        time_ns: received.time_ns,
        queued_ns: received.queued_ns,
    };
    match take(mailbox, wait_ns, peek, make)? {
        Taken::Message(message) => message.into_tuple(own, py),
        Taken::Operations => {
            let count = usize::try_from(notices_max).unwrap_or(0);
            let notices = own.shell.take_notices(own.id, count);
            let plain = notices.iter().map(|notice| (notice.token, notice.status));
            Ok(PyList::new(py, plain.collect::<Vec<_>>())?.into_any())
        }
        Taken::Congestion(groups) => Ok(groups.into_pyobject(py)?.into_any()),
        Taken::Nothing => Ok(py.None().into_bound(py)),
    }
}

/// A message that was taken, with its details.
struct Detailed<'py> {
    payload: Payloads<'py>,
    source: SocketAddress,
    extension: Extension,
    time_ns: u64,
    queued_ns: Option<u64>,
}

impl<'py> Detailed<'py> {
    fn into_tuple(self, own: &Mailbox, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let payload = self.payload.into_bytes(py, usize::MAX)?;
        let source = own.source(py, &self.source)?;
        let extension = values::extension_bytes(&self.extension);
        let trace = match self.queued_ns {
            Some(queued_ns) => own.trace(py, LAST_POSITION, queued_ns)?,
            None => pyo3::types::PyTuple::empty(py),
        };
        Ok((payload, source, extension, self.time_ns, trace)
            .into_pyobject(py)?
            .into_any())
    }
}
