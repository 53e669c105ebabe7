//! Work of two engines through a channel.

mod support;

use std::io::Read;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use support::{ADDRESS, End, GIDS, GUARD_BYTES, MTU_BYTES, REGION_BYTES, pair, pair_with_memory};
use urds_channel::channel_memory::ChannelMemory;
use urds_channel::slots::{Fields, Freed, SLOT_BYTES, SLOTS, SlotMemory, flags, kinds};
use urds_channel::sys::thread;
use urds_verbs::memory::{Memory, Payload};
use urds_verbs::numbers::{Opcode, Status, WcOpcode};
use urds_verbs::work::{Completion, Extra, Operands, SendWork};
use urds_verbs_shm::{Event, Region};

/// Longer than a packet.
const LENGTH: usize = 60_000;

/// Let both sides work until nothing moves; return what completed at each.
fn run(ends: &mut [End; 2]) -> [Vec<Completion>; 2] {
    let mut found = [Vec::new(), Vec::new()];
    let mut quiet = 0;
    while quiet < 4 {
        let mut moved = false;
        for (end, found) in ends.iter_mut().zip(&mut found) {
            moved |= end.progress();
            while let Some(completion) = end.poll() {
                found.push(completion);
                moved = true;
            }
        }
        quiet = if moved { 0 } else { quiet + 1 };
    }
    found
}

fn content(end: &End, at: usize, length: usize) -> Vec<u8> {
    let mut found = vec![0; length];
    end.memory.read(at, &mut found);
    found
}

fn fill(end: &End, at: usize, length: usize, first: u8) -> Vec<u8> {
    let content: Vec<u8> = (0..length)
        .map(|at| first.wrapping_add((at % 251).to_le_bytes()[0]))
        .collect();
    end.memory.write(at, &content);
    content
}

fn ids(completions: &[Completion]) -> Vec<(u64, Status)> {
    completions
        .iter()
        .map(|one| (one.wr_id, one.status))
        .collect()
}

#[test]
fn messages_of_all_lengths_come_whole_and_in_order() {
    let (mut ends, _heard) = pair();
    let lengths = [0, 1, 80, 81, 4096, 4097, 32 << 10, 200_000];
    let mut expected = Vec::new();
    for (id, &length) in (0..).zip(&lengths) {
        ends[1].receive(id, 256 << 10, 200_000);
        expected = fill(&ends[0], 0, length, u8::try_from(id).unwrap());
        ends[0].send(100 + id, 0, length);
        let [sent, received] = run(&mut ends);
        assert_eq!(ids(&sent), [(100 + id, Status::Success)]);
        assert_eq!(ids(&received), [(id, Status::Success)]);
        assert_eq!(received[0].byte_len, length as u64);
        assert_eq!(content(&ends[1], 256 << 10, length), expected);
    }
    assert!(!expected.is_empty());
}

#[test]
fn each_side_cuts_messages_where_it_likes() {
    for mtus in [[256 << 10, MTU_BYTES], [MTU_BYTES, 256 << 10]] {
        let (mut ends, _heard, _memory) = pair_with_memory(mtus);
        ends[1].receive(1, 256 << 10, 200_000);
        let expected = fill(&ends[0], 0, 200_000, 5);
        ends[0].send(1, 0, 200_000);
        assert_eq!(ids(&run(&mut ends)[1]), [(1, Status::Success)], "{mtus:?}");
        assert_eq!(content(&ends[1], 256 << 10, 200_000), expected);
    }
}

