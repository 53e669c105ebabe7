//! What a client submitted: taken, checked, and queued on its path or delivered on this node.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use urds_channel::socket_memory::layout::ROUTE_ABSENT;
use urds_channel::socket_memory::{ClientError as Nonsense, Submission};
use urds_path::{Address, Extension, NO_EXTENSION, Owner, Payload, SocketAddress};

use super::restore::Delivery;
use super::steps::{self, Step};
use crate::events::Event;
use crate::mailbox::{Mailbox, Route};
use crate::state::{MailboxId, PathId, State};
use crate::sys::sent_record::{SendMemory, SentRecord};

/// Messages of one socket in one pass; then the others have theirs.
const PASS_MESSAGES: usize = 256;

/// Extension headers that programs send: a key of RDMA, and its place. Others are a node's own.
const OF_PROGRAMS: [u8; 2] = [2, 3];

/// What is left of what a client submitted, after a pass.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing that may be taken.
    Nothing,
    /// The next pass takes it.
    More,
    /// The journal has no slot for it; the socket is served again when one is free.
    Waits,
}

impl State {
    /// Take what a client submitted, a bounded number; return what is left. `paths` gets those to be
    /// flushed.
    pub(super) fn take_submissions(
        &mut self,
        id: MailboxId,
        paths: &mut Vec<PathId>,
    ) -> Result<Rest, Nonsense> {
        let Some(attached) = self.attached_mut(id) else {
            return Ok(Rest::Nothing);
        };
        let memory = Arc::clone(&attached.memory);
        let mut left = PASS_MESSAGES;
        for route in attached.held.routes() {
            self.queue_held(id, route, &memory, paths, &mut left)?;
        }
        while left > 0 {
            left -= 1;
            let Some(attached) = self.attached_mut(id) else {
                return Ok(Rest::Nothing);
            };
            if attached.is_held_up() {
                return Ok(Rest::Nothing);
            }
            // By reference: each move would read at once what was just written, in other widths.
            let next = attached.side.take();
            let submission = match &next {
                Ok(Some(submission)) => submission,
                Ok(None) if attached.side.has_slot() || attached.side.submissions()? == 0 => {
                    return Ok(Rest::Nothing);
                }
                Ok(None) => {
                    attached.waits_for_slot = true;
                    return Ok(Rest::Waits);
                }
                Err(error) => return Err(*error),
            };
            let restricted = &mut attached.taken_while_restricted;
            *restricted = restricted.saturating_sub(1);
            let is_behind = attached.held.waits(submission.route);
            if (is_behind || !self.queue_submission(id, submission, &memory, paths)?)
                && let Some(attached) = self.attached_mut(id)
            {
                attached.held.push(*submission);
            }
        }
        self.attached.due.insert(id);
        Ok(Rest::More)
    }

    /// Queue what waits for a route, until one has to wait on or `left` more were queued.
    fn queue_held(
        &mut self,
        id: MailboxId,
        route: u32,
        memory: &SendMemory,
        paths: &mut Vec<PathId>,
        left: &mut usize,
    ) -> Result<(), Nonsense> {
        while *left > 0
            && let Some(held) = self
                .attached_mut(id)
                .and_then(|attached| attached.held.first(route))
            && self.queue_submission(id, &held, memory, paths)?
        {
            *left -= 1;
            if let Some(attached) = self.attached_mut(id) {
                attached.held.pop(route);
            }
        }
        Ok(())
    }

    /// Queue a message on its path or deliver it here; return false if it has to wait: then the socket
    /// is served again when it may go on.
    fn queue_submission(
        &mut self,
        id: MailboxId,
        submission: &Submission,
        memory: &SendMemory,
        paths: &mut Vec<PathId>,
    ) -> Result<bool, Nonsense> {
        let Some(mailbox) = self.mailboxes.get_mut(id) else {
            return Ok(true);
        };
        let Some(attached) = mailbox.attached.as_deref_mut() else {
            return Ok(true);
        };
        let Some(&peer) = attached.routes.get(submission.route as usize) else {
            return Err(Nonsense("a route that it was not given"));
        };
        if submission.length > self.limits.message_bytes_max {
            // Its memory is of an earlier worker, which allowed more.
            self.give_up_submission(id, submission, &peer, libc::EMSGSIZE);
            return Ok(true);
        }
        match mailbox.route_to(&peer) {
            Some(Route::Stream(path)) => Ok(self.queue_on(id, submission, path, peer, paths)),
            Some(Route::Loop) => Ok(self.hand_over_here(id, submission, memory, peer)),
            Some(Route::External(_)) => {
                self.give_up_submission(id, submission, &peer, libc::EOPNOTSUPP);
                Ok(true)
            }
            None => {
                self.want_route(id, submission.route, peer);
                Ok(false)
            }
        }
    }

