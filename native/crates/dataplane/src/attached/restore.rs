//! What outlives a worker of a node, and how the next one goes on with it.
//!
//! The journal of a socket has the messages that were taken and not freed, with their numbers, and
//! what was delivered; the journal of paths has the numbers of both directions. The order of the
//! stores makes every moment at which a worker is killed one of two cases, of which the journals say
//! which it was:
//!
//! | step | stores, in order |
//! |---|---|
//! | number a message | its number, then the path's `next`, then its first byte leaves |
//! | deliver a message | intent, bytes, `published`, the path's `expected`, intent off |
//! | deliver on this node | intent, bytes, `published`, the sender's record is freed, intent off |
//!
//! While sockets are restored no stream is read or written: a message would find its socket missing,
//! and a number that is sent too early makes its peer drop those before it.

use std::collections::{HashMap, HashSet};

use urds_channel::journal::Intent;
use urds_channel::path_journal::{self, PathJournal, PathName, PeerNumbers};
use urds_channel::socket_memory::Held;
use urds_channel::socket_memory::layout::ROUTES;
use urds_path::{Address, Fence, Message, Owner, Received};

use super::send::{extension_of, payload_on};
use super::steps::{self, Rule, Step};
use super::{address_of, congestion::of_system, name_of};
use crate::errors::Rejected;
use crate::events::Event;
use crate::mailbox::ALL_GROUPS;
use crate::path::StreamPath;
use crate::plane::Plane;
use crate::state::{MailboxId, PathId, State};
use crate::sys::descriptor::Descriptor;

/// In the path of an intent: the message is from a socket of this node, and this is its record.
pub(super) const OF_THIS_NODE: u32 = 1 << 31;

/// The numbers of paths, kept for the next worker.
pub(crate) struct Numbers {
    pub(crate) journal: PathJournal,
    file: Descriptor,
    entries: HashMap<PathName, u32>,
    /// Entries of an earlier worker of which no path was made yet.
    unclaimed: HashSet<u32>,
    /// Messages with numbers, for a path that is not made yet.
    sent: HashMap<u32, Vec<Message>>,
    is_restoring: bool,
}

/// Where a delivery is noted.
#[derive(Clone, Copy)]
pub(crate) enum Delivery<'a> {
    /// Nowhere: it dies with this process.
    Unnoted,
    /// A message of a path.
    OfPath(&'a PathJournal, u32, u64),
    /// A message of a socket of this node: its record, and who that is.
    OfSocket(u32, u64),
}

impl Delivery<'_> {
    /// Return what is intended, as the next message to be published.
    pub(super) fn intent(&self, published: u64) -> Option<Intent> {
        let published = u32::try_from(published.wrapping_add(1) & 0xffff_ffff).unwrap_or(0);
        match *self {
            Self::Unnoted => None,
            Self::OfPath(..) if !steps::holds(Rule::IntendFromPath) => None,
            Self::OfSocket(..) if !steps::holds(Rule::IntendFromSocket) => None,
            Self::OfPath(_, entry, number) => Some(Intent {
                path: entry + 1,
                published,
                number,
            }),
            Self::OfSocket(slot, number) => Some(Intent {
                path: OF_THIS_NODE | slot,
                published,
                number,
            }),
        }
    }
}

/// Return a number that tells sockets of one node apart, one that was left from the next of its port.
pub(super) fn socket_number(address: &Address, port: u16, was_left: bool) -> u64 {
    let bytes = name_of(address, port).bytes();
    // FNV-1a: the next worker counts the same.
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^ u64::from(was_left)
}

impl Plane {
    /// Keep the numbers of paths for the next worker; return the descriptor, which stays ours.
    ///
    /// Before any path is made.
    ///
    /// # Errors
    /// Of the system.
    pub fn path_journal(&self) -> Result<i32, Rejected> {
        let mut state = self.lock();
        if let Some(numbers) = &state.attached.numbers {
            return Ok(numbers.file.get());
        }
        let generation = state.generation.unwrap_or(0);
        let (file, journal) = path_journal::make(generation).map_err(of_system)?;
        state.attached.numbers = Some(Numbers::new(Descriptor::new(file), journal));
        Ok(file)
    }