#[test]
fn reads_and_atomics_go_there_and_back() {
    let (mut ends, _heard) = pair();
    let expected = fill(&ends[1], 8192, 100_000, 9);
    let mut read = SendWork::new(1, Opcode::RdmaRead, ends[0].piece(0, 100_000));
    (read.remote_addr, read.rkey) = (ADDRESS + 8192, ends[1].key);
    ends[0].post(read);
    ends[1].memory.write(0, &40u64.to_ne_bytes());
    let mut add = SendWork::new(2, Opcode::FetchAdd, ends[0].piece(200_000, 8));
    (add.remote_addr, add.rkey) = (ADDRESS, ends[1].key);
    let two = Operands {
        compare_add: 2,
        ..Operands::default()
    };
    add.extra = Extra::Operands(Box::new(two));
    ends[0].post(add);
    let mut swap = SendWork::new(3, Opcode::CompSwap, ends[0].piece(200_008, 8));
    (swap.remote_addr, swap.rkey) = (ADDRESS, ends[1].key);
    let all_ones = Operands {
        compare_add: 42,
        swap: u64::MAX,
        ..Operands::default()
    };
    swap.extra = Extra::Operands(Box::new(all_ones));
    ends[0].post(swap);
    ends[0].flush();
    let [sent, _] = run(&mut ends);
    assert_eq!(ids(&sent), [1, 2, 3].map(|id| (id, Status::Success)));
    assert_eq!(content(&ends[0], 0, 100_000), expected);
    let before = [40u64, 42].map(u64::to_ne_bytes).concat();
    assert_eq!(content(&ends[0], 200_000, 16), before);
    assert_eq!(content(&ends[1], 0, 8), u64::MAX.to_ne_bytes());
}

#[test]
fn more_than_the_channel_holds_waits_for_room() {
    let (mut ends, _heard) = pair();
    for id in 0..100 {
        ends[1].receive(id, 0, LENGTH);
        ends[0].send(id, 0, LENGTH);
    }
    let sent = ends[0].channels.counters();
    assert!(sent.waits_for_room > 0);
    let [sent, received] = run(&mut ends);
    let expected: Vec<_> = (0..100).map(|id| (id, Status::Success)).collect();
    assert_eq!((ids(&sent), ids(&received)), (expected.clone(), expected));
    assert_eq!(
        ends[0].channels.packets_lost + ends[1].channels.packets_lost,
        0
    );
}

#[test]
fn room_found_for_one_is_told_to_those_that_wait() {
    let (mut ends, _heard) = pair();
    for id in 0..100 {
        ends[1].receive(id, 0, LENGTH);
        ends[0].send(id, 0, LENGTH);
    }
    while ends[1].progress() {}
    let channel = ends[0].channels.channel(&GIDS[1]).expect("open");
    assert!(channel.has_room(8), "for another queue pair");
    assert!(channel.has_room_again(8), "for those that wait");
}

#[test]
fn an_acknowledgement_rides_on_the_answer() {
    let (mut ends, _heard) = pair();
    for id in 0..200 {
        let side = usize::from(id % 2 == 1);
        ends[1 - side].receive(id, 0, 64);
        ends[side].send(id, 0, 8);
        assert!(ends[1 - side].progress());
    }
    for (end, other) in [(0, 1), (1, 0)] {
        let counters = ends[end].channels.counters();
        assert_eq!(counters.slots_sent, 100, "no slot for an acknowledgement");
        assert_eq!(ends[other].channels.counters().slots_received, 100);
    }
    // The last one has no answer: two looks that find nothing send it.
    assert!(!ends[0].progress());
    assert_eq!(ends[0].channels.counters().slots_sent, 100);
    assert!(!ends[0].progress());
    assert_eq!(ends[0].channels.counters().slots_sent, 101);
    let [_, last] = run(&mut ends);
    assert_eq!(last.last().map(|done| done.wr_id), Some(199));
}

#[test]
fn a_side_knows_the_processor_on_which_its_peer_published_last() {
    let (mut ends, _heard) = pair();
    let number = (0..1000)
        .find_map(|id| {
            let before = thread::processor().expect("this system tells it");
            ends[0].send(id, 0, 8);
            ends[1].receive(id, 0, 8);
            run(&mut ends);
            (thread::processor() == Some(before)).then_some(before)
        })
        .expect("one of many is not moved meanwhile");
    assert!(ends[1].channels.shares_processor(number));
    assert!(!ends[1].channels.shares_processor(number + 1));
}

