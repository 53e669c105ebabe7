//! The helper: what must happen when no application thread does it.
//!
//! One daemon thread sits in `Plane::help`. It flushes tails, sends late acknowledgements and asks
//! the kernel what a Linux peer's TCP has; and it reads when nobody else does. It sleeps on a set
//! of its own: a bell and, nested, the plane's set armed for one event.
//!
//! It arms only while no leader exists and nobody has driven for a tick. *Driving* is leaving a
//! wait, a pump, and each message taken: a consumer that empties a full queue must not have the
//! helper read behind its back, or the queue grows without bound. It sleeps longer than a tick only
//! with nothing due and either armed or a leader present for 16 ticks. That decision and every
//! change that matters to it are made under the plane's lock, so none can slip between.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use crate::events::Event;
use crate::plane::Plane;
use crate::rules::{self, Moment, Rule};
use crate::state::State;
use crate::sys::epoll::{self, Epoll};
use crate::sys::eventfd::EventFd;
use crate::sys::signals;

const TICK_NS: u64 = 1_000_000;
/// While somebody drives; each tick costs him the processor.
const TICK_MAX_NS: u64 = 4_000_000;
const LEADER_TICKS: u32 = 16;
/// Of an event loop, before the helper reads in its place.
const SILENCE_NS: u64 = 50_000_000;

const BELL: u64 = 0;
const PLANE: u64 = 1;

/// What of the helper is guarded by the plane's lock.
#[allow(clippy::struct_excessive_bools)] // each is told on its own, to different threads
pub struct HelperState {
    /// In a sleep of more than a tick.
    pub(crate) asleep: bool,
    /// In any sleep.
    resting: bool,
    /// `Plane::wake`: end `run` though there is no event.
    pub(crate) interrupted: bool,
    /// To be rung when the lock is released.
    pub(crate) wake_due: bool,
    /// The plane's set tells of one event.
    armed: bool,
    leader_ticks: u32,
    tick_ns: u64,
    loop_was_silent: bool,
}

impl Default for HelperState {
    fn default() -> Self {
        Self {
            asleep: false,
            resting: false,
            interrupted: false,
            wake_due: false,
            armed: false,
            leader_ticks: 0,
            tick_ns: TICK_NS,
            loop_was_silent: false,
        }
    }
}

impl HelperState {
    /// There is work: end a long sleep.
    #[inline]
    pub fn want(&mut self) {
        if self.asleep {
            self.want_now();
        }
    }

    /// There is work that cannot wait: end any sleep.
    pub fn want_now(&mut self) {
        if (self.asleep || self.resting) && rules::holds(Rule::WakeHelper) {
            self.asleep = false;
            self.resting = false;
            self.wake_due = true;
        }
    }

    /// Nobody leads: an unarmed long sleep would leave the streams unread.
    pub(crate) fn leader_left(&mut self) {
        if !self.armed {
            self.want();
        }
    }
}

/// What of the helper needs no lock: its own set and its bell.
pub(crate) struct Helper {
    set: Epoll,
    bell: EventFd,
}

impl Helper {
    pub(crate) fn new(poll_set: &Epoll) -> io::Result<Self> {
        let helper = Self {
            set: Epoll::new()?,
            bell: EventFd::new()?,
        };
        helper
            .set
            .add(helper.bell.descriptor(), epoll::READABLE, BELL)?;
        helper.set.add(poll_set.descriptor(), 0, PLANE)?;
        Ok(helper)
    }

    /// End any sleep, for a new look at who reads; takes no lock.
    pub(crate) fn ring(&self) {
        self.bell.ring();
    }

    pub(crate) fn close(&self) {
        self.set.close();
        self.bell.close();
    }
}

static RETURNS_EARLY: OnceLock<fn(bool) -> bool> = OnceLock::new();

/// Have helpers ask, before each sleep, whether to return to their caller instead: he may have work
/// that only he can do. The argument tells whether the sleep is to be of more than a tick.
///
/// It is asked under a plane's lock, so it must not take one. For the first caller only.
pub fn return_early_if(ask: fn(bool) -> bool) {
    let _ = RETURNS_EARLY.set(ask);
}

fn returns_early(is_long: bool) -> bool {
    RETURNS_EARLY.get().is_some_and(|ask| ask(is_long))
}

impl Plane {
    /// Work and sleep until there are events or the deadline passes.
    pub(crate) fn run_helper(&self, deadline_ns: Option<u64>) -> Vec<Event> {
        signals::keep_out();
        loop {
            self.serve_due();
            let mut state = self.lock();
            let now_ns = state.now_ns();
            let is_late = deadline_ns.is_some_and(|deadline_ns| now_ns >= deadline_ns);
            let events = state.take_events();
            if !events.is_empty() || is_late || state.closed || state.helper.interrupted {
                state.helper.interrupted = false;
                return events;
            }
            let left_ns = deadline_ns.map(|deadline_ns| deadline_ns - now_ns);
            let timeout_ns = match (self.decide(&mut state, now_ns), left_ns) {
                (Some(timeout_ns), Some(left_ns)) => Some(timeout_ns.min(left_ns)),
                (timeout_ns, left_ns) => timeout_ns.or(left_ns),
            };
            if returns_early(state.helper.asleep) {
                state.helper.asleep = false;
                return events;
            }
            state.helper.resting = true;
            drop(state);
            if self.rest(timeout_ns) {
                self.lock().counters.helper_passes += 1;
                self.serve_ready(Some(0));
            }
        }
    }

