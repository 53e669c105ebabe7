//! A path and its state in the shell: its stream, its reader and writer, what time makes due.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use urds_path::constants::{PING_PORT, PROBE_PORT};
use urds_path::{
    AckMode, Address, DownReason, Extension, Freed, Hold, Limits, PathCore, Payload, Received,
};

use crate::background::{ACK_POLL_NS, BATCH_NS};
use crate::events::Event;
use crate::mailbox::{MESSAGE_BYTES_PLAIN, Route};
use crate::plane::Plane;
use crate::state::{HostId, MailboxId, PathId, State};
use crate::stream::Stream;
use crate::stream_reader::Reading;
use crate::sys;

/// State of one path.
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
pub struct StreamPath {
    pub host: HostId,
    pub local: Address,
    pub peer: Address,
    pub index: u32,
    pub core: PathCore,
    /// Its entry in the journal of paths.
    pub entry: Option<u32>,
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
    pub burst_budget: u8,
    pub idle_since_ns: u64,
    pub batch_since_ns: Option<u64>,
    pub ack_poll_ns: u64,
    pub ack_poll_delay_ns: u64,
    pub first_frame_told: bool,
    /// The last read was empty: it brought nothing for any socket.
    pub last_read_was_empty: bool,
    pub expected_bytes: usize,
    /// Long payloads arrive: they are read into their own memory.
    pub(crate) long: bool,
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
            entry: None,
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
            burst_budget: 0,
            idle_since_ns: 0,
            batch_since_ns: None,
            ack_poll_ns: 0,
            ack_poll_delay_ns: ACK_POLL_NS,
            first_frame_told: false,
            last_read_was_empty: false,
            expected_bytes: 1,
            long: false,
        }
    }
}

impl StreamPath {
    /// Where the journal of paths has it, as a message notes it: 0 is nowhere.
    pub(crate) fn place_in_journal(&self) -> u32 {
        self.entry.map_or(0, |entry| entry + 1)
    }

    /// Free the memory that a burst used, once nothing is in flight.
    pub(crate) fn rest_if_idle(&mut self) {
        let sender = &self.core.sender;
        if sender.message_count() == 0 && !self.writing {
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
        let is_full = path.core.sender.message_count() >= self.limits.path_messages_max;
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
            path.batch_since_ns = Some(self.clock.now_ns().saturating_sub(BATCH_NS));
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
            self.emit(Event::ConnectWanted { path: id });
        }
    }

    /// Return whether the handshake may still allow a longer message; request it.
    pub(crate) fn want_agreement(&mut self, id: PathId) -> bool {
        let is_open = |path: &StreamPath| path.core.sender.ack_mode == AckMode::NotYet;
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
        if !path.core.sender.has_freed() {
            return;
        }
        let mut freed = std::mem::take(&mut self.spare_freed);
        path.core.sender.take_freed(&mut freed);
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
        self.spare_freed = freed;
        if let Some(path) = self.paths.get_mut(id) {
            path.rest_if_idle();
        }
    }

    /// Take what left the path to a peer off the account of a mailbox, which may be closed.
    fn give_back(&mut self, freed: &Freed, peer: &Address) {
        let id = MailboxId::from_u64(freed.owner.0);
        if let Some(mailbox) = self.mailboxes.get_mut(id) {
            mailbox.given_up += freed.given_up;
        }
        self.give_back_bytes(id, freed.bytes, peer);
    }

