//! Who leads a device: the thread that sleeps for all that wait, in the set of the adapter's loop.
//!
//! A thread that waits *enters* with what it awaits, looks, and *claims* the lead. The leader arms the
//! doorbells, asks whether it *may sleep*, and sleeps in the set; the others sleep each on a word of its
//! own. Who leaves names a successor, and so does who leaves while none leads. The progress thread of
//! Python claims the lead too, while no thread waits.
//!
//! - **clear, look, claim, sleep**: a waiter clears its word before it looks; to notify is to set the
//!   word, and then to wake. So what comes after the look ends the sleep.
//! - **the loop's doorbell is the leader's**: it sleeps in the set, where a word does not wake it.
//! - **one lock** guards all of this; no call is made under it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use parking_lot::Mutex;

const LOOKS: u32 = 0;
const NOTIFIED: u32 = 1;

/// One thread that waits.
#[derive(Debug)]
pub struct Waiter<A> {
    pub awaited: A,
    word: AtomicU32,
}

impl<A> Waiter<A> {
    /// Note that the thread looks from here on.
    pub fn clear(&self) {
        self.word.store(LOOKS, Ordering::SeqCst);
    }

    /// Return whether it was notified since.
    pub fn is_notified(&self) -> bool {
        self.word.load(Ordering::SeqCst) == NOTIFIED
    }

    /// The word on which it sleeps as long as it has the value.
    pub fn word(&self) -> (&AtomicU32, u32) {
        (&self.word, LOOKS)
    }
}

/// How to wake who was notified; done without any lock.
#[derive(Debug)]
pub struct Wakes<A> {
    /// The leader sleeps in the set.
    pub rings: bool,
    pub waiters: Vec<Arc<Waiter<A>>>,
}

impl<A> Default for Wakes<A> {
    fn default() -> Self {
        Self {
            rings: false,
            waiters: Vec::new(),
        }
    }
}

/// Who leads.
#[derive(Debug)]
enum Leader<A> {
    Vacant,
    /// The progress thread, which stands for the process.
    Thread,
    Waiter(Arc<Waiter<A>>),
}

/// The answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    Leads,
    /// Another thread that waits does.
    Follows,
    /// The progress thread does, until it is asked.
    Thread,
    /// No waits any more.
    Ended,
}

/// Whether a leader may sleep, its doorbells being armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// Until then at most; `wake` is called behind it.
    Until(i64),
    /// It was notified: look again.
    No,
    /// The loop has something to do.
    Due,
}

#[derive(Debug)]
struct State<A> {
    leader: Leader<A>,
    /// The leading waiter is in the set, or about to be.
    is_asleep: bool,
    /// The loop has something to do before the next sleep.
    is_due: bool,
    /// When the loop has something to do.
    due_ns: i64,
    /// The loop wants to hear when no thread leads any more.
    is_wanted: bool,
    waiters: Vec<Arc<Waiter<A>>>,
}

impl<A> State<A> {
    fn leads(&self, waiter: &Arc<Waiter<A>>) -> bool {
        matches!(&self.leader, Leader::Waiter(leader) if Arc::ptr_eq(leader, waiter))
    }

    fn notify(&self, waiter: &Arc<Waiter<A>>, wakes: &mut Wakes<A>) {
        waiter.word.store(NOTIFIED, Ordering::SeqCst);
        if !self.leads(waiter) {
            wakes.waiters.push(Arc::clone(waiter));
        } else if self.is_asleep {
            wakes.rings = true;
        }
    }

    fn name_successor(&self, wakes: &mut Wakes<A>) {
        let mut asleep = self.waiters.iter().filter(|one| !one.is_notified());
        if let Some(one) = asleep.next() {
            self.notify(one, wakes);
        }
    }
}

/// The threads that wait for a device, and which of them leads. `A`: what one awaits.
#[derive(Debug)]
pub struct Lead<A> {
    state: Mutex<State<A>>,
    /// How many wait, also for who does not take the lock.
    count: AtomicUsize,
    is_ended: AtomicBool,
}

impl<A> Default for Lead<A> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                leader: Leader::Vacant,
                is_asleep: false,
                is_due: false,
                due_ns: i64::MAX,
                is_wanted: false,
                waiters: Vec::new(),
            }),
            count: AtomicUsize::new(0),
            is_ended: AtomicBool::new(false),
        }
    }
}

impl<A> Lead<A> {
    // -- threads that wait

    /// Come to wait; `None` after the end. Look afterwards.
    pub fn enter(&self, awaited: A) -> Option<Arc<Waiter<A>>> {
        if self.is_ended.load(Ordering::SeqCst) {
            return None;
        }
        let word = AtomicU32::new(LOOKS);
        let waiter = Arc::new(Waiter { awaited, word });
        self.state.lock().waiters.push(Arc::clone(&waiter));
        self.count.fetch_add(1, Ordering::SeqCst);
        Some(waiter)
    }

    /// Lead, unless another thread does.
    pub fn claim(&self, waiter: &Arc<Waiter<A>>) -> Claim {
        let mut state = self.state.lock();
        if self.is_ended.load(Ordering::SeqCst) {
            return Claim::Ended;
        }
        match &state.leader {
            Leader::Vacant => {
                state.leader = Leader::Waiter(Arc::clone(waiter));
                Claim::Leads
            }
            Leader::Waiter(leader) if Arc::ptr_eq(leader, waiter) => Claim::Leads,
            Leader::Waiter(_) => Claim::Follows,
            Leader::Thread => Claim::Thread,
        }
    }

