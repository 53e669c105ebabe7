//! Leader/follower waiting of threads on one poll set.
//!
//! A thread that waits for its mailbox either becomes the *leader*, sleeps in `epoll` on the
//! plane's set and makes progress on what is ready, or it is a *follower* and parks. The rules,
//! each with a scenario in `tests/rds/sockets/wakeup_compiled.py` that hangs without it:
//!
//! - list before sleeping: a waiter lists itself in the critical section that found nothing
//! - look after notice: to notify is to swap NOTIFIED in first; a waiter so marked does not sleep
//! - kick the leader: a leader sleeps in epoll, so it is woken by the kick descriptor
//! - only the leader reads the kick
//! - name a successor: a thread that leaves the leader slot empty wakes a follower, if there is
//!   one; that one may be leaving too, so the rule holds for each
//! - pass it on: a waiter that was notified and leaves without using it notifies the next one
//!
//! The lists are guarded by the plane's lock; threads are woken after it is released.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::errors::{ErrorReason, Rejected};
use crate::mailbox::Place;
use crate::plane::{Locked, Plane};
use crate::rules::{self, Moment, Rule};
use crate::send_side::{Message, Sent};
use crate::spinning::SPELL_NS;
use crate::state::{MailboxId, State};
use crate::sys::eventfd::EventFd;
use crate::sys::{epoll, futex, signals};
use crate::waiter_state::{WaiterState, Wake};

/// A subscriber's callback, called once and without the lock.
pub type Callback = Arc<dyn Fn() + Send + Sync>;

/// One per current wait; its state says what its thread is doing.
///
/// The state becomes `IN_POLL` or `PARKED` under the plane's lock only. A waiter is never freed but
/// reused: at worst a late wake-up reaches another wait, and every thread looks again after one.
#[derive(Debug)]
pub struct Waiter {
    word: WaiterState,
}

/// Waiters that no thread uses; a thread that ends puts its own here.
static SPARE: Mutex<Vec<&'static Waiter>> = Mutex::new(Vec::new());

struct Own(Vec<&'static Waiter>);

impl Drop for Own {
    fn drop(&mut self) {
        // In the child of a fork the lock may be held for ever.
        if let Some(mut spare) = SPARE.try_lock() {
            spare.append(&mut self.0);
        }
    }
}

thread_local! {
    static OWN: RefCell<Own> = const { RefCell::new(Own(Vec::new())) };
}

impl Waiter {
    /// Return a waiter that is the caller's until `give_back`; a nested wait gets another.
    pub(crate) fn take() -> &'static Self {
        let own = OWN.try_with(|own| own.borrow_mut().0.pop()).ok().flatten();
        own.or_else(|| SPARE.try_lock()?.pop()).unwrap_or_else(|| {
            Box::leak(Box::new(Self {
                word: WaiterState::new(),
            }))
        })
    }

    pub(crate) fn give_back(&'static self) {
        // At the end of a thread its list is gone: then this one is lost, which costs four bytes.
        let _ = OWN.try_with(|own| own.borrow_mut().0.push(self));
    }

    /// Park until notified, for a limited time. No lock held.
    ///
    /// # Errors
    /// `Interrupted` by a signal.
    pub(crate) fn sleep(&self, timeout_ns: Option<u64>) -> io::Result<()> {
        match self.word.parked_value() {
            Err(_) if rules::holds(Rule::LookAfterNotice) => Ok(()),
            Ok(doing) | Err(doing) => futex::wait(self.word.atomic(), doing, timeout_ns),
        }
    }

    /// Return whether a leader that is awake was notified.
    pub(crate) fn is_notified(&self) -> bool {
        self.word.is_notified()
    }

    /// Note that the leader is out of its poll. No lock needed: only it changes this.
    pub(crate) fn leave_poll(&self) {
        self.word.leave_poll();
    }
}

enum Listed {
    Thread(&'static Waiter),
    Callback(Callback),
}

impl Listed {
    fn is(&self, waiter: &'static Waiter) -> bool {
        matches!(self, Self::Thread(listed) if std::ptr::eq(*listed, waiter))
    }