    /// Take bytes that left the queue to a peer off the account of a mailbox, which may be closed.
    pub(crate) fn give_back_bytes(&mut self, id: MailboxId, bytes: usize, peer: &Address) {
        if let Some(mailbox) = self.mailboxes.get_mut(id) {
            mailbox.send_queued_bytes = mailbox.send_queued_bytes.saturating_sub(bytes);
            if let Some(destination) = mailbox.accounts.known(peer) {
                let queued_bytes = mailbox.send_queued_bytes;
                let accounts = &mut mailbox.accounts;
                accounts.give_back(destination, bytes, queued_bytes);
            }
        }
        if !self.closed_accounts.is_empty()
            && let Some(left_bytes) = self.closed_accounts.get_mut(&id)
        {
            *left_bytes = left_bytes.saturating_sub(bytes);
            if *left_bytes == 0 {
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
        let (peer, wanted) = (path.peer, std::mem::take(&mut path.room_wanted));
        self.tell_waiting(&wanted, &peer);
    }

    /// Have the senders of mailboxes that wait for a path to a peer look again.
    pub(crate) fn tell_waiting(&mut self, wanted: &[MailboxId], peer: &Address) {
        for &mailbox in wanted {
            if let Some(record) = self.mailboxes.get_mut(mailbox)
                && let Some(id) = record.accounts.known(peer)
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
            if self.attached_mut(mailbox).is_some() {
                self.serve_soon(mailbox);
            }
        }
    }
}

impl State {
    /// See [`Plane::move_queue`].
    fn move_queue(&mut self, id: PathId, other: PathId, mailboxes: &[MailboxId]) {
        let Some(target) = self.paths.get(other) else {
            return;
        };
        let (peer, place) = (target.peer, target.place_in_journal());
        for &mailbox in mailboxes {
            self.set_route(mailbox, peer, Some(Route::Stream(other)));
        }
        let Some(sender) = self.paths.get_mut(id).map(|path| &mut path.core.sender) else {
            return;
        };
        let unsent = sender.take_unsent();
        let (wanted, due) = (sender.acknowledgement_wanted, sender.ack_request_due);
        self.tell_room_wanted(id); // senders that wait for room have another path now
        self.finish_room(id);
        if let Some(target) = self.paths.get_mut(other).filter(|_| !unsent.is_empty()) {
            for message in &unsent {
                if let Payload::Foreign(memory) = &message.payload {
                    memory.note_path(place);
                }
            }
            let sender = &mut target.core.sender;
            sender.take_over(unsent);
            sender.acknowledgement_wanted |= wanted;
            sender.ack_request_due |= due;
            self.check_full(other);
            self.want_stream(other);
        }
    }
}

// -- streams attached and detached
//
// How a stream is attached to a path and leaves it: by the control plane, or at its end.
//
// No thread may read a stream that is given away, and whose descriptor may soon be another
// connection: so the thread that reads it removes it from its path, in one critical section.

/// Time for another thread to finish with the stream: some microseconds.
const LEAVING_POLL: Duration = Duration::from_micros(200);

impl Plane {
    /// Give a path a connected stream: map first, then (after a hold) retransmits, new messages.
    ///
    /// With `probe`, the extension of one, a probe goes ahead of what is new: queued by a later call
    /// it would stand behind what is written at once. An earlier stream is read until it would block,
    /// and closed. A path that is closed closes this one. May wait for a thread that reads the earlier
    /// one: without the interpreter.
    pub fn attach(
        &self,
        path: PathId,
        stream: Arc<dyn Stream>,
        hold: Hold,
        probe: Option<Extension>,
    ) {
        let old = self.detach(path);
        drop(old);
        let taken = self.lock().take_in_stream(path, &stream, hold, probe);
        if taken.is_ok() {
            self.let_rest(path, &*stream);
        }
        drop(stream); // a second handle, or the stream of a removed path
        if let Err(failure) = taken {
            // No watches left: a stream that is not polled is useless.
            let errno = failure.raw_os_error().unwrap_or(libc::EIO);
            let dead = self.lock().end_stream(path, DownReason::Error, errno, None);
            drop(dead);
        }
        self.flush(path);
    }

    /// Return the stream, read until it would block; the queue stays, no `Down` follows.
    ///
    /// May wait for a thread that reads or writes it: without the interpreter.
    pub fn detach(&self, path: PathId) -> Option<Arc<dyn Stream>> {
        let mut reading = self.begin_detach(path)?;
        self.drain_stream(&mut reading);
        // Still true after a reset: what the peer's TCP had is delivered, for a kernel.
        let acknowledged = self.acknowledged_bytes(path, &*reading.stream);
        let stream = {
            let mut state = self.lock();
            let stream = state.release_stream(path, acknowledged);
            if let Some(record) = state.paths.get_mut(path) {
                record.reading = false;
            }
            stream
        };
        drop(reading);
        while self
            .lock()
            .paths
            .get(path)
            .is_some_and(|record| record.writing)
        {
            sys::pause(LEAVING_POLL); // the writer finds the stream gone, and leaves
        }
        stream
    }

    /// Wait until no thread reads, and become the reader.
    fn begin_detach(&self, path: PathId) -> Option<Reading> {
        loop {
            {
                let mut state = self.lock();
                let record = state.paths.get(path)?;
                record.stream.as_ref()?;
                if !record.reading {
                    return state.take_stream(path);
                }
            }
            sys::pause(LEAVING_POLL);
        }
    }

    /// Write again: the stream takes bytes.
    pub fn unblock(&self, path: PathId) {
        {
            let mut state = self.lock();
            let Some(record) = state.paths.get_mut(path) else {
                return;
            };
            record.blocked = false;
            state.counters.tcp_write_space_calls += 1;
            state.mark_dirty(path); // an acknowledgement may be pending
            state.update_watch(path);
        }
        self.flush(path);
    }

    /// Read again: the mailbox that paused the path is at half.
    pub fn resume(&self, path: PathId) {
        let mut state = self.lock();
        let Some(record) = state.paths.get_mut(path) else {
            return;
        };
        record.paused = false;
        state.update_watch(path);
    }
}

impl State {
    fn take_in_stream(
        &mut self,
        id: PathId,
        stream: &Arc<dyn Stream>,
        hold: Hold,
        probe: Option<Extension>,
    ) -> io::Result<()> {
        let is_restoring = self.is_restoring();
        let Some(path) = self.paths.get_mut(id) else {
            return Ok(());
        };
        path.stream = Some(Arc::clone(stream));
        path.expected_bytes = 1;
        path.attachment += 1;
        path.blocked = false;
        path.broken = false;
        path.paused = is_restoring;
        path.unheard = false;
        path.wanted = false;
        path.first_frame_told = false;
        path.is_batching = false;
        path.core.attach(hold);
        if let Some(extension) = probe {
            let (core, counters) = (&mut path.core, &mut self.counters);
            core.control(PROBE_PORT, PING_PORT, extension, false, counters);
        }
        self.note_attached(id);
        self.note_connected(id, true);
        self.watch_stream(id)?;
        if is_restoring {
            self.update_watch(id);
        }
        Ok(())
    }

    /// End the stream: report it, keep the queue; return it, to be closed without the lock.
    ///
    /// Called by the thread that reads it, which has asked what its TCP has not acknowledged.
    #[must_use]
    pub(crate) fn end_stream(
        &mut self,
        id: PathId,
        reason: DownReason,
        errno: i32,
        acknowledged: Option<u64>,
    ) -> Option<Arc<dyn Stream>> {
        let path = self.paths.get(id)?;
        let (frames, attachment) = (path.core.receiver.frames, path.attachment);
        let stream = self.release_stream(id, acknowledged)?;
        // A stream that this side ends stays noted: it is made again, by the next worker if need be.
        self.note_connected(id, false);
        self.emit(Event::Down {
            path: id,
            reason,
            errno,
            frames,
            attachment,
        });
        // A probe or a pong alone is not worth a connection.
        if self.paths.get(id).is_some_and(|path| {
            path.core.sender.holds(None) || self.is_map_awaited(path.host, &path.peer)
        }) {
            self.want_stream(id);
        }
        Some(stream)
    }

    /// Remove a path's stream; what was not acknowledged will be retransmitted.
    fn release_stream(&mut self, id: PathId, acknowledged: Option<u64>) -> Option<Arc<dyn Stream>> {
        let path = self.paths.get_mut(id)?;
        path.stream.as_ref()?;
        if let Some(bytes) = acknowledged {
            path.core.handle_stream_acknowledged(bytes);
        }
        self.forget_stream(id);
        let path = self.paths.get_mut(id)?;
        path.core.detach(&mut self.counters);
        let stream = path.stream.take();
        path.blocked = false; // the next send asks for a stream
        path.is_batching = false;
        path.wanted = false;
        path.batch_since_ns = None;
        self.finish_freed(id);
        stream
    }
}

// -- calls of the control plane
//
// Calls of the control plane on a path. On a closed path they do nothing and return nothing.

/// What the handshake with a peer agreed on, for all of its paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    pub ack_mode: AckMode,
    /// Every header carries a checksum.
    pub checksum: bool,
    /// The longest message that both sides take, in bytes.
    pub message_bytes_max: usize,
}

impl Plane {
    /// End `Hold::Hello`; the peer has everything up to `received_by_peer` (`None`: unknown).
    pub fn end_hold(&self, path: PathId, received_by_peer: Option<u64>) {
        {
            let mut state = self.lock();
            let Some(record) = state.paths.get_mut(path) else {
                return;
            };
            record.core.end_hold(received_by_peer);
            state.finish_freed(path);
        }
        self.flush(path);
    }

