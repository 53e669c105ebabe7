//! One queue pair as a value machine: work requests, packets and the time in; packets out.
//!
//! Its parts are the requester, the responder and, of a datagram one, `datagrams`. It takes no lock
//! and calls the outlet alone, which takes its packets.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::attributes::{Attributes, Cap, Field, Link, check_modify};
use crate::completions::{CompletionQueue, Outbox};
use crate::consumer::{Consumer, Post, Taker};
use crate::errors::{ENOMEM, Rejected};
use crate::keys::{Domain, Keys};
use crate::memory::{Content, Payload};
use crate::numbers::{
    AsyncEvent, GID_BYTES, Kind, Opcode, QpKind, QpState, SEND_SIGNALED, Status, WcOpcode,
};
use crate::packets::Packet;
use crate::receives::{Incoming, ReceiveQueue, ReceiveTracker};
use crate::requester::Requester;
use crate::requests::{Request, check_send};
use crate::responder::Responder;
use crate::slots::Slots;
use crate::time::Now;
use crate::work::{Completion, Doubts, Element, Event, Opcoded, Pieces};
use crate::work::{RecvWork, Route, SendWork};

/// Where packets of an engine go: bytes for a network, or records of a channel.
pub trait Outlet {
    /// Take a packet for a place; the payload is valid during the call.
    fn packet(&mut self, to: &Route, packet: &Packet, payload: Payload<'_>);

    /// Return whether a connected queue pair's next packet has room; without it waits for `resume`.
    fn has_room(&mut self, _to: &Route) -> bool {
        true
    }

    /// Write the bytes of a WRITE into the peer's memory; false: they go in packets.
    fn place(&mut self, _to: &Route, _write: &Placing, _payload: Payload<'_>) -> bool {
        false
    }

    /// Return from how many bytes on `place` is asked; `None`: never.
    fn placed_bytes_min(&self) -> Option<u64> {
        None
    }
}

/// The target of a write that an outlet may place.
#[derive(Clone, Copy, Debug)]
pub struct Placing {
    pub target_qpn: u32,
    pub rkey: u32,
    pub address: u64,
}

/// What the queue pairs of one engine share.
#[derive(Debug)]
pub struct Shared {
    pub keys: Keys,
    pub completions: Slots<CompletionQueue>,
    pub receives: Slots<ReceiveQueue>,
    pub outbox: Outbox,
    /// Whether takers are asked for messages that arrive now.
    pub takers: Takers,
}

/// Whether takers are asked for messages, and whether those may have them come again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Takers {
    #[default]
    Unasked,
    Now,
    NowOrLater,
}

/// Parameters of a new queue pair; queues by their numbers.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub qpn: u32,
    pub kind: QpKind,
    pub domain: Domain,
    /// Whose keys the receives use: that of a shared queue.
    pub receive_domain: Domain,
    pub send_cq: u32,
    pub recv_cq: u32,
    pub srq: Option<u32>,
    pub cap: Cap,
    pub sq_sig_all: bool,
    pub link: Link,
    pub gid: [u8; GID_BYTES],
}

impl Setup {
    /// Drop what has completed of the queue pair and was not polled.
    pub fn discard_completions(&self, shared: &mut Shared) {
        for number in [self.send_cq, self.recv_cq] {
            if let Some(queue) = shared.completions.get_mut(number) {
                queue.discard(self.qpn);
            }
        }
    }
}

/// A queue pair of type RC or UD.
#[derive(Debug)]
pub struct QueuePair {
    pub setup: Setup,
    pub number: u32,
    pub state: QpState,
    pub attributes: Attributes,
    pub mtu_bytes: u32,
    pub peer: Option<Route>,
    pub tracker: ReceiveTracker,
    pub holds_receives: bool,
    pub(crate) queue: ReceiveQueue,
    pub(crate) incoming: Incoming,
    pub(crate) posted: VecDeque<Request>,
    pub(crate) started: VecDeque<Request>,
    pub(crate) next_ordinal: u64,
    pub(crate) next_datagram_psn: i64,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    /// What takes its messages and completions, and gives its requests.
    pub(crate) consumer: Option<Box<dyn Consumer>>,
    /// What takes its messages, while takers are asked.
    pub taker: Option<Arc<dyn Taker>>,
    /// Of its oldest request that failed by itself.
    failed: Option<Status>,
    /// The acknowledgement that waited when the queue pair was reset, and where it goes.
    last_ack: Option<(Route, Packet)>,
    is_drained: bool,     // told since SQD began
    is_established: bool, // a packet has come since RTR
}

