//! Sockets of other processes, for the node in Python: how they are made, and what it is told.

use std::os::fd::IntoRawFd;
use std::sync::atomic::Ordering;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use urds_channel::socket_memory::{Name, NodeSide, Sizes, Word, layout};
use urds_channel::sys::area::{Access, Area};
use urds_channel::sys::{Errno, doorbell};
use urds_channel::{congestion, journal, path_journal};
use urds_dataplane::attached::SocketParts;
use urds_dataplane::sys::sent_record::SendMemory;
use urds_dataplane::sys::socket_pair;

use crate::{errors, sys};

/// As `Sizes` has them; see the stub.
pub type SizesTuple = (u32, usize, usize, u32, u32, u32, u32, u32, bool);

/// Bytes of options that a client may give for a new socket: of a field of its request.
const OPTION_BYTES_MAX: usize = 128;
/// The words of the options that a node lists, by name.
const WORDS: [(&str, Word); 10] = [
    ("send_bytes", Word::SendBytes),
    ("receive_bytes", Word::ReceiveBytes),
    ("report_errors", Word::ReportErrors),
    ("monitor", Word::Monitor),
    ("timestamp", Word::Timestamp),
    ("traces", Word::Traces),
    ("transport", Word::Transport),
    ("tos", Word::Tos),
    ("linger", Word::Linger),
    ("busy_poll", Word::BusyPoll),
];

/// An error number of the system as Python's exception.
fn raised(Errno(number): Errno) -> PyErr {
    errors::os_error(number, "")
}

/// Make a socket for a client: its descriptor, and what the node keeps. See the stub.
#[pyfunction]
#[pyo3(signature = (sizes, place, nonblock, words=b"".as_slice(), /))]
pub fn open_socket(
    sizes: Option<SizesTuple>,
    place: &[u8],
    nonblock: bool,
    words: &[u8],
) -> PyResult<(i32, i32, i32, i32)> {
    let pair = socket_pair::make(nonblock)
        .map_err(|failure| raised(Errno(failure.raw_os_error().unwrap_or(libc::EIO))))?;
    let mut made = Sizes {
        cookie: pair.cookie,
        place,
        ..Sizes::default()
    };
    if let Some(sizes) = sizes {
        (
            made.submissions,
            made.send_bytes,
            made.receive_bytes,
            made.send_default,
            made.receive_default,
            made.send_limit,
            made.receive_limit,
            made.message_limit,
            made.is_strict,
        ) = sizes;
    }
    if words.len() > OPTION_BYTES_MAX {
        return Err(raised(Errno(errors::EINVAL)));
    }
    let (memory, area) = layout::make(&made).map_err(raised)?;
    let memory = sys::owned(memory);
    area.copy_in(layout::AT_OPTIONS, words);
    let (journal, _) = journal::make(&made).map_err(raised)?;
    Ok((
        pair.user_end.into_raw_fd(),
        pair.node_end.into_raw_fd(),
        memory.into_raw_fd(),
        journal,
    ))
}

/// Name the formats of all memory that one worker of a node hands to the next. See the stub.
#[pyfunction]
pub fn memory_formats() -> Vec<String> {
    let name = |magic: u64| String::from_utf8_lossy(&magic.to_le_bytes()).into_owned();
    vec![
        format!("{} {}", name(layout::MAGIC), layout::VERSION),
        format!("{} {}", name(congestion::MAGIC), congestion::VERSION),
        name(journal::MAGIC),
        name(path_journal::MAGIC),
    ]
}

/// Duplicate a descriptor of the caller's.
pub fn duplicate(descriptor: i32) -> PyResult<i32> {
    doorbell::duplicate(descriptor).map_err(raised)
}

/// Map what the node keeps of a socket; the descriptors stay the caller's.
pub fn parts(node_end: i32, memory: i32, journal: i32, was_left: bool) -> PyResult<SocketParts> {
    let (area, to_read) = Area::map_twice(memory, Access::Reads).map_err(raised)?;
    let (mine, of_messages) = Area::map_twice(journal, Access::Writes).map_err(raised)?;
    let side = NodeSide::new(area, mine).map_err(raised)?;
    let memory = SendMemory::new(to_read, of_messages).map_err(raised)?;
    let control = duplicate(node_end)?;
    Ok(SocketParts {
        control,
        side,
        memory,
        was_left,
    })
}

/// Return what the client keeps in the memory of its socket: its options, and its connected name.
pub fn words<'py>(py: Python<'py>, side: &NodeSide) -> PyResult<Bound<'py, PyDict>> {
    let words = PyDict::new(py);
    for (name, word) in WORDS {
        words.set_item(name, side.options().get(word))?;
    }
    words.set_item("mask", side.options().mask())?;
    words.set_item("connected", connected(side))?;
    Ok(words)
}

/// Return the address, scope and port that the client is connected to, as it wrote them.
fn connected(side: &NodeSide) -> Option<([u8; 16], u32, u16)> {
    let area = side.area();
    if area.word(layout::AT_PEER).load(Ordering::Acquire) == 0 {
        return None;
    }
    let mut bytes = [0; 24];
    area.copy_out(layout::AT_PEER + 8, &mut bytes);
    let name = Name::from_bytes(&bytes);
    Some((name.address, name.scope, name.port))
}

/// The mailbox is none of an attached socket.
#[cold]
pub fn not_attached() -> PyErr {
    PyOSError::new_err((errors::EBADF, "no attached socket"))
}