    /// What waited for a route to a peer goes on.
    pub(crate) fn note_attached_route(
        &mut self,
        id: MailboxId,
        peer: Address,
        route: Option<Route>,
    ) {
        if let Some(Route::Stream(path)) = route
            && let Some(record) = self.paths.get(path)
            && record.core.sender.holds(None)
        {
            self.want_stream(path);
        }
        let mut number = None;
        if let Some(attached) = self.attached_mut(id) {
            number = attached.by_peer.get(&peer).copied();
            if let Some(number) = number {
                attached.held.end_asking(number); // it may go again while messages wait for room
            }
        }
        if let Some(number) = number {
            self.place_map(id, number, peer); // only now is it known whose map counts
        }
        self.serve_soon(id);
    }

    /// Drop a message; the client's next send to that peer gets the error.
    fn give_up_submission(
        &mut self,
        id: MailboxId,
        submission: &Submission,
        peer: &Address,
        errno: i32,
    ) {
        if let Some(attached) = self.attached_mut(id) {
            attached.report(peer, errno);
        }
        self.attached.freed.push(id, submission.slot);
    }

    /// Ask the control plane for a route, once until it answers.
    fn want_route(&mut self, id: MailboxId, route: u32, peer: Address) {
        if let Some(attached) = self.attached_mut(id)
            && attached.held.ask(route)
        {
            self.emit(Event::RouteWanted { mailbox: id, peer });
        }
    }

    /// Return how many messages the client of a socket has ever submitted; 0 of one without a client.
    pub(crate) fn submitted(&mut self, id: MailboxId) -> u64 {
        self.attached_mut(id).map_or(0, |attached| {
            let waiting = attached.side.submissions().unwrap_or(0);
            attached.side.taken().saturating_add(u64::from(waiting))
        })
    }

    /// Return whether so many of them are taken.
    pub(crate) fn has_taken(&mut self, id: MailboxId, submitted: u64) -> bool {
        self.attached_mut(id)
            .is_none_or(|attached| attached.side.taken() >= submitted)
    }

    /// Remove what waits of a socket's messages to that address and port, or all; return how many.
    pub(crate) fn cancel_held(
        &mut self,
        id: MailboxId,
        peer: Option<Address>,
        port: Option<u16>,
    ) -> usize {
        let Some(attached) = self.attached_mut(id) else {
            return 0;
        };
        let routes = &attached.routes;
        let slots = attached.held.remove(|submission| {
            let to = routes.get(submission.route as usize);
            peer.is_none_or(|peer| to == Some(&peer))
                && port.is_none_or(|port| submission.port == port)
        });
        if !slots.is_empty() {
            self.free_held(id, &slots);
            self.serve_soon(id); // what was behind them may go
        }
        self.counters.send_cancelled += slots.len() as u64;
        slots.len()
    }

    /// Free messages that waited.
    pub(super) fn free_held(&mut self, id: MailboxId, slots: &[u32]) {
        for &slot in slots {
            if let Some(attached) = self.attached_mut(id) {
                attached.side.free(slot);
                self.attached.roomy.insert(id);
            }
        }
    }

    pub(super) fn sent_record(
        &mut self,
        id: MailboxId,
        submission: &Submission,
        path: u32,
    ) -> Option<SentRecord> {
        let freed = self.attached.freed.clone();
        let attached = self.attached_mut(id)?;
        attached.held.end_asking(submission.route);
        Some(SentRecord {
            memory: Arc::clone(&attached.memory),
            at: submission.at,
            length: submission.length,
            slot: submission.slot,
            path: AtomicU32::new(path),
            mailbox: id,
            freed,
        })
    }

    /// Queue a message on a path, as `send_side` does; return false if it has to wait.
    fn queue_on(
        &mut self,
        id: MailboxId,
        submission: &Submission,
        path: PathId,
        peer: Address,
        paths: &mut Vec<PathId>,
    ) -> bool {
        let Some(record) = self.paths.get_mut(path) else {
            if let Some(mailbox) = self.mailboxes.get_mut(id) {
                mailbox.set_route(peer, None);
            }
            self.want_route(id, submission.route, peer);
            return false;
        };
        let bytes = submission.length;
        let is_too_long = bytes > record.message_bytes_max;
        let count = record.core.sender.message_count();
        let is_full = record.full || count >= self.limits.path_messages_max;
        if is_too_long || is_full {
            if !record.room_wanted.contains(&id) {
                record.room_wanted.push(id);
            }
            self.check_full(path);
            if is_too_long && !self.want_agreement(path) {
                self.give_up_submission(id, submission, &peer, libc::EMSGSIZE);
                return true;
            }
            return false;
        }
        let entry = record.place_in_journal();
        let Some(sent) = self.sent_record(id, submission, entry) else {
            return true;
        };
        let (Some(record), Some(mailbox)) = (self.paths.get_mut(path), self.mailboxes.get_mut(id))
        else {
            return true;
        };
        let absent = record.absent;
        let destination = mailbox.accounts.destination(peer, absent);
        if mailbox.count_queued(destination, bytes) {
            record.core.sender.acknowledgement_wanted = true;
        }
        let owner = Owner(id.to_u64());
        let payload = payload_on(sent);
        let (port, target_port) = (mailbox.port, submission.port);
        record
            .core
            .send(owner, port, target_port, payload, extension_of(submission));
        if !record.core.attached {
            self.want_stream(path);
        } else if paths.last() != Some(&path) && !paths.contains(&path) {
            paths.push(path);
        }
        true
    }

