//! Packets of the engine as fields of slots, and back.

use urds_channel::slots::{Fields, OPERANDS_BYTES, flags, kinds};
use urds_verbs::memory::Content;
use urds_verbs::numbers::Kind;
use urds_verbs::packets::{PLACED, Packet};

/// Return the fields of a packet, without an acknowledgement.
#[inline]
pub fn fields_of(packet: &Packet) -> Fields {
    let mut fields = Fields {
        kind: packet.kind as u8,
        flags: packet.flags,
        target: packet.target_qpn,
        psn: packet.psn,
        msn: packet.msn,
        immediate: packet.immediate,
        acknowledged: 0,
        address: packet.address,
        key: packet.rkey,
        length: packet.offset,
    };
    match packet.kind {
        Kind::Write if packet.has(PLACED) => fields.length = packet.length,
        Kind::ReadRequest => fields.length = packet.length,
        Kind::AtomicResponse => fields.address = packet.compare_add,
        Kind::Ack => fields.length = u32::from(packet.syndrome),
        Kind::Datagram => (fields.msn, fields.key) = (packet.source_qpn, packet.qkey),
        _ => (),
    }
    fields
}

/// Return the operands of an atomic operation as payload.
pub fn operands_of(packet: &Packet) -> [u8; OPERANDS_BYTES] {
    let mut bytes = [0; OPERANDS_BYTES];
    let operands = [
        packet.compare_add,
        packet.swap,
        packet.compare_mask,
        packet.swap_mask,
        packet.boundary,
    ];
    for (place, operand) in bytes.chunks_exact_mut(8).zip(operands) {
        place.copy_from_slice(&operand.to_ne_bytes());
    }
    bytes
}

/// Return the packet of fields that were checked; `None` for a kind without a packet.
#[inline]
pub fn packet_of(fields: &Fields, payload: Content<'_>) -> Option<Packet> {
    let kind = Kind::of(i64::from(fields.kind))?;
    let marks = fields.flags & !flags::ACKNOWLEDGES;
    let mut packet = Packet::new(kind, fields.target, i64::from(fields.psn), marks);
    packet.immediate = fields.immediate;
    let acknowledges = fields.flags & flags::ACKNOWLEDGES != 0;
    packet.acknowledged = acknowledges.then_some(fields.acknowledged);
    match fields.kind {
        kinds::DATAGRAM => (packet.source_qpn, packet.qkey) = (fields.msn, fields.key),
        kinds::ACK => {
            packet.msn = fields.msn;
            packet.syndrome = u8::try_from(fields.length).ok()?;
        }
        kinds::ATOMIC_RESPONSE => (packet.msn, packet.compare_add) = (fields.msn, fields.address),
        _ => {
            (packet.msn, packet.address, packet.rkey) = (fields.msn, fields.address, fields.key);
            let has_length = kind == Kind::ReadRequest || packet.has(PLACED);
            *(if has_length {
                &mut packet.length
            } else {
                &mut packet.offset
            }) = fields.length;
        }
    }
    if kind.is_atomic() {
        let mut operands = [0; OPERANDS_BYTES];
        payload.copy_to(&mut operands); // its length was checked
        let mut operands = operands.chunks_exact(8).map(|bytes| {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            u64::from_ne_bytes(word)
        });
        let mut next = || operands.next().unwrap_or(0);
        packet.compare_add = next();
        packet.swap = next();
        packet.compare_mask = next();
        packet.swap_mask = next();
        packet.boundary = next();
        packet.length = 0;
        packet.offset = 0;
    }
    Some(packet)
}
