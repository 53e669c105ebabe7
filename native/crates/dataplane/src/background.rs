//! The progress thread: work that must happen when no application thread does it.
//!
//! One daemon thread runs `Plane::help`. It flushes batches, sends late acknowledgements and asks
//! the kernel what a Linux peer's TCP has; and it reads when no other thread does. It sleeps on a
//! set of its own: a doorbell and, nested, the plane's set armed for one event. In a node, where no
//! application thread waits, it sleeps on the plane's set itself, which has the doorbell then.
//!
//! It arms only while there is no leader and no thread has made progress for a tick. Progress is
//! the end of a wait, a call of `progress`, and each message taken: a consumer that empties a full queue must not
//! have the progress thread read too, or the queue grows without bound. It sleeps longer than a
//! tick only with nothing due and either armed or with a leader for 16 ticks. That decision and
//! every change that matters to it are made under the plane's lock, so none can slip between.

use std::collections::VecDeque;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use urds_path::{AckMode, Address, Owner};

use crate::accounts::{ABSENT_NS, DestinationId};
use crate::events::Event;
use crate::external::ExternalId;
use crate::plane::Plane;
use crate::poll_set;
use crate::rules::{self, Moment, Rule};
use crate::state::{HostId, MailboxId, PathId, State};
use crate::sys::epoll::{self, Epoll};
use crate::sys::eventfd::EventFd;
use crate::sys::signals;

const TICK_NS: u64 = 1_000_000;
/// While another thread makes progress; each tick takes the processor from it.
const TICK_MAX_NS: u64 = 4_000_000;
const LEADER_TICKS: u32 = 16;
/// How long an event loop is silent before the progress thread reads in its place.
const SILENCE_NS: u64 = 50_000_000;

const DOORBELL: u64 = 0;
const PLANE: u64 = 1;

/// The part of the progress thread's state that the plane's lock guards.
#[allow(clippy::struct_excessive_bools)] // each is set on its own, by different threads
pub struct ProgressThreadState {
    /// In a sleep of more than a tick.
    pub(crate) asleep: bool,
    /// In any sleep.
    in_any_sleep: bool,
    /// `Plane::wake`: end `run` though there is no event.
    pub(crate) interrupted: bool,
    /// The doorbell rings when the lock is released.
    pub(crate) wake_due: bool,
    /// The plane's set reports one event.
    armed: bool,
    pub(crate) has_devices: bool,
    leader_ticks: u32,
    tick_ns: u64,
    loop_was_silent: bool,
}

impl Default for ProgressThreadState {
    fn default() -> Self {
        Self {
            asleep: false,
            in_any_sleep: false,
            interrupted: false,
            wake_due: false,
            armed: false,
            has_devices: false,
            leader_ticks: 0,
            tick_ns: TICK_NS,
            loop_was_silent: false,
        }
    }
}

impl ProgressThreadState {
    /// There is work: end a long sleep.
    #[inline]
    pub fn want(&mut self) {
        if self.asleep {
            self.want_now();
        }
    }

    /// There is work that cannot wait: end any sleep.
    pub fn want_now(&mut self) {
        if (self.asleep || self.in_any_sleep) && rules::holds(Rule::WakeProgressThread) {
            self.asleep = false;
            self.in_any_sleep = false;
            self.wake_due = true;
        }
    }

    /// There is no leader: an unarmed long sleep would leave the streams unread, and devices have
    /// to be armed.
    pub(crate) fn leader_left(&mut self) {
        if !self.armed || self.has_devices {
            self.want();
        }
    }
}

/// The part that needs no lock: its own set and its doorbell.
pub(crate) struct ProgressThread {
    set: Epoll,
    doorbell: EventFd,
}

impl ProgressThread {
    pub(crate) fn new(poll_set: &Epoll) -> io::Result<Self> {
        let progress_thread = Self {
            set: Epoll::new()?,
            doorbell: EventFd::new()?,
        };
        progress_thread.set.add(
            progress_thread.doorbell.descriptor(),
            epoll::READABLE,
            DOORBELL,
        )?;
        progress_thread.set.add(poll_set.descriptor(), 0, PLANE)?;
        Ok(progress_thread)
    }

