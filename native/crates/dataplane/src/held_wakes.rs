//! Wake-ups of a thread that holds a lock which comes before the plane's.
//!
//! To give the plane's lock back is to wake threads and to call subscribers, which may be code of Python's.
//! A caller that holds another lock meanwhile, as that of an engine, has them wait until it is free.

use std::cell::RefCell;

use crate::plane::Plane;
use crate::state::After;

thread_local! {
    static HELD: RefCell<Option<Vec<After>>> = const { RefCell::new(None) };
}

/// Do work of which no wake-up leaves, then wake. The work takes and frees all its locks.
pub fn hold<T>(plane: &Plane, work: impl FnOnce() -> T) -> T {
    if HELD.with(|held| held.borrow().is_some()) {
        return work(); // within another
    }
    let _open = Open::new(plane);
    work()
}

/// Wakes at its end, also after a panic.
struct Open<'a>(&'a Plane);

impl<'a> Open<'a> {
    fn new(plane: &'a Plane) -> Self {
        HELD.with(|held| *held.borrow_mut() = Some(Vec::new()));
        Self(plane)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let held = HELD.with(|held| held.borrow_mut().take());
        for after in held.into_iter().flatten() {
            after.deliver(self.0);
        }
    }
}

/// Wake now, or once the caller is done.
pub(crate) fn deliver(plane: &Plane, after: After) {
    let now = HELD.with(|held| match held.borrow_mut().as_mut() {
        Some(waiting) => {
            waiting.push(after);
            None
        }
        None => Some(after),
    });
    if let Some(after) = now {
        after.deliver(plane);
    }
}
