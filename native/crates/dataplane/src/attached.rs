//! Sockets of other processes: the plane serves their memory in place of a mailbox's queues.
//!
//! A client puts messages into its socket memory and rings the control socket; a pass takes them
//! from there, a bounded number of each socket, and queues them on paths with the functions of
//! `send_side`. What arrives for the socket goes into that memory in the read. No call waits for a
//! client, no Python runs for a message, and a client that writes nonsense loses its own socket and
//! nothing else.
//!
//! The send account is the client's: it compares what it sent with what was freed. Decided here is
//! what concerns others: routes, lengths, the limit of a path, where a message comes from.
//!
//! A sent message is not copied: its payload on the path is a place in the memory of its socket. The
//! record there is freed when the last reference to it is dropped: after the peer acknowledged it,
//! or it was cancelled or given up, and once no write has it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use urds_channel::socket_memory::layout::ROUTES;
use urds_channel::socket_memory::{ClientError as Nonsense, Name, NodeSide, Word};
use urds_channel::sys::doorbell::{self, Heard};
use urds_path::Address;

use crate::errors::{ErrorReason, Rejected};
use crate::events::Event;
use crate::mailbox::Mailbox;
use crate::plane::Plane;
use crate::poll_set;
use crate::state::{MailboxId, PathId, State};
use crate::sys::descriptor::Descriptor;
use crate::sys::epoll;
use crate::sys::sent_record::SendMemory;
use crate::table::IdSet;

mod congestion;
mod held;
mod receive;
mod restore;
mod send;
pub(crate) mod steps;

use held::HeldMessages;
pub(crate) use receive::Details;
pub(crate) use restore::Delivery;
use send::Rest;

#[cfg(test)]
mod restore_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod waiting_tests;

/// How often a socket is looked at whose client cannot ring, as its control socket is full.
pub(crate) const LOOK_NS: u64 = 1_000_000;
/// How long pages of a receive area stay that a long queue took, when it is empty.
pub(crate) const LATE_NS: u64 = 100_000_000;
/// The longest time that `SO_LINGER` has here.
const LINGER_S_MAX: u32 = 3600;
/// Each area of a memory holds its buffer so many times.
const AREA_FACTOR: usize = 4;

/// The node's end of the control socket of an attached socket.
#[derive(Debug)]
pub struct ControlSocket(Descriptor);

impl ControlSocket {
    /// Make the client's descriptor readable: its reader slept. No lock held.
    pub(crate) fn show(&self) {
        doorbell::ring(self.0.get());
    }

    /// Read what is there, a bounded number of bytes: a client that writes all the time does not hold
    /// the plane, whose lock may be held.
    fn empty(&self) -> Heard {
        doorbell::empty(self.0.get())
    }
}

/// What the plane has of an attached socket beside its mailbox.
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
pub struct Attached {
    side: NodeSide,
    memory: Arc<SendMemory>,
    control: Arc<ControlSocket>,
    /// The peer of each number of a route.
    routes: Vec<Address>,
    by_peer: HashMap<Address, u32>,
    /// Messages that were taken and wait for room, or for a route.
    held: HeldMessages,
    /// Its journal has no slot for what is submitted.
    waits_for_slot: bool,
    /// Attached sockets whose messages wait until this one has taken some.
    waiting: Vec<MailboxId>,
    /// The client's last descriptor was closed: until when to take what it left.
    left_until_ns: Option<u64>,
    /// The greatest buffers that its memory has room for, to send and to receive.
    buffers_max: (usize, usize),
    /// Something was delivered in this pass, at whose end its reader is shown it if it sleeps.
    has_published: bool,
    /// Where the last message to a socket of this node went.
    last_receiver: Option<MailboxId>,
    /// Which socket of the node this is, for the next worker.
    number: u64,
    /// The worker before had closed it: it has no port, and is there for what it sent.
    was_left: bool,
    /// `Left` or `ClientError` was reported.
    is_over: bool,
    is_restricted: bool,
    /// How many submissions are still taken while it is.
    taken_while_restricted: u32,
}

/// Records whose last reference was dropped, with their sockets; pushed by any thread.
#[derive(Clone, Default)]
pub(crate) struct FreedRecords(Arc<FreedList>);

