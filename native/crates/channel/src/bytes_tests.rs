use std::cell::Cell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::thread;
use std::{assert, assert_eq, vec, vec::Vec};

use proptest::prelude::*;

use super::*;
use crate::stream_memory::{StreamDirection, StreamMemory, file_bytes};
use crate::sys::stepped::{self, Run};
use crate::sys::{area, raw};
use crate::test_memory::Own;

impl Writer {
    /// Begin with so many slots and bytes published and freed.
    fn starting_at(slots: u64, position: u64, bytes: u64) -> Self {
        Self {
            slots,
            position,
            bytes,
            slots_freed: slots,
            ring_freed: position,
            bytes_freed: bytes,
        }
    }
}

impl Reader {
    /// Begin with so many slots and bytes taken and told.
    fn starting_at(slots: u64, position: u64, bytes: u64) -> Self {
        Self {
            slots,
            position,
            bytes,
            slots_told: slots,
            ring_told: position,
            bytes_told: bytes,
            ..Self::default()
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<u8>, usize),
    Read(usize, usize),
    ReaderSleeps(usize),
    WriterSleeps,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (proptest::collection::vec(any::<u8>(), 0..700), 0usize..700)
            .prop_map(|(bytes, cut)| Step::Write(bytes, cut)),
        (0usize..400, 0usize..400).prop_map(|(first, second)| Step::Read(first, second)),
        (0usize..700).prop_map(Step::ReaderSleeps),
        Just(Step::WriterSleeps),
    ]
}

/// Both ends of a direction beside a queue, which they should be.
struct Pair {
    memory: Own,
    writer: Writer,
    reader: Reader,
    model: VecDeque<u8>,
    /// What a reader that sleeps waits for.
    wanted: Option<usize>,
    writer_sleeps: bool,
}

impl Pair {
    fn starting_at(start: u64, ring_bytes: usize) -> Self {
        let memory = Own::new(ring_bytes);
        for freed in &memory.freed {
            freed.store(start, Ordering::Relaxed);
        }
        Self {
            memory,
            writer: Writer::starting_at(start, start, start),
            reader: Reader::starting_at(start, start, start),
            model: VecDeque::new(),
            wanted: None,
            writer_sleeps: false,
        }
    }

    fn write(&mut self, bytes: &[u8], cut: usize) {
        let rung = Cell::new(0);
        let mut doorbell = || rung.set(rung.get() + 1);
        let (first, second) = bytes.split_at(cut.min(bytes.len()));
        let pieces = [IoSlice::new(first), IoSlice::new(second)];
        let taken = self.writer.write(&self.memory, &pieces, &mut doorbell);
        let taken = taken.unwrap();
        self.model.extend(&bytes[..taken]);
        let most = self.memory.ring_bytes + Own::SLOTS * INLINE_BYTES;
        assert!(self.model.len() <= most);
        assert!(taken == bytes.len() || !self.writer.has_room(&self.memory).unwrap());
        let is_due = |wanted| self.model.len() >= wanted;
        assert!(rung.get() <= 1 && (rung.get() == 1 || !self.wanted.is_some_and(is_due)));
        if rung.get() > 0 {
            let wanted = self.wanted.take().expect("a reader that sleeps");
            assert!(self.reader.has_come(&self.memory, wanted).unwrap());
        }
    }

    fn read(&mut self, first: usize, second: usize) {
        let rung = Cell::new(false);
        let mut doorbell = || assert!(!rung.replace(true), "once");
        let (mut one, mut other) = (vec![0; first], vec![0; second]);
        let taken = self
            .reader
            .read(&self.memory, &mut one, &mut other, &mut doorbell)
            .unwrap();
        assert_eq!(taken, self.model.len().min(first + second));
        if taken > 0 {
            self.wanted = None;
        }
        assert!(self.writer_sleeps || !rung.get());
        self.writer_sleeps &= !rung.get();
        one.truncate(taken);
        other.truncate(taken.saturating_sub(first));
        let expected: Vec<u8> = self.model.drain(..taken).collect();
        assert_eq!([one, other].concat(), expected);
    }

