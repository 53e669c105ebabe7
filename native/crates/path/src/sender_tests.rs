use std::collections::BTreeMap;
use std::io::IoSlice;

use super::*;
use crate::kinds::NO_EXTENSION;

const ONE: Owner = Owner(1);
const OTHER: Owner = Owner(2);

/// An `Sender` with accounts, as the shell keeps them, and the bytes it made.
struct World {
    sender: Sender,
    counters: Counters,
    accounts: BTreeMap<u64, usize>,
    given_up: BTreeMap<u64, u64>,
}

impl World {
    fn new(limits: Limits) -> Self {
        Self {
            sender: Sender::new(limits, 1),
            counters: Counters::default(),
            accounts: BTreeMap::new(),
            given_up: BTreeMap::new(),
        }
    }

    fn urds_node(limits: Limits) -> Self {
        let mut world = Self::new(limits);
        world.sender.ack_mode = AckMode::PeerAcknowledged;
        world
    }

    fn queue(&mut self, owner: Owner, target_port: u16, payload: &[u8]) {
        *self.accounts.entry(owner.0).or_default() += payload.len();
        let payload = Payload::copy_of(payload);
        self.sender
            .queue(Some(owner), 4000, target_port, payload, NO_EXTENSION);
    }

    fn release_accounts(&mut self) {
        let mut freed = Vec::new();
        self.sender.take_freed(&mut freed);
        for one in freed {
            *self.accounts.entry(one.owner.0).or_default() -= one.bytes;
            *self.given_up.entry(one.owner.0).or_default() += one.given_up;
        }
    }

    fn account(&mut self, owner: Owner) -> usize {
        self.release_accounts();
        self.accounts.get(&owner.0).copied().unwrap_or_default()
    }

    fn frame(&mut self, bytes_max: usize) -> Vec<(Header, Vec<u8>)> {
        let mut write_buffer = WriteBuffer::default();
        let made = self
            .sender
            .frame(&mut write_buffer, bytes_max, 77, &mut self.counters);
        assert_eq!(made, write_buffer.len());
        let mut slices = [IoSlice::new(&[]); 1024];
        let used = write_buffer.fill(0, &mut slices);
        let bytes: Vec<u8> = slices[..used]
            .iter()
            .flat_map(|one| one.iter().copied())
            .collect();
        frames_of(&bytes)
    }

    fn frame_all(&mut self) -> Vec<(Header, Vec<u8>)> {
        self.frame(usize::MAX >> 1)
    }
}

fn frames_of(mut bytes: &[u8]) -> Vec<(Header, Vec<u8>)> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let header = Header::peek(bytes).expect("a whole header");
        assert!(header.verify());
        let end = HEADER_BYTES + header.payload_bytes;
        frames.push((header, bytes[HEADER_BYTES..end].to_vec()));
        bytes = &bytes[end..];
    }
    frames
}

fn numbers(frames: &[(Header, Vec<u8>)]) -> Vec<u64> {
    frames.iter().map(|frame| frame.0.sequence).collect()
}

fn asking(frames: &[(Header, Vec<u8>)]) -> Vec<usize> {
    let asks = |frame: &(Header, Vec<u8>)| frame.0.flags & FLAG_ACK_REQUIRED != 0;
    (0..frames.len())
        .filter(|&index| asks(&frames[index]))
        .collect()
}

#[test]
fn a_message_becomes_a_header_and_its_payload() {
    let mut world = World::new(Limits::default());
    world.sender.checksum = true;
    world
        .sender
        .queue(Some(ONE), 4000, 5000, Payload::copy_of(b"hello"), [9; 16]);
    let frames = world.frame_all();
    let header = frames[0].0;
    let expected = Header {
        sequence: 1,
        ack: 77,
        payload_bytes: 5,
        source_port: 4000,
        target_port: 5000,
        extension: [9; 16],
        ..Header::default()
    };
    assert_eq!(
        header,
        Header {
            checksum: expected.computed_checksum(),
            ..expected
        }
    );
    assert_eq!(frames[0].1, b"hello");
    assert_eq!(world.counters.send_queued, 1);
    assert_eq!(world.counters.copy_from_user, 5);
}

#[test]
fn a_write_ends_with_the_message_that_reaches_its_bound() {
    let mut world = World::new(Limits::default());
    for _ in 0..10 {
        world.queue(ONE, 5000, &[0; 52]);
    }
    assert_eq!(numbers(&world.frame(300)), [1, 2, 3]);
    assert_eq!(numbers(&world.frame(301)), [4, 5, 6, 7]);
    assert_eq!(
        (world.sender.position, world.sender.pending_bytes),
        (700, 300)
    );
    assert_eq!(numbers(&world.frame_all()), [8, 9, 10]);
    assert_eq!(
        (world.sender.message_count(), world.sender.pending_bytes),
        (10, 0)
    );
}