#[derive(Default)]
struct FreedList {
    list: Mutex<Vec<(MailboxId, u32)>>,
    is_any: AtomicBool,
}

impl FreedRecords {
    pub(crate) fn push(&self, mailbox: MailboxId, slot: u32) {
        self.0.list.lock().push((mailbox, slot));
        self.0.is_any.store(true, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.0.is_any.load(Ordering::Acquire)
    }

    fn take(&self) -> Vec<(MailboxId, u32)> {
        self.0.is_any.store(false, Ordering::Release);
        std::mem::take(&mut *self.0.list.lock())
    }
}

/// The attached sockets of a plane that something is due for.
#[derive(Default)]
pub(crate) struct AttachedTables {
    /// How many there are.
    count: usize,
    /// To be served in the next pass.
    pub(crate) due: IdSet<Mailbox>,
    /// Looked at from time to time: the client cannot ring.
    pub(crate) looked_at: IdSet<Mailbox>,
    look_ns: u64,
    /// Empty, with pages to give back at `late_ns`.
    pub(crate) late: IdSet<Mailbox>,
    late_ns: u64,
    /// Of which records were freed in this pass.
    roomy: IdSet<Mailbox>,
    /// To be shown as readable once the lock is free.
    pub(crate) shown: Vec<Arc<ControlSocket>>,
    pub(crate) freed: FreedRecords,
    /// Maps for clients to read.
    maps: Option<congestion::Maps>,
    /// The numbers of paths, for the next worker.
    pub(crate) numbers: Option<restore::Numbers>,
}

impl AttachedTables {
    /// Return when sockets are looked at that nothing else tells of.
    fn next_look_ns(&self) -> Option<u64> {
        let look = (!self.looked_at.is_empty()).then_some(self.look_ns);
        let late = (!self.late.is_empty()).then_some(self.late_ns);
        [look, late].into_iter().flatten().min()
    }
}

/// What is given to the plane for an attached socket.
pub struct SocketParts {
    /// The node's end of the control socket; owned from now on.
    pub control: i32,
    pub side: NodeSide,
    pub memory: SendMemory,
    /// An earlier worker closed it; its port may be another socket's.
    pub was_left: bool,
}

impl Plane {
    /// Serve the memory of a bound socket from now on. What it has submitted is taken at once.
    ///
    /// One that an earlier worker had closed gives its port back here, and is reported as left once
    /// all that it sent is on a path.
    ///
    /// # Errors
    /// `Closed` and the like; of the system, when the control socket cannot be watched.
    pub fn attach_socket(
        &self,
        mailbox: MailboxId,
        mut parts: SocketParts,
    ) -> Result<(), Rejected> {
        let control = Arc::new(ControlSocket(Descriptor::new(parts.control)));
        {
            let mut state = self.lock();
            if !self.has_attached.load(Ordering::Relaxed) {
                self.progress_thread.sleep_in(&self.poll_set)?;
                self.has_attached.store(true, Ordering::Relaxed);
            }
            let state = &mut *state;
            let record = state.open_mailbox(mailbox)?;
            let local = name_of(&record.local, record.port);
            let number = poll_set::ATTACHED | mailbox.to_u64();
            let mask = epoll::READABLE | epoll::EDGE;
            state.poll_set.set.add(control.0.get(), mask, number)?;
            parts.side.set_local(Some(local));
            parts.side.set_over_quota(false); // as the worker before left it; `restrict` says else
            let (send_bytes, receive_bytes) = parts.side.area_bytes();
            let record = state.open_mailbox(mailbox)?;
            record.attached = Some(Box::new(Attached {
                side: parts.side,
                memory: Arc::new(parts.memory),
                control,
                routes: Vec::new(),
                by_peer: HashMap::new(),
                held: HeldMessages::default(),
                waits_for_slot: false,
                waiting: Vec::new(),
                left_until_ns: None,
                buffers_max: (send_bytes / AREA_FACTOR, receive_bytes / AREA_FACTOR),
                has_published: false,
                last_receiver: None,
                number: restore::socket_number(&record.local, record.port, parts.was_left),
                was_left: parts.was_left,
                is_over: false,
                is_restricted: false,
                taken_while_restricted: 0,
            }));
            record.special = true;
            state.attached.count += 1;
            if parts.was_left {
                state.leave_port(mailbox);
            }
            state.restore_socket(mailbox);
            state.attached.due.insert(mailbox);
            state.progress_thread.want_now();
        }
        Ok(())
    }

