//! The responder of a connected queue pair: it executes requests and answers them.
//!
//! Requests take effect in the order of their PSNs. A packet behind the expected one is a
//! duplicate; one ahead is dropped, since without loss a repeat of what is before it will come.
//! Rules: `urds.verbs.engine.responder`.

use std::collections::VecDeque;

use crate::attributes::Field;
use crate::consumer::Taking;
use crate::errors::{ACK, Fault, NAK_REMOTE_ACCESS, RNR_NAK};
use crate::memory::{Content, Extent, Payload};
use crate::numbers::{
    ATOMIC_BYTES, AsyncEvent, Kind, MESSAGE_BYTES_MAX, PSN_BITS, PSN_MASK, QpState, REMOTE_ATOMIC,
    REMOTE_READ, REMOTE_WRITE, Status, WC_WITH_IMM, WC_WITH_INV, WcOpcode,
};
use crate::packets::{ACK_REQUEST, FIRST, IMMEDIATE, INVALIDATE, LAST, PLACED, Packet, SOLICITED};
use crate::queue_pair::{Outlet, QueuePair, Shared, Takers};
use crate::work::Completion;

/// Packets that an acknowledgement waits for: a quarter of the window.
const UNACKED_MAX: u32 = 32;
const ATOMIC_RESULTS_MAX: usize = 128;
const ANSWERS_MAX: usize = 256;
const HALF: i64 = 1 << (PSN_BITS - 1);
const TOP: u64 = 1 << 63;

/// Why a packet was not executed.
enum Refused {
    /// It counts as not arrived: the peer will repeat it.
    NotNow,
    /// It comes again.
    Later,
    /// Its message needs a receive and there is none.
    NoReceive,
    Broken(Fault),
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Self {
        Self::Broken(fault)
    }
}

/// An answer that waits to be sent.
#[derive(Debug)]
enum Answer {
    /// A read that is being answered, from `offset` on.
    Reading {
        request: Packet,
        psn: i64,
        is_duplicate: bool,
        offset: u32,
    },
    Packet(Packet),
}

/// State of the half of a queue pair that serves its peer. PSNs are counted without wrapping.
#[derive(Debug, Default)]
pub struct Responder {
    expected: i64,
    messages_done: u32,
    /// Of them those that consumed a receive: the last MSN.
    receives_done: u32,
    /// The message whose packets come next: kind and bytes so far.
    open: Option<(Kind, u64)>,
    reported_psn: i64,
    ack_due: bool,
    /// Packets that were executed since the last acknowledgement.
    unacked: u32,
    /// The acknowledgement does not wait for a packet to ride on.
    is_hurried: bool,
    rnr_psn: Option<i64>,
    /// What ended this queue pair.
    last_answer: Option<Packet>,
    last_answer_due: bool,
    answers: VecDeque<Answer>,
    reads_open: i64,
    atomic_results: VecDeque<(i64, u64)>,
}

impl Responder {
    pub fn new(expected: i64) -> Self {
        Self {
            expected,
            reported_psn: expected,
            ..Self::default()
        }
    }

    /// Drop what is not executed: the queue pair has failed.
    ///
    /// Reads before a request that ended it were good and are answered still.
    pub fn abandon(&mut self) {
        if self.last_answer.is_none() {
            let keep = |answer: &Answer| matches!(answer, Answer::Packet(_));
            self.answers.retain(keep);
        }
        self.rnr_psn = None;
    }

    fn answer(&self, target_qpn: u32, psn: i64, syndrome: u8) -> Packet {
        let mut packet = Packet::new(Kind::Ack, target_qpn, psn, 0);
        packet.msn = self.messages_done;
        packet.syndrome = syndrome;
        packet
    }

    fn atomic_answer(&self, target_qpn: u32, psn: i64, value: u64) -> Answer {
        let mut packet = self.answer(target_qpn, psn, 0);
        packet.kind = Kind::AtomicResponse;
        packet.compare_add = value;
        Answer::Packet(packet)
    }

