//! Why a call was refused; the names of `urds.errors.Refusal`, which knows the errno of each.

use std::fmt;

/// One per reason that the plane raises, and three that end a call without being an error of its.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
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
    /// No route: the caller resolves, and sends again; at most three times, then `PeerUnreachable`.
    NoRoute,
    /// `interrupted` said so: its exception is to be raised.
    Interrupted,
    /// A system call failed with this errno.
    System(i32),
}

impl Refusal {
    /// Return the name of the member of `urds.errors.Refusal`, `None` where there is none.
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

    /// Return the refusal with a text for the error.
    pub fn because(self, detail: impl Into<String>) -> Refused {
        Refused {
            refusal: self,
            detail: detail.into(),
        }
    }
}

/// A refusal with the values and limits that explain it; an empty text for none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub refusal: Refusal,
    pub detail: String,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self {
            refusal,
            detail: String::new(),
        }
    }
}

impl From<std::io::Error> for Refused {
    fn from(failure: std::io::Error) -> Self {
        Refusal::System(failure.raw_os_error().unwrap_or(libc::EIO)).into()
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {}", self.refusal, self.detail)
    }
}

impl std::error::Error for Refused {}