    fn calls(&self, callback: &Callback) -> bool {
        matches!(self, Self::Callback(listed) if Arc::ptr_eq(listed, callback))
    }
}

/// The waiters of one mailbox for one thing, notified in order of arrival.
#[derive(Default)]
pub struct Waiters {
    queue: VecDeque<Listed>,
}

impl Waiters {
    /// Add a thread once. Lock held.
    pub(crate) fn add(&mut self, waiter: &'static Waiter) {
        if !self.queue.iter().any(|listed| listed.is(waiter)) {
            self.queue.push_back(Listed::Thread(waiter));
        }
    }

    pub(crate) fn remove(&mut self, waiter: &'static Waiter) {
        if let Some(at) = self.queue.iter().position(|listed| listed.is(waiter)) {
            self.queue.remove(at);
        }
    }

    /// Add a callback; it is called once, without the lock. Lock held.
    pub fn add_callback(&mut self, callback: Callback) {
        self.queue.push_back(Listed::Callback(callback));
    }

    /// Remove a callback; return false if it was called, and so removed, before. Lock held.
    pub fn remove_callback(&mut self, callback: &Callback) -> bool {
        let at = self.queue.iter().position(|listed| listed.calls(callback));
        at.and_then(|at| self.queue.remove(at)).is_some()
    }

    /// Notify at most `count` waiters; the reading thread counts: it looks before it sleeps.
    #[inline]
    pub fn tell(&mut self, count: usize, wait_queue: &mut WaitQueue) {
        if !self.queue.is_empty() {
            self.tell_some(count, wait_queue);
        }
    }

    fn tell_some(&mut self, mut count: usize, wait_queue: &mut WaitQueue) {
        if let Some(leader) = wait_queue.leader
            && let Some(at) = self.queue.iter().position(|listed| listed.is(leader))
            && leader.word.notify_running()
        {
            // If a signal ends its wait, it passes this on.
            self.queue.remove(at);
            count = count.saturating_sub(1);
        }
        while count > 0
            && let Some(listed) = self.queue.pop_front()
        {
            wait_queue.notify(listed);
            count -= 1;
        }
    }

    /// Notify all waiters: a change that concerns each.
    pub fn tell_all(&mut self, wait_queue: &mut WaitQueue) {
        while rules::holds(Rule::ClosingTells)
            && let Some(listed) = self.queue.pop_front()
        {
            wait_queue.notify(listed);
        }
    }

    /// Return whether there are no waiters.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// Leader, followers and the wake-ups that are due once the lock is free.
#[derive(Default)]
pub struct WaitQueue {
    leader: Option<&'static Waiter>,
    followers: VecDeque<&'static Waiter>,
    wakes: Wakes,
}

/// Threads to wake, taken out under the lock and woken without it.
#[derive(Default)]
pub(crate) struct Wakes {
    is_due: bool,
    kick: bool,
    parked: Option<&'static Waiter>,
    more_parked: Vec<&'static Waiter>, // of the rare pass that wakes several
    callbacks: Vec<Callback>,
}

impl Wakes {
    /// Wake these threads. No lock held.
    pub(crate) fn deliver(self, kick: &EventFd) {
        for parked in self.parked.iter().chain(&self.more_parked) {
            futex::wake(parked.word.atomic());
        }
        if self.kick && rules::holds(Rule::KickLeader) {
            kick.ring();
        }
        for callback in self.callbacks {
            callback();
        }
    }
}

impl WaitQueue {
    fn notify(&mut self, listed: Listed) {
        match listed {
            Listed::Thread(waiter) => self.notify_thread(waiter),
            Listed::Callback(callback) => self.call_soon(callback),
        }
    }

    /// Notify a waiter; its state before says how to wake it. Lock held.
    fn notify_thread(&mut self, waiter: &'static Waiter) {
        match waiter.word.notify() {
            Wake::Kick => self.wakes.kick = true,
            Wake::Parked if self.wakes.parked.is_none() => self.wakes.parked = Some(waiter),
            Wake::Parked => self.wakes.more_parked.push(waiter),
            Wake::Needless => return,
        }
        self.wakes.is_due = true;
    }

    /// Call a callback once the lock is free (a `subscribe` that finds a message). Lock held.
    pub fn call_soon(&mut self, callback: Callback) {
        self.wakes.is_due = true;
        self.wakes.callbacks.push(callback);
    }