    fn begin_reading(&mut self, request: &Packet, psn: i64, is_duplicate: bool) {
        self.answers.push_back(Answer::Reading {
            request: *request,
            psn,
            is_duplicate,
            offset: 0,
        });
        self.reads_open += 1;
    }

    fn finish_reading(&mut self) {
        self.answers.pop_front();
        self.reads_open -= 1;
    }

    /// Check a packet as the next of its message.
    fn check_place(&self, packet: &Packet) -> Result<(), Fault> {
        if packet.kind.is_answered() {
            return if self.open.is_some() {
                Err(invalid())
            } else {
                Ok(())
            };
        }
        let offset = u64::from(packet.offset);
        let is_next = if packet.has(FIRST) {
            self.open.is_none() && offset == 0
        } else {
            self.open == Some((packet.kind, offset))
        };
        let is_numbered =
            !takes_receive(packet) || packet.msn == self.receives_done.wrapping_add(1);
        let is_whole = !packet.has(INVALIDATE) || packet.kind == Kind::Send && packet.has(LAST);
        if is_next && is_numbered && is_whole {
            Ok(())
        } else {
            Err(invalid())
        }
    }
}

impl QueuePair {
    // -- packets in

    /// Process one request packet; return false if it is to come again.
    pub(crate) fn receive_request(
        &mut self,
        packet: &Packet,
        payload: Content<'_>,
        shared: &mut Shared,
    ) -> bool {
        let responder = &mut self.responder;
        if self.state == QpState::Err {
            responder.last_answer_due = responder.last_answer.is_some();
            return true;
        }
        let expected = responder.expected;
        let ahead = ((i64::from(packet.psn) - expected + HALF) & PSN_MASK) - HALF;
        if ahead < 0 {
            self.handle_duplicate(packet, expected + ahead, shared);
        } else if ahead == 0 {
            match self.execute(packet, payload, shared) {
                Ok(()) | Err(Refused::NotNow) => {}
                Err(Refused::Later) => return false,
                Err(Refused::NoReceive) => self.plan_rnr_nak(),
                Err(Refused::Broken(fault)) => self.fail_request(expected, &fault, shared),
            }
        }
        true
    }

    /// Execute the expected packet.
    fn execute(
        &mut self,
        packet: &Packet,
        payload: Content<'_>,
        shared: &mut Shared,
    ) -> Result<(), Refused> {
        self.check_request(packet, payload)?;
        self.responder.check_place(packet)?;
        self.place_request(packet, payload, shared)?;
        self.responder.unacked += 1;
        self.carry_out(packet, payload, shared)?;
        Ok(())
    }

    /// Answer a packet that was executed before.
    fn handle_duplicate(&mut self, packet: &Packet, psn: i64, shared: &Shared) {
        let target_qpn = self.attributes.word(Field::DestQpn);
        let responder = &mut self.responder;
        responder.ack_due = true;
        if !packet.kind.is_answered() || responder.answers.len() >= ANSWERS_MAX {
            return;
        }
        if packet.kind != Kind::ReadRequest {
            let found = responder
                .atomic_results
                .iter()
                .find(|(done, _)| *done == psn);
            if let Some(&(_, value)) = found {
                let answer = responder.atomic_answer(target_qpn, psn, value);
                responder.answers.push_back(answer);
            }
            return;
        }
        let length = packet.length;
        if self.check_request(packet, Content::Bytes(&[])).is_err()
            || self.memory(packet, 0, length, REMOTE_READ, shared).is_err()
        {
            return;
        }
        self.responder.begin_reading(packet, psn, true);
    }

    // -- checks

