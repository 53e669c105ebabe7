//! The requester of a connected queue pair: it sends requests until they are answered.
//!
//! Each PSN waits for its own answer; requests complete in posting order. Nothing is lost here, so
//! a repeat follows an RNR NAK or an expired `timeout` alone. Rules: `urds.verbs.engine.requester`.

use crate::attributes::Field;
use crate::consumer::Post;
use crate::errors::{ACK, NAK_INVALID_REQUEST, NAK_REMOTE_ACCESS, NAK_REMOTE_OPERATION};
use crate::errors::{NAK_SEQUENCE, RNR_NAK};
use crate::memory::{Content, Extents, Payload};
use crate::numbers::{
    Kind, Opcode, PSN_BITS, PSN_MASK, QpState, RNR_RETRY_FOREVER, SEND_FENCE, Status, rnr_timer_ns,
};
use crate::packets::{ACK_REQUEST, LAST, Packet};
use crate::queue_pair::{Outlet, Placing, QueuePair, Shared};
use crate::requests::Request;
use crate::time::Now;
use crate::unanswered::{Patience, Pending, Unanswered};

const HALF: i64 = 1 << (PSN_BITS - 1);
const RNR_PAUSE_MAX_NS: i64 = 100_000_000;
const RNR_DOUBLINGS_MAX: u32 = 14;

/// A request whose memory may not be used, and how it fails.
struct Stopped(u64, Status);

/// State of the half of a queue pair that sends requests to its peer.
#[derive(Debug, Default)]
pub struct Requester {
    next_psn: i64,
    /// The last one started, while packets are unsent.
    current: Option<u64>,
    /// One has failed: what is behind it is not sent any more.
    is_stopped: bool,
    messages: u32, // that take a receive of the peer
    unanswered: Unanswered,
    answered_open: i64, // reads and atomics that have not completed
    unplaced: Vec<u64>, // what bytes that the outlet places may overtake
    paused_until_ns: Option<i64>,
    paused_psn: i64,
    rnr_left: i64,
    rnr_waits: u32, // for one receive, until there is progress
    patience: Patience,
}

impl Requester {
    pub fn new(next_psn: i64) -> Self {
        Self {
            next_psn,
            ..Self::default()
        }
    }

    pub fn deadline_ns(&self) -> Option<i64> {
        self.paused_until_ns.or(self.patience.deadline_ns)
    }

    /// Return whether no packet is to be sent of what was started.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.current.is_none() && !self.unanswered.has_retries()
    }

    /// Forget what is under way.
    pub fn flush(&mut self) {
        self.current = None;
        self.unanswered.clear();
        self.patience.deadline_ns = None;
        self.paused_until_ns = None;
    }
}

impl QueuePair {
    /// Apply the attributes that a modify changed.
    pub(crate) fn configure_requester(&mut self) {
        let attributes = &self.attributes;
        let (timeout, retries) = (
            attributes.get(Field::Timeout),
            attributes.get(Field::RetryCnt),
        );
        self.requester.patience.configure(timeout, retries);
        self.requester.rnr_left = attributes.get(Field::RnrRetry);
    }

    pub(crate) fn handle_requester_timeout(&mut self, now_ns: i64, shared: &mut Shared) {
        let requester = &mut self.requester;
        if let Some(until_ns) = requester.paused_until_ns {
            if now_ns >= until_ns {
                requester.paused_until_ns = None;
                requester.unanswered.retry_from(requester.paused_psn);
            }
            return;
        }
        let deadline_ns = requester.patience.deadline_ns;
        if deadline_ns.is_none_or(|deadline_ns| now_ns < deadline_ns) {
            return;
        }
        let oldest = requester.unanswered.oldest(requester.next_psn);
        if !requester.patience.expire(now_ns) {
            if self.setup.link.retries {
                requester.unanswered.narrow();
                requester.unanswered.retry_from(oldest);
            }
        } else if let Some(ordinal) = requester.unanswered.request_of(oldest) {
            self.fail_send(ordinal, Status::RetryExcErr, shared);
        }
    }

    // -- packets out

