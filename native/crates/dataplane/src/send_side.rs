//! How a message is queued: in one critical section, which also decides whether it leaves now.
//!
//! Errors come in the order in which Linux gives them: the peer's congestion before our own
//! account. A wait ends when the message is queued, when it never can be, or when its time is over.
//! Source: linux v6.12 net/rds/send.c (`rds_sendmsg`).

use std::sync::Arc;

use urds_path::constants::LONG_BYTES;
use urds_path::{AckMode, Extension, Limits, NO_EXTENSION, Owner, Payload, SocketAddress};

use crate::accounts::{Destination, DestinationId, HERE};
use crate::attached::Delivery;
use crate::errors::{ErrorReason, Rejected, peer_takes_less, too_long};
use crate::gathering::{Carrier, Gather};
use crate::mailbox::{Flow, MESSAGE_BYTES_PLAIN, Mailbox, Route, RunWay};
use crate::path::StreamPath;
use crate::plane::{Locked, Plane};
use crate::state::{MailboxId, PathId, State};
use crate::stream_writer::Writing;
use crate::waiting::WaitFor;

/// A message on its way into a queue.
#[derive(Debug)]
pub struct Message {
    pub mailbox: MailboxId,
    pub target: SocketAddress,
    pub payload: Payload,
    pub extension: Extension,
    /// It waited for a congested peer, and was counted for it.
    blocked: bool,
    /// It was gathered, or waited: every check is made.
    asks_all: bool,
}

impl Message {
    pub fn new(
        mailbox: MailboxId,
        target: SocketAddress,
        payload: Payload,
        extension: Extension,
    ) -> Self {
        Self {
            mailbox,
            target,
            payload,
            extension,
            blocked: false,
            asks_all: false,
        }
    }

    /// Return the same message as sent by `sendmsg`, which never counts as a request or a reply.
    #[must_use]
    pub fn gathered(mut self) -> Self {
        self.asks_all = true;
        self
    }
}

/// Result of sending a message. Two words, for it is moved with each message.
#[must_use]
pub enum Sent {
    /// It is queued, and nothing is left to do.
    Done,
    /// It is queued; give this to [`Plane::finish_send`].
    Leaves(Box<Leaving>),
    /// A transport of messages has the route: hand it the message, which it charges.
    External,
    /// No route to its peer: resolve, then send it again, at most three times.
    NoRoute(Box<Message>),
    /// There is no room and it may wait: [`Plane::send_waiting`], without the interpreter.
    Waits(Box<Message>),
}

/// The same, while the message stays where it is: to move it costs as much as to copy it.
enum Tried {
    Done,
    Leaves(Box<Leaving>),
    External,
    NoRoute,
    Waits,
}

impl Tried {
    fn with(self, message: Message) -> Sent {
        match self {
            Self::Done => Sent::Done,
            Self::Leaves(leaving) => Sent::Leaves(leaving),
            Self::External => Sent::External,
            Self::NoRoute => Sent::NoRoute(Box::new(message)),
            Self::Waits => Sent::Waits(Box::new(message)),
        }
    }
}

/// What a send left to do without the lock: a write, and a look for acknowledgements.
#[must_use]
pub struct Leaving {
    mailbox: MailboxId,
    path: Option<PathId>,
    writing: Option<Writing>,
    look: bool,
    finish_pass: bool,
    sync: bool,
    carrier: Option<Arc<dyn Carrier>>,
}

impl Leaving {
    /// Bytes that are written first; many are better written without the interpreter.
    pub fn bytes(&self) -> usize {
        self.writing.as_ref().map_or(0, Writing::bytes)
    }
}

/// How a message was queued.
#[derive(Clone, Copy)]
enum Way {
    /// On an idle path: it leaves at once.
    Alone(PathId),
    /// To a known destination: while it waits for others there is nothing to decide.
    Again(PathId, DestinationId),
    /// After every check.
    Asked(PathId),
    /// Delivered within the process.
    Loop,
    /// It waits for a transport of messages.
    Gathered,
}

