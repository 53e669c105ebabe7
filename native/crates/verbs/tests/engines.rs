//! Two engines and a link between them: what holds without the Python engine beside.
//!
//! `tests/parity` compares the two engines call by call; here are the ends of requests, and bytes
//! that no engine sent.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use proptest::prelude::*;

use urds_verbs::Engine;
use urds_verbs::attributes::{self, Attributes, Cap, Field, Link};
use urds_verbs::consumer::{Consumer, Post};
use urds_verbs::memory::{Content, Memory, Payload};
use urds_verbs::numbers::{Kind, Opcode, QpState, Status, WcOpcode};
use urds_verbs::packets::{LAST, PLACED, Packet};
use urds_verbs::queue_pair::{Outlet, Placing, QueuePair, Setup};
use urds_verbs::time::Now;
use urds_verbs::work::{
    Completion, Doubts, Event, Opcoded, Piece, Pieces, RecvWork, Route, SendWork,
};

mod support;

use support::{EVERYTHING, Guarded, lead, link_of, register, route_of, setup};

const ADDRESS: u64 = 0x1000;
const BYTES: usize = 512;
const MTU_BYTES: u32 = 64;
const CAP: Cap = Cap {
    max_send_wr: 16,
    max_recv_wr: 16,
    max_send_sge: 2,
    max_recv_sge: 2,
    max_inline_data: 64,
};

struct Side {
    engine: Engine,
    qp: u32,
    cq: u32,
    key: u32,
    memory: Arc<Guarded>,
    route: Route,
    given: Arc<Mutex<Given>>,
}

impl Side {
    fn new(qpn: u8, acks_wait: bool) -> Self {
        let mut engine = Engine::new(None, false);
        let memory = Arc::new(Guarded::new(BYTES));
        let (_, key) = register(&mut engine, memory.clone(), BYTES, ADDRESS, EVERYTHING);
        let cq = engine.completion_queue(64, false).expect("64 entries");
        let link = Link {
            acks_wait,
            ..link_of(MTU_BYTES)
        };
        let qp = engine.queue_pair(setup(qpn, cq, CAP, link));
        Self {
            engine,
            qp,
            cq,
            key,
            memory,
            route: route_of(qpn),
            given: Arc::default(),
        }
    }

