use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::channel_memory::{ChannelMemory, FILE_BYTES};
use crate::sys::area;
use crate::sys::raw;
use crate::test_memory::Own;

impl Own {
    fn starting_at(slots: u64, position: u64) -> Self {
        let own = Self::new(Self::RING_BYTES);
        own.freed(Freed::Slots).store(slots, Ordering::Relaxed);
        own.freed(Freed::Ring).store(position, Ordering::Relaxed);
        own
    }

    fn read(&self, taken: &Taken) -> Vec<u8> {
        let mut payload = vec![0; taken.bytes];
        self.copy_out(taken.at, &mut payload);
        payload
    }
}

pub(super) fn send(psn: u32) -> Fields {
    Fields {
        kind: kinds::SEND,
        flags: flags::FIRST | flags::LAST,
        target: 7,
        psn: psn & 0x00FF_FFFF,
        msn: psn,
        ..Fields::default()
    }
}

pub(super) fn write(psn: u32) -> Fields {
    Fields {
        kind: kinds::WRITE,
        flags: flags::FIRST | flags::LAST | flags::ACKNOWLEDGES,
        address: u64::MAX - 5,
        key: 0xDEAD_BEEF,
        acknowledged: 0x00FF_FFFE,
        ..send(psn)
    }
}

pub(super) fn payload(psn: u32, bytes: usize) -> Vec<u8> {
    let first = psn.to_le_bytes()[0];
    (0..bytes)
        .map(|at| first.wrapping_add(at.to_le_bytes()[0]))
        .collect()
}

#[derive(Clone, Debug)]
enum Step {
    Put(usize),
    Take(usize),
    ReaderSleeps,
    WriterSleeps(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => prop_oneof![0usize..200, 0usize..10_241].prop_map(Step::Put),
        3 => (1usize..20).prop_map(Step::Take),
        1 => Just(Step::ReaderSleeps),
        1 => (0usize..10_241).prop_map(Step::WriterSleeps),
    ]
}

/// Two sides and what lies between them.
struct Pair {
    memory: Own,
    writer: Writer,
    reader: Reader,
    model: VecDeque<(Fields, Vec<u8>)>,
    sent: u32,
    reader_sleeps: bool,
    writer_sleeps: bool,
}

impl Pair {
    fn starting_at(slots: u64, position: u64) -> Self {
        Self {
            memory: Own::starting_at(slots, position),
            writer: Writer::starting_at(slots, position),
            reader: Reader::starting_at(slots, position),
            model: VecDeque::new(),
            sent: 0,
            reader_sleeps: false,
            writer_sleeps: false,
        }
    }

    fn next(&mut self) -> Fields {
        self.sent += 1;
        if self.sent.is_multiple_of(3) {
            write(self.sent)
        } else {
            send(self.sent)
        }
    }

    fn put(&mut self, bytes: usize) -> bool {
        let fields = self.next();
        let content = payload(fields.psn, bytes);
        let memory = &self.memory;
        let has_room = self.writer.has_room(memory, bytes).expect("honest");
        let fill = |at| memory.copy_in(at, &content);
        let is_put = self
            .writer
            .put(memory, &fields, bytes, fill)
            .expect("honest");
        assert_eq!(is_put, has_room);
        if is_put {
            self.model.push_back((fields, content));
        }
        self.check_doorbell(is_put);
        is_put
    }

    fn check_doorbell(&mut self, is_published: bool) {
        assert_eq!(self.writer.must_ring(&self.memory), self.reader_sleeps);
        assert!(is_published || !self.reader_sleeps || self.model.is_empty());
        self.reader_sleeps = false;
    }

    fn take(&mut self) -> bool {
        let rung = Cell::new(0);
        let mut doorbell = || rung.set(rung.get() + 1);
        let taken = self
            .reader
            .take(&self.memory, &mut doorbell)
            .expect("honest");
        let expected = self.model.pop_front();
        let found = taken.map(|taken| (taken.fields, self.memory.read(&taken)));
        assert_eq!(found, expected);
        self.heard(rung.get());
        found.is_some()
    }

    fn heard(&mut self, rung: u32) {
        assert!(
            rung <= u32::from(self.writer_sleeps),
            "one word, one doorbell"
        );
        self.writer_sleeps &= rung == 0;
    }

    fn reader_sleeps(&mut self) {
        let rung = Cell::new(0);
        let asleep = self
            .reader
            .sleep(&self.memory, &mut || rung.set(rung.get() + 1));
        assert_eq!(asleep, self.model.is_empty());
        self.heard(rung.get());
        self.reader_sleeps = asleep;
        if asleep {
            assert!(!self.writer_sleeps, "there is room for all");
            assert_eq!(self.writer.is_drained(&self.memory), Ok(true));
        }
    }
}

