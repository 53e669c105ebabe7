//! All of a plane's state: what its one lock guards.
//!
//! Functions here run with the lock held (`Plane::lock`) and never block. The records of mailboxes
//! and paths lie in their own modules, next to what is done with them.

use std::collections::HashMap;
use std::sync::Arc;

use urds_path::{Address, Counters, Freed, Limits, WriteBuffer};

use crate::accounts::DestinationId;
use crate::attached::{AttachedTables, ControlSocket};
use crate::background::{AckDeadlines, Missing, ProgressThreadState};
use crate::clock::Clock;
use crate::errors::ErrorReason;
use crate::events::Event;
use crate::external::ExternalPath;
use crate::gathering::Carrier;
use crate::host::Host;
use crate::mailbox::Mailbox;
use crate::path::StreamPath;
use crate::plane::Plane;
use crate::poll_set::PollTables;
use crate::quick_hash::QuickHash;
use crate::rules::{self, Rule};
use crate::spinning::RecentStreams;
use crate::stream::Stream;
use crate::sys::epoll::Epoll;
use crate::table::{Id, IdSet, Table};
use crate::waiting::{WaitQueue, Wakes};

pub type HostId = Id<Host>;
pub type MailboxId = Id<Mailbox>;
pub type PathId = Id<StreamPath>;

/// A closed mailbox with messages in flight: its deadline.
pub struct Lingering {
    pub mailbox: MailboxId,
    pub host: HostId,
    pub at_ns: u64,
}

/// Everything; fields are public because each module works on its own part of it.
pub struct State {
    pub limits: Limits,
    /// Generation number of this process, sent in the header of maps.
    pub generation: Option<u32>,
    pub clock: Clock,
    pub counters: Counters,
    pub hosts: Table<Host>,
    pub hosts_by_address: HashMap<Address, HostId, QuickHash>,
    pub mailboxes: Table<Mailbox>,
    pub paths: Table<StreamPath>,
    pub externals: Table<ExternalPath>,
    pub wait_queue: WaitQueue,
    pub progress_thread: ProgressThreadState,
    pub poll_set: PollTables,
    /// Messages may wait to be sent in one batch.
    pub batches: bool,
    /// A thread reads or takes, so the progress thread need not; it clears this when it looks.
    pub driven: bool,
    pub closed: bool,
    /// Error reason of a closed mailbox.
    pub closed_reason: ErrorReason,
    /// Paths of which time makes something due.
    pub dirty: IdSet<StreamPath>,
    /// When to acknowledge what is pending on a path.
    pub ack_deadlines: AckDeadlines,
    /// Paths at their limit of messages.
    pub full_paths: IdSet<StreamPath>,
    /// How many paths of transports of messages are.
    pub full_externals: usize,
    /// Mailboxes that are checked and synced at the end of the pass.
    pub touched: IdSet<Mailbox>,
    /// Carriers to be told of a changed local map at the end of the pass.
    pub(crate) maps_due: Vec<Arc<dyn Carrier>>,
    /// Mailboxes over their buffer, to be checked again.
    pub looks: IdSet<Mailbox>,
    pub lingering: Vec<Lingering>,
    /// Bytes in flight of mailboxes that are closed.
    pub(crate) closed_accounts: HashMap<MailboxId, usize>,
    /// When the peers of paths become absent.
    pub(crate) missing: Missing,
    pub(crate) attached: AttachedTables,
    events: Vec<Event>,
    /// Ended streams: dropped, and so closed, when the lock is released.
    deferred: Vec<Arc<dyn Stream>>,
    /// Shm streams that were read last.
    pub(crate) recent: RecentStreams,
    /// Messages of the current read, counted by mailbox: here, for memory of each path would have left
    /// the caches when its peer sends again.
    pub(crate) arrivals: Vec<(MailboxId, usize)>,
    /// Scratch of `serve_due` and the like, kept so that a pass allocates nothing.
    pub(crate) spare_paths: Vec<PathId>,
    /// The same of `account_freed`.
    pub(crate) spare_freed: Vec<Freed>,
    /// The same of writes: a path has memory for its own only while bytes of it are left.
    pub(crate) spare_buffer: WriteBuffer,
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
            hosts_by_address: HashMap::default(),
            mailboxes: Table::default(),
            paths: Table::default(),
            externals: Table::default(),
            wait_queue: WaitQueue::default(),
            progress_thread: ProgressThreadState::default(),
            poll_set: PollTables::new(poll_set),
            batches: false,
            driven: false,
            closed: false,
            closed_reason: ErrorReason::Closed,
            dirty: IdSet::default(),
            ack_deadlines: AckDeadlines::default(),
            full_paths: IdSet::default(),
            full_externals: 0,
            touched: IdSet::default(),
            maps_due: Vec::new(),
            looks: IdSet::default(),
            lingering: Vec::new(),
            closed_accounts: HashMap::new(),
            missing: Missing::default(),
            attached: AttachedTables::default(),
            events: Vec::new(),
            deferred: Vec::new(),
            recent: RecentStreams::default(),
            arrivals: Vec::new(),
            spare_paths: Vec::new(),
            spare_freed: Vec::new(),
            spare_buffer: WriteBuffer::default(),
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

    // -- notifications