#[test]
fn many_unanswered_packets_are_acknowledged_at_once() {
    let (mut ends, _heard) = pair();
    for id in 0..40 {
        ends[1].receive(id, 0, 64);
    }
    for id in 0..40 {
        ends[0].send(id, 0, 8);
        assert!(ends[1].progress());
    }
    assert_eq!(ends[1].channels.counters().slots_sent, 1, "one for 32");
}

#[test]
fn acknowledgements_ride_to_their_own_queue_pair() {
    let (mut ends, _heard, shared) = pair_with_memory([MTU_BYTES; 2]);
    let channel = ends[0].channels.channel(&GIDS[1]).unwrap();
    channel.acknowledge(0x55, 7, 1); // of no queue pair that sends here
    channel.acknowledge(0x11, 9, 1);
    let expected = [(flags::ACKNOWLEDGES, 9_u32), (0, 0)];
    for (slot, expected) in expected.into_iter().enumerate() {
        ends[0].send(1, 0, 8);
        let mut fields = [0; 40];
        shared
            .direction(0)
            .copy_out(slot * SLOT_BYTES + 8, &mut fields);
        assert_eq!(fields[1] & flags::ACKNOWLEDGES, expected.0);
        assert_eq!(fields[20..24], expected.1.to_ne_bytes());
    }
}

#[test]
fn a_quiet_peer_acknowledges_unsignalled_sends() {
    let (mut ends, _heard) = pair();
    for round in 0..300 {
        for id in 0..5 {
            ends[1].receive(id, 0, 64);
            let mut work = SendWork::new(id, Opcode::Send, ends[0].piece(0, 8));
            work.flags = 0;
            ends[0].post(work); // the queue has room: all before was acknowledged
        }
        ends[0].flush();
        let [sent, received] = run(&mut ends);
        assert_eq!((sent.len(), received.len()), (0, 5), "round {round}");
        let queue_pair = ends[0].engine.get(ends[0].number).unwrap();
        assert_eq!(queue_pair.outstanding_requests(), 0);
    }
}

fn fill_up(end: &mut End) {
    let to_none = Fields {
        kind: kinds::DATAGRAM,
        flags: flags::FIRST | flags::LAST,
        target: 0x77,
        ..Fields::default()
    };
    let channel = end.channels.channel(&GIDS[0]).expect("open");
    while channel.put(to_none, Payload::Bytes(&[])) {}
}

#[test]
fn an_acknowledgement_that_finds_no_room_has_the_peer_ring() {
    for is_full_before in [true, false] {
        let (mut ends, mut heard) = pair();
        ends[1].receive(1, 0, 64);
        ends[0].send(1, 0, 8);
        if is_full_before {
            fill_up(&mut ends[1]);
        }
        assert!(ends[1].progress());
        fill_up(&mut ends[1]);
        assert_eq!(ends[1].channels.waiting_acks(), 1);
        assert!(ends[1].channels.sleep(), "nothing came");
        let mut bytes = [0; 8];
        while heard[0].read(&mut bytes).is_ok() {}
        while ends[0].progress() {}
        assert_eq!(heard[0].read(&mut bytes).unwrap(), 1, "there is room");
        assert!(ends[1].progress() && ends[1].channels.sleep());
        assert!(ends[0].progress());
        assert_eq!(ends[0].poll().map(|done| done.wr_id), Some(1));
    }
}