    fn reader_sleeps(&mut self, wanted: usize) {
        let rung = Cell::new(false);
        let mut doorbell = || rung.set(true);
        let has_come = self.reader.has_come(&self.memory, wanted).unwrap();
        let asleep = self.reader.sleep(&self.memory, wanted, &mut doorbell);
        assert_eq!(asleep, Ok(!has_come));
        let bound = wanted.clamp(1, self.memory.ring_bytes / 2);
        assert!(self.model.len() < bound || has_come);
        self.writer_sleeps &= !rung.get();
        let is_left = self.writer_sleeps && self.model.is_empty();
        assert!(!is_left, "a writer that waits for nothing");
        self.wanted = (!has_come).then_some(bound);
        let pending = self.writer.pending(&self.memory);
        assert_eq!(pending, Ok(self.model.len()), "all is told");
    }

    fn check(&mut self) {
        assert!(self.writer.pending(&self.memory).unwrap() >= self.model.len());
        let has_some = !self.model.is_empty();
        assert_eq!(self.reader.available(&self.memory).unwrap() > 0, has_some);
        assert_eq!(self.reader.place().has_news(&self.memory), has_some);
    }
}

proptest! {
    /// A stream is a queue of bounded length; a side that sleeps is rung at most once, when it matters.
    #[test]
    fn a_stream_is_a_queue(
        steps in proptest::collection::vec(step(), 0..200), bits in 8u32..12, late in any::<bool>(),
    ) {
        let start = if late { (u64::MAX - 9_000) & !63 } else { 0 };
        let mut pair = Pair::starting_at(start, 1 << bits);
        for step in steps {
            match step {
                Step::Write(bytes, cut) => pair.write(&bytes, cut),
                Step::Read(first, second) => pair.read(first, second),
                Step::ReaderSleeps(wanted) => pair.reader_sleeps(wanted),
                Step::WriterSleeps => {
                    let has_room = pair.writer.has_room(&pair.memory).unwrap();
                    pair.writer_sleeps = pair.writer.sleep(&pair.memory).unwrap();
                    prop_assert_eq!(pair.writer_sleeps, !has_room);
                }
            }
            pair.check();
        }
    }

    /// Whatever the reader tells: an error, or counts that it can have.
    #[test]
    fn freed_counts_are_checked(
        sent in 0u64..16, taken in 0u64..16, which in 0usize..3,
        told in prop_oneof![any::<u64>(), 0u64..4000],
    ) {
        let memory = Own::new(4096);
        let (mut writer, taken) = (Writer::default(), taken.min(sent));
        for _ in 0..sent {
            writer.write(&memory, &[IoSlice::new(&[7; 128])], &mut || ()).unwrap();
        }
        let sizes = [1, 128, 128];
        for (freed, size) in memory.freed.iter().zip(sizes) {
            freed.store(taken * size, Ordering::Relaxed);
        }
        prop_assert_eq!(writer.pending(&memory), Ok(low((sent - taken) * 128)));
        memory.freed[which].store(told, Ordering::Relaxed);
        let mut is_right = (taken * sizes[which]..=sent * sizes[which]).contains(&told);
        is_right &= which != 1 || told % 64 == 0;
        let found = writer.pending(&memory);
        prop_assert_eq!(found.is_ok(), is_right);
        if !is_right {
            prop_assert_eq!(found, Err(ChannelError::Freed));
            prop_assert_eq!(writer.pending(&memory), found, "it lasts");
        }
    }

    /// Words flipped between any two steps of both sides: an error, or bytes within bounds.
    #[test]
    fn hostile_memory_is_refused_or_harmless(
        steps in proptest::collection::vec(
            (0u8..10, 0usize..2000, any::<u64>(), 0usize..64), 0..400),
    ) {
        let memory = Own::new(1024);
        let (mut writer, mut reader) = (Writer::default(), Reader::default());
        for (call, with, value, bit) in steps {
            match call {
                0 | 1 => {
                    let written = writer.write(&memory, &[vec![1; with]], &mut || ());
                    prop_assert!(written.is_err() || written.unwrap() <= with);
                }
                2 | 3 => {
                    let (mut one, mut other) = (vec![0; with % 300], vec![0; with]);
                    let read = reader.read(&memory, &mut one, &mut other, &mut || ());
                    prop_assert!(read.is_err() || read.unwrap() <= one.len() + with);
                }
                4 => { let _ = reader.sleep(&memory, with, &mut || ()); }
                5 => { let _ = writer.sleep(&memory); }
                6 => {
                    let word = u32::try_from(value >> 32).unwrap();
                    memory.words[with % 5].store(word, Ordering::Relaxed);
                }
                7 => {
                    let freed = &memory.freed[with % 3];
                    freed.store(freed.load(Ordering::Relaxed) ^ (1 << bit), Ordering::Relaxed);
                }
                8 => {
                    // What the reader waits for, with some other length.
                    let stamp = &memory.stamps[slot_place::<Own>(reader.slots).1];
                    let length = value >> bit & 0xFFFF_FFFF;
                    stamp.store(u64::from(ordinal(reader.slots)) << 32 | length, Ordering::Relaxed);
                }
                _ => {
                    memory.stamps[with % Own::SLOTS].store(value, Ordering::Relaxed);
                    let _ = reader.available(&memory);
                }
            }
        }
    }
}