    /// Put in force what the handshake with the peer agreed on.
    pub fn agree(&self, path: PathId, agreement: Agreement) {
        {
            let mut state = self.lock();
            let Some(record) = state.paths.get_mut(path) else {
                return;
            };
            record.core.agree(agreement.ack_mode, agreement.checksum);
            record.message_bytes_max = agreement.message_bytes_max;
            state.finish_freed(path);
            state.tell_room_wanted(path); // some message may be too long now
            state.mark_dirty(path);
        }
        self.flush(path);
    }

    /// Begin a new generation of the peer: drop what it received from the old one; return how many.
    pub fn restart_peer(&self, path: PathId) -> usize {
        let mut state = self.lock();
        let Some(record) = state.paths.get_mut(path) else {
            return 0;
        };
        let count = record.core.restart_peer();
        state.counters.peer_restarted += 1;
        state.counters.send_given_up += count as u64;
        state.finish_freed(path);
        count
    }

    /// Note the peer's generation: a later probe of a kernel with another one means a restart.
    pub fn remember_handshake(&self, path: PathId, generation: Option<u64>) {
        if let Some(record) = self.lock().paths.get_mut(path) {
            record.core.receiver.remember_generation(generation);
        }
    }

    /// Queue a ping, pong or probe; without a stream it is dropped, for it answers a stream.
    ///
    /// A pong is dropped too when the queue is full: then the peer that asks does not read.
    pub fn control(&self, path: PathId, ports: (u16, u16), extension: Extension, hello: bool) {
        {
            let mut state = self.lock();
            let state = &mut *state;
            let Some(record) = state.paths.get_mut(path) else {
                return;
            };
            let (source_port, target_port) = ports;
            let is_pong = source_port == 0 && target_port > PROBE_PORT;
            let count = record.core.sender.message_count();
            if !record.core.attached || (is_pong && count >= state.limits.path_messages_max) {
                return;
            }
            record.core.control(
                source_port,
                target_port,
                extension,
                hello,
                &mut state.counters,
            );
        }
        self.flush(path);
    }