    #[inline]
    pub(crate) fn has_wakes(&self) -> bool {
        self.wakes.is_due
    }

    /// Take out the wake-ups that are due. Lock held.
    pub(crate) fn take_wakes(&mut self) -> Wakes {
        std::mem::take(&mut self.wakes)
    }

    /// Become the leader if there is none; return whether the waiter leads. Lock held.
    ///
    /// A leader that is `awake` polls whether it was notified, and never sleeps.
    pub(crate) fn begin_wait(&mut self, waiter: &'static Waiter, awake: bool) -> bool {
        if self
            .leader
            .is_none_or(|leader| std::ptr::eq(leader, waiter))
        {
            self.leader = Some(waiter);
            if awake {
                waiter.word.lead_awake();
            } else {
                waiter.word.lead_in_poll();
            }
            self.followers.retain(|other| !std::ptr::eq(*other, waiter));
            return true;
        }
        if !self
            .followers
            .iter()
            .any(|other| std::ptr::eq(*other, waiter))
        {
            self.followers.push_back(waiter);
        }
        waiter.word.park();
        false
    }

    /// Leave the wait for any reason; return true if there is no leader now. Lock held.
    pub(crate) fn end_wait(
        &mut self,
        waiter: &'static Waiter,
        waiters: Option<&mut Waiters>,
        used: bool,
    ) -> bool {
        let told = waiter.word.end_wait();
        if let Some(waiters) = waiters {
            waiters.remove(waiter);
            if told && !used && rules::holds(Rule::PassItOn) {
                waiters.tell(1, self);
            }
        }
        let led = self.leads(waiter);
        if led {
            self.leader = None;
        } else if !self.followers.is_empty() {
            self.followers.retain(|other| !std::ptr::eq(*other, waiter));
        }
        if led || rules::holds(Rule::NamedOneNames) {
            self.name_leader();
        }
        self.leader.is_none()
    }

    /// Wake a follower, so that it finds the leader slot empty and takes it. Lock held.
    fn name_leader(&mut self) {
        if self.leader.is_none()
            && rules::holds(Rule::NameSuccessor)
            && let Some(next) = self.followers.pop_front()
        {
            self.notify_thread(next);
        }
    }

    fn leads(&self, waiter: &'static Waiter) -> bool {
        self.leader
            .is_some_and(|leader| std::ptr::eq(leader, waiter))
    }

    /// Return whether there is a leader, which reads for all threads.
    pub fn has_leader(&self) -> bool {
        self.leader.is_some()
    }

    /// Return whether no thread waits.
    pub fn is_empty(&self) -> bool {
        self.leader.is_none() && self.followers.is_empty()
    }

    /// Return whether there is a leader that will look at what is due before it sleeps.
    pub fn leader_looks_before_it_sleeps(&self) -> bool {
        self.leader
            .is_some_and(|leader| leader.word.is_out_of_poll())
    }
}

// -- one wait
//
// How a call waits: it attempts under the lock until that succeeds, with progress in between.

/// What a thread waits for at a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    Arrival,
    Room,
    /// For room, where the last attempt to send found none.
    Send,
    /// For the end of an operation.
    Operation,
}

impl State {
    fn place(&self, mailbox: MailboxId, what: WaitFor) -> Option<Place> {
        let refused_at = self.mailboxes.get(mailbox)?.refused_at;
        Some(match what {
            WaitFor::Arrival => Place::Arrival,
            WaitFor::Room => Place::Room,
            WaitFor::Operation => Place::Operation,
            WaitFor::Send => refused_at.map_or(Place::Room, Place::Destination),
        })
    }

    fn waiters(&mut self, mailbox: MailboxId, place: Place) -> Option<&mut Waiters> {
        Some(self.mailboxes.get_mut(mailbox)?.waiters_at(place))
    }

