//! All of a plane's state: what its one lock guards.
//!
//! Functions here run with the lock held (`Plane::lock`) and never block. The records of mailboxes
//! and paths lie in their own modules, next to what is done with them.

use std::collections::HashMap;
use std::sync::Arc;

use urds_path::{Address, Counters, Limits};

use crate::absence::Missing;
use crate::accounts::DestinationId;
use crate::clock::Clock;
use crate::dues::Owing;
use crate::events::Event;
use crate::helper::HelperState;
use crate::host::Host;
use crate::mailbox::Mailbox;
use crate::plane::Plane;
use crate::poll_set::PollTables;
use crate::refusal::Refusal;
use crate::rules::{self, Rule};
use crate::spinning::NearLanes;
use crate::stream::Stream;
use crate::stream_path::StreamPath;
use crate::sys::epoll::Epoll;
use crate::table::{Id, IdSet, Table};
use crate::waiting::{WaitingDesk, Wakes};

pub type HostId = Id<Host>;
pub type MailboxId = Id<Mailbox>;
pub type PathId = Id<StreamPath>;

/// A closed mailbox with messages on their way: until when they may be.
pub struct Lingering {
    pub mailbox: MailboxId,
    pub host: HostId,
    pub at_ns: u64,
}

/// Everything; fields are public because each module works on its own part of it.
pub struct State {
    pub limits: Limits,
    /// Of this process's life, told in the header of maps.
    pub generation: Option<u32>,
    pub clock: Clock,
    pub counters: Counters,
    pub hosts: Table<Host>,
    pub hosts_by_address: HashMap<Address, HostId>,
    pub mailboxes: Table<Mailbox>,
    pub paths: Table<StreamPath>,
    pub desk: WaitingDesk,
    pub helper: HelperState,
    pub poll_set: PollTables,
    /// Perhaps a message waits for others to join it.
    pub tails: bool,
    /// Somebody reads or takes: the helper need not. Cleared by the helper's look.
    pub driven: bool,
    pub closed: bool,
    /// Why a closed mailbox refuses.
    pub closed_refusal: Refusal,
    /// Paths of which time makes something due.
    pub dirty: IdSet<StreamPath>,
    /// When to acknowledge what a path owes.
    pub owing: Owing,
    /// Paths at their bound of messages.
    pub full_paths: IdSet<StreamPath>,
    /// Mailboxes that are judged and shown at the end of the pass.
    pub touched: IdSet<Mailbox>,
    /// Mailboxes over their buffer, to be looked at again.
    pub looks: IdSet<Mailbox>,
    pub lingering: Vec<Lingering>,
    /// Octets on their way of mailboxes that are closed.
    pub(crate) closed_accounts: HashMap<MailboxId, usize>,
    /// When the peers of paths count as absent.
    pub(crate) missing: Missing,
    events: Vec<Event>,
    /// Streams that are over: dropped, and so closed, when the lock is released.
    grave: Vec<Arc<dyn Stream>>,
    /// Lanes that were read last.
    pub(crate) near: NearLanes,
    /// Scratch of `dues::serve` and its like, kept so that a pass allocates nothing.
    pub(crate) spare_paths: Vec<PathId>,
}

impl State {
    /// Make the state of an empty plane; `poll_set` is the set that streams are added to.
    pub fn new(limits: Limits, clock: Clock, generation: Option<u32>, poll_set: Epoll) -> Self {
        Self {
            limits,
            generation,
            clock,
            counters: Counters::default(),
            hosts: Table::default(),
            hosts_by_address: HashMap::new(),
            mailboxes: Table::default(),
            paths: Table::default(),
            desk: WaitingDesk::default(),
            helper: HelperState::default(),
            poll_set: PollTables::new(poll_set),
            tails: false,
            driven: false,
            closed: false,
            closed_refusal: Refusal::Closed,
            dirty: IdSet::default(),
            owing: Owing::default(),
            full_paths: IdSet::default(),
            touched: IdSet::default(),
            looks: IdSet::default(),
            lingering: Vec::new(),
            closed_accounts: HashMap::new(),
            missing: Missing::default(),
            events: Vec::new(),
            grave: Vec::new(),
            near: NearLanes::default(),
            spare_paths: Vec::new(),
        }
    }

    /// Return the time on the plane's clock.
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Return the tables of a local address, made on the first call.
    pub fn host(&mut self, address: Address) -> HostId {
        if let Some(&id) = self.hosts_by_address.get(&address) {
            return id;
        }
        let id = self.hosts.insert(Host::new(address));
        self.hosts_by_address.insert(address, id);
        id
    }

    /// Return the mailbox at a local address and port.
    pub fn mailbox_at(&self, local: &Address, port: u16) -> Option<MailboxId> {
        let host = self.hosts.get(*self.hosts_by_address.get(local)?)?;
        host.inboxes.get(&port).copied()
    }

    // -- what happened, for whoever waits for it

    /// Tell receivers; the mailbox is judged at the end of the pass.
    pub fn note_arrival(&mut self, mailbox: MailboxId, messages: usize) {
        let Some(record) = self.mailboxes.get_mut(mailbox) else {
            return;
        };
        record.receive_waiters.tell(messages, &mut self.desk);
        let inbox = &record.inbox;
        if record.special || inbox.receive_queued_bytes > inbox.buffer_bytes {
            self.touched.insert(mailbox);
        }
    }

    /// Tell senders that messages left, so that there may be room.
    pub fn note_room(&mut self, mailbox: MailboxId) {
        self.tell_room(mailbox);
        if self
            .mailboxes
            .get(mailbox)
            .is_some_and(|record| record.send_queued_bytes == 0)
        {
            self.counters.send_queue_empty += 1;
        }
    }

