//! Rules that a test may break, and moments that it may widen, to see its scenarios find the hang.
//!
//! Without the feature `broken-rules` every rule holds and a moment is nothing: the compiler leaves
//! no trace of either. With it, `broken` keeps switches for the whole process, for there is one
//! scenario in each. Who uses them: `tests/sockets/wakeup_compiled.py`.

/// A rule of `waiting`, `helper` or `writing`, each of which something hangs without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A waiter lists itself in the critical section that found nothing.
    ListBeforeSleeping,
    /// A waiter that was notified in between does not sleep.
    LookAfterNotice,
    /// A leader sleeps in epoll and is woken by the kick.
    KickLeader,
    /// Nobody else reads the kick.
    OnlyLeaderReadsKick,
    /// Who leaves an empty chair names a successor.
    NameSuccessor,
    /// The named one may be leaving himself, and then names the next.
    NamedOneNames,
    /// Who was told and leaves without using it tells the next one.
    PassItOn,
    /// A writer looks once more before it lets others write.
    WriterLooksAgain,
    /// The helper is known to be asleep from the moment that it has decided to.
    AsleepUnderLock,
    /// The helper hears of work, and that nobody leads any more.
    WakeHelper,
    /// Who waits sends his tails before.
    WaitFlushesTails,
    /// Closing wakes everybody.
    ClosingTells,
    /// Room at a destination that was refused is told to those who wait there.
    RoomTells,
}

/// A moment between two steps that no lock joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A leader has sat down and is not yet in epoll.
    LeaderSleeps,
    /// A follower has sat down and is not yet at its gate.
    FollowerSleeps,
    /// A follower has left its gate and does not know why.
    FollowerWoke,
    /// A signal ended a sleep, and its waiter is still on the lists.
    Interrupted,
    /// The helper has decided to sleep until woken and does not yet.
    HelperSleeps,
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
        Rule::WakeHelper,
        Rule::WaitFlushesTails,
        Rule::ClosingTells,
        Rule::RoomTells,
    ];
    const MOMENTS: [Moment; 5] = [
        Moment::LeaderSleeps,
        Moment::FollowerSleeps,
        Moment::FollowerWoke,
        Moment::Interrupted,
        Moment::HelperSleeps,
    ];
    /// Then a forgotten thread goes on.
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

        /// Have the next thread that comes to a moment stop there until `go_on`.
        pub fn stop_at(moment: Moment) {
            let stop = &mut SWITCHES.lock().stops[moment as usize];
            (stop.next_stops, stop.is_open, stop.stopped) = (true, false, false);
        }

        /// Let go who stopped, and stop nobody any more.
        pub fn go_on(moment: Moment) {
            let stop = &mut SWITCHES.lock().stops[moment as usize];
            (stop.next_stops, stop.is_open) = (false, true);
            CHANGED.notify_all();
        }

        /// Return how many came to a moment, and whether one stopped there since `stop_at`.
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

    /// Tell whether a rule is not broken.
    pub fn holds(rule: Rule) -> bool {
        SWITCHES.lock().broken & (1 << rule as u32) == 0
    }

    /// Stop here if a test wants it. No lock held, and not with the interpreter.
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
