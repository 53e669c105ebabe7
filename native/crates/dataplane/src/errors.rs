//! Error reasons, named as in `urds.common.errors.ErrorReason`, which has the errno of each.

use std::fmt;

use urds_path::Address;

/// One per reason that the plane raises, and three that end a call without an error of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorReason {
    TooLong,
    QueueFull,
    PathFull,
    ShareFull,
    NothingToReceive,
    PeerCongested,
    TimedOut,
    FlagsNotSupported,
    NotSupported,
    NoDestinationGiven,
    BadCmsg,
    Closed,
    AfterFork,
    NodeFailed,
    PeerUnreachable,
    /// No route: the caller resolves and sends again, at most three times; then `PeerUnreachable`.
    NoRoute,
    /// `interrupted` returned true: the caller raises its exception.
    Interrupted,
    /// A system call failed with this errno.
    System(i32),
}

impl ErrorReason {
    /// Return the name of the member of `ErrorReason` in Python, `None` where there is none.
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::TooLong => "TOO_LONG",
            Self::QueueFull => "QUEUE_FULL",
            Self::PathFull => "PATH_FULL",
            Self::ShareFull => "SHARE_FULL",
            Self::NothingToReceive => "NOTHING_TO_RECEIVE",
            Self::PeerCongested => "PEER_CONGESTED",
            Self::TimedOut => "TIMED_OUT",
            Self::FlagsNotSupported => "FLAGS_NOT_SUPPORTED",
            Self::NotSupported => "NOT_SUPPORTED",
            Self::NoDestinationGiven => "NO_DESTINATION_GIVEN",
            Self::BadCmsg => "BAD_CMSG",
            Self::Closed => "CLOSED",
            Self::AfterFork => "AFTER_FORK",
            Self::NodeFailed => "NODE_FAILED",
            Self::PeerUnreachable => "PEER_UNREACHABLE",
            Self::NoRoute | Self::Interrupted | Self::System(_) => return None,
        })
    }

    /// Return the error with this reason and a text.
    pub fn because(self, detail: impl Into<String>) -> Rejected {
        Rejected {
            reason: self,
            detail: detail.into(),
            limit: None,
            peer: None,
        }
    }
}

/// An error with the values and limits that explain it; an empty text for none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    pub reason: ErrorReason,
    pub detail: String,
    /// The number that was exceeded.
    pub limit: Option<usize>,
    /// The host that it concerns.
    pub peer: Option<Address>,
}

impl Rejected {
    /// Return the error with the number that was exceeded.
    #[must_use]
    pub fn above(self, limit: usize) -> Self {
        let limit = Some(limit);
        Self { limit, ..self }
    }

    /// Return the error with the host that it concerns.
    #[must_use]
    pub fn towards(self, peer: Address) -> Self {
        let peer = Some(peer);
        Self { peer, ..self }
    }
}

impl From<ErrorReason> for Rejected {
    fn from(reason: ErrorReason) -> Self {
        reason.because(String::new())
    }
}

impl From<std::io::Error> for Rejected {
    fn from(failure: std::io::Error) -> Self {
        ErrorReason::System(failure.raw_os_error().unwrap_or(libc::EIO)).into()
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {}", self.reason, self.detail)
    }
}

impl std::error::Error for Rejected {}