    /// Return the number of the route to a peer of an attached socket, and the generation of its
    /// routes; the peer has a route.
    ///
    /// # Errors
    /// `Closed` and the like, `NoRoute`; `QueueFull` with all numbers in use.
    pub fn route_number(&self, id: MailboxId, peer: Address) -> Result<(u32, u32), Rejected> {
        let mut state = self.lock();
        let state = &mut *state;
        let record = state.open_mailbox(id)?;
        let is_known = record.routes.contains_key(&peer);
        let Some(attached) = &mut record.attached else {
            return Err(ErrorReason::NoRoute.into());
        };
        if !is_known {
            return Err(ErrorReason::NoRoute.into());
        }
        let generation = attached.side.routes_generation();
        if let Some(&number) = attached.by_peer.get(&peer) {
            return Ok((number, generation));
        }
        if attached.routes.len() >= ROUTES {
            return Err(ErrorReason::QueueFull.into());
        }
        let number = u32::try_from(attached.routes.len()).unwrap_or(u32::MAX);
        attached
            .side
            .journal()
            .set_route(number, &name_of(&peer, 0));
        attached.routes.push(peer);
        attached.by_peer.insert(peer, number);
        let slot = state.congestion_slot(id, peer);
        if let Some(attached) = state.attached_mut(id) {
            attached.side.open_route(number, slot);
        }
        Ok((number, generation))
    }

    /// Report once to the client that nothing can be sent to a peer; drop the message that waits, and
    /// what an earlier worker has sent there.
    pub fn fail_route(&self, id: MailboxId, peer: Address, errno: i32) {
        let mut state = self.lock();
        let Some(attached) = state.attached_mut(id) else {
            return;
        };
        let route = attached.by_peer.get(&peer).copied();
        let held = route.and_then(|route| {
            attached.held.end_asking(route);
            attached.held.pop(route)
        });
        if let Some(held) = held {
            state.free_held(id, &[held.slot]);
        }
        // What an earlier worker has sent there has no other way either.
        let sent = state.cancel_waiting_for_path(id, Some(peer), None);
        if (held.is_some() || sent > 0)
            && let Some(attached) = state.attached_mut(id)
        {
            attached.report(&peer, errno); // not for what was cancelled meanwhile
        }
        state.serve_soon(id);
    }

    /// Refuse the sends of a socket whose user is over its quota of memory, and mark its port.
    pub fn restrict(&self, id: MailboxId, is_restricted: bool) {
        let mut state = self.lock();
        let Some(attached) = state.attached_mut(id) else {
            return;
        };
        attached.side.set_over_quota(is_restricted);
        if std::mem::replace(&mut attached.is_restricted, is_restricted) != is_restricted {
            // What lies there already is sent, or its memory would never be free.
            attached.taken_while_restricted = attached.side.submissions().unwrap_or(0);
            state.touched.insert(id);
            state.serve_soon(id);
        }
    }

    /// Take what a client that has hung up submitted; return whether nothing of it waits, or its
    /// time is over.
    pub fn take_rest(&self, id: MailboxId) -> bool {
        let mut submitted_to = Vec::new();
        let is_taken = {
            let mut state = self.lock();
            state.note_left(id);
            state.take_all_submissions(id, &mut submitted_to);
            let waits = state.waits_for_path(id);
            state.attached_mut(id).is_none_or(|attached| {
                let is_empty =
                    attached.held.is_empty() && attached.side.submissions().unwrap_or(0) == 0;
                attached.is_over || is_empty && !waits
            })
        };
        for path in submitted_to {
            self.flush(path);
        }
        self.finish_pass();
        is_taken
    }

    /// Return whether a closed mailbox has nothing left to send.
    pub fn is_over(&self, id: MailboxId) -> bool {
        let state = self.lock();
        if state.mailboxes.get(id).is_some() {
            return false;
        }
        let mut lingering = state.lingering.iter();
        !lingering.any(|one| one.mailbox == id && state.has_queued(one.host, id))
    }

    /// Read the words of an attached socket's client; `None` if it is none.
    pub fn read_attached<T>(&self, id: MailboxId, read: impl FnOnce(&NodeSide) -> T) -> Option<T> {
        let mut state = self.lock();
        state.attached_mut(id).map(|attached| read(&attached.side))
    }

