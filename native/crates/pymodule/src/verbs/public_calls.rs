//! The calls of each message as the objects of `urds.verbs` have them.
//!
//! `QP` and `CQ` have them in the instance while they are open: neither a frame of Python nor a lock of
//! Python is in the way. They differ from the engine's own in their errors, and in that what they leave
//! to the device is done before they return.

use pyo3::exceptions::PyOSError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use urds_verbs::Engine as Machine;
use urds_verbs::errors::Rejected;
use urds_verbs::memory::Payload;
use urds_verbs::numbers::Opcode;
use urds_verbs::work::{Doubts, Opcoded, Pieces, RecvWork, SendWork};

use crate::verbs::queue_pair::QueuePair;
use crate::verbs::queues::{CompletionQueue, listed};
use crate::verbs::records::{RecvWR, SendWR};
use crate::verbs::requests::{own_bytes, recv_record, recv_work, send_record, send_work};
use crate::verbs::values::{refused, tables};

/// Requests of one call: a chain may lead back to its start.
const REQUESTS_MAX: usize = 1 << 20;
/// Up to so many bytes of a short form are copied while it is posted.
const COPIED_BYTES_MAX: usize = 4096;

/// One request of a call, as the machine takes it.
trait Work: Sized {
    /// Whether it may give channels something to send.
    const SPEAKS: bool;
    /// The classes of such a request, in `urds.verbs.records`.
    const KINDS: &'static str;

