//! The verbs engine of a device whose peer says what it likes.
//!
//! The script is packets, as bytes and as records of a channel, between work of this side. No panic;
//! memory changes where keys allow it and nowhere else; each request and each receive completes at
//! most once, and once when its queue pair has ended; what is sent ends.

use std::collections::BTreeSet;
use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use urds_verbs::Engine;
use urds_verbs::attributes::{self, Attributes, Cap, Field, Link};
use urds_verbs::memory::Content;
use urds_verbs::numbers::{Kind, Opcode, QpKind};
use urds_verbs::packets::{self, Packet};
use urds_verbs::queue_pair::{QueuePair, Setup};
use urds_verbs::work::{
    Completion, Destination, Doubts, Extra, Opcoded, Piece, Pieces, RecvWork, Route, SendWork,
};

use crate::streams::queue_pairs::{EVERYTHING, Guarded, lead, link_of, register, route_of, setup};

const STEPS_MAX: usize = 60;
/// Packets that one step may cause, at most: some answers to each read, and requests again.
const PACKETS_MAX: usize = 4096;
const ADDRESS: u64 = 0x1000;
const BYTES: usize = 512;
const MTU_BYTES: u32 = 64;
const QPN: u32 = 16;
const PEER_QPN: u8 = 17;
const PEER: Route = route_of(PEER_QPN);
const CAP: Cap = Cap {
    max_send_wr: 16,
    max_recv_wr: 16,
    max_send_sge: 2,
    max_recv_sge: 2,
    max_inline_data: 64,
};
const LOCAL_WRITE: i64 = 1;

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step<'a> {
    /// From the peer, or from another one.
    Bytes(&'a [u8]),
    Request(Fields),
    Answer(Fields),
    Send {
        opcode: u8,
        length: u8,
    },
    Receive(u8),
    Poll,
    Time(u16),
    /// Enter ERR, or come back.
    Fail,
    Connect,
    Deregister,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Fields {
    kind: u8,
    flags: u8,
    psn: i8,
    msn: u8,
    place: u16,
    length: u16,
    offset: u8,
    payload: u8,
    extra: u8,
}

struct World {
    engine: Engine,
    qp: u32,
    cq: u32,
    /// What peers may write, and what they may not.
    memory: [Arc<Guarded>; 2],
    identities: [u64; 2],
    keys: [u32; 2],
    private: Vec<u8>,
    now_ns: i64,
    /// PSN that the peer is expected to send next, and of our last request, as far as packets tell.
    expected: i64,
    requested: i64,
    posted: BTreeSet<u64>,
    next_id: u64,
}

/// Follow the script that the bytes make.
///
/// # Panics
/// If a rule is broken.
pub fn run(bytes: &[u8]) {
    let mut source = Unstructured::new(bytes);
    let mut world = World::new(source.arbitrary().unwrap_or(0));
    for _ in 0..STEPS_MAX {
        match source.arbitrary() {
            Ok(step) if !source.is_empty() => world.follow(step),
            _ => break,
        }
        world.transmit();
    }
    world.end();
}

impl World {
    fn new(choices: u8) -> Self {
        let mut engine = Engine::new(None, false);
        let cq = engine.completion_queue(4096, false).unwrap_or(0);
        let memory = [(); 2].map(|()| Arc::new(Guarded::new(BYTES)));
        let (mut identities, mut keys) = ([0; 2], [0; 2]);
        for (place, access) in [EVERYTHING, LOCAL_WRITE].into_iter().enumerate() {
            let made = register(&mut engine, memory[place].clone(), BYTES, ADDRESS, access);
            (identities[place], keys[place]) = made;
        }
        let kind = if choices & 1 == 0 {
            QpKind::Rc
        } else {
            QpKind::Ud
        };
        let srq = (choices & 2 != 0).then(|| engine.receive_queue(16, 2));
        let link = Link {
            payload_bytes_max: (choices & 4 != 0).then_some(4 * MTU_BYTES),
            retries: choices & 8 == 0,
            acks_wait: choices & 16 != 0,
            ..link_of(MTU_BYTES)
        };
        let qp = engine.queue_pair(Setup {
            kind,
            srq,
            ..setup(16, cq, CAP, link)
        });
        let mut world = Self {
            engine,
            qp,
            cq,
            private: memory[1].content(),
            memory,
            identities,
            keys,
            now_ns: 0,
            expected: 0,
            requested: 0,
            posted: BTreeSet::new(),
            next_id: 0,
        };
        world.connect();
        world
    }

    fn connect(&mut self) {
        let numbers = [
            (Field::AccessFlags, EVERYTHING),
            (Field::Qkey, 7),
            (Field::Timeout, 13),
            (Field::RetryCnt, 1),
            (Field::RnrRetry, 1),
            (Field::MinRnrTimer, 12),
            (Field::RqPsn, 0xFF_FFFE),
            (Field::SqPsn, 0xFF_FFFE),
            (Field::MaxRdAtomic, 4),
            (Field::MaxDestRdAtomic, 4),
            (Field::DestQpn, PEER_QPN.into()),
        ];
        (self.expected, self.requested) = (0xFF_FFFE, 0xFF_FFFE);
        let _ = lead(&mut self.engine, self.qp, PEER, &numbers);
    }

    fn follow(&mut self, step: Step<'_>) {
        match step {
            Step::Bytes(data) => {
                let source = if data.len() % 16 == 15 {
                    Route::default()
                } else {
                    PEER
                };
                self.engine.receive(data, source, self.now_ns);
            }
            Step::Request(fields) => {
                let psn = self.expected + i64::from(fields.psn / 32);
                self.receive(fields, psn);
            }
            Step::Answer(fields) => {
                let psn = self.requested + i64::from(fields.psn / 32);
                self.receive(fields, psn);
            }
            Step::Send { opcode, length } => self.send(opcode, length),
            Step::Receive(length) => {
                let work = RecvWork {
                    wr_id: self.id(),
                    pieces: self.piece(0, u64::from(length)),
                    num_sge: None,
                };
                let wr_id = work.wr_id;
                let srq = self
                    .engine
                    .get(self.qp)
                    .is_some_and(|qp| qp.setup.srq.is_some());
                if !srq && self.engine.post_recv(self.qp, work).is_ok() {
                    self.posted.insert(wr_id);
                }
            }
            Step::Poll => self.poll(),
            Step::Time(step) => {
                self.now_ns += i64::from(step) << 10;
                self.engine.handle_timeout(self.now_ns);
            }
            Step::Fail => {
                self.engine.with(self.qp, QueuePair::enter_error);
            }
            Step::Connect => {
                self.fail_and_drain();
                let reset = Attributes::new(CAP);
                let _ = self.engine.modify(self.qp, &reset, attributes::STATE);
                self.connect();
            }
            Step::Deregister => {
                let keys = &mut self.engine.shared.keys;
                let _ = keys.deregister(self.identities[0], self.keys[0]);
            }
        }
    }

    fn receive(&mut self, fields: Fields, psn: i64) {
        let kinds = [
            Kind::Send,
            Kind::Write,
            Kind::ReadRequest,
            Kind::AtomicSwap,
            Kind::AtomicAdd,
            Kind::MaskedSwap,
            Kind::MaskedAdd,
            Kind::ReadResponse,
            Kind::AtomicResponse,
            Kind::Ack,
            Kind::Datagram,
        ];
        let kind = kinds[usize::from(fields.kind) % kinds.len()];
        let mut packet = Packet::new(kind, QPN, psn & 0xFF_FFFF, fields.flags & 0x7F);
        packet.msn = u32::from(fields.msn);
        packet.address = ADDRESS.wrapping_add_signed(i64::from(fields.place.cast_signed()) / 16);
        packet.rkey = self.keys[usize::from(fields.extra & 1)] ^ u32::from(fields.extra >> 7);
        packet.length = u32::from(fields.length) / 32;
        packet.offset = u32::from(fields.offset) / 4 * (MTU_BYTES / 4);
        packet.immediate = packet.rkey;
        packet.compare_add = u64::from(fields.length);
        packet.swap = u64::from(fields.place) << 40;
        packet.compare_mask = u64::from(fields.offset) * 0x0101_0101_0101_0101;
        packet.swap_mask = !packet.compare_mask;
        packet.boundary = u64::from(fields.place) << 32;
        packet.syndrome = fields.extra;
        (packet.source_qpn, packet.qkey) = (PEER_QPN.into(), 7);
        if fields.extra & 2 != 0 {
            let acknowledged = self.requested + i64::from(fields.msn % 4);
            packet.acknowledged = u32::try_from(acknowledged & 0xFF_FFFF).ok();
        }
        let payload = [fields.payload; 255];
        let payload = &payload[..usize::from(fields.payload)];
        self.engine
            .receive_packet(&packet, Content::Bytes(payload), PEER, self.now_ns);
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn piece(&self, offset: u64, length: u64) -> Pieces {
        Pieces::One(Piece {
            address: i128::from(ADDRESS + offset),
            length: i64::try_from(length).unwrap_or(0),
            lkey: self.keys[0],
        })
    }

    fn send(&mut self, opcode: u8, length: u8) {
        let number = Opcode::NUMBERS[usize::from(opcode) % Opcode::NUMBERS.len()];
        let opcode = Opcode::of(number.into()).expect("a member");
        let pieces = if opcode.operands().is_empty() {
            self.piece(0, u64::from(length) * 2)
        } else {
            self.piece(0, 8)
        };
        let mut work = SendWork::new(self.id(), opcode, pieces);
        (work.rkey, work.remote_addr) = (self.keys[0], ADDRESS + 256);
        let destination = Destination {
            route: PEER,
            qpn: PEER_QPN.into(),
            qkey: 7,
        };
        work.extra = Extra::Destination(Box::new(destination));
        work.invalidate_rkey = self.keys[0];
        let wr_id = work.wr_id;
        let doubts = Doubts::default();
        let posted = self
            .engine
            .post_send(self.qp, Opcoded::Known(Box::new(work)), &doubts);
        if posted.is_ok() {
            self.posted.insert(wr_id);
        }
    }

    /// Take what leaves, and what it tells about the numbers to come.
    fn transmit(&mut self) {
        for _ in 0..PACKETS_MAX {
            let Some((_, data)) = self.engine.poll_transmit(self.now_ns) else {
                return;
            };
            let (packet, _) = packets::parse(&data, false).expect("a packet of our own");
            if packet.kind.is_answer() {
                let is_good = packet.kind != Kind::Ack || packet.syndrome < 0x20;
                self.expected = i64::from(packet.psn) + i64::from(is_good);
            } else {
                self.requested = i64::from(packet.psn);
            }
        }
        panic!("packets without end");
    }

    fn poll(&mut self) {
        let mut taken: Vec<Completion> = Vec::new();
        if let Some(queue) = self.engine.shared.completions.get_mut(self.cq) {
            queue.poll(4096, &mut taken);
        }
        for completion in taken {
            let was_posted = self.posted.remove(&completion.wr_id);
            assert!(
                was_posted,
                "completed twice, or never posted: {completion:?}"
            );
        }
    }

    /// Everything that was posted completes when its queue pair fails.
    fn fail_and_drain(&mut self) {
        self.engine.with(self.qp, QueuePair::enter_error);
        self.transmit();
        self.poll();
        assert!(self.posted.is_empty(), "not completed: {:?}", self.posted);
    }

    fn end(&mut self) {
        self.fail_and_drain();
        assert_eq!(self.memory[1].content(), self.private, "without a right");
        let are_whole = self.memory.iter().all(|memory| memory.is_whole());
        assert!(are_whole, "out of range");
    }
}