    /// The control socket of an attached socket reports something. No lock held.
    pub(crate) fn serve_control_socket(&self, id: MailboxId, events: u32) {
        let Some((control, is_filled)) = self.lock().control_of(id) else {
            return;
        };
        // What fills it stays until there is room, or it would show as writable. The word is set before
        // the first of those bytes; what `sleep` saw of it may be older than they are.
        let heard = if is_filled {
            Heard::Nothing
        } else {
            control.empty()
        };
        let mut state = self.lock();
        if heard == Heard::End || events & epoll::BROKEN != 0 {
            state.note_left(id);
        }
        state.attached.due.insert(id);
    }

    /// Serve each attached socket that something is due for, once; return whether any was.
    #[inline]
    pub(crate) fn serve_attached(&self) -> bool {
        self.has_attached.load(Ordering::Relaxed) && self.serve_all_attached()
    }

    fn serve_all_attached(&self) -> bool {
        let mut due = Vec::new();
        {
            let mut state = self.lock();
            if !state.has_attached_due() {
                return false;
            }
            state.look_at_filled();
            state.give_back_late();
            state.attached.due.drain_into(&mut due);
        }
        let mut paths = Vec::new();
        for &id in &due {
            self.lock().serve_socket(id, &mut paths);
            for path in paths.drain(..) {
                self.flush(path);
            }
        }
        true
    }
}

impl State {
    #[inline]
    pub(crate) fn attached_mut(&mut self, id: MailboxId) -> Option<&mut Attached> {
        self.mailboxes.get_mut(id)?.attached.as_deref_mut()
    }

    fn control_of(&mut self, id: MailboxId) -> Option<(Arc<ControlSocket>, bool)> {
        let attached = self.attached_mut(id)?;
        Some((Arc::clone(&attached.control), attached.side.is_filled()))
    }

    #[inline]
    pub(crate) fn has_attached(&self) -> bool {
        self.attached.count > 0
    }

    /// Have the sockets served whose messages waited for this one.
    pub(crate) fn serve_waiting(&mut self, id: MailboxId) {
        let Some(attached) = self.attached_mut(id) else {
            return;
        };
        for sender in std::mem::take(&mut attached.waiting) {
            self.serve_soon(sender);
        }
    }

    /// Have the next pass serve an attached socket.
    pub(crate) fn serve_soon(&mut self, id: MailboxId) {
        self.attached.due.insert(id);
        self.progress_thread.want_now();
    }

    /// Return whether an attached socket is to be served now.
    pub fn has_attached_due(&self) -> bool {
        self.attached.count > 0
            && (!self.attached.due.is_empty()
                || self.attached.freed.is_any()
                || self
                    .attached
                    .next_look_ns()
                    .is_some_and(|ns| self.now_ns() >= ns))
    }

    /// Return when an attached socket is to be served.
    pub(crate) fn next_attached_ns(&self) -> Option<u64> {
        if self.attached.count == 0 {
            None
        } else if !self.attached.due.is_empty() || self.attached.freed.is_any() {
            Some(0)
        } else {
            self.attached.next_look_ns()
        }
    }

    /// Have the pages given back that a long queue took, unless it is long again by then.
    pub(super) fn note_late(&mut self, id: MailboxId) {
        if self.attached.late.is_empty() {
            self.attached.late_ns = self.now_ns() + LATE_NS;
            self.progress_thread.want();
        }
        self.attached.late.insert(id);
    }

    fn give_back_late(&mut self) {
        if self.attached.late.is_empty() || self.now_ns() < self.attached.late_ns {
            return;
        }
        let mut late = Vec::new();
        self.attached.late.drain_into(&mut late);
        for id in late {
            let Some(attached) = self.attached_mut(id) else {
                continue;
            };
            attached.side.give_back_late();
            let is_due = attached.take_one_held_up();
            if attached.side.has_late() {
                self.note_late(id); // a sender had the lock
            }
            if is_due {
                self.attached.due.insert(id);
            }
        }
    }

    fn look_at_filled(&mut self) {
        let now_ns = self.now_ns();
        if now_ns >= self.attached.look_ns {
            let looked_at = std::mem::take(&mut self.attached.looked_at);
            for id in looked_at.iter() {
                self.attached.due.insert(id);
            }
            self.attached.look_ns = now_ns + LOOK_NS;
        }
    }

