//! Two engines and a link between them: what holds without the Python engine beside.
//!
//! `tests/parity` compares the two engines call by call; here are the ends of requests, and bytes
//! that no engine sent.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use crate::Engine;
use crate::attributes::{self, Attributes, Cap, FIELDS, Link};
use crate::keys::{Domain, Registration};
use crate::memory::{Memory, Payload};
use crate::numbers::{Opcode, QpKind, QpState, Status};
use crate::packets::Packet;
use crate::queue_pair::{Outlet, Placing, QueuePair, Setup};
use crate::work::{Completion, Doubts, Opcoded, Piece, Pieces, RecvWork, Route, SendWork};

const ADDRESS: u64 = 0x1000;
const BYTES: usize = 512;
const GUARD: usize = 64;
const PD: Domain = Domain {
    own: 1,
    outer: None,
};
const CAP: Cap = Cap {
    max_send_wr: 16,
    max_recv_wr: 16,
    max_send_sge: 2,
    max_recv_sge: 2,
    max_inline_data: 64,
};

/// A buffer with guards before and behind the region.
struct Guarded(Mutex<Vec<u8>>);

impl Memory for Guarded {
    fn read(&self, at: usize, to: &mut [u8]) {
        let bytes = self.0.lock().expect("no test panics with it");
        to.copy_from_slice(&bytes[GUARD + at..][..to.len()]);
    }

    fn write(&self, at: usize, from: &[u8]) {
        let mut bytes = self.0.lock().expect("no test panics with it");
        bytes[GUARD + at..][..from.len()].copy_from_slice(from);
    }
}

impl Guarded {
    fn is_whole(&self) -> bool {
        let bytes = self.0.lock().expect("no test panics with it");
        let guards = bytes[..GUARD].iter().chain(&bytes[GUARD + BYTES..]);
        guards.copied().all(|byte| byte == 0xA5)
    }
}

struct Side {
    engine: Engine,
    qp: u32,
    cq: u32,
    key: u32,
    memory: Arc<Guarded>,
    route: Route,
}

impl Side {
    fn new(qpn: u32, acks_wait: bool) -> Self {
        let mut engine = Engine::new(None, false);
        let mut bytes = vec![0xA5; BYTES + 2 * GUARD];
        bytes[GUARD..GUARD + BYTES].fill(0);
        let memory = Arc::new(Guarded(Mutex::new(bytes)));
        let registration = Registration {
            memory: memory.clone(),
            length: BYTES as u64,
            is_readonly: false,
            address: i128::from(ADDRESS),
            access: 31,
        };
        let keys = &mut engine.shared.keys;
        let (_, key) = keys.register(1, registration, None).expect("a fresh key");
        let cq = engine.completion_queue(64, false).expect("64 entries");
        let route = Route {
            gid: [u8::try_from(qpn).expect("a small number"); 16],
            port: 0,
        };
        let qp = engine.queue_pair(Setup {
            qpn,
            kind: QpKind::Rc,
            domain: PD,
            receive_domain: PD,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            cap: CAP,
            sq_sig_all: true,
            link: Link {
                mtu_bytes: 64,
                payload_bytes_max: None,
                retries: true,
                acks_wait,
            },
            gid: route.gid,
        });
        Self {
            engine,
            qp,
            cq,
            key,
            memory,
            route,
        }
    }

