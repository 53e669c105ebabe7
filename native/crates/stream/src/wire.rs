//! The wire of a stream: private data of its connect, immediate data of a write, table entries.

use crate::records::ProtocolError;

pub const CONNECT_DATA_BYTES: usize = 40;
pub const VERSION: u8 = 1;
pub const SGE_BYTES: usize = 16;
pub const IOMAP_ENTRY_BYTES: usize = 24;
const SLOTS_PLAIN_MAX: u16 = 128;
const SLOTS_SCALED_MAX: u16 = 0x7F << 8;

/// Flags of a side: byte order of its tables, iomap understood, a urds peer.
pub const FLAG_BIG_ENDIAN: u8 = 1;
pub const FLAG_IOMAP: u8 = 2;
pub const FLAG_URDS: u8 = 0x80;

pub const ARGUMENT_MAX: u32 = (1 << 29) - 1;
const ARGUMENT_BITS: u32 = 29;
/// The limit of a credit update is absolute and wraps; librdmacm may set bit 16, which means nothing.
pub const CREDIT_LIMIT_MASK: u32 = 0xFFFF;
/// Between urds peers only: an entry came with this update.
pub const CREDIT_HAS_ENTRY: u32 = 1 << 28;

/// What a message is. 1, 3, 5 are reserved; 2 is a direct write, without immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Argument: bytes.
    Data = 0,
    /// The new limit.
    Credit = 4,
    /// The slot that was written.
    Iomap = 6,
    /// A `Control`.
    Control = 7,
}

/// Arguments of a control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    Disconnect = 0,
    /// Reserved by librdmacm for itself: it never sends it.
    Keepalive = 1,
    /// No more data from here.
    Shutdown = 2,
}

/// Return the immediate data of a message; the argument has at most 29 bits.
pub const fn emit_word(op: Op, argument: u32) -> u32 {
    (op as u32) << ARGUMENT_BITS | argument
}

/// Return operation and argument; that of a control message is a `Control`.
///
/// # Errors
/// A reserved operation, an unknown control message.
pub fn parse_word(word: u32) -> Result<(Op, u32), ProtocolError> {
    let (number, argument) = (word >> ARGUMENT_BITS, word & ARGUMENT_MAX);
    let op = match number {
        0 => Op::Data,
        4 => Op::Credit,
        6 => Op::Iomap,
        7 => Op::Control,
        _ => {
            return Err(ProtocolError(format!(
                "word {word:#010x} has operation {number}, which is reserved"
            )));
        }
    };
    if op == Op::Control && argument > Control::Shutdown as u32 {
        return Err(ProtocolError(format!(
            "control message {argument} is not in 0 to 2"
        )));
    }
    Ok((op, argument))
}

/// Return a count of iomap slots in eight bits, rounded down.
pub fn scale_slots(slot_count: u16) -> u8 {
    let scaled = if slot_count <= SLOTS_PLAIN_MAX {
        slot_count
    } else {
        0x80 | slot_count.min(SLOTS_SCALED_MAX) >> 8
    };
    scaled.to_le_bytes()[0]
}

/// Return the count that eight bits tell.
pub fn slots_of(slots_scaled: u8) -> u32 {
    let scaled = u32::from(slots_scaled);
    if scaled <= u32::from(SLOTS_PLAIN_MAX) {
        return scaled;
    }
    (scaled & 0x7F) << 8
}

/// One piece of remote memory; in a table of the peer, one entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    pub address: u64,
    pub key: u32,
    /// Bytes; of the table of a side, entries.
    pub length: u32,
}

fn u64_of(bytes: &[u8], is_big: bool) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(bytes);
    if is_big {
        u64::from_be_bytes(word)
    } else {
        u64::from_le_bytes(word)
    }
}

fn u32_of(bytes: &[u8], is_big: bool) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(bytes);
    if is_big {
        u32::from_be_bytes(word)
    } else {
        u32::from_le_bytes(word)
    }
}