    /// Check a packet by itself.
    fn check_request(&self, packet: &Packet, payload: Content<'_>) -> Result<(), Fault> {
        let kind = packet.kind;
        let needed = match kind {
            Kind::Write => REMOTE_WRITE,
            Kind::ReadRequest => REMOTE_READ,
            _ if kind.is_atomic() => REMOTE_ATOMIC,
            _ => 0,
        };
        let allowed = self.attributes.get(Field::AccessFlags);
        if needed != 0 && allowed & i64::from(needed) == 0 {
            return Err(invalid());
        }
        if kind.is_answered() {
            let most = self.attributes.get(Field::MaxDestRdAtomic);
            let responder = &self.responder;
            let is_within = responder.reads_open < most && responder.answers.len() < ANSWERS_MAX;
            let is_aligned =
                kind == Kind::ReadRequest || packet.address.is_multiple_of(ATOMIC_BYTES as u64);
            let is_short = u64::from(packet.length) <= MESSAGE_BYTES_MAX;
            return if is_within && is_aligned && is_short {
                Ok(())
            } else {
                Err(invalid())
            };
        }
        let payload_max = self.setup.link.payload_bytes_max.unwrap_or(self.mtu_bytes);
        let claims_falsely = packet.has(PLACED) && (!payload.is_empty() || kind == Kind::Send);
        let end = u64::from(packet.offset) + placed_bytes(packet, payload);
        if claims_falsely || payload.len() > payload_max as usize || end > MESSAGE_BYTES_MAX {
            return Err(invalid());
        }
        Ok(())
    }

    // -- effects

    /// Put the bytes of a packet where they belong.
    fn place_request(
        &mut self,
        packet: &Packet,
        payload: Content<'_>,
        shared: &mut Shared,
    ) -> Result<(), Refused> {
        if packet.kind.is_answered() {
            return Ok(());
        }
        match self.ask_taker(packet, payload, shared) {
            Taking::Taken => return Ok(()),
            Taking::Later => return Err(Refused::Later),
            Taking::Left => {}
        }
        if takes_receive(packet) && self.consumer.is_none() {
            if !self.take_for_message(shared) {
                return Err(Refused::NoReceive);
            }
            self.check_marks(shared);
            if self.state == QpState::Err {
                return Err(Refused::NotNow);
            }
        }
        if packet.kind == Kind::Send {
            if let Some(consumer) = &mut self.consumer {
                if packet.has(LAST) {
                    consumer.message();
                }
            } else if let Some(work) = &self.incoming.taken {
                let (domain, pieces) = (self.setup.receive_domain, work.pieces.as_slice());
                let offset = u64::from(packet.offset);
                shared.keys.scatter(domain, pieces, offset, payload)?;
            }
            return Ok(());
        }
        let length = u32::try_from(placed_bytes(packet, payload)).unwrap_or(u32::MAX); // checked
        let target = self.memory(packet, 0, length, REMOTE_WRITE, shared)?;
        if let Some(target) = target
            && !payload.is_empty()
        {
            payload.write_to(target.memory, target.at);
        }
        Ok(())
    }

    /// Ask the taker to take a message, if there is one and nothing before it waits in a receive.
    fn ask_taker(&self, packet: &Packet, payload: Content<'_>, shared: &Shared) -> Taking {
        let Some(taker) = self
            .taker
            .as_ref()
            .filter(|_| shared.takers != Takers::Unasked)
        else {
            return Taking::Left;
        };
        let marks = packet.flags & (FIRST | LAST | IMMEDIATE | INVALIDATE);
        let is_plain = packet.kind == Kind::Send && marks == FIRST | LAST;
        let incoming = &self.incoming;
        let is_first = incoming.taken.is_none() && incoming.held.is_empty() && !self.holds_receives;
        let completions = shared.completions.get(self.setup.recv_cq);
        if !is_plain
            || !is_first
            || completions.is_none_or(|queue| queue.has_receive_of(self.setup.qpn))
        {
            return Taking::Left;
        }
        taker.take(payload, shared.takers == Takers::NowOrLater)
    }

