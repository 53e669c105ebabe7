//! Rules that a test may break, and moments that it may widen, to see its scenarios find the hang.
//!
//! Without the feature `broken-rules` every rule holds and a moment is nothing: the compiler leaves
//! no trace of either. With it, `broken` keeps switches for the whole process, which runs one
//! scenario. User: `tests/rds/sockets/wakeup_compiled.py`.

/// A rule of `waiting`, `background` or `stream_writer`; without it, some scenario hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A waiter lists itself in the critical section that found nothing.
    ListBeforeSleeping,
    /// A waiter that was notified in between does not sleep.
    LookAfterNotice,
    /// A leader sleeps in epoll and is woken by the kick.
    KickLeader,
    /// No other thread reads the kick.
    OnlyLeaderReadsKick,
    /// A thread that leaves the leader slot empty names a successor.
    NameSuccessor,
    /// The named thread may be leaving too, and then names the next.
    NamedOneNames,
    /// A waiter that was notified and leaves without using it notifies the next one.
    PassItOn,
    /// A writer looks once more before it allows other writers.
    WriterLooksAgain,
    /// The progress thread counts as asleep from the moment of its decision to sleep.
    AsleepUnderLock,
    /// The progress thread is notified of work, and when the leader slot is empty.
    WakeProgressThread,
    /// A thread flushes its batches before it waits.
    WaitFlushesBatches,
    /// Closing wakes all threads.
    ClosingTells,
    /// Room at a destination that was refused is reported to the senders that wait there.
    RoomTells,
}

/// A moment between two steps that no lock joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A leader is in its slot and not yet in epoll.
    LeaderSleeps,
    /// A follower is listed and not yet parked.
    FollowerSleeps,
    /// A follower has woken and does not know why.
    FollowerWoke,
    /// A signal ended a sleep, and its waiter is still on the lists.
    Interrupted,
    /// The progress thread has decided to sleep until woken and does not yet.
    ProgressThreadSleeps,
}

#[cfg(feature = "broken-rules")]
pub use broken::{Switches, holds, pass};
#[cfg(not(feature = "broken-rules"))]
pub(crate) use kept::{holds, pass};

#[cfg(not(feature = "broken-rules"))]
mod kept {
    use super::{Moment, Rule};

    #[inline]
    pub(crate) const fn holds(_: Rule) -> bool {
        true
    }

    #[inline]
    pub(crate) const fn pass(_: Moment) {}
}

#[cfg(feature = "broken-rules")]
mod broken {
    use std::time::Duration;

    use parking_lot::{Condvar, Mutex};

    use super::{Moment, Rule};

    const RULES: [Rule; 13] = [
        Rule::ListBeforeSleeping,
        Rule::LookAfterNotice,
        Rule::KickLeader,
        Rule::OnlyLeaderReadsKick,
        Rule::NameSuccessor,
        Rule::NamedOneNames,
        Rule::PassItOn,
        Rule::WriterLooksAgain,
        Rule::AsleepUnderLock,
        Rule::WakeProgressThread,
        Rule::WaitFlushesBatches,
        Rule::ClosingTells,
        Rule::RoomTells,
    ];
    const MOMENTS: [Moment; 5] = [
        Moment::LeaderSleeps,
        Moment::FollowerSleeps,
        Moment::FollowerWoke,
        Moment::Interrupted,
        Moment::ProgressThreadSleeps,
    ];
    /// Limit of a stop: then a forgotten thread continues.
    const STOP_MAX: Duration = Duration::from_secs(10);

    static SWITCHES: Mutex<Switches> = Mutex::new(Switches {
        broken: 0,
        stops: [Stop::NONE; MOMENTS.len()],
    });
    static CHANGED: Condvar = Condvar::new();

    /// The switches of this process, by the names of their variants.
    pub struct Switches {
        broken: u32,
        stops: [Stop; MOMENTS.len()],
    }

    #[derive(Clone, Copy)]
    struct Stop {
        passed: u64,
        next_stops: bool,
        is_open: bool,
        stopped: bool,
    }

    impl Stop {
        const NONE: Self = Self {
            passed: 0,
            next_stops: false,
            is_open: true,
            stopped: false,
        };
    }

    impl Switches {
        /// Break a rule from now on; return false if there is none of that name.
        #[must_use]
        pub fn break_rule(name: &str) -> bool {
            let found = RULES.iter().find(|rule| format!("{rule:?}") == name);
            if let Some(&rule) = found {
                SWITCHES.lock().broken |= 1 << rule as u32;
            }
            found.is_some()
        }

        /// Have the next thread that reaches a moment stop there until `go_on`.
        pub fn stop_at(moment: Moment) {
            let stop = &mut SWITCHES.lock().stops[moment as usize];
            (stop.next_stops, stop.is_open, stop.stopped) = (true, false, false);
        }

        /// Release the thread that stopped at a moment, and stop no other there.
        pub fn go_on(moment: Moment) {
            let stop = &mut SWITCHES.lock().stops[moment as usize];
            (stop.next_stops, stop.is_open) = (false, true);
            CHANGED.notify_all();
        }

        /// Return how many threads reached a moment, and whether one stopped there since `stop_at`.
        #[must_use]
        pub fn seen(moment: Moment) -> (u64, bool) {
            let stop = SWITCHES.lock().stops[moment as usize];
            (stop.passed, stop.stopped)
        }

        /// Return a moment by its name.
        #[must_use]
        pub fn moment(name: &str) -> Option<Moment> {
            let named = |moment: &Moment| format!("{moment:?}") == name;
            MOMENTS.into_iter().find(named)
        }
    }

    /// Return whether a rule is not broken.
    pub fn holds(rule: Rule) -> bool {
        SWITCHES.lock().broken & (1 << rule as u32) == 0
    }

    /// Stop here if a test requests it. No lock held, and not with the interpreter.
    pub fn pass(moment: Moment) {
        let mut switches = SWITCHES.lock();
        let stop = &mut switches.stops[moment as usize];
        stop.passed += 1;
        if !std::mem::take(&mut stop.next_stops) {
            return;
        }
        stop.stopped = true;
        let is_shut = |switches: &mut Switches| !switches.stops[moment as usize].is_open;
        CHANGED.wait_while_for(&mut switches, is_shut, STOP_MAX);
    }
}
