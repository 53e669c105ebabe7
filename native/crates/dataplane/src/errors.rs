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
    PeerNotAllowed,
    TooManyPeers,
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
            Self::PeerNotAllowed => "PEER_NOT_ALLOWED",
            Self::TooManyPeers => "TOO_MANY_PEERS",
            Self::NoRoute | Self::Interrupted | Self::System(_) => return None,
        })
    }

    /// Return the error with this reason and a text.
    #[cold]
    pub fn because(self, detail: impl Into<String>) -> Rejected {
        let detail = detail.into();
        let rejected = Rejected::from(self);
        if detail.is_empty() {
            return rejected;
        }
        rejected.explained(|explanation| explanation.detail = detail)
    }
}

/// An error with the values and limits that explain it.
///
/// Two words: it is a part of every result of a call, and a longer one would cost each message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    pub reason: ErrorReason,
    explanation: Option<Box<Explanation>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Explanation {
    detail: String,
    limit: Option<usize>,
    peer: Option<Address>,
}

impl Rejected {
    /// Return the error with the number that was exceeded.
    #[must_use]
    pub fn above(self, limit: usize) -> Self {
        self.explained(|explanation| explanation.limit = Some(limit))
    }

    /// Return the error with the host that it concerns.
    #[must_use]
    pub fn towards(self, peer: Address) -> Self {
        self.explained(|explanation| explanation.peer = Some(peer))
    }

    /// Return the text; empty for none.
    pub fn detail(&self) -> &str {
        self.explanation.as_ref().map_or("", |it| &it.detail)
    }

    /// Return the number that was exceeded.
    pub fn limit(&self) -> Option<usize> {
        self.explanation.as_ref()?.limit
    }

    /// Return the host that it concerns.
    pub fn peer(&self) -> Option<Address> {
        self.explanation.as_ref()?.peer
    }

    #[cold]
    fn explained(mut self, explain: impl FnOnce(&mut Explanation)) -> Self {
        explain(self.explanation.get_or_insert_default());
        self
    }
}

impl From<ErrorReason> for Rejected {
    fn from(reason: ErrorReason) -> Self {
        Self {
            reason,
            explanation: None,
        }
    }
}

impl From<std::io::Error> for Rejected {
    fn from(failure: std::io::Error) -> Self {
        ErrorReason::System(failure.raw_os_error().unwrap_or(libc::EIO)).into()
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {}", self.reason, self.detail())
    }
}

impl std::error::Error for Rejected {}

/// Return EMSGSIZE for a payload above a limit of this node, with the remedy and where it ends.
#[cold]
pub fn too_long(bytes: usize, send_bytes_max: usize, message_bytes_max: usize) -> Rejected {
    let (limit, remedy) = if bytes > message_bytes_max {
        (
            message_bytes_max,
            "raise the setting max_message_bytes at both ends",
        )
    } else {
        (
            send_bytes_max,
            "raise it with setsockopt(SO_SNDBUF), which the setting wmem_max bounds",
        )
    };
    let detail = format!(
        "payload of {bytes} bytes, limit {limit}: {remedy}; over RDMA and to a kernel 1048576 is the most"
    );
    ErrorReason::TooLong.because(detail).above(limit)
}

/// Return EMSGSIZE for a payload that the peer does not take.
#[cold]
pub(crate) fn peer_takes_less(bytes: usize, peer: Address, limit: usize) -> Rejected {
    let detail = format!(
        "payload of {bytes} bytes, {peer} takes {limit}: its max_message_bytes, \
         1 MiB for a kernel or RDMA"
    );
    ErrorReason::TooLong
        .because(detail)
        .above(limit)
        .towards(peer)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_error_is_two_words_long() {
        assert_eq!(size_of::<Rejected>(), 2 * size_of::<usize>());
    }

    #[test]
    fn an_error_keeps_what_explains_it() {
        let peer = Address::from(Ipv4Addr::LOCALHOST);
        let bare = ErrorReason::TooLong.because("");
        assert_eq!(bare, ErrorReason::TooLong.into());
        assert_eq!((bare.detail(), bare.limit(), bare.peer()), ("", None, None));
        let full = ErrorReason::TooLong.because("why").above(7).towards(peer);
        assert_eq!(full.reason, ErrorReason::TooLong);
        assert_eq!(
            (full.detail(), full.limit(), full.peer()),
            ("why", Some(7), Some(peer))
        );
        assert_eq!(full.to_string(), "TooLong: why");
        assert_ne!(full, bare);
    }
}
