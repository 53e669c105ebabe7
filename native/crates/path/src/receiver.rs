//! The receive side of a path: bytes to messages, duplicates dropped, restarts detected.
//!
//! A value machine: no I/O, no clock, no lock. Whole messages go straight to the mailbox of their
//! target port, by [`MessageSink::deliver`]; messages for the control plane are kept until the
//! shell takes them. A message is lost with its stream unless it is complete.
//!
//! No byte is trusted: a length is checked before memory is allocated for it, and every drop has a
//! counter. The shell, which ends the stream, counts a protocol error.

use std::collections::VecDeque;
use std::fmt;

use crate::constants::{
    CONGESTION_MAP_BYTES, FLAG_ACK_REQUIRED, FLAG_CONG_BITMAP, FLAG_RETRANSMITTED, HEADER_BYTES,
    LONG_BYTES, PING_PORT, PORT_FIRST, PROBE_PORT,
};
use crate::control_budget::ControlBudget;
use crate::counters::Counters;
use crate::header::Header;
use crate::kinds::{DownReason, Extension};
use crate::limits::Limits;
use crate::payload::{ArrivingPayload, Body};
use crate::peer_generations::PeerGenerations;

/// The surroundings of a path: the mailboxes of its address.
pub trait MessageSink {
    /// Put a message into the mailbox of a port; false if no socket has it.
    fn deliver(&mut self, target_port: u16, message: Arriving<'_>) -> bool;
}

/// A message for a mailbox.
#[derive(Debug)]
pub struct Arriving<'a> {
    /// Its number on the path.
    pub sequence: u64,
    pub source_port: u16,
    /// All zero if it has none.
    pub extension: Extension,
    pub payload: ArrivingPayload<'a>,
}

/// A message for the control plane: ping, pong or probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlMessage {
    pub sequence: u64,
    pub acknowledgement: u64,
    pub source_port: u16,
    pub target_port: u16,
    pub extension: Extension,
    /// Truncated to 64 bytes.
    pub payload: Vec<u8>,
}

/// State of one receive direction; the caller serialises the calls.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, not a state"
)]
pub struct Receiver {
    pub(crate) limits: Limits,
    // Handshake results.
    /// Header checksums are checked.
    pub checksum: bool,
    /// A urds node: acknowledgements report messages in local inboxes.
    pub acknowledging: bool,
    /// A peer's restart must be detected by its numbers: a kernel does not announce it.
    pub watch_restarts: bool,
    // Numbers; see "admission" below.
    /// The number after the highest one received.
    pub sequence_expected: u64,
    pub(crate) lowest: Option<u64>,
    pub(crate) accepted: bool,
    pub(crate) floor: Option<u64>,
    pub(crate) generations: PeerGenerations,
    // The stream.
    /// Whole frames of this stream.
    pub frames: u64,
    partial: Partial,
    stream: u64,
    // Pending acknowledgements.
    /// Messages of a urds node that no acknowledgement covered yet.
    pub ack_pending_messages: usize,
    /// Their bytes.
    pub ack_pending_bytes: usize,
    /// The next write sends an acknowledgement.
    pub acknowledgement_due: bool,
    // Taken by the shell.
    /// Highest local number that the peer acknowledged on this stream.
    pub acknowledged: u64,
    /// Pings, pongs and probes within the budget.
    pub controls: VecDeque<ControlMessage>,
    pub(crate) control_budget: ControlBudget,
    /// At the last read.
    pub now_ns: u64,
    /// The newest congestion map of the peer.
    pub peer_map: Option<Box<[u8; CONGESTION_MAP_BYTES]>>,
    /// A kernel restarted.
    pub restarted: bool,
    /// A message of the peer reached a socket, on any stream.
    pub has_delivered: bool,
    /// The port of a ping whose answer is waited for; no socket has it.
    pub(crate) answer_port: Option<u16>,
    /// It came.
    pub(crate) is_answered: bool,
}