proptest! {
    /// A direction is a queue of packets; a side that sleeps gets one doorbell, when it matters.
    #[test]
    fn a_direction_is_a_queue(
        steps in proptest::collection::vec(step(), 0..300),
        slots in prop_oneof![Just(0), Just(u64::from(u32::MAX) - 9), Just(u64::MAX - 9)],
    ) {
        let mut pair = Pair::starting_at(slots, (u64::MAX - 9000) & !63);
        for step in steps {
            match step {
                Step::Put(bytes) => { pair.put(bytes); }
                Step::Take(count) => { (0..count).all(|_| pair.take()); }
                Step::ReaderSleeps => pair.reader_sleeps(),
                Step::WriterSleeps(bytes) => {
                    let has_room = pair.writer.has_room(&pair.memory, bytes).unwrap();
                    let asleep = pair.writer.sleep(&pair.memory, bytes).unwrap();
                    prop_assert_eq!(asleep, !has_room);
                    pair.writer_sleeps = asleep;
                }
            }
        }
        while pair.take() {}
        pair.reader_sleeps();
    }

    /// Whatever count the reader tells: an error, or room that there is.
    #[test]
    fn freed_counts_are_checked(
        sent in 0u64..16, taken in 0u64..16, told in prop_oneof![any::<u64>(), 0u64..40],
        position in prop_oneof![any::<u64>(), (0u64..40).prop_map(|count| count * 64)],
    ) {
        let mut pair = Pair::starting_at(0, 0);
        for _ in 0..sent { assert!(pair.put(100)); }
        let taken = taken.min(sent);
        pair.memory.freed(Freed::Slots).store(taken, Ordering::Relaxed);
        pair.memory.freed(Freed::Ring).store(taken * 128, Ordering::Relaxed);
        prop_assert_eq!(pair.writer.is_drained(&pair.memory), Ok(taken == sent));
        pair.memory.freed(Freed::Slots).store(told, Ordering::Relaxed);
        pair.memory.freed(Freed::Ring).store(position, Ordering::Relaxed);
        let is_right = (taken..=sent).contains(&told)
            && (taken * 128..=sent * 128).contains(&position);
        let found = pair.writer.is_drained(&pair.memory);
        prop_assert_eq!(found.is_ok(), is_right);
        if !is_right {
            prop_assert_eq!(found, Err(ChannelError::Freed));
            prop_assert_eq!(pair.writer.is_drained(&pair.memory), found, "it lasts");
        }
    }
}

#[test]
fn ordinals_are_never_zero_and_come_round() {
    let most = u64::from(u32::MAX);
    assert_eq!(
        [0, 1, most - 2, most - 1, most, most + 1].map(ordinal),
        [1, 2, u32::MAX - 1, u32::MAX, 1, 2]
    );
    assert!((most * 7 - 3..most * 7 + 3).all(|number| ordinal(number) != 0));
    let mut pair = Pair::starting_at(most - 40, 0);
    for _ in 0..200 {
        assert!(pair.put(3));
        assert!(pair.take());
        assert!(!pair.take(), "nothing from a lap before");
    }
}

#[test]
fn what_was_published_a_lap_ago_is_none() {
    let mut pair = Pair::starting_at(0, 0);
    for _ in 0..Own::SLOTS {
        assert!(pair.put(1));
    }
    assert!(!pair.put(1), "no slot");
    for _ in 0..Own::SLOTS {
        assert!(pair.take());
    }
    assert!(!pair.take());
}

/// Counts how often each byte and each stamp is read.
struct Counting {
    memory: Own,
    bytes: Vec<Cell<u32>>,
    stamps: Vec<Cell<u32>>,
}

impl SlotMemory for Counting {
    const SLOTS: usize = Own::SLOTS;
    const RING_BYTES: usize = Own::RING_BYTES;
    const PAYLOAD_BYTES_MAX: usize = Own::PAYLOAD_BYTES_MAX;

    fn word(&self, word: Word) -> &AtomicU32 {
        self.memory.word(word)
    }

    fn freed(&self, which: Freed) -> &AtomicU64 {
        self.memory.freed(which)
    }

    fn stamp(&self, place: usize) -> &AtomicU64 {
        self.stamps[place].update(|count| count + 1);
        self.memory.stamp(place)
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) {
        self.memory.copy_in(at, bytes);
    }

    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        for count in &self.bytes[at..at + bytes.len()] {
            count.update(|count| count + 1);
        }
        self.memory.copy_out(at, bytes);
    }
}