#[test]
fn every_so_many_messages_one_asks() {
    let limits = Limits {
        unacked_packets_max: 3,
        ..Limits::default()
    };
    let mut world = World::urds_node(limits);
    for _ in 0..8 {
        world.queue(ONE, 5000, b"x");
    }
    assert_eq!(asking(&world.frame_all()), [2, 5]);
    assert_eq!(world.counters.send_ack_required, 2);
    // Two are out since the last request; with none out the count restarts.
    world.queue(ONE, 5000, b"x");
    assert_eq!(asking(&world.frame_all()), [0]);
    assert!(world.sender.handle_peer_acknowledged(9));
    world.queue(ONE, 5000, b"x");
    world.queue(ONE, 5000, b"x");
    assert_eq!(asking(&world.frame_all()), [0_usize; 0]);
}

#[test]
fn so_many_bytes_ask_and_so_does_the_last_when_wanted() {
    let limits = Limits {
        unacked_bytes_max: 100,
        ..Limits::default()
    };
    let mut world = World::urds_node(limits);
    for _ in 0..4 {
        world.queue(ONE, 5000, &[0; 50]);
    }
    assert_eq!(asking(&world.frame_all()), [1, 3]);
    world.sender.acknowledgement_wanted = true;
    world.queue(ONE, 5000, b"x");
    world.queue(ONE, 5000, b"x");
    assert_eq!(asking(&world.frame(1)), [0_usize; 0]);
    assert!(world.sender.acknowledgement_wanted, "one is still to come");
    assert_eq!(asking(&world.frame_all()), [0]);
    assert!(!world.sender.acknowledgement_wanted);
}

#[test]
fn towards_others_nothing_asks() {
    for ack_mode in [AckMode::NotYet, AckMode::StreamAcknowledged] {
        let mut world = World::new(Limits {
            unacked_packets_max: 1,
            ..Limits::default()
        });
        world.sender.ack_mode = ack_mode;
        world.sender.acknowledgement_wanted = true;
        world.queue(ONE, 5000, b"x");
        assert_eq!(asking(&world.frame_all()), [0_usize; 0]);
    }
}

#[test]
fn retransmits_keep_their_numbers_and_go_first() {
    let mut world = World::urds_node(Limits::default());
    for _ in 0..3 {
        world.queue(ONE, 5000, b"old");
    }
    world.frame_all();
    world.sender.end_stream();
    world.queue(ONE, 5000, b"new");
    assert_eq!(numbers(&world.frame(51 * 2)), [1, 2]);
    world.sender.end_stream();
    let frames = world.frame_all();
    assert_eq!(numbers(&frames), [1, 2, 3, 4]);
    let flags: Vec<u8> = frames.iter().map(|frame| frame.0.flags).collect();
    assert_eq!(flags, [6, 6, 6, 0]);
    assert_eq!(
        (
            world.counters.send_retransmitted,
            world.counters.send_queued
        ),
        (5, 4)
    );
    assert_eq!(world.sender.position, 51 * 4);
}

#[test]
fn an_acknowledgement_frees_and_one_of_the_future_does_not() {
    let mut world = World::urds_node(Limits::default());
    for (owner, payload) in [(ONE, "a"), (ONE, "bb"), (OTHER, ""), (ONE, "dddd")] {
        world.queue(owner, 5000, payload.as_bytes());
    }
    world.frame_all();
    assert!(!world.sender.handle_peer_acknowledged(5));
    assert!(!world.sender.has_freed());
    assert!(world.sender.handle_peer_acknowledged(3));
    let mut freed = vec![Freed {
        owner: ONE,
        bytes: 99,
        given_up: 0,
    }];
    world.sender.take_freed(&mut freed);
    assert_eq!(
        freed,
        [
            Freed {
                owner: ONE,
                bytes: 3,
                given_up: 0
            },
            Freed {
                owner: OTHER,
                bytes: 0,
                given_up: 0
            }
        ]
    );
    assert!(!world.sender.has_freed());
    assert_eq!(world.sender.message_count(), 1);
}

