//! All queue pairs of one opened device, their queues and keys.
//!
//! The caller serialises the calls, passes the time and gives an `Outlet` for packets.

use std::sync::Arc;

use crate::attributes::Attributes;
use crate::completions::{CompletionQueue, Outbox};
use crate::consumer::{Consumer, Post, Taker};
use crate::errors::Rejected;
use crate::keys::{Draw, Keys, Map};
use crate::memory::{Content, Payload};
use crate::numbers::{QpKind, QpState};
use crate::ordered::Ordered;
use crate::packets::{self, Packet};
use crate::queue_pair::{Outlet, QueuePair, Setup, Shared, Takers};
use crate::receives::ReceiveQueue;
use crate::slots::Slots;
use crate::time::Now;
use crate::work::{Doubts, Opcoded, RecvWork, Route};

/// Packets since the engine was made, and why some were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub sent: u64,
    pub received: u64,
    pub dropped_malformed: u64,
    /// No such queue pair.
    pub dropped_unknown: u64,
    /// From another place than the queue pair's peer.
    pub dropped_source: u64,
    /// Times that a thread took the engine's lock; the one that takes it counts.
    pub entered: u64,
}

/// One queue pair and its place in the order of service: the order in which they were made, but that one
/// which has used up the room of its path goes behind those that wait for it.
#[derive(Debug)]
struct Served {
    queue_pair: QueuePair,
    serial: u64,
    deadline_ns: Option<i64>,
    has_failed: bool,
    /// Since it last found no room.
    has_sent: bool,
}

/// The engine of one opened device.
#[derive(Debug)]
pub struct Engine {
    pub shared: Shared,
    pub counters: Counters,
    queue_pairs: Slots<Served>,
    by_qpn: Map<u32, u32>,
    serial: u64,
    /// Those that may have something to send: an idle queue pair costs nothing.
    ready: Ordered<(u64, u32)>,
    /// Those whose packets find no room.
    starved: Ordered<(u64, u32)>,
    deadlines: Ordered<(i64, u64, u32)>,
    has_checksum: bool,
    /// Numbers of queue pairs that have entered ERR, for an owner that asked to be told.
    pub failed: Vec<u32>,
    pub tells_failures: bool,
}

/// Keeps one packet as bytes.
#[derive(Debug, Default)]
pub struct OnePacket {
    pub destination: Option<Route>,
    pub bytes: Vec<u8>,
    has_checksum: bool,
}

impl Outlet for OnePacket {
    fn packet(&mut self, to: &Route, packet: &Packet, payload: Payload<'_>) {
        self.destination = Some(*to);
        self.bytes.clear();
        packets::emit(packet, payload, self.has_checksum, &mut self.bytes);
    }
}

impl Engine {
    /// Make an engine without objects. `has_checksum`: packets carry a CRC-32 of their own.
    pub fn new(draw: Option<Draw>, has_checksum: bool) -> Self {
        Self {
            shared: Shared {
                keys: Keys::new(draw),
                completions: Slots::default(),
                receives: Slots::default(),
                outbox: Outbox::default(),
                takers: Takers::Unasked,
            },
            counters: Counters::default(),
            queue_pairs: Slots::default(),
            by_qpn: Map::default(),
            serial: 0,
            ready: Ordered::default(),
            starved: Ordered::default(),
            deadlines: Ordered::default(),
            has_checksum,
            failed: Vec::new(),
            tells_failures: false,
        }
    }

    // -- objects

    /// Make a completion queue; returns its number.
    ///
    /// # Errors
    /// EINVAL for a capacity below 1.
    pub fn completion_queue(&mut self, capacity: i64, has_sink: bool) -> Result<u32, Rejected> {
        let made = CompletionQueue::new(capacity, has_sink)?;
        Ok(self.shared.completions.insert(made))
    }