    fn lead(&mut self, peer: &Self, peer_qpn: i64, timeout: i64) {
        let numbers = [
            (Field::AccessFlags, EVERYTHING),
            (Field::Timeout, timeout),
            (Field::RetryCnt, 1),
            (Field::RnrRetry, 1),
            (Field::MinRnrTimer, 12),
            (Field::RqPsn, 0xFF_FFFE),
            (Field::SqPsn, 0xFF_FFFE),
            (Field::MaxRdAtomic, 4),
            (Field::MaxDestRdAtomic, 4),
            (Field::DestQpn, peer_qpn),
        ];
        let led = lead(&mut self.engine, self.qp, peer.route, &numbers);
        assert_eq!(led, Ok(()));
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
        let result =
            self.engine
                .post_send(self.qp, Opcoded::Known(Box::new(work)), &Doubts::default());
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
fn exchange(left: &mut Side, right: &mut Side, now: impl Into<Now>) {
    let now = now.into();
    loop {
        let mut count = 0;
        for is_left in [true, false] {
            let (from, to) = if is_left {
                (&mut *left, &mut *right)
            } else {
                (&mut *right, &mut *left)
            };
            while let Some((route, data)) = from.engine.poll_transmit(now) {
                assert_eq!(route, to.route);
                to.engine.receive(&data, from.route, now);
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
fn a_queue_pair_that_has_sent_all_is_not_asked_again() {
    let (mut left, mut right) = pair(0);
    right.receive(100);
    left.post(Opcode::Send, 100, 0);
    for has_more in [true, false] {
        let (_, data) = left.engine.poll_transmit(0).expect("two packets");
        assert_eq!(left.engine.has_ready(), has_more);
        right.engine.receive(&data, left.route, 0);
    }
    let (_, data) = right.engine.poll_transmit(0).expect("an acknowledgement");
    assert!(!right.engine.has_ready());
    left.engine.receive(&data, right.route, 0);
    assert!(left.engine.poll_transmit(0).is_none());
    assert_eq!(left.statuses(), [Status::Success]);
}

#[test]
fn an_acknowledgement_is_taken_once_and_for_its_own_peer() {
    let (mut left, mut right) = pair(0);
    right.receive(8);
    left.post(Opcode::Send, 8, 0);
    let (_, data) = left.engine.poll_transmit(0).expect("one packet");
    right.engine.receive(&data, left.route, 0);
    let another = right.route;
    assert_eq!(right.engine.take_lone_ack(17, another), None);
    let taken = right.engine.take_lone_ack(17, left.route);
    assert_eq!(taken, Some((16, 0xFF_FFFE, 1)));
    assert_eq!(right.engine.take_lone_ack(17, left.route), None);
    assert!(right.engine.poll_transmit(0).is_none());
}

#[test]
fn a_write_ends_where_its_region_does() {
    for (length, expected) in [(256, Status::Success), (257, Status::RemAccessErr)] {
        let (mut left, mut right) = pair(0);
        let key = right.key;
        left.post(Opcode::RdmaWrite, length, key);
        exchange(&mut left, &mut right, 0);
        assert_eq!(left.statuses(), [expected]);
        assert!(right.memory.is_whole());
    }
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
fn the_clock_is_read_for_a_timer_alone() {
    static READ: AtomicI64 = AtomicI64::new(0);
    let now = Now::Told(|| READ.fetch_add(1, Relaxed));
    let (mut left, mut right) = pair(0);
    right.receive(100);
    left.post(Opcode::Send, 100, 0);
    exchange(&mut left, &mut right, now);
    assert_eq!(left.statuses(), [Status::Success]);
    assert_eq!(READ.load(Relaxed), 0);
    left.post(Opcode::Send, 100, 0);
    exchange(&mut left, &mut right, now);
    assert_eq!(
        READ.load(Relaxed),
        1,
        "for the pause until there is a receive"
    );
}

#[test]
fn an_idle_queue_pair_is_not_polled() {
    let (mut left, mut right) = pair(0);
    right.receive(8);
    left.post(Opcode::Send, 8, 0);
    exchange(&mut left, &mut right, 0);
    assert!(left.engine.poll_transmit(0).is_none());
    assert_eq!(left.engine.poll_timeout(), None);
    assert!(!left.engine.has_ready() && !right.engine.has_ready());
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
        to.engine
            .receive_packet(packet, Content::Bytes(payload), from.route, 0);
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

/// Has room for so many packets, and counts them by queue pair.
#[derive(Default)]
struct Narrow {
    room: usize,
    counts: [u32; 3],
}

impl Outlet for Narrow {
    fn packet(&mut self, _to: &Route, packet: &Packet, _payload: Payload<'_>) {
        self.room -= 1;
        self.counts[packet.target_qpn as usize - 100] += 1;
    }

    fn has_room(&mut self, _to: &Route) -> bool {
        self.room > 0
    }
}

#[test]
fn queue_pairs_that_share_a_narrow_path_send_alike() {
    let (mut left, right) = (Side::new(16, false), Side::new(17, false));
    for index in 0..3 {
        let setup = Setup {
            gid: left.route.gid,
            ..setup(20 + index, left.cq, CAP, link_of(MTU_BYTES))
        };
        left.qp = left.engine.queue_pair(setup);
        left.lead(&right, 100 + i64::from(index), 13);
        for _ in 0..12 {
            left.post(Opcode::Send, 8, 0);
        }
    }
    let mut outlet = Narrow::default();
    for count in 1..=9 {
        outlet.room = 4;
        left.engine.resume();
        while left.engine.poll(0, &mut outlet) {}
        if count % 3 == 0 {
            assert_eq!(outlet.counts, [count / 3 * 4; 3]);
        }
    }
    for round in 0..2 {
        outlet.room = round % 2;
        left.post(Opcode::Send, 8, 0); // which makes one ready that waits
        left.engine.resume();
        while left.engine.poll(0, &mut outlet) {}
        left.post(Opcode::Send, 8, 0);
        outlet.room = 1;
        while left.engine.poll(0, &mut outlet) {}
    }
    assert!(left.engine.poll_timeout().is_some());
    for number in [1, 2, 3] {
        left.engine.close_queue_pair(number);
    }
    assert_eq!(left.engine.poll_timeout(), None, "no deadline is left");
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

// -- consumers

/// What a consumer has to post: the word of a write, its bytes, the key.
struct ToPost(Option<u32>, Vec<u8>, u32);

/// What a consumer is given, and what it has to post.
#[derive(Default)]
struct Given {
    heard: Vec<String>,
    to_post: VecDeque<ToPost>,
}

/// Notes what it is given, and posts what it was given.
#[derive(Default)]
struct Notes(Arc<Mutex<Given>>, Option<ToPost>);

impl Notes {
    fn hear(&mut self, what: String) {
        self.0.lock().expect("no panic before").heard.push(what);
    }
}

impl fmt::Debug for Notes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Notes")
    }
}

impl Consumer for Notes {
    fn message(&mut self) {
        self.hear("message".into());
    }

    fn word(&mut self, word: u32) {
        self.hear(format!("word {word}"));
    }

    fn next(&mut self) -> Option<Post<'_>> {
        self.1 = self.0.lock().expect("no panic before").to_post.pop_front();
        let ToPost(word, bytes, rkey) = self.1.as_ref()?;
        Some(Post {
            word: *word,
            payload: Payload::Bytes(bytes),
            address: ADDRESS + 256,
            rkey: *rkey,
            is_apart: true,
        })
    }

    fn sent(&mut self) {
        self.hear("sent".into());
    }

    fn ended(&mut self, status: Option<Status>) {
        self.hear(format!("ended {status:?}"));
    }
}

impl Side {
    fn given(&self) -> MutexGuard<'_, Given> {
        self.given.lock().expect("no panic before")
    }

    fn heard(&mut self) -> Vec<String> {
        std::mem::take(&mut self.given().heard)
    }

    fn give(&mut self, word: Option<u32>, bytes: &[u8], rkey: u32) {
        let given = ToPost(word, bytes.to_vec(), rkey);
        self.given().to_post.push_back(given);
        self.engine.with(self.qp, |_, _| ()); // it is asked from here on
    }
}

/// A pair whose sides have consumers, where `consumes` says so.
fn consumers(consumes: [bool; 2]) -> (Side, Side) {
    let (mut left, mut right) = (Side::new(16, false), Side::new(17, false));
    for (side, consumes) in [(&mut left, consumes[0]), (&mut right, consumes[1])] {
        if consumes {
            let notes = Notes(side.given.clone(), None);
            let bound = side.engine.consume(side.qp, Box::new(notes));
            assert_eq!(bound, Ok(()));
        }
    }
    left.lead(&right, 17, 0);
    right.lead(&left, 16, 0);
    (left, right)
}

#[test]
fn a_consumer_hears_words_where_they_are_executed_and_completes_nothing() {
    let (mut left, mut right) = consumers([true, true]);
    let bytes: Vec<u8> = (1..=150).collect();
    left.give(Some(5), &bytes, right.key);
    left.give(None, &bytes[..8], right.key);
    left.give(Some(6), &[], right.key);
    exchange(&mut left, &mut right, 0);
    assert_eq!(right.heard(), ["word 5", "word 6"]);
    assert_eq!(left.heard(), ["sent"; 3]);
    assert_eq!((left.polled().len(), right.polled().len()), (0, 0));
    let mut placed = vec![0; 150];
    right.memory.read(256, &mut placed);
    assert_eq!(placed, bytes);
}

#[test]
fn a_consumer_talks_with_a_queue_pair_that_has_none() {
    let (mut left, mut right) = consumers([true, false]);
    right.receive(64);
    left.give(Some(5), &[7; 3], right.key);
    exchange(&mut left, &mut right, 0);
    let received = right.polled();
    assert_eq!((received[0].imm_data, received[0].byte_len), (5, 3));
    let key = left.key;
    right.post(Opcode::RdmaWriteWithImm, 8, key);
    exchange(&mut left, &mut right, 0);
    right.post(Opcode::Send, 150, 0);
    exchange(&mut left, &mut right, 0);
    assert_eq!(left.heard(), ["sent", "word 0", "message"]);
    assert_eq!(right.statuses(), [Status::Success; 2]);
}

#[test]
fn what_fails_by_itself_is_told_at_the_end() {
    let (mut left, mut right) = consumers([true, true]);
    left.give(Some(5), &[1; 8], right.key + 1);
    left.give(Some(6), &[1; 8], right.key);
    exchange(&mut left, &mut right, 0);
    assert_eq!(right.heard(), ["ended None"]);
    assert_eq!(left.heard(), ["ended Some(RemAccessErr)"]);
    assert!(left.memory.is_whole() && right.memory.is_whole());
}

#[test]
fn a_consumer_is_bound_before_its_queue_pair_connects_or_not_at_all() {
    let (mut left, _) = pair(0);
    let late = left.engine.consume(left.qp, Box::<Notes>::default());
    assert_eq!(
        late.map_err(|error| error.detail),
        Err("a consumer in state RTS".into())
    );
}

#[test]
fn bytes_of_a_consumer_are_placed_before_it_has_them_back() {
    let (mut left, right) = consumers([true, true]);
    let mut outlet = Records {
        target: Some(right.memory.clone()),
        ..Records::default()
    };
    left.give(Some(5), &[8; 100], right.key);
    left.give(None, &[9; 32], right.key);
    while left.engine.poll(0, &mut outlet) {}
    let (packet, payload) = &outlet.packets[0];
    assert!(packet.has(PLACED) && payload.is_empty() && outlet.packets.len() == 1);
    assert_eq!(packet.length, 100);
    let mut bytes = [0; 33];
    right.memory.read(256, &mut bytes);
    assert_eq!((bytes[0], bytes[31], bytes[32]), (9, 9, 8));
    assert_eq!(
        left.heard(),
        [""; 0],
        "a write without a packet waits its turn"
    );
}

proptest! {
    /// Random packets at a queue pair with a consumer: it hears only what is in order.
    #[test]
    fn no_packet_makes_a_consumer_hear_what_is_not_next(
        packets in prop::collection::vec((0..4u8, 0..16u8, 0..3u32, 0..80usize, 0..2u32), 1..40)
    ) {
        let (left, mut right) = consumers([true, true]);
        let (mut next, mut offset) = (0, 0);
        for (kind, marks, skipped, length, msn) in packets {
            let kind = if kind < 2 { Kind::Send } else { Kind::Write };
            let mut packet = Packet::new(kind, 17, i64::from(0xFF_FFFE + next + skipped), marks);
            (packet.offset, packet.msn, packet.rkey) = (offset, msn, right.key);
            packet.address = ADDRESS + 256;
            let payload = vec![1; length];
            right.engine.receive_packet(&packet, Content::Bytes(&payload), left.route, 0);
            if right.engine.get(right.qp).is_none_or(|qp| qp.state == QpState::Err) {
                break;
            }
            if skipped == 0 {
                next += 1;
                offset = if marks & LAST == 0 { offset + u32::try_from(length).unwrap_or(0) } else { 0 };
            } else {
                prop_assert_eq!(right.heard().len(), 0);
            }
            right.heard();
        }
        prop_assert!(right.memory.is_whole());
    }
}

/// Make a queue complete something.
fn complete(engine: &mut Engine, queue: u32, status: Status) {
    let completion = Completion::of(0, status, WcOpcode::Recv, 1);
    engine.shared.complete(queue, completion);
}

#[test]
fn an_armed_queue_of_a_channel_puts_its_event_there() {
    let mut engine = Engine::new(None, false);
    let [first, second] = [4, 4].map(|entries| engine.completion_queue(entries, false));
    let (first, second) = (first.expect("entries"), second.expect("entries"));
    let channel = engine.shared.outbox.channel();
    for queue in [first, second] {
        engine.join(queue, Some(channel));
    }
    complete(&mut engine, first, Status::Success); // not armed
    for (queue, solicited_only) in [(second, true), (first, false)] {
        let found = engine.shared.completions.get_mut(queue).expect("made");
        found.arm(solicited_only);
        complete(&mut engine, queue, Status::Success);
        complete(&mut engine, queue, Status::WrFlushErr); // counts as solicited
    }
    let outbox = &mut engine.shared.outbox;
    assert!(outbox.events.is_empty(), "the owner did not ask");
    assert!(outbox.has_event(channel, Some(first)) && outbox.has_event(channel, None));
    let events = outbox.channels.get_mut(&channel).expect("made");
    let taken = [Some(first), None, None].map(|wanted| events.take(wanted));
    assert_eq!(taken, [Some(first), Some(second), None]);

    events.is_told = true;
    let found = engine.shared.completions.get_mut(first).expect("made");
    found.arm(false);
    complete(&mut engine, first, Status::Success);
    assert!(matches!(engine.shared.outbox.events[..], [Event::Completed(queue)] if queue == first));
    engine.close_completion_queue(first);
    assert!(!engine.shared.outbox.has_event(channel, None));
}