    /// Go on with the numbers of an earlier worker, and with its generation, which is returned. Until
    /// `finish_restore` nothing is sent or read. `file` is ours from now on.
    ///
    /// # Errors
    /// `System` with EINVAL for what is none; of the system.
    pub fn take_path_journal(&self, file: i32) -> Result<u32, Rejected> {
        let file = Descriptor::new(file);
        let journal = PathJournal::open(file.get()).map_err(of_system)?;
        let generation = journal.generation();
        let mut numbers = Numbers::new(file, journal);
        numbers.is_restoring = true;
        for entry in 0..numbers.journal.used() {
            numbers.entries.insert(numbers.journal.name(entry), entry);
            numbers.unclaimed.insert(entry);
        }
        let mut state = self.lock();
        state.generation = (generation != 0).then_some(generation);
        state.attached.numbers = Some(numbers);
        Ok(generation)
    }

    /// Return the local and peer addresses between which the earlier worker had several paths, and
    /// how many: a power of two, the paths from 0 on that the journal has.
    pub fn npaths_before(&self) -> Vec<(Address, Address, u32)> {
        let state = self.lock();
        let Some(Numbers { journal, .. }) = &state.attached.numbers else {
            return Vec::new();
        };
        let mut indices: HashMap<_, u32> = HashMap::new();
        for entry in (0..journal.used()).filter(|&entry| !journal.is_closed(entry)) {
            let PathName { local, peer, index } = journal.name(entry);
            *indices.entry((local, peer)).or_default() |= 1u32.checked_shl(index).unwrap_or(0);
        }
        let counts = indices.into_iter().filter_map(|((local, peer), indices)| {
            // One that ended in the midst of making them has an odd count.
            let count = 1 << indices.trailing_ones().checked_ilog2()?;
            (count > 1).then(|| (address_of(&local), address_of(&peer), count))
        });
        counts.collect()
    }

    /// Every socket is attached again: send and read.
    ///
    /// Return the local and peer addresses between which the earlier worker had connections.
    pub fn finish_restore(&self) -> Vec<(Address, Address)> {
        let (paths, connected) = {
            let mut state = self.lock();
            if let Some(numbers) = &mut state.attached.numbers {
                numbers.is_restoring = false;
            }
            state.finish_loop_intents();
            for (_, path) in state.paths.iter_mut() {
                path.core.end_take_over();
                path.core.request_ack();
            }
            for mailbox in state.mailboxes.ids() {
                if state.attached_mut(mailbox).is_some() {
                    state.serve_soon(mailbox);
                }
            }
            (state.paths.ids(), state.connected_before())
        };
        for path in paths {
            self.resume(path);
            self.flush(path);
        }
        connected
    }
}

impl Numbers {
    /// Note a path's next number, before bytes of the messages before it leave.
    #[inline]
    pub(crate) fn note_next(&self, entry: u32, next: u64) {
        if steps::holds(Rule::NoteNext) {
            self.journal.set_next(entry, next);
        }
        steps::pass(Step::NextNoted);
    }

    fn new(file: Descriptor, journal: PathJournal) -> Self {
        Self {
            journal,
            file,
            entries: HashMap::new(),
            unclaimed: HashSet::new(),
            sent: HashMap::new(),
            is_restoring: false,
        }
    }
}

impl State {
    /// Return whether sockets of an earlier worker are being attached.
    #[inline]
    pub(crate) fn is_restoring(&self) -> bool {
        let numbers = self.attached.numbers.as_ref();
        numbers.is_some_and(|numbers| numbers.is_restoring && steps::holds(Rule::HoldStreams))
    }

    /// Return whether a new path waits for what its sockets sent before.
    pub(crate) fn holds_moved(&self) -> bool {
        self.is_restoring() && steps::holds(Rule::HoldMoved)
    }

