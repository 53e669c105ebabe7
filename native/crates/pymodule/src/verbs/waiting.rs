//! Waiting on a device with channels: the thread that waits makes its progress, without the interpreter.
//!
//! It sleeps in the epoll set of the adapter's loop, where the doorbells of all channels are, the
//! descriptors that Python handles, and the loop's own doorbell. Rings are for the engine; for all
//! else the loop is called. Who leads is `urds_verbs_shm::Lead`'s to say, whose lock is the innermost.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed, Ordering::SeqCst};

use parking_lot::Mutex;
use pyo3::intern;
use pyo3::prelude::*;
use urds_channel::sys::thread;
use urds_dataplane::sys::{epoll, eventfd, futex};
use urds_stream_link::Attention;
use urds_verbs::Engine as Machine;
use urds_verbs_shm::{Channels, Claim, Lead, Sleep, Waiter, Wakes};

use crate::verbs::engine::{Core, now_ns, time_of};

const NAP_NS: i64 = 100_000_000;

/// What a thread waits for.
#[derive(Clone)]
pub enum Awaited {
    /// So many completions in a queue, or its end.
    Completions(u32, usize, Arc<AtomicBool>),
    /// An event of a completion channel, of one queue if it is given, or the end of either.
    Event(u64, Option<(u32, Arc<AtomicBool>)>, Arc<AtomicBool>),
    /// One of these bits in the word of a stream, or its end.
    Bits(Arc<Attention>, u32, Arc<AtomicBool>),
    /// That the loop says so, which asks what Python waits for.
    Loop(Arc<AtomicBool>),
    /// The same, or completions for the sink of a queue.
    LoopOrSink(u32, Arc<AtomicBool>),
}

impl Awaited {
    /// Return whether the wait is over. The machine's lock is held.
    fn is_here(&self, machine: &Machine) -> bool {
        match self {
            Self::Completions(number, count, is_closed) => {
                let queue = machine.shared.completions.get(*number);
                is_closed.load(SeqCst) || queue.is_none_or(|queue| queue.len() >= *count)
            }
            Self::Event(number, queue, is_closed) => {
                let is_over = |(_, is_closed): &(u32, Arc<AtomicBool>)| is_closed.load(SeqCst);
                let queue_number = queue.as_ref().map(|(queue_number, _)| *queue_number);
                is_closed.load(SeqCst)
                    || queue.as_ref().is_some_and(is_over)
                    || machine.shared.outbox.has_event(*number, queue_number)
            }
            Self::Bits(attention, bits, is_closed) => {
                is_closed.load(SeqCst) || attention.word() & bits != 0
            }
            Self::Loop(is_told) => is_told.load(SeqCst),
            Self::LoopOrSink(number, is_told) => {
                let queue = machine.shared.completions.get(*number);
                is_told.load(SeqCst) || queue.is_some_and(|queue| !queue.is_empty())
            }
        }
    }

    /// Return whether it is the wait that the loop knows by this word.
    fn is_loop_wait(&self, word: &Arc<AtomicBool>) -> bool {
        match self {
            Self::Loop(is_told) | Self::LoopOrSink(_, is_told) => Arc::ptr_eq(is_told, word),
            _ => false,
        }
    }
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    Ready,
    Late,
    /// The engine is closed, or broken: no thread waits here.
    Ended,
}

/// What a look at the channels has found.
struct Found {
    /// The wait is over.
    is_here: bool,
    /// The adapter has something to do.
    is_due: bool,
    /// Something of a peer was processed.
    has_read: bool,
}

/// What is to be done with the interpreter before a wait goes on.
enum Next {
    Done(Woken),
    /// The adapter's pass.
    Pass,
    /// The loop has descriptors, calls or timers that are due.
    Due,
    /// The progress thread leads.
    Yield,
    Signal,
}

/// A wait for what the loop tells.
struct LoopWait {
    is_told: Arc<AtomicBool>,
    /// It is for what Python alone can see: memory that a peer writes, for one.
    asks: bool,
}