    /// Have a sleep on the plane's set end as one on its own does.
    pub(crate) fn sleep_in(&self, poll_set: &Epoll) -> io::Result<()> {
        let doorbell = self.doorbell.descriptor();
        poll_set.add(doorbell, epoll::READABLE, poll_set::DOORBELL)
    }

    /// End any sleep, to check again which thread reads; takes no lock.
    pub(crate) fn ring(&self) {
        self.doorbell.ring();
    }

    pub(crate) fn close(&self) {
        self.set.close();
        self.doorbell.close();
    }
}

static RETURNS_EARLY: OnceLock<fn(bool) -> bool> = OnceLock::new();

/// Have progress threads ask, before each sleep, whether to return to their caller, which may have
/// work of its own. The argument is whether the sleep is to last more than a tick.
///
/// `ask` is called under a plane's lock, so it must not take one. Only the first call has effect.
pub fn return_early_if(ask: fn(bool) -> bool) {
    let _ = RETURNS_EARLY.set(ask);
}

fn returns_early(is_long: bool) -> bool {
    RETURNS_EARLY.get().is_some_and(|ask| ask(is_long))
}

impl Plane {
    /// Make progress and sleep until there are events or the deadline passes.
    pub(crate) fn run_progress_thread(&self, deadline_ns: Option<u64>) -> Vec<Event> {
        signals::keep_out();
        loop {
            self.serve_due();
            let mut state = self.lock();
            let now_ns = state.now_ns();
            let is_late = deadline_ns.is_some_and(|deadline_ns| now_ns >= deadline_ns);
            let events = state.take_events();
            if !events.is_empty() || is_late || state.closed || state.progress_thread.interrupted {
                state.progress_thread.interrupted = false;
                return events;
            }
            let left_ns = deadline_ns.map(|deadline_ns| deadline_ns - now_ns);
            let timeout_ns = match (self.decide(&mut state, now_ns), left_ns) {
                (Some(timeout_ns), Some(left_ns)) => Some(timeout_ns.min(left_ns)),
                (timeout_ns, left_ns) => timeout_ns.or(left_ns),
            };
            if returns_early(state.progress_thread.asleep) {
                state.progress_thread.asleep = false;
                return events;
            }
            state.progress_thread.in_any_sleep = true;
            let is_armed = state.progress_thread.armed;
            let reads = is_armed && self.has_attached.load(Ordering::Relaxed);
            drop(state);
            let is_quiet = !is_armed || self.devices.arm();
            if !is_quiet {
                self.devices.serve();
            }
            let timeout_ns = if is_quiet { timeout_ns } else { Some(0) };
            if reads {
                self.rest_reading(timeout_ns);
            } else if self.rest(timeout_ns) {
                self.lock().counters.progress_thread_passes += 1;
                self.serve_ready(Some(0));
            }
        }
    }

