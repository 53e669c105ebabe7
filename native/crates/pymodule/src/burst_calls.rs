//! The calls of many messages: `send_many` and `recv_many`.
//!
//! What they do is what `sendto` and `recvfrom` would do one after the other, in few critical
//! sections. No code of Python runs in one of them: they read plain tuples and copy short payloads.

use std::ffi::CStr;

use pyo3::exceptions::{PyOSError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple, PyType};
use urds_dataplane::receive_side::Received;
use urds_dataplane::send_side::Sent;

use crate::fast_calls::{self, Came};
use crate::mailbox::Mailbox;
use crate::sys::{self, Arguments, fast_function};
use crate::{errors, ffi, memory};

pub const SEND_MANY_DOC: &CStr = c"Queue messages of a list or tuple; return how many.";
pub const RECV_MANY_DOC: &CStr = c"Wait for a message, then take what is there, with sources.";

/// The most messages that are queued in one critical section.
const BURST_MESSAGES: usize = 64;

/// Add the methods to the class.
pub fn add_methods(class: &Bound<'_, PyType>) -> PyResult<()> {
    let function = fast_function!(Mailbox, send_many, fast_calls::rescue);
    sys::add_fast_method(class, c"send_many", SEND_MANY_DOC, function)?;
    let function = fast_function!(Mailbox, recv_many, fast_calls::rescue);
    sys::add_fast_method(class, c"recv_many", RECV_MANY_DOC, function)
}

// -- sending

fn send_many<'py>(
    mailbox: &Bound<'py, Mailbox>,
    arguments: Arguments<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = mailbox.py();
    mailbox.get().begin(py)?;
    let (messages, peer) = send_many_arguments(arguments)?;
    counted(py, |count| send_all(mailbox, &messages, peer, count))
}

/// Return what `send_many` is given: messages, as a list or a tuple, and their destination.
pub fn send_many_arguments<'a, 'py>(
    arguments: Arguments<'a, 'py>,
) -> PyResult<(Messages<'a, 'py>, Borrowed<'a, 'py, PyAny>)> {
    let [messages, peer] = *arguments else {
        let count = arguments.len();
        return Err(fast_calls::wrong_count("send_many", "two", count));
    };
    Ok((Messages::of(messages)?, peer))
}

/// Return how many messages `send` queues; what it raises, unless an `OSError` follows a message.
pub fn counted(
    py: Python<'_>,
    send: impl FnOnce(&mut usize) -> PyResult<()>,
) -> PyResult<Bound<'_, PyAny>> {
    let mut count = 0;
    match send(&mut count) {
        Err(error) if count == 0 || !error.is_instance_of::<PyOSError>(py) => Err(error),
        _ => Ok(count.into_pyobject(py)?.into_any()), // the next call meets the error, if it lasts
    }
}

fn send_all<'py>(
    mailbox: &Bound<'py, Mailbox>,
    messages: &Messages<'_, 'py>,
    peer: Borrowed<'_, 'py, PyAny>,
    count: &mut usize,
) -> PyResult<()> {
    while *count < messages.len() {
        let before = *count;
        send_burst(mailbox, messages, peer, count)?;
        if *count == before {
            let (payload, address) = messages.parts(before, peer)?;
            let (payload, address) = (payload.as_borrowed(), address.as_borrowed());
            let wait_ns = mailbox.get().send_wait_ns();
            fast_calls::send_one(mailbox, payload, address, wait_ns)?;
            *count += 1;
        }
    }
    Ok(())
}

/// Queue those that are next and need no code of Python; count them.
fn send_burst<'py>(
    mailbox: &Bound<'py, Mailbox>,
    messages: &Messages<'_, 'py>,
    peer: Borrowed<'_, 'py, PyAny>,
    count: &mut usize,
) -> PyResult<()> {
    let own = mailbox.get();
    let wait_ns = own.send_wait_ns(); // a signal handler may have changed it
    let mut burst = own.shell.burst(own.id, wait_ns);
    for at in *count..messages.len().min(*count + BURST_MESSAGES) {
        let goes_on = messages.at(at).is_ok_and(|given| {
            plain_message(&given, peer).is_some_and(|(bytes, address)| {
                let add = |target: &_| burst.add(target, bytes);
                own.with_known_target(address, add).unwrap_or(false)
            })
        });
        if !goes_on {
            break;
        }
    }
    let (queued, sent) = burst.end();
    *count += queued;
    match sent {
        Ok(Sent::Done) => ffi::leave_quickly(mailbox.py())?,
        Ok(Sent::Leaves(leaving)) => fast_calls::finish(mailbox, *leaving)?,
        unfinished => {
            // The interpreter was held, so it is the message that was read.
            let (payload, address) = messages.parts(*count, peer)?;
            let (payload, address) = (payload.as_borrowed(), address.as_borrowed());
            fast_calls::finish_one(mailbox, payload, address, unfinished, wait_ns)?;
            *count += 1;
        }
    }
    Ok(())
}