impl QueuePair {
    pub fn new(setup: Setup) -> Self {
        let mut found = Self {
            number: 0,
            state: QpState::Reset,
            attributes: Attributes::new(setup.cap),
            mtu_bytes: setup.link.mtu_bytes,
            peer: None,
            tracker: ReceiveTracker::default(),
            holds_receives: false,
            queue: ReceiveQueue::new(setup.cap.max_recv_wr, setup.cap.max_recv_sge),
            incoming: Incoming::default(),
            posted: VecDeque::new(),
            started: VecDeque::new(),
            next_ordinal: 0,
            next_datagram_psn: 0,
            requester: Requester::default(),
            responder: Responder::default(),
            consumer: None,
            taker: None,
            failed: None,
            last_ack: None,
            is_drained: false,
            is_established: false,
            setup,
        };
        found.begin();
        found
    }

    /// Begin, or begin anew: no work, no connection.
    fn begin(&mut self) {
        self.state = QpState::Reset;
        self.attributes = Attributes::new(self.attributes.cap);
        self.mtu_bytes = self.setup.link.mtu_bytes;
        self.peer = None;
        self.incoming = Incoming::default();
        self.posted.clear();
        self.started.clear();
        self.next_datagram_psn = 0;
        self.requester = Requester::new(0);
        self.configure_requester();
        self.responder = Responder::default();
        self.is_drained = false;
        self.is_established = false;
    }

    pub fn is_datagram(&self) -> bool {
        self.setup.kind == QpKind::Ud
    }

    // -- states and attributes

    /// Change state and attributes.
    ///
    /// # Errors
    /// EINVAL; then nothing changes.
    pub fn modify(
        &mut self,
        given: &Attributes,
        mask: u32,
        shared: &mut Shared,
    ) -> Result<(), Rejected> {
        let has_state = mask & crate::attributes::STATE != 0;
        let new_state = if has_state { given.state } else { self.state };
        check_modify(self.setup.kind, self.state, mask, new_state)?;
        given.check(mask, self.state)?;
        self.attributes.adopt(given, mask);
        match new_state {
            QpState::Reset => {
                self.keep_last_ack();
                self.tracker.reset();
                if self.setup.srq.is_none() {
                    while self.queue.take(&mut shared.outbox).is_some() {}
                }
                self.begin();
                self.setup.discard_completions(shared);
            }
            QpState::Err => self.enter_error(shared),
            _ => self.enter(new_state, shared),
        }
        Ok(())
    }

    fn enter(&mut self, new_state: QpState, shared: &mut Shared) {
        let old_state = std::mem::replace(&mut self.state, new_state);
        self.attributes.state = new_state;
        match (old_state, new_state) {
            (QpState::Init, QpState::Rtr) => {
                if let Some(code) = self.attributes.path_mtu {
                    let path_bytes = 1 << (code.clamp(1, 5) + 7);
                    self.mtu_bytes = self.setup.link.mtu_bytes.min(path_bytes);
                }
                self.peer = self.attributes.route;
                self.responder = Responder::new(self.attributes.get(Field::RqPsn));
            }
            (QpState::Rtr, QpState::Rts) => {
                let first_psn = self.attributes.get(Field::SqPsn);
                self.requester = Requester::new(first_psn);
                self.configure_requester();
                self.next_datagram_psn = first_psn;
            }
            (QpState::Sqd, _) => {
                self.peer = self.attributes.route;
                self.configure_requester();
            }
            _ => {}
        }
        self.note_draining(shared);
    }

    /// Go to ERR: all posted work completes as flushed. Safe twice.
    pub fn enter_error(&mut self, shared: &mut Shared) {
        if self.state == QpState::Err {
            return;
        }
        self.state = QpState::Err;
        self.attributes.state = QpState::Err;
        self.responder.abandon();
        self.requester.flush();
        self.flush_sends(shared);
        if let Some(consumer) = &mut self.consumer {
            consumer.ended(self.failed.take());
        }
        if !self.is_datagram() {
            self.flush_incoming(shared);
            return;
        }
        while self.setup.srq.is_none()
            && let Some(work) = self.queue.take(&mut shared.outbox)
        {
            self.flush_receive(work.wr_id, shared);
        }
    }