#[test]
fn a_side_that_sleeps_is_rung_once_and_sends_what_waits_before() {
    let (mut ends, mut heard) = pair();
    let mut byte = [9; 8];
    ends[1].receive(1, 0, 64);
    assert!(ends[1].channels.sleep());
    ends[0].send(1, 0, 8);
    assert_eq!(heard[0].read(&mut byte).unwrap(), 1);
    assert_eq!(byte[0], 0, "the byte of a doorbell");
    ends[0].send(2, 0, 8);
    assert!(heard[0].read(&mut byte).is_err(), "rung for once");
    assert!(!ends[1].channels.sleep(), "there is something");
    ends[1].receive(2, 0, 64);
    while ends[1].progress() {}
    assert!(ends[1].channels.sleep());
    assert!(ends[0].progress());
    assert_eq!(ends[0].poll().map(|done| done.wr_id), Some(1));
}

fn write(end: &End, id: u64, length: usize, opcode: Opcode, key: u32) -> SendWork {
    let mut work = SendWork::new(id, opcode, end.piece(0, length));
    (work.remote_addr, work.rkey) = (ADDRESS + 4096, key);
    work
}

/// Have side 0 map the region of side 1, as its answer to the request says.
fn map(ends: &mut [End; 2]) {
    let key = ends[1].key;
    let wanted = Event::Map(GIDS[1], 0x11, key);
    assert_eq!(ends[0].channels.events.pop_front(), Some(wanted));
    let region = Region {
        file: ends[1].file,
        address: ADDRESS,
        length: REGION_BYTES as u64,
        generation: 1,
    };
    assert_eq!(
        ends[0].channels.map(&GIDS[1], 0x11, key, Some(region)),
        Ok(())
    );
    assert!(
        ends[0]
            .channels
            .map(&GIDS[1], 0x11, key, Some(region))
            .is_err(),
        "once"
    );
}

#[test]
fn a_write_into_mapped_memory_is_there_without_its_bytes_in_a_slot() {
    let (mut ends, _heard) = pair();
    let key = ends[1].key;
    let expected = fill(&ends[0], 0, 100_000, 3);
    ends[0].post(write(&ends[0], 1, 100_000, Opcode::RdmaWrite, key));
    ends[0].flush();
    assert_eq!(ids(&run(&mut ends)[0]), [(1, Status::Success)]);
    assert_eq!(content(&ends[1], 4096, 100_000), expected, "in packets");
    map(&mut ends);
    let before = ends[0].channels.counters().slots_sent;
    let expected = fill(&ends[0], 0, 100_000, 77);
    ends[1].receive(5, 0, 0);
    ends[0].post(write(&ends[0], 2, 100_000, Opcode::RdmaWriteWithImm, key));
    ends[0].flush();
    assert_eq!(content(&ends[1], 4096, 100_000), expected, "placed at once");
    let [sent, received] = run(&mut ends);
    assert_eq!(ids(&sent), [(2, Status::Success)]);
    assert_eq!(
        (received[0].opcode, received[0].byte_len),
        (WcOpcode::RecvRdmaWithImm, 100_000)
    );
    assert_eq!(ends[0].channels.counters().slots_sent, before + 1);
    // Withdrawn: packets again.
    ends[1].memory.0.long(0).store(2, Ordering::Relaxed);
    ends[0].post(write(&ends[0], 3, 100_000, Opcode::RdmaWrite, key));
    ends[0].flush();
    assert_eq!(ids(&run(&mut ends)[0]), [(3, Status::Success)]);
    assert!(ends[0].channels.counters().slots_sent > before + 2);
    assert!(!ends[0].channels.channel(&GIDS[1]).unwrap().is_placing());
}

#[test]
fn a_peer_that_breaks_the_format_is_told_once_and_read_no_more() {
    let (mut ends, _heard, shared) = pair_with_memory([MTU_BYTES; 2]);
    ends[0].send(1, 0, 8);
    // A kind that there is none of.
    shared.direction(0).copy_in(8, &[77]);
    assert!(!ends[1].progress() && !ends[1].progress());
    let told = std::mem::take(&mut ends[1].channels.events);
    assert!(matches!(told.front(), Some(Event::Error(gid, _)) if *gid == GIDS[0]));
    assert_eq!(told.len(), 1);
    ends[1].channels.detach(&GIDS[0]);
    ends[1].send(2, 0, 8);
    assert_eq!(
        ends[1].channels.events.pop_front(),
        Some(Event::Connect(GIDS[0]))
    );
}