fn put_u64(to: &mut [u8], value: u64, is_big: bool) {
    to.copy_from_slice(&if is_big {
        value.to_be_bytes()
    } else {
        value.to_le_bytes()
    });
}

fn put_u32(to: &mut [u8], value: u32, is_big: bool) {
    to.copy_from_slice(&if is_big {
        value.to_be_bytes()
    } else {
        value.to_le_bytes()
    });
}

impl Sge {
    pub fn emit(&self, is_big: bool) -> [u8; SGE_BYTES] {
        let mut bytes = [0; SGE_BYTES];
        put_u64(&mut bytes[..8], self.address, is_big);
        put_u32(&mut bytes[8..12], self.key, is_big);
        put_u32(&mut bytes[12..], self.length, is_big);
        bytes
    }

    pub fn parse(bytes: &[u8; SGE_BYTES], is_big: bool) -> Self {
        Self {
            address: u64_of(&bytes[..8], is_big),
            key: u32_of(&bytes[8..12], is_big),
            length: u32_of(&bytes[12..], is_big),
        }
    }
}

/// A mapping of the peer's memory: `offset` is the name by which we may write there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IomapEntry {
    pub offset: u64,
    pub address: u64,
    pub key: u32,
    pub length: u32,
}

impl IomapEntry {
    pub fn emit(&self, is_big: bool) -> [u8; IOMAP_ENTRY_BYTES] {
        let mut bytes = [0; IOMAP_ENTRY_BYTES];
        put_u64(&mut bytes[..8], self.offset, is_big);
        put_u64(&mut bytes[8..16], self.address, is_big);
        put_u32(&mut bytes[16..20], self.key, is_big);
        put_u32(&mut bytes[20..], self.length, is_big);
        bytes
    }

    pub fn parse(bytes: &[u8; IOMAP_ENTRY_BYTES], is_big: bool) -> Self {
        Self {
            offset: u64_of(&bytes[..8], is_big),
            address: u64_of(&bytes[8..16], is_big),
            key: u32_of(&bytes[16..20], is_big),
            length: u32_of(&bytes[20..], is_big),
        }
    }
}

/// What one side tells the other. The core checks the version.
#[derive(Clone, Copy, Debug)]
pub struct ConnectData {
    pub version: u8,
    pub flags: u8,
    /// Messages that may be sent before the first update.
    pub credits: u16,
    pub iomap_slots_scaled: u8,
    pub target_sgl: Sge,
    pub data_buffer: Sge,
}

impl ConnectData {
    pub fn emit(&self) -> [u8; CONNECT_DATA_BYTES] {
        let mut bytes = [0; CONNECT_DATA_BYTES];
        bytes[0] = self.version;
        bytes[1] = self.flags;
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = self.iomap_slots_scaled;
        bytes[8..24].copy_from_slice(&self.target_sgl.emit(true));
        bytes[24..].copy_from_slice(&self.data_buffer.emit(true));
        bytes
    }

    /// Read the first 40 bytes, of any version.
    ///
    /// # Errors
    /// Fewer bytes.
    pub fn parse(data: &[u8]) -> Result<Self, ProtocolError> {
        let Some(bytes) = data.first_chunk::<CONNECT_DATA_BYTES>() else {
            return Err(ProtocolError(format!(
                "connect data of {} bytes, less than {CONNECT_DATA_BYTES}",
                data.len()
            )));
        };
        let sge = |from: usize| Sge {
            address: u64_of(&bytes[from..from + 8], true),
            key: u32_of(&bytes[from + 8..from + 12], true),
            length: u32_of(&bytes[from + 12..from + 16], true),
        };
        Ok(Self {
            version: bytes[0],
            flags: bytes[1],
            credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            iomap_slots_scaled: bytes[7],
            target_sgl: sge(8),
            data_buffer: sge(24),
        })
    }
}