/// What is read again after it was judged could be another thing by then.
#[test]
fn each_word_of_a_packet_is_read_once() {
    let mut pair = Pair::starting_at(0, 0);
    for bytes in [0, 5, 80, 81, 4000] {
        pair.put(bytes);
    }
    let length = Own::SLOTS * SLOT_BYTES + Own::RING_BYTES;
    let counting = Counting {
        memory: pair.memory,
        bytes: vec![Cell::new(0); length],
        stamps: vec![Cell::new(0); Own::SLOTS],
    };
    let mut reader = Reader::default();
    let mut count = 0;
    while let Ok(Some(taken)) = reader.take(&counting, &mut || ()) {
        let mut payload = vec![0; taken.bytes];
        counting.copy_out(taken.at, &mut payload);
        count += 1;
    }
    assert_eq!(count, 5);
    assert!(counting.bytes.iter().all(|count| count.get() <= 1));
    assert!(counting.stamps.iter().all(|count| count.get() <= 1));
}

pub(super) fn real() -> (i32, ChannelMemory) {
    let (file, area) = area::make(FILE_BYTES).expect("memory");
    drop(area);
    let memory = ChannelMemory::map(file).expect("a mapping");
    raw::close(file);
    (file, memory)
}

#[test]
fn memory_that_was_given_back_holds_no_slot_and_is_used_on() {
    let (_, memory) = real();
    let direction = memory.direction(0);
    let (mut writer, mut reader) = (Writer::default(), Reader::default());
    for round in 0..5u32 {
        for number in 0..300 {
            let content = payload(number, 200);
            let fill = |at| direction.copy_in(at, &content);
            assert_eq!(writer.put(&direction, &send(number), 200, fill), Ok(true));
            assert_eq!(writer.is_drained(&direction), Ok(false));
            let taken = reader
                .take(&direction, &mut || ())
                .unwrap()
                .expect("a packet");
            let mut found = vec![0; taken.bytes];
            direction.copy_out(taken.at, &mut found);
            assert_eq!((taken.fields.psn, found), (number, content));
        }
        assert!(reader.sleep(&direction, &mut || ()));
        assert_eq!(writer.is_drained(&direction), Ok(true));
        direction.give_back();
        assert!((0..SLOTS).all(|place| direction.stamp(place).load(Ordering::Relaxed) == 0));
        assert_eq!(
            reader.take(&direction, &mut || ()),
            Ok(None),
            "after round {round}"
        );
    }
}

proptest! {
    /// Words flipped between any two steps of both sides: an error, or a packet within bounds.
    #[test]
    fn hostile_memory_is_refused_or_harmless(
        steps in proptest::collection::vec(
            (0u8..12, 0usize..5000, any::<u64>(), 0usize..64), 0..400),
    ) {
        let own = Own::new(Own::RING_BYTES);
        let (mut writer, mut reader) = (Writer::default(), Reader::default());
        for (call, with, value, bit) in steps {
            let bytes = with.min(Own::PAYLOAD_BYTES_MAX);
            match call {
                0..=2 => {
                    let fill = |at: usize| own.copy_in(at, &vec![1; bytes]);
                    let published = writer.slots();
                    if writer.put(&own, &send(1), bytes, fill).is_err() {
                        prop_assert_eq!(writer.slots(), published, "nothing after an error");
                    }
                }
                3..=5 => if let Ok(Some(taken)) = reader.take(&own, &mut || ()) {
                    prop_assert!(taken.bytes <= Own::PAYLOAD_BYTES_MAX);
                    own.read(&taken); // panics outside
                },
                6 => { reader.sleep(&own, &mut || ()); }
                7 => { let _ = writer.sleep(&own, bytes); }
                8 => own.words[with % 5].store(u32::try_from(value >> 32).unwrap(), Ordering::Relaxed),
                9 => {
                    let freed = &own.freed[with % 2];
                    freed.store(freed.load(Ordering::Relaxed) ^ (1 << bit), Ordering::Relaxed);
                }
                10 => {
                    // What the reader waits for, with some other length.
                    let next = reader.slots();
                    let stamp = &own.stamps[slot_place::<Own>(next).1];
                    let wrong = u64::from(ordinal(next)) << 32 | (value >> bit & 0xFFFF_FFFF);
                    stamp.store(wrong, Ordering::Relaxed);
                }
                _ => {
                    let at = with % (own.bytes.len() - 8);
                    own.copy_in(at, &value.to_le_bytes());
                    // Fields, where they matter.
                    let slot = slot_place::<Own>(reader.slots()).0;
                    own.copy_in(slot + AT_FIELDS + with % 40, &[(value >> bit).to_le_bytes()[0] & 0x23]);
                }
            }
        }
    }
}
