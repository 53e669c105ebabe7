//! Small types that the whole plane shares, as in `src/urds/rds/plane/contract.py`.

use crate::constants::EXTENSION_BYTES;

/// The extension space of a header; all zero is none.
pub type Extension = [u8; EXTENSION_BYTES];

/// No extension at all.
pub const NO_EXTENSION: Extension = [0; EXTENSION_BYTES];

/// The sender of a message: a number that only the shell interprets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub u64);

/// What a newly attached path waits for before it sends anything but its congestion map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    Nothing,
    /// The lower address towards Linux: bytes into a connection that the peer rejects are lost.
    FirstFrame,
    /// Between urds nodes: until `end_hold`, which follows the peer's hello.
    Hello,
}

/// What frees a message at the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckMode {
    /// Kind of peer unknown: keep everything.
    NotYet,
    /// Linux: TCP acknowledged the last byte.
    StreamAcknowledged,
    /// urds node: the header's acknowledgement field.
    PeerAcknowledged,
}

/// Why a path lost its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownReason {
    EndOfStream,
    /// The event holds the errno.
    Error,
    /// A header announced more than `frame_bytes_max`.
    TooLong,
    /// A congestion map that is not 8192 bytes.
    BadMap,
    BadChecksum,
    /// Acknowledged more than was sent on the stream.
    BadAcknowledgement,
}