    fn lead(&mut self, peer: &Self, peer_qpn: i64, timeout: i64) {
        let mut given = Attributes::new(CAP);
        let numbers = FIELDS.map(|(_, name, _)| match name {
            "qp_access_flags" => 31,
            "timeout" => timeout,
            "retry_cnt" | "rnr_retry" => 1,
            "min_rnr_timer" => 12,
            "rq_psn" | "sq_psn" => 0xFF_FFFE,
            "max_rd_atomic" | "max_dest_rd_atomic" => 4,
            "dest_qp_num" => peer_qpn,
            _ => 0,
        });
        given.set_numbers(numbers);
        given.route = Some(peer.route);
        let init = attributes::PKEY_INDEX | attributes::PORT | attributes::ACCESS_FLAGS;
        let rtr = attributes::AV | attributes::PATH_MTU | attributes::DEST_QPN | attributes::RQ_PSN;
        let rtr = rtr | attributes::MAX_DEST_RD_ATOMIC | attributes::MIN_RNR_TIMER;
        let rts = attributes::SQ_PSN | attributes::MAX_QP_RD_ATOMIC | attributes::RETRY_CNT;
        let rts = rts | attributes::RNR_RETRY | attributes::TIMEOUT;
        for (state, mask) in [
            (QpState::Init, init),
            (QpState::Rtr, rtr),
            (QpState::Rts, rts),
        ] {
            given.state = state;
            let result = self
                .engine
                .modify(self.qp, &given, mask | attributes::STATE);
            assert_eq!(result, Ok(()));
        }
    }

    fn piece(&self, offset: u64, length: i64) -> Pieces {
        Pieces::One(Piece {
            address: i128::from(ADDRESS + offset),
            length,
            lkey: self.key,
        })
    }

    fn post(&mut self, opcode: Opcode, length: i64, peer_key: u32) {
        let mut work = SendWork::new(1, opcode, self.piece(0, length));
        (work.rkey, work.remote_addr) = (peer_key, ADDRESS + 256);
        let result = self
            .engine
            .post_send(self.qp, Opcoded::Known(work), &Doubts::default());
        assert_eq!(result, Ok(()));
    }

    fn receive(&mut self, length: i64) {
        let work = RecvWork {
            wr_id: 7,
            pieces: self.piece(128, length),
            num_sge: None,
        };
        assert_eq!(self.engine.post_recv(self.qp, work), Ok(()));
    }

    fn polled(&mut self) -> Vec<Completion> {
        let mut taken = Vec::new();
        let queue = self.engine.shared.completions.get_mut(self.cq);
        queue.expect("it is there").poll(64, &mut taken);
        taken
    }

    fn statuses(&mut self) -> Vec<Status> {
        self.polled().iter().map(|one| one.status).collect()
    }
}

fn pair(timeout: i64) -> (Side, Side) {
    pair_over(timeout, false)
}

fn pair_over(timeout: i64, acks_wait: bool) -> (Side, Side) {
    let (mut left, mut right) = (Side::new(16, acks_wait), Side::new(17, acks_wait));
    left.lead(&right, 17, timeout);
    right.lead(&left, 16, timeout);
    (left, right)
}

/// Move packets until none is left.
fn exchange(left: &mut Side, right: &mut Side, now_ns: i64) {
    loop {
        let mut count = 0;
        for is_left in [true, false] {
            let (from, to) = if is_left {
                (&mut *left, &mut *right)
            } else {
                (&mut *right, &mut *left)
            };
            while let Some((route, data)) = from.engine.poll_transmit(now_ns) {
                assert_eq!(route, to.route);
                to.engine.receive(&data, from.route, now_ns);
                count += 1;
            }
        }
        if count == 0 {
            return;
        }
    }
}

#[test]
fn a_message_of_several_packets_arrives_across_the_wrap_of_psns() {
    let (mut left, mut right) = pair(0);
    left.memory.write(0, &[9; 200]);
    right.receive(200);
    left.post(Opcode::Send, 200, 0);
    exchange(&mut left, &mut right, 0);
    assert_eq!(left.statuses(), [Status::Success]);
    let received = right.polled();
    assert_eq!((received[0].wr_id, received[0].byte_len), (7, 200));
    let mut bytes = [0; 200];
    right.memory.read(128, &mut bytes);
    assert_eq!(bytes, [9; 200]);
}

#[test]
fn a_send_without_a_receive_pauses_and_gives_up_as_rnr_retry_says() {
    let (mut left, mut right) = pair(0);
    left.post(Opcode::Send, 8, 0);
    exchange(&mut left, &mut right, 0);
    assert_eq!(left.engine.poll_timeout(), Some(640_000));
    left.engine.handle_timeout(640_000);
    exchange(&mut left, &mut right, 640_000);
    assert_eq!(left.statuses(), [Status::RnrRetryExcErr]);
}