    /// Have the events of a queue come to a channel from here on; those that wait elsewhere are dropped.
    pub fn join(&mut self, number: u32, channel: Option<u64>) {
        let Some(queue) = self.shared.completions.get_mut(number) else {
            return;
        };
        let before = std::mem::replace(&mut queue.channel, channel);
        let channels = &mut self.shared.outbox.channels;
        if let Some(before) = before.and_then(|before| channels.get_mut(&before)) {
            before.forget(number);
        }
    }

    /// Forget a completion queue and its events.
    pub fn close_completion_queue(&mut self, number: u32) {
        self.join(number, None);
        self.shared.outbox.fed.retain(|fed| *fed != number);
        self.shared.completions.remove(number);
    }

    /// Make a queue of receives that queue pairs share; returns its number.
    pub fn receive_queue(&mut self, capacity: i64, max_sge: i64) -> u32 {
        let receives = &mut self.shared.receives;
        let number = receives.insert(ReceiveQueue::new(capacity, max_sge));
        if let Some(queue) = receives.get_mut(number) {
            queue.share(number);
        }
        number
    }

    /// Make a queue pair; returns its number.
    pub fn queue_pair(&mut self, setup: Setup) -> u32 {
        self.serial += 1;
        let qpn = setup.qpn;
        let number = self.queue_pairs.insert(Served {
            queue_pair: QueuePair::new(setup),
            serial: self.serial,
            deadline_ns: None,
            has_failed: false,
            has_sent: false,
        });
        if let Some(served) = self.queue_pairs.get_mut(number) {
            served.queue_pair.number = number;
        }
        self.by_qpn.insert(qpn, number);
        number
    }

    /// Forget a queue pair.
    pub fn close_queue_pair(&mut self, number: u32) {
        if let Some(served) = self.queue_pairs.remove(number) {
            self.ready.remove(&(served.serial, number));
            self.starved.remove(&(served.serial, number));
            if let Some(deadline_ns) = served.deadline_ns {
                self.deadlines.remove(&(deadline_ns, served.serial, number));
            }
            self.by_qpn.remove(&served.queue_pair.setup.qpn);
        }
    }

    pub fn get(&self, number: u32) -> Option<&QueuePair> {
        self.queue_pairs
            .get(number)
            .map(|served| &served.queue_pair)
    }

    /// Return whether a queue pair has no receive left.
    pub fn is_dry(&self, qpn: u32) -> bool {
        let found = self.by_qpn.get(&qpn).and_then(|number| self.get(*number));
        found.is_some_and(|queue_pair| queue_pair.waiting_receives(&self.shared) == 0)
    }

    pub fn queue_pair_count(&self) -> usize {
        self.queue_pairs.count()
    }

    pub fn has_qpn(&self, qpn: u32) -> bool {
        self.by_qpn.contains_key(&qpn)
    }

    /// Change a queue pair that is not closed; it may have something to send afterwards.
    pub fn with<T>(
        &mut self,
        number: u32,
        work: impl FnOnce(&mut QueuePair, &mut Shared) -> T,
    ) -> Option<T> {
        let served = self.queue_pairs.get_mut(number)?;
        let result = work(&mut served.queue_pair, &mut self.shared);
        self.ready.insert((served.serial, number));
        self.plan(number);
        Some(result)
    }

    // -- work

    /// Change state and attributes.
    ///
    /// # Errors
    /// EINVAL; then nothing changes.
    pub fn modify(&mut self, number: u32, given: &Attributes, mask: u32) -> Result<(), Rejected> {
        self.with(number, |qp, shared| qp.modify(given, mask, shared))
            .unwrap_or_else(|| Err(closed()))
    }

    /// Queue a request.
    ///
    /// # Errors
    /// As `QueuePair::post_send`.
    pub fn post_send(
        &mut self,
        number: u32,
        work: Opcoded,
        doubts: &Doubts,
    ) -> Result<(), Rejected> {
        self.with(number, |qp, shared| qp.post_send(work, doubts, shared))
            .unwrap_or_else(|| Err(closed()))
    }