    /// End a wait for any reason; see `waiting`.
    fn leave(&mut self, seat: &Seat<'_>, used: bool) {
        let record = self.mailboxes.get_mut(seat.mailbox);
        let waiters = record.map(|record| record.waiters_at(seat.place));
        let unled = self.wait_queue.end_wait(seat.waiter, waiters, used);
        self.driven = true;
        if unled && self.progress_thread.asleep {
            if self.dirty.is_empty() && self.ack_deadlines.is_empty() && self.looks.is_empty() {
                self.progress_thread.leader_left();
            } else {
                self.progress_thread.want();
            }
        }
    }
}

/// A thread's part in a wait; a dropped one leaves without using a notification.
struct Seat<'a> {
    plane: &'a Plane,
    mailbox: MailboxId,
    place: Place,
    waiter: &'static Waiter,
    is_taken: bool,
}

impl<'a> Seat<'a> {
    fn new(plane: &'a Plane, mailbox: MailboxId) -> Self {
        Self {
            plane,
            mailbox,
            place: Place::Arrival,
            waiter: Waiter::take(),
            is_taken: false,
        }
    }

    /// Add this thread to the waiters, in the critical section that found nothing; return false if
    /// the list is gone.
    fn list(&mut self, state: &mut State, what: WaitFor) -> bool {
        let Some(place) = state.place(self.mailbox, what) else {
            return false;
        };
        if place != self.place
            && self.is_taken
            && let Some(waiters) = state.waiters(self.mailbox, self.place)
        {
            waiters.remove(self.waiter);
        }
        self.place = place;
        self.is_taken = true;
        if rules::holds(Rule::ListBeforeSleeping)
            && let Some(waiters) = state.waiters(self.mailbox, place)
        {
            waiters.add(self.waiter);
        }
        true
    }

    /// Have signal handlers run. No lock held.
    fn look_for_signals(&mut self, interrupted: &mut dyn FnMut() -> bool) -> Result<(), Rejected> {
        rules::pass(Moment::Interrupted);
        // A thread must not lead while its signal handler runs: that may call in here.
        self.leave(&mut self.plane.lock(), false);
        if interrupted() {
            return Err(ErrorReason::Interrupted.into());
        }
        Ok(())
    }

    fn leave(&mut self, state: &mut State, used: bool) {
        if self.is_taken {
            self.is_taken = false;
            state.leave(self, used);
        }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        if self.is_taken {
            let plane = self.plane;
            self.leave(&mut plane.lock(), false);
        }
        self.waiter.give_back();
    }
}

/// A signal that arrives while the thread is awake here interrupts no sleep: it is looked for this
/// long after.
const UNSEEN_SIGNAL_NS: u64 = 50_000_000;

/// Since when the thread of a wait is awake without a look for signals, which the main thread's are:
/// Python runs handlers there only.
struct Unseen {
    is_main: bool,
    was_awake: bool,
    since_ns: Option<u64>,
}

impl Unseen {
    fn new() -> Self {
        let is_main = signals::is_main_thread();
        Self {
            is_main,
            was_awake: is_main,
            since_ns: None,
        }
    }

    /// Return when to look.
    fn look_ns(&mut self, now_ns: u64) -> Option<u64> {
        if std::mem::take(&mut self.was_awake) {
            self.since_ns.get_or_insert(now_ns);
        }
        Some(self.since_ns? + UNSEEN_SIGNAL_NS)
    }
}

/// Parameters of one sleep of a wait.
struct Sleep {
    leads: bool,
    now_ns: u64,
    /// When something of the plane is due.
    wake_ns: Option<u64>,
    deadline_ns: Option<u64>,
    /// When to look for signals.
    look_ns: Option<u64>,
    /// Until then the thread polls instead: see `spinning`.
    awake_until_ns: Option<u64>,
}

impl Sleep {
    fn timeout_ns(&self) -> Option<u64> {
        let ends = [self.wake_ns, self.deadline_ns, self.look_ns];
        let until_ns = ends.into_iter().flatten().min()?;
        Some(until_ns.saturating_sub(self.now_ns))
    }

    /// Return when to stop polling, `None` to sleep.
    fn spell_until_ns(&self) -> Option<u64> {
        let awake_until_ns = self.awake_until_ns.filter(|_| self.leads)?;
        let ends = [self.wake_ns, self.deadline_ns, self.look_ns];
        let until_ns = awake_until_ns.min(self.now_ns.saturating_add(SPELL_NS));
        Some(ends.into_iter().flatten().fold(until_ns, u64::min))
    }
}

/// How long a wait polls without sleeping, from its first empty attempt on.
struct Awake {
    mailbox: MailboxId,
    what: WaitFor,
    until_ns: Option<u64>,
}