/// The threads that wait for an engine, and the loop in whose set the leader sleeps.
pub struct Waits {
    pub lead: Lead<Awaited>,
    set: i32,
    /// In the set, and the loop's as it is; -1 once that is closed. The lock is for the ring alone.
    doorbell: Mutex<i32>,
    /// The longest sleep: the net below a lost ring, and below a signal that came just before it.
    pub nap_ns: AtomicI64,
    /// Waits for what the loop tells, by its numbers.
    by_loop: Mutex<HashMap<u64, LoopWait>>,
    /// Memory of idle channels will be given back by a timer of the loop.
    pub is_trim_planned: AtomicBool,
}

impl Waits {
    pub fn new(set: i32, doorbell: i32) -> Self {
        Self {
            lead: Lead::default(),
            set,
            doorbell: Mutex::new(doorbell),
            nap_ns: AtomicI64::new(NAP_NS),
            by_loop: Mutex::default(),
            is_trim_planned: AtomicBool::new(false),
        }
    }

    /// Return the set of the loop, which stays the loop's.
    pub fn set(&self) -> i32 {
        self.set
    }

    /// Have no doorbell any more: no thread waits, and the loop closes it.
    pub fn forget_doorbell(&self) {
        // In the child of a fork the lock may be held for ever; none rings there.
        if let Some(mut doorbell) = self
            .doorbell
            .try_lock_for(std::time::Duration::from_secs(1))
        {
            *doorbell = -1;
        }
    }

    /// Wake who was notified; no lock held.
    pub fn wake(&self, wakes: &Wakes<Awaited>) {
        if wakes.rings {
            eventfd::ring_at(*self.doorbell.lock());
        }
        for waiter in &wakes.waiters {
            futex::wake(waiter.word().0);
        }
    }

    /// Begin a wait for what the loop tells; `end` ends it.
    pub fn begin(&self, number: u64, asks: bool) {
        let is_told = Arc::default();
        self.by_loop
            .lock()
            .insert(number, LoopWait { is_told, asks });
    }

    pub fn end(&self, number: u64) {
        self.by_loop.lock().remove(&number);
    }

    fn loop_wait(&self, number: u64) -> Option<Arc<AtomicBool>> {
        let waits = self.by_loop.lock();
        waits.get(&number).map(|wait| Arc::clone(&wait.is_told))
    }

    /// Return whether a thread waits for what Python alone can see.
    fn has_asking(&self) -> bool {
        self.by_loop.lock().values().any(|wait| wait.asks)
    }

    /// Tell a thread that its wait is over, or may be.
    pub fn tell(&self, number: u64) {
        let Some(is_told) = self.loop_wait(number) else {
            return;
        };
        is_told.store(true, SeqCst);
        let is_it = |awaited: &Awaited| awaited.is_loop_wait(&is_told);
        self.wake(&self.lead.notify_ready(None, is_it));
    }

    /// Have all threads look again.
    pub fn wake_all(&self) {
        if self.lead.has_waiters() {
            self.wake(&self.lead.notify_ready(None, |_| true));
        }
    }
}

impl Core {
    /// Return whose waits are over after work on the machine, whose lock is held.
    #[inline]
    pub fn ready_waiters(
        &self,
        machine: &Machine,
        but: Option<&Arc<Waiter<Awaited>>>,
    ) -> Wakes<Awaited> {
        match &self.waits {
            Some(waits) if waits.lead.has_waiters() => waits
                .lead
                .notify_ready(but, |awaited| awaited.is_here(machine)),
            _ => Wakes::default(),
        }
    }

    /// Wake those whose waits ended without work on the machine.
    pub fn tell_ready(&self, py: Python<'_>) -> PyResult<()> {
        let has_waiters = |waits: &Waits| waits.lead.has_waiters();
        if self.waits.as_ref().is_some_and(has_waiters) {
            self.call(py, |_| ())?; // which does
        }
        Ok(())
    }

    /// Wake them; no lock held.
    #[inline]
    pub fn wake(&self, wakes: &Wakes<Awaited>) {
        if let Some(waits) = &self.waits {
            waits.wake(wakes);
        }
    }

    /// Return whether a peer of ours runs on our processor: looking for its answer keeps it waiting.
    pub fn shares_processor(&self) -> bool {
        let shares = |number| self.outside(|_, channels| channels.shares_processor(number));
        thread::processor().and_then(shares).unwrap_or(false)
    }

