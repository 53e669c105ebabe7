//! Steps between two stores that a next worker relies on, and the rules that order them.
//!
//! Tests end a worker at a step, and leave a rule out to see a message lost or doubled. Elsewhere
//! both are nothing.

/// A moment at which a worker may be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A message has its number, its path does not know.
    Numbered,
    /// The path's next number is noted, and no byte has left.
    NextNoted,
    /// A delivery is intended, and nothing is there.
    Intended,
    /// The client sees the message.
    Published,
    /// The path knows, and the intent is still on.
    ExpectedNoted,
    /// A message between sockets of this node is there, and its record not free.
    DeliveredHere,
    /// Its record is free, and the intent is still on.
    FreedHere,
    /// A reader counts as awake, and its doorbell has not been rung.
    ShowDue,
}

/// A rule without which some kill loses or doubles a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A number is noted in the record of its message.
    NoteNumber,
    /// The path's next number is noted before bytes leave.
    NoteNext,
    /// A delivery from a path is intended before it is made.
    IntendFromPath,
    /// A delivery from a socket of this node is intended before it is made.
    IntendFromSocket,
    /// The path's expected number is noted with the delivery.
    NoteExpected,
    /// Sockets with unread messages are shown by the next worker.
    ShowUnread,
    /// Nothing is read while sockets are restored.
    HoldStreams,
    /// New messages of sockets that changed their path wait for those with numbers.
    HoldMoved,
}

#[cfg(not(test))]
mod kept {
    use super::{Rule, Step};

    #[inline]
    pub(crate) const fn holds(_: Rule) -> bool {
        true
    }

    #[inline]
    pub(crate) const fn pass(_: Step) {}

    #[inline]
    pub(crate) const fn is_killed() -> bool {
        false
    }
}

#[cfg(not(test))]
pub(crate) use kept::{holds, is_killed, pass};

#[cfg(test)]
pub(crate) use broken::{BROKEN, KILL_AT, holds, is_killed, pass};

#[cfg(test)]
mod broken {
    use std::cell::Cell;

    use super::{Rule, Step};

    thread_local! {
        /// The rule that does not hold.
        pub(crate) static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
        /// Where this thread's worker ends.
        pub(crate) static KILL_AT: Cell<Option<Step>> = const { Cell::new(None) };
    }

    pub(crate) fn holds(rule: Rule) -> bool {
        BROKEN.get() != Some(rule)
    }

    /// Return whether the worker of this thread is ending: it wakes nothing any more.
    pub(crate) fn is_killed() -> bool {
        std::thread::panicking()
    }

    pub(crate) fn pass(step: Step) {
        if KILL_AT.get() == Some(step) {
            KILL_AT.set(None);
            std::panic::resume_unwind(Box::new(step));
        }
    }
}