/// What `send_many` is given.
pub enum Messages<'a, 'py> {
    List(Borrowed<'a, 'py, PyList>),
    Tuple(Borrowed<'a, 'py, PyTuple>),
}

impl<'a, 'py> Messages<'a, 'py> {
    fn of(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match given.cast::<PyList>() {
            Ok(list) => Ok(Self::List(list)),
            Err(_) => Ok(Self::Tuple(given.cast::<PyTuple>()?)),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Tuple(tuple) => tuple.len(),
        }
    }

    fn at(&self, at: usize) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::List(list) => list.get_item(at),
            Self::Tuple(tuple) => tuple.get_item(at),
        }
    }

    /// Return payload and address of a message; an address None means `peer`.
    pub fn parts(
        &self,
        at: usize,
        peer: Borrowed<'_, 'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let given = self.at(at)?;
        let listed = given.cast::<PyList>().map(PyListMethods::to_tuple).ok();
        let pair = listed.or_else(|| given.cast::<PyTuple>().ok().cloned());
        let Some(pair) = pair.filter(|pair| pair.len() == 2) else {
            let wanted = "a message is a tuple of payload and address";
            return Err(PyTypeError::new_err(wanted));
        };
        let (payload, address) = (pair.get_item(0)?, pair.get_item(1)?);
        let is_none = address.is_none();
        Ok((payload, if is_none { peer.to_owned() } else { address }))
    }
}

/// Return payload and address of a message that is a plain tuple of short `bytes` and an address.
#[inline]
fn plain_message<'a, 'py>(
    given: &'a Bound<'py, PyAny>,
    peer: Borrowed<'a, 'py, PyAny>,
) -> Option<(&'a [u8], Borrowed<'a, 'py, PyAny>)> {
    let pair = given.as_borrowed().cast_exact::<PyTuple>().ok()?;
    if pair.len() != 2 {
        return None;
    }
    let (payload, address) = (sys::member(pair, 0)?, sys::member(pair, 1)?);
    let is_none = address.is_none();
    Some((
        memory::short_bytes(payload)?,
        if is_none { peer } else { address },
    ))
}

// -- receiving

/// Return what `recv_many` is given: the greatest number of messages, and of bytes of each.
pub fn recv_many_arguments(arguments: Arguments<'_, '_>) -> PyResult<(usize, usize)> {
    let [count_max, bytes_max] = *arguments else {
        let count = arguments.len();
        return Err(fast_calls::wrong_count("recv_many", "two", count));
    };
    let count_max = usize::try_from(sys::integer(count_max)?).unwrap_or(0);
    let bytes_max = usize::try_from(sys::integer(bytes_max)?).unwrap_or(0);
    Ok((count_max, bytes_max))
}

fn recv_many<'py>(
    mailbox: &Bound<'py, Mailbox>,
    arguments: Arguments<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = mailbox.py();
    let own = mailbox.get();
    own.begin(py)?;
    let (count_max, bytes_max) = recv_many_arguments(arguments)?;
    let mut came = Vec::with_capacity(BURST_MESSAGES.min(count_max));
    take_burst(mailbox, count_max, bytes_max, &mut came)?;
    if came.is_empty() {
        let wait_ns = own.receive_wait_ns();
        let make = |received: Received<'_>| Came::of(own, py, received, bytes_max);
        let first = fast_calls::take(mailbox, wait_ns, false, make)?;
        // Before more is taken: this takes the notice of an operation, and raises if nothing came.
        came.push(fast_calls::named(mailbox, first, wait_ns)?);
        // A socket closed meanwhile is an error of the next call: this one has a message.
        let _ = take_burst(mailbox, count_max.saturating_sub(1), bytes_max, &mut came);
    }
    let pairs = came
        .into_iter()
        .map(|one| one.into_pair(own, py, bytes_max))
        .collect::<PyResult<Vec<_>>>()?;
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
    let make = |received: Received<'_>| came.push(Came::of(own, py, received, bytes_max));
    let taken = own.shell.take_burst(own.id, count_max, make);
    taken.map_err(|refused| errors::exception(py, &refused))
}
