//! Send work requests: the checks at posting, the record that the requester keeps, its packets.
//!
//! The packets of a request have consecutive PSNs and each can be built again from its PSN.
//! `urds.verbs.engine.requests` has the rules and the sentences.

use crate::attributes::{Attributes, Field, Link};
use crate::errors::{Fault, Rejected};
use crate::keys::{Domain, Keys};
use crate::memory::{Extent, Extents, Payload};
use crate::numbers::{
    ATOMIC_BYTES, Kind, MESSAGE_BYTES_MAX, Opcode, QpKind, SEND_INLINE, SEND_SOLICITED, Status,
};
use crate::packets::{ACK_REQUEST, FIRST, IMMEDIATE, INVALIDATE, LAST, PLACED, Packet, SOLICITED};
use crate::receives::check_count;
use crate::work::{Doubts, Own, SendWork};

/// Of a long message; the last packet always asks for an acknowledgement.
const ACK_EVERY_PACKETS: i64 = 32;

/// One posted send work request. PSNs and message numbers are counted without wrapping.
#[derive(Debug)]
pub struct Request {
    pub work: Box<SendWork>,
    pub ordinal: u64,
    pub kind: Option<Kind>,
    pub length: u64,
    pub signalled: bool,
    /// The outlet has written its bytes into the peer's memory.
    pub is_placed: bool,
    pub failed: Option<Status>,
    pub psn: i64,
    pub psn_count: i64,
    pub msn: u32,
    /// PSNs that were sent at least once.
    pub sent: i64,
    pub unanswered: i64,
    /// Bytes of a read that came.
    pub received: u64,
}

impl Request {
    /// Keep a request that was checked; what INLINE asks for is copied.
    ///
    /// # Errors
    /// A key of inline data does not allow to read it.
    pub fn new(
        mut work: Box<SendWork>,
        keys: &Keys,
        domain: Domain,
        signalled: bool,
    ) -> Result<Self, Fault> {
        let length = u64::try_from(work.message_bytes()).unwrap_or(0); // checked
        let is_copied = matches!(work.own, Own::Short(..) | Own::Copied(_));
        if work.flags & SEND_INLINE != 0 && !is_copied {
            let mut found = Extents::None;
            if let Own::Kept(memory, length) = &work.own {
                found.push(Extent {
                    memory: &**memory,
                    at: 0,
                    length: *length,
                });
            } else {
                keys.gather(domain, work.pieces.as_slice(), 0, length, &mut found)?;
            }
            work.own = Own::copy_of(Payload::Extents(found.as_slice()));
        }
        Ok(Self::of(work, length, signalled))
    }

    /// Keep a request whose message has so many bytes, which were checked.
    pub fn of(work: Box<SendWork>, length: u64, signalled: bool) -> Self {
        Self {
            ordinal: 0,
            kind: work.opcode.kind(),
            length,
            signalled,
            is_placed: false,
            failed: None,
            psn: 0,
            psn_count: 0,
            msn: 0,
            sent: 0,
            unanswered: 0,
            received: 0,
            work,
        }
    }

    /// Copy what is still needed of the caller's bytes; return how many that were.
    pub fn detach(&mut self) -> u64 {
        let Own::Kept(memory, length) = &self.work.own else {
            return 0;
        };
        if self.is_placed {
            return 0; // nothing reads them any more
        }
        let mut bytes = Vec::new();
        if self.psn_count == 0 || self.unanswered > 0 {
            memory.append_to(0, *length, &mut bytes);
        }
        let copied = bytes.len() as u64;
        self.work.own = Own::Copied(bytes.into());
        copied
    }

    pub fn is_answered(&self) -> bool {
        self.kind.is_some_and(Kind::is_answered)
    }

    /// Return whether bytes that the outlet places could land before its own.
    pub fn is_overtakable(&self) -> bool {
        let changes = self
            .kind
            .is_some_and(|kind| kind == Kind::Write || kind.is_atomic());
        changes && !self.is_placed && self.length > 0
    }

    pub fn immediate(&self) -> u32 {
        if self.work.opcode.invalidates() {
            self.work.invalidate_rkey
        } else {
            self.work.imm_data
        }
    }