    /// Tell senders that there may be room.
    pub fn tell_room(&mut self, mailbox: MailboxId) {
        let Some(record) = self.mailboxes.get_mut(mailbox) else {
            return;
        };
        record.room_waiters.tell_all(&mut self.desk);
        if record.descriptor.is_some() {
            self.touched.insert(mailbox);
        }
        if record.accounts.look_due {
            let roomy = record.accounts.take_roomy(record.send_queued_bytes);
            self.tell_roomy(mailbox, &roomy);
        }
    }

    /// Tell senders to some destinations of their room, as of the end of congestion.
    ///
    /// A sender that waits for one of them continues; to the others it is a new map.
    pub(crate) fn tell_roomy(&mut self, mailbox: MailboxId, roomy: &[DestinationId]) {
        let Some(record) = self.mailboxes.get_mut(mailbox) else {
            return;
        };
        let mut groups = 0;
        for &id in roomy {
            let destination = record.accounts.at_mut(id);
            groups |= std::mem::take(&mut destination.refused_groups);
            if rules::holds(Rule::RoomTells) {
                destination.waiters.tell_all(&mut self.desk);
            }
        }
        if !record.settings.monitor {
            record.map_news |= groups != 0;
        } else if groups & record.settings.monitor_mask != 0 {
            record.notice_groups |= groups & record.settings.monitor_mask;
            record.special = true;
            self.note_arrival(mailbox, 1);
        }
    }

    /// Have descriptors show that a path came to its bound of messages (`full` is set) or left it.
    pub fn note_full(&mut self, path: PathId) {
        let Some(record) = self.paths.get(path) else {
            return;
        };
        if record.full {
            self.full_paths.insert(path);
        } else {
            self.full_paths.remove(path);
        }
        let Some(host) = self.hosts.get(record.host) else {
            return;
        };
        for &mailbox in host.inboxes.values() {
            if self
                .mailboxes
                .get(mailbox)
                .is_some_and(|record| record.descriptor.is_some())
            {
                self.touched.insert(mailbox);
            }
        }
    }

    /// Tell whether a mailbox is so full that its peers' streams must wait.
    pub fn is_over_hard_bound(&self, mailbox: MailboxId) -> bool {
        let Some(record) = self.mailboxes.get(mailbox) else {
            return false;
        };
        record.inbox.hard_bytes() > self.hard_bound_of(record.inbox.buffer_bytes)
    }

    /// Return the octets at which a mailbox with this buffer pauses who fills it.
    pub fn hard_bound_of(&self, buffer_bytes: usize) -> usize {
        self.limits.receive_hard_bound(buffer_bytes)
    }

    // -- what is due

    /// Note that time makes something of a path due.
    pub fn mark_dirty(&mut self, path: PathId) {
        self.dirty.insert(path);
        self.want_helper_if_unread();
    }

    /// Wake the helper for what is due soon, unless a leader looks before it sleeps.
    pub(crate) fn want_helper_if_unread(&mut self) {
        if self.desk.leader_looks_before_it_sleeps() {
            return;
        }
        self.helper.want();
    }

    /// Tell whether time may make something due.
    pub fn has_dues(&self) -> bool {
        !self.owing.is_empty()
            || !self.dirty.is_empty()
            || !self.looks.is_empty()
            || !self.lingering.is_empty()
            || !self.missing.is_empty()
    }

    /// Stop watching a path's stream; nothing of it is due any more.
    pub fn forget_stream(&mut self, path: PathId) {
        self.dirty.remove(path);
        self.owing.remove(path);
        self.unwatch_stream(path);
    }

    /// Forget a path: its queue is dropped, nothing leads to it.
    pub fn remove_path(&mut self, path: PathId) {
        let Some(record) = self.paths.get_mut(path) else {
            return;
        };
        record.core.outgoing.drop_all();
        let (host, peer) = (record.host, record.peer);
        self.settle_freed(path);
        self.dirty.remove(path);
        self.owing.remove(path);
        self.full_paths.remove(path);
        self.paths.remove(path);
        if let Some(host) = self.hosts.get_mut(host) {
            host.paths.retain(|&other| other != path);
        }
        self.forget_peer_map(host, &peer);
    }

    // -- the control plane's events

    /// Keep an event for `help`.
    pub fn emit(&mut self, event: Event) {
        self.events.push(event);
        self.helper.want_now();
    }

    /// Return and forget the events.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    // -- what is done once the lock is free

    /// Have a stream dropped, and so closed unless somebody else still holds it.
    pub fn bury(&mut self, stream: Arc<dyn Stream>) {
        self.grave.push(stream);
    }

    #[inline]
    pub(crate) fn has_wakes(&self) -> bool {
        self.desk.has_wakes() || self.helper.wake_due || !self.grave.is_empty()
    }

    pub(crate) fn take_after(&mut self) -> After {
        After {
            wakes: self.desk.take_wakes(),
            ring: std::mem::take(&mut self.helper.wake_due),
            _grave: std::mem::take(&mut self.grave),
        }
    }
}

/// What is done once the lock is free: wake-ups and ends of streams.
pub(crate) struct After {
    wakes: Wakes,
    ring: bool,
    _grave: Vec<Arc<dyn Stream>>,
}

impl After {
    pub(crate) fn deliver(self, plane: &Plane) {
        if self.ring {
            plane.helper.ring();
        }
        self.wakes.deliver(&plane.kick);
    }
}