#[test]
fn a_control_message_goes_ahead_and_a_probe_takes_the_place_of_another() {
    let mut world = World::new(Limits::default());
    world.queue(ONE, 5000, b"new");
    world.sender.queue_ahead(1, 0, [3; 16]);
    world.sender.forget_probes();
    assert_eq!(world.sender.pending_bytes, 51);
    world.sender.queue_ahead(0, 4000, [3; 16]);
    world.sender.queue_ahead(1, 0, [4; 16]);
    let ports: Vec<_> = world
        .frame_all()
        .iter()
        .map(|frame| (frame.0.source_port, frame.0.target_port))
        .collect();
    assert_eq!(ports, [(1, 0), (0, 4000), (4000, 5000)]);
    world.sender.forget_probes();
    assert_eq!(
        world
            .sender
            .sent_rows()
            .map(|row| row.sequence)
            .collect::<Vec<_>>(),
        [2, 3]
    );
}

#[test]
fn cancelling_takes_from_all_queues() {
    let mut world = World::new(Limits::default());
    world.queue(ONE, 5000, b"repeat");
    world.queue(ONE, 6000, b"to another");
    world.frame_all();
    world.sender.end_stream();
    world.frame(1);
    world.queue(ONE, 5000, b"unsent");
    world.queue(OTHER, 5000, b"not mine");
    assert_eq!(world.sender.cancel(ONE, Some(5000)), 2);
    assert_eq!((world.account(ONE), world.account(OTHER)), (10, 8));
    assert!(world.sender.holds(Some(ONE)));
    assert_eq!(world.sender.cancel(ONE, None), 1);
    assert!(!world.sender.holds(Some(ONE)) && world.sender.holds(None));
    assert_eq!(world.account(ONE), 0);
    assert_eq!(numbers(&world.frame_all()), [3]);
    assert_eq!(world.sender.cancel(ONE, None), 0);
    assert!(!world.sender.has_freed());
}

#[test]
fn dropping_tells_owners_and_counts_no_control_message() {
    let mut world = World::new(Limits::default());
    world.queue(ONE, 5000, b"unacked");
    world.sender.queue_ahead(0, 4000, NO_EXTENSION);
    world.frame_all();
    world.sender.end_stream();
    world.queue(ONE, 5000, b"");
    let fence = world.sender.fence();
    assert_eq!(world.sender.drop_all(), 2);
    assert!(fence.is_open());
    assert_eq!((world.account(ONE), world.given_up[&1]), (0, 2));
    assert_eq!(
        (world.sender.message_count(), world.sender.pending_bytes),
        (0, 0)
    );
    assert_eq!(world.sender.sequence_next, 3);
}

#[test]
fn a_fence_opens_when_all_before_it_is_with_the_peer() {
    let mut world = World::urds_node(Limits::default());
    assert!(world.sender.fence().is_open(), "nothing is before it");
    world.queue(ONE, 5000, b"1");
    world.queue(ONE, 5000, b"2");
    let fence = world.sender.fence();
    world.queue(ONE, 5000, b"3");
    let later = world.sender.fence();
    world.frame(60);
    world.sender.end_stream();
    world.frame(49);
    world.sender.handle_peer_acknowledged(1);
    assert!(!fence.is_open(), "the second is still to be repeated");
    world.frame_all();
    world.sender.handle_peer_acknowledged(2);
    assert!(fence.is_open() && !later.is_open());
    assert_eq!(world.sender.cancel(ONE, None), 1);
    assert!(later.is_open() && !world.sender.has_fences());
}

#[test]
fn a_fence_holds_back_what_is_new_and_nothing_else() {
    let mut world = World::new(Limits::default());
    world.queue(ONE, 5000, b"old");
    world.frame_all();
    world.sender.end_stream();
    world.queue(ONE, 5000, b"new");
    let fence = Fence::new();
    world.sender.fence = Some(fence.clone());
    assert_eq!(numbers(&world.frame_all()), [1]);
    assert!(world.sender.is_gated());
    assert_eq!(world.counters.mprds_catchup_tx0_retries, 1);
    fence.open();
    assert_eq!(numbers(&world.frame_all()), [2]);
    assert_eq!(world.counters.mprds_catchup_tx0_retries, 1);
}

#[test]
fn an_idle_path_keeps_little_memory() {
    let mut world = World::urds_node(Limits::default());
    for (messages, idle_calls) in [(5000, 1), (10_000, IDLE_CALLS_PER_RELEASE)] {
        for _ in 0..messages {
            world.queue(ONE, 5000, b"x");
        }
        world.frame_all();
        let newest = world.sender.sequence_next - 1;
        world.sender.handle_peer_acknowledged(newest);
        (0..idle_calls).for_each(|_| world.sender.rest());
    }
    assert!(world.sender.queue.capacity() < 100);
    assert!(size_of::<Queued>() <= 144);
}

#[path = "sender_model.rs"]
mod model;