    /// Assign its numbers; it is under way from here on.
    pub fn start(&mut self, psn: i64, msn: u32, mtu_bytes: u32) {
        self.psn_count = if self.is_placed || self.is_answered() {
            1
        } else {
            let packets = self.length.div_ceil(u64::from(mtu_bytes)).max(1);
            i64::try_from(packets).unwrap_or(i64::MAX)
        };
        (self.psn, self.msn, self.unanswered) = (psn, msn, self.psn_count);
    }

    /// Return bytes of the message; ranges of memory are put into `found`, which is empty.
    ///
    /// # Errors
    /// `LocProtErr`.
    pub fn data<'a, 'b>(
        &'a self,
        keys: &'a Keys,
        domain: Domain,
        offset: u64,
        length: u64,
        found: &'b mut Extents<'a>,
    ) -> Result<Payload<'b>, Fault>
    where
        'a: 'b,
    {
        let begin = usize::try_from(offset).unwrap_or(usize::MAX);
        let count = usize::try_from(length).unwrap_or(usize::MAX);
        match &self.work.own {
            Own::Short(_, bytes) => Ok(Payload::Bytes(&bytes[begin..begin + count])),
            Own::Copied(bytes) => Ok(Payload::Bytes(&bytes[begin..begin + count])),
            Own::Kept(memory, _) => {
                found.push(Extent {
                    memory: &**memory,
                    at: begin,
                    length: count,
                });
                Ok(Payload::Extents(found.as_slice()))
            }
            Own::None => {
                keys.gather(domain, self.work.pieces.as_slice(), offset, length, found)?;
                Ok(Payload::Extents(found.as_slice()))
            }
        }
    }

    // -- packets

    /// Return the packet of a SEND or WRITE that has the given PSN.
    pub fn build_data(&self, psn: i64, kind: Kind, target_qpn: u32, mtu_bytes: u32) -> Packet {
        let index = psn - self.psn;
        let offset = index.unsigned_abs() * u64::from(mtu_bytes);
        let mut bits = if index == 0 { FIRST } else { 0 };
        let is_last = index == self.psn_count - 1;
        if is_last || (index + 1) % ACK_EVERY_PACKETS == 0 {
            bits |= ACK_REQUEST;
        }
        if is_last {
            bits |= LAST | self.mark();
        }
        if self.is_placed {
            bits |= PLACED;
        }
        let mut packet = Packet::new(kind, target_qpn, psn, bits);
        packet.offset = u32::try_from(offset).unwrap_or(u32::MAX); // below 2 GiB
        if kind == Kind::Write {
            packet.address = self.work.remote_addr.wrapping_add(offset);
            packet.rkey = self.work.rkey;
            if index == 0 {
                packet.length = u32::try_from(self.length).unwrap_or(u32::MAX); // 2 GiB at most
            }
        }
        if self.work.opcode.takes_receive() {
            packet.msn = self.msn;
        }
        if packet.has(IMMEDIATE | INVALIDATE) {
            packet.immediate = self.immediate();
        }
        packet
    }

    /// Return the flags of its last packet.
    fn mark(&self) -> u8 {
        let mark = match self.work.opcode {
            Opcode::SendWithImm | Opcode::RdmaWriteWithImm => IMMEDIATE,
            Opcode::SendWithInv => INVALIDATE,
            _ => 0,
        };
        if self.work.flags & SEND_SOLICITED != 0 {
            mark | SOLICITED
        } else {
            mark
        }
    }

    /// Return the packet of a read or an atomic operation.
    pub fn build_answered(&self, kind: Kind, target_qpn: u32) -> Packet {
        let work = &self.work;
        let mut packet = Packet::new(kind, target_qpn, self.psn, FIRST | LAST | ACK_REQUEST);
        packet.address = work.remote_addr;
        packet.rkey = work.rkey;
        if kind == Kind::ReadRequest {
            packet.length = u32::try_from(self.length).unwrap_or(u32::MAX); // 2 GiB at most
            return packet;
        }
        let operands = work.operands();
        packet.compare_add = operands.compare_add;
        // What the opcode does not use is ignored, whatever its request says.
        if kind == Kind::MaskedAdd {
            packet.boundary = operands.boundary;
        } else if kind != Kind::AtomicAdd {
            packet.swap = operands.swap;
        }
        if kind == Kind::MaskedSwap {
            (packet.compare_mask, packet.swap_mask) = (operands.compare_mask, operands.swap_mask);
        }
        packet
    }
}

