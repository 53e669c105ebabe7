//! Two streams on two engines: bytes come whole and in order, and hostile words cut.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;
use urds_stream::{Shut, StreamCore, StreamSettings};
use urds_stream_link::{Attention, ENDED, Link, News, READABLE, SendContent, SharedLink, WRITABLE};
use urds_stream_link::{attach, post_pending, send};
use urds_verbs::Engine;
use urds_verbs::attributes::{Cap, Field};
use urds_verbs::consumer::Post;
use urds_verbs::memory::{Extent, Payload};
use urds_verbs::numbers::Opcode;
use urds_verbs::packets::{self, Packet};
use urds_verbs::queue_pair::Outlet;
use urds_verbs::work::{Doubts, Opcoded, Pieces, Route, SendWork};

mod support;

use support::queue_pairs::{Guarded, lead, link_of, route_of, setup};
use support::{Ram, WRITE_ACCESS, region};

const CAP: Cap = Cap {
    max_send_wr: 64,
    max_recv_wr: 0,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline_data: 0,
};
const ADDRESS: u64 = 0x1_0000;

/// Packets under way, which find room or not.
#[derive(Default)]
struct Wire {
    packets: VecDeque<Vec<u8>>,
    is_full: bool,
}

impl Outlet for Wire {
    fn packet(&mut self, _to: &Route, packet: &Packet, payload: Payload<'_>) {
        let mut bytes = Vec::new();
        packets::emit(packet, payload, false, &mut bytes);
        self.packets.push_back(bytes);
    }

    fn has_room(&mut self, _to: &Route) -> bool {
        !self.is_full
    }
}

struct Side {
    engine: Engine,
    number: u32,
    link: SharedLink<Ram>,
    attention: Arc<Attention>,
    news: Arc<News>,
    wire: Wire,
    route: Route,
    address: u64,
}

impl Side {
    fn new(qpn: u8, settings: StreamSettings) -> Self {
        let mut engine = Engine::new(None, false);
        let cq = engine.completion_queue(1, false).expect("one entry");
        let number = engine.queue_pair(setup(qpn, cq, CAP, link_of(4096)));
        let news = Arc::new(News::default());
        let attention = Arc::new(Attention::new(qpn.into(), Arc::clone(&news)));
        let address = ADDRESS;
        let mut made = Self {
            link: Arc::new(Mutex::new(Link::new(
                StreamCore::new(
                    settings,
                    region(&mut engine, settings.region_bytes(), address),
                ),
                Arc::clone(&attention),
                usize::from(settings.receive_queue),
            ))),
            engine,
            number,
            attention,
            news,
            wire: Wire::default(),
            route: route_of(qpn),
            address,
        };
        attach(&mut made.engine, number, &made.link).expect("in RESET");
        made
    }

    fn lead(&mut self, peer: Route, peer_qpn: i64) {
        let numbers = [
            (Field::AccessFlags, WRITE_ACCESS),
            (Field::RnrRetry, 7),
            (Field::MinRnrTimer, 12),
            (Field::DestQpn, peer_qpn),
        ];
        let led = lead(&mut self.engine, self.number, peer, &numbers);
        assert_eq!(led, Ok(()));
    }

    fn send(&mut self, bytes: &[u8]) -> usize {
        let content = SendContent::Bytes(bytes);
        let taken = send(
            &mut self.engine,
            self.number,
            &self.link,
            &content,
            true,
            &mut self.wire,
        );
        taken.expect("the stream is open")
    }

    fn receive(&mut self, wanted: usize) -> Vec<u8> {
        let mut got = Vec::new();
        let grown = {
            let mut link = self.link.lock();
            link.core
                .receive_into(wanted, false, &mut |ram: &Ram, at, length| {
                    let begin = got.len();
                    got.resize(begin + length, 0);
                    urds_stream::Memory::read(ram, at, &mut got[begin..]);
                });
            link.update();
            link.core.wanted_ring()
        };
        if let Some(bytes) = grown {
            self.address += 1 << 24;
            let made = region(&mut self.engine, bytes, self.address);
            self.link.lock().core.grow(made);
        }
        post_pending(&mut self.engine, self.number, &self.link, &mut self.wire);
        got
    }
}

