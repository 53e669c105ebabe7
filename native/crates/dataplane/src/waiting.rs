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

use crate::rules::{self, Rule};
use crate::sys::eventfd::EventFd;
use crate::sys::futex;
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
    pub(crate) fn rise(&self) {
        self.word.rise();
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
    pub(crate) fn sit_down(&mut self, waiter: &'static Waiter, awake: bool) -> bool {
        if self
            .leader
            .is_none_or(|leader| std::ptr::eq(leader, waiter))
        {
            self.leader = Some(waiter);
            if awake {
                waiter.word.sit_awake();
            } else {
                waiter.word.sit_in_poll();
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
    pub(crate) fn stand_up(
        &mut self,
        waiter: &'static Waiter,
        waiters: Option<&mut Waiters>,
        used: bool,
    ) -> bool {
        let told = waiter.word.stand();
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
