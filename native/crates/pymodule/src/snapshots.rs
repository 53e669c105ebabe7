//! Counters and tables as tuples of plain values; their fields are those of the stub.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use urds_dataplane::snapshots::{MailboxRow, MessageRow, PathRow, Snapshot};
use urds_path::SocketAddress;

use crate::addresses::pack;

/// Return a snapshot of the plane.
pub fn tuple_of<'py>(py: Python<'py>, snapshot: &Snapshot) -> PyResult<Bound<'py, PyTuple>> {
    let counters = PyDict::new(py);
    for (name, value) in &snapshot.counters {
        counters.set_item(name, value)?;
    }
    let mailboxes = PyList::empty(py);
    for row in &snapshot.mailboxes {
        mailboxes.append(mailbox_row(py, row)?)?;
    }
    let paths = PyList::empty(py);
    for row in &snapshot.paths {
        paths.append(path_row(py, row)?)?;
    }
    let [unsent, sent, received] = [
        &snapshot.send_queue,
        &snapshot.retransmit_queue,
        &snapshot.receive_queue,
    ];
    let messages = |rows: &[MessageRow]| {
        let list = PyList::empty(py);
        for row in rows {
            list.append(message_row(py, row)?)?;
        }
        PyResult::Ok(list)
    };
    let (unsent, sent, received) = (messages(unsent)?, messages(sent)?, messages(received)?);
    (counters, mailboxes, paths, unsent, sent, received).into_pyobject(py)
}

fn mailbox_row<'py>(py: Python<'py>, row: &MailboxRow) -> PyResult<Bound<'py, PyTuple>> {
    (
        pack(py, &row.local),
        row.local.scope,
        row.port,
        row.send_bytes_max,
        row.receive_bytes_max,
        row.send_queued_bytes,
        row.receive_queued_bytes,
        row.receive_queued_messages,
        row.congested,
        row.inode,
    )
        .into_pyobject(py)
}

fn path_row<'py>(py: Python<'py>, row: &PathRow) -> PyResult<Bound<'py, PyTuple>> {
    let name = |end: &SocketAddress| (end.address.ip().to_string(), end.port);
    let streams = row
        .streams
        .as_ref()
        .map(|(local, peer)| (name(local), name(peer)));
    let path = (
        pack(py, &row.local),
        row.local.scope,
        pack(py, &row.peer),
        row.peer.scope,
        row.index,
        row.up,
        row.sending,
        row.held,
    );
    let numbers = (
        row.sequence_next,
        row.sequence_expected,
        row.unsent_messages,
        row.unacknowledged_messages,
        row.header_remaining_bytes,
        row.data_remaining_bytes,
        row.stream_sent_bytes,
        row.stream_expected_bytes,
        row.stream_acknowledged_bytes,
    );
    let (path, numbers) = (path.into_pyobject(py)?, numbers.into_pyobject(py)?);
    let stream = (row.carrier, streams).into_pyobject(py)?;
    let members = path.iter().chain(numbers.iter()).chain(stream.iter());
    PyTuple::new(py, members.collect::<Vec<_>>())
}

fn message_row<'py>(py: Python<'py>, row: &MessageRow) -> PyResult<Bound<'py, PyTuple>> {
    (
        row.sequence,
        row.payload_bytes,
        pack(py, &row.local),
        row.local.scope,
        row.local_port,
        pack(py, &row.peer),
        row.peer.scope,
        row.peer_port,
        row.tos,
    )
        .into_pyobject(py)
}