impl Receiver {
    /// Return a state without numbers, for a peer of unknown kind.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            checksum: false,
            acknowledging: false,
            watch_restarts: true,
            sequence_expected: 0,
            lowest: None,
            accepted: false,
            floor: None,
            generations: PeerGenerations::default(),
            frames: 0,
            partial: Partial::Nothing,
            stream: 0,
            ack_pending_messages: 0,
            ack_pending_bytes: 0,
            acknowledgement_due: false,
            acknowledged: 0,
            controls: VecDeque::new(),
            control_budget: ControlBudget::new(&limits),
            now_ns: 0,
            peer_map: None,
            restarted: false,
            has_delivered: false,
            answer_port: None,
            is_answered: false,
        }
    }

    /// Bytes still missing of a begun header and of a begun payload.
    pub fn remaining(&self) -> (usize, usize) {
        match &self.partial {
            Partial::Nothing => (0, 0),
            Partial::Short(bytes) => match bytes.first_chunk() {
                None => (HEADER_BYTES - bytes.len(), 0),
                Some(header) => (0, HEADER_BYTES + payload_bytes(header) - bytes.len()),
            },
            Partial::Long(body) => (0, body.missing()),
            Partial::WithReader { missing } => (0, *missing),
        }
    }

    /// Reset the state of a stream; it outlives its stream until the next begins.
    pub fn begin_stream(&mut self) {
        if let Some(lowest) = self.lowest.take() {
            self.floor = Some(lowest);
        }
        self.accepted = false;
        self.acknowledged = 0;
        self.control_budget.begin_stream();
    }

    /// Drop the partial message and the stream's pending acknowledgements; numbers stay.
    ///
    /// A body that the reader has is no longer wanted: `resume_body` drops it.
    pub fn end_stream(&mut self) {
        self.partial = Partial::Nothing;
        self.stream += 1;
        self.frames = 0;
        self.reset_ack_pending();
    }

    /// Clear pending acknowledgements: one left.
    pub fn reset_ack_pending(&mut self) {
        self.ack_pending_messages = 0;
        self.ack_pending_bytes = 0;
        self.acknowledgement_due = false;
    }

    /// Take bytes off the stream, any number.
    ///
    /// # Errors
    /// Why the stream must end; messages before the protocol error are delivered.
    pub fn receive<G: MessageSink>(
        &mut self,
        data: &[u8],
        sink: &mut G,
        counters: &mut Counters,
    ) -> Result<(), DownReason> {
        let mut rest = match self.partial {
            Partial::Nothing => data,
            _ => self.complete(data, sink, counters)?,
        };
        while let Some((bytes, behind)) = rest.split_first_chunk::<HEADER_BYTES>() {
            let header = self.checked(bytes)?;
            let Some((payload, next)) = behind.split_at_checked(payload_bytes(bytes)) else {
                break;
            };
            rest = next;
            let payload = ArrivingPayload::Borrowed(payload);
            self.take_here(&header, payload, sink, counters)?;
        }
        self.keep(rest);
        Ok(())
    }

    /// Take an incomplete long body, to read into without the lock. `None` if none is begun or
    /// fewer than 8 KiB of it are here. Return it with `resume_body`, and pass no bytes to
    /// `receive` meanwhile.
    pub fn take_body(&mut self) -> Option<BodyReading> {
        match std::mem::take(&mut self.partial) {
            Partial::Long(body) if body.filled >= LONG_BYTES => {
                self.partial = Partial::WithReader {
                    missing: body.missing(),
                };
                Some(body)
            }
            partial => {
                self.partial = partial;
                None
            }
        }
    }

    /// Continue with a body that the reader had: checked and delivered if it is whole.
    ///
    /// # Errors
    /// As `receive`; `DownReason::Error` for memory of another length than the payload's.
    pub fn resume_body<G: MessageSink>(
        &mut self,
        mut body: BodyReading,
        sink: &mut G,
        counters: &mut Counters,
    ) -> Result<(), DownReason> {
        if body.stream != self.stream || !matches!(self.partial, Partial::WithReader { .. }) {
            return Ok(()); // lost with its stream
        }
        self.partial = Partial::Nothing;
        if !body.finish_read() {
            return Err(DownReason::Error);
        }
        if body.missing() > 0 {
            self.partial = Partial::Long(body);
            return Ok(());
        }
        let header = body.header;
        self.take(
            &header,
            ArrivingPayload::Whole(body.into_body()),
            sink,
            counters,
        )
    }

    /// Complete a begun message; return the bytes behind it, none if it is not whole yet.
    #[cold]
    fn complete<'a, G: MessageSink>(
        &mut self,
        data: &'a [u8],
        sink: &mut G,
        counters: &mut Counters,
    ) -> Result<&'a [u8], DownReason> {
        match std::mem::take(&mut self.partial) {
            Partial::Nothing => Ok(data),
            Partial::Short(bytes) => self.complete_short(bytes, data, sink, counters),
            Partial::Long(mut body) => {
                let (_, rest) = data.split_at(body.append(data));
                if body.missing() > 0 {
                    self.partial = Partial::Long(body);
                    return Ok(rest);
                }
                let header = body.header;
                let payload = ArrivingPayload::Whole(body.into_body());
                self.take(&header, payload, sink, counters)?;
                Ok(rest)
            }
            Partial::WithReader { .. } => Err(DownReason::Error), // an error of the reader
        }
    }

    /// The same for a header or a short message. Copies only its own bytes.
    fn complete_short<'a, G: MessageSink>(
        &mut self,
        mut bytes: Vec<u8>,
        data: &'a [u8],
        sink: &mut G,
        counters: &mut Counters,
    ) -> Result<&'a [u8], DownReason> {
        let missing = HEADER_BYTES.saturating_sub(bytes.len()).min(data.len());
        let (head, data) = data.split_at(missing);
        bytes.extend_from_slice(head);
        let Some(header_bytes) = bytes.first_chunk() else {
            self.partial = Partial::Short(bytes);
            return Ok(data);
        };
        let header = self.checked(header_bytes)?;
        let total = payload_bytes(header_bytes);
        let here = bytes.len() - HEADER_BYTES;
        if here == 0
            && let Some((payload, rest)) = data.split_at_checked(total)
        {
            self.take(&header, ArrivingPayload::Borrowed(payload), sink, counters)?;
            return Ok(rest);
        }
        let (body, rest) = data.split_at((total - here).min(data.len()));
        if total >= LONG_BYTES {
            // Of a long message only a header was kept.
            self.partial = Partial::Long(BodyReading::new(header, total, body, self.stream));
            return Ok(rest);
        }
        bytes.extend_from_slice(body);
        match bytes.get(HEADER_BYTES..HEADER_BYTES + total) {
            None => self.partial = Partial::Short(bytes),
            Some(payload) => {
                self.take(&header, ArrivingPayload::Borrowed(payload), sink, counters)?;
            }
        }
        Ok(rest)
    }

    /// Keep an incomplete message; a whole header was checked.
    fn keep(&mut self, rest: &[u8]) {
        if rest.is_empty() {
            return;
        }
        if let Some((bytes, head)) = rest.split_first_chunk()
            && payload_bytes(bytes) >= LONG_BYTES
        {
            let header = Header::parse(bytes);
            let body = BodyReading::new(header, payload_bytes(bytes), head, self.stream);
            self.partial = Partial::Long(body);
            return;
        }
        self.partial = Partial::Short(rest.to_vec());
    }

    /// Read a header; check its length and checksum.
    #[inline]
    fn checked(&self, bytes: &[u8; HEADER_BYTES]) -> Result<Header, DownReason> {
        if payload_bytes(bytes) > self.limits.frame_bytes_max {
            return Err(DownReason::TooLong);
        }
        if self.checksum && !is_intact(bytes) {
            return Err(DownReason::BadChecksum);
        }
        Ok(Header::parse(bytes))
    }

    /// Take one whole message that was incomplete before.
    #[inline(never)]
    fn take<G: MessageSink>(
        &mut self,
        header: &Header,
        payload: ArrivingPayload<'_>,
        sink: &mut G,
        counters: &mut Counters,
    ) -> Result<(), DownReason> {
        self.take_here(header, payload, sink, counters)
    }

    /// Take one whole message; every message comes through here.
    #[allow(clippy::inline_always)] // its arguments would be written to memory, to be read at once
    #[inline(always)]
    fn take_here<G: MessageSink>(
        &mut self,
        header: &Header,
        payload: ArrivingPayload<'_>,
        sink: &mut G,
        counters: &mut Counters,
    ) -> Result<(), DownReason> {
        self.frames += 1;
        self.acknowledged = self.acknowledged.max(header.ack);
        if header.flags & FLAG_ACK_REQUIRED != 0 {
            self.acknowledgement_due = true;
            counters.recv_ack_required += 1;
        }
        let is_plain = header.flags & !FLAG_ACK_REQUIRED == 0
            && header.source_port >= PORT_FIRST
            && header.target_port != 0
            && self.accepted
            && header.sequence >= self.sequence_expected;
        if !is_plain {
            // A copy: with a reference to the header itself each message's would be written to memory.
            let header = *header;
            if !self.accept_or_drop(&header, payload.bytes(), counters)? {
                return Ok(());
            }
        }
        // The last number has no successor: it stays expected, and its duplicate is not dropped.
        self.sequence_expected = header.sequence.saturating_add(1);
        let bytes = payload.bytes().len();
        let message = Arriving {
            sequence: header.sequence,
            source_port: header.source_port,
            extension: header.extension,
            payload,
        };
        if sink.deliver(header.target_port, message) {
            self.has_delivered = true;
            counters.recv_queued += 1;
            counters.recv_bytes_added_to_sock += bytes as u64;
        } else {
            counters.recv_drop_no_sock += 1;
        }
        if self.acknowledging {
            self.ack_pending(bytes);
        }
        Ok(())
    }

    /// Count messages pending acknowledgement to a urds node; make it due at the bounds.
    #[inline]
    fn ack_pending(&mut self, bytes: usize) {
        self.ack_pending_messages += 1;
        self.ack_pending_bytes += bytes;
        if self.ack_pending_messages >= self.limits.acknowledge_messages
            || self.ack_pending_bytes >= self.limits.acknowledge_bytes
        {
            self.acknowledgement_due = true;
        }
    }
}