#[test]
fn a_length_that_no_slot_has_is_refused() {
    for length in [0, 1025, SLOT_TELLS_MAX + 1, u32::MAX as usize] {
        let memory = Own::new(1024);
        let mut reader = Reader::default();
        memory.stamps[0].store(1 << 32 | length as u64, Ordering::Relaxed);
        assert!(reader.place().has_news(&memory), "an error to find");
        let read = reader.read(&memory, &mut [0; 10], &mut [], &mut || ());
        assert_eq!(read, Err(ChannelError::Payload), "{length}");
        assert_eq!(reader.available(&memory), Err(ChannelError::Payload));
        assert_eq!(
            reader.sleep(&memory, 1, &mut || ()),
            Err(ChannelError::Payload)
        );
    }
}

#[test]
fn bytes_from_a_lap_ago_are_none() {
    let memory = Own::new(1024);
    let (mut writer, mut reader) = (Writer::default(), Reader::default());
    for round in 0..3 * Own::SLOTS {
        assert_eq!(reader.available(&memory), Ok(0), "round {round}");
        writer.write(&memory, &[vec![1]], &mut || ()).unwrap();
        let mut byte = [0; 2];
        let read = reader.read(&memory, &mut byte, &mut [], &mut || ());
        assert_eq!(read, Ok(1));
    }
}

/// Short writes use all slots long before the half of a ring that the reader waits for.
#[test]
fn a_reader_of_a_long_payload_hears_of_slots_that_run_out() {
    let memory = Own::new(4096);
    let (mut writer, mut reader) = (Writer::default(), Reader::default());
    assert_eq!(reader.sleep(&memory, 2048, &mut || ()), Ok(true));
    let rung = Cell::new(0);
    while writer
        .write(&memory, &[vec![1]], &mut || rung.set(rung.get() + 1))
        .unwrap()
        > 0
    {}
    assert_eq!(rung.get(), 1);
    assert_eq!(reader.has_come(&memory, 2048), Ok(true));
    assert_eq!(reader.sleep(&memory, 2048, &mut || ()), Ok(false));
}

/// The ring is full of one slot until all of it is taken: who waited for more would wait for ever.
#[test]
fn a_reader_of_a_long_payload_takes_the_rest_of_a_slot_first() {
    let memory = Own::new(1024);
    let (mut writer, mut reader) = (Writer::default(), Reader::default());
    assert_eq!(
        writer.write(&memory, &[vec![1; 2000]], &mut || ()),
        Ok(1024)
    );
    assert_eq!(writer.sleep(&memory), Ok(true));
    let rung = Cell::new(false);
    let mut read = |bytes: usize| {
        let mut room = vec![0; bytes];
        reader.read(&memory, &mut room, &mut [], &mut || rung.set(true))
    };
    assert_eq!(read(1000), Ok(1000));
    assert!(!rung.get());
    assert_eq!(read(512), Ok(24));
    assert!(rung.get());
    assert_eq!(reader.sleep(&memory, 512, &mut || ()), Ok(true));
    assert_eq!(writer.write(&memory, &[vec![1; 976]], &mut || ()), Ok(976));
    assert_eq!(
        reader.read(&memory, &mut [0; 900], &mut [], &mut || ()),
        Ok(900)
    );
    assert_eq!(reader.has_come(&memory, 512), Ok(true));
    assert_eq!(reader.sleep(&memory, 512, &mut || ()), Ok(false));
}

