//! How a message is taken: in one critical section, straight into the caller's object.

use std::sync::Arc;

use urds_channel::path_journal::PathJournal;
use urds_path::{
    Address, Arriving, ArrivingPayload, Extension, MessageSink, NO_EXTENSION, SocketAddress,
};

use crate::attached::{Delivery, Details};
use crate::clock::wall_ns;
use crate::errors::{ErrorReason, Rejected};
use crate::events::Event;
use crate::gathering::Carrier;
use crate::host::{Inboxes, MapBytes};
use crate::mailbox::{ALL_GROUPS, Mailbox};
use crate::plane::Plane;
use crate::state::{HostId, MailboxId, PathId, State};
use crate::table::Table;
use crate::waiting::WaitFor;

/// A message with all of its details.
#[derive(Debug)]
pub struct Received<'a> {
    /// In memory of its own if it was long and is taken, else in the queue's.
    pub payload: ArrivingPayload<'a>,
    pub source: SocketAddress,
    /// All zero if it has none.
    pub extension: Extension,
    /// The wall clock at its queueing, in nanoseconds; 0 unless timestamps are wanted.
    pub time_ns: u64,
    /// How long it was queued, in nanoseconds; `None` if no times were taken.
    pub queued_ns: Option<u64>,
}

impl<'a> Received<'a> {
    /// Return a short message without other details.
    fn plain(source: SocketAddress, payload: &'a [u8]) -> Self {
        Self {
            payload: ArrivingPayload::Borrowed(payload),
            source,
            extension: NO_EXTENSION,
            time_ns: 0,
            queued_ns: None,
        }
    }
}

/// The next thing in a mailbox.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken<T> {
    Message(T),
    /// Operations have ended; [`Plane::take_notices`] takes their notices.
    Operations,
    /// Port groups that a congestion map update concerned.
    Congestion(u64),
    Nothing,
}