/// The announced length, up to 4 GiB.
#[inline]
fn payload_bytes(header: &[u8; HEADER_BYTES]) -> usize {
    let [.., a, b, c, d] = header.first_chunk::<20>().expect("20 of 48 bytes");
    u32::from_be_bytes([*a, *b, *c, *d]) as usize
}

/// Return whether the checksum agrees; one of 0 agrees with everything.
///
/// The sum is taken modulo 65535 over native words: byte order only swaps its bytes, and zero stays
/// zero. `Header::verify` computes the same field by field.
#[inline]
fn is_intact(bytes: &[u8; HEADER_BYTES]) -> bool {
    if bytes[30] == 0 && bytes[31] == 0 {
        return true;
    }
    let (words, _) = bytes.as_chunks::<4>();
    let sum: u64 = words
        .iter()
        .map(|word| u64::from(u32::from_ne_bytes(*word)))
        .sum();
    sum.is_multiple_of(0xFFFF)
}

// -- admission
//
// Admission of a message that is not plainly the next one, and detection of a peer's restart.
//
// Numbers. A sequence may skip forward (a cancelled message leaves a hole). It falls back only in
// two cases: a new stream retransmits messages of the old one, flagged RETRANSMITTED, and those
// below the expected number are dropped; or the peer restarted. A urds node sends its generation
// in the header of each map, and a map opens each stream: its numbers count afresh, whatever its
// clock says. A Linux kernel's restart must be detected *before* the duplicate rule, else its
// first messages look like old duplicates (Source: observed with linux v6.1, v6.12, v7.2, see
// docs/protocol/rds-tcp.md):
//
// ```text
// a  a number below the expected one without the flag: taken, the expected number follows
// b  a probe with another generation, or without one although a probe was seen before
// c  a retransmission below every number on the last stream with traffic
// ```