    /// Arm if no thread reads; return how long to sleep, `None` until woken.
    fn decide(&self, state: &mut State, now_ns: u64) -> Option<u64> {
        let driven = std::mem::take(&mut state.driven);
        let led = state.wait_queue.has_leader();
        let due_ns = self.next_due_ns(state);
        let progress_thread = &mut state.progress_thread;
        progress_thread.tick_ns = if driven || led {
            (2 * progress_thread.tick_ns).min(TICK_MAX_NS)
        } else {
            TICK_NS
        };
        progress_thread.leader_ticks = if led {
            progress_thread.leader_ticks.saturating_add(1)
        } else {
            0
        };
        // An event loop that has been silent for a while may be blocked by its own code.
        let looping = self.loops.load(Ordering::Relaxed) > 0;
        let absent = !looping || progress_thread.loop_was_silent;
        progress_thread.loop_was_silent = looping && !driven;
        if !led && !driven && absent && !progress_thread.armed {
            let mask = epoll::READABLE | epoll::ONCE;
            let (set, nested) = (&self.progress_thread.set, self.poll_set.descriptor());
            progress_thread.armed = self.has_attached.load(Ordering::Relaxed)
                || set.modify(nested, mask, PLANE).is_ok();
        }
        // Never sooner than a tick: in a burst the next batch is nearly due, and gone by then.
        let left_ns = due_ns.map(|due_ns| due_ns.saturating_sub(now_ns).max(TICK_NS));
        if state.has_attached_due() {
            return Some(0);
        }
        let progress_thread = &mut state.progress_thread;
        let left_ns = if progress_thread.loop_was_silent && !progress_thread.armed {
            Some(left_ns.map_or(SILENCE_NS, |left_ns| left_ns.min(SILENCE_NS)))
        } else if !progress_thread.armed && progress_thread.leader_ticks < LEADER_TICKS {
            // A loop that makes progress does so again soon: a tick costs it less than a wake-up
            // per message.
            return Some(left_ns.map_or(progress_thread.tick_ns, |left_ns| {
                left_ns.min(progress_thread.tick_ns)
            }));
        } else {
            left_ns
        };
        // Work due later than a tick from now must not block wake-ups that come before it.
        progress_thread.asleep =
            left_ns.is_none_or(|left_ns| left_ns > TICK_NS) && rules::holds(Rule::AsleepUnderLock);
        left_ns
    }

    /// Sleep; return whether the plane's set has something and there is no leader.
    fn rest(&self, timeout_ns: Option<u64>) -> bool {
        if timeout_ns.is_none() {
            rules::pass(Moment::ProgressThreadSleeps);
            if !rules::holds(Rule::AsleepUnderLock) {
                self.lock().progress_thread.asleep = true;
            }
        }
        let mut ready = epoll::NOTHING;
        let told = self
            .progress_thread
            .set
            .wait(&mut ready, timeout_ns)
            .unwrap_or(0);
        let mut state = self.lock();
        state.progress_thread.asleep = false;
        state.progress_thread.in_any_sleep = false;
        let mut read = false;
        for &libc::epoll_event { u64: number, .. } in &ready[..told] {
            if number == DOORBELL {
                self.progress_thread.doorbell.silence();
            } else {
                state.progress_thread.armed = false; // one event is spent, whichever thread uses it
                read = !state.wait_queue.has_leader();
            }
        }
        read
    }

    /// Sleep on the plane's set, and progress what is ready: a thread that begins to lead meanwhile
    /// may be left with none of it, and is notified.
    fn rest_reading(&self, timeout_ns: Option<u64>) {
        let mut ready = epoll::NOTHING;
        let told = self.poll_set.wait(&mut ready, timeout_ns).unwrap_or(0);
        let mut state = self.lock();
        state.progress_thread.asleep = false;
        state.progress_thread.in_any_sleep = false;
        state.progress_thread.armed = false;
        if told == 0 {
            return;
        }
        state.counters.progress_thread_passes += 1;
        drop(state);
        let ready = &ready[..told];
        if ready.iter().any(|one| one.u64 == poll_set::DOORBELL) {
            self.progress_thread.doorbell.silence();
        }
        self.serve(ready, false);
    }
}

// -- what becomes due
//
// Work that becomes due with time: in a plane, and on a path.
//
// Batches and acknowledgements of paths with streams, second checks of mailboxes over their
// buffer, ended lingers. The leader does it between two polls, else a call of `progress` or the
// progress thread.
//
// Linux does not report that its TCP has acknowledged; our TCP is asked, first after a
// millisecond, then half as often each time. A sender whose account fills asks by itself.

/// Age at which the progress thread sends a batch.
pub const BATCH_NS: u64 = 500_000;
/// How long after a write our TCP is first asked what the peer's TCP has.
pub const ACK_POLL_NS: u64 = 1_000_000;
const ACK_POLL_MAX_NS: u64 = 16_000_000;

