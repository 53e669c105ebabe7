//! Work requests and completions as the engine has them.

use std::cell::RefCell;
use std::sync::Arc;

use crate::memory::{Memory, Payload};
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

/// Bytes that fit where a request is anyway.
const SHORT_BYTES: usize = 62;

/// Bytes that a request brings itself.
#[derive(Clone, Debug, Default)]
pub enum Own {
    #[default]
    None,
    /// Copied while posting: so many, which cost no allocation.
    Short(u8, [u8; SHORT_BYTES]),
    /// Copied while posting.
    Copied(Box<[u8]>),
    /// The caller's, which must not change until the request completes.
    Kept(Arc<dyn Memory>, usize),
}

impl Own {
    /// Copy bytes while posting.
    #[inline]
    pub fn copy_of(payload: Payload<'_>) -> Self {
        let mut own = Self::None;
        own.copy(payload);
        own
    }

    /// As `copy_of`, where it lies: the processor waits for bytes that it reads in wider pieces than they
    /// were written in.
    #[inline]
    pub fn copy(&mut self, payload: Payload<'_>) {
        let bytes = payload.len();
        match u8::try_from(bytes) {
            Ok(length) if bytes <= SHORT_BYTES => {
                *self = Self::Short(length, [0; SHORT_BYTES]);
                if let Self::Short(_, room) = self {
                    payload.copy_to(&mut room[..bytes]);
                }
            }
            _ => {
                let mut copied = Vec::with_capacity(bytes);
                payload.append_to(&mut copied);
                *self = Self::Copied(copied.into());
            }
        }
    }
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

/// Operands of an atomic operation.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    pub compare_add: u64,
    pub swap: u64,
    pub compare_mask: u64,
    pub swap_mask: u64,
    pub boundary: u64,
}

impl Default for Operands {
    fn default() -> Self {
        Self {
            compare_add: 0,
            swap: 0,
            compare_mask: u64::MAX,
            swap_mask: u64::MAX,
            boundary: 0,
        }
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    pub route: Route,
    pub qpn: u32,
    pub qkey: u32,
}

/// What few requests have: the others, which are moved often, carry no room for it.
#[derive(Clone, Debug, Default)]
pub enum Extra {
    #[default]
    None,
    Operands(Box<Operands>),
    Destination(Box<Destination>),
    Binding(Box<Binding>),
}

/// Requests whose memory a thread keeps: 50 KB of them.
const SPARE_MAX: usize = 256;

#[allow(clippy::vec_box)] // the boxes are what is kept
type Spare = Vec<Box<SendWork>>;

thread_local! {
    /// A requester frees many at once and then needs as many: more than an allocator has at hand.
    static SPARE: RefCell<Spare> = const { RefCell::new(Vec::new()) };
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
    pub extra: Extra,
    pub own: Own,
    pub num_sge: Option<i64>,
}

impl SendWork {
    /// Return a request whose other fields have their defaults.
    #[inline]
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
            extra: Extra::None,
            own: Own::None,
            num_sge: None,
        }
    }

    /// As `new`, in memory of a request that is done if this thread has some.
    #[inline]
    pub fn boxed(wr_id: u64, opcode: Opcode, pieces: Pieces) -> Box<Self> {
        let spare = SPARE.try_with(|spare| spare.try_borrow_mut().ok()?.pop());
        let Some(mut room) = spare.ok().flatten() else {
            return Box::new(Self::new(wr_id, opcode, pieces));
        };
        // Field by field: a whole one would be written to memory twice. It has nothing of its own.
        (room.wr_id, room.opcode, room.pieces) = (wr_id, opcode, pieces);
        (room.flags, room.num_sge) = (crate::numbers::SEND_SIGNALED, None);
        (room.imm_data, room.invalidate_rkey) = (0, 0);
        (room.remote_addr, room.rkey) = (0, 0);
        room
    }

    /// Keep the memory of a request that is done, and nothing that it had.
    #[inline]
    pub fn recycle(mut self: Box<Self>) {
        (self.pieces, self.extra, self.own) = (Pieces::None, Extra::None, Own::None);
        // Without room, or at the end of the thread, it is freed.
        let _ = SPARE.try_with(|spare| {
            if let Ok(mut spare) = spare.try_borrow_mut()
                && spare.len() < SPARE_MAX
            {
                spare.push(self);
            }
        });
    }

    /// Return its operands, those of one without any.
    pub fn operands(&self) -> Operands {
        match &self.extra {
            Extra::Operands(operands) => **operands,
            _ => Operands::default(),
        }
    }

    pub fn destination(&self) -> Option<&Destination> {
        match &self.extra {
            Extra::Destination(destination) => Some(destination),
            _ => None,
        }
    }

    pub fn binding(&self) -> Option<&Binding> {
        match &self.extra {
            Extra::Binding(binding) => Some(binding),
            _ => None,
        }
    }

    /// Return the length of its message in bytes.
    pub fn message_bytes(&self) -> i128 {
        match &self.own {
            Own::None => self.pieces.bytes(),
            Own::Short(length, _) => i128::from(*length),
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
pub enum Opcoded {
    /// Boxed: it goes through a dozen hands, of which each copy costs a third of the allocation.
    Known(Box<SendWork>),
    Unknown {
        wr_id: u64,
        name: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Memory for Nothing {
        fn read(&self, _at: usize, _to: &mut [u8]) {}

        fn write(&self, _at: usize, _from: &[u8]) {}
    }

    #[test]
    fn a_request_that_is_done_keeps_its_memory_and_nothing_else() {
        let kept: Arc<dyn Memory> = Arc::new(Nothing);
        let piece = Piece {
            address: 1,
            length: 2,
            lkey: 3,
        };
        let work = Box::new(SendWork {
            wr_id: 1,
            opcode: Opcode::RdmaWrite,
            pieces: Pieces::One(piece),
            flags: 2,
            imm_data: 3,
            invalidate_rkey: 4,
            remote_addr: 5,
            rkey: 6,
            extra: Extra::Operands(Box::default()),
            own: Own::Kept(Arc::clone(&kept), 7),
            num_sge: Some(8),
        });
        work.recycle();
        assert_eq!(Arc::strong_count(&kept), 1, "the caller's bytes are free");
        assert_eq!(SPARE.with_borrow(Vec::len), 1);
        let work = SendWork::boxed(2, Opcode::Send, Pieces::None);
        assert_eq!(SPARE.with_borrow(Vec::len), 0);
        let fresh = SendWork::new(2, Opcode::Send, Pieces::None);
        assert_eq!(format!("{work:?}"), format!("{fresh:?}"), "every field");
        for work in vec![work; SPARE_MAX + 1] {
            work.recycle();
        }
        assert_eq!(SPARE.with_borrow(Vec::len), SPARE_MAX);
    }
}
