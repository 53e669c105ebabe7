//! The send side of a path: number, keep until acknowledged, retransmit after a break.
//!
//! A value machine: no I/O, no clock, no lock. Messages wait in one queue, which holds in this order:
//!
//! - *unacked* ones: became bytes of the current stream; kept until the peer has them;
//! - *retransmits*: were sent on an earlier stream and not acknowledged; keep their number, carry
//!   RETRANSMITTED, go first and restart from their header;
//! - *unsent* ones: have no number yet; a message is numbered when it first becomes bytes, so that
//!   cancelling an unsent message leaves no hole.
//!
//! So numbers ascend, and a message stays where it was queued: to move one costs as much as to frame it.
//!
//! What "has them" means depends on the peer (`AckMode`): towards Linux the TCP stack's count of
//! acknowledged bytes, between urds nodes the header's acknowledgement field. A message cut in the
//! middle is retransmitted whole. Source: linux v6.12 net/rds/send.c (`rds_send_path_reset`).
//!
//! The shell keeps the accounts: it adds queued messages, `Freed` reports those that left.

use std::collections::VecDeque;
use std::ops::Range;

use crate::constants::{
    FLAG_ACK_REQUIRED, FLAG_RETRANSMITTED, HEADER_BYTES, LONG_BYTES, PING_PORT,
};
use crate::counters::Counters;
use crate::fence::Fence;
use crate::freed::{Freed, FreedList};
use crate::header::Header;
use crate::kinds::{AckMode, Extension, NO_EXTENSION, Owner};
use crate::limits::Limits;
use crate::payload::{INLINE_BYTES, Payload};
use crate::queued_messages::{Message, NO_MESSAGE, Queued, Row, is_probe, row};
use crate::write_buffer::WriteBuffer;

/// Messages for which an idle path keeps room.
const IDLE_MESSAGES: usize = 16;
/// More room than these costs page faults to get again: one call of `rest` in 32 frees it.
const CHEAP_MESSAGES: usize = 8192;
const IDLE_CALLS_PER_RELEASE: u8 = 32;

/// Queues and numbers of one direction of a path.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, not a state"
)]
pub struct Sender {
    limits: Limits,
    /// Unacked messages, then retransmits, then unsent ones.
    queue: VecDeque<Queued>,
    unacked: usize,
    retransmits: usize,
    /// The number of the next message that gets one.
    pub sequence_next: u64,
    /// Bytes framed for the current stream.
    pub position: u64,
    /// Bytes of unsent messages, headers included.
    pub pending_bytes: usize,
    pub ack_mode: AckMode,
    /// Every header carries a checksum.
    pub checksum: bool,
    /// A send account crossed half of its limit: the last message requests an acknowledgement.
    pub acknowledgement_wanted: bool,
    /// A thread waits until every message here is acknowledged: the last one requests it.
    pub ack_request_due: bool,
    /// Nothing new is sent any more but a ping from this port; its number, once it is framed.
    pub(crate) last: Option<(u16, Option<u64>)>,
    /// The next framed message is the only one: its reply acknowledges it, so it requests nothing.
    pub lone: bool,
    unacked_packets_left: usize,
    unacked_bytes_left: usize,
    pub(crate) fences: Vec<(Fence, Option<u64>)>, // number of the last message before it
    pub(crate) fence: Option<Fence>,              // on another path: it holds new messages back
    freed: FreedList,
    idle_calls: u8,
}

impl Sender {
    pub fn new(limits: Limits, sequence_first: u64) -> Self {
        Self {
            limits,
            queue: VecDeque::new(),
            unacked: 0,
            retransmits: 0,
            sequence_next: sequence_first,
            position: 0,
            pending_bytes: 0,
            ack_mode: AckMode::NotYet,
            checksum: false,
            acknowledgement_wanted: false,
            ack_request_due: false,
            last: None,
            lone: false,
            unacked_packets_left: limits.unacked_packets_max,
            unacked_bytes_left: limits.unacked_bytes_max,
            fences: Vec::new(),
            fence: None,
            freed: FreedList::default(),
            idle_calls: 0,
        }
    }

    // -- queueing

