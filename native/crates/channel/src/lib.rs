//! What two processes of a host share: memory, the words and rings in it, and the doorbell beside it.
//!
//! Neither process trusts the other. No allocation, no thread, no standard library: one of the two
//! may be a program of others that has this loaded into it.

#![cfg_attr(not(test), no_std)]

mod atomics {
    pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
pub mod bytes;
pub mod channel_memory;
pub mod congestion;
pub mod direction;
pub mod journal;
pub mod lock;
pub mod path_journal;
mod rules {
    /// Every rule holds; a test that breaks one compiles the sources with a `rules` of its own.
    #[inline]
    pub const fn holds(_: crate::slots::Rule) -> bool {
        true
    }
}
pub mod sleep;
pub mod slots;
pub mod socket_memory;
pub mod stream_memory;
pub mod sys;
#[cfg(test)]
mod test_memory;