#[test]
fn a_request_to_an_absent_queue_pair_ends_as_timeout_and_retry_cnt_say() {
    let (mut left, mut right) = pair(13);
    right.engine.close_queue_pair(right.qp);
    left.post(Opcode::RdmaRead, 8, right.key);
    exchange(&mut left, &mut right, 0);
    let period_ns = 4096 << 13;
    for period in 1..=2 {
        assert_eq!(left.engine.poll_timeout(), Some(period * period_ns));
        assert_eq!(left.statuses(), []);
        left.engine.handle_timeout(period * period_ns);
        exchange(&mut left, &mut right, period * period_ns);
    }
    assert_eq!(left.statuses(), [Status::RetryExcErr]);
    assert_eq!(right.engine.counters.dropped_unknown, 2);
}

#[test]
fn an_idle_queue_pair_is_not_polled() {
    let (mut left, mut right) = pair(0);
    right.receive(8);
    left.post(Opcode::Send, 8, 0);
    exchange(&mut left, &mut right, 0);
    assert!(left.engine.poll_transmit(0).is_none());
    assert_eq!(left.engine.poll_timeout(), None);
}

// -- records of a channel: acknowledgements ride, bytes are placed

/// Keeps packets as records, and places writes into the peer's memory.
#[derive(Default)]
struct Records {
    packets: Vec<(Packet, Vec<u8>)>,
    target: Option<Arc<Guarded>>,
}

impl Outlet for Records {
    fn packet(&mut self, _to: &Route, packet: &Packet, payload: Payload<'_>) {
        let mut bytes = Vec::new();
        payload.append_to(&mut bytes);
        self.packets.push((*packet, bytes));
    }

    fn place(&mut self, _to: &Route, write: &Placing, payload: Payload<'_>) -> bool {
        let Some(target) = &self.target else {
            return false;
        };
        let mut bytes = vec![0; payload.len()];
        payload.copy_to(&mut bytes);
        let at = usize::try_from(write.address - ADDRESS).expect("inside of the region");
        target.write(at, &bytes);
        true
    }

    fn placed_bytes_min(&self) -> Option<u64> {
        self.target.as_ref().map(|_| 16)
    }
}

/// Poll all packets of a side, deliver them, and return them.
fn pass(from: &mut Side, to: &mut Side, outlet: &mut Records) -> Vec<Packet> {
    while from.engine.poll(0, outlet) {}
    let packets = std::mem::take(&mut outlet.packets);
    for (packet, payload) in &packets {
        to.engine.receive_packet(packet, payload, from.route, 0);
    }
    packets.into_iter().map(|(packet, _)| packet).collect()
}

#[test]
fn an_acknowledgement_rides_on_the_answer_of_a_program() {
    let (mut left, mut right) = pair_over(0, true);
    let outlet = &mut Records::default();
    for side in [&mut left, &mut right] {
        side.receive(64);
    }
    left.post(Opcode::Send, 8, 0);
    assert_eq!(pass(&mut left, &mut right, outlet).len(), 1);
    assert_eq!(pass(&mut right, &mut left, outlet), []);
    assert!(
        right
            .engine
            .get(right.qp)
            .is_some_and(QueuePair::ack_pending)
    );
    right.post(Opcode::Send, 8, 0);
    let answer = pass(&mut right, &mut left, outlet);
    assert_eq!(answer[0].acknowledged, Some(0xFF_FFFE));
    assert_eq!(left.statuses(), [Status::Success, Status::Success]);
    assert!(
        !right
            .engine
            .get(right.qp)
            .is_some_and(QueuePair::ack_pending)
    );
}

