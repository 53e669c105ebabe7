//! One ordered stream to a peer as a value machine: octets and calls go in, octets come out.
//!
//! Knows no I/O, clock, lock, thread or Python: who calls it brings the time and holds the lock.
//! The specification is the Python of `src/urds/dataplane/reference`, which it follows to the
//! counter.

#![forbid(unsafe_code)]

pub mod address;
pub mod chunks;
pub mod congestion_map;
pub mod constants;
pub mod control_budget;
pub mod core;
pub mod counters;
pub mod extension;
pub mod fence;
mod framing;
pub mod header;
pub mod inbox;
pub mod incoming;
mod judging;
pub mod kinds;
pub mod limits;
pub mod offer;
pub mod outgoing;
mod outgoing_taking;
mod partial;
pub mod payload;
pub mod peer_lives;

pub use self::core::PathCore;
pub use address::{Address, SocketAddress};
pub use congestion_map::CongestionMap;
pub use control_budget::ControlBudget;
pub use counters::Counters;
pub use fence::Fence;
pub use header::Header;
pub use inbox::{Front, Inbox};
pub use incoming::{Arriving, BodyReading, ControlMessage, Ground, Incoming, Received};
pub use kinds::{DownReason, Extension, Hold, NO_EXTENSION, Owner, Release};
pub use limits::Limits;
pub use offer::{Offer, SLICES_MAX};
pub use outgoing::{Freed, Message, Outgoing, Queued};
pub use outgoing_taking::Row;
pub use payload::{ArrivingPayload, Body, Memory, Payload};
pub use peer_lives::PeerLives;

#[cfg(test)]
mod incoming_properties;
#[cfg(test)]
mod incoming_tests;
#[cfg(test)]
mod incoming_world;
#[cfg(test)]
mod judging_tests;