    /// Queue a map: a dead connection answers it with a reset, a live one ignores it.
    pub fn probe_dead_stream(&self, path: PathId) {
        if let Some(record) = self.lock().paths.get_mut(path) {
            record.core.map_due = record.core.attached;
        }
        self.flush(path);
    }

    /// Return whether the peer's map in force marks a port as congested.
    pub fn peer_is_congested(&self, path: PathId, port: u16) -> bool {
        let state = self.lock();
        let Some(record) = state.paths.get(path) else {
            return false;
        };
        let host = state.hosts.get(record.host);
        host.is_some_and(|host| host.peer_is_congested(&record.peer, port))
    }

    /// Hold new messages until `other` has delivered its queue; `None`: until released.
    ///
    /// While sockets are restored, until every path that sockets of this one may have had before has
    /// delivered what it sent: see `restore`.
    pub fn hold_behind(&self, path: PathId, other: Option<PathId>) {
        {
            let mut state = self.lock();
            if other.is_some() && state.holds_moved() {
                state.hold_behind_earlier(path);
                return;
            }
            let fence = other
                .and_then(|other| state.paths.get_mut(other))
                .map(|other| {
                    other.dependents.push(path);
                    let fence = other.core.sender.fence();
                    other.core.request_ack();
                    fence
                });
            let Some(record) = state.paths.get_mut(path) else {
                return;
            };
            record.core.hold_behind(fence.unwrap_or_default());
        }
        if let Some(other) = other {
            self.flush(other);
        }
        self.flush(path);
    }

