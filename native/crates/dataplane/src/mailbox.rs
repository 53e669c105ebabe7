//! A bound socket: its receive queue, its send accounts, its routes to peers, and its waiters.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use urds_path::{Address, Inbox, Limits, Owner, SocketAddress};

use crate::accounts::{DestinationId, HERE, SendAccounts};
use crate::attached::Attached;
use crate::errors::Rejected;
use crate::external::ExternalId;
use crate::operations::OperationNotice;
use crate::plane::Plane;
use crate::quick_hash::QuickHash;
use crate::readiness::ReadinessDescriptor;
use crate::state::{HostId, MailboxId, PathId, State};
use crate::waiting::{WaitFor, Waiters};

/// A congestion monitor for every port group.
pub const ALL_GROUPS: u64 = u64::MAX;

/// Bytes of payloads that one write of long messages joins.
const LONG_WRITE_BYTES: usize = 524_288;

/// The message limit of every peer; a longer message must check its path.
pub const MESSAGE_BYTES_PLAIN: usize = 1 << 20;

/// Destinations that a mailbox remembers.
const FLOWS_MAX: usize = 4096;

/// The settings that a socket can change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // each is an option of its own
pub struct MailboxSettings {
    pub send_bytes_max: usize,
    pub receive_bytes_max: usize,
    /// `None` waits for ever, 0 never.
    pub send_wait_ns: Option<u64>,
    pub receive_wait_ns: Option<u64>,
    /// Whether congestion notices are wanted, and for which port groups.
    pub monitor: bool,
    pub monitor_mask: u64,
    pub timestamps: bool,
    /// Whether latency traces of a message are wanted.
    pub traces: bool,
    pub tos: u8,
    /// How long a receive that waits polls without sleeping, while its thread leads.
    pub busy_poll_ns: u64,
    /// All destinations share one account, as Linux has it.
    pub single_account: bool,
}

impl Default for MailboxSettings {
    fn default() -> Self {
        Self {
            send_bytes_max: 106_496,
            receive_bytes_max: 106_496,
            send_wait_ns: None,
            receive_wait_ns: None,
            monitor: false,
            monitor_mask: ALL_GROUPS,
            timestamps: false,
            traces: false,
            tos: 0,
            busy_poll_ns: 0,
            single_account: false,
        }
    }
}

/// The route to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Stream(PathId),
    /// A transport of messages has it: a send leaves the plane, to be charged by the transport.
    External(ExternalId),
    /// To an address of this process: the sender's thread delivers.
    Loop,
}

/// Where messages to one target go, and on which account: one look-up for both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) path: PathId,
    pub(crate) destination: DestinationId,
}

/// Where the last message went that was queued behind others: what follows it there needs no look-ups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) target: SocketAddress,
    pub(crate) way: RunWay,
    pub(crate) destination: DestinationId,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum RunWay {
    Stream(PathId),
    External(ExternalId),
}

/// What a thread waits for at a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Arrival,
    Room,
    /// For room at a destination that had none.
    Destination(DestinationId),
    /// For the end of an operation.
    Operation,
}

