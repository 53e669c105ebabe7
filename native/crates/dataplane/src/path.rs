//! A path and its state in the shell: its stream, its reader and writer, what time makes due.

use std::sync::Arc;

use urds_path::{Address, Freed, Limits, PathCore, Release};

use crate::dues::{ACK_POLL_NS, TAIL_NS};
use crate::events::Event;
use crate::mailbox::MESSAGE_BYTES_PLAIN;
use crate::state::{HostId, MailboxId, PathId, State};
use crate::stream::Stream;

/// State of one path.
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
pub struct StreamPath {
    pub host: HostId,
    pub local: Address,
    pub peer: Address,
    pub index: u32,
    pub core: PathCore,
    pub stream: Option<Arc<dyn Stream>>,
    /// Streams so far: the number of the one that an event or a read is about.
    pub attachment: u64,
    /// A thread writes; it looks again before it clears this.
    pub writing: bool,
    /// Another thread came to flush meanwhile.
    pub left_to_writer: bool,
    pub reading: bool,
    /// The stream took less than offered: wait until it is writable.
    pub blocked: bool,
    /// Writing failed; what the peer sent is still read.
    pub broken: bool,
    /// A mailbox is over its hard bound.
    pub paused: bool,
    /// Of a stream with a doorbell: there is more to read than the doorbell will report.
    pub unheard: bool,
    /// The stream is in the plane's poll set.
    pub polled: bool,
    /// Nothing to decide before `flush_bytes` are pending: a batch is noted, or there is no stream.
    pub is_batching: bool,
    /// More than the plane's while a burst of long messages is a batch; set with `is_batching`.
    pub flush_bytes: usize,
    /// The control plane was asked for a stream.
    pub wanted: bool,
    /// At its limit of messages.
    pub full: bool,
    /// The longest message that the peer takes.
    pub message_bytes_max: usize,
    pub room_wanted: Vec<MailboxId>,
    /// When the peer becomes absent: messages wait for a stream.
    pub missing_at_ns: Option<u64>,
    /// The peer is absent.
    pub absent: bool,
    /// Paths held behind a fence of this path.
    pub dependents: Vec<PathId>,
    /// Writes at once before batches are noted.
    pub credits: u8,
    pub idle_since_ns: u64,
    pub tail_since_ns: Option<u64>,
    pub ack_poll_ns: u64,
    pub ack_poll_delay_ns: u64,
    pub first_frame_told: bool,
    /// The last read was empty: it brought nothing for any socket.
    pub last_read_was_empty: bool,
    pub expected_bytes: usize,
    /// Long payloads arrive: they are read into their own memory.
    pub(crate) long: bool,
    /// A single message may leave at once; checked after each write.
    pub plain: bool,
    /// Messages of the current read, counted by mailbox.
    pub(crate) arrivals: Vec<(MailboxId, usize)>,
    /// Scratch of `finish_freed`.
    pub(crate) freed: Vec<Freed>,
}

impl StreamPath {
    /// Make a path without a stream.
    #[allow(clippy::too_many_arguments)] // what a path is named by, and what its core needs
    pub fn new(
        host: HostId,
        local: Address,
        peer: Address,
        index: u32,
        limits: Limits,
        sequence_first: u64,
        generation: Option<u32>,
    ) -> Self {
        Self {
            host,
            local,
            peer,
            index,
            core: PathCore::new(limits, sequence_first, generation),
            stream: None,
            attachment: 0,
            writing: false,
            left_to_writer: false,
            reading: false,
            blocked: false,
            broken: false,
            paused: false,
            unheard: false,
            polled: false,
            is_batching: false,
            flush_bytes: limits.flush_bytes,
            wanted: false,
            full: false,
            message_bytes_max: MESSAGE_BYTES_PLAIN,
            room_wanted: Vec::new(),
            missing_at_ns: None,
            absent: false,
            dependents: Vec::new(),
            credits: 0,
            idle_since_ns: 0,
            tail_since_ns: None,
            ack_poll_ns: 0,
            ack_poll_delay_ns: ACK_POLL_NS,
            first_frame_told: false,
            last_read_was_empty: false,
            expected_bytes: 1,
            long: false,
            plain: false,
            arrivals: Vec::new(),
            freed: Vec::new(),
        }
    }
}

impl StreamPath {
    /// Free the memory that a burst, or our map, used, once nothing is in flight.
    pub(crate) fn rest_if_idle(&mut self) {
        let outgoing = &self.core.outgoing;
        if outgoing.unacked.is_empty() && outgoing.unsent.is_empty() && !self.writing {
            self.core.rest();
        }
    }
}