    /// Go to SQE after a failed datagram: sending stops, receiving continues.
    pub(crate) fn enter_send_error(&mut self, shared: &mut Shared) {
        self.state = QpState::Sqe;
        self.attributes.state = QpState::Sqe;
        self.flush_sends(shared);
    }

    // -- work

    /// Queue a request; `opcode` may be none that there is.
    ///
    /// # Errors
    /// EINVAL (state, opcode, sizes, keys of inline data), ENOMEM when full.
    pub fn post_send(
        &mut self,
        work: Opcoded,
        doubts: &Doubts,
        shared: &mut Shared,
    ) -> Result<(), Rejected> {
        if matches!(self.state, QpState::Err | QpState::Sqe) {
            let (wr_id, opcode) = match &work {
                Opcoded::Known(work) => (work.wr_id, work.opcode.completes_as()),
                Opcoded::Unknown { wr_id, .. } => (*wr_id, WcOpcode::Send),
            };
            let flushed = Completion::of(wr_id, Status::WrFlushErr, opcode, self.setup.qpn);
            shared.complete(self.setup.send_cq, flushed);
            return Ok(());
        }
        if !self.state.sends() {
            return Err(Rejected::invalid(format!(
                "send posted in state {}",
                self.state.name()
            )));
        }
        let work = match work {
            Opcoded::Known(work) => work,
            Opcoded::Unknown { name, .. } => {
                return Err(Rejected::invalid(format!("opcode {name}")));
            }
        };
        let attributes = &self.attributes;
        check_send(&work, doubts, self.setup.kind, attributes, self.setup.link)?;
        let most = attributes.cap.max_send_wr;
        if self.outstanding_requests() >= most {
            let detail = format!("send queue is full: {most} work requests (max_send_wr)");
            return Err(Rejected::new(ENOMEM, detail));
        }
        let signalled = self.setup.sq_sig_all || work.flags & SEND_SIGNALED != 0;
        let mut request = Request::new(work, &shared.keys, self.setup.domain, signalled)
            .map_err(|fault| Rejected::invalid(format!("inline data: {}", fault.reason)))?;
        request.ordinal = self.next_ordinal;
        self.next_ordinal += 1;
        self.posted.push_back(request);
        Ok(())
    }

    /// Copy what requests still need of their callers' bytes; return how many bytes that were.
    pub fn detach_data(&mut self) -> u64 {
        let requests = self.started.iter_mut().chain(&mut self.posted);
        requests.map(Request::detach).sum()
    }

    /// Have a consumer from here on: before anything came or was posted.
    ///
    /// # Errors
    /// EINVAL in another state than RESET and INIT, or for datagrams.
    pub fn consume(&mut self, consumer: Box<dyn Consumer>) -> Result<(), Rejected> {
        let is_early = matches!(self.state, QpState::Reset | QpState::Init);
        if self.is_datagram() || !is_early || self.consumer.is_some() {
            let detail = format!("a consumer in state {}", self.state.name());
            return Err(Rejected::invalid(detail));
        }
        self.consumer = Some(consumer);
        Ok(())
    }

    /// Queue a request of the consumer; false in a state that sends nothing.
    ///
    /// Its bytes are placed now or copied: they are the caller's again on return.
    pub fn post(&mut self, post: &Post<'_>, outlet: &mut impl Outlet) -> bool {
        if self.state != QpState::Rts {
            return false;
        }
        let opcode = match post.word {
            None => Opcode::RdmaWrite,
            Some(_) => Opcode::RdmaWriteWithImm,
        };
        let mut work = SendWork::boxed(0, opcode, Pieces::None);
        work.imm_data = post.word.unwrap_or(0);
        (work.remote_addr, work.rkey) = (post.address, post.rkey);
        let mut request = Request::of(work, post.payload.len() as u64, true);
        request.is_placed = self.place_now(&request, post, outlet);
        if !request.is_placed && !post.payload.is_empty() {
            request.work.own.copy(post.payload);
        }
        request.ordinal = self.next_ordinal;
        self.next_ordinal += 1;
        self.posted.push_back(request);
        true
    }

