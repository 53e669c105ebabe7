//! Paths that a transport of messages has: what such a path shares with the paths over streams.
//!
//! The transport keeps the queue, the numbers and the connection, behind a lock of its own, which
//! comes before the plane's. Of the plane it needs little per message: a place in the sender's
//! account ([`Plane::charge`]), the end of that ([`Plane::refund`]), and the
//! receiver's queue ([`Plane::deliver`]). None of the calls needs the interpreter, waits,
//! or calls the transport; what the transport must do later leaves as an `Event`.
//!
//! A send whose route is such a path leaves the plane as `Sent::External`. The caller hands the
//! message to the transport, which charges it and queues it in one section of its own lock: so a
//! mailbox that is closed first is not charged, and one that is closed then has its messages
//! cancelled.

use std::collections::HashMap;
use std::sync::Arc;

use urds_path::{Address, ArrivingPayload, Extension, NO_EXTENSION, SocketAddress};

use crate::clock::wall_ns;
use crate::errors::{ErrorReason, Rejected, peer_takes_less, too_long};
use crate::events::Event;
use crate::gathering::Gathering;
use crate::host::MapBytes;
use crate::mailbox::{Mailbox, Route};
use crate::plane::Plane;
use crate::quick_hash::QuickHash;
use crate::send_side::is_as_congested;
use crate::state::{HostId, MailboxId, State};
use crate::table::Id;
use crate::waiting::WaitFor;

pub type ExternalId = Id<ExternalPath>;

/// What one mailbox has on a path: charged and not refunded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub messages: usize,
    pub bytes: usize,
}

/// The plane's part of one path.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
pub struct ExternalPath {
    pub host: HostId,
    pub local: Address,
    pub peer: Address,
    /// Type of service of its connection.
    pub tos: u8,
    /// The longest message that it accepts.
    pub message_bytes_max: usize,
    /// It is at its limit of messages: nothing more may be queued.
    pub full: bool,
    pub connected: bool,
    /// The local map has changed, and the carrier has not taken it.
    pub(crate) map_due: bool,
    /// Messages have long waited for a connection.
    pub absent: bool,
    pub missing_at_ns: Option<u64>,
    /// Mailboxes whose senders wait for `full` to end.
    room_wanted: Vec<MailboxId>,
    held: HashMap<MailboxId, Held, QuickHash>,
    pub(crate) gathering: Gathering,
}

/// Messages of one path that are delivered in one section of the lock.
#[derive(Debug)]
pub struct ArrivalRun {
    /// Port and mailbox of the last one: those of the next one as a rule.
    last: Option<(u16, MailboxId)>,
    /// Queued there and not noted.
    messages: usize,
    bytes: usize,
    /// No mailbox before is over its hard bound.
    goes_on: bool,
}

impl Default for ArrivalRun {
    fn default() -> Self {
        Self {
            last: None,
            messages: 0,
            bytes: 0,
            goes_on: true,
        }
    }
}

/// What became of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// The message is charged: queue it. With `asks` its sender may wait for the acknowledgement.
    Queued { asks: bool },
    /// There is no room, here or at the peer; nothing is charged and the sender waits.
    Busy(ErrorReason),
    /// The path is not the mailbox's route to the peer any more: resolve again.
    NoRoute,
}

// What a transport of messages calls. Any thread may, holding locks of the transport and none of the
// plane. After a number of calls `Plane::finish_pass` compares descriptors and congestion.

impl Plane {
    /// Charge a message of a mailbox to its peer's account, with every check of a send.
    ///
    /// # Errors
    /// What no waiting changes: `Closed` and the like, `TooLong`, `PeerUnreachable` once after the
    /// peer's messages were dropped. Unless `may_wait`: `PeerCongested`, `QueueFull`, `ShareFull`,
    /// `PathFull`.
    pub fn charge(
        &self,
        path: ExternalId,
        mailbox: MailboxId,
        port: u16,
        bytes: usize,
        may_wait: bool,
    ) -> Result<Charge, Rejected> {
        let may_wait = may_wait && !self.is_virtual();
        self.lock().charge(path, mailbox, port, bytes, may_wait)
    }

    /// Give messages of a mailbox back to its account: they have left the path, one way or another.
    ///
    /// The mailbox may be closed.
    pub fn refund(&self, path: ExternalId, mailbox: MailboxId, messages: usize, bytes: usize) {
        self.lock().refund(path, mailbox, messages, bytes);
    }