    /// Notify receivers; the mailbox is checked at the end of the pass.
    pub fn note_arrival(&mut self, mailbox: MailboxId, messages: usize) {
        let Some(record) = self.mailboxes.get_mut(mailbox) else {
            return;
        };
        record.receive_waiters.tell(messages, &mut self.wait_queue);
        let inbox = &record.inbox;
        if record.special || inbox.receive_queued_bytes > inbox.buffer_bytes {
            self.touched.insert(mailbox);
        }
    }

    /// Notify senders that messages left, so that there may be room.
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

    /// Notify senders that there may be room.
    pub fn tell_room(&mut self, mailbox: MailboxId) {
        let Some(record) = self.mailboxes.get_mut(mailbox) else {
            return;
        };
        record.room_waiters.tell_all(&mut self.wait_queue);
        if record.descriptor.is_some() {
            self.touched.insert(mailbox);
        }
        if record.accounts.look_due {
            let roomy = record.accounts.take_roomy(record.send_queued_bytes);
            self.tell_roomy(mailbox, &roomy);
        }
    }

    /// Notify senders to some destinations of room, as after congestion.
    ///
    /// A sender that waits for one of them continues; for the others it is a new map.
    pub(crate) fn tell_roomy(&mut self, mailbox: MailboxId, roomy: &[DestinationId]) {
        let Some(record) = self.mailboxes.get_mut(mailbox) else {
            return;
        };
        let mut groups = 0;
        for &id in roomy {
            let destination = record.accounts.at_mut(id);
            groups |= std::mem::take(&mut destination.refused_groups);
            if rules::holds(Rule::RoomTells) {
                destination.waiters.tell_all(&mut self.wait_queue);
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

    /// Have descriptors show that a path reached its limit of messages (`full` is set) or left it.
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

    /// Return whether a mailbox is so full that its peers' streams must wait.
    pub fn is_over_hard_bound(&self, mailbox: MailboxId) -> bool {
        let Some(record) = self.mailboxes.get(mailbox) else {
            return false;
        };
        record.inbox.hard_bytes() > self.hard_bound_of(record.inbox.buffer_bytes)
    }

    /// Return the bytes at which a mailbox with this buffer pauses the paths that fill it.
    pub fn hard_bound_of(&self, buffer_bytes: usize) -> usize {
        self.limits.receive_hard_bound(buffer_bytes)
    }

    // -- what is due

    /// Note that a path has something due at some time.
    pub fn mark_dirty(&mut self, path: PathId) {
        self.dirty.insert(path);
        self.want_progress_thread_if_unread();
    }

    /// Wake the progress thread for what is due soon, unless a leader looks before it sleeps.
    pub(crate) fn want_progress_thread_if_unread(&mut self) {
        if self.wait_queue.leader_looks_before_it_sleeps() {
            return;
        }
        self.progress_thread.want();
    }

    /// Return whether anything may become due.
    pub fn has_dues(&self) -> bool {
        !self.ack_deadlines.is_empty()
            || !self.dirty.is_empty()
            || !self.looks.is_empty()
            || !self.lingering.is_empty()
            || !self.missing.is_empty()
            || self.next_attached_ns().is_some()
    }

    /// Stop watching a path's stream; nothing of it stays due.
    pub fn forget_stream(&mut self, path: PathId) {
        self.dirty.remove(path);
        self.ack_deadlines.remove(path);
        self.unwatch_stream(path);
    }

    /// Remove a path: its queue is dropped, nothing refers to it.
    pub fn remove_path(&mut self, path: PathId) {
        let Some(record) = self.paths.get_mut(path) else {
            return;
        };
        record.core.sender.drop_all();
        let (host, peer) = (record.host, record.peer);
        self.finish_freed(path);
        self.dirty.remove(path);
        self.ack_deadlines.remove(path);
        self.full_paths.remove(path);
        self.note_closed(path);
        self.paths.remove(path);
        if let Some(host) = self.hosts.get_mut(host) {
            host.paths.retain(|&other| other != path);
        }
        self.forget_peer_map(host, &peer);
    }

    // -- the control plane's events

    /// Keep an event for the next `help`.
    pub fn emit(&mut self, event: Event) {
        self.events.push(event);
        self.progress_thread.want_now();
    }

    /// Return and forget the events.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    // -- work to be done without the lock

    /// Have a stream dropped, and so closed unless another thread still holds it.
    pub fn defer(&mut self, stream: Arc<dyn Stream>) {
        self.deferred.push(stream);
    }

    #[inline]
    pub(crate) fn has_wakes(&self) -> bool {
        self.wait_queue.has_wakes()
            || self.progress_thread.wake_due
            || !self.deferred.is_empty()
            || !self.attached.shown.is_empty()
    }

    pub(crate) fn take_after(&mut self) -> After {
        After {
            wakes: self.wait_queue.take_wakes(),
            ring: std::mem::take(&mut self.progress_thread.wake_due),
            shown: std::mem::take(&mut self.attached.shown),
            _deferred: std::mem::take(&mut self.deferred),
        }
    }
}

/// Work to be done without the lock: wake-ups and ends of streams.
pub(crate) struct After {
    wakes: Wakes,
    ring: bool,
    shown: Vec<Arc<ControlSocket>>,
    _deferred: Vec<Arc<dyn Stream>>,
}

impl After {
    pub(crate) fn deliver(self, plane: &Plane) {
        if self.ring {
            plane.progress_thread.ring();
        }
        for control in &self.shown {
            control.show();
        }
        self.wakes.deliver(&plane.kick);
    }
}