/// When paths have to acknowledge; all wait equally long, so the first is due first.
#[derive(Default)]
pub struct AckDeadlines {
    /// In the order of time; an entry that differs from the path's time is stale.
    queue: VecDeque<(u64, PathId)>,
    /// Times by the slot of the path.
    times: Vec<Option<(PathId, u64)>>,
    count: usize,
}

impl AckDeadlines {
    /// Have a path acknowledge at a time; return whether that is new.
    pub fn insert(&mut self, path: PathId, at_ns: u64) -> bool {
        if self.times.len() <= path.place() {
            self.times.resize(path.place() + 1, None);
        }
        let before = self.times[path.place()].replace((path, at_ns));
        if before == Some((path, at_ns)) {
            return false;
        }
        self.count += usize::from(before.is_none());
        self.drop_stale();
        self.queue.push_back((at_ns, path));
        true
    }

    /// Forget the pending acknowledgement of a path: it has left.
    #[inline]
    pub fn remove(&mut self, path: PathId) {
        if let Some(entry) = self.times.get_mut(path.place())
            && entry.is_some_and(|(known, _)| known == path)
        {
            *entry = None;
            self.count -= 1;
        }
    }

    /// Return whether no acknowledgement is pending.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn drop_stale(&mut self) {
        while let Some(&(at_ns, path)) = self.queue.front()
            && self.times[path.place()] != Some((path, at_ns))
        {
            self.queue.pop_front();
        }
    }

    /// Return when the first path is due.
    pub fn first_ns(&mut self) -> Option<u64> {
        self.drop_stale();
        self.queue.front().map(|&(at_ns, _)| at_ns)
    }

    /// Move the paths that are due to the end of `paths`.
    fn take(&mut self, now_ns: u64, paths: &mut Vec<PathId>) {
        while self.first_ns().is_some_and(|at_ns| at_ns <= now_ns)
            && let Some((_, path)) = self.queue.pop_front()
        {
            self.remove(path);
            paths.push(path);
        }
    }
}

impl State {
    /// Have a path acknowledge at a time, unless its acknowledgement leaves before.
    #[inline]
    pub fn note_ack_pending(&mut self, path: PathId, at_ns: u64) {
        if self.ack_deadlines.insert(path, at_ns) {
            self.want_progress_thread_if_unread();
        }
    }

    /// Return the earliest time at which `serve_due` has work, devices apart.
    pub fn next_due_ns(&mut self) -> Option<u64> {
        let mut earliest = self.ack_deadlines.first_ns();
        if !self.dirty.is_empty() {
            earliest = sooner(earliest, self.next_dirty_ns());
        }
        for mailbox in self.looks.iter() {
            let look = self
                .mailboxes
                .get(mailbox)
                .and_then(|record| record.inbox.look_again_ns());
            earliest = sooner(earliest, look);
        }
        earliest = sooner(earliest, self.next_missing_ns());
        earliest = sooner(earliest, self.next_attached_ns());
        for linger in &self.lingering {
            earliest = sooner(earliest, Some(linger.at_ns));
        }
        earliest
    }

    /// The same for the dirty paths; those with nothing due are no longer dirty.
    fn next_dirty_ns(&mut self) -> Option<u64> {
        let mut earliest = None;
        let mut paths = std::mem::take(&mut self.spare_paths);
        paths.clear();
        paths.extend(self.dirty.iter());
        for &path in &paths {
            match self.path_due_ns(path) {
                None => drop(self.dirty.remove(path)),
                at_ns => earliest = sooner(earliest, at_ns),
            }
        }
        self.spare_paths = paths;
        earliest
    }