/// State of one mailbox.
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
pub struct Mailbox {
    pub host: HostId,
    pub local: Address,
    pub port: u16,
    pub settings: MailboxSettings,
    pub inbox: Inbox,
    pub closed: bool,
    /// The next take, or arrival, must do more than move its message.
    pub special: bool,
    /// Timestamps or traces are wanted.
    pub detailed: bool,
    /// Payload bytes queued or not acknowledged.
    pub send_queued_bytes: usize,
    /// How destinations share those bytes.
    pub accounts: SendAccounts,
    /// The destination where the last send found no room: its sender waits there.
    pub refused_at: Option<DestinationId>,
    /// Messages that were dropped because their peer is absent.
    pub given_up: u64,
    pub receive_waiters: Waiters,
    pub room_waiters: Waiters,
    pub operation_waiters: Waiters,
    /// How many operations of this socket have ended.
    pub operations_ended: u64,
    /// Ends of operations to be reported to the application.
    pub notices: VecDeque<OperationNotice>,
    pub routes: HashMap<Address, Route, QuickHash>,
    /// The route that was looked up last.
    pub(crate) last_route: Option<(Address, Route)>,
    /// Targets of messages since the routes changed: a send to one needs fewer checks.
    flows: HashMap<SocketAddress, Flow, QuickHash>,
    last_flow: Option<(SocketAddress, Flow)>,
    /// Where the last message went that was queued behind others: what follows it there needs no
    /// look-up.
    pub(crate) run: Option<Run>,
    /// Peers whose messages were dropped: the next send to each fails, once.
    pub failed: HashSet<Address>,
    /// Groups to be reported to the application.
    pub notice_groups: u64,
    /// Groups that answered ENOBUFS while the monitor was on.
    pub wait_groups: u64,
    /// An ENOBUFS since the last map update: a poll must wake.
    pub saw_congestion: bool,
    pub map_news: bool,
    pub descriptor: Option<Arc<ReadinessDescriptor>>,
    /// Paths that wait for the receive queue to shrink.
    pub pausing: Vec<PathId>,
    pub pausing_externals: Vec<ExternalId>,
    /// Bytes of long messages that make one write.
    pub burst_bytes: usize,
    /// The longest message that the account or the plane allows.
    pub payload_bytes_max: usize,
    /// Of a socket of another process: its memory takes the place of the queues here.
    pub attached: Option<Box<Attached>>,
}

impl Mailbox {
    /// Make an open mailbox; the caller enters it at its port.
    pub fn new(
        host: HostId,
        local: Address,
        port: u16,
        settings: MailboxSettings,
        limits: &Limits,
    ) -> Self {
        let mut mailbox = Self {
            host,
            local,
            port,
            inbox: Inbox::new(settings.receive_bytes_max),
            settings: MailboxSettings::default(),
            closed: false,
            special: false,
            detailed: false,
            send_queued_bytes: 0,
            accounts: SendAccounts::default(),
            refused_at: None,
            given_up: 0,
            receive_waiters: Waiters::default(),
            room_waiters: Waiters::default(),
            operation_waiters: Waiters::default(),
            operations_ended: 0,
            notices: VecDeque::new(),
            routes: HashMap::default(),
            last_route: None,
            flows: HashMap::default(),
            last_flow: None,
            run: None,
            failed: HashSet::new(),
            notice_groups: 0,
            wait_groups: 0,
            saw_congestion: false,
            map_news: false,
            descriptor: None,
            pausing: Vec::new(),
            pausing_externals: Vec::new(),
            burst_bytes: 0,
            payload_bytes_max: 0,
            attached: None,
        };
        mailbox.apply(settings, limits);
        mailbox
    }

    /// Put settings in force.
    pub fn apply(&mut self, settings: MailboxSettings, limits: &Limits) {
        self.inbox.buffer_bytes = settings.receive_bytes_max;
        self.inbox.clear_below_bytes = if self.inbox.congested {
            (settings.receive_bytes_max / 2).max(1)
        } else {
            0
        };
        self.accounts
            .resize(settings.send_bytes_max, settings.single_account);
        self.burst_bytes = LONG_WRITE_BYTES.min(self.accounts.quarter_bytes);
        self.payload_bytes_max = settings.send_bytes_max.min(limits.message_bytes_max);
        self.detailed = settings.timestamps || settings.traces;
        if !settings.monitor {
            self.notice_groups = 0;
            self.wait_groups = 0;
        }
        self.settings = settings;
    }

    /// Return whether so much is queued that a send must do more than queue.
    pub fn is_half_full(&self) -> bool {
        self.send_queued_bytes >= self.accounts.half_bytes
    }

    /// Return whether all we send goes over one path: at its limit the socket waits, else only that
    /// destination does.
    pub fn has_one_way(&self) -> bool {
        self.routes.len() == 1 || self.accounts.is_single()
    }