fn pair(settings: StreamSettings) -> [Side; 2] {
    let mut sides = [Side::new(16, settings), Side::new(17, settings)];
    let routes = [sides[0].route, sides[1].route];
    sides[0].lead(routes[1], 17);
    sides[1].lead(routes[0], 16);
    let data = [0, 1].map(|side: usize| *sides[side].link.lock().core.connect_data());
    for side in [0, 1] {
        let mut link = sides[side].link.lock();
        link.core.adopt(&data[1 - side]).expect("data of ours");
        link.begin();
    }
    sides
}

/// Move packets until none is left.
fn exchange(sides: &mut [Side; 2]) {
    let mut moved = true;
    while std::mem::take(&mut moved) {
        for from in [0, 1] {
            let source = sides[from].route;
            let side = &mut sides[from];
            side.engine.resume();
            while side.engine.poll(0, &mut side.wire) {}
            while let Some(bytes) = sides[from].wire.packets.pop_front() {
                sides[1 - from].engine.receive(&bytes, source, 0);
                moved = true;
            }
        }
    }
}

fn pattern(from: usize, length: usize) -> Vec<u8> {
    (from..from + length)
        .map(|at| (at % 251).to_le_bytes()[0])
        .collect()
}

#[test]
fn bytes_and_the_end_come_through_and_the_word_says_so() {
    let mut sides = pair(StreamSettings::default());
    exchange(&mut sides);
    assert_eq!(sides[1].attention.word() & (READABLE | WRITABLE), WRITABLE);
    assert_eq!(sides[0].send(b"hello"), 5);
    exchange(&mut sides);
    assert_eq!(sides[1].attention.word() & READABLE, READABLE);
    assert_eq!(sides[1].receive(100), b"hello");
    assert_eq!(sides[1].attention.word() & READABLE, 0);
    {
        let mut link = sides[0].link.lock();
        link.core.lifecycle.shut_down(Shut::RdWr);
        link.update();
    }
    sides[0].receive(0);
    exchange(&mut sides);
    assert_eq!(sides[1].attention.word() & ENDED, ENDED);
    assert_eq!(sides[1].news.take(), [17], "the end is told unasked");
    assert!(sides[0].link.lock().core.wants_disconnect());
    assert_eq!(sides[0].news.take(), [16]);
}

#[test]
fn nothing_leaves_before_the_connection_is_known_and_early_words_are_kept() {
    let settings = StreamSettings {
        receive_queue: 2,
        ..StreamSettings::default()
    };
    let mut sides = [Side::new(16, settings), Side::new(17, settings)];
    let routes = [sides[0].route, sides[1].route];
    sides[0].lead(routes[1], 17);
    sides[1].lead(routes[0], 16);
    let data = [0, 1].map(|side: usize| *sides[side].link.lock().core.connect_data());
    sides[0].link.lock().core.adopt(&data[1]).expect("ours");
    assert_eq!(sides[0].send(b"early"), 5);
    exchange(&mut sides);
    assert_eq!(sides[1].engine.counters.received, 0);
    sides[0].link.lock().begin();
    sides[0].receive(0);
    exchange(&mut sides);
    assert!(sides[1].engine.counters.received > 0);
    let mut link = sides[1].link.lock();
    assert!(!link.core.is_readable() && link.cut.is_none());
    link.core.adopt(&data[0]).expect("ours");
    link.begin();
    assert!(link.core.is_readable());
}

/// Write a word; without one post a SEND.
fn post(side: &mut Side, word: Option<u32>) {
    if word.is_none() {
        let send = Opcoded::Known(Box::new(SendWork::new(0, Opcode::Send, Pieces::None)));
        let posted = side.engine.post_send(side.number, send, &Doubts::default());
        return posted.expect("it is connected");
    }
    let post = Post {
        word,
        payload: Payload::Bytes(&[]),
        address: 0,
        rkey: 0,
        is_apart: true,
    };
    assert!(side.engine.post(side.number, &post, &mut side.wire));
}

