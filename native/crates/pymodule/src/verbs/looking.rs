//! Looks at channels by threads that poll, and what is left to the adapter after a call.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use urds_channel::sys::thread;
use urds_verbs::Engine as Machine;
use urds_verbs::time::Now;
use urds_verbs_shm::{Channels, Wakes};

use crate::verbs::engine::{Core, Taken, now_ns, taken_of, time_of};

/// How often a thread that polls also looks at sockets and timers.
const LOOK_NS: i64 = 1_000_000;
/// Empty polls after which a thread lets others of its process run, if they have devices.
const EMPTY_POLLS_MAX: u32 = 32;
/// Of so many empty polls one reads the clock, for timers, and of so many that find something.
const TIMED: u32 = 16;
/// Empty polls in a row after which a thread is taken to poll in a loop, and how often each looks then.
const LOOPING_POLLS: u32 = 2;
const LOOKS: u32 = 8;
/// Of which the kernel makes some 60 microseconds.
const GIVE_WAY: Duration = Duration::from_micros(1);

/// Open engines with channels of this process.
pub static DEVICES: AtomicUsize = AtomicUsize::new(0);

/// Look at channels before a poll ends; return whether there is something to do.
///
/// Of who polls in a loop the call itself takes most of the time: what comes meanwhile is seen late.
#[inline]
fn has_news(channels: &Channels, machine: &Machine, polls: u32) -> bool {
    if !channels.is_quiet(machine) {
        return true;
    }
    if polls < LOOPING_POLLS || DEVICES.load(Relaxed) > 1 {
        return false;
    }
    let shares = |number| channels.shares_processor(number);
    if thread::processor().is_some_and(shares) {
        return false; // it would only keep the peer from running
    }
    (1..LOOKS).any(|_| {
        std::hint::spin_loop();
        !channels.is_quiet(machine)
    })
}

/// What a call leaves to the adapter.
#[derive(Clone, Copy, Default)]
pub struct Left {
    pub is_due: bool,
    /// When it has looked at channels, if it has and read the clock.
    looked_at_ns: Option<i64>,
}

/// What an engine with channels knows of its adapter and of the threads that poll.
pub struct Looks {
    /// Called when a call has left something that the adapter has to do.
    pub on_pass: Option<Py<PyAny>>,
    /// Called by threads that poll, at most once per `LOOK_NS`: it looks at what no channel shows.
    on_idle: Option<Py<PyAny>>,
    /// The adapter's loop: `run_due`, `yield_lead`, `handle_left`, `resume` are for threads that wait.
    pub owner: Option<Py<PyAny>>,
    looked_ns: AtomicI64,
    /// When the adapter's timer runs.
    planned_ns: AtomicI64,
    /// Threads of the adapter that wait for completions.
    pub watchers: AtomicUsize,
    empty_polls: AtomicU32,
    /// Looks that have found something.
    found: AtomicU32,
}

impl Default for Looks {
    fn default() -> Self {
        Self::new(None, None, None)
    }
}

impl Looks {
    pub fn new(
        on_pass: Option<Py<PyAny>>,
        on_idle: Option<Py<PyAny>>,
        owner: Option<Py<PyAny>>,
    ) -> Self {
        Self {
            on_pass,
            on_idle,
            owner,
            looked_ns: AtomicI64::new(0),
            planned_ns: AtomicI64::new(i64::MAX),
            watchers: AtomicUsize::new(0),
            empty_polls: AtomicU32::new(0),
            found: AtomicU32::new(0),
        }
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.on_pass)?;
        visit.call(&self.owner)?;
        visit.call(&self.on_idle)
    }
}

impl Core {
    /// Take completions of a queue; if there are none and there are channels, look at those before.
    pub fn poll(&self, py: Python<'_>, number: u32, count: usize) -> PyResult<Taken> {
        let mut taken = Taken::None;
        let left = self.call_with(py, |machine, channels| {
            self.look(machine, channels, number, count, &mut taken)
        })?;
        self.finish_pass(py, left)?;
        Ok(taken)
    }

    /// As `poll`, for an application that polls in a loop: it also looks at what no channel shows.
    pub fn poll_all(&self, py: Python<'_>, number: u32, count: usize) -> PyResult<Taken> {
        let mut taken = Taken::None;
        let left = self.call_with(py, |machine, channels| {
            self.look(machine, channels, number, count, &mut taken)
        })?;
        self.finish_pass(py, left)?;
        let is_late = match left.looked_at_ns {
            Some(at_ns) => self.idle(py, at_ns)?,
            None => false,
        };
        if !taken.is_empty() {
            self.looks.empty_polls.store(1, Relaxed);
            return Ok(taken);
        }
        let polls = self.looks.empty_polls.load(Relaxed).wrapping_add(1);
        self.looks.empty_polls.store(polls, Relaxed);
        if polls.is_multiple_of(EMPTY_POLLS_MAX) {
            self.give_way(py);
        }
        if is_late {
            return self.take(py, number, count);
        }
        Ok(taken)
    }

    /// Have the adapter look at what no channel shows, if it did not lately; return whether it did.
    ///
    /// For calls that look at channels again and again, the clock's time given.
    pub fn idle(&self, py: Python<'_>, at_ns: i64) -> PyResult<bool> {
        let is_late = at_ns - self.looks.looked_ns.load(Relaxed) >= LOOK_NS;
        if is_late && let Some(on_idle) = &self.looks.on_idle {
            self.looks.looked_ns.store(at_ns, Relaxed);
            on_idle.call0(py)?;
        }
        Ok(is_late)
    }