    /// Execute a packet, all before it being done.
    fn carry_out(
        &mut self,
        packet: &Packet,
        payload: Content<'_>,
        shared: &mut Shared,
    ) -> Result<(), Fault> {
        if packet.kind == Kind::ReadRequest {
            self.memory(packet, 0, packet.length, REMOTE_READ, shared)?;
            let responder = &mut self.responder;
            responder.begin_reading(packet, responder.expected, false);
            responder.expected += 1;
            responder.messages_done = responder.messages_done.wrapping_add(1);
        } else if packet.kind.is_answered() {
            let before = self.change_cell(packet, shared)?;
            let target_qpn = self.attributes.word(Field::DestQpn);
            let responder = &mut self.responder;
            let psn = responder.expected;
            responder.atomic_results.push_back((psn, before));
            if responder.atomic_results.len() > ATOMIC_RESULTS_MAX {
                responder.atomic_results.pop_front();
            }
            let answer = responder.atomic_answer(target_qpn, psn, before);
            responder.answers.push_back(answer);
            responder.expected += 1;
            responder.messages_done = responder.messages_done.wrapping_add(1);
        } else {
            self.carry_out_data(packet, payload, shared)?;
        }
        self.responder.ack_due |= packet.has(ACK_REQUEST);
        Ok(())
    }

    /// Count a packet of a message, and finish the message with its last one.
    fn carry_out_data(
        &mut self,
        packet: &Packet,
        payload: Content<'_>,
        shared: &mut Shared,
    ) -> Result<(), Fault> {
        let message_bytes = u64::from(packet.offset) + placed_bytes(packet, payload);
        if packet.has(INVALIDATE) {
            let (domain, qpn) = (self.setup.domain, self.setup.qpn);
            shared.keys.invalidate(packet.immediate, domain, qpn)?;
        }
        if let Some(consumer) = &mut self.consumer
            && packet.kind == Kind::Write
            && takes_receive(packet)
        {
            consumer.word(packet.immediate);
        }
        let responder = &mut self.responder;
        responder.expected += 1;
        if !packet.has(LAST) {
            responder.open = Some((packet.kind, message_bytes));
            return Ok(());
        }
        responder.open = None;
        responder.messages_done = responder.messages_done.wrapping_add(1);
        if takes_receive(packet) {
            responder.receives_done = responder.receives_done.wrapping_add(1);
            self.finish_receive(packet, message_bytes, shared);
        }
        Ok(())
    }

    /// Complete the receive of a message: all its packets have arrived.
    fn finish_receive(&mut self, packet: &Packet, message_bytes: u64, shared: &mut Shared) {
        let Some(work) = self.incoming.taken.take() else {
            return; // its place was looked for with the packet
        };
        let opcode = if packet.kind == Kind::Send {
            WcOpcode::Recv
        } else {
            WcOpcode::RecvRdmaWithImm
        };
        let completion = Completion {
            byte_len: message_bytes,
            src_qpn: self.attributes.word(Field::DestQpn),
            imm_data: packet.immediate,
            flags: match (packet.has(IMMEDIATE), packet.has(INVALIDATE)) {
                (true, _) => WC_WITH_IMM,
                (false, true) => WC_WITH_INV,
                (false, false) => 0,
            },
            solicited: packet.has(SOLICITED),
            ..Completion::of(work.wr_id, Status::Success, opcode, self.setup.qpn)
        };
        self.finish_message(completion, shared);
    }

    /// Execute an atomic operation; return the value before.
    fn change_cell(&self, packet: &Packet, shared: &Shared) -> Result<u64, Fault> {
        let bytes = 8;
        let cell = self.memory(packet, 0, bytes, REMOTE_ATOMIC, shared)?;
        let Some(cell) = cell else {
            return Err(invalid()); // eight bytes are never none
        };
        let mut value = [0; ATOMIC_BYTES];
        cell.memory.read(cell.at, &mut value);
        let before = u64::from_ne_bytes(value);
        let after = value_after(packet, before);
        cell.memory.write(cell.at, &after.to_ne_bytes());
        Ok(before)
    }

