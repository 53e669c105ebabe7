//! What goes in and out of the stream core: settings, memory, posts, counters, errors.

use std::fmt;
use std::sync::Arc;

use crate::receive_ring::first_ring_bytes;
use crate::wire::{IOMAP_ENTRY_BYTES, SGE_BYTES, scale_slots, slots_of};

/// Requests of the send queue that data never take.
pub const CONTROL_SLOTS: usize = 4;
/// Room that makes a stream writable.
pub const WRITABLE_BYTES_MIN: usize = 2048;
/// Shorter bytes are copied: that is cheaper than to wait.
pub const ZERO_COPY_BYTES_MIN: usize = 1 << 14;
/// A shorter rest is not worth a place of its own.
pub const DIRECT_BYTES_MIN: usize = 1 << 14;
/// Of a table that a peer may announce.
pub const ENTRIES_MAX: u32 = 4096;
/// Of one entry.
pub const LENGTH_MAX: u64 = u32::MAX as u64;
/// Data up to this length lie in the post itself.
pub const SHORT_BYTES: usize = 80;
const RING_ALIGNMENT: usize = 64;

pub const EPIPE: i32 = 32;
pub const ENOMEM: i32 = 12;
pub const EINVAL: i32 = 22;
pub const ENOTCONN: i32 = 107;
pub const ECONNRESET: i32 = 104;

/// Memory that the peer writes meanwhile: copied in and out, never borrowed. Clones are the same
/// memory.
///
/// Ranges were checked; one outside is a fault of the core, and an implementation panics.
pub trait Memory: Clone {
    fn read(&self, at: usize, to: &mut [u8]);
    fn write(&self, at: usize, from: &[u8]);
}

/// Registered memory of ours that the peer may write: `length` bytes from `address` on.
#[derive(Clone, Debug)]
pub struct Region<M> {
    pub memory: M,
    pub address: u64,
    pub rkey: u32,
    pub length: usize,
}

/// The bytes of one send, which are the caller's.
pub trait Source {
    fn length(&self) -> usize;
    fn copy_out(&self, at: usize, to: &mut [u8]);

    /// Append bytes to `out`.
    fn append_to(&self, at: usize, length: usize, out: &mut Vec<u8>) {
        let begin = out.len();
        out.resize(begin + length, 0);
        self.copy_out(at, &mut out[begin..]);
    }
}

impl Source for [u8] {
    fn length(&self) -> usize {
        self.len()
    }

    fn copy_out(&self, at: usize, to: &mut [u8]) {
        to.copy_from_slice(&self[at..at + to.len()]);
    }

    fn append_to(&self, at: usize, length: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self[at..at + length]);
    }
}

/// Return a range of the bytes of a send as memory of their own.
pub(crate) fn copied(data: &(impl Source + ?Sized), at: usize, length: usize) -> Vec<u8> {
    let mut made = Vec::with_capacity(length);
    data.append_to(at, length, &mut made);
    made
}

/// A buffer of ours that the peer may write by its offset; `name` is the caller's own for it.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    pub name: u64,
    pub address: u64,
    pub rkey: u32,
    pub length: u64,
}

/// The peer broke the protocol: cut the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtocolError(pub String);

impl fmt::Display for ProtocolError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A refused call: an `errno` and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub errno: i32,
    pub detail: String,
}

impl Refused {
    pub(crate) fn new(errno: i32, detail: impl Into<String>) -> Self {
        Self {
            errno,
            detail: detail.into(),
        }
    }
}

/// Another receive is expected already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IsExpecting;

/// What a work request is for. The first three occupy data slots, the others control slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostKind {
    Data,
    Iomap,
    /// Into a mapped buffer of the peer, without immediate data.
    Direct,
    Credit,
    Control,
    /// No bytes, no immediate data: the acknowledgement shows that the peer lives.
    Keepalive,
}

/// The bytes of a post.
#[derive(Clone, Debug)]
pub enum Data {
    None,
    Short(Short),
    /// A range of a block that is written no more.
    Block {
        block: Arc<Vec<u8>>,
        at: usize,
        length: usize,
    },
    /// A range of the caller's memory: of that send or `write_mapped`, by its ordinal.
    Caller {
        send: u64,
        at: usize,
        length: usize,
    },
}

/// A few bytes.
#[derive(Clone, Copy, Debug)]
pub struct Short {
    bytes: [u8; SHORT_BYTES],
    length: u8,
}

impl Data {
    /// Copy a range of a send: into the record itself, or a block.
    pub(crate) fn copy_of(data: &(impl Source + ?Sized), at: usize, length: usize) -> Self {
        if length > SHORT_BYTES {
            let block = Arc::new(copied(data, at, length));
            let at = 0;
            return Self::Block { block, at, length };
        }
        let mut bytes = [0; SHORT_BYTES];
        data.copy_out(at, &mut bytes[..length]);
        #[expect(clippy::cast_possible_truncation, reason = "at most SHORT_BYTES")]
        let length = length as u8;
        Self::Short(Short { bytes, length })
    }

    pub fn length(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Short(short) => short.length.into(),
            Self::Block { length, .. } | Self::Caller { length, .. } => *length,
        }
    }

    /// Return the bytes; `None` for those of the caller.
    pub fn own_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::None => Some(&[]),
            Self::Short(short) => Some(&short.bytes[..short.length.into()]),
            Self::Block { block, at, length } => Some(&block[*at..*at + *length]),
            Self::Caller { .. } => None,
        }
    }
}