    /// Queue a receive, which gives nothing to send.
    ///
    /// # Errors
    /// As `QueuePair::post_recv`.
    pub fn post_recv(&mut self, number: u32, work: RecvWork) -> Result<(), Rejected> {
        match self.queue_pairs.get_mut(number) {
            None => Err(closed()),
            Some(served) => served.queue_pair.post_recv(work, &mut self.shared),
        }
    }

    // -- consumers

    /// Bind a consumer to a queue pair, which takes no receives and completes nothing from here on.
    ///
    /// # Errors
    /// As `QueuePair::consume`.
    pub fn consume(&mut self, number: u32, consumer: Box<dyn Consumer>) -> Result<(), Rejected> {
        match self.queue_pairs.get_mut(number) {
            None => Err(closed()),
            Some(served) => served.queue_pair.consume(consumer),
        }
    }

    /// Queue a request beside those that a consumer gives when it is asked; see `QueuePair::post`.
    pub fn post(&mut self, number: u32, post: &Post<'_>, outlet: &mut impl Outlet) -> bool {
        let Some(served) = self.queue_pairs.get_mut(number) else {
            return false;
        };
        self.ready.insert((served.serial, number));
        served.queue_pair.post(post, outlet)
    }

    /// Give the messages of a queue pair to a taker from here on; return the one before.
    pub fn set_taker(
        &mut self,
        number: u32,
        taker: Option<Arc<dyn Taker>>,
    ) -> Option<Arc<dyn Taker>> {
        let served = self.queue_pairs.get_mut(number)?;
        std::mem::replace(&mut served.queue_pair.taker, taker)
    }

    // -- packets and time

    /// Process the bytes of one packet that arrived.
    pub fn receive(&mut self, data: &[u8], source: Route, now: impl Into<Now>) {
        match packets::parse(data, self.has_checksum) {
            Some((packet, payload)) => {
                self.receive_packet(&packet, Content::Bytes(payload), source, now);
            }
            None => self.counters.dropped_malformed += 1,
        }
    }

    /// Process a packet that arrived, as a record.
    ///
    /// Return false if it is to come again: only while takers are asked that may wait.
    pub fn receive_packet(
        &mut self,
        packet: &Packet,
        payload: Content<'_>,
        source: Route,
        now: impl Into<Now>,
    ) -> bool {
        let now = now.into();
        self.counters.received += 1;
        let Some(&number) = self.by_qpn.get(&packet.target_qpn) else {
            self.counters.dropped_unknown += 1;
            return true;
        };
        let is_dropped = self
            .get(number)
            .is_some_and(|qp| qp.setup.kind == QpKind::Rc && qp.peer != Some(source));
        if is_dropped {
            self.counters.dropped_source += 1;
            return true;
        }
        let is_done = self.with(number, |qp, shared| {
            qp.receive(packet, payload, Some(source), now, shared)
        });
        let is_done = is_done.unwrap_or(true);
        self.counters.received -= u64::from(!is_done);
        is_done
    }

    /// Give the outlet the next packet; false when there is none now.
    pub fn poll(&mut self, now: impl Into<Now>, outlet: &mut impl Outlet) -> bool {
        let now = now.into();
        while let Some(&(serial, number)) = self.ready.first() {
            let peer = self.get(number).and_then(|queue_pair| queue_pair.peer);
            if peer.is_some_and(|peer| !outlet.has_room(&peer)) {
                self.ready.remove(&(serial, number));
                self.starve(number);
                continue;
            }
            let mut is_idle = true;
            let is_sent = self.queue_pairs.get_mut(number).is_some_and(|served| {
                let is_sent = served.queue_pair.poll(now, &mut self.shared, outlet);
                served.has_sent |= is_sent;
                is_idle = !is_sent || served.queue_pair.is_idle();
                is_sent
            });
            self.plan(number);
            if is_idle {
                self.ready.remove(&(serial, number));
            }
            if is_sent {
                return true;
            }
        }
        false
    }

