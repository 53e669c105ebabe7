//! Sockets of a client: a program whose RDS sockets belong to a node, another process.
//!
//! A socket's descriptor is one end of an `AF_UNIX` stream pair, its *control socket*: it shows
//! POLLIN and POLLOUT, and calls that wait do so in a blocking call on it, so that `O_NONBLOCK`,
//! timeouts and signals are the kernel's affair. Messages lie in memory that client and node share.
//! What concerns others (bind, a first message to a peer, information) is one *request* to the node.
//!
//! No allocation, no thread, no hidden descriptor; errors are numbers of `errno`. Nothing here is
//! called by a name of libc that a preloaded library replaces.

#![cfg_attr(not(test), no_std)]

pub mod information;
pub mod places;
pub mod receive;
pub mod request;
pub mod send;
pub mod socket;
pub mod sys;
mod waiting;

pub use receive::{Flags, Message};
pub use socket::Socket;
pub use urds_channel::socket_memory::{Name, Options, Outgoing, ReceivedKind, Trace, Word};