    /// Let the threads that could bring something run, after many polls for nothing.
    #[cold]
    fn give_way(&self, py: Python<'_>) {
        if DEVICES.load(Relaxed) > 1 {
            // The peer may be of this process, and wants the interpreter.
            py.detach(|| urds_dataplane::sys::pause(GIVE_WAY));
            return;
        }
        if self.shares_processor() {
            py.detach(std::thread::yield_now);
        }
    }

    /// Take completions; it fills `taken`, which is many times as long as a pointer.
    fn look(
        &self,
        machine: &mut Machine,
        channels: &mut Channels,
        number: u32,
        count: usize,
        taken: &mut Taken,
    ) -> Left {
        *taken = taken_of(machine, number, count);
        if !taken.is_empty() || self.waits.is_none() {
            return Left::default();
        }
        let polls = self.looks.empty_polls.load(Relaxed);
        let has_news = has_news(channels, machine, polls);
        let looks = if has_news {
            let found = self.looks.found.load(Relaxed).wrapping_add(1);
            self.looks.found.store(found, Relaxed);
            found
        } else {
            polls
        };
        let is_timed = looks.is_multiple_of(TIMED);
        if !(has_news || is_timed) {
            return Left::default();
        }
        let now = if is_timed {
            Now::At(now_ns())
        } else {
            time_of(machine)
        };
        let pushed = machine.shared.outbox.pushed;
        channels.progress(machine, now);
        *taken = taken_of(machine, number, count);
        let mut left = self.left(machine, channels, pushed);
        left.looked_at_ns = match now {
            Now::At(now_ns) => Some(now_ns),
            Now::Told(_) => None,
        };
        left
    }

    /// Look at the channels, and take all of a queue with a sink, unless there is more to tell: a
    /// pass tells all of it then, in its order.
    pub fn take_fed(&self, py: Python<'_>, number: u32) -> PyResult<(Taken, Left)> {
        let take = |machine: &mut Machine, channels: &mut Channels| {
            if self.waits.is_some() {
                let now = time_of(machine);
                channels.progress(machine, now);
                self.couriers.serve(machine, channels, now);
            }
            let mut taken = Taken::None;
            let outbox = &mut machine.shared.outbox;
            let is_all = outbox.fed == [number] && outbox.events.is_empty();
            if is_all && channels.events.is_empty() && machine.failed.is_empty() {
                outbox.fed.clear();
                taken = taken_of(machine, number, usize::MAX);
            }
            let pushed = machine.shared.outbox.pushed;
            (taken, self.left(machine, channels, pushed))
        };
        self.couriers.held(|| self.call_with(py, take))
    }

    /// Return what a call leaves to the adapter; `pushed` is the count before it.
    pub fn left(&self, machine: &Machine, channels: &Channels, pushed: u64) -> Left {
        let outbox = &machine.shared.outbox;
        let is_awaited = outbox.pushed != pushed && self.looks.watchers.load(Relaxed) > 0;
        let has_news = !(outbox.fed.is_empty() && outbox.events.is_empty());
        let is_wanted = !(channels.events.is_empty() && machine.failed.is_empty());
        let is_wanted = is_wanted || self.news.has();
        let due_ns = machine.poll_timeout().unwrap_or(i64::MAX);
        let is_sooner = due_ns < self.looks.planned_ns.load(Relaxed);
        Left {
            is_due: is_awaited || has_news || is_wanted || is_sooner,
            looked_at_ns: None,
        }
    }

    /// Have the adapter do what a call has left to it; no lock held.
    pub fn finish_pass(&self, py: Python<'_>, left: Left) -> PyResult<()> {
        if left.is_due { self.pass(py) } else { Ok(()) }
    }

    /// Have the adapter do what it has to do.
    #[cold]
    pub fn pass(&self, py: Python<'_>) -> PyResult<()> {
        match &self.looks.on_pass {
            Some(on_pass) => on_pass.call0(py).map(drop),
            None => Ok(()),
        }
    }

    /// Return the time, and note that progress is made then.
    pub fn now_ns(&self) -> i64 {
        let now_ns = now_ns();
        self.progressed_ns.store(now_ns, Relaxed);
        now_ns
    }

    /// Look at the channels without the interpreter; return whether the adapter has something to do.
    ///
    /// Timers are looked at with `is_timed`. `None` after a panic.
    pub fn look_outside(&self, is_timed: bool) -> Option<bool> {
        let (is_due, wakes) = self.outside(|machine, channels| {
            if !is_timed && channels.is_quiet(machine) {
                return (false, Wakes::default());
            }
            let pushed = machine.shared.outbox.pushed;
            channels.progress(machine, time_of(machine));
            let is_due = self.left(machine, channels, pushed).is_due;
            (is_due, self.ready_waiters(machine, None))
        })?;
        self.wake(&wakes);
        Some(is_due)
    }

    /// Note when the adapter's timer runs, `None` for never.
    pub fn plan(&self, at_ns: Option<i64>) {
        self.looks
            .planned_ns
            .store(at_ns.unwrap_or(i64::MAX), Relaxed);
    }
}