    /// Return the bytes that a packet names, from `offset` on; `None` for no bytes.
    fn memory<'a>(
        &self,
        packet: &Packet,
        offset: u32,
        length: u32,
        access: u32,
        shared: &'a Shared,
    ) -> Result<Option<Extent<'a>>, Fault> {
        let (domain, qpn) = (self.setup.domain, self.setup.qpn);
        let Some(address) = packet.address.checked_add(u64::from(offset)) else {
            return Err(Fault::of(Status::RemAccessErr));
        };
        let length = u64::from(length);
        let keys = &shared.keys;
        keys.remote(packet.rkey, address, length, domain, access, qpn)
    }

    /// Answer the expected packet with an RNR NAK: its message has no receive.
    fn plan_rnr_nak(&mut self) {
        let responder = &mut self.responder;
        responder.ack_due |= responder.reported_psn != responder.expected;
        let before = responder.rnr_psn.unwrap_or(responder.expected);
        responder.rnr_psn = Some(responder.expected.min(before));
    }

    /// End the queue pair after a request that breaks a rule.
    fn fail_request(&mut self, psn: i64, fault: &Fault, shared: &mut Shared) {
        let target_qpn = self.attributes.word(Field::DestQpn);
        let syndrome = fault.syndrome();
        let responder = &mut self.responder;
        responder.last_answer = Some(responder.answer(target_qpn, psn, syndrome));
        responder.last_answer_due = true;
        // A receive that cannot take its message says so itself; anything else is an event.
        if matches!(fault.status, Status::LocLenErr | Status::LocProtErr) {
            self.release_receives(shared);
            if let Some(work) = self.incoming.taken.take() {
                self.tracker.complete_next();
                let (status, qpn) = (fault.status, self.setup.qpn);
                let failed = Completion::of(work.wr_id, status, WcOpcode::Send, qpn);
                shared.complete(self.setup.recv_cq, failed);
            }
        } else if syndrome == NAK_REMOTE_ACCESS {
            self.tell(AsyncEvent::QpAccessErr, shared);
        } else {
            self.tell(AsyncEvent::QpReqErr, shared);
        }
        self.enter_error(shared);
    }

    // -- answers out

    /// Give the outlet the next answer: of reads and atomics, then one for all that came meanwhile.
    pub(crate) fn poll_answer(&mut self, shared: &mut Shared, outlet: &mut impl Outlet) -> bool {
        let target_qpn = self.attributes.word(Field::DestQpn);
        loop {
            let responder = &mut self.responder;
            let mut packet = match responder.answers.front() {
                Some(Answer::Reading { .. }) => {
                    if self.answer_reading(target_qpn, shared, outlet) {
                        return true;
                    }
                    continue;
                }
                Some(Answer::Packet(packet)) => {
                    let packet = *packet;
                    responder.answers.pop_front();
                    packet
                }
                None => {
                    let waits = self.setup.link.acks_wait && self.state != QpState::Err;
                    match responder.poll_told(target_qpn, &self.attributes, waits) {
                        Some(packet) => packet,
                        None => return false,
                    }
                }
            };
            let (link, peer) = (self.setup.link, self.peer.as_ref());
            let payload = Payload::Bytes(&[]);
            Self::leave(responder, link, peer, &mut packet, payload, outlet);
            return true;
        }
    }

    /// Give the outlet the next packet of the first read; false if its memory went away.
    fn answer_reading(
        &mut self,
        target_qpn: u32,
        shared: &mut Shared,
        outlet: &mut impl Outlet,
    ) -> bool {
        let Some(&Answer::Reading {
            request,
            psn,
            is_duplicate,
            offset,
        }) = self.responder.answers.front()
        else {
            return false;
        };
        let end = request.length.min(offset.saturating_add(self.mtu_bytes));
        let found = self.memory(&request, offset, end - offset, REMOTE_READ, shared);
        let responder = &mut self.responder;
        let mut packet = responder.answer(target_qpn, psn, 0);
        let extent = match found {
            Ok(extent) => extent,
            Err(fault) => {
                // The memory went away since the request came.
                responder.finish_reading();
                if !is_duplicate && responder.last_answer.is_none() {
                    self.fail_request(psn, &fault, shared);
                }
                return false;
            }
        };
        let is_last = end == request.length;
        packet.kind = Kind::ReadResponse;
        packet.offset = offset;
        packet.flags = if offset == 0 { FIRST } else { 0 } | if is_last { LAST } else { 0 };
        if is_last {
            responder.finish_reading();
        } else if let Some(Answer::Reading { offset, .. }) = responder.answers.front_mut() {
            *offset = end;
        }
        let (link, peer) = (self.setup.link, self.peer.as_ref());
        let payload = Payload::Extents(extent.as_slice());
        Self::leave(responder, link, peer, &mut packet, payload, outlet);
        true
    }
}

