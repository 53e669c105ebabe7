//! A direction of a verbs channel: one thread publishes, one takes, each sleeps when there is nothing to do.
//!
//! The doorbell is a model of the socket, which stays readable until it is read. Bytes are cells in which
//! loom finds two accesses without an order: payload that is read before it is published, written
//! before it is free, or copied into memory that its owner has withdrawn.

mod support;

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use urds_loom::{BROKEN, WITHOUT_FENCES, slots};

use slots::{Fields, Reader, Rule, SlotMemory, Writer, flags, kinds};

/// An eighth of them is one.
const SLOTS: usize = 8;
const RING_BYTES: usize = 16 << 10;

type Direction = support::Direction<SLOTS, RING_BYTES>;

impl Direction {
    fn send(&self, writer: &mut Writer, payload: &[u8]) {
        let fill = |at| self.copy_in(at, payload);
        while !writer
            .put(self, &only(), payload.len(), fill)
            .expect("an honest reader")
        {
            if writer.sleep(self, payload.len()).expect("an honest reader") {
                self.of_writer.sleep();
            }
        }
        self.ring(writer);
    }

    fn ring(&self, writer: &Writer) {
        if writer.must_ring(self) {
            self.of_reader.ring();
        }
    }

    /// Take a packet, if one is here; return its payload.
    fn take(&self, reader: &mut Reader) -> Option<Vec<u8>> {
        let taken = reader
            .take(self, &mut || self.of_writer.ring())
            .expect("an honest writer")?;
        let mut payload = vec![0; taken.bytes];
        self.copy_out(taken.at, &mut payload);
        Some(payload)
    }

    fn receive(&self, reader: &mut Reader) -> Vec<u8> {
        loop {
            if let Some(payload) = self.take(reader) {
                return payload;
            }
            if reader.sleep(self, &mut || self.of_writer.ring()) {
                self.of_reader.sleep();
            }
        }
    }
}

fn only() -> Fields {
    Fields {
        kind: kinds::SEND,
        flags: flags::FIRST | flags::LAST,
        ..Fields::default()
    }
}

/// Take a meeting through every order with so many changes between threads that nothing forces.
fn every_order(meeting: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(meeting);
}

/// A packet in the ring and one in its slot come whole and in order to a reader that sleeps.
fn bring() {
    every_order(|| {
        let direction = Direction::new();
        let writer = thread::spawn(|| {
            let mut writer = Writer::default();
            direction.send(&mut writer, &[2; 81]);
            direction.send(&mut writer, &[3]);
        });
        let mut reader = Reader::default();
        for expected in [vec![2; 81], vec![3]] {
            assert_eq!(direction.receive(&mut reader), expected);
        }
        writer.join().expect("no panic");
    });
}

/// A writer that finds no slot, or no room in the ring, must hear that there is some.
fn make_room(payload_bytes: usize) {
    every_order(move || {
        let direction = Direction::new();
        let mut writer = Writer::default();
        let mut sent = 0;
        while writer
            .has_room(direction, payload_bytes)
            .expect("an honest reader")
        {
            direction.send(&mut writer, &vec![sent; payload_bytes]);
            sent += 1;
        }
        let last = vec![sent; payload_bytes];
        let told = thread::spawn(move || direction.send(&mut writer, &last));
        let mut reader = Reader::default();
        for number in 0..sent {
            assert_eq!(
                direction.take(&mut reader),
                Some(vec![number; payload_bytes])
            );
        }
        // Asleep after that: what it has not told in eighths it tells before it sleeps.
        assert_eq!(direction.receive(&mut reader), vec![sent; payload_bytes]);
        told.join().expect("no panic");
    });
}

/// An owner has its memory to itself once it has withdrawn it.
fn withdraw() {
    struct Region {
        generation: AtomicU64,
        bytes: UnsafeCell<u8>,
    }
    // SAFETY: loom finds two accesses without an order.
    unsafe impl Sync for Region {}
    loom::model(|| {
        let direction = Direction::new();
        let region: &'static Region = Box::leak(Box::new(Region {
            generation: AtomicU64::new(1),
            bytes: UnsafeCell::new(0),
        }));
        let writer = thread::spawn(move || {
            // SAFETY: as above.
            let copy = || region.bytes.with_mut(|bytes| unsafe { *bytes = 7 });
            let is_placed = slots::place(direction, &region.generation, 1, copy);
            let generation = region.generation.load(Ordering::Relaxed);
            assert!(is_placed || generation == 2, "withdrawn, if not placed");
        });
        // As the owner does, which is Python: see urds.verbs.providers.shm.mappings.
        region.generation.store(2, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while slots::is_placing(direction) {
            thread::yield_now();
        }
        // SAFETY: as above.
        region.bytes.with_mut(|bytes| unsafe { *bytes = 1 });
        writer.join().expect("no panic");
        // SAFETY: as above.
        assert_eq!(region.bytes.with(|bytes| unsafe { *bytes }), 1);
    });
}

/// The end of a writer must reach a reader that goes to sleep.
fn end() {
    loom::model(|| {
        let direction = Direction::new();
        let writer = thread::spawn(|| {
            let writer = Writer::default();
            writer.end(direction);
            direction.ring(&writer);
        });
        let mut reader = Reader::default();
        while !Reader::has_ended(direction) {
            if reader.sleep(direction, &mut || ()) {
                direction.of_reader.sleep();
            }
        }
        writer.join().expect("no panic");
    });
}

fn breaking(rule: Rule) {
    BROKEN.set(Some(rule));
}

#[test]
fn packets_come_whole_and_in_order() {
    bring();
}

#[test]
fn a_writer_without_a_slot_hears_of_room() {
    make_room(1);
}

#[test]
fn a_writer_without_room_in_the_ring_hears_of_it() {
    make_room(5 << 10);
}

#[test]
fn a_reader_that_sleeps_hears_of_the_end() {
    end();
}

#[test]
fn withdrawn_memory_is_its_owners() {
    withdraw();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_stamp_before_the_payload_is_found() {
    breaking(Rule::StampLast);
    bring();
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_look_at_the_word_without_fences_is_found() {
    WITHOUT_FENCES.set(true);
    bring();
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
    bring();
}

#[test]
#[should_panic(expected = "deadlock")]
fn to_free_without_a_look_at_the_writer_is_found() {
    breaking(Rule::LookAfterTelling);
    make_room(1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_generation_that_is_compared_too_early_is_found() {
    breaking(Rule::CompareAfterPlacing);
    withdraw();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_withdrawal_without_fences_is_found() {
    WITHOUT_FENCES.set(true);
    withdraw();
}
