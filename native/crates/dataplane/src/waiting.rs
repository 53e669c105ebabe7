//! Who waits for what, who reads for everybody, and who is told.
//!
//! A thread that waits for its mailbox either becomes the *leader*, sleeps in `epoll` on the
//! plane's set and serves whatever comes, or it is a *follower* and sleeps on its own word. The
//! rules, each with a scenario in `tests/sockets/wakeup_compiled.py` that hangs without it:
//!
//! - list before sleeping: a waiter lists itself in the critical section that found nothing
//! - look after notice: to notify is to swap NOTIFIED in first; a waiter so marked does not sleep
//! - kick the leader: a leader sleeps in epoll, so it is woken by the kick descriptor
//! - only the leader reads the kick
//! - name a successor: who leaves an empty chair with followers present names one and wakes it;
//!   the named one may be leaving himself, so this holds for everybody
//! - pass it on: who was notified and leaves without using it tells the next one
//!
//! The lists are guarded by the plane's lock; descriptors and words are rung after it is released.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::rules::{self, Rule};
use crate::sys::eventfd::EventFd;
use crate::sys::futex;
use crate::word::{Wake, Word};

/// What a subscriber has called, once and without the lock.
pub type Callback = Arc<dyn Fn() + Send + Sync>;

/// One per wait that is under way; its word says what its thread is doing.
///
/// The word goes to `IN_POLL` and `AT_GATE` under the plane's lock only. A waiter is never freed, but
/// used again: a late wake-up finds another's word at worst, and everybody looks again after one.
#[derive(Debug)]
pub struct Waiter {
    word: Word,
}

/// Waiters that no thread uses; those of a thread that ends come here.
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
    /// Return a waiter that is the caller's until `give_back`; a wait within a wait gets another.
    pub(crate) fn take() -> &'static Self {
        let own = OWN.try_with(|own| own.borrow_mut().0.pop()).ok().flatten();
        own.or_else(|| SPARE.try_lock()?.pop())
            .unwrap_or_else(|| Box::leak(Box::new(Self { word: Word::new() })))
    }

    pub(crate) fn give_back(&'static self) {
        // At the end of a thread its own are gone: then this one is lost, which costs four octets.
        let _ = OWN.try_with(|own| own.borrow_mut().0.push(self));
    }

    /// Sleep until notified, at most so long. No lock held.
    ///
    /// # Errors
    /// `Interrupted` by a signal.
    pub(crate) fn sleep(&self, timeout_ns: Option<u64>) -> io::Result<()> {
        match self.word.before_gate() {
            Err(_) if rules::holds(Rule::LookAfterNotice) => Ok(()),
            Ok(doing) | Err(doing) => futex::wait(self.word.atomic(), doing, timeout_ns),
        }
    }

    /// Tell whether somebody notified us, of one that sits awake.
    pub(crate) fn is_notified(&self) -> bool {
        self.word.is_notified()
    }

    /// Note that the leader is out of its poll. No lock needed: nobody else changes this.
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

/// The waiters of one mailbox for one thing, first come first told.
#[derive(Default)]
pub struct Waiters {
    queue: VecDeque<Listed>,
}

impl Waiters {
    /// List a thread once. Lock held.
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

    /// List a callback; it is called once, without the lock. Lock held.
    pub fn add_callback(&mut self, callback: Callback) {
        self.queue.push_back(Listed::Callback(callback));
    }

    /// Take a callback off; return false if it was told and is off already. Lock held.
    pub fn remove_callback(&mut self, callback: &Callback) -> bool {
        let at = self.queue.iter().position(|listed| listed.calls(callback));
        at.and_then(|at| self.queue.remove(at)).is_some()
    }

    /// Notify at most `count` waiters; the reading thread counts: it looks before it sleeps.
    #[inline]
    pub fn tell(&mut self, count: usize, desk: &mut WaitingDesk) {
        if !self.queue.is_empty() {
            self.tell_some(count, desk);
        }
    }

    fn tell_some(&mut self, mut count: usize, desk: &mut WaitingDesk) {
        if let Some(leader) = desk.leader
            && let Some(at) = self.queue.iter().position(|listed| listed.is(leader))
            && leader.word.notify_running()
        {
            // Should a signal end its wait, it passes this on.
            self.queue.remove(at);
            count = count.saturating_sub(1);
        }
        while count > 0
            && let Some(listed) = self.queue.pop_front()
        {
            desk.notify(listed);
            count -= 1;
        }
    }

    /// Notify everybody: what they wait for changed for all.
    pub fn tell_all(&mut self, desk: &mut WaitingDesk) {
        while rules::holds(Rule::ClosingTells)
            && let Some(listed) = self.queue.pop_front()
        {
            desk.notify(listed);
        }
    }

    /// Tell whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// Leader, followers and the wake-ups that are due once the lock is free.
#[derive(Default)]
pub struct WaitingDesk {
    leader: Option<&'static Waiter>,
    followers: VecDeque<&'static Waiter>,
    wakes: Wakes,
}

/// Whom to wake, taken out under the lock and done without it.
#[derive(Default)]
pub(crate) struct Wakes {
    is_due: bool,
    kick: bool,
    gate: Option<&'static Waiter>,
    more_gates: Vec<&'static Waiter>, // of the rare pass that wakes several
    callbacks: Vec<Callback>,
}

impl Wakes {
    /// Wake them. No lock held.
    pub(crate) fn deliver(self, kick: &EventFd) {
        for gate in self.gate.iter().chain(&self.more_gates) {
            futex::wake(gate.word.atomic());
        }
        if self.kick && rules::holds(Rule::KickLeader) {
            kick.ring();
        }
        for callback in self.callbacks {
            callback();
        }
    }
}

impl WaitingDesk {
    fn notify(&mut self, listed: Listed) {
        match listed {
            Listed::Thread(waiter) => self.notify_thread(waiter),
            Listed::Callback(callback) => self.call_soon(callback),
        }
    }

    /// Mark a waiter; what was there says how to wake it. Lock held.
    fn notify_thread(&mut self, waiter: &'static Waiter) {
        match waiter.word.notify() {
            Wake::Kick => self.wakes.kick = true,
            Wake::Gate if self.wakes.gate.is_none() => self.wakes.gate = Some(waiter),
            Wake::Gate => self.wakes.more_gates.push(waiter),
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

    /// Take out whom to wake. Lock held.
    pub(crate) fn take_wakes(&mut self) -> Wakes {
        std::mem::take(&mut self.wakes)
    }

    /// Become the leader if there is none; return whether the waiter leads. Lock held.
    ///
    /// A leader that is `awake` looks whether it was notified and sleeps nowhere.
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
        waiter.word.sit_at_gate();
        false
    }

    /// Leave for whatever reason; return true if nobody leads now. Lock held.
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

    /// Wake a follower so that it finds the chair empty and takes it. Lock held.
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

    /// Tell whether somebody reads for everybody.
    pub fn has_leader(&self) -> bool {
        self.leader.is_some()
    }

    /// Tell whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.leader.is_none() && self.followers.is_empty()
    }

    /// Tell whether somebody leads who will look at what is due before he sleeps.
    pub fn leader_looks_before_it_sleeps(&self) -> bool {
        self.leader
            .is_some_and(|leader| leader.word.is_out_of_poll())
    }
}
