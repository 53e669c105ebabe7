//! The calls of many messages: `send_many` and `recv_many`.
//!
//! What they do is what `sendto` and `recvfrom` would do one after the other, in few critical
//! sections. Nothing of the interpreter's runs in one of them but the copies of short payloads.

use pyo3::exceptions::{PyOSError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple, PyType};
use urds_dataplane::receive_side::Received;
use urds_dataplane::send_side::{Message, Sent};
use urds_path::{NO_EXTENSION, Payload, SocketAddress};

use crate::fast_calls::{self, Came};
use crate::mailbox::Mailbox;
use crate::sys::{self, Arguments, fast_function};
use crate::{errors, memory};

/// Messages that are read before they are queued in one critical section.
const BURST_MESSAGES: usize = 64;

/// Add the methods to the class.
pub fn add_methods(class: &Bound<'_, PyType>) -> PyResult<()> {
    let function = fast_function!(Mailbox, send_many, fast_calls::rescue);
    let doc = c"Queue messages of a list or tuple; return how many.";
    sys::add_fast_method(class, c"send_many", doc, function)?;
    let function = fast_function!(Mailbox, recv_many, fast_calls::rescue);
    let doc = c"Wait for a message, then take what is there, with sources.";
    sys::add_fast_method(class, c"recv_many", doc, function)
}

// -- sending

/// A message of a list, read.
struct Given<'py> {
    payload: Bound<'py, PyAny>,
    address: Bound<'py, PyAny>,
}

/// A short one among them, ready to be queued.
struct Ready<'py> {
    payload: Bound<'py, PyBytes>,
    address: Bound<'py, PyAny>,
    target: SocketAddress,
}

/// Messages, as a list or a tuple, and the destination of those whose address is None.
fn send_many<'py>(
    mailbox: &Bound<'py, Mailbox>,
    arguments: Arguments<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = mailbox.py();
    mailbox.get().begin(py)?;
    let [messages, peer] = *arguments else {
        let count = arguments.len();
        return Err(fast_calls::wrong_count("send_many", "two", count));
    };
    let mut count = 0;
    match send_all(mailbox, &messages, &peer, &mut count) {
        Err(error) if count == 0 || !error.is_instance_of::<PyOSError>(py) => Err(error),
        _ => Ok(count.into_pyobject(py)?.into_any()), // the next call meets the error, if it lasts
    }
}

fn send_all<'py>(
    mailbox: &Bound<'py, Mailbox>,
    messages: &Bound<'py, PyAny>,
    peer: &Bound<'py, PyAny>,
    count: &mut usize,
) -> PyResult<()> {
    let mut burst = Vec::with_capacity(BURST_MESSAGES.min(messages.len()?));
    let mut at = 0;
    while let Some(given) = given_at(messages, at)? {
        let read = ready(mailbox, given, peer);
        at += 1;
        match read {
            Ok(Read::Short(ready)) => {
                burst.push(ready);
                if burst.len() == BURST_MESSAGES {
                    send_burst(mailbox, &mut burst, count)?;
                }
            }
            Ok(Read::Other(given)) => {
                send_burst(mailbox, &mut burst, count)?;
                let wait_ns = mailbox.get().send_wait_ns();
                let (payload, address) = (given.payload.as_borrowed(), given.address.as_borrowed());
                fast_calls::send_one(mailbox, payload, address, wait_ns)?;
                *count += 1;
            }
            Err(error) => {
                send_burst(mailbox, &mut burst, count)?;
                return Err(error);
            }
        }
    }
    send_burst(mailbox, &mut burst, count)
}

/// Return an item of a list or tuple; None after the last.
fn given_at<'py>(messages: &Bound<'py, PyAny>, at: usize) -> PyResult<Option<Bound<'py, PyAny>>> {
    if let Ok(list) = messages.cast::<PyList>() {
        return Ok(list.get_item(at).ok());
    }
    let tuple = messages.cast::<PyTuple>()?;
    Ok(tuple.get_item(at).ok())
}

