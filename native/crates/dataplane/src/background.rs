//! The progress thread: work that must happen when no application thread does it.
//!
//! One daemon thread runs `Plane::help`. It flushes batches, sends late acknowledgements and asks
//! the kernel what a Linux peer's TCP has; and it reads when no other thread does. It sleeps on a
//! set of its own: a doorbell and, nested, the plane's set armed for one event.
//!
//! It arms only while there is no leader and no thread has made progress for a tick. Progress is
//! the end of a wait, a call of `progress`, and each message taken: a consumer that empties a full queue must not
//! have the progress thread read too, or the queue grows without bound. It sleeps longer than a
//! tick only with nothing due and either armed or with a leader for 16 ticks. That decision and
//! every change that matters to it are made under the plane's lock, so none can slip between.

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

    /// There is no leader: an unarmed long sleep would leave the streams unread.
    pub(crate) fn leader_left(&mut self) {
        if !self.armed {
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
            drop(state);
            if self.rest(timeout_ns) {
                self.lock().counters.progress_thread_passes += 1;
                self.serve_ready(Some(0));
            }
        }
    }

    /// Arm if no thread reads; return how long to sleep, `None` until woken.
    fn decide(&self, state: &mut State, now_ns: u64) -> Option<u64> {
        let driven = std::mem::take(&mut state.driven);
        let led = state.wait_queue.has_leader();
        let due_ns = state.next_due_ns();
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
            let armed = self
                .progress_thread
                .set
                .modify(self.poll_set.descriptor(), mask, PLANE);
            progress_thread.armed = armed.is_ok();
        }
        // Never sooner than a tick: in a burst the next batch is nearly due, and gone by then.
        let left_ns = due_ns.map(|due_ns| due_ns.saturating_sub(now_ns).max(TICK_NS));
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
        plane.lock().progress_thread.asleep
    }

    fn until(mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(5), "too late");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_progress_thread_reads_when_no_other_thread_does() {
        let plane = plane();
        let (end, mut far) = UnixStream::pair().expect("descriptors are left");
        plane
            .watch(end.as_raw_fd(), Interest::READ)
            .expect("it can be watched");
        thread::scope(|scope| {
            let progress_thread = scope.spawn(|| plane.help(None));
            until(|| sleeps_long(&plane));
            assert!(
                plane.lock().progress_thread.armed,
                "it hears of the plane's set"
            );
            far.write_all(b"x").expect("there is room");
            let event = Event::Ready {
                descriptor: end.as_raw_fd(),
                interest: Interest::READ,
            };
            assert_eq!(progress_thread.join().expect("no panic"), [event]);
        });
    }

    #[test]
    fn an_event_ends_its_sleep() {
        let plane = plane();
        let path = PathId::from_u64(0);
        thread::scope(|scope| {
            let progress_thread = scope.spawn(|| plane.help(None));
            until(|| sleeps_long(&plane));
            plane.lock().emit(Event::PeerRestarted { path });
            assert_eq!(progress_thread.join().expect("no panic").len(), 1);
        });
    }

    /// Have the progress thread decide once; return how long it sleeps and if the set is armed.
    fn decided(plane: &Plane, driven: bool) -> (Option<u64>, bool) {
        let mut state = plane.lock();
        state.driven = driven;
        let timeout_ns = plane.decide(&mut state, 0);
        (timeout_ns, state.progress_thread.armed)
    }

    #[test]
    fn it_is_not_armed_while_a_thread_drives_or_leads() {
        let plane = plane();
        assert_eq!(decided(&plane, true), (Some(2 * TICK_NS), false));
        assert_eq!(decided(&plane, true), (Some(TICK_MAX_NS), false));
        let leader = Waiter::take();
        plane.lock().wait_queue.sit_down(leader, false);
        for _ in 1..LEADER_TICKS {
            assert_eq!(decided(&plane, false), (Some(TICK_MAX_NS), false));
        }
        assert_eq!(
            decided(&plane, false),
            (None, false),
            "the leader has stayed"
        );
        assert!(sleeps_long(&plane));
        plane.lock().wait_queue.stand_up(leader, None, false);
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