impl State {
    /// Compare the queue with its limit of messages.
    pub(crate) fn check_full(&mut self, id: PathId) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let is_full = path.core.outgoing.message_count() >= self.limits.path_messages_max;
        if is_full != path.full {
            path.full = is_full;
            self.note_full(id);
        }
    }

    /// Have the next thread that makes progress flush this path.
    pub(crate) fn flush_soon(&mut self, id: PathId) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        if path.core.wants_to_write() {
            path.plain = false; // a single message would leave this behind
            path.tail_since_ns = Some(self.clock.now_ns().saturating_sub(TAIL_NS));
            self.mark_dirty(id);
        }
    }

    /// Ask the control plane for a stream if there is none, once per outage.
    pub(crate) fn want_stream(&mut self, id: PathId) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        if path.stream.is_none() && !path.wanted {
            path.wanted = true;
            self.note_wanted(id);
            self.emit(Event::Wanted { path: id });
        }
    }

    /// Return whether the handshake may still allow a longer message; request it.
    pub(crate) fn want_agreement(&mut self, id: PathId) -> bool {
        let is_open = |path: &StreamPath| path.core.outgoing.release == Release::NotYet;
        if !self.paths.get(id).is_some_and(is_open) {
            return false;
        }
        self.want_stream(id);
        true
    }

    /// Notify owners of freed messages, senders at the limit, and paths behind a fence.
    pub(crate) fn finish_freed(&mut self, id: PathId) {
        self.account_freed(id, Self::note_freed);
        self.finish_room(id);
    }

    /// Give freed bytes back to the accounts they were counted on, and notify each owner once.
    pub(crate) fn account_freed(&mut self, id: PathId, mut tell: impl FnMut(&mut Self, MailboxId)) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        if !path.core.outgoing.has_freed() {
            return;
        }
        let mut freed = std::mem::take(&mut path.freed);
        path.core.outgoing.take_freed(&mut freed);
        if freed.len() > 1 {
            freed.sort_unstable_by_key(|one| one.owner);
        }
        let peer = path.peer;
        for one in &freed {
            self.give_back(one, &peer);
        }
        freed.dedup_by_key(|one| one.owner);
        for one in &freed {
            tell(self, MailboxId::from_u64(one.owner.0));
        }
        freed.clear();
        if let Some(path) = self.paths.get_mut(id) {
            path.freed = freed;
            path.rest_if_idle();
        }
    }

    /// Take what left the path to a peer off the account of a mailbox, which may be closed.
    fn give_back(&mut self, freed: &Freed, peer: &Address) {
        let id = MailboxId::from_u64(freed.owner.0);
        if let Some(mailbox) = self.mailboxes.get_mut(id) {
            mailbox.send_queued_bytes = mailbox.send_queued_bytes.saturating_sub(freed.bytes);
            mailbox.given_up += freed.given_up;
            if let Some(destination) = mailbox.accounts.known(peer) {
                let queued_bytes = mailbox.send_queued_bytes;
                let accounts = &mut mailbox.accounts;
                accounts.give_back(destination, freed.bytes, queued_bytes);
            }
        }
        if !self.closed_accounts.is_empty()
            && let Some(bytes) = self.closed_accounts.get_mut(&id)
        {
            *bytes = bytes.saturating_sub(freed.bytes);
            if *bytes == 0 {
                self.closed_accounts.remove(&id);
            }
        }
    }

    /// Notify the owner of freed messages; a closed one, only once its account is empty.
    pub(crate) fn note_freed(&mut self, id: MailboxId) {
        if self.mailboxes.get(id).is_some() {
            self.note_room(id);
        } else if !self.closed_accounts.contains_key(&id) {
            self.counters.send_queue_empty += 1;
        }
    }

    /// Notify senders at the limit, and paths behind a fence, that messages left the queue.
    pub(crate) fn finish_room(&mut self, id: PathId) {
        let Some(path) = self.paths.get(id) else {
            return;
        };
        if path.full || !path.room_wanted.is_empty() {
            self.check_full(id);
            if self.paths.get(id).is_some_and(|path| !path.full) {
                self.tell_room_wanted(id);
            }
        }
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        if path.dependents.is_empty() {
            return;
        }
        let mut dependents = std::mem::take(&mut path.dependents);
        for &dependent in &dependents {
            self.flush_soon(dependent);
        }
        dependents.retain(|&one| self.paths.get(one).is_some_and(|path| path.core.is_gated()));
        if let Some(path) = self.paths.get_mut(id) {
            path.dependents = dependents;
        }
    }

    /// Have every sender that waits for this path look again.
    pub(crate) fn tell_room_wanted(&mut self, id: PathId) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let peer = path.peer;
        for mailbox in std::mem::take(&mut path.room_wanted) {
            if let Some(record) = self.mailboxes.get_mut(mailbox)
                && let Some(id) = record.accounts.known(&peer)
            {
                let destination = record.accounts.at_mut(id);
                if std::mem::take(&mut destination.path_full) {
                    if record.accounts.take_unblocked(id) {
                        self.tell_roomy(mailbox, &[id]);
                    }
                } else {
                    destination.waiters.tell_all(&mut self.wait_queue);
                }
            }
            self.note_room(mailbox);
        }
    }
}