    /// Return the socket of this node at a target: as a rule that of the sender's last message.
    fn receiver_at(&mut self, sender: MailboxId, target: &SocketAddress) -> Option<MailboxId> {
        let last = self.attached_mut(sender)?.last_receiver;
        let is_there =
            |one: &Mailbox| !one.closed && one.port == target.port && one.local == target.address;
        if last.is_some_and(|last| self.mailboxes.get(last).is_some_and(is_there)) {
            return last;
        }
        let found = self.mailbox_at(&target.address, target.port);
        self.attached_mut(sender)?.last_receiver = found;
        found
    }

    /// Deliver a message to an address of this node; return false, to have it wait, while its target is
    /// too full.
    fn hand_over_here(
        &mut self,
        id: MailboxId,
        submission: &Submission,
        memory: &SendMemory,
        peer: Address,
    ) -> bool {
        let target = SocketAddress::new(peer, submission.port);
        let found = self.receiver_at(id, &target);
        if let Some(receiver) = found
            && self.is_over_hard_bound(receiver)
            && let Some(attached) = self.attached_mut(receiver)
        {
            if !attached.waiting.contains(&id) {
                attached.waiting.push(id);
            }
            self.touched.insert(receiver);
            return false;
        }
        let Some(attached) = self.attached_mut(id) else {
            return true;
        };
        attached.held.end_asking(submission.route);
        let delivery = Delivery::OfSocket(submission.slot, attached.number);
        let extension = extension_of(submission);
        let payload = memory.bytes(submission.at, submission.length);
        self.deliver_here(id, &target, found, payload, extension, delivery);
        steps::pass(Step::DeliveredHere);
        if let Some(attached) = self.attached_mut(id) {
            attached.side.free(submission.slot);
            self.attached.roomy.insert(id);
        }
        steps::pass(Step::FreedHere);
        let receiver = found.filter(|_| submission.port != 0); // a ping has none
        if let Some(attached) = receiver.and_then(|receiver| self.attached_mut(receiver)) {
            attached.side.journal().finish_intent();
        }
        true
    }

    /// Tell a client whether a peer is absent, and what is queued to such peers.
    pub(crate) fn tell_attached_of_absence(
        &mut self,
        id: MailboxId,
        peer: &Address,
        is_absent: bool,
    ) {
        let Some(record) = self.mailboxes.get_mut(id) else {
            return;
        };
        let aside_bytes = record.accounts.aside_bytes() as u64;
        if let Some(attached) = record.attached.as_deref_mut() {
            if let Some(&number) = attached.by_peer.get(peer) {
                let flags = if is_absent { ROUTE_ABSENT } else { 0 };
                attached.side.set_route_flags(number, flags);
            }
            attached.side.set_absent_bytes(aside_bytes);
            if attached.side.after_freeing() {
                self.show(id);
            }
        }
    }

    /// Free the records that no path and no write refers to any more.
    pub(crate) fn finish_freed_records(&mut self) {
        if self.attached.count == 0
            || (!self.attached.freed.is_any() && self.attached.roomy.is_empty())
        {
            return;
        }
        for (id, slot) in self.attached.freed.take() {
            if let Some(attached) = self.attached_mut(id) {
                attached.side.free(slot);
                self.attached.roomy.insert(id);
            }
        }
        let mut roomy = Vec::new();
        self.attached.roomy.drain_into(&mut roomy);
        for id in roomy {
            if let Some(record) = self.mailboxes.get_mut(id)
                && let Some(attached) = record.attached.as_deref_mut()
            {
                let aside_bytes = record.accounts.aside_bytes() as u64;
                attached.side.set_absent_bytes(aside_bytes);
                let has_late = attached.side.has_late();
                let waits = std::mem::take(&mut attached.waits_for_slot);
                if attached.side.after_freeing() {
                    self.show(id);
                }
                if has_late {
                    self.note_late(id);
                }
                if waits {
                    self.serve_soon(id);
                }
            }
            self.empty_control_socket(id);
        }
    }
}

/// Return the payload that is a record.
pub(super) fn payload_on(sent: SentRecord) -> Payload {
    Payload::Foreign(Arc::new(sent))
}

/// Return the extension of a client's message: of those that programs send, or none.
pub(super) fn extension_of(submission: &Submission) -> Extension {
    if submission.extension_bytes > 0 && OF_PROGRAMS.contains(&submission.extension[0]) {
        submission.extension
    } else {
        NO_EXTENSION
    }
}
