//! Packets as records and as bytes; `urds.verbs.engine.packets` has the layout.

use crate::memory::Payload;
use crate::numbers::{Kind, PSN_MASK};

pub const FIRST: u8 = 1;
pub const LAST: u8 = 2;
pub const SOLICITED: u8 = 4;
pub const ACK_REQUEST: u8 = 8;
pub const IMMEDIATE: u8 = 16;
pub const INVALIDATE: u8 = 32;
pub const PLACED: u8 = 64;

const VERSION: u8 = 1;
const FLAGS_END: u8 = 128;

/// One packet without its payload. Fields that its kind does not use are 0, the masks all ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub kind: Kind,
    pub target_qpn: u32,
    pub psn: u32,
    pub flags: u8,
    pub msn: u32,
    pub offset: u32,
    pub length: u32,
    pub address: u64,
    pub rkey: u32,
    pub immediate: u32,
    pub compare_add: u64,
    pub swap: u64,
    pub compare_mask: u64,
    pub swap_mask: u64,
    pub boundary: u64,
    pub syndrome: u8,
    pub source_qpn: u32,
    pub qkey: u32,
    /// The PSN of an acknowledgement that rides on this packet (`Link::acks_wait`); it counts before
    /// the packet does, and does not travel in the layout of `emit`.
    pub acknowledged: Option<u32>,
}

impl Packet {
    /// Return a packet of a kind; a PSN has no width here.
    pub fn new(kind: Kind, target_qpn: u32, psn: i64, flags: u8) -> Self {
        Self {
            kind,
            target_qpn,
            psn: u32::try_from(psn & PSN_MASK).unwrap_or(0), // 24 bits
            flags,
            msn: 0,
            offset: 0,
            length: 0,
            address: 0,
            rkey: 0,
            immediate: 0,
            compare_add: 0,
            swap: 0,
            compare_mask: u64::MAX,
            swap_mask: u64::MAX,
            boundary: 0,
            syndrome: 0,
            source_qpn: 0,
            qkey: 0,
            acknowledged: None,
        }
    }

    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }
}

/// Append a packet's bytes to `out`, which is empty; with `checksum` their CRC-32 as well.
pub fn emit(packet: &Packet, payload: Payload<'_>, checksum: bool, out: &mut Vec<u8>) {
    out.extend([VERSION, packet.kind as u8, packet.flags, 0]);
    out.extend(packet.target_qpn.to_be_bytes());
    out.extend(packet.psn.to_be_bytes());
    emit_fields(packet, out);
    if packet.has(IMMEDIATE | INVALIDATE) {
        out.extend(packet.immediate.to_be_bytes());
    }
    if packet.has(PLACED) {
        out.extend(packet.length.to_be_bytes());
    }
    payload.append_to(out);
    if checksum {
        out.extend(crc32(out).to_be_bytes());
    }
}

/// Append the fields that the kind of a packet has.
fn emit_fields(packet: &Packet, out: &mut Vec<u8>) {
    let mut put = |word: u32| out.extend(word.to_be_bytes());
    match packet.kind {
        Kind::Send | Kind::ReadResponse => {
            put(packet.msn);
            put(packet.offset);
        }
        Kind::Write => {
            out.extend(packet.address.to_be_bytes());
            for word in [packet.rkey, packet.msn, packet.offset] {
                out.extend(word.to_be_bytes());
            }
        }
        Kind::ReadRequest => {
            out.extend(packet.address.to_be_bytes());
            out.extend(packet.rkey.to_be_bytes());
            out.extend(packet.length.to_be_bytes());
        }
        Kind::AtomicSwap | Kind::AtomicAdd | Kind::MaskedSwap | Kind::MaskedAdd => {
            out.extend(packet.address.to_be_bytes());
            out.extend(packet.rkey.to_be_bytes());
            out.extend(packet.compare_add.to_be_bytes());
            match packet.kind {
                Kind::AtomicSwap => out.extend(packet.swap.to_be_bytes()),
                Kind::MaskedAdd => out.extend(packet.boundary.to_be_bytes()),
                Kind::MaskedSwap => {
                    for operand in [packet.swap, packet.compare_mask, packet.swap_mask] {
                        out.extend(operand.to_be_bytes());
                    }
                }
                _ => {}
            }
        }
        Kind::AtomicResponse => {
            put(packet.msn);
            out.extend(packet.compare_add.to_be_bytes());
        }
        Kind::Ack => {
            out.push(packet.syndrome);
            out.extend(packet.msn.to_be_bytes());
        }
        Kind::Datagram => {
            put(packet.source_qpn);
            put(packet.qkey);
        }
    }
}