    /// Return the waiters at that place.
    pub fn waiters_at(&mut self, place: Place) -> &mut Waiters {
        match place {
            Place::Arrival => &mut self.receive_waiters,
            Place::Room => &mut self.room_waiters,
            Place::Operation => &mut self.operation_waiters,
            Place::Destination(id) => &mut self.accounts.at_mut(id).waiters,
        }
    }

    /// Return where to wait for room to send to a peer: at its destination if that had none.
    pub fn room_place_of(&mut self, peer: &Address) -> Place {
        let destination = match self.routes.get(peer) {
            Some(Route::Loop) => Some(HERE),
            _ => self.accounts.known(peer),
        };
        match destination {
            Some(id) if self.accounts.at(id).refused_bytes.is_some() => Place::Destination(id),
            _ => Place::Room,
        }
    }

    pub fn has_notice(&self) -> bool {
        self.notice_groups != 0 || !self.notices.is_empty()
    }

    /// Set whether the next take must do more than take.
    pub fn finish_special(&mut self) {
        self.special = self.closed
            || self.descriptor.is_some()
            || self.attached.is_some()
            || self.has_notice()
            || !self.pausing.is_empty()
            || !self.pausing_externals.is_empty();
    }

    /// Return the route to a peer.
    pub fn route_to(&mut self, peer: &Address) -> Option<Route> {
        match &self.last_route {
            Some((known, route)) if known == peer => Some(*route),
            _ => {
                let route = *self.routes.get(peer)?;
                self.last_route = Some((*peer, route));
                Some(route)
            }
        }
    }

    /// Forget or set the route to a peer.
    pub fn set_route(&mut self, peer: Address, route: Option<Route>) {
        self.forget_flows();
        if let Some(route) = route {
            self.routes.insert(peer, route);
        } else if self.routes.remove(&peer).is_some() {
            self.accounts.forget(&peer);
        }
    }

    /// Forget all routes to peers.
    pub fn forget_routes(&mut self) {
        self.forget_flows();
        self.routes.clear();
    }

    /// Have the next send to each destination make every check.
    pub fn forget_flows(&mut self) {
        self.last_route = None;
        self.last_flow = None;
        self.run = None;
        self.flows.clear();
    }

    /// Return the flow of a target, if a message went there since the routes changed.
    pub(crate) fn flow_to(&mut self, target: &SocketAddress) -> Option<Flow> {
        match &self.last_flow {
            Some((last, flow)) if last == target => Some(*flow),
            _ => {
                let flow = *self.flows.get(target)?;
                self.last_flow = Some((*target, flow));
                Some(flow)
            }
        }
    }

    /// Note that a message went to a target.
    pub(crate) fn note_flow(&mut self, target: SocketAddress, flow: Flow) {
        if self.flows.len() >= FLOWS_MAX {
            self.flows.clear();
        }
        self.flows.insert(target, flow);
        self.last_flow = Some((target, flow));
    }

    /// Note that a message was queued behind others.
    pub(crate) fn begin_run(
        &mut self,
        target: SocketAddress,
        way: RunWay,
        destination: DestinationId,
    ) {
        self.run = Some(Run {
            target,
            way,
            destination,
        });
    }

    /// Return the paths that lead to peers.
    pub fn stream_paths(&self) -> impl Iterator<Item = PathId> {
        self.routes.values().filter_map(|route| match route {
            Route::Stream(path) => Some(*path),
            Route::External(_) | Route::Loop => None,
        })
    }

    /// Messages to the peer were dropped: the next send to it fails, once.
    pub fn fail(&mut self, peer: Address) {
        self.failed.insert(peer);
        self.forget_flows();
    }

    /// Return whether this socket has sent to an address of this process.
    pub fn sends_by_loop_to(&self, address: &Address) -> bool {
        self.routes.get(address) == Some(&Route::Loop)
    }

    /// Return the group of a port as a mask.
    pub const fn group_of(port: u16) -> u64 {
        1 << (port % 64)
    }
}