    /// Serve a socket until nothing it submitted is left, but for what has to wait.
    pub(crate) fn take_all_submissions(&mut self, id: MailboxId, paths: &mut Vec<PathId>) {
        // A pass may be over before all that waited is queued, which is older.
        let left = |state: &mut Self| {
            let attached = state.attached_mut(id)?;
            let count = attached
                .side
                .submissions()
                .ok()
                .filter(|&count| count > 0)?;
            Some((count, attached.held.count()))
        };
        let mut before = left(self);
        while before.is_some() {
            self.serve_socket(id, paths);
            let after = left(self);
            if after >= before {
                break;
            }
            before = after;
        }
    }

    /// One pass of a socket: take what it submitted, and see what it took.
    fn serve_socket(&mut self, id: MailboxId, paths: &mut Vec<PathId>) {
        let Some(attached) = self.attached_mut(id) else {
            return;
        };
        if attached.is_over || self.is_restoring() {
            return;
        }
        let Some(attached) = self.attached_mut(id) else {
            return;
        };
        attached.side.wake();
        self.touched.insert(id);
        let rest = match self.take_submissions(id, paths) {
            Ok(rest) => rest,
            Err(Nonsense(what)) => {
                self.end_attached(id, what);
                return;
            }
        };
        let now_ns = self.now_ns();
        let Some(attached) = self.attached_mut(id) else {
            return;
        };
        if let Some(until_ns) = attached.left_until_ns {
            let is_taken = rest == Rest::Nothing && attached.held.is_empty();
            if until_ns <= now_ns || is_taken && !self.waits_for_path(id) {
                self.report_left(id);
            } else {
                self.look_later(id); // what is held waits for its path
            }
            return;
        }
        if attached.is_held_up() && attached.side.submissions() != Ok(0) {
            self.note_late(id); // what it submits all the same waits
            self.show_again(id);
            return;
        }
        match rest {
            Rest::More => return,
            Rest::Waits => {
                attached.side.note_filled(); // awake: no doorbell for what would wait too
                self.show_again(id);
            }
            Rest::Nothing => self.let_sleep(id),
        }
        self.empty_control_socket(id);
    }

    /// Have a client ring from now on, unless there is something to do by now.
    fn let_sleep(&mut self, id: MailboxId) {
        let Some(attached) = self.attached_mut(id) else {
            return;
        };
        match attached.side.sleep() {
            Ok(true) => {}
            Ok(false) => {
                self.show_again(id);
                self.attached.due.insert(id);
            }
            Err(Nonsense(what)) => self.end_attached(id, what),
        }
    }

    /// Make the control socket writable again once there is room, or look again in a while.
    fn empty_control_socket(&mut self, id: MailboxId) {
        let Some(attached) = self.attached_mut(id) else {
            return;
        };
        if attached.side.must_empty() {
            if attached.control.empty() == Heard::End {
                self.note_left(id);
            }
            self.serve_soon(id); // a doorbell may have been among what was read
        } else if attached.side.was_filled() {
            self.look_later(id);
        }
    }

    fn look_later(&mut self, id: MailboxId) {
        if self.attached.looked_at.is_empty() {
            self.attached.look_ns = self.now_ns() + LOOK_NS;
            self.progress_thread.want();
        }
        self.attached.looked_at.insert(id);
    }

    /// Show a reader that counts as asleep what it has not read: it may have rung for that.
    fn show_again(&mut self, id: MailboxId) {
        let attached = self.attached_mut(id);
        if attached.is_some_and(|attached| attached.side.must_show_again()) {
            self.show(id);
        }
    }

    /// Have a client's descriptor be readable once the lock is free.
    fn show(&mut self, id: MailboxId) {
        if let Some(attached) = self.attached_mut(id) {
            let control = Arc::clone(&attached.control);
            self.attached.shown.push(control);
        }
    }

    /// The client's last descriptor is closed: what it has submitted is still taken.
    fn note_left(&mut self, id: MailboxId) {
        let (now_ns, default_ns) = (self.now_ns(), self.limits.linger_ns);
        self.unwatch_attached(id);
        if let Some(attached) = self.attached_mut(id) {
            let linger_ns = attached.linger_ns().unwrap_or(default_ns);
            let until_ns = now_ns.saturating_add(linger_ns);
            attached.left_until_ns.get_or_insert(until_ns);
            self.serve_soon(id);
        }
    }

