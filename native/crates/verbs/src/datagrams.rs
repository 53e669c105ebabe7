//! Datagrams: the sending and receiving of a queue pair of type UD.
//!
//! Rules and the layout of the 40 bytes before the data: `urds.verbs.engine.datagrams`.

use crate::attributes::Field;
use crate::memory::{Content, Extents};
use crate::numbers::{
    GID_BYTES, GRH_BYTES, Kind, Opcode, QpState, SEND_SOLICITED, Status, WC_GRH, WC_WITH_IMM,
    WcOpcode,
};
use crate::packets::{FIRST, IMMEDIATE, LAST, Packet, SOLICITED};
use crate::queue_pair::{Outlet, QueuePair, Shared};
use crate::work::{Completion, Route};

/// In a work request: use the queue pair's own `Q_Key`.
const OWN_QKEY_BIT: u32 = 1 << 31;
const VERSION_6: u32 = 6 << 28;
const NEXT_HEADER: u8 = 0x1B;
const HOP_LIMIT: u8 = 64;

/// Return the 40 bytes before the data of a received datagram.
fn emit_grh(source: &Route, target_gid: &[u8; GID_BYTES], payload_bytes: usize) -> [u8; GRH_BYTES] {
    let mut bytes = [0; GRH_BYTES];
    let label = VERSION_6 | source.port & 0xFFFF;
    let length = u16::try_from(payload_bytes & 0xFFFF).unwrap_or(0); // 16 bits
    bytes[0..4].copy_from_slice(&label.to_be_bytes());
    bytes[4..6].copy_from_slice(&length.to_be_bytes());
    (bytes[6], bytes[7]) = (NEXT_HEADER, HOP_LIMIT);
    bytes[8..24].copy_from_slice(&source.gid);
    bytes[24..].copy_from_slice(target_gid);
    bytes
}

impl QueuePair {
    /// Give the outlet the next datagram; its request completes with that.
    pub(crate) fn poll_datagram(&mut self, shared: &mut Shared, outlet: &mut impl Outlet) -> bool {
        if self.state != QpState::Rts {
            return false;
        }
        let Some(request) = self.posted.pop_front() else {
            return false;
        };
        let mut found = Extents::None;
        let domain = self.setup.domain;
        let result = request
            .data(&shared.keys, domain, 0, request.length, &mut found)
            .map(|payload| {
                let packet = self.datagram(&request);
                if let Some(destination) = request.work.destination() {
                    outlet.packet(&destination.route, &packet, payload);
                }
            });
        if let Err(fault) = result {
            self.complete_send(&request, fault.status, shared);
            self.enter_send_error(shared);
            return false;
        }
        self.next_datagram_psn += 1;
        if request.signalled {
            self.complete_send(&request, Status::Success, shared);
        }
        true
    }

    fn datagram(&self, request: &crate::requests::Request) -> Packet {
        let work = &request.work;
        let psn = self.next_datagram_psn;
        let (qpn, qkey) = work
            .destination()
            .map_or((0, 0), |destination| (destination.qpn, destination.qkey));
        let mut packet = Packet::new(Kind::Datagram, qpn, psn, FIRST | LAST);
        packet.source_qpn = self.setup.qpn;
        packet.qkey = if qkey & OWN_QKEY_BIT != 0 {
            self.attributes.word(Field::Qkey)
        } else {
            qkey
        };
        if work.flags & SEND_SOLICITED != 0 {
            packet.flags |= SOLICITED;
        }
        if work.opcode == Opcode::SendWithImm {
            packet.flags |= IMMEDIATE;
            packet.immediate = request.immediate();
        }
        packet
    }

    /// Deliver a datagram, or drop it: wrong `Q_Key`, too long for the link, no receive.
    pub(crate) fn receive_datagram(
        &mut self,
        packet: &Packet,
        payload: Content<'_>,
        source: Option<Route>,
        shared: &mut Shared,
    ) {
        let is_too_long = payload.len() > self.setup.link.mtu_bytes as usize;
        if i64::from(packet.qkey) != self.attributes.get(Field::Qkey) || is_too_long {
            return;
        }
        let Some(work) = self.take_receive(shared) else {
            return;
        };
        let grh = emit_grh(&source.unwrap_or_default(), &self.setup.gid, payload.len());
        let (domain, pieces) = (self.setup.receive_domain, work.pieces.as_slice());
        let keys = &shared.keys;
        let result = keys
            .scatter(domain, pieces, 0, Content::Bytes(&grh))
            .and_then(|()| keys.scatter(domain, pieces, GRH_BYTES as u64, payload));
        let status = result.map_or_else(|fault| fault.status, |()| Status::Success);
        let flags = if packet.has(IMMEDIATE) {
            WC_GRH | WC_WITH_IMM
        } else {
            WC_GRH
        };
        let completion = Completion {
            byte_len: (GRH_BYTES + payload.len()) as u64,
            src_qpn: packet.source_qpn,
            imm_data: packet.immediate,
            flags,
            solicited: packet.has(SOLICITED),
            ..Completion::of(work.wr_id, status, WcOpcode::Recv, self.setup.qpn)
        };
        shared.complete(self.setup.recv_cq, completion);
    }
}