impl Responder {
    /// Return whether nothing is to be answered.
    #[inline]
    pub fn is_idle(&self) -> bool {
        let is_told = !(self.ack_due || self.last_answer_due || self.rnr_psn.is_some());
        is_told && self.answers.is_empty()
    }

    pub fn ack_pending(&self) -> bool {
        self.ack_due
    }

    pub fn hurry_ack(&mut self) {
        self.is_hurried = self.ack_due;
    }

    /// Return the PSN of the acknowledgement that waits, which rides on a packet now.
    pub fn take_ack(&mut self) -> Option<u32> {
        if !self.ack_due {
            return None;
        }
        self.note_acked();
        u32::try_from((self.expected - 1) & PSN_MASK).ok()
    }

    /// Take the acknowledgement that is due, if nothing else is to be answered: its PSN and MSN.
    #[inline]
    pub fn take_lone_ack(&mut self) -> Option<(u32, u32)> {
        let is_lone = !self.last_answer_due && self.rnr_psn.is_none() && self.answers.is_empty();
        if !is_lone {
            return None;
        }
        Some((self.take_ack()?, self.messages_done))
    }

    /// Return the acknowledgement that waits: after a reset nothing else is answered.
    pub fn last_ack(&self, target_qpn: u32) -> Option<Packet> {
        self.ack_due
            .then(|| self.answer(target_qpn, self.expected - 1, ACK))
    }

    /// Note that the peer learns now what has been executed.
    fn note_acked(&mut self) {
        (self.ack_due, self.is_hurried) = (false, false);
        (self.unacked, self.reported_psn) = (0, self.expected);
    }

    /// Return what is to be told: what ended the queue pair, an acknowledgement, an RNR NAK.
    fn poll_told(
        &mut self,
        target_qpn: u32,
        attributes: &crate::attributes::Attributes,
        may_wait: bool,
    ) -> Option<Packet> {
        if self.last_answer_due {
            self.last_answer_due = false;
            self.note_acked();
            return self.last_answer;
        }
        // An RNR NAK goes at once, and takes the acknowledgement along.
        let is_late = self.unacked >= UNACKED_MAX && self.rnr_psn.is_none();
        if self.ack_due && (self.is_hurried || !may_wait || is_late) {
            self.note_acked();
            return Some(self.answer(target_qpn, self.expected - 1, ACK));
        }
        let psn = self.rnr_psn.take()?;
        let code = u8::try_from(attributes.get(Field::MinRnrTimer)).unwrap_or(0); // checked
        Some(self.answer(target_qpn, psn, RNR_NAK + code))
    }
}

fn invalid() -> Fault {
    Fault::of(Status::RemInvReqErr)
}

/// Return whether a packet needs the receive of its message.
fn takes_receive(packet: &Packet) -> bool {
    let with_immediate = packet.has(IMMEDIATE) && packet.has(LAST);
    packet.kind == Kind::Send || packet.kind == Kind::Write && with_immediate
}

/// Return how many bytes of its message a packet covers.
fn placed_bytes(packet: &Packet, payload: Content<'_>) -> u64 {
    if packet.has(PLACED) {
        u64::from(packet.length)
    } else {
        payload.len() as u64
    }
}

/// Return the value of the cell after the atomic operation of a packet.
fn value_after(packet: &Packet, before: u64) -> u64 {
    match packet.kind {
        Kind::AtomicAdd | Kind::MaskedAdd => {
            // Fields are added at once: without their highest bits they cannot overflow.
            let (highest, addend) = (packet.boundary | TOP, packet.compare_add);
            let others = !highest;
            ((before & others).wrapping_add(addend & others)) ^ ((before ^ addend) & highest)
        }
        _ if (before ^ packet.compare_add) & packet.compare_mask != 0 => before,
        _ => before & !packet.swap_mask | packet.swap & packet.swap_mask,
    }
}