/// Messages of one socket that are queued in one critical section.
#[must_use]
pub struct Burst<'a> {
    state: Locked<'a>,
    mailbox: MailboxId,
    waits: bool,
    count: usize,
    last: Result<Sent, Rejected>,
}

impl Burst<'_> {
    /// Queue a short message; return false if it is the last one, for it leaves something to do or is
    /// not queued.
    #[inline]
    pub fn add(&mut self, target: &SocketAddress, bytes: &[u8]) -> bool {
        let sent = self
            .state
            .send_copy(self.mailbox, target, bytes, self.waits);
        self.count += usize::from(matches!(sent, Ok(Sent::Done | Sent::Leaves(_))));
        if matches!(sent, Ok(Sent::Done)) {
            return true;
        }
        self.last = sent;
        false
    }

    /// Release the lock; return how many are queued, and what came of the last one.
    pub fn end(self) -> (usize, Result<Sent, Rejected>) {
        (self.count, self.last)
    }
}

/// Result of one attempt to queue a message.
enum Attempt {
    Queued(Way),
    /// It waits for a transport of messages, whose carrier is to be told.
    Pushes(Arc<dyn Carrier>),
    /// There is no room, or the peer is congested; that may change while the caller waits.
    Busy(ErrorReason),
    NoRoute,
    External,
}

impl Plane {
    /// Queue one message, or return what prevents it; one critical section, without waiting.
    ///
    /// With `wait_ns` 0, or a virtual clock, an error takes the place of `Waits`.
    ///
    /// # Errors
    /// What no waiting changes: `Closed` and the like, `TooLong`, `PeerUnreachable` once after the
    /// peer's messages were dropped; for a call that does not wait `QueueFull`, `PathFull`,
    /// `PeerCongested`.
    pub fn send_now(&self, mut message: Message, wait_ns: Option<u64>) -> Result<Sent, Rejected> {
        let waits = wait_ns != Some(0) && !self.is_virtual();
        let tried = self.lock().try_send(&mut message, waits)?;
        Ok(tried.with(message))
    }

    /// Queue one short message as `send_now` does; its bytes are copied.
    ///
    /// # Errors
    /// As `send_now`.
    #[inline]
    pub fn send_copy(
        &self,
        mailbox: MailboxId,
        target: &SocketAddress,
        bytes: &[u8],
        wait_ns: Option<u64>,
    ) -> Result<Sent, Rejected> {
        let waits = wait_ns != Some(0) && !self.is_virtual();
        self.lock().send_copy(mailbox, target, bytes, waits)
    }