    /// Queue a message of the peer in its mailbox; return whether more may come.
    ///
    /// It is taken also with false: then its mailbox is over its hard bound, and the transport
    /// receives no more on this path until `Event::Resumed`.
    pub fn deliver(
        &self,
        path: ExternalId,
        source_port: u16,
        target_port: u16,
        payload: ArrivingPayload<'_>,
        extension: Extension,
    ) -> bool {
        let mut state = self.lock();
        state.deliver_external(path, source_port, target_port, payload, extension)
    }

    /// Put the peer's congestion map in force.
    pub fn take_peer_map(&self, path: ExternalId, bytes: &MapBytes) {
        let mut state = self.lock();
        let known = state.externals.get(path).map(|one| (one.host, one.peer));
        if let Some((host, peer)) = known {
            state.put_peer_map(host, peer, bytes, true);
        }
    }

    /// Return the local congestion map as it is now.
    pub fn local_map(&self, path: ExternalId) -> MapBytes {
        let state = self.lock();
        let host = state.externals.get(path).map(|one| one.host);
        let host = host.and_then(|host| state.hosts.get(host));
        host.map_or([0; 8192], |host| *host.congested.emit())
    }

    /// Note that the path reached its limit of messages, or left it: then its senders continue.
    pub fn set_full(&self, path: ExternalId, full: bool) {
        self.lock().set_external_full(path, full);
    }

    /// Note that messages wait for a connection from now on, or that there is one.
    pub fn set_connected(&self, path: ExternalId, connected: bool) {
        let mut state = self.lock();
        if connected {
            state.note_external_connected(path);
        } else {
            state.note_external_wanted(path);
        }
    }

    /// Make the plane's part of a path that a transport of messages has.
    pub fn external(
        &self,
        local: Address,
        peer: Address,
        tos: u8,
        message_bytes_max: usize,
    ) -> ExternalId {
        let mut state = self.lock();
        let host = state.host(local);
        let id = state.externals.insert(ExternalPath {
            host,
            local,
            peer,
            tos,
            message_bytes_max,
            full: false,
            map_due: false,
            connected: false,
            absent: false,
            missing_at_ns: None,
            room_wanted: Vec::new(),
            held: HashMap::default(),
            gathering: Gathering::default(),
        });
        if let Some(host) = state.hosts.get_mut(host) {
            host.externals.push(id);
        }
        id
    }

    /// Wait until a charge that found no room may find some; return false when the time is over.
    ///
    /// `is_first`: the message has not waited before, so it is counted. Without the interpreter.
    ///
    /// # Errors
    /// As `charge` and `Interrupted`.
    pub fn wait_for_charge(
        &self,
        charge: (ExternalId, MailboxId, u16, usize),
        is_first: bool,
        wait_ns: Option<u64>,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Rejected> {
        let (path, mailbox, port, bytes) = charge;
        let mut is_counted = !is_first;
        let room = self.wait_reading(mailbox, WaitFor::Send, wait_ns, interrupted, |state| {
            let Charge::Busy(reason) = state.look_for_room(path, mailbox, port, bytes)? else {
                return Ok(Some(()));
            };
            if is_as_congested(reason) && !is_counted {
                is_counted = true;
                state.counters.cong_send_blocked += 1;
            }
            Ok(None)
        })?;
        Ok(room.is_some())
    }

    /// Return whether the peer's map in force marks a port as congested.
    pub fn external_peer_is_congested(&self, path: ExternalId, port: u16) -> bool {
        let state = self.lock();
        let Some(path) = state.externals.get(path) else {
            return false;
        };
        let host = state.hosts.get(path.host);
        host.is_some_and(|host| host.peer_is_congested(&path.peer, port))
    }

    /// Return what a mailbox has on a path.
    pub fn external_held(&self, path: ExternalId, mailbox: MailboxId) -> Held {
        let state = self.lock();
        let held = state.externals.get(path);
        let held = held.and_then(|path| path.held.get(&mailbox));
        held.copied().unwrap_or_default()
    }

    /// Note that messages to the peer were dropped: the mailbox's next send to it fails, once.
    pub fn fail_external(&self, path: ExternalId, mailbox: MailboxId) {
        let mut state = self.lock();
        let peer = state.externals.get(path).map(|path| path.peer);
        if let Some(peer) = peer
            && let Some(record) = state.mailboxes.get_mut(mailbox)
        {
            record.fail(peer);
        }
    }

    /// Forget a path and every route over it; the transport has dropped its queue.
    pub fn close_external(&self, path: ExternalId) {
        self.lock().close_external(path);
        self.finish_pass();
    }
}

impl ExternalPath {
    /// Note that a message of a mailbox is on the path.
    pub(crate) fn hold(&mut self, mailbox: MailboxId, bytes: usize) {
        let held = self.held.entry(mailbox).or_default();
        held.messages += 1;
        held.bytes += bytes;
    }