enum Read<'py> {
    Short(Ready<'py>),
    /// To be sent by itself.
    Other(Given<'py>),
}

fn ready<'py>(
    mailbox: &Bound<'py, Mailbox>,
    given: Bound<'py, PyAny>,
    peer: &Bound<'py, PyAny>,
) -> PyResult<Read<'py>> {
    let pair = match given.cast_into::<PyTuple>() {
        Ok(pair) => Some(pair),
        Err(other) => other
            .into_inner()
            .cast_into::<PyList>()
            .ok()
            .map(|pair| pair.to_tuple()),
    };
    let Some(pair) = pair.filter(|pair| pair.len() == 2) else {
        let wanted = "a message is a tuple of payload and address";
        return Err(PyTypeError::new_err(wanted));
    };
    let (payload, address) = (pair.get_item(0)?, pair.get_item(1)?);
    let address = if address.is_none() {
        peer.clone()
    } else {
        address
    };
    if memory::short_bytes(&payload).is_none() {
        return Ok(Read::Other(Given { payload, address }));
    }
    let target = mailbox.get().target(address.as_borrowed())?;
    Ok(Read::Short(Ready {
        payload: payload.cast_into::<PyBytes>()?,
        address,
        target,
    }))
}

/// Queue messages and forget them; count those that are queued.
fn send_burst<'py>(
    mailbox: &Bound<'py, Mailbox>,
    burst: &mut Vec<Ready<'py>>,
    count: &mut usize,
) -> PyResult<()> {
    let own = mailbox.get();
    let mut done = 0;
    while done < burst.len() {
        let wait_ns = own.send_wait_ns(); // a signal handler may have changed it
        let messages = burst[done..].iter().map(|one| {
            let payload = Payload::copy_of(one.payload.as_bytes());
            Message::new(own.id, one.target, payload, NO_EXTENSION)
        });
        let (queued, sent) = own.shell.send_burst(messages, wait_ns);
        done += queued;
        *count += queued;
        match sent {
            Ok(Sent::Done) => {}
            Ok(Sent::Leaves(leaving)) => fast_calls::finish(mailbox, leaving)?,
            unfinished => {
                let one = &burst[done];
                let (payload, address) = (one.payload.as_borrowed(), one.address.as_borrowed());
                let payload = payload.as_any().as_borrowed();
                fast_calls::finish_one(mailbox, payload, address, one.target, unfinished, wait_ns)?;
                done += 1;
                *count += 1;
            }
        }
    }
    burst.clear();
    Ok(())
}

// -- receiving

/// The greatest number of messages, and of bytes of each.
fn recv_many<'py>(
    mailbox: &Bound<'py, Mailbox>,
    arguments: Arguments<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = mailbox.py();
    let own = mailbox.get();
    own.begin(py)?;
    let [count_max, bytes_max] = *arguments else {
        let count = arguments.len();
        return Err(fast_calls::wrong_count("recv_many", "two", count));
    };
    let count_max = usize::try_from(sys::integer(count_max)?).unwrap_or(0);
    let bytes_max = usize::try_from(sys::integer(bytes_max)?).unwrap_or(0);
    let mut came = Vec::with_capacity(BURST_MESSAGES.min(count_max));
    take_burst(mailbox, count_max, bytes_max, &mut came)?;
    let mut pairs = Vec::with_capacity(came.len());
    if came.is_empty() {
        let wait_ns = own.receive_wait_ns();
        let make = |received: Received<'_>| Came::of(py, received, bytes_max);
        let first = fast_calls::take(mailbox, wait_ns, false, make)?;
        // A socket closed meanwhile is an error of the next call: this one has a message.
        let _ = take_burst(mailbox, count_max.saturating_sub(1), bytes_max, &mut came);
        pairs.reserve_exact(1 + came.len());
        pairs.push(fast_calls::named(mailbox, first, bytes_max, wait_ns)?);
    }
    let mut sources = fast_calls::Sources::default();
    for one in came {
        pairs.push(sources.named(mailbox, one, bytes_max)?);
    }
    Ok(PyList::new(py, pairs)?.into_any())
}

/// Take what is queued, at most `count_max` messages, up to a notice.
fn take_burst<'py>(
    mailbox: &Bound<'py, Mailbox>,
    count_max: usize,
    bytes_max: usize,
    came: &mut Vec<Came<'py>>,
) -> PyResult<()> {
    let (py, own) = (mailbox.py(), mailbox.get());
    let make = |received: Received<'_>| came.push(Came::of(py, received, bytes_max));
    let taken = own.shell.take_burst(own.id, count_max, make);
    taken.map_err(|refused| errors::exception(py, &refused))
}
