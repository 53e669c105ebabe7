//! How a call waits: it attempts under the lock until that succeeds, with progress in between.

use std::io;

use crate::errors::{ErrorReason, Rejected};
use crate::mailbox::Place;
use crate::plane::{Locked, Plane};
use crate::rules::{self, Moment, Rule};
use crate::spinning::SPELL_NS;
use crate::state::{MailboxId, State};
use crate::sys::{epoll, signals};
use crate::waiting::{Waiter, Waiters};

/// What a thread waits for at a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    Arrival,
    Room,
    /// For room, where the last attempt to send found none.
    Send,
}

impl State {
    fn place(&self, mailbox: MailboxId, what: WaitFor) -> Option<Place> {
        let refused_at = self.mailboxes.get(mailbox)?.refused_at;
        Some(match what {
            WaitFor::Arrival => Place::Arrival,
            WaitFor::Room => Place::Room,
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
        let unled = self.wait_queue.stand_up(seat.waiter, waiters, used);
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
        // Python runs signal handlers in the main thread only.
        let is_main = signals::is_main_thread();
        let mut unseen_ns = is_main.then(|| self.now_ns());
        loop {
            let mut state = self.lock_flushed();
            let result = attempt(&mut state);
            let now_ns = state.now_ns();
            let is_late = deadline_ns.is_some_and(|deadline_ns| now_ns >= deadline_ns);
            if is_late || !matches!(result, Ok(None)) {
                seat.leave(&mut state, matches!(result, Ok(Some(_))));
                return result;
            }
            if !seat.list(&mut state, what) {
                let reason = state.closed_reason;
                seat.leave(&mut state, false);
                return Err(reason.into());
            }
            let awake_until_ns = awake.until_ns(&state, now_ns);
            let leads = state
                .wait_queue
                .sit_down(seat.waiter, awake_until_ns.is_some());
            let wake_ns = if leads { state.next_due_ns() } else { None };
            drop(state);
            let look_ns = unseen_ns.map(|since_ns| since_ns + UNSEEN_SIGNAL_NS);
            let sleep = Sleep {
                leads,
                now_ns,
                wake_ns,
                deadline_ns,
                look_ns,
                awake_until_ns,
            };
            let is_interrupted = self.sleep(&seat, &sleep).is_err();
            if is_interrupted || look_ns.is_some_and(|at_ns| at_ns <= self.now_ns()) {
                rules::pass(Moment::Interrupted);
                // A thread must not lead while its signal handler runs: that may call in here.
                seat.leave(&mut self.lock(), false);
                if interrupted() {
                    return Err(ErrorReason::Interrupted.into());
                }
                unseen_ns = None;
            } else if is_main && unseen_ns.is_none() {
                unseen_ns = Some(self.now_ns());
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
        let told = self.poll_set.wait(&mut ready, sleep.timeout_ns());
        seat.waiter.rise();
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use urds_path::{Address, ArrivingPayload, Limits, NO_EXTENSION, SocketAddress};

    use super::*;
    use crate::mailbox::MailboxSettings;

    const PORT: u16 = 5000;
    const LATE: Duration = Duration::from_secs(5);

    fn local() -> Address {
        Address::from(Ipv4Addr::LOCALHOST)
    }

    fn bound() -> (Arc<Plane>, MailboxId) {
        let plane = Plane::new(Limits::default(), None, None, None).expect("descriptors are left");
        let mailbox = plane.mailbox(local(), PORT, MailboxSettings::default());
        (plane, mailbox)
    }

    fn put(plane: &Plane, mailbox: MailboxId, byte: u8) {
        let mut state = plane.lock();
        let record = state.mailboxes.get_mut(mailbox).expect("it is open");
        let source = SocketAddress::new(local(), 9);
        record.inbox.push(
            source,
            NO_EXTENSION,
            ArrivingPayload::Borrowed(&[byte]),
            0,
            0,
        );
        state.note_arrival(mailbox, 1);
    }

    /// Return the byte of the next message, `None` when the time is over.
    fn take(
        plane: &Plane,
        mailbox: MailboxId,
        wait_ns: Option<u64>,
    ) -> Result<Option<u8>, Rejected> {
        plane.wait(mailbox, WaitFor::Arrival, wait_ns, &mut || false, |state| {
            let Some(record) = state.mailboxes.get_mut(mailbox) else {
                return Err(state.closed_reason.into());
            };
            if record.closed {
                return Err(state.closed_reason.into());
            }
            let byte = record.inbox.front().map(|front| front.payload[0]);
            record.inbox.pop();
            Ok(byte)
        })
    }

    fn until(mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < LATE, "a thread sleeps for ever");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_wait_ends_in_time_and_leaves_no_waiter_behind() {
        let (plane, mailbox) = bound();
        let start = Instant::now();
        assert_eq!(take(&plane, mailbox, Some(20_000_000)), Ok(None));
        assert!(start.elapsed() >= Duration::from_millis(20) && start.elapsed() < LATE);
        assert_eq!(take(&plane, mailbox, Some(0)), Ok(None));
        let state = plane.lock();
        assert!(state.wait_queue.is_empty());
        assert!(
            state
                .mailboxes
                .get(mailbox)
                .is_some_and(|one| one.receive_waiters.is_empty())
        );
    }

    #[test]
    fn with_a_clock_of_the_callers_nothing_waits() {
        let plane = Plane::new(Limits::default(), Some(Arc::new(|| 7)), None, None);
        let plane = plane.expect("descriptors are left");
        let mailbox = plane.mailbox(local(), PORT, MailboxSettings::default());
        assert_eq!(take(&plane, mailbox, None), Ok(None));
    }

    #[test]
    fn each_of_many_waiters_gets_its_message() {
        let (plane, mailbox) = bound();
        let (taken, threads_max, rounds) = (AtomicUsize::new(0), 6, 300);
        thread::scope(|scope| {
            for _ in 0..threads_max {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        take(&plane, mailbox, None).expect("it is open");
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for round in 0..threads_max * rounds {
                put(&plane, mailbox, 1);
                if round % 3 == 0 {
                    // Sparse: no later message repairs a lost wake-up.
                    until(|| taken.load(Ordering::Relaxed) > round);
                }
            }
            until(|| taken.load(Ordering::Relaxed) == threads_max * rounds);
        });
        assert!(plane.lock().wait_queue.is_empty());
    }

    #[test]
    fn who_was_told_and_leaves_passes_it_on() {
        let (plane, mailbox) = bound();
        let taken = AtomicUsize::new(0);
        thread::scope(|scope| {
            for index in 0..4u64 {
                let (plane, taken) = (&plane, &taken);
                scope.spawn(move || {
                    // Half of them give up all the time, perhaps just when they are notified.
                    let wait_ns = if index % 2 == 0 { None } else { Some(50_000) };
                    while taken.load(Ordering::Relaxed) < 400 {
                        match take(plane, mailbox, wait_ns).expect("it is open") {
                            Some(0) => return,
                            Some(_) => drop(taken.fetch_add(1, Ordering::Relaxed)),
                            None => {}
                        }
                    }
                });
            }
            for round in 0..400 {
                put(&plane, mailbox, 1);
                until(|| taken.load(Ordering::Relaxed) > round);
            }
            for _ in 0..4 {
                put(&plane, mailbox, 0);
            }
        });
    }

    #[test]
    fn a_leader_that_leaves_names_a_successor_who_reads() {
        let (plane, mailbox) = bound();
        let other = plane.mailbox(local(), PORT + 1, MailboxSettings::default());
        thread::scope(|scope| {
            let leader = scope.spawn(|| take(&plane, other, Some(30_000_000)));
            until(|| plane.lock().wait_queue.has_leader());
            let follower = scope.spawn(|| take(&plane, mailbox, None));
            assert_eq!(leader.join().expect("no panic"), Ok(None));
            until(|| plane.lock().wait_queue.has_leader());
            put(&plane, mailbox, 3);
            assert_eq!(follower.join().expect("no panic"), Ok(Some(3)));
        });
    }

    #[test]
    fn closing_wakes_all_waiters() {
        let (plane, mailbox) = bound();
        thread::scope(|scope| {
            let waiters = [(); 3].map(|()| scope.spawn(|| take(&plane, mailbox, None)));
            until(|| plane.lock().wait_queue.has_leader());
            plane.close(0);
            for waiter in waiters {
                assert_eq!(
                    waiter.join().expect("no panic"),
                    Err(ErrorReason::Closed.into())
                );
            }
        });
    }

    #[test]
    fn the_progress_thread_returns_at_its_deadline_and_when_it_is_woken() {
        let (plane, _) = bound();
        assert!(plane.help(Some(plane.now_ns() + 5_000_000)).is_empty());
        thread::scope(|scope| {
            let progress_thread = scope.spawn(|| plane.help(None));
            thread::sleep(Duration::from_millis(20));
            plane.wake();
            assert!(progress_thread.join().expect("no panic").is_empty());
        });
    }
}