    /// Begin to queue messages as `send_now` does, one after the other, in one critical section.
    ///
    /// The lock is held until [`Burst::end`].
    pub fn burst(&self, mailbox: MailboxId, wait_ns: Option<u64>) -> Burst<'_> {
        Burst {
            waits: wait_ns != Some(0) && !self.is_virtual(),
            state: self.lock(),
            mailbox,
            count: 0,
            last: Ok(Sent::Done),
        }
    }

    /// Queue a message as soon as there is room; `wait_ns` `None` waits for ever.
    ///
    /// Returns no `Waits`. Without the interpreter.
    ///
    /// # Errors
    /// As `send_now`, and `TimedOut`, `Interrupted`.
    pub fn send_waiting(
        &self,
        message: Message,
        wait_ns: Option<u64>,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Sent, Rejected> {
        let target = message.target;
        let sent = self.send_until(&mut Some(message), wait_ns, interrupted)?;
        sent.ok_or_else(|| {
            let SocketAddress { address, port } = target;
            let detail = format!("no room to send to {address} port {port}");
            ErrorReason::TimedOut.because(detail).towards(address)
        })
    }

    /// The same, but leave the message to the caller if the time is over first.
    pub(crate) fn send_until(
        &self,
        message: &mut Option<Message>,
        wait_ns: Option<u64>,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Sent>, Rejected> {
        let Some(mailbox) = message.as_ref().map(|message| message.mailbox) else {
            return Ok(None);
        };
        self.wait_reading(mailbox, WaitFor::Send, wait_ns, interrupted, |state| {
            let Some(waiting) = message else {
                return Ok(None);
            };
            let tried = state.try_send(waiting, true)?;
            if matches!(tried, Tried::Waits) {
                return Ok(None);
            }
            Ok(message.take().map(|message| tried.with(message)))
        })
    }

    /// Write what leaves now; look for acknowledgements if the account fills. No lock held.
    pub fn finish_send(&self, leaving: Leaving) {
        let Leaving {
            mailbox,
            path,
            writing,
            look,
            finish_pass,
            sync,
            carrier,
        } = leaving;
        if let Some(carrier) = carrier {
            carrier.push();
        }
        let is_full = writing.is_some_and(|writing| self.finish_write(writing));
        if finish_pass || is_full {
            self.finish_pass();
        }
        if look && let Some(path) = path {
            self.look_for_room(mailbox, path);
        }
        if sync || finish_pass || is_full {
            self.sync(mailbox); // a full path tells the sockets of its own address alone
        }
    }

    /// Look for acknowledgements: an account is a quarter full, and an eighth was added since.
    fn look_for_room(&self, mailbox: MailboxId, path: PathId) {
        self.look_for_acknowledgements(path);
        let mut state = self.lock();
        let state = &mut *state;
        let Some(peer) = state.paths.get(path).map(|record| record.peer) else {
            return;
        };
        if let Some(record) = state.mailboxes.get_mut(mailbox)
            && let Some(destination) = record.accounts.known(&peer)
        {
            let quarter_bytes = record.accounts.quarter_bytes;
            let eighth_bytes = record.settings.send_bytes_max / 8;
            let destination = record.accounts.at_mut(destination);
            destination.look_at_bytes = quarter_bytes.max(destination.queued_bytes + eighth_bytes);
        }
    }

    /// Free what the peer has: read its acknowledgements, or ask our TCP what its TCP has.
    pub fn look_for_acknowledgements(&self, path: PathId) {
        let by_peer = {
            let mut state = self.lock();
            state.driven = true; // a sender that reads them itself needs no progress thread
            let Some(record) = state.paths.get(path) else {
                return;
            };
            record.core.sender.ack_mode == AckMode::PeerAcknowledged
        };
        if by_peer {
            self.read(path);
        } else {
            self.ask_stream(path);
        }
        self.finish_pass();
        let mut state = self.lock();
        let now_ns = state.now_ns();
        if let Some(record) = state.paths.get_mut(path) {
            record.idle_since_ns = now_ns; // this look is not a pause of the sender
        }
    }
}

impl State {
    /// See `Plane::send_now`; `waits` says whether it may be told to wait.
    fn try_send(&mut self, message: &mut Message, waits: bool) -> Result<Tried, Rejected> {
        let reason = match self.attempt_send(message)? {
            Attempt::Queued(way) => {
                let leaving = self.queued(message.mailbox, way);
                return Ok(leaving.map_or(Tried::Done, Tried::Leaves));
            }
            Attempt::Pushes(carrier) => return Ok(self.pushed(message.mailbox, carrier)),
            Attempt::NoRoute => return Ok(Tried::NoRoute),
            Attempt::External => return Ok(Tried::External),
            Attempt::Busy(reason) => reason,
        };
        if !waits {
            if is_as_congested(reason) {
                self.counters.cong_send_error += 1;
            }
            return Err(self.no_room(message, reason));
        }
        self.note_blocked(message, reason);
        message.asks_all = true;
        Ok(Tried::Waits)
    }

    /// Queue a message, or return why not.
    fn attempt_send(&mut self, message: &Message) -> Result<Attempt, Rejected> {
        let Message {
            mailbox: id,
            target,
            payload,
            ..
        } = message;
        let refused_when_gone = self.closed_reason;
        let Some(mailbox) = self.mailboxes.get_mut(*id) else {
            return Err(refused_when_gone.into());
        };
        if payload.len() > mailbox.payload_bytes_max {
            return Err(too_long(
                payload.len(),
                mailbox.settings.send_bytes_max,
                self.limits.message_bytes_max,
            ));
        }
        if mailbox.closed {
            return Err(refused_when_gone.into());
        }
        mailbox.refused_at = None;
        if let Some(flow) = mailbox.flow_to(target) {
            return self.attempt_stream(message, flow.path, Some(flow.destination));
        }
        let Some(route) = mailbox.route_to(&target.address) else {
            return Ok(Attempt::NoRoute);
        };
        if let Route::External(path) = route {
            return Ok(match self.gather(path, message)? {
                Gather::Kept => Attempt::Queued(Way::Gathered),
                Gather::Pushes(carrier) => Attempt::Pushes(carrier),
                Gather::Busy(reason) => Attempt::Busy(reason),
                Gather::Outside => Attempt::External,
            });
        }
        if !mailbox.failed.is_empty() && mailbox.failed.remove(&target.address) {
            let peer = target.address;
            let detail = format!("{peer}: messages queued for it were dropped");
            return Err(ErrorReason::PeerUnreachable.because(detail).towards(peer));
        }
        match route {
            Route::Stream(path) => self.attempt_stream(message, path, None),
            Route::External(_) => Ok(Attempt::External),
            Route::Loop => Ok(self.attempt_loop(message)),
        }
    }

    /// Queue a message on a path; `known` is the account of a target that has a flow.
    fn attempt_stream(
        &mut self,
        message: &Message,
        path: PathId,
        known: Option<DestinationId>,
    ) -> Result<Attempt, Rejected> {
        let (id, target, bytes) = (message.mailbox, &message.target, message.payload.len());
        let Some(mailbox) = self.mailboxes.get_mut(id) else {
            return Ok(Attempt::NoRoute);
        };
        let Some(record) = self.paths.get_mut(path) else {
            mailbox.set_route(target.address, None);
            return Ok(Attempt::NoRoute);
        };
        let host = self.hosts.get(mailbox.host);
        if host.is_some_and(|host| host.peer_is_congested(&target.address, target.port)) {
            mailbox.note_congested(target.port);
            self.want_stream(path); // else no map would ever arrive that clears it
            return Ok(Attempt::Busy(ErrorReason::PeerCongested));
        }
        // A map that the descriptor shows is looked at: the program waits for the next one.
        let asks_all = message.asks_all || mailbox.map_news;
        let is_again = !asks_all && bytes <= MESSAGE_BYTES_PLAIN && known.is_some();
        let queued_bytes = mailbox.send_queued_bytes;
        let accounts = &mut mailbox.accounts;
        let destination =
            known.unwrap_or_else(|| accounts.destination(target.address, record.absent));
        let is_alone = is_again
            && bytes < LONG_BYTES
            && accounts.is_light(destination, bytes, queued_bytes)
            && record.sends_alone();
        if !accounts.has_room(destination, bytes, queued_bytes) {
            let reason = mailbox.refuse(destination, bytes, target.port);
            self.counters.send_queue_full += 1;
            return Ok(Attempt::Busy(reason));
        }
        let is_too_long = bytes > record.message_bytes_max && (!is_again || record.full);
        if is_too_long || (record.full && !is_alone) {
            mailbox.map_news = false;
            return self.wait_for_path(message, path, is_too_long);
        }
        if !is_again {
            mailbox.map_news = false;
            mailbox.note_flow(*target, Flow { path, destination });
        } else if !is_alone {
            mailbox.begin_run(*target, RunWay::Stream(path), destination);
        }
        if mailbox.count_queued(destination, bytes) {
            record.want_acknowledgement();
        }
        let (owner, payload) = (Owner(id.to_u64()), message.payload.clone());
        let (core, extension) = (&mut record.core, message.extension);
        core.send(owner, mailbox.port, target.port, payload, extension);
        Ok(Attempt::Queued(match is_again {
            _ if is_alone => Way::Alone(path),
            true => Way::Again(path, destination),
            false => Way::Asked(path),
        }))
    }

    /// Wait for room on a path, or for a handshake that may allow a longer message.
    #[cold]
    fn wait_for_path(
        &mut self,
        message: &Message,
        path: PathId,
        is_too_long: bool,
    ) -> Result<Attempt, Rejected> {
        if is_too_long && !self.want_agreement(path) {
            let (bytes, peer) = (message.payload.len(), message.target.address);
            let limit = self
                .paths
                .get(path)
                .map_or(0, |record| record.message_bytes_max);
            return Err(peer_takes_less(bytes, peer, limit));
        }
        let Some(record) = self.paths.get_mut(path) else {
            return Ok(Attempt::NoRoute);
        };
        if !record.room_wanted.contains(&message.mailbox) {
            record.room_wanted.push(message.mailbox);
        }
        if let Some(mailbox) = self.mailboxes.get_mut(message.mailbox)
            && !is_too_long
            && !mailbox.has_one_way()
            && let Some(destination) = mailbox.accounts.known(&message.target.address)
        {
            mailbox.accounts.at_mut(destination).path_full = true;
            let (bytes, port) = (message.payload.len(), message.target.port);
            mailbox.refuse_share(destination, bytes, port);
            return Ok(Attempt::Busy(ErrorReason::ShareFull));
        }
        Ok(Attempt::Busy(ErrorReason::PathFull))
    }

    fn attempt_loop(&mut self, message: &Message) -> Attempt {
        let Message {
            mailbox: id,
            target,
            payload,
            extension,
            ..
        } = message;
        let is_congested = self.is_congested_here(target);
        let Some(mailbox) = self.mailboxes.get_mut(*id) else {
            return Attempt::NoRoute;
        };
        mailbox.map_news = false;
        if is_congested {
            mailbox.note_congested(target.port);
            return Attempt::Busy(ErrorReason::PeerCongested);
        }
        let (bytes, queued_bytes) = (payload.len(), mailbox.send_queued_bytes);
        if !mailbox.accounts.has_room(HERE, bytes, queued_bytes) {
            let reason = mailbox.refuse(HERE, bytes, target.port);
            self.counters.send_queue_full += 1;
            return Attempt::Busy(reason);
        }
        let receiver = self.mailbox_at(&target.address, target.port);
        let delivery = Delivery::Unnoted;
        self.deliver_here(*id, target, receiver, payload.bytes(), *extension, delivery);
        Attempt::Queued(Way::Loop)
    }

    /// Queue a short message, of which the bytes are copied; see `Plane::send_copy`.
    #[inline]
    fn send_copy(
        &mut self,
        id: MailboxId,
        target: &SocketAddress,
        bytes: &[u8],
        waits: bool,
    ) -> Result<Sent, Rejected> {
        if let Some(sent) = self.queue_again(id, target, bytes) {
            return Ok(sent);
        }
        let mut message = Message::new(id, *target, Payload::copy_of(bytes), NO_EXTENSION);
        let tried = self.try_send(&mut message, waits)?;
        Ok(tried.with(message))
    }

    /// Queue a message behind others of its run, for which all checks but those of what changes were
    /// made; `None` if there is no run, it may leave at once, or has no room.
    #[inline]
    fn queue_again(&mut self, id: MailboxId, target: &SocketAddress, bytes: &[u8]) -> Option<Sent> {
        let mailbox = self.mailboxes.get_mut(id)?;
        // Compared where it lies: a copy would cost as much as the rest.
        let run = mailbox.run.as_ref().filter(|run| run.target == *target)?;
        let destination = run.destination;
        let path = match run.way {
            RunWay::Stream(path) => path,
            RunWay::External(path) => {
                return self
                    .gather_again(path, id, target.port, destination, bytes)
                    .then_some(Sent::Done);
            }
        };
        let record = self.paths.get_mut(path)?;
        let host = self.hosts.get(mailbox.host)?;
        let queued_bytes = mailbox.send_queued_bytes;
        let may_queue = (record.is_batching || record.blocked)
            && !record.full
            && !mailbox.map_news
            && record.core.sender.unsent_len() > 0
            && bytes.len() <= MESSAGE_BYTES_PLAIN.min(mailbox.payload_bytes_max)
            && mailbox
                .accounts
                .has_room(destination, bytes.len(), queued_bytes)
            && !host.peer_is_congested(&target.address, target.port);
        if !may_queue {
            return None;
        }
        mailbox.refused_at = None;
        if mailbox.count_queued(destination, bytes.len()) {
            record.want_acknowledgement();
        }
        let owner = Owner(id.to_u64());
        record
            .core
            .send_copy(owner, mailbox.port, target.port, bytes);
        let is_shown = mailbox.descriptor.is_some() && mailbox.is_half_full();
        if !is_shown && record.leaves_later(mailbox.accounts.at(destination), &self.limits) {
            return Some(Sent::Done);
        }
        let leaving = self.queued(id, Way::Again(path, destination));
        Some(leaving.map_or(Sent::Done, Sent::Leaves))
    }

    /// Decide, after a message was queued, what is left to do without the lock.
    fn queued(&mut self, id: MailboxId, way: Way) -> Option<Box<Leaving>> {
        let mailbox = self.mailboxes.get(id)?;
        let has_descriptor = mailbox.descriptor.is_some();
        let is_shown = has_descriptor && mailbox.is_half_full();
        let mut leaving = Leaving {
            mailbox: id,
            path: None,
            writing: None,
            look: false,
            finish_pass: false,
            sync: is_shown,
            carrier: None,
        };
        match way {
            Way::Alone(path) => leaving.writing = self.begin_alone(path),
            Way::Again(path, destination) => {
                let record = self.paths.get(path)?;
                if !record.leaves_later(mailbox.accounts.at(destination), &self.limits) {
                    self.push(path, &mut leaving);
                }
            }
            Way::Asked(path) => {
                leaving.sync = has_descriptor;
                self.push(path, &mut leaving);
            }
            Way::Loop | Way::Gathered => {
                leaving.sync = has_descriptor;
                leaving.finish_pass = !self.touched.is_empty();
            }
        }
        if leaving.writing.is_none() && !leaving.look && !leaving.finish_pass && !leaving.sync {
            return None;
        }
        Some(Box::new(leaving))
    }

    /// Have the carrier of a gathered message told, without the lock.
    fn pushed(&mut self, mailbox: MailboxId, carrier: Arc<dyn Carrier>) -> Tried {
        let record = self.mailboxes.get(mailbox);
        Tried::Leaves(Box::new(Leaving {
            mailbox,
            path: None,
            writing: None,
            look: false,
            finish_pass: !self.touched.is_empty(),
            sync: record.is_some_and(|record| record.descriptor.is_some()),
            carrier: Some(carrier),
        }))
    }

    /// Decide whether what is queued leaves now, and whether to look for room after it.
    fn push(&mut self, path: PathId, leaving: &mut Leaving) {
        let Some(mailbox) = self.mailboxes.get_mut(leaving.mailbox) else {
            return;
        };
        let peer = self.paths.get(path).map(|record| record.peer);
        let destination = peer.and_then(|peer| mailbox.accounts.known(&peer));
        leaving.look = destination.is_some_and(|id| {
            let destination = mailbox.accounts.at(id);
            destination.queued_bytes >= destination.look_at_bytes
        });
        leaving.path = Some(path);
        let burst_bytes = mailbox.burst_bytes;
        if self.should_flush(path, burst_bytes) {
            leaving.writing = self.begin_write(path, false);
        }
        leaving.finish_pass = self.paths.get(path).is_some_and(|record| record.full);
    }

    /// Count once for each message that it waited for a congested peer.
    fn note_blocked(&mut self, message: &mut Message, reason: ErrorReason) {
        if is_as_congested(reason) && !message.blocked {
            message.blocked = true;
            self.counters.cong_send_blocked += 1;
        }
    }

    fn no_room(&mut self, message: &Message, reason: ErrorReason) -> Rejected {
        self.no_room_for(message.mailbox, message.target, reason)
    }

    /// Return the error of a send that does not wait for room here or at the peer.
    pub(crate) fn no_room_for(
        &mut self,
        mailbox: MailboxId,
        target: SocketAddress,
        reason: ErrorReason,
    ) -> Rejected {
        let SocketAddress { address, port } = target;
        let Some(mailbox) = self.mailboxes.get_mut(mailbox) else {
            return reason.into();
        };
        let because = |detail: String| reason.because(detail).towards(address);
        if reason == ErrorReason::PeerCongested {
            return because(format!("{address} port {port} is full"));
        }
        let (queued, bound) = (mailbox.send_queued_bytes, mailbox.settings.send_bytes_max);
        if reason == ErrorReason::ShareFull {
            let known = mailbox.accounts.known(&address);
            let held = known.map_or(0, |id| mailbox.accounts.at(id).queued_bytes);
            let detail =
                format!("{held} bytes are queued to {address}, one of several that share {bound}");
            return because(detail).above(bound);
        }
        let refused = because(format!("{queued} of {bound} bytes are queued"));
        if reason == ErrorReason::PathFull {
            return refused;
        }
        refused.above(bound)
    }
}

impl StreamPath {
    /// Return whether what is queued waits for others, or for a stream that takes nothing, so that
    /// nothing is to be decided now.
    #[inline]
    fn leaves_later(&self, destination: &Destination, limits: &Limits) -> bool {
        let sender = &self.core.sender;
        let is_batch = self.is_batching && sender.pending_bytes < self.flush_bytes;
        let waits_for_stream = || {
            self.blocked
                && sender.pending_bytes >= limits.flush_bytes
                && !sender.is_long()
                && sender.message_count() < limits.path_messages_max
                && destination.queued_bytes < destination.look_at_bytes
        };
        is_batch || waits_for_stream()
    }

    /// Have the last message request an acknowledgement: its sender may wait for it, to have room.
    fn want_acknowledgement(&mut self) {
        self.core.sender.acknowledgement_wanted = true;
    }
}

impl Mailbox {
    /// Count a message that is queued; return whether it requests an acknowledgement.
    pub(crate) fn count_queued(&mut self, destination: DestinationId, bytes: usize) -> bool {
        self.accounts
            .admit(destination, bytes, self.send_queued_bytes);
        self.send_queued_bytes += bytes;
        self.accounts.at_mut(destination).queued_bytes += bytes;
        self.is_half_full()
            && self
                .accounts
                .note_queued(destination, self.send_queued_bytes)
    }

    /// Return the error for a destination without room, and note it unless it is the only one.
    #[cold]
    pub(crate) fn refuse(
        &mut self,
        destination: DestinationId,
        bytes: usize,
        port: u16,
    ) -> ErrorReason {
        self.map_news = false;
        if self.accounts.is_alone(destination, self.send_queued_bytes) {
            return ErrorReason::QueueFull;
        }
        self.refuse_share(destination, bytes, port);
        ErrorReason::ShareFull
    }

    /// Note that a destination has no room, to notify its senders once it has.
    pub(crate) fn refuse_share(&mut self, destination: DestinationId, bytes: usize, port: u16) {
        self.map_news = false;
        self.refused_at = Some(destination);
        self.accounts
            .refuse(destination, bytes, Self::group_of(port));
    }

    /// Note that a send met a congested port: the next map concerns this socket.
    pub(crate) fn note_congested(&mut self, port: u16) {
        self.map_news = false;
        self.saw_congestion = true;
        if self.settings.monitor {
            self.wait_groups |= Self::group_of(port);
        }
    }
}

/// Return whether an error reason counts as the peer's congestion.
pub(crate) fn is_as_congested(reason: ErrorReason) -> bool {
    matches!(reason, ErrorReason::PeerCongested | ErrorReason::ShareFull)
}
