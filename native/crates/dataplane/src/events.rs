//! Events that `help` returns to the control plane; as in `urds.rds.plane.contract`.

use urds_path::{Address, DownReason, Extension};

use crate::external::ExternalId;
use crate::state::{MailboxId, PathId};

/// What `watch` waits for; the bits of `contract.Interest`, which are those of poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest(pub u8);

impl Interest {
    pub const READ: Self = Self(1);
    pub const WRITE: Self = Self(4);
}

/// A message for the control plane: ping, pong or probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    pub path: PathId,
    pub sequence: u64,
    pub acknowledgement: u64,
    pub source_port: u16,
    pub target_port: u16,
    pub extension: Extension,
    /// Cut at 64 bytes.
    pub payload: Vec<u8>,
    pub attachment: u64,
}

/// Each as the record of that name in `base`; `attachment` counts the path's streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    ConnectWanted {
        path: PathId,
    },
    FirstFrame {
        path: PathId,
        attachment: u64,
        generation: Option<u64>,
    },
    Down {
        path: PathId,
        reason: DownReason,
        errno: i32,
        frames: u64,
        attachment: u64,
    },
    Control(Control),
    PeerRestarted {
        path: PathId,
    },
    LingerOver {
        path: PathId,
        unsent: u64,
        unacknowledged: u64,
    },
    /// The congestion map of an address changed: its transports of messages send it.
    LocalMapChanged {
        local: Address,
    },
    /// A mailbox that had paused a transport's path is at half of its hard bound.
    Resumed {
        path: ExternalId,
    },
    /// A mailbox's messages to an absent peer are to be dropped, to make room for others.
    GiveUp {
        path: ExternalId,
        mailbox: MailboxId,
    },
    /// The linger time of a closed mailbox is over: what it still has on the path is cancelled.
    LingerEnded {
        path: ExternalId,
        mailbox: MailboxId,
    },
    /// The last descriptor of an attached socket was closed; all that it submitted was taken.
    Left {
        mailbox: MailboxId,
    },
    /// The client of an attached socket broke the protocol in its memory; the socket has ended.
    ClientError {
        mailbox: MailboxId,
        what: &'static str,
    },
    /// An attached socket has a message to a peer without a route.
    RouteWanted {
        mailbox: MailboxId,
        peer: Address,
    },
    Ready {
        descriptor: i32,
        interest: Interest,
    },
}