#[test]
fn a_peer_that_breaks_the_protocol_is_cut_once_with_its_reason() {
    for (word, reason) in [
        (None, "RECV where a write"),
        (Some(1 << 29), "operation"),
        (Some(1 << 20), "message of 1048576 bytes"),
        (Some(0), "message of 0 bytes"),
        (Some(4 << 29 | 0xFFFF), "limit"),
        (Some(6 << 29 | 9), "iomap slot 9"),
    ] {
        let mut sides = pair(StreamSettings::default());
        exchange(&mut sides);
        sides[1].news.take();
        post(&mut sides[0], word);
        post(&mut sides[0], Some(0));
        exchange(&mut sides);
        let cut = sides[1].link.lock().cut.clone().expect("it is cut");
        assert!(cut.contains(reason), "{cut}");
        assert_eq!(sides[1].news.take(), [17]);
    }
}

#[test]
fn a_write_that_the_peer_rejects_is_a_reason_to_cut() {
    let mut sides = pair(StreamSettings::default());
    exchange(&mut sides);
    let post = Post {
        word: None,
        payload: Payload::Bytes(&[1; 8]),
        address: 1,
        rkey: 99,
        is_apart: true,
    };
    let side = &mut sides[0];
    assert!(side.engine.post(side.number, &post, &mut side.wire));
    exchange(&mut sides);
    let cut = sides[0].link.lock().cut.clone();
    assert_eq!(cut.as_deref(), Some("a write failed: REM_ACCESS_ERR"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Sends and receives of any size, whatever room the wire has.
    #[test]
    fn bytes_come_whole_and_in_order(
        steps in prop::collection::vec((0..2usize, 1..100_000usize, 0..4u8), 1..60),
        ring in 1..64usize,
    ) {
        let settings = StreamSettings {
            ring_first_bytes: ring * 512,
            ring_max_bytes: 1 << 16,
            send_bytes: 1 << 15,
            chunk_max_bytes: 1 << 13,
            receive_queue: 16,
            ..StreamSettings::default()
        };
        let mut sides = pair(settings);
        let (mut sent, mut got) = ([0; 2], [0; 2]);
        for (from, length, what) in steps {
            if what == 0 {
                let bytes = sides[1 - from].receive(length);
                prop_assert!(bytes == pattern(got[from], bytes.len()));
                got[from] += bytes.len();
            } else {
                sent[from] += sides[from].send(&pattern(sent[from], length));
            }
            sides[from].wire.is_full = what == 1;
            if what != 3 {
                exchange(&mut sides);
            }
        }
        for side in &mut sides {
            side.wire.is_full = false;
        }
        for _ in 0..400 {
            if got == sent {
                break;
            }
            exchange(&mut sides);
            for from in [0, 1] {
                let bytes = sides[1 - from].receive(usize::MAX >> 1);
                prop_assert!(bytes == pattern(got[from], bytes.len()));
                got[from] += bytes.len();
            }
        }
        prop_assert_eq!(got, sent);
        prop_assert!(sides.iter().all(|side| side.link.lock().cut.is_none()));
    }

    /// Bytes of memory that changes meanwhile are read, never borrowed.
    #[test]
    fn bytes_of_a_buffer_are_copied_from_where_they_lie(at in 0..1000usize, length in 1..50_000usize) {
        let mut sides = pair(StreamSettings::default());
        exchange(&mut sides);
        let memory = Arc::new(Guarded::holding(&pattern(0, at + length)));
        let extent = Extent { memory: &*memory, at, length };
        let side = &mut sides[0];
        let content = SendContent::Memory(extent);
        let taken = send(
            &mut side.engine, side.number, &side.link, &content, true, &mut side.wire,
        );
        let taken = taken.expect("open");
        exchange(&mut sides);
        let got = sides[1].receive(length);
        prop_assert!(!got.is_empty() && got.len() <= taken);
        prop_assert!(got == pattern(at, got.len()));
    }
}