    /// Queue a message behind all others. The caller has checked every limit and adds to accounts.
    #[inline]
    pub fn queue(
        &mut self,
        owner: Option<Owner>,
        source_port: u16,
        target_port: u16,
        payload: Payload,
        extension: Extension,
    ) {
        let message = Message::unsent(owner, source_port, target_port, payload, extension);
        self.pending_bytes += HEADER_BYTES + message.payload.len();
        make_room(&mut self.queue);
        self.queue.push_back(Queued::Message(message));
    }

    /// Queue a message of a socket with a copy of its payload, and without an extension.
    #[inline]
    pub fn queue_copy(&mut self, owner: Owner, source_port: u16, target_port: u16, payload: &[u8]) {
        if payload.len() > INLINE_BYTES {
            let payload = Payload::copy_of(payload);
            return self.queue(Some(owner), source_port, target_port, payload, NO_EXTENSION);
        }
        self.pending_bytes += HEADER_BYTES + payload.len();
        make_room(&mut self.queue);
        self.queue.push_back(Queued::Message(NO_MESSAGE));
        // Written in its final place: a move at once would stall the processor.
        if let Some(Queued::Message(queued)) = self.queue.back_mut() {
            queued.owner = Some(owner);
            queued.source_port = source_port;
            queued.target_port = target_port;
            queued.payload.set_inline(payload);
        }
    }

    /// Queue an empty message of the control plane before other new ones, behind retransmissions.
    pub(crate) fn queue_ahead(&mut self, source_port: u16, target_port: u16, extension: Extension) {
        let payload = Payload::empty();
        let message = Message::unsent(None, source_port, target_port, payload, extension);
        self.pending_bytes += HEADER_BYTES;
        self.queue.insert(self.numbered(), Queued::Message(message));
    }

    // -- what is queued

    /// How many messages were framed on this stream and are not acknowledged.
    #[inline]
    pub fn unacked_len(&self) -> usize {
        self.unacked
    }

    /// Stream position behind the last of these; without any, behind all that was framed.
    pub fn unacked_end(&self) -> u64 {
        let last = self.messages(0..self.unacked).next_back();
        last.map_or(self.position, |last| last.end)
    }

    /// How many messages are to be retransmitted.
    #[inline]
    pub fn retransmits_len(&self) -> usize {
        self.retransmits
    }

    /// How many messages, and fences between them, have no number.
    #[inline]
    pub fn unsent_len(&self) -> usize {
        self.queue.len() - self.numbered()
    }

    /// How many messages have a number: the first ones of the queue.
    #[inline]
    fn numbered(&self) -> usize {
        self.unacked + self.retransmits
    }

    /// Unacked messages, then retransmits: by their numbers.
    pub fn sent(&self) -> impl DoubleEndedIterator<Item = &Message> {
        self.messages(0..self.numbered())
    }

    /// Messages without a number, in their order.
    pub fn unsent(&self) -> impl Iterator<Item = &Message> {
        self.messages(self.numbered()..self.queue.len())
    }

    #[inline]
    fn messages(&self, range: Range<usize>) -> impl DoubleEndedIterator<Item = &Message> {
        self.queue.range(range).filter_map(Queued::message)
    }

    /// Whether the queue averages 8 KiB a message: each then takes a slice or two.
    pub fn is_long(&self) -> bool {
        self.pending_bytes >= LONG_BYTES * self.unsent_len()
    }

    /// Messages that are queued or unacknowledged.
    pub fn message_count(&self) -> usize {
        self.queue.len()
    }

    /// Return a fence behind every message queued now.
    pub fn fence(&mut self) -> Fence {
        let fence = Fence::new();
        self.queue.push_back(Queued::Fence(fence.clone()));
        self.fences.push((fence.clone(), None));
        self.open_fences();
        fence
    }

    /// Whether new messages wait for another path's fence.
    pub fn is_gated(&self) -> bool {
        self.fence.as_ref().is_some_and(|fence| !fence.is_open())
    }

    // -- the stream