    /// Give the outlet the next request packet: a repeat first, then a new one.
    pub(crate) fn poll_request(
        &mut self,
        now: Now,
        shared: &mut Shared,
        outlet: &mut impl Outlet,
    ) -> bool {
        let requester = &self.requester;
        if requester.is_idle() && self.posted.is_empty() && self.consumer.is_none() {
            return false;
        }
        loop {
            match self.poll_once(now, shared, outlet) {
                Ok(is_sent) => return is_sent,
                Err(Stopped(ordinal, status)) => self.stop_at(ordinal, status, shared),
            }
        }
    }

    fn poll_once(
        &mut self,
        now: Now,
        shared: &mut Shared,
        outlet: &mut impl Outlet,
    ) -> Result<bool, Stopped> {
        let requester = &mut self.requester;
        let is_paused = requester.paused_until_ns.is_some();
        if let Some(Pending { psn, request }) = requester.unanswered.next_retry() {
            if is_paused && psn >= requester.paused_psn || !requester.unanswered.has_room(psn) {
                return Ok(false);
            }
            requester.unanswered.take_retry();
            return self.emit(request, psn, true, now, shared, outlet);
        }
        if is_paused || requester.is_stopped {
            return Ok(false);
        }
        let ordinal = loop {
            if let Some(ordinal) = self.requester.current {
                break ordinal;
            }
            if !self.start_next(shared, outlet)? {
                return Ok(false);
            }
        };
        let Some(request) = self.started(ordinal) else {
            return Ok(false); // the current one is started
        };
        let psn = request.psn + request.sent;
        if request.kind == Some(Kind::ReadRequest) && !self.has_resources() {
            return Ok(false);
        }
        if !self.requester.unanswered.has_room(psn) {
            return Ok(false);
        }
        if request.is_answered() {
            self.requester.answered_open += 1;
        }
        self.emit(ordinal, psn, false, now, shared, outlet)?;
        if let Some(request) = self.started_mut(ordinal) {
            request.sent += 1;
            if request.sent == request.psn_count {
                self.requester.current = None;
            }
        }
        Ok(true)
    }

    /// Return whether the peer serves one more read or atomic operation.
    fn has_resources(&self) -> bool {
        self.requester.answered_open < self.attributes.get(Field::MaxRdAtomic)
    }

    /// Start the next posted request; return whether one was, or was executed here.
    fn start_next(
        &mut self,
        shared: &mut Shared,
        outlet: &mut impl Outlet,
    ) -> Result<bool, Stopped> {
        if self.state != QpState::Rts || self.requester.is_stopped {
            return Ok(false);
        }
        if self.posted.is_empty() && !self.ask_consumer(outlet) {
            return Ok(false);
        }
        let Some(next) = self.posted.front() else {
            return Ok(false); // there is one
        };
        let waits_for_answers =
            next.work.flags & SEND_FENCE != 0 && self.requester.answered_open > 0;
        if waits_for_answers || next.is_answered() && !self.has_resources() {
            return Ok(false);
        }
        let (ordinal, kind) = (next.ordinal, next.kind);
        // Moved once, before anything of it changes.
        self.started.extend(self.posted.pop_front());
        let Some(request) = self.started.back() else {
            return Ok(false); // it was there
        };
        let takes_receive = request.work.opcode.takes_receive();
        let Some(kind) = kind else {
            let result = self.carry_out_here(request, shared);
            result.map_err(|status| Stopped(ordinal, status))?;
            self.complete_sends(shared);
            return Ok(true);
        };
        let is_placed = if request.is_placed {
            Ok(true)
        } else {
            self.place(request, kind, shared, outlet)
        };
        if takes_receive {
            self.requester.messages = self.requester.messages.wrapping_add(1);
        }
        let is_placed = is_placed.map_err(|status| Stopped(ordinal, status))?;
        let Some(request) = self.started.back_mut() else {
            return Ok(false); // it is there
        };
        request.is_placed = is_placed;
        if is_placed && !takes_receive {
            self.complete_sends(shared); // the bytes are there: no packet, no answer
            return Ok(true);
        }
        let msn = self.requester.messages;
        request.start(self.requester.next_psn, msn, self.mtu_bytes);
        self.requester.next_psn += request.psn_count;
        if request.is_overtakable() {
            self.requester.unplaced.push(ordinal);
        }
        self.requester.current = Some(ordinal);
        Ok(true)
    }