#[test]
fn a_long_write_is_cut_evenly() {
    let memory = Own::new(1 << 20);
    let lengths = |bytes: usize| {
        let mut writer = Writer::default();
        assert_eq!(
            writer.write(&memory, &[vec![1; bytes]], &mut || ()),
            Ok(bytes)
        );
        let stamps = memory.stamps.iter().take(low(writer.slots));
        let lengths = stamps.map(|stamp| low(stamp.load(Ordering::Relaxed) & 0xFFFF_FFFF));
        lengths.collect::<Vec<_>>()
    };
    assert_eq!(lengths(65_537), [65_537]);
    assert_eq!(lengths(SLOT_TELLS_MAX), [SLOT_TELLS_MAX]);
    assert_eq!(lengths(SLOT_TELLS_MAX + 1), [65_536, 8_193]);
    assert_eq!(lengths(200_000), [65_536, 65_536, 68_928]);
}

#[test]
fn an_end_wakes_a_reader_that_goes_to_sleep() {
    let memory = Own::new(256);
    let (writer, mut reader) = (Writer::default(), Reader::default());
    assert_eq!(reader.sleep(&memory, 1, &mut || ()), Ok(true));
    writer.end(&memory);
    assert!(Reader::has_ended(&memory));
    assert_eq!(reader.sleep(&memory, 1, &mut || ()), Ok(false));
}

/// A doorbell that threads can wait for.
#[derive(Default)]
struct Doorbell(parking_lot::Mutex<u32>, parking_lot::Condvar);

impl Doorbell {
    fn ring(&self) {
        *self.0.lock() += 1;
        self.1.notify_all();
    }

    fn wait(&self) {
        let mut rung = self.0.lock();
        while *rung == 0 {
            let late = self
                .1
                .wait_for(&mut rung, std::time::Duration::from_secs(20));
            assert!(!late.timed_out(), "a wake-up was lost");
        }
        *rung -= 1;
    }
}

fn byte_at(at: usize) -> u8 {
    at.to_le_bytes()[0]
}

/// Two threads, a tiny ring, and both asleep as often as possible: a lost doorbell hangs it.
#[test]
fn no_doorbell_is_lost() {
    const BYTES: usize = 200_000;
    for (wanted, portion) in [(1, 5), (90, 5), (90, 150)] {
        let memory = Own::new(256);
        let (to_reader, to_writer) = (Doorbell::default(), Doorbell::default());
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut writer = Writer::default();
                let mut at = 0;
                while at < BYTES {
                    let bytes: Vec<u8> = (at..BYTES.min(at + portion)).map(byte_at).collect();
                    let taken = writer
                        .write(&memory, &[IoSlice::new(&bytes)], &mut || to_reader.ring())
                        .unwrap();
                    at += taken;
                    if taken == 0 && writer.sleep(&memory).unwrap() {
                        to_writer.wait();
                    }
                }
                writer.end(&memory);
                to_reader.ring();
            });
            let mut reader = Reader::default();
            let mut at = 0;
            loop {
                let has_ended = Reader::has_ended(&memory);
                let mut bytes = [0; 11];
                let taken = reader
                    .read(&memory, &mut bytes, &mut [], &mut || to_writer.ring())
                    .unwrap();
                for byte in &bytes[..taken] {
                    assert_eq!(*byte, byte_at(at));
                    at += 1;
                }
                if taken == 0 && has_ended {
                    break;
                }
                let asleep = reader.sleep(&memory, wanted, &mut || to_writer.ring());
                if asleep.unwrap() {
                    to_reader.wait();
                }
            }
            assert_eq!(at, BYTES);
        });
    }
}

fn real() -> StreamMemory {
    let (file, mapping) = area::make(file_bytes(RING_BYTES_MIN)).expect("memory");
    drop(mapping);
    let memory = StreamMemory::map(file, RING_BYTES_MIN).expect("a mapping");
    raw::close(file);
    memory
}