    /// Return when `serve_path` has something to do.
    pub fn path_due_ns(&self, path: PathId) -> Option<u64> {
        let path = self.paths.get(path)?;
        path.stream.as_ref()?;
        let mut due = None;
        if !path.blocked && !path.broken {
            // Else the stream itself reports when to continue.
            if path.core.receiver.acknowledgement_due {
                return Some(0);
            }
            due = path.core.poll_timeout();
            due = sooner(due, path.batch_since_ns.map(|since_ns| since_ns + BATCH_NS));
        }
        let sender = &path.core.sender;
        if sender.unacked_len() > 0 && sender.ack_mode == AckMode::StreamAcknowledged {
            due = sooner(due, Some(path.ack_poll_ns));
        }
        due
    }

    /// Take out the paths with something due; lingers that are over end here.
    fn take_due(&mut self, now_ns: u64, due: &mut Vec<PathId>) {
        due.extend(self.dirty.iter());
        due.retain(|&path| self.path_due_ns(path).is_some_and(|at_ns| at_ns <= now_ns));
        self.ack_deadlines.take(now_ns, due);
        self.note_absent(now_ns);
        for mailbox in self.looks.as_slice() {
            self.touched.insert(*mailbox);
        }
        self.looks.clear();
        while let Some(at) = self
            .lingering
            .iter()
            .position(|linger| linger.at_ns <= now_ns)
        {
            let linger = self.lingering.remove(at);
            self.end_linger(linger.host, linger.mailbox);
        }
    }
}

fn sooner(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

impl Plane {
    /// Return the earliest time at which `serve_due` has work, for devices too. Lock held.
    pub(crate) fn next_due_ns(&self, state: &mut State) -> Option<u64> {
        self.devices.next_due_ns(state.next_due_ns())
    }

    /// Do what is due: batches, acknowledgements, second checks, ended lingers.
    pub fn serve_due(&self) {
        let has_served = self.serve_attached();
        self.devices.serve_due(self.now_ns());
        let mut state = self.lock();
        if !state.has_dues() {
            drop(state);
            if has_served {
                self.finish_pass();
            }
            return;
        }
        let now_ns = state.now_ns();
        let mut due = Vec::new();
        state.take_due(now_ns, &mut due);
        drop(state);
        for path in due {
            self.serve_path(path, now_ns);
        }
        self.finish_pass();
    }

    /// Send every batch: a thread that is about to sleep adds nothing to it.
    pub fn flush_batches(&self) {
        let mut state = self.lock();
        state.batches = false;
        let mut paths: Vec<PathId> = state.dirty.iter().collect();
        paths.retain(|&path| {
            state
                .paths
                .get(path)
                .is_some_and(|record| record.core.wants_to_write())
        });
        drop(state);
        for path in paths {
            self.flush(path);
        }
    }

    /// Do what is due on a path: a batch, an acknowledgement, a question to TCP.
    pub fn serve_path(&self, path: PathId, now_ns: u64) {
        let (ask, before) = {
            let mut state = self.lock();
            let Some(record) = state.paths.get_mut(path) else {
                return;
            };
            record.core.handle_timeout(now_ns);
            record.batch_since_ns = None;
            let sender = &record.core.sender;
            let before = sender.unacked_len();
            let is_asked = sender.ack_mode == AckMode::StreamAcknowledged && before > 0;
            (is_asked && now_ns >= record.ack_poll_ns, before)
        };
        if ask {
            self.ask_stream(path);
            if let Some(record) = self.lock().paths.get_mut(path) {
                if record.core.sender.unacked_len() == before {
                    let delay_ns = 2 * record.ack_poll_delay_ns;
                    record.ack_poll_delay_ns = delay_ns.min(ACK_POLL_MAX_NS);
                }
                record.ack_poll_ns = now_ns + record.ack_poll_delay_ns;
            }
        }
        self.flush(path);
    }
}

// -- absent peers
//
// Absent peers: messages to them have waited long for a connection.
//
// What is queued to an absent peer moves to the third account of each socket (`accounts`).

/// A path of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnyPath {
    Stream(PathId),
    External(ExternalId),
}

/// When the peers of paths become absent; all wait equally long, so the first is due first.
#[derive(Default)]
pub struct Missing {
    /// An entry that differs from the path's time is stale.
    queue: VecDeque<(u64, AnyPath)>,
}