    /// Have the outlet write the bytes into the peer's memory itself, if it can.
    ///
    /// Not while a write or atomic before it that may change the same bytes is under way.
    fn place(
        &self,
        request: &Request,
        kind: Kind,
        shared: &Shared,
        outlet: &mut impl Outlet,
    ) -> Result<bool, Status> {
        let Some(least) = outlet.placed_bytes_min() else {
            return Ok(false);
        };
        let Some(peer) = self.peer else {
            return Ok(false);
        };
        if kind != Kind::Write || request.length < least || self.overtakes(request) {
            return Ok(false);
        }
        let mut found = Extents::None;
        let (keys, domain) = (&shared.keys, self.setup.domain);
        let target = Placing {
            target_qpn: self.attributes.word(Field::DestQpn),
            rkey: request.work.rkey,
            address: request.work.remote_addr,
        };
        request
            .data(keys, domain, 0, request.length, &mut found)
            .map(|payload| outlet.place(&peer, &target, payload))
            .map_err(|fault| fault.status)
    }

    /// Return whether a request that is posted now would leave at once.
    pub(crate) fn can_start(&self) -> bool {
        let requester = &self.requester;
        self.state == QpState::Rts
            && self.posted.is_empty()
            && requester.current.is_none()
            && requester.unanswered.has_room(requester.next_psn)
    }

    /// Have the outlet write the bytes of a consumer's request into the peer's memory, if it can.
    pub(crate) fn place_now(
        &self,
        request: &Request,
        post: &Post<'_>,
        outlet: &mut impl Outlet,
    ) -> bool {
        let is_long = outlet
            .placed_bytes_min()
            .is_some_and(|least| request.length >= least);
        let (true, Some(peer)) = (is_long, self.peer) else {
            return false;
        };
        if !post.is_apart && (!self.can_start() || self.overtakes(request)) {
            return false;
        }
        let target = Placing {
            target_qpn: self.attributes.word(Field::DestQpn),
            rkey: post.rkey,
            address: post.address,
        };
        outlet.place(&peer, &target, post.payload)
    }

    /// Return whether bytes placed now could land before others that belong below them.
    ///
    /// Addresses are compared under one key only: another may name the same memory otherwise.
    fn overtakes(&self, request: &Request) -> bool {
        let span = |one: &Request| {
            let start = u128::from(one.work.remote_addr);
            start..start + u128::from(one.length)
        };
        let own = span(request);
        self.requester.unplaced.iter().any(|&ordinal| {
            self.started(ordinal).is_some_and(|other| {
                let theirs = span(other);
                let meets = theirs.start < own.end && own.start < theirs.end;
                other.work.rkey != request.work.rkey || meets
            })
        })
    }

    /// Bind or invalidate a memory window; no packet is sent.
    fn carry_out_here(&self, request: &Request, shared: &mut Shared) -> Result<(), Status> {
        let (keys, qpn) = (&mut shared.keys, self.setup.qpn);
        let result = match (request.work.binding(), request.work.opcode) {
            (Some(binding), Opcode::BindMw) => keys.bind(binding, qpn),
            _ => keys.invalidate(request.immediate(), self.setup.domain, qpn),
        };
        result.map_err(|fault| fault.status)
    }

    /// Give the packet of a PSN to the outlet, and record it as under way.
    fn emit(
        &mut self,
        ordinal: u64,
        psn: i64,
        is_retry: bool,
        now: Now,
        shared: &Shared,
        outlet: &mut impl Outlet,
    ) -> Result<bool, Stopped> {
        let result = self.send_one(ordinal, psn, is_retry, shared, outlet);
        result.map_err(|status| Stopped(ordinal, status))?;
        self.requester.unanswered.note_sent(psn, ordinal);
        self.requester.patience.note_sent(now);
        Ok(true)
    }