impl State {
    pub(crate) fn set_route(&mut self, mailbox: MailboxId, peer: Address, route: Option<Route>) {
        let Some(record) = self.mailboxes.get_mut(mailbox) else {
            return;
        };
        record.set_route(peer, route);
        if record.attached.is_some() {
            self.note_attached_route(mailbox, peer, route);
        }
    }
}

// -- calls
//
// Other calls on a mailbox: settings, routes, cancelling, its descriptor.

/// A callback that is listed for a message or for room; see [`Plane::subscribe`].
pub type Callback = Arc<dyn Fn() + Send + Sync>;

impl Plane {
    /// Set the route to `peer`; `None` forgets it, so that the next send resolves again.
    pub fn route(&self, mailbox: MailboxId, peer: Address, route: Option<Route>) {
        self.lock().set_route(mailbox, peer, route);
    }

    /// Return whether a mailbox has a route to any peer.
    pub fn has_route(&self, mailbox: MailboxId) -> bool {
        self.lock()
            .mailboxes
            .get(mailbox)
            .is_some_and(|record| !record.routes.is_empty())
    }

    /// Have `callback` called once, from any thread and without the lock; return its list's place.
    ///
    /// For a message that is there already it is called at once; for room subscribe first, then
    /// look. With a `peer` that had no room it waits for room for that peer alone.
    pub fn subscribe(
        &self,
        mailbox: MailboxId,
        what: WaitFor,
        peer: Option<Address>,
        callback: Callback,
    ) -> Place {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(record) = state.mailboxes.get_mut(mailbox) else {
            state.wait_queue.call_soon(callback);
            return Place::Room;
        };
        if what == WaitFor::Arrival {
            if record.closed || record.has_something() {
                state.wait_queue.call_soon(callback);
            } else {
                record.receive_waiters.add_callback(callback);
            }
            return Place::Arrival;
        }
        let place = peer.map_or(Place::Room, |peer| record.room_place_of(&peer));
        record.waiters_at(place).add_callback(callback);
        place
    }

    /// Remove a callback; one that was called already passes its notification to the next waiter.
    pub fn unsubscribe(&self, mailbox: MailboxId, place: Place, callback: &Callback) {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(record) = state.mailboxes.get_mut(mailbox) else {
            return;
        };
        let waiters = record.waiters_at(place);
        if !waiters.remove_callback(callback) {
            waiters.tell(1, &mut state.wait_queue); // notified, and leaves without using it
        }
    }

    /// Replace the settings; waiters and the descriptor see the change.
    pub fn configure(&self, mailbox: MailboxId, settings: MailboxSettings) {
        {
            let mut state = self.lock();
            let state = &mut *state;
            let Some(record) = state.mailboxes.get_mut(mailbox) else {
                return;
            };
            if settings.tos != record.settings.tos {
                record.forget_routes(); // routes may use other connections now
            }
            record.apply(settings, &state.limits);
            record.receive_waiters.tell_all(&mut state.wait_queue);
            state.touched.insert(mailbox);
            state.tell_room(mailbox);
        }
        self.finish_pass();
    }

    /// Remove unacknowledged messages to that address and port, or all; return how many.
    ///
    /// Of a node's socket this includes what its client has submitted so far.
    pub fn cancel(&self, mailbox: MailboxId, peer: Option<Address>, port: Option<u16>) -> usize {
        let mut count = 0;
        let mut submitted_to = Vec::new();
        {
            let mut state = self.lock();
            let submitted = state.submitted(mailbox);
            loop {
                state.take_all_submissions(mailbox, &mut submitted_to);
                let cancelled = state.cancel_taken(mailbox, peer, port);
                count += cancelled;
                state.finish_freed_records(); // for what found no slot
                if cancelled == 0 || state.has_taken(mailbox, submitted) {
                    break;
                }
            }
            state.note_room(mailbox);
        }
        for path in submitted_to {
            self.flush(path);
        }
        self.finish_pass();
        count
    }