    /// Frame queued messages until `bytes_max`; return how many bytes were made.
    ///
    /// The acknowledgement goes into every header; 0 towards Linux.
    pub(crate) fn frame(
        &mut self,
        out: &mut WriteBuffer,
        bytes_max: usize,
        acknowledgement: u64,
        counters: &mut Counters,
    ) -> usize {
        let start = self.position;
        let end = start + bytes_max as u64;
        self.frame_retransmits(out, end, acknowledgement, counters);
        if self.last.is_some() {
            self.frame_last(out, acknowledgement);
        } else if self.unsent_len() > 0 && self.position < end {
            if self.is_gated() {
                counters.mprds_catchup_tx0_retries += 1;
            } else {
                self.fence = None;
                self.frame_unsent(out, end, acknowledgement, counters);
            }
        }
        usize::try_from(self.position - start).expect("a write fits into memory")
    }

    /// Frame the last ping, behind the retransmissions: ahead of them its number would have the
    /// peer take each for an old one.
    fn frame_last(&mut self, out: &mut WriteBuffer, acknowledgement: u64) {
        if let Some((port, None)) = self.last
            && self.retransmits == 0
        {
            let sequence = self.sequence_next;
            self.last = Some((port, Some(sequence)));
            self.sequence_next += 1;
            let payload = Payload::empty();
            let ping = Message::unsent(None, port, PING_PORT, payload, NO_EXTENSION);
            self.queue.insert(self.unacked, Queued::Message(ping));
            self.frame_one(out, sequence, 0, acknowledgement);
        }
    }

    /// Whether there is a last ping that is not framed yet.
    pub(crate) fn is_last_due(&self) -> bool {
        matches!(self.last, Some((_, None)))
    }

    /// Free everything up to the last ping: the peer has answered it.
    pub(crate) fn handle_last_answered(&mut self) {
        if let Some((_, Some(sequence))) = self.last {
            self.free_unacked_while(|message| message.sequence <= sequence);
            self.open_fences();
        }
    }

    fn frame_unsent(
        &mut self,
        out: &mut WriteBuffer,
        end: u64,
        acknowledgement: u64,
        counters: &mut Counters,
    ) {
        let (start, first) = (self.position, self.sequence_next);
        while self.position < end {
            let bytes = match self.queue.get(self.unacked) {
                Some(Queued::Message(message)) => message.payload.len(),
                Some(Queued::Fence(_)) => {
                    self.pass_fence();
                    continue;
                }
                None => break,
            };
            let (sequence, flags) = (self.sequence_next, self.flags_of_new(bytes, counters));
            self.frame_one(out, sequence, flags, acknowledgement);
            self.sequence_next += 1;
        }
        if self.unsent_len() == 0 {
            self.acknowledgement_wanted = false;
        }
        let made = self.position - start;
        let messages = self.sequence_next - first;
        counters.send_queued += messages;
        counters.copy_from_user += made - HEADER_BYTES as u64 * messages;
        self.pending_bytes -= usize::try_from(made).expect("a write fits into memory");
        self.open_fences();
    }

    /// Count down to the next message that has to request an acknowledgement, for the first one of
    /// the queue.
    #[inline]
    fn flags_of_new(&mut self, payload_bytes: usize, counters: &mut Counters) -> u8 {
        if self.ack_mode != AckMode::PeerAcknowledged {
            return 0;
        }
        self.unacked_packets_left = self.unacked_packets_left.saturating_sub(1);
        self.unacked_bytes_left = self.unacked_bytes_left.saturating_sub(payload_bytes);
        if std::mem::take(&mut self.lone) {
            return 0;
        }
        let last = self.acknowledgement_wanted && self.unsent_len() == 1;
        if self.unacked_packets_left > 0 && self.unacked_bytes_left > 0 && !last {
            return 0;
        }
        self.allow_unacked();
        counters.send_ack_required += 1;
        FLAG_ACK_REQUIRED
    }

    /// Frame the message behind those of this stream; it stays there until it is acknowledged.
    #[inline]
    fn frame_one(&mut self, out: &mut WriteBuffer, sequence: u64, flags: u8, acknowledgement: u64) {
        let Some(Queued::Message(message)) = self.queue.get_mut(self.unacked) else {
            return;
        };
        emit(
            out,
            message,
            sequence,
            flags,
            acknowledgement,
            self.checksum,
        );
        self.position += (HEADER_BYTES + message.payload.len()) as u64;
        message.sequence = sequence;
        message.end = self.position;
        self.unacked += 1;
    }