#[test]
fn messages_of_the_connection_manager_are_events() {
    let (mut ends, _heard) = pair();
    assert!(
        ends[0]
            .channels
            .send_message(&GIDS[1], 0x8001_0000, b"request")
    );
    assert!(ends[1].progress());
    let expected = Event::Message(GIDS[0], 0x8001_0000, b"request".to_vec());
    assert_eq!(ends[1].channels.events.pop_front(), Some(expected));
    assert!(!ends[0].channels.send_message(&[1; 16], 1, b"nowhere"));
}

proptest! {
    /// Words flipped in the memory of the channel between any two steps of both sides: nothing outside
    /// of what keys allow changes, and each side ends the channel or goes on.
    #[test]
    fn hostile_memory_changes_nothing_outside_of_regions(
        steps in proptest::collection::vec((0u8..8, 0usize..5000, any::<u64>()), 1..300),
    ) {
        let (mut ends, _heard, shared) = pair_with_memory([MTU_BYTES; 2]);
        for end in &ends { fill(end, 0, 8192, 1); }
        let guards = [guard(&ends[0]), guard(&ends[1])];
        for (call, with, value) in steps {
            let side = with % 2;
            match call {
                0 => ends[side].receive(value, with, 4096),
                1 | 2 => {
                    let key = ends[1 - side].key;
                    let kinds = [Opcode::Send, Opcode::RdmaWrite, Opcode::RdmaRead, Opcode::FetchAdd];
                    let opcode = kinds[with % 4];
                    let length = if opcode == Opcode::FetchAdd { 8 } else { with };
                    let mut work = write(&ends[side], value, length, opcode, key);
                    work.rkey ^= u32::from(with % 7 == 0);
                    let _ = ends[side].try_post(work);
                    ends[side].flush();
                }
                3 | 4 => { ends[side].progress(); }
                5 => { ends[side].channels.sleep(); }
                _ => spoil(&shared, side, with, value),
            }
            while ends[side].poll().is_some() {}
        }
        prop_assert_eq!([guard(&ends[0]), guard(&ends[1])], guards);
    }
}

/// Overwrite a word of what a side writes: near the slots in use, in the ring, or a word of sleep.
fn spoil(shared: &ChannelMemory, side: usize, with: usize, value: u64) {
    let direction = shared.direction(side);
    let slot = with % 8 * SLOT_BYTES;
    match with % 6 {
        0 => direction.copy_in(slot + with % 16 * 8, &value.to_ne_bytes()),
        // One field, with bits that mean something.
        1 => direction.copy_in(slot + 8 + with % 40, &[value.to_ne_bytes()[0] & 0x73]),
        2 => {
            let at = SLOTS * SLOT_BYTES + with % 512 * 8;
            direction.copy_in(at, &value.to_ne_bytes());
        }
        3 => {
            // An address about the end of the region.
            let address = ADDRESS + REGION_BYTES as u64 - 64 + value % 128;
            direction.copy_in(slot + 32, &address.to_ne_bytes());
        }
        4 => {
            let ordinal = (with as u64 % 8 + 1) << 32;
            let stamp = direction.stamp(with % 8);
            stamp.store(ordinal | (value % 300_000), Ordering::Relaxed);
        }
        _ => {
            let told = direction.freed(Freed::Slots);
            let changed = told.load(Ordering::Relaxed).wrapping_add(value % 3);
            told.store(changed, Ordering::Relaxed);
        }
    }
}

/// Return what lies behind the region in its memory.
fn guard(end: &End) -> Vec<u8> {
    content(end, REGION_BYTES, GUARD_BYTES)
}