    /// Wait until the loop tells, see `Waits::begin`, or until there is something for a queue's sink.
    pub fn wait_told(
        &self,
        py: Python<'_>,
        number: u64,
        until_ns: Option<i64>,
        fed: Option<u32>,
    ) -> PyResult<Woken> {
        let Some(is_told) = self
            .waits
            .as_ref()
            .and_then(|waits| waits.loop_wait(number))
        else {
            return Ok(Woken::Ended);
        };
        let awaited = match fed {
            Some(queue) => Awaited::LoopOrSink(queue, Arc::clone(&is_told)),
            None => Awaited::Loop(Arc::clone(&is_told)),
        };
        let woken = self.wait(py, &awaited, until_ns)?;
        is_told.store(false, SeqCst);
        Ok(woken)
    }

    /// Wait, `None` for ever; exceptions are those of signal handlers and of passes.
    pub fn wait(
        &self,
        py: Python<'_>,
        awaited: &Awaited,
        until_ns: Option<i64>,
    ) -> PyResult<Woken> {
        let Some(waits) = &self.waits else {
            return Ok(Woken::Ended);
        };
        self.wait_at(py, waits, awaited, until_ns).inspect_err(|_| {
            // It may have cut the loop short in a call that does what is due.
            if let Err(second) = self.call_loop(py, intern!(py, "resume")) {
                second.write_unraisable(py, None);
            }
        })
    }

    fn wait_at(
        &self,
        py: Python<'_>,
        waits: &Waits,
        awaited: &Awaited,
        until_ns: Option<i64>,
    ) -> PyResult<Woken> {
        let mut is_late = false;
        loop {
            let Some(waiter) = waits.lead.enter(awaited.clone()) else {
                return Ok(Woken::Ended);
            };
            let (next, tells) = py.detach(|| {
                let next = self.wait_outside(waits, &waiter, until_ns, &mut is_late);
                self.progressed_ns.store(now_ns(), Relaxed);
                let (wakes, tells) = waits.lead.leave(&waiter);
                waits.wake(&wakes);
                (next, tells)
            });
            if tells {
                self.call_loop(py, intern!(py, "handle_left"))?;
            }
            match next {
                Next::Done(woken) => return Ok(woken),
                Next::Pass => self.pass(py)?,
                Next::Due => self.call_loop(py, intern!(py, "run_due"))?,
                Next::Yield => self.call_loop(py, intern!(py, "yield_lead"))?,
                Next::Signal => {
                    py.check_signals()?;
                    if matches!(awaited, Awaited::Loop(_) | Awaited::LoopOrSink(..)) {
                        self.call_loop(py, intern!(py, "run_due"))?; // the net below a lost ring
                    }
                }
            }
        }
    }

    fn call_loop(&self, py: Python<'_>, name: &Bound<'_, pyo3::types::PyString>) -> PyResult<()> {
        match &self.looks.owner {
            Some(owner) => owner.call_method0(py, name).map(drop),
            None => Ok(()),
        }
    }

    fn wait_outside(
        &self,
        waits: &Waits,
        waiter: &Arc<Waiter<Awaited>>,
        until_ns: Option<i64>,
        is_late: &mut bool,
    ) -> Next {
        let is_over = || until_ns.is_some_and(|until_ns| now_ns() >= until_ns);
        let mut has_woken = false;
        loop {
            waiter.clear();
            match self.look_for(waits, waiter) {
                None => return Next::Done(Woken::Ended),
                Some(found) if found.is_due => return Next::Pass,
                Some(found) if found.is_here => return Next::Done(Woken::Ready),
                Some(_) if *is_late => return Next::Done(Woken::Late),
                // A write into memory tells of nothing, and may be all that Python waits for.
                Some(found) if (found.has_read || has_woken) && waits.has_asking() => {
                    *is_late = is_over();
                    return Next::Due;
                }
                Some(_) => {}
            }
            match waits.lead.claim(waiter) {
                Claim::Leads => match self.sleep_in_set(waits, waiter, until_ns) {
                    Ok(()) => has_woken = true,
                    Err(next) => return next,
                },
                Claim::Follows => {
                    let left_ns = until_ns.map_or(i64::MAX, |until_ns| until_ns - now_ns());
                    let sleep_ns = left_ns.clamp(0, waits.nap_ns.load(Relaxed));
                    let (word, looks) = waiter.word();
                    let is_cut = futex::wait(word, looks, Some(sleep_ns.unsigned_abs())).is_err();
                    if is_cut || (!waiter.is_notified() && !is_over()) {
                        return Next::Signal;
                    }
                }
                Claim::Thread => return Next::Yield,
                Claim::Ended => return Next::Done(Woken::Ended),
            }
            *is_late = is_over();
        }
    }

