use std::thread;

use super::*;
use crate::sys::area::{self, Area};
use crate::sys::raw;
use crate::sys::stepped::{self, Run};

/// A word that children of a fork share.
fn shared() -> Area {
    let (file, area) = area::make(4096).expect("memory");
    raw::close(file);
    area
}

/// Take the lock, and keep it for ever.
fn hold(area: &Area) {
    let guard = lock(area.word(0));
    assert!(guard.is_ok());
    loop {
        core::hint::spin_loop();
    }
}

/// Enough instructions to take a lock, far fewer than a test has time for.
const LONG: u64 = 20_000;

#[test]
fn a_handler_of_the_holder_is_refused_and_others_are_not() {
    let area = shared();
    let guard = lock(area.word(0)).expect("it is free");
    assert!(!guard.is_inherited);
    assert_eq!(lock(area.word(0)).err(), Some(Deadlock));
    let other = lock(area.word(64)).expect("another lock");
    assert_eq!(lock(area.word(0)).err(), Some(Deadlock), "the outer one");
    drop(other);
    assert_eq!(lock(area.word(0)).err(), Some(Deadlock), "still");
    drop(guard);
    drop(lock(area.word(0)).expect("it is free again"));
    assert_eq!(area.word(0).load(Ordering::Relaxed), 0);
}

#[test]
fn who_may_not_wait_is_told_that_it_is_held() {
    let area = shared();
    let guard = try_lock(area.word(0)).expect("it is free");
    assert!(!guard.is_inherited);
    assert!(try_lock(area.word(0)).is_none());
    drop(guard);
    assert_eq!(stepped::run(LONG, || hold(&area)), Run::Killed);
    assert!(try_lock(area.word(0)).is_none(), "the next one mends it");
    drop(lock(area.word(0)).expect("its holder is dead"));
    assert!(try_lock(area.word(0)).is_some());
}

#[test]
fn a_killed_holder_leaves_the_lock_and_says_so() {
    let area = shared();
    assert_eq!(stepped::run(LONG, || hold(&area)), Run::Killed);
    let guard = lock(area.word(0)).expect("its holder is dead");
    assert!(guard.is_inherited);
    drop(guard);
    assert!(
        !lock(area.word(0)).expect("it is free").is_inherited,
        "once"
    );
}

#[test]
fn who_waits_for_a_killed_holder_gets_the_lock() {
    let area = shared();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            while area.word(0).load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            lock(area.word(0)).expect("no handler").is_inherited
        });
        assert_eq!(stepped::run(LONG, || hold(&area)), Run::Killed);
        assert!(waiting.join().expect("no panic"));
    });
}

#[test]
fn threads_have_it_one_by_one() {
    let area = shared();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5_000 {
                    let _guard = lock(area.word(0)).expect("no handler");
                    let count = area.long(64);
                    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(area.long(64).load(Ordering::Relaxed), 20_000);
}
