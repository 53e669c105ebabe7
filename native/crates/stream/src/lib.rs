//! One side of a stream socket over RDMA as a value machine: words of the peer and calls of the
//! application go in, posts for the queue pair come out.
//!
//! No I/O, clock, lock, thread, chance or Python. Memory that the peer writes is copied in and out
//! through [`Memory`], never borrowed. The specification is `src/urds/rsocket/core/stream`, equal in
//! every post and sentence; its emulation of librdmacm stays Python alone, peers of that kind do not.

#![forbid(unsafe_code)]

pub mod core;
pub mod lifecycle;
pub mod receive_ring;
pub mod records;
pub mod sending;
pub mod tables;
pub mod wire;

pub use crate::core::StreamCore;
pub use lifecycle::{Shut, StreamState};
pub use records::{
    Data, IsExpecting, Mapped, Memory, Post, PostKind, ProtocolError, Refused, Region, Source,
    StreamSettings, StreamStats,
};

#[cfg(test)]
mod core_tests;