    /// Read a native record that is in no chain, and plain; of any other object `None`.
    fn read_single(object: &Bound<'_, PyAny>, is_datagram: bool) -> Option<PyResult<Self>>;
    /// Read any request.
    fn read(object: &Bound<'_, PyAny>, is_datagram: bool) -> PyResult<Self>;
    /// Return whether it is a native record.
    fn is_native(object: &Bound<'_, PyAny>) -> bool;
    fn post(self, machine: &mut Machine, number: u32) -> Result<(), Rejected>;
}

struct Send(Opcoded, Doubts);

impl Work for Send {
    const SPEAKS: bool = true;
    const KINDS: &'static str = "SENDS";

    #[inline]
    fn read_single(object: &Bound<'_, PyAny>, is_datagram: bool) -> Option<PyResult<Self>> {
        let py = object.py();
        let record = object.cast_exact::<SendWR>().ok()?.borrow();
        let is_single = record.next_wr.is_none(py) && !is_datagram;
        let is_plain = is_single && record.ah.is_none(py) && record.window.is_none(py);
        is_plain.then(|| send_record(py, &record).map(|(work, doubts)| Self(work, doubts)))
    }

    fn read(object: &Bound<'_, PyAny>, is_datagram: bool) -> PyResult<Self> {
        let py = object.py();
        let ah = object.getattr(intern!(py, "ah"))?;
        let window = object.getattr(intern!(py, "window"))?;
        let tables = tables(py)?;
        let is_vector = ah.get_type().is(tables.address_vector.bind(py));
        let is_plain = if is_datagram { is_vector } else { ah.is_none() };
        let (work, doubts) = if is_plain && window.is_none() {
            send_work(object)?
        } else {
            send_work(&tables.engine_form(py, object, is_datagram)?)?
        };
        Ok(Self(work, doubts))
    }

    fn is_native(object: &Bound<'_, PyAny>) -> bool {
        object.is_exact_instance_of::<SendWR>()
    }

    fn post(self, machine: &mut Machine, number: u32) -> Result<(), Rejected> {
        machine.post_send(number, self.0, &self.1)
    }
}

struct Recv(RecvWork);

impl Work for Recv {
    // What it completes, in ERR, is the adapter's to tell.
    const SPEAKS: bool = false;
    const KINDS: &'static str = "RECEIVES";

    #[inline]
    fn read_single(object: &Bound<'_, PyAny>, _is_datagram: bool) -> Option<PyResult<Self>> {
        let py = object.py();
        let record = object.cast_exact::<RecvWR>().ok()?.borrow();
        let is_single = record.next_wr.is_none(py);
        is_single.then(|| recv_record(py, &record).map(Self))
    }

    fn read(object: &Bound<'_, PyAny>, _is_datagram: bool) -> PyResult<Self> {
        recv_work(object).map(Self)
    }

    fn is_native(object: &Bound<'_, PyAny>) -> bool {
        object.is_exact_instance_of::<RecvWR>()
    }

    fn post(self, machine: &mut Machine, number: u32) -> Result<(), Rejected> {
        machine.post_recv(number, self.0)
    }
}

/// Return the request behind another; `None` if `object` is no request.
fn next_of<'py>(object: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    object.getattr(intern!(object.py(), "next_wr")).ok()
}

/// Check that an object is a request of this kind, of either class. Raises `TypeError`.
fn demand<W: Work>(object: &Bound<'_, PyAny>, what: &str) -> PyResult<()> {
    if W::is_native(object) {
        return Ok(());
    }
    let py = object.py();
    let kinds = py.import("urds.verbs.records")?.getattr(W::KINDS)?;
    let demand_kind = py.import("urds.verbs.errors")?.getattr("demand_kind")?;
    demand_kind.call1((object, kinds, what)).map(drop)
}

// -- posting

/// Post a request, a list of them, or a chain.
pub fn post_send(qp: &QueuePair, wr: &Bound<'_, PyAny>) -> PyResult<()> {
    post::<Send>(qp, wr)
}

/// Post a receive, a list of them, or a chain.
pub fn post_recv(qp: &QueuePair, wr: &Bound<'_, PyAny>) -> PyResult<()> {
    post::<Recv>(qp, wr)
}

/// Post a SEND of bytes.
pub fn send(qp: &QueuePair, data: &Bound<'_, PyAny>, wr_id: u64, flags: u32) -> PyResult<()> {
    let py = data.py();
    qp.demand_open(py)?;
    let mut work = SendWork::boxed(wr_id, Opcode::Send, Pieces::None);
    work.flags = flags;
    post_bytes(qp, py, work, data)
}

/// Post a WRITE of bytes.
pub fn write(
    qp: &QueuePair,
    data: &Bound<'_, PyAny>,
    address: u64,
    rkey: u32,
    wr_id: u64,
    flags: u32,
) -> PyResult<()> {
    let py = data.py();
    qp.demand_open(py)?;
    let mut work = SendWork::boxed(wr_id, Opcode::RdmaWrite, Pieces::None);
    (work.flags, work.remote_addr, work.rkey) = (flags, address, rkey);
    post_bytes(qp, py, work, data)
}

fn post_bytes(
    qp: &QueuePair,
    py: Python<'_>,
    mut work: Box<SendWork>,
    data: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let bytes = data
        .cast_exact::<PyBytes>()
        .ok()
        .map(PyBytesMethods::as_bytes);
    match bytes.filter(|bytes| bytes.len() <= COPIED_BYTES_MAX) {
        Some(bytes) => work.own.copy(Payload::Bytes(bytes)),
        None => work.own = own_bytes(data).map_err(|error| rejected(py, error, 0))?,
    }
    post_one(qp, py, Send(Opcoded::Known(work), Doubts::default()))
}

fn post<W: Work>(qp: &QueuePair, given: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = given.py();
    qp.demand_open(py)?;
    if let Some(work) = W::read_single(given, qp.is_datagram()) {
        return post_one(qp, py, work.map_err(|error| rejected(py, error, 0))?);
    }
    let is_request = next_of(given).is_some();
    if let (false, Ok(heads)) = (is_request, given.try_iter()) {
        return post_many::<W>(qp, py, heads);
    }
    demand::<W>(given, "what is posted")?;
    post_many::<W>(qp, py, std::iter::once(Ok(given.clone())))
}

#[inline]
fn post_one<W: Work>(qp: &QueuePair, py: Python<'_>, work: W) -> PyResult<()> {
    let result = posting::<W, _>(qp, py, |machine| work.post(machine, qp.number()))?;
    result.map_err(|error| not_posted(qp, py, &error, 0))
}

/// Post in one call of the engine, and send what that gives.
#[inline]
fn posting<W: Work, T>(
    qp: &QueuePair,
    py: Python<'_>,
    post: impl FnOnce(&mut Machine) -> T,
) -> PyResult<T> {
    if !W::SPEAKS {
        return qp.core.call_pass(py, post);
    }
    qp.core.through_pass(py, |machine, channels, now| {
        let result = post(machine);
        channels.flush(machine, now);
        result
    })
}

/// Return the error of a post; another thread may have closed the queue pair since the call began.
#[cold]
fn not_posted(qp: &QueuePair, py: Python<'_>, error: &Rejected, place: usize) -> PyErr {
    match qp.demand_open(py) {
        Ok(()) => rejected(py, refused(error), place),
        Err(closed) => closed,
    }
}

/// Post what comes, in one call of the engine; what precedes a rejected one is posted.
fn post_many<'py, W: Work>(
    qp: &QueuePair,
    py: Python<'py>,
    heads: impl Iterator<Item = PyResult<Bound<'py, PyAny>>>,
) -> PyResult<()> {
    let mut works = Vec::new();
    let failure = read_all::<W>(qp, heads, &mut works).err();
    if works.is_empty() {
        return failure.map_or(Ok(()), Err);
    }
    let result = posting::<W, _>(qp, py, |machine| {
        for (place, work) in works.into_iter().enumerate() {
            let posted = work.post(machine, qp.number());
            posted.map_err(|error| (place, error))?;
        }
        Ok(())
    })?;
    // One that is rejected stands before one that could not be read.
    result.map_err(|(place, error)| not_posted(qp, py, &error, place))?;
    failure.map_or(Ok(()), Err)
}

/// Read each request that comes and what is chained to it.
fn read_all<'py, W: Work>(
    qp: &QueuePair,
    heads: impl Iterator<Item = PyResult<Bound<'py, PyAny>>>,
    works: &mut Vec<W>,
) -> PyResult<()> {
    for head in heads {
        let mut next = Some(head?);
        while let Some(object) = next {
            let (py, place) = (object.py(), works.len());
            if place == REQUESTS_MAX {
                let detail = format!("more than {REQUESTS_MAX} work requests in one call");
                return Err(rejected(py, refused(&Rejected::invalid(detail)), place));
            }
            if let Some(work) = W::read_single(&object, qp.is_datagram()) {
                works.push(work.map_err(|error| rejected(py, error, place))?);
                break;
            }
            demand::<W>(&object, "a work request of the list")?;
            let work = W::read(&object, qp.is_datagram());
            works.push(work.map_err(|error| rejected(py, error, place))?);
            next = next_of(&object).filter(|after| !after.is_none());
        }
    }
    Ok(())
}

/// Return the error of a rejected request: `VerbsPostError` for one of the system's kind.
#[cold]
fn rejected(py: Python<'_>, error: PyErr, place: usize) -> PyErr {
    if !error.is_instance_of::<PyOSError>(py) {
        return error;
    }
    match tables(py).and_then(|tables| tables.post_error(py, error.value(py), place)) {
        Ok(made) => {
            made.set_cause(py, Some(error));
            made
        }
        Err(failure) => failure,
    }
}

// -- polling

/// Take completions; return how many, and them.
pub fn poll<'py>(
    queue: &CompletionQueue,
    py: Python<'py>,
    count: i64,
) -> PyResult<(usize, Bound<'py, PyList>)> {
    queue.demand_open(py)?;
    let count = usize::try_from(count).unwrap_or(0);
    let taken = queue.core.poll_all(py, queue.number, count)?;
    let taken = taken.as_slice();
    Ok((taken.len(), listed(py, taken)?))
}