/// Check a send work request.
///
/// # Errors
/// EINVAL.
pub fn check_send(
    work: &SendWork,
    doubts: &Doubts,
    qp_kind: QpKind,
    attributes: &Attributes,
    link: Link,
) -> Result<(), Rejected> {
    let opcode = work.opcode;
    let kind = opcode.kind();
    if doubts.data.is_some() || !matches!(work.own, Own::None) {
        if !matches!(kind, Some(Kind::Send | Kind::Write)) {
            return Err(Rejected::invalid(format!(
                "{} with data of its own",
                opcode.name()
            )));
        }
        if let Some(reason) = &doubts.data {
            return Err(Rejected::invalid(reason.clone()));
        }
    }
    let (length, cap) = (work.message_bytes(), attributes.cap);
    let pieces = work.pieces.as_slice();
    let count = i64::try_from(pieces.len()).unwrap_or(i64::MAX);
    check_count(work.num_sge, count)?;
    if count > cap.max_send_sge {
        return Err(Rejected::invalid(format!(
            "send of {count} pieces, limit {} (max_send_sge)",
            cap.max_send_sge
        )));
    }
    if pieces.iter().any(|piece| piece.length < 0) {
        return Err(Rejected::invalid("a piece of negative length"));
    }
    if length > i128::from(MESSAGE_BYTES_MAX) {
        return Err(Rejected::invalid(format!(
            "message of {length} bytes, limit {MESSAGE_BYTES_MAX}"
        )));
    }
    if work.flags & SEND_INLINE != 0 {
        if kind.is_some_and(Kind::is_answered) {
            let detail = format!("{} cannot be inline", opcode.name());
            return Err(Rejected::invalid(detail));
        }
        if length > i128::from(cap.max_inline_data) {
            return Err(Rejected::invalid(format!(
                "{length} bytes inline, limit {} (max_inline_data)",
                cap.max_inline_data
            )));
        }
    }
    if qp_kind == QpKind::Ud {
        check_datagram(work, length, link)
    } else {
        check_connected(work, doubts, length, attributes)
    }
}

fn check_datagram(work: &SendWork, length: i128, link: Link) -> Result<(), Rejected> {
    let opcode = work.opcode;
    if opcode.kind() != Some(Kind::Send) || opcode.invalidates() {
        return Err(Rejected::invalid(format!(
            "{} on a datagram queue pair",
            opcode.name()
        )));
    }
    if work.destination().is_none() {
        return Err(Rejected::invalid("datagram without an address handle"));
    }
    if length > i128::from(link.mtu_bytes) {
        return Err(Rejected::invalid(format!(
            "datagram of {length} bytes, limit {} (mtu)",
            link.mtu_bytes
        )));
    }
    Ok(())
}

fn check_connected(
    work: &SendWork,
    doubts: &Doubts,
    length: i128,
    attributes: &Attributes,
) -> Result<(), Rejected> {
    let opcode = work.opcode;
    let name = opcode.name();
    if opcode.kind().is_some_and(Kind::is_answered) && attributes.get(Field::MaxRdAtomic) == 0 {
        return Err(Rejected::invalid(format!("{name} with max_rd_atomic 0")));
    }
    let operands = opcode.operands();
    if !operands.is_empty() && length != ATOMIC_BYTES as i128 {
        return Err(Rejected::invalid(format!(
            "room of {length} bytes for an atomic result of {ATOMIC_BYTES}"
        )));
    }
    for operand in operands {
        if let Some((_, value)) = doubts.operands.iter().find(|(name, _)| name == operand) {
            return Err(Rejected::invalid(format!(
                "{operand} {value} of {name} outside 64 bits"
            )));
        }
    }
    if opcode == Opcode::BindMw && work.binding().is_none() {
        let detail = "BIND_MW without a window and its WindowBinding";
        return Err(Rejected::invalid(detail));
    }
    Ok(())
}
