//! A direction of a shm stream: one thread writes, one reads, each sleeps when there is nothing to do.
//!
//! The doorbell is a model of the socket, which stays readable until it is read. Bytes are cells in which
//! loom finds two accesses without an order: bytes that are read before they are published, or written
//! before they are free.

mod support;

use loom::model::Builder;
use loom::thread;
use urds_loom::bytes::{INLINE_BYTES, Place, Reader, Writer};
use urds_loom::slots::Rule;
use urds_loom::{BROKEN, WITHOUT_FENCES};

/// An eighth of them is none: each is told.
const SLOTS: usize = 4;
const RING_BYTES: usize = 512;

type Direction = support::Direction<SLOTS, RING_BYTES>;

impl Direction {
    fn write(&self, writer: &mut Writer, mut rest: &[u8]) {
        let mut ring = || self.of_reader.ring();
        while !rest.is_empty() {
            let written = writer.write(self, &[rest], &mut ring);
            let taken = written.expect("an honest reader");
            rest = &rest[taken..];
            if taken == 0 && writer.sleep(self).expect("an honest reader") {
                self.of_writer.sleep();
            }
        }
    }

    fn end(&self, writer: &Writer) {
        writer.end(self);
        self.of_reader.ring();
    }

    /// Read what is here; return how many bytes.
    fn read(&self, reader: &mut Reader, room: &mut [u8]) -> usize {
        let had_news = Place::of(reader.place().to_u64()).has_news(self);
        let read = reader.read(self, room, &mut [], &mut || self.of_writer.ring());
        let taken = read.expect("an honest writer");
        assert!(taken > 0 || !had_news, "what a look has seen is there");
        taken
    }

    /// Read until `count` bytes are here, or the end is; return them.
    fn read_until(&self, reader: &mut Reader, count: usize, wanted: usize) -> Vec<u8> {
        let (mut got, mut room) = (Vec::new(), [0; 200]);
        while got.len() < count {
            let has_ended = Reader::has_ended(self);
            let taken = self.read(reader, &mut room);
            got.extend(&room[..taken]);
            if taken == 0 && has_ended {
                break;
            }
            let asleep = reader.sleep(self, wanted, &mut || self.of_writer.ring());
            if got.len() < count && asleep.expect("an honest writer") {
                self.of_reader.sleep();
            }
        }
        got
    }
}

/// Take a meeting through every order with so many changes between threads that nothing forces.
fn every_order(changes: usize, meeting: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(changes);
    builder.check(meeting);
}

/// Bytes in a slot and bytes in the ring come whole and in order to a reader that sleeps.
fn bring(wanted: usize) {
    every_order(3, move || {
        let direction = Direction::new();
        let writer = thread::spawn(|| {
            let mut writer = Writer::default();
            direction.write(&mut writer, &[1; 2]);
            direction.write(&mut writer, &[2; INLINE_BYTES + 1]);
            direction.end(&writer);
        });
        let got = direction.read_until(&mut Reader::default(), usize::MAX, wanted);
        writer.join().expect("no panic");
        assert_eq!(got, [&[1; 2][..], &[2; INLINE_BYTES + 1]].concat());
    });
}

/// A byte must come without an end that rings for it.
fn bring_one() {
    every_order(3, || {
        let direction = Direction::new();
        let writer = thread::spawn(|| direction.write(&mut Writer::default(), &[1]));
        let got = direction.read_until(&mut Reader::default(), 1, 1);
        assert_eq!(got, [1]);
        writer.join().expect("no panic");
    });
}

/// A writer that finds no slot, or no room in the ring, must hear that there is some.
fn make_room(portion: usize) {
    every_order(2, move || {
        let direction = Direction::new();
        let mut writer = Writer::default();
        let mut sent = 0;
        while writer
            .write(direction, &[vec![1; portion]], &mut || ())
            .expect("an honest reader")
            > 0
        {
            sent += portion;
        }
        let told = thread::spawn(move || direction.write(&mut writer, &vec![2; portion]));
        let (mut reader, mut room) = (Reader::default(), vec![0; sent]);
        assert_eq!(direction.read(&mut reader, &mut room), sent);
        assert_eq!(room, vec![1; sent]);
        // Asleep after that: what it has not told in eighths it tells before it sleeps.
        let got = direction.read_until(&mut reader, portion, 1);
        assert_eq!(got, vec![2; portion]);
        told.join().expect("no panic");
    });
}

/// A reader that waits for many bytes must hear of slots that run out before those are here.
fn run_out_of_slots() {
    every_order(3, || {
        let direction = Direction::new();
        let mut writer = Writer::default();
        for _ in 0..SLOTS / 2 - 1 {
            direction.write(&mut writer, &[1]);
        }
        let told = thread::spawn(move || direction.write(&mut writer, &[1]));
        let (mut reader, wanted) = (Reader::default(), RING_BYTES / 2);
        let mut ring = || direction.of_writer.ring();
        if reader.sleep(direction, wanted, &mut ring) == Ok(true) {
            direction.of_reader.sleep();
        }
        assert_eq!(reader.has_come(direction, wanted), Ok(true));
        told.join().expect("no panic");
    });
}

fn breaking(rule: Rule) {
    BROKEN.set(Some(rule));
}

#[test]
fn bytes_come_whole_and_in_order() {
    bring(1);
}

#[test]
fn who_waits_for_many_bytes_is_rung_for_them_and_for_the_end() {
    bring(INLINE_BYTES);
    bring(RING_BYTES / 2);
}

#[test]
fn a_reader_that_sleeps_hears_of_a_byte() {
    bring_one();
}

#[test]
fn a_writer_without_a_slot_hears_of_room() {
    make_room(1);
}

#[test]
fn a_writer_without_room_in_the_ring_hears_of_it() {
    make_room(RING_BYTES / 4);
}

#[test]
fn a_reader_hears_of_slots_that_run_out() {
    run_out_of_slots();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_stamp_before_the_bytes_is_found() {
    breaking(Rule::StampLast);
    bring(1);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_look_at_the_word_without_fences_is_found() {
    WITHOUT_FENCES.set(true);
    bring_one();
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_look_for_room_without_fences_is_found() {
    WITHOUT_FENCES.set(true);
    make_room(1);
}

#[test]
#[should_panic(expected = "deadlock")]
fn to_sleep_without_a_second_look_is_found() {
    breaking(Rule::LookAgain);
    bring_one();
}

#[test]
#[should_panic(expected = "deadlock")]
fn to_free_without_a_look_at_the_writer_is_found() {
    breaking(Rule::LookAfterTelling);
    make_room(1);
}
