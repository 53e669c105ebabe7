//! Memory of one socket, shared by the program that has it (the client) and the node.
//!
//! The client sends by filling a record of the *send area* and putting its place into the
//! *submission ring*; the node takes it, and frees the record when the peer acknowledged it. The
//! node receives by filling a record of the *receive area*; the client takes them in order. Every
//! process with a copy of the descriptor is the client: they share two robust locks, one of senders
//! and one of receivers, and may be killed at any instruction.
//!
//! The node believes nothing that lies here: what it reads it copies once and then checks, and
//! what it must know (lengths, places, counts) it keeps in its [journal](crate::journal). The client
//! checks only what keeps it within the mapping. See docs/protocol/socket-memory.md for every word.

mod account;
mod client_receive;
mod client_send;
mod client_side;
pub mod layout;
mod name;
mod node_receive;
mod node_recovery;
mod node_restore;
mod node_send;
mod node_side;
mod options;
mod send_area;

pub use account::Room;
pub use client_receive::{Received, ReceivedKind};
pub use client_send::{Outgoing, Published};
pub use client_side::{ClientSide, Rejected, Route};
pub use layout::{Sizes, make};
pub use name::Name;
pub use node_receive::{Arrival, Place, Trace};
pub use node_send::{Freed, Held, Submission};
pub use node_side::{ClientError, NodeSide};
pub use options::{Options, Word};

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod kill_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