    /// Look at the channels; `None` after a panic.
    fn look_for(&self, waits: &Waits, waiter: &Arc<Waiter<Awaited>>) -> Option<Found> {
        let look = |machine: &mut Machine, channels: &mut Channels| {
            let now = time_of(machine);
            let pushed = machine.shared.outbox.pushed;
            let has_read = channels.progress(machine, now);
            self.couriers.serve(machine, channels, now);
            let is_due = self.left(machine, channels, pushed).is_due;
            let is_here = waiter.awaited.is_here(machine);
            // A thread that waits for a sink gives it all itself, or has the adapter do so.
            let feeds = is_here && matches!(waiter.awaited, Awaited::LoopOrSink(..));
            let found = Found {
                is_here,
                is_due: is_due && !feeds,
                has_read,
            };
            (found, self.ready_waiters(machine, Some(waiter)))
        };
        let (found, wakes) = self.couriers.held(|| self.outside(look))?;
        waits.wake(&wakes);
        Some(found)
    }

    /// Sleep as the leader, until there may be something.
    ///
    /// Doorbells are armed, then all is looked at once more, then the thread sleeps.
    fn sleep_in_set(
        &self,
        waits: &Waits,
        waiter: &Arc<Waiter<Awaited>>,
        until_ns: Option<i64>,
    ) -> Result<(), Next> {
        if !self.arm(waits)? {
            return Ok(());
        }
        let now_ns = now_ns();
        let due_ns = match waits.lead.may_sleep(waiter, now_ns) {
            Sleep::Until(due_ns) => due_ns,
            Sleep::No => return self.disarm(&[], -1).map(drop),
            Sleep::Due => {
                self.disarm(&[], -1)?;
                return Err(Next::Due);
            }
        };
        let wake_ns = due_ns.min(until_ns.unwrap_or(i64::MAX));
        let left_ns = wake_ns.saturating_sub(now_ns);
        let sleep_ns = left_ns.clamp(0, waits.nap_ns.load(Relaxed));
        let mut ready = epoll::NOTHING;
        let woken = epoll::wait_in(waits.set, &mut ready, Some(sleep_ns.unsigned_abs()));
        waits.lead.wake();
        let count = woken.as_ref().map_or(0, |count| *count);
        let has_other = self.disarm(&ready[..count], *waits.doorbell.lock())?;
        match woken {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Err(Next::Signal),
            Err(_) => Err(Next::Done(Woken::Ended)),
            Ok(_) if has_other => Err(Next::Due),
            Ok(0) if until_ns.is_none_or(|until_ns| wake_ns < until_ns) => Err(Next::Signal),
            Ok(_) => Ok(()),
        }
    }

    /// Have peers ring; false if there is something to do instead.
    fn arm(&self, waits: &Waits) -> Result<bool, Next> {
        let armed = self.outside(|_, channels| {
            let has_other = channels.take_rings();
            let is_stirred = channels.is_stirred() && !waits.is_trim_planned.load(Relaxed);
            (has_other || is_stirred, channels.sleep())
        });
        match armed {
            None => Err(Next::Done(Woken::Ended)),
            Some((false, is_armed)) => Ok(is_armed),
            Some((true, _)) => {
                self.disarm(&[], -1)?;
                Err(Next::Due)
            }
        }
    }

    /// Have peers ring no more, and note what has rung; return whether Python has to look.
    fn disarm(&self, ready: &[libc::epoll_event], doorbell: i32) -> Result<bool, Next> {
        let found = self.outside(|_, channels| {
            channels.awake();
            let mut has_other = false;
            for event in ready {
                // Python keeps the number of a descriptor in the lower half.
                let socket = i32::try_from(event.u64 & 0xffff_ffff).unwrap_or(-1);
                if socket == doorbell {
                    eventfd::silence_at(doorbell);
                } else {
                    has_other |= !channels.note_rung(socket);
                }
            }
            has_other
        });
        found.ok_or(Next::Done(Woken::Ended))
    }
}
