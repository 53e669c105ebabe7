//! Counters and tables of a plane, as rds-info and operators read them.

use std::sync::Arc;

use urds_path::{Address, Row, SocketAddress};

use crate::mailbox::Mailbox;
use crate::path::StreamPath;
use crate::plane::Plane;
use crate::state::State;
use crate::stream::Stream;
use crate::sys::sockets;

/// Limit of each table of messages.
const ROWS_MAX: usize = 65536;

/// A bound socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailboxRow {
    pub local: Address,
    pub port: u16,
    pub send_bytes_max: usize,
    pub receive_bytes_max: usize,
    pub send_queued_bytes: usize,
    pub receive_queued_bytes: usize,
    pub receive_queued_messages: usize,
    pub congested: bool,
    /// Inode number of its descriptor, 0 if it has none.
    pub inode: u64,
}

/// A path and its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRow {
    pub local: Address,
    pub peer: Address,
    pub index: u32,
    pub up: bool,
    pub sending: bool,
    pub held: bool,
    pub sequence_next: u64,
    pub sequence_expected: u64,
    pub unsent_messages: usize,
    pub unacknowledged_messages: usize,
    /// Transport of the stream, or of the last one, as rds-info names it.
    pub carrier: &'static str,
    /// Our end of the stream and the peer's.
    pub streams: Option<(SocketAddress, SocketAddress)>,
    pub header_remaining_bytes: usize,
    pub data_remaining_bytes: usize,
    pub stream_sent_bytes: u64,
    pub stream_expected_bytes: u64,
    pub stream_acknowledged_bytes: u64,
}

/// A message in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRow {
    /// 0 while it has no number.
    pub sequence: u64,
    pub payload_bytes: usize,
    pub local: Address,
    pub local_port: u16,
    pub peer: Address,
    pub peer_port: u16,
    /// Type of service of the connection that it came by.
    pub tos: u8,
}

/// All of a plane; consistent, except that TCP is asked about its streams a moment later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// By name, in the order of rds-info.
    pub counters: Vec<(&'static str, u64)>,
    pub mailboxes: Vec<MailboxRow>,
    pub paths: Vec<PathRow>,
    pub send_queue: Vec<MessageRow>,
    pub retransmit_queue: Vec<MessageRow>,
    pub receive_queue: Vec<MessageRow>,
}

impl Plane {
    /// Return counters and tables. No lock held.
    pub fn snapshot(&self) -> Snapshot {
        let (mut snapshot, streams) = self.lock().snapshot();
        for (row, stream) in snapshot.paths.iter_mut().zip(streams) {
            let Some(stream) = stream else { continue };
            let unacknowledged = stream.unacknowledged().unwrap_or(0);
            row.stream_acknowledged_bytes =
                row.stream_acknowledged_bytes.saturating_sub(unacknowledged);
            row.carrier = stream.carrier();
            row.streams = stream.addresses();
        }
        snapshot
    }
}

impl State {
    /// Copy everything, and the streams that the rows of paths are read from.
    fn snapshot(&self) -> (Snapshot, Vec<Option<Arc<dyn Stream>>>) {
        let mut snapshot = Snapshot {
            counters: self.all_counters(),
            ..Snapshot::default()
        };
        let mut streams = Vec::new();
        for (_, host) in self.hosts.iter() {
            let mailboxes = host.inboxes.in_order();
            for mailbox in mailboxes
                .into_iter()
                .filter_map(|id| self.mailboxes.get(id))
            {
                snapshot.mailboxes.push(mailbox_row(mailbox));
                add_rows(&mut snapshot.receive_queue, received_rows(mailbox));
            }
            for path in host.paths.iter().filter_map(|&id| self.paths.get(id)) {
                streams.push(path.stream.clone());
                snapshot.paths.push(path_row(path));
                let sender = &path.core.sender;
                let named = |row| message_row(path, row);
                add_rows(&mut snapshot.send_queue, sender.unsent_rows().map(named));
                add_rows(
                    &mut snapshot.retransmit_queue,
                    sender.sent_rows().map(named),
                );
            }
        }
        (snapshot, streams)
    }

    /// Return the counters, with those that are sums over the queues.
    fn all_counters(&self) -> Vec<(&'static str, u64)> {
        let open = || self.mailboxes.iter().map(|(_, mailbox)| &mailbox.inbox);
        let queued: u64 = open().map(|inbox| inbox.len() as u64).sum();
        let queued_bytes: u64 = open().map(|inbox| inbox.receive_queued_bytes as u64).sum();
        let paths = self.paths.iter();
        let unsent: u64 = paths
            .map(|(_, path)| path.core.sender.unsent_len() as u64)
            .sum();
        let mut counters = self.counters.clone();
        counters.recv_delivered += counters
            .recv_queued
            .saturating_sub(counters.recv_drop_closed)
            .saturating_sub(queued);
        counters.recv_bytes_freed_fromsock = counters
            .recv_bytes_added_to_sock
            .saturating_sub(queued_bytes);
        counters.copy_to_user = counters.recv_bytes_freed_fromsock;
        counters.send_queued += unsent;
        counters.named().collect()
    }
}

fn add_rows(table: &mut Vec<MessageRow>, rows: impl Iterator<Item = MessageRow>) {
    let room = ROWS_MAX.saturating_sub(table.len());
    table.extend(rows.take(room));
}

fn mailbox_row(mailbox: &Mailbox) -> MailboxRow {
    let descriptor = mailbox.descriptor.as_ref();
    MailboxRow {
        local: mailbox.local,
        port: mailbox.port,
        send_bytes_max: mailbox.settings.send_bytes_max,
        receive_bytes_max: mailbox.settings.receive_bytes_max,
        send_queued_bytes: mailbox.send_queued_bytes,
        receive_queued_bytes: mailbox.inbox.receive_queued_bytes,
        receive_queued_messages: mailbox.inbox.len(),
        congested: mailbox.inbox.congested,
        inode: descriptor.map_or(0, |pair| sockets::inode(pair.descriptor())),
    }
}

fn path_row(path: &StreamPath) -> PathRow {
    let (core, sender) = (&path.core, &path.core.sender);
    let (header_remaining_bytes, data_remaining_bytes) = core.receiver.remaining();
    PathRow {
        local: path.local,
        peer: path.peer,
        index: path.index,
        up: path.stream.is_some(),
        sending: path.writing,
        held: core.is_held(),
        sequence_next: sender.sequence_next,
        sequence_expected: core.receiver.sequence_expected,
        unsent_messages: sender.unsent_len() + sender.retransmits_len(),
        unacknowledged_messages: sender.unacked_len(),
        carrier: "tcp",
        streams: None,
        header_remaining_bytes,
        data_remaining_bytes,
        stream_sent_bytes: core.bytes_written,
        stream_expected_bytes: sender.unacked_end(),
        stream_acknowledged_bytes: core.bytes_written,
    }
}

fn message_row(path: &StreamPath, row: Row) -> MessageRow {
    MessageRow {
        sequence: row.sequence,
        payload_bytes: row.payload_bytes,
        local: path.local,
        local_port: row.source_port,
        peer: path.peer,
        peer_port: row.target_port,
        tos: 0,
    }
}

fn received_rows(mailbox: &Mailbox) -> impl Iterator<Item = MessageRow> {
    mailbox
        .inbox
        .rows()
        .map(|(payload_bytes, source, tos)| MessageRow {
            sequence: 0,
            payload_bytes,
            local: mailbox.local,
            local_port: mailbox.port,
            peer: source.address,
            peer_port: source.port,
            tos,
        })
}
