//! One waiter, a thread that notifies it, and what lies between.
//!
//! The lock, the futex and the kick are models.

use loom::sync::atomic::Ordering;
use loom::sync::{Condvar, Mutex, MutexGuard};
use loom::thread;
use urds_loom::waiter_state::{WaiterState, Wake};

/// What the plane's lock guards.
#[derive(Default)]
struct State {
    message: bool,
    listed: bool,
}

struct Plane {
    state: Mutex<State>,
    doing: WaiterState,
    /// The kernel's lock of the futex, under which it compares the value once more.
    futex: Mutex<()>,
    unparked: Condvar,
    kick: Mutex<bool>,
    kicked: Condvar,
}

impl Plane {
    /// Never freed: loom cannot drop what is its own once it has found a deadlock.
    fn new() -> &'static Self {
        Box::leak(Box::new(Self {
            state: Mutex::new(State::default()),
            doing: WaiterState::new(),
            futex: Mutex::new(()),
            unparked: Condvar::new(),
            kick: Mutex::new(false),
            kicked: Condvar::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics")
    }

    /// futex(2): sleep if the value is still so.
    fn sleep_parked(&self, value: u32) {
        let guard = self.futex.lock().expect("no thread panics");
        if self.doing.atomic().load(Ordering::SeqCst) == value {
            drop(self.unparked.wait(guard).expect("no thread panics"));
        }
    }

    /// eventfd(2): sleep until it is readable; it stays so until it is read.
    fn sleep_in_poll(&self) {
        let mut kick = self.kick.lock().expect("no thread panics");
        while !*kick {
            kick = self.kicked.wait(kick).expect("no thread panics");
        }
        *kick = false;
    }

    /// Bring a message and notify the waiter, as `Waiters::tell` and `Wakes::deliver` do.
    fn notify(&self) {
        let mut state = self.lock();
        state.message = true;
        let is_listed = std::mem::take(&mut state.listed);
        let wake = if is_listed {
            self.doing.notify()
        } else {
            Wake::Needless
        };
        drop(state);
        self.wake(wake);
    }

    fn wake(&self, wake: Wake) {
        match wake {
            Wake::Needless => {}
            Wake::Kick => {
                *self.kick.lock().expect("no thread panics") = true;
                self.kicked.notify_all();
            }
            Wake::Parked => {
                drop(self.futex.lock().expect("no thread panics"));
                self.unparked.notify_all();
            }
        }
    }
}

/// Let one thread wait and another notify it.
fn meet(waits: fn(&Plane)) {
    loom::model(move || {
        let plane = Plane::new();
        let notifier = thread::spawn(|| plane.notify());
        waits(plane);
        notifier.join().expect("no panic");
    });
}

fn follow(plane: &Plane) {
    loop {
        let mut state = plane.lock();
        if state.message {
            plane.doing.end_wait();
            return;
        }
        state.listed = true;
        plane.doing.park();
        drop(state);
        if let Ok(value) = plane.doing.parked_value() {
            plane.sleep_parked(value);
        }
    }
}

/// The same, but it notes that it parks after it has released the lock.
fn follow_late(plane: &Plane) {
    loop {
        let mut state = plane.lock();
        if state.message {
            return;
        }
        state.listed = true;
        drop(state);
        plane.doing.park();
        if let Ok(value) = plane.doing.parked_value() {
            plane.sleep_parked(value);
        }
    }
}

/// The same, but it sleeps whatever its state is.
fn follow_blindly(plane: &Plane) {
    loop {
        let mut state = plane.lock();
        if state.message {
            return;
        }
        state.listed = true;
        plane.doing.park();
        drop(state);
        let (Ok(value) | Err(value)) = plane.doing.parked_value();
        plane.sleep_parked(value);
    }
}

fn lead(plane: &Plane) {
    loop {
        let mut state = plane.lock();
        if state.message {
            plane.doing.end_wait();
            return;
        }
        state.listed = true;
        plane.doing.lead_in_poll();
        drop(state);
        plane.sleep_in_poll();
        plane.doing.leave_poll();
    }
}

/// Look at the state for a while before the first sleep, as a busy poll does.
fn lead_awake(plane: &Plane) {
    let mut state = plane.lock();
    state.listed = !state.message;
    plane.doing.lead_awake();
    drop(state);
    if plane.doing.is_notified() {
        assert!(plane.lock().message, "it is notified of nothing");
    }
    lead(plane);
}

/// Leave for a signal, which comes at any moment; a notified waiter knows it and passes it on.
fn leave(plane: &Plane, leave_poll: fn(&WaiterState)) {
    let mut state = plane.lock();
    if state.message {
        return;
    }
    state.listed = true;
    plane.doing.lead_in_poll();
    drop(state);
    leave_poll(&plane.doing);
    let state = plane.lock();
    let was_notified = !state.listed;
    assert_eq!(
        plane.doing.end_wait(),
        was_notified,
        "no thread passes it on"
    );
}

#[test]
fn a_follower_that_is_notified_wakes() {
    meet(follow);
}

#[test]
#[should_panic(expected = "deadlock")]
fn to_park_after_the_lock_is_found() {
    meet(follow_late);
}

#[test]
#[should_panic(expected = "deadlock")]
fn to_sleep_when_notified_is_found() {
    meet(follow_blindly);
}

#[test]
fn a_leader_that_is_notified_wakes() {
    meet(lead);
}

#[test]
fn a_leader_that_looked_before_it_sleeps_wakes() {
    meet(lead_awake);
}

#[test]
fn a_waiter_that_was_notified_and_leaves_the_poll_knows_it() {
    meet(|plane| leave(plane, WaiterState::leave_poll));
}

#[test]
#[should_panic(expected = "no thread passes it on")]
fn to_leave_the_poll_by_a_store_is_found() {
    meet(|plane| leave(plane, |doing| doing.atomic().store(0, Ordering::SeqCst)));
}
