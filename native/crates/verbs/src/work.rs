//! Work requests and completions as the engine has them.

use std::sync::Arc;

use crate::memory::Memory;
use crate::numbers::{AsyncEvent, GID_BYTES, Opcode, Status, WcOpcode};

/// One piece of registered memory, as a work request names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Any integer: no memory is outside of 64 bits.
    pub address: i128,
    pub length: i64,
    pub lkey: u32,
}

/// The pieces of a work request; one costs no allocation.
#[derive(Clone, Debug, Default)]
pub enum Pieces {
    #[default]
    None,
    One(Piece),
    Many(Box<[Piece]>),
}

impl Pieces {
    pub fn as_slice(&self) -> &[Piece] {
        match self {
            Self::None => &[],
            Self::One(piece) => std::slice::from_ref(piece),
            Self::Many(pieces) => pieces,
        }
    }

    /// Return the total length in bytes.
    pub fn bytes(&self) -> i128 {
        let lengths = self.as_slice().iter().map(|piece| i128::from(piece.length));
        lengths.sum()
    }
}

/// Where packets go: `AddressVector`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Route {
    pub gid: [u8; GID_BYTES],
    pub port: u32,
}

/// Bytes that a request brings itself.
#[derive(Clone, Debug, Default)]
pub enum Own {
    #[default]
    None,
    /// Copied while posting.
    Copied(Box<[u8]>),
    /// The caller's, which must not change until the request completes.
    Kept(Arc<dyn Memory>, usize),
}

/// What a `BIND_MW` binds.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    pub window: u64,
    /// Its identity: a new registration may give it other keys meanwhile.
    pub region: u64,
    pub address: i128,
    pub length: i128,
    pub access: u32,
}

/// A send work request as it was posted.
#[derive(Clone, Debug)]
pub struct SendWork {
    pub wr_id: u64,
    pub opcode: Opcode,
    pub pieces: Pieces,
    pub flags: u32,
    pub imm_data: u32,
    pub invalidate_rkey: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    pub compare_add: u64,
    pub swap: u64,
    pub compare_mask: u64,
    pub swap_mask: u64,
    pub boundary: u64,
    pub route: Option<Route>,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
    pub binding: Option<Binding>,
    pub own: Own,
    pub num_sge: Option<i64>,
}

impl SendWork {
    /// Return a request whose other fields have their defaults.
    pub fn new(wr_id: u64, opcode: Opcode, pieces: Pieces) -> Self {
        Self {
            wr_id,
            opcode,
            pieces,
            flags: crate::numbers::SEND_SIGNALED,
            imm_data: 0,
            invalidate_rkey: 0,
            remote_addr: 0,
            rkey: 0,
            compare_add: 0,
            swap: 0,
            compare_mask: u64::MAX,
            swap_mask: u64::MAX,
            boundary: 0,
            route: None,
            remote_qpn: 0,
            remote_qkey: 0,
            binding: None,
            own: Own::None,
            num_sge: None,
        }
    }

    /// Return the length of its message in bytes.
    pub fn message_bytes(&self) -> i128 {
        match &self.own {
            Own::None => self.pieces.bytes(),
            Own::Copied(bytes) => bytes.len() as i128,
            Own::Kept(_, length) => *length as i128,
        }
    }
}

/// Faults of a posted request that only its binding sees: told in the order of the checks.
#[derive(Clone, Debug, Default)]
pub struct Doubts {
    /// `data` is no plain bytes: why.
    pub data: Option<String>,
    /// Operands outside 64 bits: name and value.
    pub operands: Vec<(&'static str, String)>,
}

/// A receive as it was posted: room for one message.
#[derive(Clone, Debug, Default)]
pub struct RecvWork {
    pub wr_id: u64,
    pub pieces: Pieces,
    pub num_sge: Option<i64>,
}

/// One work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub wr_id: u64,
    pub status: Status,
    pub opcode: WcOpcode,
    pub byte_len: u64,
    pub qpn: u32,
    pub src_qpn: u32,
    pub imm_data: u32,
    pub flags: u8,
    pub solicited: bool,
}

impl Completion {
    /// Return the completion of a request, or of a receive that ended without a message.
    pub fn of(wr_id: u64, status: Status, opcode: WcOpcode, qpn: u32) -> Self {
        Self {
            wr_id,
            status,
            opcode,
            byte_len: 0,
            qpn,
            src_qpn: 0,
            imm_data: 0,
            flags: 0,
            solicited: false,
        }
    }
}

/// An object of the engine, by its number among those of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    QueuePair(u32),
    CompletionQueue(u32),
    ReceiveQueue(u32),
}

/// What an engine has to tell, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Async(AsyncEvent, Element),
    /// An armed queue got what it was armed for.
    Completed(u32),
}

/// A posted request, whose opcode may be none that there is.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // on the stack of one call; a box costs an allocation each
pub enum Opcoded {
    Known(SendWork),
    Unknown { wr_id: u64, name: String },
}