impl Awake {
    fn new(mailbox: MailboxId, what: WaitFor) -> Self {
        Self {
            mailbox,
            what,
            until_ns: None,
        }
    }

    /// Return until when to poll, `None` once that is over or if it is off. Lock held.
    fn until_ns(&mut self, state: &State, now_ns: u64) -> Option<u64> {
        if self.what != WaitFor::Arrival {
            return None;
        }
        if self.until_ns.is_none() {
            let settings = &state.mailboxes.get(self.mailbox)?.settings;
            self.until_ns = Some(now_ns.saturating_add(settings.busy_poll_ns));
        }
        self.until_ns.filter(|&until_ns| until_ns > now_ns)
    }
}

impl Plane {
    /// Attempt under the lock until it succeeds or `wait_ns` is over (`None`: never, 0: at once,
    /// after one pass); make progress for all threads meanwhile.
    ///
    /// `interrupted` is called without the lock after a signal; true ends the wait with
    /// `ErrorReason::Interrupted`. With a virtual clock there is one attempt.
    ///
    /// # Errors
    /// The errors of `attempt`, and `Interrupted`. `Ok(None)`: the time is over.
    pub fn wait<T>(
        &self,
        mailbox: MailboxId,
        what: WaitFor,
        wait_ns: Option<u64>,
        interrupted: &mut dyn FnMut() -> bool,
        mut attempt: impl FnMut(&mut State) -> Result<Option<T>, Rejected>,
    ) -> Result<Option<T>, Rejected> {
        let result = attempt(&mut self.lock())?;
        if result.is_some() || self.is_virtual() {
            return Ok(result);
        }
        if wait_ns == Some(0) {
            self.progress(); // a call that never waits still makes one pass
            return attempt(&mut self.lock());
        }
        self.wait_reading(mailbox, what, wait_ns, interrupted, attempt)
    }

    /// Wait as `wait` does, after an empty attempt; `wait_ns` is not 0.
    ///
    /// # Errors
    /// As `wait`.
    pub fn wait_reading<T>(
        &self,
        mailbox: MailboxId,
        what: WaitFor,
        wait_ns: Option<u64>,
        interrupted: &mut dyn FnMut() -> bool,
        mut attempt: impl FnMut(&mut State) -> Result<Option<T>, Rejected>,
    ) -> Result<Option<T>, Rejected> {
        let deadline_ns = wait_ns.map(|wait_ns| self.now_ns().saturating_add(wait_ns));
        let mut seat = Seat::new(self, mailbox);
        let mut awake = Awake::new(mailbox, what);
        let mut unseen = Unseen::new();
        loop {
            let mut state = self.lock_flushed();
            let result = attempt(&mut state);
            let now_ns = state.now_ns();
            let is_late = deadline_ns.is_some_and(|deadline_ns| now_ns >= deadline_ns);
            if is_late || !matches!(result, Ok(None)) {
                seat.leave(&mut state, matches!(result, Ok(Some(_))));
                return result;
            }
            let look_ns = unseen.look_ns(now_ns);
            if look_ns.is_some_and(|at_ns| at_ns <= now_ns) {
                drop(state);
                seat.look_for_signals(interrupted)?;
                unseen.since_ns = None;
                continue;
            }
            if !seat.list(&mut state, what) {
                let reason = state.closed_reason;
                seat.leave(&mut state, false);
                return Err(reason.into());
            }
            let awake_until_ns = awake.until_ns(&state, now_ns);
            let leads = state
                .wait_queue
                .begin_wait(seat.waiter, awake_until_ns.is_some());
            let wake_ns = leads.then(|| self.next_due_ns(&mut state)).flatten();
            drop(state);
            let sleep = Sleep {
                leads,
                now_ns,
                wake_ns,
                deadline_ns,
                look_ns,
                awake_until_ns,
            };
            if self.sleep(&seat, &sleep).is_err() {
                seat.look_for_signals(interrupted)?;
                unseen.since_ns = None;
            } else {
                unseen.was_awake = unseen.is_main;
            }
            self.sync(mailbox);
        }
    }