/// One RDMA write for the queue pair. Without bytes, address and key are 0.
#[derive(Clone, Debug)]
pub struct Post {
    pub kind: PostKind,
    pub data: Data,
    pub address: u64,
    pub rkey: u32,
    /// Immediate data; `None` is a plain write.
    pub word: Option<u32>,
}

impl Post {
    pub(crate) fn without_bytes(kind: PostKind, word: Option<u32>) -> Self {
        Self {
            kind,
            data: Data::None,
            address: 0,
            rkey: 0,
            word,
        }
    }

    pub fn is_zero_copy(&self) -> bool {
        matches!(self.data, Data::Caller { .. })
    }
}

/// What a stream is made with; the options of a socket check them.
#[derive(Clone, Copy, Debug)]
pub struct StreamSettings {
    /// Requests, `CONTROL_SLOTS` of them for control.
    pub send_queue: u16,
    /// Messages that may wait to be read.
    pub receive_queue: u16,
    /// Of the receive ring, if `is_receive_fixed`.
    pub receive_bytes: usize,
    /// A size was chosen: do not tune it.
    pub is_receive_fixed: bool,
    pub ring_first_bytes: usize,
    pub ring_max_bytes: usize,
    /// Of a wait in place from which on the ring is held back.
    pub held_wait_bytes: usize,
    /// Copied bytes that may wait for their completion.
    pub send_bytes: usize,
    /// Of one write.
    pub chunk_max_bytes: usize,
    /// Buffers that the peer may map to us.
    pub iomap_slots: u16,
    /// Ranges that the peer may announce at a time.
    pub table_entries: u32,
    /// Whether our tables are in the order of big-endian hosts.
    pub is_big_endian: bool,
    pub no_delay: bool,
    pub keepalive_ns: Option<i64>,
}

impl Default for StreamSettings {
    fn default() -> Self {
        Self {
            send_queue: 384,
            receive_queue: 384,
            receive_bytes: 1 << 17,
            is_receive_fixed: false,
            ring_first_bytes: 1 << 13,
            ring_max_bytes: 1 << 22,
            held_wait_bytes: 1 << 22,
            send_bytes: 1 << 17,
            chunk_max_bytes: 1 << 18,
            iomap_slots: 0,
            table_entries: 16,
            is_big_endian: false,
            no_delay: false,
            keepalive_ns: None,
        }
    }
}

/// How the first region of a stream is used: entries, iomap, ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub slots: u32,
    pub iomap_start: usize,
    pub ring_start: usize,
    pub ring_bytes: usize,
}

impl StreamSettings {
    pub(crate) fn layout(&self) -> Layout {
        let slots = slots_of(scale_slots(self.iomap_slots));
        let iomap_start = self.table_entries as usize * SGE_BYTES;
        let tables_end = iomap_start + slots as usize * IOMAP_ENTRY_BYTES;
        Layout {
            slots,
            iomap_start,
            ring_start: tables_end.next_multiple_of(RING_ALIGNMENT),
            ring_bytes: first_ring_bytes(self),
        }
    }

    /// Return how many zeroed bytes a stream is made with.
    pub fn region_bytes(&self) -> usize {
        let layout = self.layout();
        layout.ring_start + layout.ring_bytes
    }
}

/// What happened on one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// By `send` and `write_mapped`.
    pub bytes_copied_in: u64,
    /// Posted from the caller's memory.
    pub bytes_zero_copy: u64,
    /// Posted as data.
    pub bytes_sent: u64,
    /// By `receive_into`.
    pub bytes_copied_out: u64,
    /// Arrived where the application waits for them.
    pub bytes_direct: u64,
    pub bytes_received: u64,
    /// Written into buffers of the peer.
    pub bytes_mapped: u64,
    pub messages_sent: u64,
    pub messages_received: u64,
    /// Updates, with or without an entry.
    pub credits_sent: u64,
    pub entries_sent: u64,
    pub credits_received: u64,
    pub entries_received: u64,
    pub iomap_sent: u64,
    pub iomap_received: u64,
    pub controls_sent: u64,
    pub keepalives_sent: u64,
    /// Times that data began to wait for a credit, for space at the peer, for a completion.
    pub blocked_on_credit: u64,
    pub blocked_on_space: u64,
    pub blocked_on_slots: u64,
    pub ring_grown: u64,
    /// There was no memory to grow into.
    pub ring_growth_failed: u64,
}

impl StreamStats {
    /// Return all of them, in the order of the fields.
    pub fn counts(&self) -> [u64; 22] {
        [
            self.bytes_copied_in,
            self.bytes_zero_copy,
            self.bytes_sent,
            self.bytes_copied_out,
            self.bytes_direct,
            self.bytes_received,
            self.bytes_mapped,
            self.messages_sent,
            self.messages_received,
            self.credits_sent,
            self.entries_sent,
            self.credits_received,
            self.entries_received,
            self.iomap_sent,
            self.iomap_received,
            self.controls_sent,
            self.keepalives_sent,
            self.blocked_on_credit,
            self.blocked_on_space,
            self.blocked_on_slots,
            self.ring_grown,
            self.ring_growth_failed,
        ]
    }
}