    /// Hold a path's new messages back until what its sockets sent over their earlier paths is
    /// acknowledged: the worker before may have ended while they moved.
    ///
    /// These are the paths that its sockets had when there were fewer, as there may have been.
    pub(crate) fn hold_behind_earlier(&mut self, id: PathId) {
        let Some(path) = self.paths.get(id) else {
            return;
        };
        let (local, peer, index) = (path.local, path.peer, path.index);
        let earlier: HashSet<u32> = (0..u32::BITS)
            .map(|bits| index & ((1 << bits) - 1))
            .filter(|&other| other != index)
            .collect();
        let is_earlier = |path: &StreamPath| {
            path.local == local && path.peer == peer && earlier.contains(&path.index)
        };
        let count = self.paths.iter_mut().filter(|(_, one)| is_earlier(one));
        let fence = Fence::on_paths(u32::try_from(count.count()).unwrap_or(1));
        for (_, other) in self.paths.iter_mut() {
            if is_earlier(other) {
                other.dependents.push(id);
                other.core.fence_behind_sent(fence.clone());
            }
        }
        if let Some(path) = self
            .paths
            .get_mut(id)
            .filter(|_| steps::holds(Rule::HoldMoved))
        {
            path.core.hold_behind(fence);
        }
    }

    /// Have a new path go on where one of an earlier worker ended, and be noted from now on.
    pub(crate) fn note_path(&mut self, id: PathId) {
        let (Some(numbers), Some(path)) = (&mut self.attached.numbers, self.paths.get_mut(id))
        else {
            return;
        };
        let name = PathName {
            local: name_of(&path.local, 0),
            peer: name_of(&path.peer, 0),
            index: path.index,
        };
        let next = path.core.sender.sequence_next;
        let Some(&entry) = numbers.entries.get(&name) else {
            path.entry = numbers.journal.add(&name, next);
            if let Some(entry) = path.entry {
                numbers.entries.insert(name, entry);
            }
            return;
        };
        path.entry = Some(entry);
        numbers.journal.set_closed(entry, false);
        if numbers.unclaimed.remove(&entry) {
            path.core.sender.sequence_next = numbers.journal.next(entry);
            path.core
                .receiver
                .expect(received_of(&numbers.journal.numbers(entry)));
            let sent = numbers.sent.remove(&entry).unwrap_or_default();
            path.core.sender.take_over(sent);
        } else {
            numbers.journal.set_next(entry, next);
            numbers.journal.set_numbers(entry, &PeerNumbers::default());
        }
    }

    /// Note that a path is closed for good: the next worker does not begin with it.
    pub(crate) fn note_closed(&mut self, id: PathId) {
        self.note_connected(id, false);
        if let Some(numbers) = &self.attached.numbers
            && let Some(entry) = self.paths.get(id).and_then(|path| path.entry)
        {
            numbers.journal.set_closed(entry, true);
        }
    }

    /// Note whether a path has a connection, which the next worker makes again.
    pub(crate) fn note_connected(&mut self, id: PathId, is_connected: bool) {
        if let Some(numbers) = &self.attached.numbers
            && let Some(entry) = self.paths.get(id).and_then(|path| path.entry)
        {
            numbers.journal.set_connected(entry, is_connected);
        }
    }

    /// Return the addresses of the paths that the journal has as connected, each pair once.
    fn connected_before(&self) -> Vec<(Address, Address)> {
        let Some(Numbers { journal, .. }) = &self.attached.numbers else {
            return Vec::new();
        };
        let connected = (0..journal.used()).filter(|&entry| journal.is_connected(entry));
        let names = connected.map(|entry| journal.name(entry));
        let mut seen = HashSet::new();
        names
            .filter(|name| seen.insert((name.local, name.peer)))
            .map(|name| (address_of(&name.local), address_of(&name.peer)))
            .collect()
    }