    /// Ask the consumer for its next request, and queue that; return whether there was one.
    pub(crate) fn ask_consumer(&mut self, outlet: &mut impl Outlet) -> bool {
        if !self.can_start() {
            return false;
        }
        let Some(mut consumer) = self.consumer.take() else {
            return false;
        };
        let is_posted = consumer.next().is_some_and(|post| self.post(&post, outlet));
        self.consumer = Some(consumer);
        is_posted
    }

    /// Queue a receive.
    ///
    /// # Errors
    /// EINVAL (state, shared queue, sizes), ENOMEM if full.
    pub fn post_recv(&mut self, work: RecvWork, shared: &mut Shared) -> Result<(), Rejected> {
        if self.setup.srq.is_some() {
            let detail = "the queue pair takes its receives from a shared queue";
            return Err(Rejected::invalid(detail));
        }
        match self.state {
            QpState::Reset => Err(Rejected::invalid("receive posted in state RESET")),
            QpState::Err => {
                self.flush_receive(work.wr_id, shared);
                Ok(())
            }
            _ => {
                self.queue.post(work)?;
                if !self.is_datagram() {
                    self.tracker.allocate_next();
                }
                Ok(())
            }
        }
    }

    /// Return how many posted sends have not completed.
    pub fn outstanding_requests(&self) -> i64 {
        i64::try_from(self.posted.len() + self.started.len()).unwrap_or(i64::MAX)
    }

    /// Return how many receives wait for its next messages.
    pub fn waiting_receives(&self, shared: &Shared) -> usize {
        match self.setup.srq {
            None => self.queue.len(),
            Some(number) => shared.receives.get(number).map_or(0, ReceiveQueue::len),
        }
    }

    /// Take the oldest receive, of the shared queue if there is one.
    pub(crate) fn take_receive(&mut self, shared: &mut Shared) -> Option<RecvWork> {
        match self.setup.srq {
            None => self.queue.take(&mut shared.outbox),
            Some(number) => shared.receives.get_mut(number)?.take(&mut shared.outbox),
        }
    }

    pub(crate) fn complete_send(&mut self, request: &Request, status: Status, shared: &mut Shared) {
        if let Some(consumer) = &mut self.consumer {
            match status {
                Status::Success => consumer.sent(),
                Status::WrFlushErr => {}
                _ => self.failed = self.failed.or(Some(status)),
            }
            return;
        }
        let opcode = request.work.opcode.completes_as();
        let mut completion = Completion::of(request.work.wr_id, status, opcode, self.setup.qpn);
        if status == Status::Success && request.is_answered() {
            completion.byte_len = request.length;
        }
        shared.complete(self.setup.send_cq, completion);
    }

    pub(crate) fn flush_receive(&self, wr_id: u64, shared: &mut Shared) {
        let flushed = Completion::of(wr_id, Status::WrFlushErr, WcOpcode::Recv, self.setup.qpn);
        shared.complete(self.setup.recv_cq, flushed);
    }

    // -- the send queue

    /// Complete requests from the oldest on, up to the first unanswered one.
    pub(crate) fn complete_sends(&mut self, shared: &mut Shared) {
        while let Some(request) = self.started.front() {
            if let Some(status) = request.failed {
                let ordinal = request.ordinal;
                self.fail_send(ordinal, status, shared);
                return;
            }
            if request.unanswered > 0 {
                return;
            }
            if let Some(request) = self.started.pop_front() {
                if request.signalled {
                    self.complete_send(&request, Status::Success, shared);
                }
                request.work.recycle();
            }
        }
        self.note_draining(shared);
    }

    /// Complete a request with an error now, and end the queue pair.
    ///
    /// Unfinished requests before it, reads without their responses, are flushed like the rest.
    pub(crate) fn fail_send(&mut self, ordinal: u64, status: Status, shared: &mut Shared) {
        while let Some(request) = self.started.pop_front() {
            if request.ordinal == ordinal {
                self.complete_send(&request, status, shared);
                break;
            }
            if request.unanswered > 0 {
                self.complete_send(&request, Status::WrFlushErr, shared);
            } else if request.signalled {
                self.complete_send(&request, Status::Success, shared);
            }
        }
        self.enter_error(shared);
    }