const CONTROL_PAYLOAD_BYTES: usize = 64;

/// The peer's numbers on a path: they tell a retransmission from a new message.
///
/// They outlive a path: taken out of a closed one and put into the next one to the same peer, which
/// then decides as if it had existed all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    pub sequence_expected: u64,
    /// Lowest of the last stream with traffic.
    pub floor: Option<u64>,
    /// Of a kernel's probe.
    pub probe_sequence: Option<u64>,
    /// The kernel's generation.
    pub generation: Option<u64>,
    /// The generation in a urds node's maps.
    pub map_generation: Option<u64>,
    /// By its numbers, since a kernel does not always send its generation.
    pub watch_restarts: bool,
}

impl Receiver {
    /// The numbers, for a later path to the same peer.
    pub fn received(&self) -> Received {
        Received {
            sequence_expected: self.sequence_expected,
            floor: self.lowest.or(self.floor),
            probe_sequence: self.generations.probe_sequence,
            generation: self.generations.generation,
            map_generation: self.generations.map_generation,
            watch_restarts: self.watch_restarts,
        }
    }

    /// Continue with these numbers; before the first stream.
    pub fn expect(&mut self, received: Received) {
        self.sequence_expected = received.sequence_expected;
        self.floor = received.floor;
        self.generations.probe_sequence = received.probe_sequence;
        self.generations.generation = received.generation;
        self.generations.map_generation = received.map_generation;
        self.watch_restarts = received.watch_restarts;
    }