    fn messages(&self) -> usize {
        self.held.values().map(|held| held.messages).sum()
    }
}

impl State {
    pub(crate) fn charge(
        &mut self,
        path: ExternalId,
        mailbox: MailboxId,
        port: u16,
        bytes: usize,
        may_wait: bool,
    ) -> Result<Charge, Rejected> {
        let looked = self.look(path, mailbox, port, bytes)?;
        if let Charge::Busy(reason) = looked {
            if may_wait {
                return Ok(looked); // the wait looks again, and counts
            }
            self.count_refused(reason);
            if is_as_congested(reason) {
                self.counters.cong_send_error += 1;
            }
            let Some(peer) = self.externals.get(path).map(|path| path.peer) else {
                return Ok(Charge::NoRoute);
            };
            return Err(self.no_room_for(mailbox, SocketAddress::new(peer, port), reason));
        }
        let (Some(external), Some(record)) = (
            self.externals.get_mut(path),
            self.mailboxes.get_mut(mailbox),
        ) else {
            return Ok(Charge::NoRoute);
        };
        let Charge::Queued { .. } = looked else {
            return Ok(looked);
        };
        let destination = record.accounts.destination(external.peer, external.absent);
        let asks = record.count_queued(destination, bytes);
        external.hold(mailbox, bytes);
        if record.descriptor.is_some() && record.is_half_full() {
            self.touched.insert(mailbox);
        }
        Ok(Charge::Queued { asks })
    }

    /// Look for room as a waiting send does, which counts what it meets.
    fn look_for_room(
        &mut self,
        path: ExternalId,
        mailbox: MailboxId,
        port: u16,
        bytes: usize,
    ) -> Result<Charge, Rejected> {
        let looked = self.look(path, mailbox, port, bytes)?;
        if let Charge::Busy(reason) = looked {
            self.count_refused(reason);
        }
        Ok(looked)
    }

    pub(crate) fn count_refused(&mut self, reason: ErrorReason) {
        if reason == ErrorReason::QueueFull || reason == ErrorReason::ShareFull {
            self.counters.send_queue_full += 1;
        }
    }

    /// Make the checks of a send in Linux's order: the peer's congestion before our own account.
    fn look(
        &mut self,
        path: ExternalId,
        id: MailboxId,
        port: u16,
        bytes: usize,
    ) -> Result<Charge, Rejected> {
        let closed_reason = self.closed_reason;
        let Some(mailbox) = self.mailboxes.get_mut(id).filter(|mailbox| !mailbox.closed) else {
            return Err(closed_reason.into());
        };
        if bytes > mailbox.payload_bytes_max {
            let of_socket = mailbox.settings.send_bytes_max;
            return Err(too_long(bytes, of_socket, self.limits.message_bytes_max));
        }
        mailbox.refused_at = None;
        let Some(external) = self.externals.get_mut(path) else {
            return Ok(Charge::NoRoute);
        };
        let peer = external.peer;
        if mailbox.route_to(&peer) != Some(Route::External(path)) {
            return Ok(Charge::NoRoute);
        }
        if !mailbox.failed.is_empty() && mailbox.failed.remove(&peer) {
            let detail = format!("{peer}: messages queued for it were dropped");
            return Err(ErrorReason::PeerUnreachable.because(detail).towards(peer));
        }
        if std::mem::take(&mut mailbox.map_news) && mailbox.descriptor.is_some() {
            self.touched.insert(id); // it was readable for that alone
        }
        let host = self.hosts.get(external.host);
        if host.is_some_and(|host| host.peer_is_congested(&peer, port)) {
            mailbox.note_congested(port);
            return Ok(Charge::Busy(ErrorReason::PeerCongested));
        }
        let destination = mailbox.accounts.destination(peer, external.absent);
        let queued_bytes = mailbox.send_queued_bytes;
        if !mailbox.accounts.has_room(destination, bytes, queued_bytes) {
            return Ok(Charge::Busy(mailbox.refuse(destination, bytes, port)));
        }
        if bytes > external.message_bytes_max {
            return Err(peer_takes_less(bytes, peer, external.message_bytes_max));
        }
        if external.full {
            if !external.room_wanted.contains(&id) {
                external.room_wanted.push(id);
            }
            if mailbox.has_one_way() {
                return Ok(Charge::Busy(ErrorReason::PathFull));
            }
            mailbox.accounts.at_mut(destination).path_full = true;
            mailbox.refuse_share(destination, bytes, port);
            return Ok(Charge::Busy(ErrorReason::ShareFull));
        }
        Ok(Charge::Queued { asks: false })
    }