    /// As the leader: go to sleep in the set. What is notified from here on rings.
    pub fn may_sleep(&self, waiter: &Arc<Waiter<A>>, now_ns: i64) -> Sleep {
        let mut state = self.state.lock();
        if waiter.is_notified() || self.is_ended.load(Ordering::SeqCst) {
            return Sleep::No;
        }
        if state.due_ns <= now_ns {
            state.due_ns = i64::MAX; // the loop says anew
            state.is_due = true;
        }
        if std::mem::take(&mut state.is_due) {
            return Sleep::Due;
        }
        state.is_asleep = true;
        Sleep::Until(state.due_ns)
    }

    /// As the leader: be out of the set.
    pub fn wake(&self) {
        self.state.lock().is_asleep = false;
    }

    /// Wait no more. Return what to wake, and whether the loop is to be told that no thread leads.
    pub fn leave(&self, waiter: &Arc<Waiter<A>>) -> (Wakes<A>, bool) {
        let mut wakes = Wakes::default();
        let mut state = self.state.lock();
        state.waiters.retain(|one| !Arc::ptr_eq(one, waiter));
        self.count.fetch_sub(1, Ordering::SeqCst);
        if state.leads(waiter) {
            state.leader = Leader::Vacant;
            state.is_asleep = false;
        }
        let is_vacant = matches!(state.leader, Leader::Vacant);
        if is_vacant {
            state.name_successor(&mut wakes);
        }
        let is_last = is_vacant && state.waiters.is_empty();
        let tells = is_last && std::mem::take(&mut state.is_wanted);
        (wakes, tells)
    }

    // -- what happens

    /// Return whether any thread waits.
    #[inline]
    pub fn has_waiters(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Return how many sleep, or will without more of a look.
    pub fn sleepers(&self) -> usize {
        let state = self.state.lock();
        let sleeps = |one: &&Arc<Waiter<A>>| match &state.leader {
            Leader::Waiter(leader) if Arc::ptr_eq(leader, one) => state.is_asleep,
            Leader::Waiter(_) => !one.is_notified(),
            _ => false,
        };
        state.waiters.iter().filter(sleeps).count()
    }

    /// Notify those whose wait is over, but for one.
    pub fn notify_ready(
        &self,
        but: Option<&Arc<Waiter<A>>>,
        mut is_ready: impl FnMut(&A) -> bool,
    ) -> Wakes<A> {
        let mut wakes = Wakes::default();
        if self.is_ended.load(Ordering::SeqCst) {
            return wakes;
        }
        let state = self.state.lock();
        for waiter in &state.waiters {
            let is_other = but.is_none_or(|but| !Arc::ptr_eq(but, waiter));
            if is_other && !waiter.is_notified() && is_ready(&waiter.awaited) {
                state.notify(waiter, &mut wakes);
            }
        }
        wakes
    }

    // -- the loop

    /// Have the leader call the loop before it sleeps again, or at `due_ns` if it is given.
    pub fn note_due(&self, due_ns: Option<i64>) -> Wakes<A> {
        let mut wakes = Wakes::default();
        if self.is_ended.load(Ordering::SeqCst) {
            return wakes;
        }
        let mut state = self.state.lock();
        match due_ns {
            Some(due_ns) if due_ns >= state.due_ns => return wakes,
            Some(due_ns) => state.due_ns = due_ns,
            None => state.is_due = true,
        }
        wakes.rings = state.is_asleep;
        wakes
    }

    /// Say when the loop has something to do next, `i64::MAX` for never.
    pub fn plan(&self, due_ns: i64) -> Wakes<A> {
        let mut wakes = Wakes::default();
        if !self.is_ended.load(Ordering::SeqCst) {
            let mut state = self.state.lock();
            wakes.rings = state.is_asleep && due_ns < state.due_ns;
            state.due_ns = due_ns;
        }
        wakes
    }

    /// Wake the leader if it sleeps: its doorbells were heard by another thread.
    pub fn rearm(&self) -> Wakes<A> {
        let mut wakes = Wakes::default();
        if !self.is_ended.load(Ordering::SeqCst) {
            wakes.rings = self.state.lock().is_asleep;
        }
        wakes
    }

    /// Have the progress thread lead; false while a thread waits, and the loop is told when none does.
    pub fn lead_in_thread(&self) -> bool {
        if self.is_ended.load(Ordering::SeqCst) {
            return true;
        }
        let mut state = self.state.lock();
        if !state.waiters.is_empty() || matches!(state.leader, Leader::Waiter(_)) {
            state.is_wanted = true;
            return false;
        }
        state.leader = Leader::Thread;
        true
    }

    /// Take the lead from the progress thread.
    pub fn take_from_thread(&self) -> Wakes<A> {
        let mut wakes = Wakes::default();
        if self.is_ended.load(Ordering::SeqCst) {
            return wakes;
        }
        let mut state = self.state.lock();
        if matches!(state.leader, Leader::Thread) {
            state.leader = Leader::Vacant;
            state.name_successor(&mut wakes);
        }
        wakes
    }

    /// Ask to be told when no thread waits any more; false if none does, and none is about to.
    pub fn want(&self, is_coming: bool) -> bool {
        if self.is_ended.load(Ordering::SeqCst) {
            return false;
        }
        let mut state = self.state.lock();
        state.is_wanted = is_coming || !state.waiters.is_empty();
        state.is_wanted
    }

    /// End all waits; the last one to leave tells.
    pub fn end(&self) -> Wakes<A> {
        let mut wakes = Wakes::default();
        let mut state = self.state.lock();
        self.is_ended.store(true, Ordering::SeqCst);
        state.is_wanted = true;
        for waiter in &state.waiters {
            state.notify(waiter, &mut wakes);
        }
        wakes
    }

    /// Forget all threads in the child of a fork, where they are not; the lock may be held for ever.
    pub fn abandon_in_child(&self) {
        self.is_ended.store(true, Ordering::SeqCst);
        self.count.store(0, Ordering::SeqCst);
    }
}