    /// Route mailboxes over another path to the same peer, and move what was never sent there, in one
    /// step; what was sent stays, and what the control plane queued.
    pub fn move_queue(&self, path: PathId, other: PathId, mailboxes: &[MailboxId]) {
        self.lock().move_queue(path, other, mailboxes);
        self.flush(other);
    }

    /// Return whether messages of sockets are queued or unacknowledged.
    pub fn holds_messages(&self, path: PathId) -> bool {
        self.lock()
            .paths
            .get(path)
            .is_some_and(|record| record.core.sender.holds(None))
    }

    /// Return whether a message of the peer ever reached a socket here.
    pub fn has_delivered(&self, path: PathId) -> bool {
        self.lock()
            .paths
            .get(path)
            .is_some_and(|record| record.core.receiver.has_delivered)
    }

    /// Return how far a path is: the frames received on its stream, the number of the oldest
    /// message that was sent and is not acknowledged, and the number that the next one gets.
    pub fn activity(&self, path: PathId) -> (u64, Option<u64>, u64) {
        let state = self.lock();
        let Some(record) = state.paths.get(path) else {
            return (0, None, 0);
        };
        let sender = &record.core.sender;
        let oldest = sender.sent().next();
        (
            record.core.receiver.frames,
            oldest.map(|message| message.sequence),
            sender.sequence_next,
        )
    }

    /// Return how many streams a path has had so far.
    pub fn attachment(&self, path: PathId) -> u64 {
        self.lock()
            .paths
            .get(path)
            .map_or(0, |record| record.attachment)
    }

    /// Drop every message; each sender gets EHOSTUNREACH once. Return how many.
    pub fn drop_queue(&self, path: PathId) -> usize {
        let mut state = self.lock();
        let Some(record) = state.paths.get_mut(path) else {
            return 0;
        };
        let count = record.core.sender.drop_all();
        let peer = record.peer;
        record.wanted = false;
        record.is_batching = false;
        state.counters.send_given_up += count as u64;
        state.account_freed(path, |state, mailbox: MailboxId| {
            state.fail_towards(mailbox, peer);
            state.note_freed(mailbox);
        });
        state.finish_room(path);
        count
    }

    /// Remove a path; its stream is closed.
    pub fn close_path(&self, path: PathId) {
        drop(self.detach(path));
        self.lock().remove_path(path);
    }

    /// Return the receive state of a path: its peer's sequence numbers.
    pub fn received(&self, path: PathId) -> Option<Received> {
        Some(self.lock().paths.get(path)?.core.receiver.received())
    }

    /// Have a path that had no stream yet continue where an earlier one to the peer ended.
    pub fn expect(&self, path: PathId, received: Received) {
        let mut state = self.lock();
        if let Some(record) = state.paths.get_mut(path) {
            record.core.receiver.expect(received);
            state.note_numbers(path);
        }
    }
}