    fn flush_sends(&mut self, shared: &mut Shared) {
        while let Some(request) = self.started.pop_front().or_else(|| self.posted.pop_front()) {
            self.complete_send(&request, Status::WrFlushErr, shared);
        }
    }

    /// Tell `SqDrained` once per SQD when everything that was started has completed.
    fn note_draining(&mut self, shared: &mut Shared) {
        if self.state != QpState::Sqd {
            self.is_drained = false;
        } else if self.started.is_empty() && !self.is_drained {
            self.is_drained = true;
            self.tell(AsyncEvent::SqDrained, shared);
        }
    }

    pub(crate) fn started_mut(&mut self, ordinal: u64) -> Option<&mut Request> {
        let first = self.started.front()?.ordinal;
        let place = usize::try_from(ordinal.checked_sub(first)?).ok()?;
        self.started.get_mut(place)
    }

    pub(crate) fn started(&self, ordinal: u64) -> Option<&Request> {
        let first = self.started.front()?.ordinal;
        let place = usize::try_from(ordinal.checked_sub(first)?).ok()?;
        self.started.get(place)
    }

    // -- the receives of messages

    /// Give the open message a receive if it has none; return whether it has one now.
    pub(crate) fn take_for_message(&mut self, shared: &mut Shared) -> bool {
        if self.incoming.taken.is_some() {
            return true;
        }
        let Some(work) = self.take_receive(shared) else {
            return false;
        };
        self.incoming.taken = Some(work);
        if self.setup.srq.is_some() {
            self.tracker.allocate_next();
        }
        true
    }

    /// Keep the completion of a message; it is delivered unless receives are held.
    pub(crate) fn finish_message(&mut self, completion: Completion, shared: &mut Shared) {
        if self.holds_receives {
            self.incoming.held.push_back(completion);
        } else {
            self.tracker.complete_next(); // none is held: they were delivered with the change
            shared.complete(self.setup.recv_cq, completion);
        }
    }

    /// Deliver the completions that were held back.
    pub(crate) fn release_receives(&mut self, shared: &mut Shared) {
        while let Some(completion) = self.incoming.held.pop_front() {
            self.tracker.complete_next();
            shared.complete(self.setup.recv_cq, completion);
        }
    }

    /// Hold finished receives back, or deliver them again.
    pub fn hold_receives(&mut self, holds: bool, shared: &mut Shared) {
        self.holds_receives = holds;
        if !holds {
            self.release_receives(shared);
        }
    }

    fn flush_incoming(&mut self, shared: &mut Shared) {
        self.release_receives(shared);
        self.tracker.flush();
        if let Some(work) = self.incoming.taken.take() {
            self.flush_receive(work.wr_id, shared);
        }
        if self.setup.srq.is_some() {
            self.tell(AsyncEvent::QpLastWqeReached, shared);
            return;
        }
        while let Some(work) = self.queue.take(&mut shared.outbox) {
            self.flush_receive(work.wr_id, shared);
        }
    }

    // -- acknowledgements on a link where they wait

    /// Return whether an acknowledgement waits for a packet to ride on.
    pub fn ack_pending(&self) -> bool {
        self.responder.ack_pending()
    }

    /// Let the acknowledgement that waits go alone, with the next `poll`.
    pub fn hurry_ack(&mut self) {
        self.responder.hurry_ack();
    }

    /// Keep the acknowledgement that waits beyond a reset: what it is for was executed.
    fn keep_last_ack(&mut self) {
        if self.setup.link.acks_wait {
            let target_qpn = self.attributes.word(Field::DestQpn);
            self.last_ack = self.peer.zip(self.responder.last_ack(target_qpn));
        }
    }

    /// Give the outlet a packet to the peer, with the acknowledgement that waits.
    pub(crate) fn leave(
        responder: &mut Responder,
        link: Link,
        peer: Option<&Route>,
        packet: &mut Packet,
        payload: Payload<'_>,
        outlet: &mut impl Outlet,
    ) {
        if link.acks_wait {
            packet.acknowledged = responder.take_ack();
        }
        if let Some(peer) = peer {
            outlet.packet(peer, packet, payload);
        }
    }

    // -- packets and time