    /// Arm if nobody reads; return how long to sleep, `None` until woken.
    fn decide(&self, state: &mut State, now_ns: u64) -> Option<u64> {
        let driven = std::mem::take(&mut state.driven);
        let led = state.desk.has_leader();
        let due_ns = state.next_due_ns();
        let helper = &mut state.helper;
        helper.tick_ns = if driven || led {
            (2 * helper.tick_ns).min(TICK_MAX_NS)
        } else {
            TICK_NS
        };
        helper.leader_ticks = if led {
            helper.leader_ticks.saturating_add(1)
        } else {
            0
        };
        // An event loop that has not pumped for a while may be blocked by its own code.
        let looping = self.loops.load(Ordering::Relaxed) > 0;
        let absent = !looping || helper.loop_was_silent;
        helper.loop_was_silent = looping && !driven;
        if !led && !driven && absent && !helper.armed {
            let mask = epoll::READABLE | epoll::ONCE;
            let armed = self
                .helper
                .set
                .modify(self.poll_set.descriptor(), mask, PLANE);
            helper.armed = armed.is_ok();
        }
        // Never sooner than a tick: in a burst the next tail is always nearly due, and gone by then.
        let left_ns = due_ns.map(|due_ns| due_ns.saturating_sub(now_ns).max(TICK_NS));
        let left_ns = if helper.loop_was_silent && !helper.armed {
            Some(left_ns.map_or(SILENCE_NS, |left_ns| left_ns.min(SILENCE_NS)))
        } else if !helper.armed && helper.leader_ticks < LEADER_TICKS {
            // A loop that drives does so again soon: a tick costs it less than a wake-up per
            // message.
            return Some(left_ns.map_or(helper.tick_ns, |left_ns| left_ns.min(helper.tick_ns)));
        } else {
            left_ns
        };
        // What is due later than a tick from now must not make us deaf for what comes before it.
        helper.asleep =
            left_ns.is_none_or(|left_ns| left_ns > TICK_NS) && rules::holds(Rule::AsleepUnderLock);
        left_ns
    }

    /// Sleep; return whether the plane's set has something and nobody leads.
    fn rest(&self, timeout_ns: Option<u64>) -> bool {
        if timeout_ns.is_none() {
            rules::pass(Moment::HelperSleeps);
            if !rules::holds(Rule::AsleepUnderLock) {
                self.lock().helper.asleep = true;
            }
        }
        let mut ready = epoll::NOTHING;
        let told = self.helper.set.wait(&mut ready, timeout_ns).unwrap_or(0);
        let mut state = self.lock();
        state.helper.asleep = false;
        state.helper.resting = false;
        let mut read = false;
        for &libc::epoll_event { u64: number, .. } in &ready[..told] {
            if number == BELL {
                self.helper.bell.silence();
            } else {
                state.helper.armed = false; // one event is spent, whoever serves it
                read = !state.desk.has_leader();
            }
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::thread;
    use std::time::{Duration, Instant};

    use urds_path::Limits;

    use super::*;
    use crate::events::Interest;
    use crate::state::PathId;
    use crate::waiting::Waiter;

    fn plane() -> Arc<Plane> {
        Plane::new(Limits::default(), None, None, None).expect("descriptors are left")
    }

    fn sleeps_long(plane: &Plane) -> bool {
        plane.lock().helper.asleep
    }

    fn until(mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(5), "too late");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_helper_reads_when_nobody_else_does() {
        let plane = plane();
        let (end, mut far) = UnixStream::pair().expect("descriptors are left");
        plane
            .watch(end.as_raw_fd(), Interest::READ)
            .expect("it can be watched");
        thread::scope(|scope| {
            let helper = scope.spawn(|| plane.help(None));
            until(|| sleeps_long(&plane));
            assert!(plane.lock().helper.armed, "it hears of the plane's set");
            far.write_all(b"x").expect("there is room");
            let event = Event::Ready {
                descriptor: end.as_raw_fd(),
                interest: Interest::READ,
            };
            assert_eq!(helper.join().expect("no panic"), [event]);
        });
    }

    #[test]
    fn an_event_ends_its_sleep() {
        let plane = plane();
        let path = PathId::from_u64(0);
        thread::scope(|scope| {
            let helper = scope.spawn(|| plane.help(None));
            until(|| sleeps_long(&plane));
            plane.lock().emit(Event::PeerRestarted { path });
            assert_eq!(helper.join().expect("no panic").len(), 1);
        });
    }

    /// Have the helper decide once; return how long it sleeps and whether it hears of the set.
    fn decided(plane: &Plane, driven: bool) -> (Option<u64>, bool) {
        let mut state = plane.lock();
        state.driven = driven;
        let timeout_ns = plane.decide(&mut state, 0);
        (timeout_ns, state.helper.armed)
    }

    #[test]
    fn it_is_not_armed_while_somebody_drives_or_leads() {
        let plane = plane();
        assert_eq!(decided(&plane, true), (Some(2 * TICK_NS), false));
        assert_eq!(decided(&plane, true), (Some(TICK_MAX_NS), false));
        let leader = Waiter::take();
        plane.lock().desk.sit_down(leader, false);
        for _ in 1..LEADER_TICKS {
            assert_eq!(decided(&plane, false), (Some(TICK_MAX_NS), false));
        }
        assert_eq!(
            decided(&plane, false),
            (None, false),
            "the leader has stayed"
        );
        assert!(sleeps_long(&plane));
        plane.lock().desk.stand_up(leader, None, false);
        assert_eq!(decided(&plane, false), (None, true));
        leader.give_back();
    }

    #[test]
    fn a_silent_event_loop_is_helped_after_a_while() {
        let plane = plane();
        plane.adopt();
        assert_eq!(decided(&plane, true), (Some(2 * TICK_NS), false));
        assert_eq!(decided(&plane, false), (Some(SILENCE_NS), false));
        assert_eq!(decided(&plane, false), (None, true));
    }
}
