//! Fields of a slot: written, read and checked.

use super::ChannelError;

/// Kinds of packet, as in `urds.verbs.engine.packets`.
pub mod kinds {
    pub const SEND: u8 = 0;
    pub const WRITE: u8 = 1;
    pub const READ_REQUEST: u8 = 2;
    pub const ATOMIC_SWAP: u8 = 3;
    pub const ATOMIC_ADD: u8 = 4;
    pub const MASKED_SWAP: u8 = 5;
    pub const MASKED_ADD: u8 = 6;
    pub const READ_RESPONSE: u8 = 8;
    pub const ATOMIC_RESPONSE: u8 = 9;
    pub const ACK: u8 = 10;
    pub const DATAGRAM: u8 = 16;
}

/// Flags of a packet, as in `urds.verbs.engine.packets`, and one of the channel.
pub mod flags {
    pub const FIRST: u8 = 1;
    pub const LAST: u8 = 2;
    pub const SOLICITED: u8 = 4;
    pub const ACK_REQUEST: u8 = 8;
    pub const IMMEDIATE: u8 = 16;
    pub const INVALIDATE: u8 = 32;
    pub const PLACED: u8 = 64;
    /// `acknowledged` counts.
    pub const ACKNOWLEDGES: u8 = 128;
}

/// Bytes of an atomic operation's payload: five operands.
pub const OPERANDS_BYTES: usize = 40;
/// Queue pairs and packets are numbered with 24 bits.
const NUMBER_MAX: u32 = 0x00FF_FFFF;

const ONLY: u8 = flags::FIRST | flags::LAST;

/// What a packet is, besides its payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    pub kind: u8,
    pub flags: u8,
    /// Queue pair of the reader.
    pub target: u32,
    pub psn: u32,
    /// Of a datagram: the sender's queue pair.
    pub msn: u32,
    /// Value, or the key to invalidate.
    pub immediate: u32,
    /// With ACKNOWLEDGES: PSN of a packet that the target has sent.
    pub acknowledged: u32,
    /// Of an atomic response: the value before.
    pub address: u64,
    /// Of a datagram: the `Q_Key`.
    pub key: u32,
    /// Offset in the message; length of a READ or of a placed WRITE; syndrome of an ACK.
    pub length: u32,
}

/// Bytes of the fields, without the stamp.
pub(super) const FIELDS_BYTES: usize = 40;
pub(super) type FieldsBytes = [u8; FIELDS_BYTES];

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(value)
}

impl Fields {
    #[inline]
    pub(super) fn to_slot(self) -> FieldsBytes {
        let mut bytes = [0; FIELDS_BYTES];
        (bytes[0], bytes[1]) = (self.kind, self.flags);
        bytes[4..8].copy_from_slice(&self.target.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.psn.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.msn.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.immediate.to_ne_bytes());
        bytes[20..24].copy_from_slice(&self.acknowledged.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.address.to_ne_bytes());
        bytes[32..36].copy_from_slice(&self.key.to_ne_bytes());
        bytes[36..40].copy_from_slice(&self.length.to_ne_bytes());
        bytes
    }

    /// Read and check the fields of a slot with so many bytes of payload.
    #[inline]
    pub(super) fn of_slot(bytes: &FieldsBytes, payload: usize) -> Result<Self, ChannelError> {
        let fields = Self {
            kind: bytes[0],
            flags: bytes[1],
            target: u32_at(bytes, 4),
            psn: u32_at(bytes, 8),
            msn: u32_at(bytes, 12),
            immediate: u32_at(bytes, 16),
            acknowledged: u32_at(bytes, 20),
            address: u64_at(bytes, 24),
            key: u32_at(bytes, 32),
            length: u32_at(bytes, 36),
        };
        if u16_at(bytes, 2) != 0 {
            return Err(ChannelError::Fields);
        }
        fields.check(payload)?;
        Ok(fields)
    }

    #[inline]
    fn check(&self, payload: usize) -> Result<(), ChannelError> {
        let acknowledges = self.flags & flags::ACKNOWLEDGES != 0;
        let has_small_numbers = (self.target | self.psn | self.acknowledged) <= NUMBER_MAX;
        if !has_small_numbers || !(acknowledges || self.acknowledged == 0) {
            return Err(ChannelError::Fields);
        }
        let is_placed = self.flags & flags::PLACED != 0;
        let is_whole = self.flags & ONLY == ONLY;
        let may_place = self.kind == kinds::WRITE && is_whole;
        let may_invalidate = self.kind == kinds::SEND;
        if (is_placed && !may_place) || (self.flags & flags::INVALIDATE != 0 && !may_invalidate) {
            return Err(ChannelError::Flags);
        }
        let fits = match self.kind {
            // No longer than a packet's may be: the caller has checked that.
            kinds::SEND | kinds::READ_RESPONSE | kinds::DATAGRAM => true,
            kinds::WRITE => !is_placed || payload == 0,
            kinds::ATOMIC_SWAP | kinds::ATOMIC_ADD | kinds::MASKED_SWAP | kinds::MASKED_ADD => {
                payload == OPERANDS_BYTES
            }
            kinds::READ_REQUEST | kinds::ATOMIC_RESPONSE | kinds::ACK => payload == 0,
            _ => return Err(ChannelError::Kind),
        };
        if fits {
            Ok(())
        } else {
            Err(ChannelError::Payload)
        }
    }
}