#[test]
fn memory_that_was_given_back_holds_no_byte_and_is_used_on() {
    let memory = real();
    let direction = memory.direction(0);
    let (mut writer, mut reader) = (Writer::default(), Reader::default());
    for round in 0..5u8 {
        let content = vec![round + 1; 3000];
        for bytes in [100, 3000] {
            let pieces = [&content[..bytes]];
            assert_eq!(writer.write(&direction, &pieces, &mut || ()), Ok(bytes));
        }
        let mut found = vec![0; 4000];
        let read = reader.read(&direction, &mut found, &mut [], &mut || ());
        assert_eq!((read, found[3099]), (Ok(3100), round + 1));
        assert_ne!(writer.pending(&direction), Ok(0), "not told yet");
        assert_eq!(reader.sleep(&direction, 1, &mut || ()), Ok(true));
        assert_eq!(writer.pending(&direction), Ok(0));
        direction.give_back();
        assert_eq!(reader.available(&direction), Ok(0), "round {round}");
        memory.rest_words();
    }
}

/// How often a side is killed, spread over its work.
const KILLS: u64 = 60;
const LENGTHS: [usize; 4] = [3, INLINE_BYTES, INLINE_BYTES + 1, 3000];

fn write_all(direction: &StreamDirection<'_>, contents: &[Vec<u8>]) {
    let mut writer = Writer::default();
    for bytes in contents {
        let _ = writer.write(direction, &[bytes.as_slice()], &mut || ());
    }
}

/// Read what is there; check that writes came whole, one after the other.
fn read_all(direction: &StreamDirection<'_>) -> usize {
    let (mut reader, mut found) = (Reader::default(), vec![0; 4000]);
    let read = reader
        .read(direction, &mut found, &mut [], &mut || ())
        .expect("no half slot");
    let mut whole = 0;
    for (number, bytes) in (1u8..).zip(LENGTHS) {
        if read > whole {
            assert!(
                found[whole..whole + bytes]
                    .iter()
                    .all(|byte| *byte == number)
            );
            whole += bytes;
        }
    }
    assert_eq!(read, whole, "a part of a write");
    read
}

#[test]
fn a_killed_writer_leaves_whole_writes() {
    let mut counts = Vec::new();
    let contents: Vec<_> = (1u8..)
        .zip(LENGTHS)
        .map(|(number, bytes)| vec![number; bytes])
        .collect();
    let mut run = |after| {
        let memory = real();
        let direction = memory.direction(0);
        let run = stepped::run(after, || write_all(&direction, &contents));
        counts.push(read_all(&direction));
        run
    };
    let Run::Ended(whole) = run(u64::MAX) else {
        panic!("nothing kills it");
    };
    for kill in 0..KILLS {
        run(whole * kill / KILLS);
    }
    assert_eq!(counts[0], LENGTHS.iter().sum::<usize>());
    counts.dedup();
    assert!(counts.len() > 3, "killed at different places: {counts:?}");
}

#[test]
fn a_killed_reader_leaves_counts_that_are_right() {
    let mut found = Vec::new();
    let mut run = |after| {
        let memory = real();
        let direction = memory.direction(1);
        let (mut writer, mut reader) = (Writer::default(), Reader::default());
        for bytes in LENGTHS {
            let _ = writer.write(&direction, &[vec![1; bytes]], &mut || ());
        }
        let mut room = vec![0; 4000];
        let run = stepped::run(after, || {
            let _ = reader.read(&direction, &mut room, &mut [], &mut || ());
            let _ = reader.sleep(&direction, 1, &mut || ());
        });
        let pending = writer.pending(&direction).expect("counts that are right");
        let is_asleep = direction.word(Word::ReaderAsleep).load(Ordering::Relaxed) != 0;
        found.push((pending, is_asleep));
        run
    };
    let Run::Ended(whole) = run(u64::MAX) else {
        panic!("nothing kills it");
    };
    for kill in 0..KILLS {
        run(whole * kill / KILLS);
    }
    assert_eq!(found[0], (0, true));
    let all = LENGTHS.iter().sum::<usize>();
    assert!(found.contains(&(all, false)), "killed while it reads");
}