    /// Note the peer's numbers after a read.
    #[inline]
    pub(crate) fn note_numbers(&mut self, id: PathId) {
        if let Some(numbers) = &self.attached.numbers
            && let Some(path) = self.paths.get(id)
            && let Some(entry) = path.entry
            && steps::holds(Rule::NoteExpected)
        {
            let received = path.core.receiver.received();
            numbers.journal.set_numbers(entry, &numbers_of(&received));
        }
    }

    /// Return whether messages with numbers of a socket wait for their path to be made.
    pub(crate) fn waits_for_path(&self, id: MailboxId) -> bool {
        let owner = Some(Owner(id.to_u64()));
        let numbers = self.attached.numbers.iter();
        let mut sent = numbers.flat_map(|numbers| numbers.sent.values().flatten());
        sent.any(|message| message.owner == owner)
    }

    /// Drop those messages, to that address and port, or all; return how many.
    pub(crate) fn cancel_waiting_for_path(
        &mut self,
        id: MailboxId,
        to: Option<Address>,
        port: Option<u16>,
    ) -> usize {
        if !self.waits_for_path(id) {
            return 0;
        }
        let owner = Some(Owner(id.to_u64()));
        let mut dropped = Vec::new();
        if let Some(numbers) = &mut self.attached.numbers {
            for (&entry, sent) in &mut numbers.sent {
                let peer = address_of(&numbers.journal.name(entry).peer);
                if to.is_some_and(|to| to != peer) {
                    continue;
                }
                let gone = sent.extract_if(.., |message| {
                    let is_meant = port.is_none_or(|port| message.target_port == port);
                    is_meant && message.owner == owner
                });
                dropped.extend(gone.map(|message| (peer, message.payload.len())));
            }
        }
        let count = dropped.len();
        self.counters.send_cancelled += count as u64;
        for (peer, bytes) in dropped {
            self.give_back_bytes(id, bytes, &peer);
        }
        count
    }

    /// Go on with what an earlier worker had of a socket.
    pub(super) fn restore_socket(&mut self, id: MailboxId) {
        self.restore_routes(id);
        self.restore_intent(id);
        let Some(record) = self.mailboxes.get_mut(id) else {
            return;
        };
        let Some(attached) = record.attached.as_deref_mut() else {
            return;
        };
        let side = &attached.side;
        if !attached.was_left {
            // Of one that was left they would mark the port, which may be another socket's.
            record.inbox.receive_queued_bytes = side.unread_bytes();
        }
        let mut before: Vec<Held> = Vec::new();
        side.held_messages(|held| before.push(*held));
        before.sort_by_key(|one| one.order);
        let has_unread = side.has_unread();
        for one in before {
            let is_sent = one.number != 0 && self.restore_sent(id, &one);
            if let Some(attached) = self.attached_mut(id).filter(|_| !is_sent) {
                // Another message may have its number by the time at which this worker is killed.
                attached.side.forget_number(one.message.slot);
                attached.held.push(one.message);
            }
        }
        if has_unread && steps::holds(Rule::ShowUnread) {
            self.show(id); // the doorbell may have ended with the earlier worker
        }
        // Maps may have changed while no worker ran: a socket that waits for one looks again.
        self.tell_attached_of_map(id, ALL_GROUPS, false);
    }

    fn restore_routes(&mut self, id: MailboxId) {
        for number in 0..u32::try_from(ROUTES).unwrap_or(0) {
            let Some(attached) = self.attached_mut(id) else {
                return;
            };
            let Some(name) = attached.side.journal().route(number) else {
                return;
            };
            let peer = address_of(&name);
            attached.routes.push(peer);
            attached.by_peer.insert(peer, number);
            self.place_map(id, number, peer);
        }
    }