    /// Return how many messages of the socket wait to be sent or acknowledged.
    #[must_use]
    pub fn unacknowledged(&self, mailbox: MailboxId) -> usize {
        self.lock().unacknowledged(mailbox)
    }

    /// Return a descriptor whose readiness is that of the socket; made on the first call.
    ///
    /// # Errors
    /// `Closed` and the like; of the system, when no descriptors are left.
    pub fn fileno(&self, mailbox: MailboxId) -> Result<i32, Rejected> {
        let descriptor = {
            let mut state = self.lock();
            let record = state.open_mailbox(mailbox)?;
            if let Some(descriptor) = &record.descriptor {
                return Ok(descriptor.descriptor());
            }
            let descriptor = Arc::new(ReadinessDescriptor::new()?);
            record.descriptor = Some(Arc::clone(&descriptor));
            record.special = true;
            state.progress_thread.want();
            descriptor
        };
        self.sync(mailbox);
        Ok(descriptor.descriptor())
    }
}

impl State {
    /// Return the paths of a mailbox's address.
    pub(crate) fn paths_of(&self, mailbox: MailboxId) -> Vec<PathId> {
        let record = self.mailboxes.get(mailbox);
        let host = record.and_then(|record| self.hosts.get(record.host));
        host.map_or_else(Vec::new, |host| host.paths.clone())
    }

    /// Remove a mailbox's messages, but those of its client that were not taken yet; return how many.
    fn cancel_taken(
        &mut self,
        mailbox: MailboxId,
        peer: Option<Address>,
        port: Option<u16>,
    ) -> usize {
        let mut count = self.cancel_held(mailbox, peer, port);
        count += self.cancel_waiting_for_path(mailbox, peer, port);
        for path in self.paths_of(mailbox) {
            let leads = self
                .paths
                .get(path)
                .is_some_and(|record| peer.is_none_or(|peer| record.peer == peer));
            if leads {
                count += self.cancel_path(path, mailbox, port);
            }
        }
        count
    }

    /// Remove a mailbox's messages from a path, to one port or all; return how many.
    pub(crate) fn cancel_path(
        &mut self,
        path: PathId,
        mailbox: MailboxId,
        port: Option<u16>,
    ) -> usize {
        let Some(record) = self.paths.get_mut(path) else {
            return 0;
        };
        let count = record.core.sender.cancel(Owner(mailbox.to_u64()), port);
        self.counters.send_cancelled += count as u64;
        self.account_freed(path, |_, _| {});
        self.finish_room(path);
        count
    }

    /// Free the port, drop what no socket will read, wake all waiters; `closed` is set.
    pub(crate) fn shut_mailbox(&mut self, id: MailboxId) {
        let Some(mailbox) = self.mailboxes.get_mut(id) else {
            return;
        };
        if let Some(host) = self.hosts.get_mut(mailbox.host) {
            host.inboxes.remove(mailbox.port, id);
        }
        if mailbox.attached.is_some() {
            self.shut_attached(id);
        }
        let Some(mailbox) = self.mailboxes.get_mut(id) else {
            return;
        };
        self.counters.recv_drop_closed += mailbox.inbox.len() as u64;
        mailbox.inbox.clear();
        mailbox.notices.clear();
        mailbox.inbox.over_since_ns = None; // a second look would never end
        mailbox.closed = true;
        mailbox.special = true;
        mailbox.forget_flows();
        if mailbox.send_queued_bytes > 0 {
            self.closed_accounts.insert(id, mailbox.send_queued_bytes);
        }
        if std::mem::take(&mut mailbox.inbox.congested) {
            self.show_congestion(id, false);
        }
        if let Some(mailbox) = self.mailboxes.get_mut(id) {
            mailbox.receive_waiters.tell_all(&mut self.wait_queue);
            mailbox.room_waiters.tell_all(&mut self.wait_queue);
            mailbox.operation_waiters.tell_all(&mut self.wait_queue);
            mailbox.accounts.tell_refused(&mut self.wait_queue);
        }
    }
}