impl Missing {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl State {
    /// Note that messages wait for a connection from now on, if none do already.
    pub(crate) fn note_wanted(&mut self, id: PathId) {
        let at_ns = self.now_ns().saturating_add(ABSENT_NS);
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        if path.missing_at_ns.is_none() && !path.absent {
            path.missing_at_ns = Some(at_ns);
            self.missing.queue.push_back((at_ns, AnyPath::Stream(id)));
            self.progress_thread.want();
        }
    }

    /// The same for a path of a transport of messages.
    pub(crate) fn note_external_wanted(&mut self, id: ExternalId) {
        let at_ns = self.now_ns().saturating_add(ABSENT_NS);
        let Some(path) = self.externals.get_mut(id) else {
            return;
        };
        path.connected = false;
        if path.missing_at_ns.is_none() && !path.absent {
            path.missing_at_ns = Some(at_ns);
            self.missing.queue.push_back((at_ns, AnyPath::External(id)));
            self.progress_thread.want();
        }
    }

    /// Note that a path has a connection again.
    pub(crate) fn note_attached(&mut self, id: PathId) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        path.missing_at_ns = None;
        path.absent = false;
        let (host, peer) = (path.host, path.peer);
        self.note_present(host, peer);
    }

    /// The same for a path of a transport of messages.
    pub(crate) fn note_external_connected(&mut self, id: ExternalId) {
        let Some(path) = self.externals.get_mut(id) else {
            return;
        };
        path.missing_at_ns = None;
        path.absent = false;
        path.connected = true;
        let (host, peer) = (path.host, path.peer);
        self.note_present(host, peer);
    }

    fn note_present(&mut self, host: HostId, peer: Address) {
        for (mailbox, destination) in self.known_at(host, peer) {
            let Some(record) = self.mailboxes.get_mut(mailbox) else {
                continue;
            };
            if record.accounts.at(destination).absent {
                record.accounts.note_present(destination);
                self.tell_attached_of_absence(mailbox, &peer, false);
                self.tell_room(mailbox);
            }
        }
    }

    /// Return when the next peer becomes absent.
    pub(crate) fn next_missing_ns(&mut self) -> Option<u64> {
        while let Some(&(at_ns, id)) = self.missing.queue.front() {
            let missing_at_ns = match id {
                AnyPath::Stream(id) => self.paths.get(id).and_then(|path| path.missing_at_ns),
                AnyPath::External(id) => self.externals.get(id).and_then(|path| path.missing_at_ns),
            };
            if missing_at_ns == Some(at_ns) {
                return Some(at_ns);
            }
            self.missing.queue.pop_front();
        }
        None
    }

    /// Mark peers as absent for which messages have waited too long.
    pub(crate) fn note_absent(&mut self, now_ns: u64) {
        while self.next_missing_ns().is_some_and(|at_ns| at_ns <= now_ns)
            && let Some((_, id)) = self.missing.queue.pop_front()
        {
            self.note_path_absent(id);
        }
    }

    fn note_path_absent(&mut self, id: AnyPath) {
        let (host, peer) = match id {
            AnyPath::Stream(id) => {
                let Some(path) = self.paths.get_mut(id) else {
                    return;
                };
                path.missing_at_ns = None;
                path.absent = true;
                (path.host, path.peer)
            }
            AnyPath::External(id) => {
                let Some(path) = self.externals.get_mut(id) else {
                    return;
                };
                path.missing_at_ns = None;
                path.absent = true;
                (path.host, path.peer)
            }
        };
        if self.is_connected(host, peer) {
            return;
        }
        for (mailbox, destination) in self.known_at(host, peer) {
            let record = self.mailboxes.get_mut(mailbox);
            let given_up = record.map(|record| record.accounts.note_absent(destination));
            for peer in given_up.unwrap_or_default() {
                self.give_up(mailbox, peer);
            }
            self.tell_attached_of_absence(mailbox, &peer, true);
            self.tell_room(mailbox);
        }
    }