    /// Note the restart of a urds node.
    ///
    /// The expected number stays: it counts the new generation since its first map, and its
    /// messages may have been arriving for several streams before its hello.
    pub fn restart_peer(&mut self) {
        self.floor = None;
    }

    /// Note a kernel's generation; `None` if it sends none (up to linux v6.19).
    pub fn remember_generation(&mut self, generation: Option<u64>) {
        self.generations.generation = generation;
    }

    /// Check a message that is not plainly next: true if it is for a mailbox.
    ///
    /// The caller counts its number as received once it is in the mailbox, and handles the
    /// acknowledgement and the request in its header.
    ///
    /// # Errors
    /// A congestion map of a wrong length.
    pub(crate) fn accept_or_drop(
        &mut self,
        header: &Header,
        payload: &[u8],
        counters: &mut Counters,
    ) -> Result<bool, DownReason> {
        // Exactly this flag: kernel parity.
        if header.flags == FLAG_CONG_BITMAP {
            return self.keep_map(header, payload).map(|()| false);
        }
        let sequence = header.sequence;
        let from_or_to_socket = header.source_port != 0 || header.target_port != 0;
        let is_retransmit = header.flags & FLAG_RETRANSMITTED != 0;
        let is_control = header.target_port == 0
            || (header.source_port == 0 && header.target_port == PROBE_PORT);
        // First, since it may announce a restart.
        if is_control && from_or_to_socket && !self.admits_control(header, counters) {
            return Ok(false);
        }
        if sequence == 0 && !is_retransmit && is_control {
            // A hello, its answer, or an acknowledgement of a urds node: outside the numbers.
            if from_or_to_socket {
                self.keep_control(header, payload);
            } else {
                counters.ack_received += 1;
            }
            return Ok(false);
        }
        if self.watch_restarts && self.is_restart(header) {
            self.sequence_expected = 0;
            self.floor = None;
            self.restarted = true;
        }
        // Dropped duplicates count: a stream may be cut before it retransmits the next ones.
        self.lowest = Some(self.lowest.map_or(sequence, |lowest| lowest.min(sequence)));
        if header.source_port == PROBE_PORT && header.target_port == 0 {
            self.generations.probe_sequence = Some(sequence);
        }
        if is_retransmit && sequence < self.sequence_expected {
            counters.recv_drop_old_seq += 1;
            return Ok(false);
        }
        self.accepted = true;
        let is_answer =
            header.source_port == PING_PORT && self.answer_port == Some(header.target_port);
        self.is_answered |= is_answer;
        if !is_control && !is_answer {
            return Ok(true);
        }
        self.sequence_expected = sequence.saturating_add(1);
        if from_or_to_socket && !is_answer {
            self.keep_control(header, payload);
        }
        Ok(false)
    }

