//! One waiter, one who tells it, and what lies between.
//!
//! The lock, the futex and the kick are models.

use loom::sync::atomic::Ordering;
use loom::sync::{Condvar, Mutex, MutexGuard};
use loom::thread;
use urds_loom::word::{Wake, Word};

/// What the plane's lock guards.
#[derive(Default)]
struct State {
    message: bool,
    listed: bool,
}

struct Plane {
    state: Mutex<State>,
    word: Word,
    /// The kernel's lock of the futex, under which it compares the word once more.
    gate: Mutex<()>,
    gate_opens: Condvar,
    kick: Mutex<bool>,
    kicked: Condvar,
}

impl Plane {
    /// Never freed: loom cannot drop what is its own once it has found a deadlock.
    fn new() -> &'static Self {
        Box::leak(Box::new(Self {
            state: Mutex::new(State::default()),
            word: Word::new(),
            gate: Mutex::new(()),
            gate_opens: Condvar::new(),
            kick: Mutex::new(false),
            kicked: Condvar::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics")
    }

    /// futex(2): sleep if the word is still so.
    fn sleep_at_gate(&self, doing: u32) {
        let gate = self.gate.lock().expect("no thread panics");
        if self.word.atomic().load(Ordering::SeqCst) == doing {
            drop(self.gate_opens.wait(gate).expect("no thread panics"));
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

    /// Bring a message and tell the waiter, as `Waiters::tell` and `Wakes::deliver` do.
    fn tell(&self) {
        let mut state = self.lock();
        state.message = true;
        let is_listed = std::mem::take(&mut state.listed);
        let wake = if is_listed {
            self.word.notify()
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
            Wake::Gate => {
                drop(self.gate.lock().expect("no thread panics"));
                self.gate_opens.notify_all();
            }
        }
    }
}

/// Let one thread wait and another tell it.
fn meet(waits: fn(&Plane)) {
    loom::model(move || {
        let plane = Plane::new();
        let teller = thread::spawn(|| plane.tell());
        waits(plane);
        teller.join().expect("no panic");
    });
}

fn follow(plane: &Plane) {
    loop {
        let mut state = plane.lock();
        if state.message {
            plane.word.stand();
            return;
        }
        state.listed = true;
        plane.word.park();
        drop(state);
        if let Ok(doing) = plane.word.parked_value() {
            plane.sleep_at_gate(doing);
        }
    }
}

/// The same, but it says that it sleeps after it has released the lock.
fn follow_late(plane: &Plane) {
    loop {
        let mut state = plane.lock();
        if state.message {
            return;
        }
        state.listed = true;
        drop(state);
        plane.word.park();
        if let Ok(doing) = plane.word.parked_value() {
            plane.sleep_at_gate(doing);
        }
    }
}

/// The same, but it sleeps whatever the word says.
fn follow_blindly(plane: &Plane) {
    loop {
        let mut state = plane.lock();
        if state.message {
            return;
        }
        state.listed = true;
        plane.word.park();
        drop(state);
        let (Ok(doing) | Err(doing)) = plane.word.parked_value();
        plane.sleep_at_gate(doing);
    }
}

fn lead(plane: &Plane) {
    loop {
        let mut state = plane.lock();
        if state.message {
            plane.word.stand();
            return;
        }
        state.listed = true;
        plane.word.sit_in_poll();
        drop(state);
        plane.sleep_in_poll();
        plane.word.rise();
    }
}

/// Look at the word for a while before the first sleep, as who polls busily does.
fn lead_awake(plane: &Plane) {
    let mut state = plane.lock();
    state.listed = !state.message;
    plane.word.sit_awake();
    drop(state);
    if plane.word.is_notified() {
        assert!(plane.lock().message, "it is told of nothing");
    }
    lead(plane);
}

/// Leave for a signal, which comes at any moment; who was told knows it and passes it on.
fn leave(plane: &Plane, rise: fn(&Word)) {
    let mut state = plane.lock();
    if state.message {
        return;
    }
    state.listed = true;
    plane.word.sit_in_poll();
    drop(state);
    rise(&plane.word);
    let state = plane.lock();
    let was_told = !state.listed;
    assert_eq!(plane.word.stand(), was_told, "no thread passes it on");
}

#[test]
fn a_follower_that_is_told_wakes() {
    meet(follow);
}

#[test]
#[should_panic(expected = "deadlock")]
fn to_sit_down_after_the_lock_is_found() {
    meet(follow_late);
}

#[test]
#[should_panic(expected = "deadlock")]
fn to_sleep_when_notified_is_found() {
    meet(follow_blindly);
}

#[test]
fn a_leader_that_is_told_wakes() {
    meet(lead);
}

#[test]
fn a_leader_that_looked_before_it_sleeps_wakes() {
    meet(lead_awake);
}

#[test]
fn who_was_told_and_rises_knows_it() {
    meet(|plane| leave(plane, Word::rise));
}

#[test]
#[should_panic(expected = "no thread passes it on")]
fn to_rise_by_a_store_is_found() {
    meet(|plane| leave(plane, |word| word.atomic().store(0, Ordering::SeqCst)));
}