    /// Process a packet that arrived for this queue pair; one that does not fit is dropped.
    ///
    /// Return false if it is to come again, as the taker of its message says.
    pub fn receive(
        &mut self,
        packet: &Packet,
        payload: Content<'_>,
        source: Option<Route>,
        now: Now,
        shared: &mut Shared,
    ) -> bool {
        if self.is_datagram() {
            if packet.kind == Kind::Datagram && self.state.receives() {
                self.receive_datagram(packet, payload, source, shared);
            }
            return true;
        }
        if packet.kind == Kind::Datagram {
            return true;
        }
        if let Some(psn) = packet.acknowledged
            && self.state.sends()
        {
            self.receive_riding_ack(psn, now, shared);
        }
        if packet.kind.is_answer() {
            if self.state.sends() {
                self.receive_answer(packet, payload, now, shared);
            }
            return true;
        }
        if self.state == QpState::Rtr && !self.is_established {
            self.is_established = true;
            self.tell(AsyncEvent::CommEst, shared);
        }
        let is_asked = self.state.receives() || self.state == QpState::Err;
        !is_asked || self.receive_request(packet, payload, shared)
    }

    /// Give the outlet the next packet; return false when there is none now.
    pub fn poll(&mut self, now: Now, shared: &mut Shared, outlet: &mut impl Outlet) -> bool {
        if self.is_datagram() {
            return self.poll_datagram(shared, outlet);
        }
        if let Some((route, packet)) = self.last_ack.take() {
            outlet.packet(&route, &packet, Payload::Bytes(&[]));
            return true;
        }
        if self.poll_answer(shared, outlet) {
            return true;
        }
        if !self.state.sends() {
            return false;
        }
        // A request whose memory went away ends the queue pair: what waited goes at once then.
        self.poll_request(now, shared, outlet)
            || (self.state == QpState::Err && self.poll_answer(shared, outlet))
    }

    /// Return whether the next `poll` would find nothing for sure: most calls give one packet.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.consumer.is_none()
            && self.last_ack.is_none()
            && self.requester.is_idle()
            && self.posted.is_empty()
            && self.responder.is_idle()
    }

    /// Take the acknowledgement that the next `poll` would give, if no other one would give anything:
    /// the peer's number, PSN and MSN.
    #[inline]
    pub fn take_lone_ack(&mut self) -> Option<(u32, u32, u32)> {
        let sends = !self.requester.is_idle() || !self.posted.is_empty();
        if sends || self.consumer.is_some() || self.last_ack.is_some() {
            return None;
        }
        let (psn, msn) = self.responder.take_lone_ack()?;
        Some((self.attributes.word(Field::DestQpn), psn, msn))
    }

    /// Run the timers that are due.
    pub fn handle_timeout(&mut self, now_ns: i64, shared: &mut Shared) {
        if self.state.sends() {
            self.handle_requester_timeout(now_ns, shared);
        }
    }

    /// Return when `handle_timeout` is due.
    pub fn poll_timeout(&self) -> Option<i64> {
        self.state.sends().then(|| self.requester.deadline_ns())?
    }

    // -- events and marks

    pub(crate) fn tell(&self, event: AsyncEvent, shared: &mut Shared) {
        let element = Element::QueuePair(self.number);
        shared.outbox.events.push(Event::Async(event, element));
    }

    /// Set and arm both watermarks of held receive buffers.
    pub fn set_marks(&mut self, soft: Option<i64>, hard: Option<i64>, shared: &mut Shared) {
        (self.tracker.soft_max, self.tracker.hard_max) = (soft, hard);
        self.check_marks(shared);
    }

    /// Act on watermarks that are passed. Posted receives of an own queue are not held ones.
    pub(crate) fn check_marks(&mut self, shared: &mut Shared) {
        if self.setup.srq.is_none() {
            return;
        }
        if self.tracker.passes_soft() {
            self.tell(AsyncEvent::QpRecvSoftWatermark, shared);
        }
        if self.tracker.passes_hard() {
            self.tell(AsyncEvent::QpRecvHardWatermark, shared);
            self.enter_error(shared);
        }
    }
}

impl Shared {
    /// Queue a completion.
    #[inline]
    pub fn complete(&mut self, number: u32, completion: Completion) {
        if let Some(queue) = self.completions.get_mut(number) {
            queue.push(number, completion, &mut self.outbox);
        }
    }
}