    /// Retransmit messages of an earlier stream, oldest first, with their old numbers.
    fn frame_retransmits(
        &mut self,
        out: &mut WriteBuffer,
        end: u64,
        acknowledgement: u64,
        counters: &mut Counters,
    ) {
        let mut flags = FLAG_RETRANSMITTED;
        if self.ack_mode == AckMode::PeerAcknowledged {
            flags |= FLAG_ACK_REQUIRED;
        }
        while self.retransmits > 0
            && self.position < end
            && let Some(Queued::Message(message)) = self.queue.get(self.unacked)
        {
            let sequence = message.sequence;
            self.retransmits -= 1;
            self.frame_one(out, sequence, flags, acknowledgement);
            counters.send_retransmitted += 1;
        }
    }

    /// Have every unacknowledged message retransmitted, in its old order.
    pub(crate) fn end_stream(&mut self) {
        self.retransmits += std::mem::take(&mut self.unacked);
        self.position = 0;
        self.allow_unacked();
    }

    // -- acknowledgements

    /// Whether every ready message has left, and a thread waits for its acknowledgement.
    pub(crate) fn wants_ack(&self) -> bool {
        self.ack_request_due
            && self.ack_mode == AckMode::PeerAcknowledged
            && self.unacked > 0
            && self.retransmits == 0
            && (self.unsent_len() == 0 || self.is_gated())
    }

    /// Take over messages that an earlier process, or another path, had: those with numbers, which may
    /// be with the peer, go first, by number, as retransmissions.
    pub fn take_over(&mut self, messages: impl IntoIterator<Item = Message>) {
        let (unsent, mut sent): (Vec<_>, Vec<_>) = messages
            .into_iter()
            .partition(|message| message.sequence == 0);
        let before = self.queue.split_off(self.numbered());
        let retransmits = self
            .queue
            .drain(self.unacked..)
            .filter_map(|queued| match queued {
                Queued::Message(message) => Some(message),
                Queued::Fence(_) => None,
            });
        sent.extend(retransmits);
        sent.sort_by_key(|message| message.sequence);
        self.retransmits = sent.len();
        self.queue.extend(sent.into_iter().map(Queued::Message));
        self.queue.extend(before);
        for message in unsent {
            self.pending_bytes += HEADER_BYTES + message.payload.len();
            self.queue.push_back(Queued::Message(message));
        }
    }

    /// Free everything up to `sequence`; return false if that was never sent.
    pub fn handle_peer_acknowledged(&mut self, sequence: u64) -> bool {
        if sequence >= self.sequence_next {
            return false;
        }
        self.free_unacked_while(|message| message.sequence <= sequence);
        if self.unacked == 0 {
            self.allow_unacked(); // a request and its reply need no further request
        }
        self.open_fences();
        true
    }

    /// Restart the count of messages that may be out before an acknowledgement is requested.
    fn allow_unacked(&mut self) {
        self.unacked_packets_left = self.limits.unacked_packets_max;
        self.unacked_bytes_left = self.limits.unacked_bytes_max;
    }

    /// Free messages wholly within the first `bytes` of the current stream.
    pub(crate) fn handle_stream_acknowledged(&mut self, bytes: u64) {
        self.free_unacked_while(|message| message.end <= bytes);
        self.open_fences();
    }

    /// Free messages to retransmit that the peer reports received, up to `sequence`.
    pub fn forget_retransmits(&mut self, sequence: u64) {
        if sequence < self.sequence_next {
            let retransmits = self.unacked..self.numbered();
            let is_with_peer = |message: &Message| message.sequence <= sequence;
            self.retransmits -= self.free_while(retransmits, is_with_peer);
        }
        self.open_fences();
    }

    #[inline]
    fn free_unacked_while(&mut self, is_with_peer: impl Fn(&Message) -> bool) {
        self.unacked -= self.free_while(0..self.unacked, is_with_peer);
    }

