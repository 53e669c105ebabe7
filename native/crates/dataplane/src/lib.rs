//! The shell of the data plane: one lock, threads, descriptors, streams.
//!
//! Same contract as `urds.rds.plane.python` (`urds.rds.plane.contract`). All state lies in one
//! [`state::State`] under one short lock ([`plane::Plane::lock`]). Handles are numbers
//! ([`table::Id`]): a stale one refers to nothing, and a call with it fails as on a closed object.
//!
//! Functions of `State` run with the lock held; functions of `Plane` take it themselves and are
//! called without it. Wake-ups are done when the guard is dropped, after the lock is released.

pub mod accounts;
pub mod attached;
mod atomics {
    pub use std::sync::atomic::{AtomicU32, Ordering};
}
pub mod background;
pub mod clock;
pub mod devices;
pub mod errors;
pub mod events;
pub mod external;
#[cfg(test)]
mod external_tests;
pub mod gathering;
pub mod held_wakes;
pub mod host;
pub mod line_floor;
mod loop_path;
pub mod mailbox;
pub mod operations;
pub mod path;
pub mod plane;
pub mod poll_set;
mod quick_hash;
pub mod readiness;
pub mod receive_side;
#[cfg_attr(not(feature = "broken-rules"), allow(dead_code))]
pub mod rules;
pub mod send_side;
pub mod shm_stream;
pub mod shutdown;
pub mod snapshots;
mod spinning;
pub mod state;
pub mod stream;
mod stream_ends;
#[cfg(test)]
mod stream_ends_tests;
pub mod stream_reader;
pub mod stream_writer;
pub mod sys;
pub mod table;
mod waiter_state;
pub mod waiting;

#[cfg(test)]
mod shell_tests;
#[cfg(test)]
mod world;