    /// A message whose delivery was begun counts as delivered if it was published.
    fn restore_intent(&mut self, id: MailboxId) {
        let Some(attached) = self.attached_mut(id) else {
            return;
        };
        let Some(intent) = attached.side.journal().intent() else {
            return;
        };
        if intent.path & OF_THIS_NODE != 0 {
            return; // once every socket is attached
        }
        let is_published = attached.side.published() & 0xffff_ffff == u64::from(intent.published);
        if let Some(numbers) = &self.attached.numbers
            && is_published
            && intent.path <= numbers.journal.used()
        {
            let entry = intent.path - 1;
            let expected = numbers
                .journal
                .numbers(entry)
                .expected
                .max(intent.number + 1);
            numbers.journal.set_expected(entry, expected);
            for (_, path) in self.paths.iter_mut() {
                if path.entry == Some(entry) {
                    path.core.receiver.sequence_expected = expected;
                }
            }
        }
        if let Some(attached) = self.attached_mut(id) {
            attached.side.journal().finish_intent(); // last: this worker may be killed, too
        }
    }

    /// The same for messages between sockets of this node: the sender's record is free.
    fn finish_loop_intents(&mut self) {
        let (mut delivered, mut intended) = (Vec::new(), Vec::new());
        for id in self.mailboxes.ids() {
            let Some(attached) = self.attached_mut(id) else {
                continue;
            };
            let Some(intent) = attached.side.journal().intent() else {
                continue;
            };
            if attached.side.published() & 0xffff_ffff == u64::from(intent.published) {
                delivered.push((intent.path & !OF_THIS_NODE, intent.number));
            }
            intended.push(id);
        }
        for (slot, number) in delivered {
            let sender = self.mailboxes.iter().find(|(_, record)| {
                let attached = record.attached.as_deref();
                attached.is_some_and(|attached| attached.number == number)
            });
            let Some(id) = sender.map(|(id, _)| id) else {
                continue;
            };
            if let Some(attached) = self.attached_mut(id) {
                let slots = attached.held.remove(|submission| submission.slot == slot);
                self.free_held(id, &slots);
            }
        }
        for id in intended {
            if let Some(attached) = self.attached_mut(id) {
                attached.side.journal().finish_intent();
            }
        }
    }

    /// Put a message that has a number back on its path; return false if the path is not known.
    fn restore_sent(&mut self, id: MailboxId, one: &Held) -> bool {
        let Some(numbers) = &self.attached.numbers else {
            return false;
        };
        let Some(entry) = one
            .path
            .checked_sub(1)
            .filter(|&entry| entry < numbers.journal.used())
        else {
            return false;
        };
        if one.number >= numbers.journal.next(entry) {
            return false; // its first byte never left: it gets a number anew
        }
        let peer = address_of(&numbers.journal.name(entry).peer);
        let Some(sent) = self.sent_record(id, &one.message, entry + 1) else {
            return false;
        };
        let Some(record) = self.mailboxes.get_mut(id) else {
            return false;
        };
        let destination = record.accounts.destination(peer, false);
        record.count_queued(destination, one.message.length);
        let message = Message {
            sequence: one.number,
            end: 0,
            owner: Some(Owner(id.to_u64())),
            source_port: record.port,
            target_port: one.message.port,
            payload: payload_on(sent),
            extension: extension_of(&one.message),
        };
        let path = self
            .paths
            .iter_mut()
            .find(|(_, path)| path.entry == Some(entry));
        if let Some((_, path)) = path {
            path.core.sender.take_over([message]);
        } else if let Some(numbers) = &mut self.attached.numbers {
            numbers.sent.entry(entry).or_default().push(message);
            self.emit(Event::RouteWanted { mailbox: id, peer });
        }
        true
    }
}

fn received_of(numbers: &PeerNumbers) -> Received {
    Received {
        sequence_expected: numbers.expected,
        floor: numbers.floor,
        probe_sequence: numbers.probe,
        generation: numbers.generation,
        map_generation: numbers.map_generation,
        watch_restarts: numbers.watch_restarts,
    }
}

fn numbers_of(received: &Received) -> PeerNumbers {
    PeerNumbers {
        expected: received.sequence_expected,
        floor: received.floor,
        probe: received.probe_sequence,
        generation: received.generation,
        map_generation: received.map_generation,
        watch_restarts: received.watch_restarts,
    }
}
