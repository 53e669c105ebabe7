//! The calls of each message of a socket at a node: `sendto`, `recvfrom`, and those of many.

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyType};
use urds_client::ReceivedKind;

use crate::attached_mailbox::{AttachedMailbox, outgoing_to};
use crate::burst_calls::{self, Messages};
use crate::sys::{self, Arguments, fast_function};
use crate::{errors, fast_calls, memory};

/// Add the methods to the class.
pub fn add_methods(class: &Bound<'_, PyType>) -> PyResult<()> {
    let function = fast_function!(AttachedMailbox, sendto, rescue);
    let doc = c"Queue one message, as `socket.socket.sendto`; return its length.";
    sys::add_fast_method(class, c"sendto", doc, function)?;
    let function = fast_function!(AttachedMailbox, recvfrom, rescue);
    let doc = c"Take one message, as `socket.socket.recvfrom`; an excess is discarded.";
    sys::add_fast_method(class, c"recvfrom", doc, function)?;
    let function = fast_function!(AttachedMailbox, send_many, rescue);
    sys::add_fast_method(class, c"send_many", burst_calls::SEND_MANY_DOC, function)?;
    let function = fast_function!(AttachedMailbox, recv_many, rescue);
    sys::add_fast_method(class, c"recv_many", burst_calls::RECV_MANY_DOC, function)
}

#[cold]
fn rescue(mailbox: &Bound<'_, AttachedMailbox>) -> PyErr {
    errors::fault(mailbox.py())
}

// -- sending

fn sendto<'py>(
    mailbox: &Bound<'py, AttachedMailbox>,
    arguments: Arguments<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let own_ns = mailbox.get().send_wait_ns();
    let (payload, address, wait_ns) = fast_calls::sendto_arguments(arguments, own_ns)?;
    let sent = send_one(mailbox, payload, address, wait_ns)?;
    Ok(sent.into_pyobject(mailbox.py())?.into_any())
}

fn send_many<'py>(
    mailbox: &Bound<'py, AttachedMailbox>,
    arguments: Arguments<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let (messages, peer) = burst_calls::send_many_arguments(arguments)?;
    burst_calls::counted(mailbox.py(), |count| {
        send_all(mailbox, &messages, peer, count)
    })
}

fn send_all<'py>(
    mailbox: &Bound<'py, AttachedMailbox>,
    messages: &Messages<'_, 'py>,
    peer: Borrowed<'_, 'py, PyAny>,
    count: &mut usize,
) -> PyResult<()> {
    while *count < messages.len() {
        let (payload, address) = messages.parts(*count, peer)?;
        let (payload, address) = (payload.as_borrowed(), address.as_borrowed());
        // A signal handler may have changed the wait.
        send_one(mailbox, payload, address, mailbox.get().send_wait_ns())?;
        *count += 1;
    }
    Ok(())
}

fn send_one(
    mailbox: &Bound<'_, AttachedMailbox>,
    payload: Borrowed<'_, '_, PyAny>,
    address: Borrowed<'_, '_, PyAny>,
    wait_ns: Option<u64>,
) -> PyResult<usize> {
    let (py, own) = (mailbox.py(), mailbox.get());
    let outgoing = outgoing_to(&own.target(address)?);
    if let Ok(bytes) = payload.cast_exact::<PyBytes>() {
        // The caller has it for as long as the call lasts, so it needs no copy and no reference.
        own.send_bytes(py, sys::bytes_in(bytes), &outgoing, wait_ns)
    } else {
        own.send_payload(py, memory::payload_of(&payload)?, &outgoing, wait_ns)
    }
}

// -- receiving

fn recvfrom<'py>(
    mailbox: &Bound<'py, AttachedMailbox>,
    arguments: Arguments<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let (py, own) = (mailbox.py(), mailbox.get());
    let own_ns = own.receive_wait_ns();
    let Some(wanted) = fast_calls::recvfrom_arguments(py, arguments, own_ns)? else {
        return fast_calls::nothing(py);
    };
    let taken = take_one(mailbox, wanted.bytes_max, wanted.wait_ns, wanted.peek)?;
    taken.ok_or_else(|| fast_calls::none_came(py, wanted.wait_ns))
}

fn recv_many<'py>(
    mailbox: &Bound<'py, AttachedMailbox>,
    arguments: Arguments<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = mailbox.py();
    let (count_max, bytes_max) = burst_calls::recv_many_arguments(arguments)?;
    let wait_ns = mailbox.get().receive_wait_ns();
    let first = take_one(mailbox, bytes_max, wait_ns, false)?;
    let mut came = vec![first.ok_or_else(|| fast_calls::none_came(py, wait_ns))?];
    while came.len() < count_max {
        match take_one(mailbox, bytes_max, Some(0), false) {
            Ok(Some(pair)) => came.push(pair),
            Ok(None) => break,
            // The next call meets the error, if it lasts: this one has a message.
            Err(error) if error.is_instance_of::<PyOSError>(py) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(PyList::new(py, came)?.into_any())
}

/// Take what is next as the pair that `recvfrom` returns.
fn take_one<'py>(
    mailbox: &Bound<'py, AttachedMailbox>,
    bytes_max: usize,
    wait_ns: Option<u64>,
    peek: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let (py, own) = (mailbox.py(), mailbox.get());
    let Some(taken) = own.take(py, bytes_max, wait_ns, peek)? else {
        return Ok(None);
    };
    match (taken.message.kind, taken.payload) {
        (ReceivedKind::Message, Some(payload)) => {
            let told = (payload?, own.source(py, &taken.message.source)?);
            Ok(Some(told.into_pyobject(py)?.into_any()))
        }
        _ => fast_calls::nothing(py).map(Some),
    }
}
