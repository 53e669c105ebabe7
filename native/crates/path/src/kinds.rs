//! Small words that the whole plane shares; they mean what they mean in `dataplane/base.py`.

use crate::constants::EXTENSION_BYTES;

/// The extension space of a header; all zero is none.
pub type Extension = [u8; EXTENSION_BYTES];

/// No extension at all.
pub const NO_EXTENSION: Extension = [0; EXTENSION_BYTES];

/// Who queued a message: a number that only the shell understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub u64);

/// What a freshly attached path waits for before it sends anything but its congestion map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    Nothing,
    /// The lower side towards Linux: octets sent into a connection that the peer refuses are lost.
    FirstFrame,
    /// Between own nodes: until `release`, which follows the peer's hello.
    Release,
}

/// What frees a message of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Kind of peer unknown: keep everything.
    NotYet,
    /// Linux: TCP acknowledged the last octet.
    StreamAcknowledged,
    /// Own node: the header's acknowledgement field.
    PeerAcknowledged,
}

/// Why a path lost its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownReason {
    EndOfStream,
    /// The errno stands in the event.
    Error,
    /// A header announced more than `frame_bytes_max`.
    TooLong,
    /// A congestion map that is not 8192 octets.
    BadMap,
    BadChecksum,
    /// Acknowledged more than was handed to the stream.
    BadAcknowledgement,
}