    pub(crate) fn refund(
        &mut self,
        path: ExternalId,
        id: MailboxId,
        messages: usize,
        bytes: usize,
    ) {
        let Some(external) = self.externals.get_mut(path) else {
            return;
        };
        if let Some(held) = external.held.get_mut(&id) {
            held.messages = held.messages.saturating_sub(messages);
            held.bytes = held.bytes.saturating_sub(bytes);
            if held.messages == 0 {
                external.held.remove(&id);
            }
        }
        let peer = external.peer;
        self.give_back_bytes(id, bytes, &peer);
        self.note_freed(id);
    }

    /// Have the local map of an address sent over the paths of transports: by their carriers, else by
    /// the transport itself.
    pub(crate) fn show_map_outside(&mut self, host: HostId, local: Address) {
        let paths = self.hosts.get(host).map(|host| host.externals.clone());
        let mut is_reported = false;
        for path in paths.unwrap_or_default() {
            let Some(external) = self.externals.get_mut(path) else {
                continue;
            };
            let Some(carrier) = &external.gathering.carrier else {
                is_reported = true;
                continue;
            };
            external.map_due = true;
            // All paths of a device have the same.
            if !self
                .maps_due
                .iter()
                .any(|known| Arc::ptr_eq(known, carrier))
            {
                self.maps_due.push(Arc::clone(carrier));
            }
        }
        if is_reported {
            self.emit(Event::LocalMapChanged { local });
        }
    }

    /// Queue a message of the peer in its mailbox; see `Plane::deliver`.
    pub fn deliver_external(
        &mut self,
        path: ExternalId,
        source_port: u16,
        target_port: u16,
        payload: ArrivingPayload<'_>,
        extension: Extension,
    ) -> bool {
        let mut run = ArrivalRun::default();
        self.deliver_next(
            path,
            &mut run,
            (source_port, target_port),
            payload,
            extension,
        );
        self.end_run(path, &mut run)
    }

    /// Queue one of several messages of the peer; `end_run` follows in the same section of the lock.
    pub fn deliver_next(
        &mut self,
        path: ExternalId,
        run: &mut ArrivalRun,
        (source_port, target_port): (u16, u16),
        payload: ArrivingPayload<'_>,
        extension: Extension,
    ) {
        let Some(external) = self.externals.get(path) else {
            return;
        };
        let (source, tos) = (SocketAddress::new(external.peer, source_port), external.tos);
        let id = match run.last {
            Some((port, id)) if port == target_port => id,
            _ => {
                let host = self.hosts.get(external.host);
                let Some(id) = host.and_then(|host| host.inboxes.get(&target_port).copied()) else {
                    self.counters.recv_drop_no_sock += 1;
                    return;
                };
                let goes_on = self.end_run(path, run);
                *run = ArrivalRun {
                    last: Some((target_port, id)),
                    goes_on,
                    ..ArrivalRun::default()
                };
                id
            }
        };
        let Some(mailbox) = self.mailboxes.get_mut(id) else {
            return;
        };
        let (wall_ns, now_ns) = if mailbox.detailed || extension != NO_EXTENSION {
            (wall_ns(), self.clock.now_ns())
        } else {
            (0, 0)
        };
        let before = mailbox.inbox.receive_queued_bytes;
        let inbox = &mut mailbox.inbox;
        inbox.push(source, extension, payload, wall_ns, now_ns);
        if tos != 0 {
            inbox.note_tos(tos);
        }
        run.bytes += inbox.receive_queued_bytes - before;
        run.messages += 1;
    }

