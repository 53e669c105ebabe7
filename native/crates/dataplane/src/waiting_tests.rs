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
fn take(plane: &Plane, mailbox: MailboxId, wait_ns: Option<u64>) -> Result<Option<u8>, Rejected> {
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