    /// Keep the peer's map. A urds node's map with another generation counts its numbers afresh.
    fn keep_map(&mut self, header: &Header, payload: &[u8]) -> Result<(), DownReason> {
        let Ok(bytes) = <&[u8; CONGESTION_MAP_BYTES]>::try_from(payload) else {
            return Err(DownReason::BadMap);
        };
        match &mut self.peer_map {
            Some(kept) => kept.copy_from_slice(bytes),
            none => *none = Some(Box::new(*bytes)),
        }
        if self.generations.is_new_by_map(&header.extension) {
            self.sequence_expected = 0;
            self.floor = None;
            self.accepted = false; // the next number may be the lowest of the stream
        }
        Ok(())
    }

    /// Return whether a kernel restarted (rules b and c); checked before the duplicates.
    fn is_restart(&mut self, header: &Header) -> bool {
        let is_retransmit = header.flags & FLAG_RETRANSMITTED != 0;
        let is_old = is_retransmit && header.sequence < self.sequence_expected;
        let is_below = self.floor.is_some_and(|floor| header.sequence < floor);
        (is_old && is_below) || self.generations.is_new_by_probe(header)
    }

    /// Count a ping, pong or probe; return whether it is within the budget.
    fn admits_control(&mut self, header: &Header, counters: &mut Counters) -> bool {
        counters.recv_ping += u64::from(header.target_port == 0);
        let is_handshake = [header.source_port, header.target_port].contains(&PROBE_PORT);
        let is_admitted = self.control_budget.admits(self.now_ns, is_handshake);
        counters.recv_drop_control_full += u64::from(!is_admitted);
        is_admitted
    }

    fn keep_control(&mut self, header: &Header, payload: &[u8]) {
        self.controls.push_back(ControlMessage {
            sequence: header.sequence,
            acknowledgement: header.ack,
            source_port: header.source_port,
            target_port: header.target_port,
            extension: header.extension,
            payload: payload[..payload.len().min(CONTROL_PAYLOAD_BYTES)].to_vec(),
        });
    }
}

// -- incomplete messages
//
// An incomplete message: the bytes that a read leaves for the next one.
//
// A header and a short message are collected as bytes. A payload of 8 KiB up gets memory of its
// own length, but only once 8 KiB of it are here: a header alone reserves nothing. From then on
// the reader can take it, to read into it without any lock.

/// The state of the message begun on the stream.
#[derive(Debug, Default)]
pub(crate) enum Partial {
    /// Nothing: a header comes next.
    #[default]
    Nothing,
    /// A header, or a short message with its header; fewer than `HEADER_BYTES + LONG_BYTES` bytes.
    Short(Vec<u8>),
    /// A long payload.
    Long(BodyReading),
    /// The same, taken by the reader; so many bytes were missing.
    WithReader { missing: usize },
}