    /// Take messages off the front of a part of the queue that the peer has; return how many.
    #[inline]
    fn free_while(
        &mut self,
        range: Range<usize>,
        is_with_peer: impl Fn(&Message) -> bool,
    ) -> usize {
        let (start, mut count) = (range.start, 0);
        for message in self.queue.range(range).map_while(Queued::message) {
            if !is_with_peer(message) {
                break;
            }
            count += 1;
            if let Some(owner) = message.owner {
                self.freed.note(owner, message.payload.len(), 0);
            }
        }
        if count > 0 {
            self.queue.drain(start..start + count);
        }
        count
    }

    /// Whether an account gained room since `take_freed`.
    pub fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    /// Move the freed messages to `freed`, which is emptied first.
    pub fn take_freed(&mut self, freed: &mut Vec<Freed>) {
        self.freed.take_into(freed);
    }

    pub(crate) fn note_freed(&mut self, owner: Owner, bytes: usize, given_up: u64) {
        self.freed.note(owner, bytes, given_up);
    }

    // -- fences

    pub(crate) fn has_fences(&self) -> bool {
        !self.fences.is_empty()
    }

    /// Take the first fence off the queue, which has no unsent message before it.
    fn pass_fence(&mut self) {
        if let Some(Queued::Fence(fence)) = self.queue.remove(self.numbered()) {
            self.note_passed(&fence);
        }
    }

    fn note_passed(&mut self, fence: &Fence) {
        let before = self.sequence_next.wrapping_sub(1);
        for (known, sequence) in &mut self.fences {
            if known.is(fence) {
                *sequence = Some(before);
            }
        }
    }

    #[inline]
    pub(crate) fn open_fences(&mut self) {
        if !self.fences.is_empty() {
            self.open_passed_fences();
        }
    }

    #[cold]
    fn open_passed_fences(&mut self) {
        while let Some(Queued::Fence(_)) = self.queue.get(self.numbered()) {
            self.pass_fence();
        }
        let oldest = self.sent().next().map(|message| message.sequence);
        self.fences.retain(|(fence, sequence)| {
            let passed = sequence.is_some_and(|last| oldest.is_none_or(|oldest| oldest > last));
            if passed {
                fence.open();
            }
            !passed
        });
    }

    /// Free the memory that an idle path does not need; cheap enough for every pause.
    pub(crate) fn rest(&mut self) {
        self.idle_calls = (self.idle_calls + 1) % IDLE_CALLS_PER_RELEASE;
        if self.idle_calls == 0 || self.queue.capacity() <= CHEAP_MESSAGES {
            self.queue.shrink_to(IDLE_MESSAGES);
            self.freed.rest();
        }
    }
}

/// Append the bytes of a message to a write.
#[inline]
fn emit(
    out: &mut WriteBuffer,
    message: &Message,
    sequence: u64,
    flags: u8,
    acknowledgement: u64,
    checksum: bool,
) {
    let payload_bytes = message.payload.len();
    if let Payload::Foreign(memory) = &message.payload {
        memory.note_number(sequence);
    }
    let header = Header {
        sequence,
        ack: acknowledgement,
        payload_bytes,
        source_port: message.source_port,
        target_port: message.target_port,
        flags,
        extension: message.extension,
        ..Header::default()
    };
    let bytes = header.emit(checksum);
    if payload_bytes < LONG_BYTES {
        out.join_message(&bytes, &message.payload);
    } else {
        out.join(&bytes);
        out.refer(message.payload.clone());
    }
}

/// Grow a long queue by a quarter instead of doubling it: just over the limit of messages it would
/// take twice the memory, and use all of it, since it is a ring.
#[inline]
fn make_room<T>(queue: &mut VecDeque<T>) {
    if queue.len() == queue.capacity() && queue.len() >= CHEAP_MESSAGES {
        queue.reserve_exact(queue.len() / 4);
    }
}

// -- removal before the peer has a message
//
// Removal of messages from a path before their peer has them, and their table rows.

impl Sender {
    /// Retransmit no handshake any more, drop any that waits: a newer one follows.
    ///
    /// A pending connection that is closed at once acknowledges none of them. Kept, they would grow
    /// with each such connection, and all would go out again on the next.
    pub(crate) fn forget_probes(&mut self) {
        self.retain(|message| !is_probe(message));
    }