    /// Take the lock once every batch has been flushed.
    fn lock_flushed(&self) -> Locked<'_> {
        let state = self.lock();
        if !state.batches || !rules::holds(Rule::WaitFlushesBatches) {
            return state;
        }
        drop(state);
        self.flush_batches();
        self.lock()
    }

    /// Sleep once: as the leader in the poll set, with progress on what is ready, else parked.
    ///
    /// Fails if a signal interrupted the sleep.
    fn sleep(&self, seat: &Seat<'_>, sleep: &Sleep) -> io::Result<()> {
        self.before_sleep(seat, sleep.leads);
        if !sleep.leads {
            let slept = seat.waiter.sleep(sleep.timeout_ns());
            rules::pass(Moment::FollowerWoke);
            return slept;
        }
        if let Some(until_ns) = sleep.spell_until_ns() {
            self.spin(seat.waiter, until_ns);
            if sleep
                .wake_ns
                .is_some_and(|wake_ns| wake_ns <= self.now_ns())
            {
                self.serve_due();
            }
            return Ok(());
        }
        let mut ready = epoll::NOTHING;
        let is_armed = self.devices.arm();
        let timeout_ns = if is_armed {
            sleep.timeout_ns()
        } else {
            Some(0)
        };
        let told = self.poll_set.wait(&mut ready, timeout_ns);
        seat.waiter.leave_poll();
        if !is_armed {
            self.devices.serve();
        }
        let served = self.serve(&ready[..told.as_ref().map_or(0, |&count| count)], true);
        if served == 0 || sleep.wake_ns.is_some_and(|wake_ns| wake_ns <= sleep.now_ns) {
            self.serve_due();
        }
        match told {
            Err(failure) if failure.kind() == io::ErrorKind::Interrupted => Err(failure),
            _ => Ok(()), // or closed meanwhile, with the mailbox
        }
    }

    /// The moment between the lists and the sleep, for tests; nothing in a release.
    #[inline]
    fn before_sleep(&self, seat: &Seat<'_>, leads: bool) {
        rules::pass(if leads {
            Moment::LeaderSleeps
        } else {
            Moment::FollowerSleeps
        });
        if !rules::holds(Rule::ListBeforeSleeping)
            && let Some(waiters) = self.lock().waiters(seat.mailbox, seat.place)
        {
            waiters.add(seat.waiter);
        }
    }
}

// -- short waits
//
// Short waits for a caller that holds what other threads want, such as the interpreter.
//
// They make progress for all threads like any wait. A short wait that ends empty does not count as
// given up: the caller goes on to wait, without what it held.

impl Plane {
    /// Wait at most `wait_ns` until there is something to take; return whether there is.
    ///
    /// # Errors
    /// `Closed` and the other reasons of a closed mailbox, `Interrupted`.
    pub fn look_for_arrival(
        &self,
        mailbox: MailboxId,
        wait_ns: u64,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Rejected> {
        let arrival = WaitFor::Arrival;
        let came = self.wait_reading(mailbox, arrival, Some(wait_ns), interrupted, |state| {
            let has_something = state.open_mailbox(mailbox)?.has_something();
            Ok(has_something.then_some(()))
        })?;
        Ok(came.is_some())
    }

    /// The same for a socket that polls, and not at all while another thread leads: to follow is to
    /// sleep.
    ///
    /// # Errors
    /// As `look_for_arrival`.
    pub fn poll_for_arrival(
        &self,
        mailbox: MailboxId,
        wait_ns: u64,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Rejected> {
        if self.lock().wait_queue.has_leader() {
            return Ok(false);
        }
        self.look_for_arrival(mailbox, wait_ns, interrupted)
    }

    /// Queue a message if there is room within `wait_ns`, else return it as `Sent::Waits`.
    ///
    /// # Errors
    /// As [`Plane::send_waiting`], without `TimedOut`.
    pub fn send_shortly(
        &self,
        message: Message,
        wait_ns: u64,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Sent, Rejected> {
        let mut message = Some(message);
        if let Some(sent) = self.send_until(&mut message, Some(wait_ns), interrupted)? {
            return Ok(sent);
        }
        Ok(message.map_or(Sent::Done, |message| Sent::Waits(Box::new(message))))
    }
}

#[cfg(test)]
#[path = "waiting_tests.rs"]
mod tests;