    /// Note what was queued, with one look at a mailbox for neighbouring messages; return false if the
    /// path is to pause, as `Plane::deliver` does.
    pub fn end_run(&mut self, path: ExternalId, run: &mut ArrivalRun) -> bool {
        let ended = std::mem::take(run);
        let Some((_, id)) = ended.last else {
            return ended.goes_on;
        };
        self.counters.recv_queued += ended.messages as u64;
        self.counters.recv_bytes_added_to_sock += ended.bytes as u64;
        self.note_arrival(id, ended.messages);
        let mailbox = self.mailboxes.get(id);
        if !mailbox.is_some_and(|one| one.inbox.may_be_too_full()) || !self.is_over_hard_bound(id) {
            return ended.goes_on;
        }
        if let Some(mailbox) = self.mailboxes.get_mut(id)
            && !mailbox.pausing_externals.contains(&path)
        {
            mailbox.pausing_externals.push(path);
            mailbox.special = true;
            self.counters.recv_paused += 1;
        }
        false
    }

    fn set_external_full(&mut self, path: ExternalId, full: bool) {
        let Some(external) = self.externals.get_mut(path) else {
            return;
        };
        if external.full != full {
            external.full = full;
            self.full_externals = if full {
                self.full_externals + 1
            } else {
                self.full_externals.saturating_sub(1)
            };
            self.touch_shown(path);
        }
        if !full {
            self.tell_external_room(path);
        }
    }

    /// Have the descriptors of a path's address compared with their mailboxes.
    fn touch_shown(&mut self, path: ExternalId) {
        let host = self.externals.get(path).map(|path| path.host);
        let Some(host) = host.and_then(|host| self.hosts.get(host)) else {
            return;
        };
        for &mailbox in host.inboxes.values() {
            let record = self.mailboxes.get(mailbox);
            if record.is_some_and(|record| record.descriptor.is_some()) {
                self.touched.insert(mailbox);
            }
        }
    }

    /// Notify the senders that wait for a path at its limit.
    fn tell_external_room(&mut self, path: ExternalId) {
        let Some(external) = self.externals.get_mut(path) else {
            return;
        };
        let (peer, wanted) = (external.peer, std::mem::take(&mut external.room_wanted));
        self.tell_waiting(&wanted, &peer);
    }

    pub(crate) fn is_held_up_outside(&self, mailbox: &Mailbox) -> bool {
        mailbox.routes.values().any(|route| match route {
            Route::External(path) => self.externals.get(*path).is_some_and(|path| path.full),
            Route::Stream(_) | Route::Loop => false,
        })
    }

    /// Return the paths on which a mailbox, which may be closed, has messages.
    pub(crate) fn external_holders(&self, host: HostId, mailbox: MailboxId) -> Vec<ExternalId> {
        let paths = self.hosts.get(host).map(|host| host.externals.iter());
        let holds = |path: &ExternalId| {
            let path = self.externals.get(*path);
            path.is_some_and(|path| path.held.contains_key(&mailbox))
        };
        paths.into_iter().flatten().copied().filter(holds).collect()
    }

    /// Return how many messages a mailbox has on the paths of its address.
    pub(crate) fn external_messages(&self, host: HostId, mailbox: MailboxId) -> usize {
        let paths = self.external_holders(host, mailbox).into_iter();
        paths
            .filter_map(|path| self.externals.get(path)?.held.get(&mailbox))
            .map(|held| held.messages)
            .sum()
    }

    pub(crate) fn all_external_messages(&self) -> usize {
        self.externals.iter().map(|(_, path)| path.messages()).sum()
    }

    fn close_external(&mut self, path: ExternalId) {
        self.set_external_full(path, false);
        self.tell_external_room(path);
        let Some(external) = self.externals.remove(path) else {
            return;
        };
        if let Some(host) = self.hosts.get_mut(external.host) {
            host.externals.retain(|&other| other != path);
        }
        for mailbox in self.mailboxes.ids() {
            if let Some(record) = self.mailboxes.get_mut(mailbox) {
                record.forget_routes_over(path);
            }
        }
        self.forget_peer_map(external.host, &external.peer);
    }
}

impl Mailbox {
    /// Forget the routes over a path, so that the next send resolves again.
    fn forget_routes_over(&mut self, path: ExternalId) {
        self.pausing_externals.retain(|&other| other != path);
        if self
            .routes
            .values()
            .any(|route| *route == Route::External(path))
        {
            self.forget_flows();
            self.routes
                .retain(|_, route| *route != Route::External(path));
        }
    }
}