/// Read one packet; returns it and its payload. `None` for bytes that are not a packet, or whose CRC-32
/// does not match.
///
/// A selective responder names ranges of PSNs: there is none on a link without loss.
pub fn parse(data: &[u8], checksum: bool) -> Option<(Packet, &[u8])> {
    let data = if checksum { checked(data)? } else { data };
    let mut rest = Reader(data);
    let [version, kind, flags, range_count] = rest.array()?;
    let (qpn, psn) = (rest.word()?, rest.word()?);
    let kind = Kind::of(i64::from(kind))?;
    let is_placed = flags & PLACED != 0;
    let fits = i64::from(qpn.max(psn)) <= PSN_MASK && (!is_placed || kind == Kind::Write);
    if version != VERSION || flags >= FLAGS_END || range_count != 0 || !fits {
        return None;
    }
    let mut packet = Packet::new(kind, qpn, i64::from(psn), flags);
    parse_fields(&mut packet, &mut rest)?;
    let carries = matches!(
        kind,
        Kind::Send | Kind::Write | Kind::ReadResponse | Kind::Datagram
    );
    (rest.0.is_empty() || carries && !is_placed).then_some((packet, rest.0))
}

fn parse_fields(packet: &mut Packet, rest: &mut Reader<'_>) -> Option<()> {
    match packet.kind {
        Kind::Send | Kind::ReadResponse => {
            packet.msn = rest.word()?;
            packet.offset = rest.word()?;
        }
        Kind::Write => {
            packet.address = rest.long()?;
            packet.rkey = rest.word()?;
            packet.msn = rest.word()?;
            packet.offset = rest.word()?;
        }
        Kind::ReadRequest => {
            packet.address = rest.long()?;
            packet.rkey = rest.word()?;
            packet.length = rest.word()?;
        }
        Kind::AtomicSwap | Kind::AtomicAdd | Kind::MaskedSwap | Kind::MaskedAdd => {
            packet.address = rest.long()?;
            packet.rkey = rest.word()?;
            packet.compare_add = rest.long()?;
            match packet.kind {
                Kind::AtomicSwap => packet.swap = rest.long()?,
                Kind::MaskedAdd => packet.boundary = rest.long()?,
                Kind::MaskedSwap => {
                    packet.swap = rest.long()?;
                    packet.compare_mask = rest.long()?;
                    packet.swap_mask = rest.long()?;
                }
                _ => {}
            }
        }
        Kind::AtomicResponse => {
            packet.msn = rest.word()?;
            packet.compare_add = rest.long()?;
        }
        Kind::Ack => {
            [packet.syndrome] = rest.array()?;
            packet.msn = rest.word()?;
        }
        Kind::Datagram => {
            packet.source_qpn = rest.word()?;
            packet.qkey = rest.word()?;
        }
    }
    if packet.has(IMMEDIATE | INVALIDATE) {
        packet.immediate = rest.word()?;
    }
    if packet.has(PLACED) {
        packet.length = rest.word()?;
    }
    Some(())
}

fn checked(data: &[u8]) -> Option<&[u8]> {
    let (body, sum) = data.split_last_chunk()?;
    (crc32(body) == u32::from_be_bytes(*sum)).then_some(body)
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (found, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*found)
    }

    fn word(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut place = 0;
    while place < 256 {
        #[allow(clippy::cast_possible_truncation)] // below 256
        let mut value = place as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 {
                0xEDB8_8320 ^ (value >> 1)
            } else {
                value >> 1
            };
            bit += 1;
        }
        table[place] = value;
        place += 1;
    }
    table
}

static TABLE: [u32; 256] = table();

/// Return the CRC-32 of zlib.
pub fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, &byte| {
        TABLE[((sum ^ u32::from(byte)) & 0xFF) as usize] ^ (sum >> 8)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_of_ranges_is_of_another_link() {
        let mut bytes = Vec::new();
        let packet = Packet::new(Kind::Ack, 2, 3, 0);
        emit(&packet, Payload::Bytes(&[]), false, &mut bytes);
        assert_eq!(parse(&bytes, false), Some((packet, &[][..])));
        bytes[3] = 1;
        bytes.extend([0; 8]);
        assert_eq!(parse(&bytes, false), None);
    }
}