    fn send_one(
        &mut self,
        ordinal: u64,
        psn: i64,
        is_retry: bool,
        shared: &Shared,
        outlet: &mut impl Outlet,
    ) -> Result<(), Status> {
        let first = self.started.front().map_or(ordinal, |first| first.ordinal);
        let place = usize::try_from(ordinal - first).unwrap_or(usize::MAX);
        let Some(request) = self.started.get(place) else {
            return Ok(()); // what is under way is started
        };
        let target_qpn = self.attributes.word(Field::DestQpn);
        let (mut payload, mut found) = (Payload::Bytes(&[]), Extents::None);
        let mut packet = match request.kind {
            Some(kind) if kind.is_answered() => request.build_answered(kind, target_qpn),
            kind => {
                let mtu = u64::from(self.mtu_bytes);
                if !request.is_placed {
                    let offset = (psn - request.psn).unsigned_abs() * mtu;
                    let size = mtu.min(request.length - offset);
                    let domain = self.setup.domain;
                    payload = request
                        .data(&shared.keys, domain, offset, size, &mut found)
                        .map_err(|fault| fault.status)?;
                }
                let kind = kind.unwrap_or(Kind::Send);
                let mut packet = request.build_data(psn, kind, target_qpn, self.mtu_bytes);
                if is_retry {
                    packet.flags |= ACK_REQUEST;
                }
                packet
            }
        };
        let (responder, link) = (&mut self.responder, self.setup.link);
        let peer = self.peer.as_ref();
        Self::leave(responder, link, peer, &mut packet, payload, outlet);
        Ok(())
    }

    // -- answers in

    /// Process an acknowledgement that rode on another packet.
    pub(crate) fn receive_riding_ack(&mut self, psn: u32, now: Now, shared: &mut Shared) {
        let psn = self.unwrapped(psn);
        if psn < self.requester.next_psn && self.acknowledge(psn) {
            self.note_progress(now, shared);
        }
    }

    /// Return the PSN next to the oldest one that waits.
    fn unwrapped(&self, psn: u32) -> i64 {
        let requester = &self.requester;
        let first = requester.unanswered.oldest(requester.next_psn);
        first + ((i64::from(psn) - first + HALF) & PSN_MASK) - HALF
    }

    /// Restart the timers after progress, and complete what is answered.
    fn note_progress(&mut self, now: Now, shared: &mut Shared) {
        let requester = &mut self.requester;
        let is_idle = requester.unanswered.is_empty();
        requester.patience.note_progress(now, is_idle);
        requester.rnr_left = self.attributes.get(Field::RnrRetry);
        requester.rnr_waits = 0;
        self.complete_sends(shared);
    }

    /// Process an answer. One to an unknown or answered request is dropped.
    pub(crate) fn receive_answer(
        &mut self,
        packet: &Packet,
        payload: Content<'_>,
        now: Now,
        shared: &mut Shared,
    ) {
        let psn = self.unwrapped(packet.psn);
        if psn >= self.requester.next_psn {
            return;
        }
        let progress = if packet.kind == Kind::Ack {
            self.take_ack(packet, psn, now, shared)
        } else {
            // A read or atomic was executed, hence everything before it as well.
            let progress = self.acknowledge(psn - 1);
            self.take_data(packet, payload, psn, shared) || progress
        };
        if progress {
            self.note_progress(now, shared);
        }
    }

    /// Process an ACK or NAK; return whether there was progress.
    fn take_ack(&mut self, packet: &Packet, psn: i64, now: Now, shared: &mut Shared) -> bool {
        let syndrome = packet.syndrome;
        if syndrome <= ACK {
            return self.acknowledge(psn);
        }
        if (RNR_NAK..RNR_NAK + 32).contains(&syndrome) {
            self.pause(psn, syndrome - RNR_NAK, now, shared);
            return false;
        }
        let progress = self.acknowledge(psn - 1);
        let status = match syndrome {
            NAK_SEQUENCE => {
                let unanswered = &mut self.requester.unanswered;
                if unanswered.request_of(psn).is_some() {
                    unanswered.narrow();
                    unanswered.retry_from(psn);
                }
                return progress;
            }
            NAK_INVALID_REQUEST => Status::RemInvReqErr,
            NAK_REMOTE_ACCESS => Status::RemAccessErr,
            NAK_REMOTE_OPERATION => Status::RemOpErr,
            _ => return progress,
        };
        match self.requester.unanswered.request_of(psn) {
            Some(ordinal) => {
                self.fail_send(ordinal, status, shared);
                false
            }
            None => progress,
        }
    }

