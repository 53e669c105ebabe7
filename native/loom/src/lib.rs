//! What no lock guards, in every order of two threads; `cargo test --release` in this folder.
//!
//! The state of a waiter, the bytes of a shm stream, the slots of a verbs channel and the words of sleepers are the
//! product's own sources; what lies around them is a model, in `tests`. A thread that would sleep for ever is a deadlock, which loom reports.

mod atomics {
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    pub fn fence(order: Ordering) {
        if !crate::WITHOUT_FENCES.get() {
            loom::sync::atomic::fence(order);
        }
    }
}
mod rules {
    pub fn holds(rule: crate::slots::Rule) -> bool {
        crate::BROKEN.get() != Some(rule)
    }
}
// Linted where they live; what the models do not drive is no dead code there.
#[path = "../../crates/channel/src/bytes.rs"]
#[allow(dead_code, clippy::pedantic)]
pub mod bytes;
#[path = "../../crates/channel/src/sleep.rs"]
#[allow(dead_code, clippy::pedantic)]
pub mod sleep;
#[path = "../../crates/channel/src/slots.rs"]
#[allow(dead_code, clippy::pedantic)]
pub mod slots;
#[path = "../../crates/dataplane/src/waiter_state.rs"]
#[allow(dead_code, clippy::new_without_default, clippy::missing_errors_doc)]
pub mod waiter_state;

std::thread_local! {
    /// A rule of the slots to break; as the next one.
    pub static BROKEN: std::cell::Cell<Option<slots::Rule>> = const { std::cell::Cell::new(None) };
    /// A rule to break: no fence does anything. Of the test; loom has one thread for all.
    pub static WITHOUT_FENCES: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// A model of the socket of a doorbell, which stays readable until it is read.
#[derive(Default)]
pub struct Doorbell {
    has_rung: loom::sync::Mutex<bool>,
    rings: loom::sync::Condvar,
}

impl Doorbell {
    /// # Panics
    /// If a thread has panicked.
    pub fn ring(&self) {
        *self.has_rung.lock().expect("no thread panics") = true;
        self.rings.notify_all();
    }

    /// Wait until it has rung, and read it empty.
    ///
    /// # Panics
    /// If a thread has panicked.
    pub fn sleep(&self) {
        let mut has_rung = self.has_rung.lock().expect("no thread panics");
        while !*has_rung {
            has_rung = self.rings.wait(has_rung).expect("no thread panics");
        }
        *has_rung = false;
    }
}
