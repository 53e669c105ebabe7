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
    plane.lock().wait_queue.begin_wait(leader, false);
    for _ in 1..LEADER_TICKS {
        assert_eq!(decided(&plane, false), (Some(TICK_MAX_NS), false));
    }
    assert_eq!(
        decided(&plane, false),
        (None, false),
        "the leader has stayed"
    );
    assert!(sleeps_long(&plane));
    plane.lock().wait_queue.end_wait(leader, None, false);
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