    /// Have a socket without a port, which its client closed while an earlier worker served it.
    fn leave_port(&mut self, id: MailboxId) {
        if let Some(record) = self.mailboxes.get(id)
            && let Some(host) = self.hosts.get_mut(record.host)
        {
            host.inboxes.remove(record.port, id);
        }
        self.note_left(id);
    }

    fn report_left(&mut self, id: MailboxId) {
        if let Some(attached) = self.attached_mut(id)
            && !std::mem::replace(&mut attached.is_over, true)
        {
            self.emit(Event::Left { mailbox: id });
        }
    }

    /// End a socket whose client broke the protocol in its memory.
    pub(crate) fn end_attached(&mut self, id: MailboxId, what: &'static str) {
        self.unwatch_attached(id);
        if let Some(attached) = self.attached_mut(id)
            && !std::mem::replace(&mut attached.is_over, true)
        {
            doorbell::end(attached.control.0.get());
            self.emit(Event::ClientError { mailbox: id, what });
        }
    }

    /// Remove a control socket from the poll set: copies of it outlive ours.
    fn unwatch_attached(&mut self, id: MailboxId) {
        let control = self.control_of(id);
        if let Some((control, _)) = control {
            let _ = self.poll_set.set.remove(control.0.get()); // not there for the second time
        }
    }

    /// Forget an attached socket that is closed: its port is free, its messages stay on their paths.
    pub(crate) fn shut_attached(&mut self, id: MailboxId) {
        self.unwatch_attached(id);
        let Some(record) = self.mailboxes.get_mut(id) else {
            return;
        };
        let Some(attached) = record.attached.take() else {
            return;
        };
        attached.side.set_local(None);
        self.attached.count -= 1;
        self.attached.due.remove(id);
        self.attached.looked_at.remove(id);
        self.attached.late.remove(id);
        for sender in attached.waiting {
            self.serve_soon(sender);
        }
    }
}

impl Attached {
    /// Return the time of `SO_LINGER`, as the client set it.
    pub(crate) fn linger_ns(&self) -> Option<u64> {
        let seconds = self.side.options().get(Word::Linger).checked_sub(1)?;
        Some(u64::from(seconds.min(LINGER_S_MAX)) * 1_000_000_000)
    }

    /// Return whether nothing of it is taken: its client submits in spite of the quota.
    fn is_held_up(&self) -> bool {
        let is_over = self.is_restricted && self.taken_while_restricted == 0;
        is_over && self.left_until_ns.is_none()
    }

    /// Have one message taken that is held up, once all before it are freed; tell whether there is
    /// one. Its client may have looked at the word before that was set: untaken, it would have the
    /// pages of its socket stay, and its user over the quota, for ever.
    fn take_one_held_up(&mut self) -> bool {
        let is_due = self.is_held_up()
            && !self.side.holds_messages()
            && self.side.submissions().is_ok_and(|count| count > 0);
        self.taken_while_restricted += u32::from(is_due);
        is_due
    }

    pub(crate) fn is_restricted(&self) -> bool {
        self.is_restricted
    }

    /// Return whether messages of other sockets wait until this one has taken some.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Leave an error number for the next send to a peer.
    pub(crate) fn report(&mut self, peer: &Address, errno: i32) {
        if let Some(&number) = self.by_peer.get(peer) {
            self.side.set_route_error(number, errno);
        }
    }
}

/// Return the address that a name of the memory has.
pub(crate) fn address_of(name: &Name) -> Address {
    let six = Ipv6Addr::from(name.address);
    let ip = six.to_ipv4_mapped().map_or(IpAddr::V6(six), IpAddr::V4);
    Address::scoped(ip, name.scope)
}

/// Return an address as the memory has it.
pub(crate) fn name_of(address: &Address, port: u16) -> Name {
    let address_bytes = match address.ip() {
        IpAddr::V4(four) => four.to_ipv6_mapped().octets(),
        IpAddr::V6(six) => six.octets(),
    };
    Name {
        address: address_bytes,
        port,
        scope: address.scope,
    }
}