    /// Complete sends and writes up to a PSN.
    fn acknowledge(&mut self, up_to: i64) -> bool {
        let mut progress = false;
        let mut at = 0;
        // Reads and atomics stay where they are: what is behind them is looked at from there.
        while let Some(Pending { psn, request }) = self.requester.unanswered.at(at) {
            if psn > up_to {
                break;
            }
            if self.started(request).is_some_and(Request::is_answered) {
                at += 1;
            } else {
                self.complete_psn(psn, request);
                progress = true;
            }
        }
        progress
    }

    fn complete_psn(&mut self, psn: i64, ordinal: u64) {
        self.requester.unanswered.complete(psn);
        let Some(request) = self.started_mut(ordinal) else {
            return; // what waits is started
        };
        request.unanswered -= 1;
        if request.unanswered == 0 && request.is_overtakable() {
            self.requester.unplaced.retain(|&other| other != ordinal);
        }
    }

    /// Process a response to a read or atomic; return whether it is new.
    fn take_data(
        &mut self,
        packet: &Packet,
        payload: Content<'_>,
        psn: i64,
        shared: &mut Shared,
    ) -> bool {
        let Some(ordinal) = self.requester.unanswered.request_of(psn) else {
            return false;
        };
        let Some(request) = self.started(ordinal) else {
            return false;
        };
        let is_read = request.kind == Some(Kind::ReadRequest);
        if !request.is_answered() || is_read != (packet.kind == Kind::ReadResponse) {
            return false;
        }
        let value = packet.compare_add.to_ne_bytes();
        let data = if is_read {
            payload
        } else {
            Content::Bytes(&value)
        };
        let offset = if is_read { request.received } else { 0 };
        let size = data.len() as u64;
        if is_read {
            let end = offset + size;
            let is_last = packet.has(LAST);
            let is_next = u64::from(packet.offset) == offset && end <= request.length;
            if !is_next || is_last != (end == request.length) {
                // No answer of this link is ever wrong at random.
                self.stop_at(ordinal, Status::BadRespErr, shared);
                return false;
            }
        }
        let (pieces, domain) = (request.work.pieces.as_slice(), self.setup.domain);
        if let Err(fault) = shared.keys.scatter(domain, pieces, offset, data) {
            self.stop_at(ordinal, fault.status, shared);
            return false;
        }
        if is_read {
            if let Some(request) = self.started_mut(ordinal) {
                request.received += size;
            }
            if !packet.has(LAST) {
                return true;
            }
        }
        self.complete_psn(psn, ordinal);
        self.requester.answered_open -= 1;
        true
    }

    /// Wait for a receive of the peer; count it once per wait.
    fn pause(&mut self, psn: i64, code: u8, now: Now, shared: &mut Shared) {
        let requester = &mut self.requester;
        let Some(ordinal) = requester.unanswered.request_of(psn) else {
            return;
        };
        if requester.paused_until_ns.is_some() {
            requester.paused_psn = psn.min(requester.paused_psn);
            return;
        }
        let mut pause_ns = rnr_timer_ns(code);
        if self.attributes.get(Field::RnrRetry) == RNR_RETRY_FOREVER {
            // The time is the peer's minimum; a late receive is served at most that much later.
            let longer_ns = (pause_ns << requester.rnr_waits).min(RNR_PAUSE_MAX_NS);
            pause_ns = pause_ns.max(longer_ns);
            requester.rnr_waits = RNR_DOUBLINGS_MAX.min(requester.rnr_waits + 1);
        } else if requester.rnr_left > 0 {
            requester.rnr_left -= 1;
        } else {
            self.fail_send(ordinal, Status::RnrRetryExcErr, shared);
            return;
        }
        requester.patience.deadline_ns = None;
        requester.paused_psn = psn;
        requester.paused_until_ns = Some(now.ns() + pause_ns);
    }

    /// Fail a request once all before it are done; nothing behind it is sent.
    fn stop_at(&mut self, ordinal: u64, status: Status, shared: &mut Shared) {
        self.requester.is_stopped = true;
        self.requester.current = None;
        self.requester.unanswered.drop_request(ordinal);
        if let Some(request) = self.started_mut(ordinal) {
            request.failed = request.failed.or(Some(status));
        }
        self.complete_sends(shared);
    }
}
