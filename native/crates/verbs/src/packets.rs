//! Packets as records and as bytes; `urds.verbs.engine.packets` has the layout.

use crate::errors::{EINVAL, Rejected};
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
pub const HEADER_BYTES: usize = 12;
const CHECKSUM_BYTES: usize = 4;
const SELECTIVE_MAX: usize = 8;

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
    /// Ranges of PSNs that a selective responder has; we make none.
    pub selective: [(u32, u32); SELECTIVE_MAX],
    pub selective_count: u8,
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
            selective: [(0, 0); SELECTIVE_MAX],
            selective_count: 0,
        }
    }

    /// Return the ranges of PSNs beyond its own that it acknowledges.
    pub fn ranges(&self) -> &[(u32, u32)] {
        &self.selective[..usize::from(self.selective_count)]
    }

    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }
}

/// Append a packet's bytes to `out`, which is empty; with `checksum` their CRC-32 as well.
pub fn emit(packet: &Packet, payload: Payload<'_>, checksum: bool, out: &mut Vec<u8>) {
    out.extend([
        VERSION,
        packet.kind as u8,
        packet.flags,
        packet.selective_count,
    ]);
    out.extend(packet.target_qpn.to_be_bytes());
    out.extend(packet.psn.to_be_bytes());
    emit_fields(packet, out);
    if packet.has(IMMEDIATE | INVALIDATE) {
        out.extend(packet.immediate.to_be_bytes());
    }
    if packet.has(PLACED) {
        out.extend(packet.length.to_be_bytes());
    }
    for (first, last) in packet.ranges() {
        out.extend(first.to_be_bytes());
        out.extend(last.to_be_bytes());
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

/// Read one packet; returns it and its payload.
///
/// # Errors
/// Bytes that are not a packet, or whose CRC-32 does not match.
pub fn parse(data: &[u8], checksum: bool) -> Result<(Packet, &[u8]), Rejected> {
    let data = if checksum { checked(data)? } else { data };
    let mut rest = Reader(data);
    let (Some([version, kind, flags, range_count]), Some(qpn), Some(psn)) =
        (rest.array::<4>(), rest.word(), rest.word())
    else {
        return Err(malformed(&format!(
            "packet of {} bytes, its header has {HEADER_BYTES}",
            data.len()
        )));
    };
    let Some(kind) = Kind::of(i64::from(kind)).filter(|_| version == VERSION) else {
        return Err(malformed(&format!(
            "packet of version {version} and kind {kind}"
        )));
    };
    if flags >= FLAGS_END || i64::from(qpn) > PSN_MASK || i64::from(psn) > PSN_MASK {
        return Err(malformed(&format!(
            "packet with flags {flags:#x}, queue pair {qpn:#x}, PSN {psn:#x}"
        )));
    }
    if flags & PLACED != 0 && kind != Kind::Write {
        return Err(malformed(&format!("PLACED packet of kind {}", kind.name())));
    }
    let mut packet = Packet::new(kind, qpn, i64::from(psn), flags);
    let fields_bytes = rest.0.len();
    if parse_fields(&mut packet, &mut rest).is_none() {
        return Err(malformed(&format!(
            "{} with {fields_bytes} bytes of fields",
            kind.name()
        )));
    }
    if range_count > 0 && parse_ranges(&mut packet, &mut rest, range_count).is_none() {
        return Err(malformed(&format!(
            "{} with {range_count} ranges, limit {SELECTIVE_MAX}",
            kind.name()
        )));
    }
    let has_payload = matches!(
        kind,
        Kind::Send | Kind::Write | Kind::ReadResponse | Kind::Datagram
    );
    if !rest.0.is_empty() && (!has_payload || flags & PLACED != 0) {
        return Err(malformed(&format!(
            "{} bytes after a packet of kind {}",
            rest.0.len(),
            kind.name()
        )));
    }
    Ok((packet, rest.0))
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

fn parse_ranges(packet: &mut Packet, rest: &mut Reader<'_>, count: u8) -> Option<()> {
    if packet.kind != Kind::Ack || usize::from(count) > SELECTIVE_MAX {
        return None;
    }
    for range in &mut packet.selective[..usize::from(count)] {
        *range = (rest.word()?, rest.word()?);
        if i64::from(range.0.max(range.1)) > PSN_MASK {
            return None;
        }
    }
    packet.selective_count = count;
    Some(())
}

fn checked(data: &[u8]) -> Result<&[u8], Rejected> {
    let Some((body, sum)) = data.split_last_chunk::<CHECKSUM_BYTES>() else {
        return Err(malformed(&format!(
            "packet of {} bytes, its checksum has {CHECKSUM_BYTES}",
            data.len()
        )));
    };
    if crc32(body) == u32::from_be_bytes(*sum) {
        Ok(body)
    } else {
        Err(malformed("packet checksum does not match"))
    }
}

fn malformed(detail: &str) -> Rejected {
    Rejected::new(EINVAL, detail)
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