    /// Remove messages from all parts of the queue.
    fn retain(&mut self, mut keeps: impl FnMut(&Message) -> bool) {
        let (unacked, numbered) = (self.unacked, self.numbered());
        let mut place = 0;
        self.queue.retain(|queued| {
            let at = place;
            place += 1;
            let Some(message) = queued.message().filter(|message| !keeps(message)) else {
                return true;
            };
            if at < unacked {
                self.unacked -= 1;
            } else if at < numbered {
                self.retransmits -= 1;
            } else {
                self.pending_bytes -= HEADER_BYTES + message.payload.len();
            }
            false
        });
    }

    /// Remove the owner's messages, to one port or to all; return how many.
    ///
    /// Framed bytes go out to the end, to keep the framing; only retransmission ends. Source: linux
    /// v6.12 net/rds/send.c (`rds_send_drop_to`).
    pub fn cancel(&mut self, owner: Owner, target_port: Option<u16>) -> usize {
        let (mut count, mut bytes) = (0, 0);
        self.retain(|message| {
            let keeps = message.owner != Some(owner)
                || target_port.is_some_and(|port| port != message.target_port);
            if !keeps {
                count += 1;
                bytes += message.payload.len();
            }
            keeps
        });
        if count > 0 {
            self.note_freed(owner, bytes, 0);
        }
        self.open_fences();
        count
    }

    /// Take the messages of sockets that have no number; what the control plane queued stays.
    pub fn take_unsent(&mut self) -> Vec<Message> {
        let mut taken = Vec::new();
        for queued in self.queue.split_off(self.numbered()) {
            match queued {
                Queued::Message(message) if message.owner.is_some() => {
                    self.pending_bytes -= HEADER_BYTES + message.payload.len();
                    taken.push(message);
                }
                stays => self.queue.push_back(stays),
            }
        }
        self.open_fences();
        taken
    }

    /// Return how many messages of the owner, or of all, are unsent and unacknowledged.
    #[must_use]
    pub fn counts(&self, owner: Option<Owner>) -> (usize, usize) {
        let is_wanted = |message: &&Message| {
            message
                .owner
                .is_some_and(|one| owner.is_none_or(|owner| one == owner))
        };
        (
            self.unsent().filter(is_wanted).count(),
            self.sent().filter(is_wanted).count(),
        )
    }

    /// Whether a message of the owner, or of any socket, is queued or unacknowledged.
    #[must_use]
    pub fn holds(&self, owner: Option<Owner>) -> bool {
        let mut owners = self
            .messages(0..self.queue.len())
            .filter_map(|one| one.owner);
        match owner {
            None => owners.next().is_some(),
            Some(owner) => owners.any(|one| one == owner),
        }
    }

    /// Drop messages sent to an earlier generation of the peer and not acknowledged; return how
    /// many were of sockets.
    pub fn drop_handed_over(&mut self) -> usize {
        let unsent = self.queue.split_off(self.numbered());
        let sent = std::mem::replace(&mut self.queue, unsent);
        (self.unacked, self.retransmits) = (0, 0);
        let dropped = self.give_up(sent);
        self.open_fences();
        dropped
    }

    /// Drop every message; return how many were of sockets. Every fence opens.
    pub fn drop_all(&mut self) -> usize {
        let all = std::mem::take(&mut self.queue);
        (self.unacked, self.retransmits, self.pending_bytes) = (0, 0, 0);
        let dropped = self.give_up(all);
        self.open_fences();
        dropped
    }

    fn give_up(&mut self, all: VecDeque<Queued>) -> usize {
        let mut count = 0;
        for queued in all {
            match queued {
                Queued::Fence(fence) => self.note_passed(&fence),
                // A ping or pong has no owner.
                Queued::Message(message) => {
                    if let Some(owner) = message.owner {
                        count += 1;
                        self.note_freed(owner, message.payload.len(), 1);
                    }
                }
            }
        }
        count
    }

    /// Messages without a number, in their order.
    pub fn unsent_rows(&self) -> impl Iterator<Item = Row> {
        self.unsent().map(row)
    }

    /// Messages that the peer may have: of the current stream, then of earlier ones.
    pub fn sent_rows(&self) -> impl Iterator<Item = Row> {
        self.sent().map(row)
    }
}

#[cfg(test)]
#[path = "sender_tests.rs"]
mod tests;
