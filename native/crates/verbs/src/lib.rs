//! The verbs engine as a value machine, for a link without loss: work requests and packets go in,
//! packets, completions and events come out.
//!
//! No I/O, clock, lock, thread or Python: the caller passes the time, or its clock, and holds the lock. The
//! specification is `src/urds/verbs/engine`, equal in every packet, completion and sentence. Its
//! parts for loss stay Python alone: selective acceptance, recovery, round trips.

#![forbid(unsafe_code)]

pub mod attributes;
pub mod completions;
pub mod consumer;
pub mod datagrams;
pub mod engine;
pub mod errors;
pub mod keys;
pub mod memory;
pub mod numbers;
mod ordered;
pub mod packets;
pub mod queue_pair;
pub mod receives;
pub mod requester;
pub mod requests;
pub mod responder;
pub mod slots;
pub mod time;
pub mod unanswered;
pub mod work;

pub use engine::Engine;