    /// Take the acknowledgement that a queue pair owes this peer, if it has nothing else to send.
    ///
    /// For an owner that only keeps it for the next packet: the peer's number, PSN and MSN.
    pub fn take_lone_ack(&mut self, qpn: u32, peer: Route) -> Option<(u32, u32, u32)> {
        let number = *self.by_qpn.get(&qpn)?;
        let served = self.queue_pairs.get_mut(number)?;
        if served.queue_pair.peer != Some(peer) {
            return None; // another one that names its number
        }
        let ack = served.queue_pair.take_lone_ack()?;
        self.ready.remove(&(served.serial, number));
        self.counters.sent += 1;
        Some(ack)
    }

    /// Put a queue pair that found no room aside: behind the others, if it has sent before.
    fn starve(&mut self, number: u32) {
        let Some(served) = self.queue_pairs.get_mut(number) else {
            return;
        };
        let before = served.serial;
        // It may wait already: what was posted since has made it ready again.
        self.starved.remove(&(before, number));
        if std::mem::take(&mut served.has_sent) {
            self.serial += 1;
            served.serial = self.serial;
            if let Some(deadline_ns) = served.deadline_ns {
                self.deadlines.remove(&(deadline_ns, before, number));
                self.deadlines.insert((deadline_ns, self.serial, number));
            }
        }
        self.starved.insert((served.serial, number));
    }

    /// Serve the queue pairs again that found no room.
    pub fn resume(&mut self) {
        self.ready.append(&mut self.starved);
    }

    /// Return whether queue pairs may have something to send.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Return the next packet as bytes, and where it goes.
    pub fn poll_transmit(&mut self, now: impl Into<Now>) -> Option<(Route, Vec<u8>)> {
        let now = now.into();
        let mut one = OnePacket {
            has_checksum: self.has_checksum,
            ..OnePacket::default()
        };
        // One without a destination leads nowhere: the queue pair has no peer.
        while self.poll(now, &mut one) {
            if let Some(route) = one.destination {
                self.counters.sent += 1;
                return Some((route, one.bytes));
            }
        }
        None
    }

    /// Return when `handle_timeout` is due.
    pub fn poll_timeout(&self) -> Option<i64> {
        self.deadlines.first().map(|(deadline_ns, ..)| *deadline_ns)
    }

    /// Run the timers that are due, in the order in which the queue pairs were made.
    pub fn handle_timeout(&mut self, now_ns: i64) {
        let due = self.deadlines.iter().take_while(|(ns, ..)| *ns <= now_ns);
        let mut due: Vec<(u64, u32)> = due.map(|(_, serial, number)| (*serial, *number)).collect();
        due.sort_unstable();
        for (_, number) in due {
            self.with(number, |qp, shared| qp.handle_timeout(now_ns, shared));
        }
    }

    /// Note what work on a queue pair has changed: of most calls neither its timer nor that it failed.
    #[inline]
    fn plan(&mut self, number: u32) {
        if let Some(served) = self.queue_pairs.get(number) {
            let has_failed = served.queue_pair.state == QpState::Err;
            let deadline_ns = served.queue_pair.poll_timeout();
            if has_failed != served.has_failed || deadline_ns != served.deadline_ns {
                self.plan_anew(number);
            }
        }
    }

    #[cold]
    fn plan_anew(&mut self, number: u32) {
        let Some(served) = self.queue_pairs.get_mut(number) else {
            return;
        };
        let has_failed = served.queue_pair.state == QpState::Err;
        if has_failed != std::mem::replace(&mut served.has_failed, has_failed)
            && has_failed
            && self.tells_failures
        {
            self.failed.push(served.queue_pair.setup.qpn);
        }
        let deadline_ns = served.queue_pair.poll_timeout();
        if deadline_ns == served.deadline_ns {
            return;
        }
        let serial = served.serial;
        if let Some(before_ns) = std::mem::replace(&mut served.deadline_ns, deadline_ns) {
            self.deadlines.remove(&(before_ns, serial, number));
        }
        if let Some(deadline_ns) = deadline_ns {
            self.deadlines.insert((deadline_ns, serial, number));
        }
    }
}

fn closed() -> Rejected {
    Rejected::invalid("the queue pair is closed")
}