#[test]
fn a_hurried_acknowledgement_goes_alone_and_one_for_many_packets_as_well() {
    let (mut left, mut right) = pair_over(0, true);
    let outlet = &mut Records::default();
    left.post(Opcode::RdmaWrite, 128, right.key);
    pass(&mut left, &mut right, outlet);
    assert_eq!(pass(&mut right, &mut left, outlet), []);
    let qp = right.qp;
    right.engine.with(qp, |qp, _| qp.hurry_ack());
    assert_eq!(pass(&mut right, &mut left, outlet).len(), 1);
    assert_eq!(left.statuses(), [Status::Success]);
    for _ in 0..16 {
        left.post(Opcode::RdmaWrite, 128, right.key);
    }
    pass(&mut left, &mut right, outlet);
    assert_eq!(pass(&mut right, &mut left, outlet).len(), 1);
    assert_eq!(left.statuses().len(), 16);
}

#[test]
fn a_placed_write_completes_without_a_packet_unless_it_takes_a_receive() {
    let (mut left, mut right) = pair_over(0, true);
    let outlet = &mut Records {
        target: Some(right.memory.clone()),
        ..Records::default()
    };
    left.memory.write(0, &[7; 32]);
    left.post(Opcode::RdmaWrite, 32, right.key);
    left.post(Opcode::RdmaWrite, 8, right.key); // too short to be placed
    left.post(Opcode::RdmaWrite, 32, right.key); // would overtake the one before
    let packets = pass(&mut left, &mut right, outlet);
    assert_eq!(packets.len(), 2);
    assert_eq!(left.statuses(), [Status::Success]);
    let mut bytes = [0; 32];
    right.memory.read(256, &mut bytes);
    assert_eq!(bytes, [7; 32]);
    right.receive(8);
    let qp = right.qp;
    right.engine.with(qp, |qp, _| qp.hurry_ack());
    pass(&mut right, &mut left, outlet);
    left.post(Opcode::RdmaWriteWithImm, 32, right.key);
    let packets = pass(&mut left, &mut right, outlet);
    assert_eq!((packets.len(), packets[0].length), (1, 32));
    assert_eq!(right.polled()[0].byte_len, 32);
}

#[test]
fn the_acknowledgement_that_waits_goes_when_a_request_of_our_own_ends_the_queue_pair() {
    let (mut left, mut right) = pair_over(0, true);
    let outlet = &mut Records::default();
    left.post(Opcode::RdmaWrite, 8, right.key);
    pass(&mut left, &mut right, outlet);
    right.key += 1; // no key
    right.post(Opcode::Send, 8, 0);
    assert_eq!(pass(&mut right, &mut left, outlet).len(), 1);
    assert_eq!(right.statuses(), [Status::LocProtErr]);
    assert_eq!(left.statuses(), [Status::Success]);
}

#[test]
fn the_acknowledgement_that_waits_outlives_a_reset() {
    let (mut left, mut right) = pair_over(0, true);
    let outlet = &mut Records::default();
    left.post(Opcode::RdmaWrite, 8, right.key);
    pass(&mut left, &mut right, outlet);
    let reset = Attributes::new(CAP);
    let result = right.engine.modify(right.qp, &reset, attributes::STATE);
    assert_eq!(result, Ok(()));
    assert_eq!(pass(&mut right, &mut left, outlet).len(), 1);
    assert_eq!(left.statuses(), [Status::Success]);
}

proptest! {
    #[test]
    fn packets_of_a_hostile_peer_change_nothing_outside_of_a_region(
        packets in prop::collection::vec(
            (0_u8..17, 0_u8..128, 0_u32..6, prop::collection::vec(any::<u8>(), 0..120)),
            1..20,
        ),
    ) {
        let (mut left, mut right) = pair(0);
        right.receive(100);
        left.post(Opcode::RdmaRead, 128, right.key);
        let found = left.engine.poll_transmit(0);
        prop_assert!(found.is_some());
        for (kind, flags, psn, fields) in packets {
            let mut data = vec![1, kind, flags, 0];
            data.extend(17_u32.to_be_bytes());
            data.extend((0xFF_FFFD_u32.wrapping_add(psn) & 0xFF_FFFF).to_be_bytes());
            data.extend(&fields);
            right.engine.receive(&data, left.route, 0);
            data[7] = 16;
            left.engine.receive(&data, right.route, 0);
            exchange(&mut left, &mut right, 0);
        }
        prop_assert!(left.memory.is_whole() && right.memory.is_whole());
    }
}