/// An incomplete long payload. The reader takes it, reads behind `filled`, and returns it.
///
/// ```text
/// if let Some(mut body) = receiver.take_body() {          // with the lock
///     if body.memory.is_none() { body.carry_over(allocated(body.total)); }
///     let bytes = read_into(body.rest_mut());            // without
///     body.filled += bytes;
///     receiver.resume_body(body, sink, counters)?;        // with the lock
/// }
/// ```
pub struct BodyReading {
    /// Memory for the whole payload. `None`: none is allocated yet; bytes received until then are
    /// kept apart until [`BodyReading::carry_over`].
    pub memory: Option<Body>,
    /// Bytes of the whole payload.
    pub total: usize,
    /// Bytes received. The reader adds the bytes it read, never beyond `total`.
    pub filled: usize,
    pub(crate) header: Header,
    /// The stream of the payload; a later one drops it.
    pub(crate) stream: u64,
    head: Vec<u8>,
}

impl BodyReading {
    /// Begin a payload of which `head`, less than the whole, is here. Copies it.
    pub(crate) fn new(header: Header, total: usize, head: &[u8], stream: u64) -> Self {
        Self {
            memory: None,
            total,
            filled: head.len(),
            header,
            stream,
            head: head.to_vec(),
        }
    }

    /// Use `memory` for the payload; copies the bytes received so far.
    ///
    /// # Errors
    /// `memory` itself, if it has not exactly `total` bytes.
    pub fn carry_over(&mut self, memory: Body) -> Result<(), Body> {
        if memory.bytes().len() != self.total {
            return Err(memory);
        }
        self.memory = Some(memory);
        self.finish_head();
        Ok(())
    }

    /// The bytes to read into; none without memory.
    pub fn rest_mut(&mut self) -> &mut [u8] {
        let filled = self.filled;
        let bytes = self.memory.as_mut().map(Body::bytes_mut);
        bytes
            .and_then(|bytes| bytes.get_mut(filled..))
            .unwrap_or_default()
    }

    /// Bytes that are still to come.
    pub fn missing(&self) -> usize {
        self.total.saturating_sub(self.filled)
    }

    /// Append bytes read elsewhere, as many as are missing; return how many. Copies.
    pub(crate) fn append(&mut self, data: &[u8]) -> usize {
        let taken = data.len().min(self.missing());
        let bytes = &data[..taken];
        if self.memory.is_some() {
            let rest = self.rest_mut();
            let taken = taken.min(rest.len()); // equal, unless the memory is too short
            rest[..taken].copy_from_slice(&bytes[..taken]);
        } else {
            if self.filled + taken >= LONG_BYTES {
                self.head.reserve_exact(self.total - self.head.len());
            }
            self.head.extend_from_slice(bytes);
        }
        self.filled += taken;
        taken
    }

    /// Correct `filled` after the reader: without memory only the head is here. Return whether
    /// memory, if any, and length agree.
    pub(crate) fn finish_read(&mut self) -> bool {
        self.finish_head();
        match &self.memory {
            None => {
                self.filled = self.head.len();
                true
            }
            Some(memory) => memory.bytes().len() == self.total && self.filled <= self.total,
        }
    }

    /// The whole payload.
    pub(crate) fn into_body(self) -> Body {
        self.memory
            .unwrap_or_else(|| Body::Owned(self.head.into_boxed_slice()))
    }

    /// Copy the bytes kept apart into the memory, if there is any.
    fn finish_head(&mut self) {
        let Some(memory) = self.memory.as_mut() else {
            return;
        };
        let head = std::mem::take(&mut self.head);
        if let Some(place) = memory.bytes_mut().get_mut(..head.len()) {
            place.copy_from_slice(&head);
        }
    }
}

impl fmt::Debug for BodyReading {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "BodyReading({} of {} bytes)",
            self.filled, self.total
        )
    }
}
