//! The channels of one opened `shm` device, as the way of its engine's packets.
//!
//! Meeting, greeting and sockets' messages are Python; from there on a channel is memory, and a socket
//! to ring its peer. The caller serialises the calls, passes the engine and the time, and tells of ends.
//! The format is that of docs/protocol/verbs-channel.md.

#![forbid(unsafe_code)]

mod acknowledgements;
mod channel;
mod channels;
mod early;
mod lead;
#[cfg(test)]
mod lead_tests;
mod mappings;
mod records;

pub use channel::Channel;
pub use channels::{Channels, Event, Gid, Looked, PLACED_BYTES_MIN};
pub use lead::{Claim, Lead, Sleep, Waiter, Wakes};
pub use mappings::Region;