impl Plane {
    /// Take what is next, or peek at it; never waits.
    ///
    /// `make` turns a message into the caller's, under the plane's lock: it may allocate, but not
    /// run anything that may call back in here. A congestion notice goes first, and a peek takes it
    /// as well.
    ///
    /// # Errors
    /// `Closed` and the like.
    pub fn take<T>(
        &self,
        mailbox: MailboxId,
        peek: bool,
        make: impl FnOnce(Received<'_>) -> T,
    ) -> Result<Taken<T>, Rejected> {
        self.taking(mailbox, |state| state.take_next(mailbox, peek, make))
    }

    /// Take messages that are queued, at most `count_max`, up to the first notice; never waits.
    ///
    /// `make` as in `take`.
    ///
    /// # Errors
    /// `Closed` and the like.
    pub fn take_burst(
        &self,
        mailbox: MailboxId,
        count_max: usize,
        mut make: impl FnMut(Received<'_>),
    ) -> Result<(), Rejected> {
        self.taking(mailbox, |state| {
            state.take_run(mailbox, count_max, &mut make)
        })
    }

    /// Do what takes messages in one critical section, and what that leaves to do after it.
    fn taking<T>(
        &self,
        mailbox: MailboxId,
        work: impl FnOnce(&mut State) -> Result<T, Rejected>,
    ) -> Result<T, Rejected> {
        let (taken, finish_pass, sync) = {
            let mut state = self.lock();
            state.driven = true;
            let taken = work(&mut state)?;
            let record = state.mailboxes.get(mailbox);
            let sync = record.is_some_and(|record| record.descriptor.is_some());
            (taken, !state.touched.is_empty(), sync)
        };
        if finish_pass {
            self.finish_pass();
        }
        if sync {
            self.sync(mailbox); // a taken message no longer makes it readable
        }
        Ok(taken)
    }

    /// Wait until there is something to take; return whether there is.
    ///
    /// `wait_ns` `None` waits for ever, 0 makes one pass. Another thread may take it first: then
    /// wait again. Without the interpreter.
    ///
    /// # Errors
    /// `Closed` and the like, `Interrupted`.
    pub fn wait_arrival(
        &self,
        mailbox: MailboxId,
        wait_ns: Option<u64>,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Rejected> {
        let came = self.wait(mailbox, WaitFor::Arrival, wait_ns, interrupted, |state| {
            let has_something = state.open_mailbox(mailbox)?.has_something();
            Ok(has_something.then_some(()))
        })?;
        if came.is_none() {
            self.give_up_receiving(mailbox);
        }
        Ok(came.is_some())
    }

    /// Leave with nothing; a pending report of a new map is cleared.
    pub fn give_up_receiving(&self, mailbox: MailboxId) {
        {
            let mut state = self.lock();
            state.driven = true;
            let Some(record) = state.mailboxes.get_mut(mailbox) else {
                return;
            };
            record.map_news = false;
        }
        self.finish_pass();
        self.sync(mailbox);
    }

    /// Leave what came to the next waiter: the caller was told of it, and does not take it.
    pub fn pass_on_arrival(&self, mailbox: MailboxId) {
        let mut state = self.lock();
        let state = &mut *state;
        if let Some(record) = state.mailboxes.get_mut(mailbox)
            && record.has_something()
        {
            record.receive_waiters.tell(1, &mut state.wait_queue);
        }
    }

    /// Take what is next, waiting at most `wait_ns`; `Nothing` when the time is over.
    ///
    /// # Errors
    /// As `take` and `wait_arrival`.
    pub fn receive<T>(
        &self,
        mailbox: MailboxId,
        wait_ns: Option<u64>,
        peek: bool,
        interrupted: &mut dyn FnMut() -> bool,
        mut make: impl FnMut(Received<'_>) -> T,
    ) -> Result<Taken<T>, Rejected> {
        let deadline_ns = wait_ns.map(|wait_ns| self.now_ns().saturating_add(wait_ns));
        loop {
            let taken = self.take(mailbox, peek, &mut make)?;
            if !matches!(taken, Taken::Nothing) {
                return Ok(taken);
            }
            let left_ns = deadline_ns.map(|at_ns| at_ns.saturating_sub(self.now_ns()));
            if !self.wait_arrival(mailbox, left_ns, interrupted)? {
                return Ok(Taken::Nothing);
            }
        }
    }
}

impl Mailbox {
    /// Return whether there is a message or a notice.
    pub fn has_something(&self) -> bool {
        !self.inbox.is_empty() || self.has_notice()
    }
}

impl State {
    /// Return a mailbox that is open.
    ///
    /// # Errors
    /// The error reason of a closed mailbox.
    pub(crate) fn open_mailbox(&mut self, id: MailboxId) -> Result<&mut Mailbox, Rejected> {
        let reason: ErrorReason = self.closed_reason;
        let mailbox = self.mailboxes.get_mut(id).filter(|mailbox| !mailbox.closed);
        mailbox.ok_or_else(|| reason.into())
    }

    fn take_next<T>(
        &mut self,
        id: MailboxId,
        peek: bool,
        make: impl FnOnce(Received<'_>) -> T,
    ) -> Result<Taken<T>, Rejected> {
        let (reason, clock) = (self.closed_reason, &self.clock);
        let mailbox = self.mailboxes.get_mut(id).filter(|mailbox| !mailbox.closed);
        let mailbox = mailbox.ok_or(reason)?;
        if !mailbox.notices.is_empty() {
            return Ok(Taken::Operations);
        }
        let groups = std::mem::take(&mut mailbox.notice_groups);
        if groups != 0 {
            return Ok(Taken::Congestion(groups));
        }
        let queued_ns =
            |arrived_ns| (arrived_ns != 0).then(|| clock.now_ns().saturating_sub(arrived_ns));
        let (mut make, mut handed) = (Some(make), None);
        if !peek {
            mailbox.inbox.take_plain(1, |source, bytes| {
                handed = make.take().map(|make| make(Received::plain(source, bytes)));
            });
        }
        if let Some(make) = make {
            handed = mailbox.hand_over(peek, queued_ns, make);
        }
        let Some(handed) = handed else {
            return Ok(Taken::Nothing);
        };
        if peek {
            // This thread was notified of a message and leaves it: another waiter may want it.
            self.counters.recv_delivered += 1; // Linux counts peeks as well
            mailbox.receive_waiters.tell(1, &mut self.wait_queue);
        } else if mailbox.special
            || mailbox.inbox.receive_queued_bytes < mailbox.inbox.clear_below_bytes
        {
            self.touched.insert(id);
        }
        Ok(Taken::Message(handed))
    }
}

impl State {
    /// See `Plane::take_burst`: what `take_next` does, without a look at the mailbox for each message.
    fn take_run(
        &mut self,
        id: MailboxId,
        count_max: usize,
        make: &mut impl FnMut(Received<'_>),
    ) -> Result<(), Rejected> {
        let (reason, clock) = (self.closed_reason, &self.clock);
        let mailbox = self.mailboxes.get_mut(id).filter(|mailbox| !mailbox.closed);
        let mailbox = mailbox.ok_or(reason)?;
        if mailbox.has_notice() {
            return Ok(());
        }
        let mut now_ns = None;
        let mut count = 0;
        while count < count_max {
            let take = |source, bytes: &_| make(Received::plain(source, bytes));
            let plain = mailbox.inbox.take_plain(count_max - count, take);
            count += plain;
            if plain > 0 {
                continue;
            }
            let queued_ns = |arrived_ns| {
                let now_ns = *now_ns.get_or_insert_with(|| clock.now_ns());
                (arrived_ns != 0).then(|| now_ns.saturating_sub(arrived_ns))
            };
            if mailbox.hand_over(false, queued_ns, &mut *make).is_none() {
                break;
            }
            count += 1;
        }
        let queued = mailbox.inbox.receive_queued_bytes;
        if count > 0 && (mailbox.special || queued < mailbox.inbox.clear_below_bytes) {
            self.touched.insert(id);
        }
        Ok(())
    }
}

impl Mailbox {
    /// Pass the front of the queue to `make`, and remove it unless this is a peek. `queued_ns` tells
    /// how long it was queued, from when it arrived.
    #[inline]
    fn hand_over<T>(
        &mut self,
        peek: bool,
        queued_ns: impl FnOnce(u64) -> Option<u64>,
        make: impl FnOnce(Received<'_>) -> T,
    ) -> Option<T> {
        let is_long = !peek && self.inbox.is_front_long();
        let front = self.inbox.front()?;
        let (source, extension) = (front.source, front.extension);
        let queued_ns = queued_ns(front.arrived_ns);
        let time_ns = if self.settings.timestamps {
            front.wall_ns
        } else {
            0
        };
        let payload = if is_long {
            ArrivingPayload::Whole(self.inbox.take_body()?)
        } else {
            ArrivingPayload::Borrowed(front.payload)
        };
        // Called in one place, so that it is inlined: else the message would be written to memory, to be
        // read at once.
        let message = make(Received {
            payload,
            source,
            extension,
            time_ns,
            queued_ns,
        });
        if !peek && !is_long {
            self.inbox.pop();
        }
        Some(message)
    }
}

// -- congestion
//
// When a local port is congested in our map, and when a path is not read at all.
//
// The bit is set and cleared at the end of a pass or a tick, not per message: with Linux's rule,
// at once, eight fast senders to a small buffer cost more bytes of maps than of messages. A
// mailbox far over its buffer pauses the paths that fill it, because its peer ignores the map.

/// Results of the end of a pass, to be acted on without the lock.
#[derive(Default)]
struct Finishing {
    /// Paths to which a changed map of ours goes.
    flushed: Vec<PathId>,
    /// What carries the changed map over the paths of transports.
    carriers: Vec<Arc<dyn Carrier>>,
    /// Paths released by a mailbox at half of its hard bound.
    resumed: Vec<PathId>,
    /// Mailboxes whose descriptors are compared with their state.
    shown: Vec<MailboxId>,
}

impl Plane {
    /// End a pass: check touched mailboxes, send changed maps, sync descriptors. No lock held.
    pub fn finish_pass(&self) {
        let finishing = {
            let mut state = self.lock();
            state.finish_freed_records();
            if state.touched.is_empty() && state.maps_due.is_empty() {
                return;
            }
            state.finish_touched()
        };
        for carrier in finishing.carriers {
            carrier.push_map();
        }
        for path in finishing.flushed {
            self.flush(path);
        }
        for path in finishing.resumed {
            self.resume(path);
        }
        for mailbox in finishing.shown {
            self.sync(mailbox);
        }
    }

    /// Have the descriptor of a mailbox, if it has one, show its state. No lock held.
    pub fn sync(&self, mailbox: MailboxId) {
        let descriptor = self
            .lock()
            .mailboxes
            .get(mailbox)
            .and_then(|one| one.descriptor.clone());
        if let Some(descriptor) = descriptor {
            descriptor.sync(|| self.lock().wanted_readiness(mailbox));
        }
    }
}

impl State {
    fn finish_touched(&mut self) -> Finishing {
        let mut finishing = Finishing::default();
        self.touched.drain_into(&mut finishing.shown);
        let now_ns = self.clock.now_ns();
        if self.has_attached() {
            for &mailbox in &finishing.shown {
                self.finish_attached(mailbox);
            }
        }
        for &mailbox in &finishing.shown {
            if self.update_congestion(mailbox, now_ns)
                && let Some(host) = self.host_of(mailbox)
                && let Some(host) = self.hosts.get(host)
            {
                finishing.flushed.extend(&host.paths);
            }
        }
        for &mailbox in &finishing.shown {
            self.let_go(mailbox, &mut finishing.resumed);
        }
        if self.has_attached() {
            for &mailbox in &finishing.shown {
                self.await_taken(mailbox);
            }
        }
        finishing.carriers = std::mem::take(&mut self.maps_due);
        // Our changed map concerns senders of this process too: sync their descriptors as well.
        self.touched.drain_into(&mut finishing.shown);
        finishing
    }

    fn host_of(&self, mailbox: MailboxId) -> Option<HostId> {
        self.mailboxes.get(mailbox).map(|record| record.host)
    }

    /// Check whether a mailbox is congested; return whether our map changed.
    fn update_congestion(&mut self, id: MailboxId, now_ns: u64) -> bool {
        let Some(mailbox) = self.mailboxes.get_mut(id) else {
            return false;
        };
        let is_restricted = mailbox
            .attached
            .as_ref()
            .is_some_and(|attached| attached.is_restricted());
        let change = if mailbox.closed {
            None
        } else if is_restricted {
            let is_new = !std::mem::replace(&mut mailbox.inbox.congested, true);
            is_new.then_some(true)
        } else {
            mailbox.inbox.check_congestion(now_ns)
        };
        mailbox.finish_special();
        if mailbox.inbox.look_again_ns().is_some() {
            self.looks.insert(id);
            self.progress_thread.want();
        }
        if let Some(on) = change {
            self.show_congestion(id, on);
        }
        change.is_some()
    }

    /// Set or clear a port's bit in our map; maps go out with the next flush.
    pub(crate) fn show_congestion(&mut self, id: MailboxId, on: bool) {
        let Some(mailbox) = self.mailboxes.get(id) else {
            return;
        };
        let (host_id, local, port) = (mailbox.host, mailbox.local, mailbox.port);
        let Some(host) = self.hosts.get_mut(host_id) else {
            return;
        };
        if on {
            host.congested.set(port);
        } else {
            host.congested.clear(port);
        }
        let paths = host.paths.clone();
        self.publish_map(host_id, None);
        for path in paths {
            if let Some(path) = self.paths.get_mut(path) {
                path.core.map_due = path.core.attached;
            }
            self.flush_soon(path);
        }
        self.show_map_outside(host_id, local);
        let groups = if on { 0 } else { Mailbox::group_of(port) };
        for sender in self.senders_by_loop(&local) {
            self.note_map(sender, groups, false);
            self.touched.insert(sender);
        }
    }

    fn senders_by_loop(&self, local: &Address) -> Vec<MailboxId> {
        let senders = self.mailboxes.iter();
        senders
            .filter(|(_, mailbox)| !mailbox.closed && mailbox.sends_by_loop_to(local))
            .map(|(id, _)| id)
            .collect()
    }

    /// Put the map of a path's peer in force and notify the sockets of the address.
    pub(crate) fn note_peer_map(&mut self, path: PathId, bytes: &MapBytes) {
        let Some(path) = self.paths.get(path) else {
            return;
        };
        self.put_peer_map(path.host, path.peer, bytes, false);
    }

    /// Put a peer's map in force; with `exact` monitors get only the groups that it cleared.
    pub(crate) fn put_peer_map(
        &mut self,
        id: HostId,
        peer: Address,
        bytes: &MapBytes,
        exact: bool,
    ) {
        let Some(host) = self.hosts.get_mut(id) else {
            return;
        };
        self.counters.cong_update_received += 1;
        let groups = host.replace_peer_map(peer, bytes);
        self.publish_map(id, Some(peer));
        let Some(host) = self.hosts.get(id) else {
            return;
        };
        for mailbox in host.inboxes.values().copied().collect::<Vec<_>>() {
            self.note_map(mailbox, groups, exact);
            self.touched.insert(mailbox);
        }
    }

    /// Drop the map of a peer to which the local address has no path left.
    pub(crate) fn forget_peer_map(&mut self, id: HostId, peer: &Address) {
        let Some(host) = self.hosts.get_mut(id) else {
            return;
        };
        let leads = |path: &PathId| self.paths.get(*path).is_some_and(|path| path.peer == *peer);
        let has_external = host.externals.iter().any(|&path| {
            self.externals
                .get(path)
                .is_some_and(|path| path.peer == *peer)
        });
        if !has_external && !host.paths.iter().any(leads) {
            host.forget_peer_map(peer);
            self.publish_map(id, Some(*peer));
        }
    }

    /// React to a peer's new map: monitor, senders, descriptor.
    ///
    /// Linux's own monitor takes every update for a change of all groups over TCP, and over RDMA
    /// (`exact`) for one of the cleared ones; an installed mask is reported exactly. Source: linux
    /// v6.12 net/rds/cong.c, `net/rds/ib_recv.c`; rds(7).
    fn note_map(&mut self, id: MailboxId, cleared_groups: u64, exact: bool) {
        let Some(mailbox) = self.mailboxes.get_mut(id) else {
            return;
        };
        if mailbox.attached.is_some() {
            self.tell_attached_of_map(id, cleared_groups, exact);
            return;
        }
        let saw_congestion = std::mem::take(&mut mailbox.saw_congestion);
        if mailbox.settings.monitor {
            if mailbox.settings.monitor_mask == ALL_GROUPS {
                let changed = if exact { cleared_groups } else { ALL_GROUPS };
                mailbox.notice_groups |= mailbox.wait_groups & changed;
                mailbox.wait_groups &= !changed;
            } else {
                mailbox.notice_groups |= mailbox.settings.monitor_mask & cleared_groups;
            }
            if mailbox.has_notice() {
                mailbox.special = true;
                self.note_arrival(id, 1);
            }
        } else if saw_congestion {
            mailbox.map_news = true;
        }
        if let Some(mailbox) = self.mailboxes.get_mut(id) {
            mailbox.accounts.tell_refused(&mut self.wait_queue); // its waiters met the map
        }
        self.note_room(id);
    }

    /// Add the paths that a mailbox at half of its hard bound releases; report those of transports.
    fn let_go(&mut self, id: MailboxId, resumed: &mut Vec<PathId>) {
        let Some(mailbox) = self.mailboxes.get(id) else {
            return;
        };
        let is_waited_for = mailbox
            .attached
            .as_ref()
            .is_some_and(|attached| attached.is_waited_for());
        if mailbox.pausing.is_empty() && mailbox.pausing_externals.is_empty() && !is_waited_for {
            return;
        }
        let bound = self.hard_bound_of(mailbox.inbox.buffer_bytes);
        if mailbox.inbox.hard_bytes() > bound / 2 && !mailbox.closed {
            return;
        }
        if let Some(mailbox) = self.mailboxes.get_mut(id) {
            resumed.append(&mut mailbox.pausing);
            for path in std::mem::take(&mut mailbox.pausing_externals) {
                self.emit(Event::Resumed { path });
            }
        }
        if is_waited_for {
            self.serve_waiting(id);
        }
    }

    /// Return whether a mailbox's descriptor is to be readable, and writable.
    pub(crate) fn wanted_readiness(&self, id: MailboxId) -> (bool, bool) {
        let Some(mailbox) = self.mailboxes.get(id) else {
            return (true, true);
        };
        let readable =
            !mailbox.inbox.is_empty() || mailbox.has_notice() || mailbox.map_news || mailbox.closed;
        let is_held_up = || {
            mailbox
                .stream_paths()
                .any(|path| self.full_paths.contains(path))
                || self.is_held_up_outside(mailbox)
        };
        let has_room = mailbox.accounts.is_writable(mailbox.send_queued_bytes);
        let is_any_full = !self.full_paths.is_empty() || self.full_externals > 0;
        let writable = has_room && (!is_any_full || !mailbox.has_one_way() || !is_held_up());
        (readable, writable)
    }
}

// -- the mailboxes of an address, for a path
//
// The mailboxes of an address, as a path uses them under the plane's lock.

/// Where messages of one read go; it caches the last port, and counts messages by mailbox.
pub(crate) struct StateSink<'a> {
    inboxes: &'a Inboxes,
    mailboxes: &'a mut Table<Mailbox>,
    /// Of the last message: that of the next one as a rule.
    source: SocketAddress,
    now_ns: u64,
    /// Neighbouring messages of one mailbox are counted together.
    arrivals: &'a mut Vec<(MailboxId, usize)>,
    last: Option<(u16, MailboxId)>,
    /// The wall clock at this read, once it was wanted.
    wall_ns: Option<u64>,
    /// Where deliveries to attached sockets are noted, and as what.
    journal: Option<(&'a PathJournal, u32)>,
}

impl<'a> StateSink<'a> {
    pub(crate) fn new(
        inboxes: &'a Inboxes,
        mailboxes: &'a mut Table<Mailbox>,
        peer: Address,
        now_ns: u64,
        arrivals: &'a mut Vec<(MailboxId, usize)>,
        journal: Option<(&'a PathJournal, u32)>,
    ) -> Self {
        Self {
            inboxes,
            mailboxes,
            source: SocketAddress::new(peer, 0),
            now_ns,
            arrivals,
            last: None,
            wall_ns: None,
            journal,
        }
    }
}

impl MessageSink for StateSink<'_> {
    #[allow(clippy::inline_always)] // the message would be written to memory, to be read at once
    #[inline(always)]
    fn deliver(&mut self, target_port: u16, message: Arriving<'_>) -> bool {
        let id = match self.last {
            Some((port, id)) if port == target_port => id,
            _ => {
                let Some(&id) = self.inboxes.get(&target_port) else {
                    return false;
                };
                self.last = Some((target_port, id));
                id
            }
        };
        let Some(mailbox) = self.mailboxes.get_mut(id) else {
            return false;
        };
        if self.source.port != message.source_port {
            begin_source(&mut self.source, message.source_port);
        }
        let source = self.source;
        // Times are taken only for a message that reports other details as well.
        let (wall_ns, arrived_ns) = if mailbox.detailed || message.extension != NO_EXTENSION {
            (wall_ns(), self.now_ns)
        } else {
            (0, 0)
        };
        let is_there = mailbox.attached.is_some()
            && deliver_attached(
                mailbox,
                self.journal,
                &mut self.wall_ns,
                self.now_ns,
                (source, message.sequence, message.extension),
                message.payload.bytes(), // parts: by reference each message would be written to memory
            );
        if !is_there {
            mailbox.inbox.push(
                source,
                message.extension,
                message.payload,
                wall_ns,
                arrived_ns,
            );
        }
        match self.arrivals.last_mut() {
            Some((last, messages)) if *last == id => *messages += 1,
            _ => self.arrivals.push((id, 1)),
        }
        true
    }
}

/// Apart, so that the port is written for another source only: a processor waits for a copy of what was
/// just written in part.
#[cold]
#[inline(never)]
fn begin_source(source: &mut SocketAddress, port: u16) {
    source.port = port;
}

/// Put a message into the memory of an attached socket; return false if it has no room.
#[inline(never)]
fn deliver_attached(
    mailbox: &mut Mailbox,
    journal: Option<(&PathJournal, u32)>,
    known_wall_ns: &mut Option<u64>,
    arrived_ns: u64,
    (source, sequence, extension): (SocketAddress, u64, Extension),
    payload: &[u8],
) -> bool {
    let Some(attached) = mailbox.attached.as_deref_mut() else {
        return false;
    };
    let wants_times = attached.wants_times();
    let details = Details {
        source,
        extension,
        wall_ns: if wants_times {
            *known_wall_ns.get_or_insert_with(wall_ns)
        } else {
            0
        },
        arrived_ns,
    };
    let delivery = journal.map_or(Delivery::Unnoted, |(journal, entry)| {
        Delivery::OfPath(journal, entry, sequence)
    });
    attached.deliver(&mut mailbox.inbox, &details, payload, delivery)
}
