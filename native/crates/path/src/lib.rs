//! One ordered stream to a peer as a value machine: bytes and calls go in, bytes come out.
//!
//! No I/O, clock, lock, thread or Python: the caller passes the time and holds the lock. The
//! specification is the Python plane in `src/urds/rds/plane/python`, equal in every counter.

#![forbid(unsafe_code)]

pub mod address;
pub mod chunks;
pub mod congestion_map;
pub mod constants;
pub mod control_budget;
pub mod counters;
pub mod extension;
pub mod fence;
pub mod freed;
pub mod header;
pub mod inbox;
pub mod kinds;
pub mod limits;
pub mod packed_frames;
pub mod path;
pub mod payload;
pub mod peer_generations;
pub mod queued_messages;
pub mod receiver;
pub mod sender;
pub mod write_buffer;

pub use self::path::PathCore;
pub use address::{Address, SocketAddress};
pub use congestion_map::CongestionMap;
pub use control_budget::ControlBudget;
pub use counters::Counters;
pub use fence::Fence;
pub use freed::Freed;
pub use header::Header;
pub use inbox::{Front, Inbox};
pub use kinds::{AckMode, DownReason, Extension, Hold, NO_EXTENSION, Owner};
pub use limits::Limits;
pub use payload::{ArrivingPayload, Body, Memory, Payload};
pub use peer_generations::PeerGenerations;
pub use queued_messages::{Message, Row};
pub use receiver::{Arriving, BodyReading, ControlMessage, MessageSink, Received, Receiver};
pub use sender::Sender;
pub use write_buffer::WriteBuffer;

#[cfg(test)]
mod admission_tests;
#[cfg(test)]
mod receiver_properties;
#[cfg(test)]
mod receiver_tests;
#[cfg(test)]
mod receiver_world;
