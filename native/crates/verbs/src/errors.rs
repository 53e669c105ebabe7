//! What a call is refused with, and an access that its key does not allow.

use crate::numbers::Status;

pub const ENOMEM: i32 = 12;
pub const EBUSY: i32 = 16;
pub const EEXIST: i32 = 17;
pub const EINVAL: i32 = 22;
pub const EOPNOTSUPP: i32 = 95;

/// A refused call: an `errno` and the sentence of the Python engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    pub errno: i32,
    pub detail: String,
}

impl Rejected {
    pub fn new(errno: i32, detail: impl Into<String>) -> Self {
        Self {
            errno,
            detail: detail.into(),
        }
    }

    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(EINVAL, detail)
    }
}

/// What a responder answers. RNR: the timer code is added.
pub const ACK: u8 = 0x1F;
pub const RNR_NAK: u8 = 0x20;
pub const NAK_SEQUENCE: u8 = 0x60;
pub const NAK_INVALID_REQUEST: u8 = 0x61;
pub const NAK_REMOTE_ACCESS: u8 = 0x62;
pub const NAK_REMOTE_OPERATION: u8 = 0x63;

/// An access that is not allowed. `status` is that of a local completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub status: Status,
    /// For people, where a call is refused with it; else empty.
    pub reason: String,
}

impl Fault {
    pub fn of(status: Status) -> Self {
        Self {
            status,
            reason: String::new(),
        }
    }

    /// Return what a responder answers.
    pub fn syndrome(&self) -> u8 {
        match self.status {
            Status::LocProtErr => NAK_REMOTE_OPERATION,
            Status::RemAccessErr => NAK_REMOTE_ACCESS,
            _ => NAK_INVALID_REQUEST,
        }
    }
}