    /// Return whether any path to a peer has a connection.
    fn is_connected(&self, host: HostId, peer: Address) -> bool {
        let Some(host) = self.hosts.get(host) else {
            return false;
        };
        let by_stream = host.paths.iter().any(|&path| {
            let path = self.paths.get(path);
            path.is_some_and(|path| path.peer == peer && path.stream.is_some())
        });
        by_stream
            || host.externals.iter().any(|&path| {
                let path = self.externals.get(path);
                path.is_some_and(|path| path.peer == peer && path.connected)
            })
    }

    /// Return the sockets that have sent to a peer, with its destination at each.
    fn known_at(&mut self, host: HostId, peer: Address) -> Vec<(MailboxId, DestinationId)> {
        let host = self.hosts.get(host);
        let inboxes = host.iter().flat_map(|host| host.inboxes.values());
        let mailboxes: Vec<MailboxId> = inboxes.copied().collect();
        let known = mailboxes.into_iter().filter_map(|mailbox| {
            let record = self.mailboxes.get_mut(mailbox)?;
            Some((mailbox, record.accounts.known(&peer)?))
        });
        known.collect()
    }

    /// Drop what a socket has queued to the peer that is absent longest; it is reported once.
    fn give_up(&mut self, mailbox: MailboxId, peer: Address) {
        for id in self.paths_of(mailbox) {
            let Some(path) = self.paths.get_mut(id) else {
                continue;
            };
            if path.peer != peer {
                continue;
            }
            let owner = Owner(mailbox.to_u64());
            let count = path.core.sender.cancel(owner, None) as u64;
            self.counters.send_given_up += count;
            self.account_freed(id, |_, _| {});
            self.finish_room(id);
            if let Some(record) = self.mailboxes.get_mut(mailbox) {
                record.given_up += count;
            }
        }
        let host = self.mailboxes.get(mailbox).map(|record| record.host);
        for path in host.map_or_else(Vec::new, |host| self.external_holders(host, mailbox)) {
            if self
                .externals
                .get(path)
                .is_some_and(|path| path.peer == peer)
            {
                self.emit(Event::GiveUp { path, mailbox });
            }
        }
        self.fail_towards(mailbox, peer);
    }
}

#[cfg(test)]
#[path = "background_tests.rs"]
mod tests;

#[cfg(test)]
mod dues_tests {
    use super::*;

    fn path(slot: u64, generation: u64) -> PathId {
        PathId::from_u64(slot << 32 | generation)
    }

    #[test]
    fn the_first_pending_ack_is_due_first() {
        let mut ack_deadlines = AckDeadlines::default();
        assert!(ack_deadlines.insert(path(1, 0), 10));
        assert!(ack_deadlines.insert(path(0, 0), 20));
        assert!(!ack_deadlines.insert(path(1, 0), 10), "known");
        assert_eq!(ack_deadlines.first_ns(), Some(10));
        let mut due = Vec::new();
        ack_deadlines.take(15, &mut due);
        assert_eq!(
            (due, ack_deadlines.first_ns()),
            (vec![path(1, 0)], Some(20))
        );
    }

    #[test]
    fn a_sent_ack_is_no_longer_pending() {
        let mut ack_deadlines = AckDeadlines::default();
        ack_deadlines.insert(path(1, 0), 10);
        ack_deadlines.remove(path(1, 7)); // an older path of the same slot
        assert!(!ack_deadlines.is_empty());
        ack_deadlines.remove(path(1, 0));
        assert!(ack_deadlines.is_empty());
        assert_eq!(ack_deadlines.first_ns(), None);
        ack_deadlines.insert(path(1, 0), 30);
        ack_deadlines.insert(path(1, 0), 40); // the old one left in a write
        let mut due = Vec::new();
        ack_deadlines.take(35, &mut due);
        assert_eq!((due.len(), ack_deadlines.first_ns()), (0, Some(40)));
        assert_eq!(ack_deadlines.queue.len(), 1, "nothing stale stays");
    }
}
