//! A ring of a shm stream: one thread writes, one reads, each sleeps when there is nothing to do.
//!
//! The doorbell is a model of the line, which stays readable until it is read. Bytes are atomics
//! without an order of their own: who reads one before it was published gets the one before. That
//! the reader has copied before its tail says so is not to be seen this way.

use std::io::IoSlice;

use loom::model::Builder;
use loom::sync::atomic::{AtomicU8, Ordering};
use loom::thread;
use urds_loom::ring::{Control, Reader, RingMemory, Writer};
use urds_loom::{Doorbell, WITHOUT_FENCES};

struct Ring {
    control: Control,
    bytes: Vec<AtomicU8>,
    of_reader: Doorbell,
    of_writer: Doorbell,
}

impl RingMemory for Ring {
    fn control(&self) -> &Control {
        &self.control
    }

    fn ring_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) {
        for (place, byte) in self.bytes[at..at + bytes.len()].iter().zip(bytes) {
            place.store(*byte, Ordering::Relaxed);
        }
    }

    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        let places = &self.bytes[at..at + bytes.len()];
        for (place, byte) in places.iter().zip(bytes) {
            *byte = place.load(Ordering::Relaxed);
        }
    }
}

/// Bytes that come through a ring, and in which portions they are written.
#[derive(Clone, Copy)]
struct Case {
    ring_bytes: usize,
    portions: &'static [&'static [u8]],
    /// How many bytes the reader waits for.
    wanted: usize,
}

impl Ring {
    /// Never freed: loom cannot drop what is its own once it has found a deadlock.
    fn new(ring_bytes: usize) -> &'static Self {
        Box::leak(Box::new(Self {
            control: Control::default(),
            bytes: (0..ring_bytes).map(|_| AtomicU8::new(0)).collect(),
            of_reader: Doorbell::default(),
            of_writer: Doorbell::default(),
        }))
    }

    fn write(&self, writer: &mut Writer, mut bytes: &[u8]) {
        let mut ring = || self.of_reader.ring();
        while !bytes.is_empty() {
            let written = writer.write(self, &[IoSlice::new(bytes)], &mut ring);
            let taken = written.expect("an honest reader");
            bytes = &bytes[taken..];
            if taken == 0 && writer.sleep(self).expect("an honest reader") {
                self.of_writer.sleep();
            }
        }
    }

    /// Read until the end; return all bytes.
    fn read(&self, case: Case) -> Vec<u8> {
        let (mut reader, mut got) = (Reader::default(), Vec::new());
        let mut ring = || self.of_writer.ring();
        loop {
            let has_ended = Reader::has_ended(&self.control);
            let mut bytes = [0; 4];
            let read = reader.read(self, &mut bytes, &mut [], &mut ring);
            let taken = read.expect("an honest writer");
            got.extend(&bytes[..taken]);
            if taken > 0 {
                continue;
            }
            if has_ended {
                return got;
            }
            let asleep = reader.sleep(self, case.wanted).expect("an honest writer");
            if asleep {
                self.of_reader.sleep();
            }
        }
    }

    fn end(&self, writer: &Writer) {
        writer.end(&self.control);
        self.of_reader.ring();
    }
}

/// Take a case through every order with so many changes between threads that nothing forces.
fn meet(case: Case, changes: usize) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(changes);
    builder.check(move || {
        let ring = Ring::new(case.ring_bytes);
        let told = thread::spawn(move || {
            let mut writer = Writer::default();
            for portion in case.portions {
                ring.write(&mut writer, portion);
            }
            writer
        });
        let heard = thread::spawn(move || ring.read(case));
        ring.end(&told.join().expect("no panic"));
        assert_eq!(heard.join().expect("no panic"), case.portions.concat());
    });
}

/// One byte must come without an end that rings for it.
fn bring_one(sleeps_blindly: bool) {
    loom::model(move || {
        let ring = Ring::new(2);
        let told = thread::spawn(|| ring.write(&mut Writer::default(), &[1]));
        let mut reader = Reader::default();
        let mut byte = [0];
        while reader
            .read(ring, &mut byte, &mut [], &mut || ())
            .expect("an honest writer")
            == 0
        {
            if reader.sleep(ring, 1).expect("an honest writer") || sleeps_blindly {
                ring.of_reader.sleep();
            }
        }
        assert_eq!(byte, [1], "what was published");
        told.join().expect("no panic");
    });
}

/// A writer that finds the ring full must hear that there is room.
fn make_room() {
    loom::model(|| {
        let ring = Ring::new(2);
        let mut writer = Writer::default();
        ring.write(&mut writer, &[1, 2]);
        let told = thread::spawn(move || ring.write(&mut writer, &[3]));
        let (mut reader, mut bytes) = (Reader::default(), [0; 2]);
        let mut ring_writer = || ring.of_writer.ring();
        let read = reader.read(ring, &mut bytes, &mut [], &mut ring_writer);
        assert_eq!(read, Ok(2));
        told.join().expect("no panic");
        assert_eq!(
            reader.read(ring, &mut bytes, &mut [], &mut ring_writer),
            Ok(1)
        );
        assert_eq!(bytes, [3, 2]);
    });
}

#[test]
fn a_reader_that_sleeps_hears_of_an_byte() {
    bring_one(false);
}

#[test]
fn a_writer_that_sleeps_hears_of_room() {
    make_room();
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_reader_without_fences_is_found() {
    WITHOUT_FENCES.set(true);
    bring_one(false);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_writer_without_fences_is_found() {
    WITHOUT_FENCES.set(true);
    make_room();
}

#[test]
#[should_panic(expected = "deadlock")]
fn to_sleep_without_a_second_look_is_found() {
    bring_one(true);
}

#[test]
fn bytes_come_through_a_ring_that_is_too_short_for_them() {
    let case = Case {
        ring_bytes: 2,
        portions: &[&[1, 2, 3]],
        wanted: 1,
    };
    meet(case, 3);
}

#[test]
fn who_waits_for_several_bytes_gets_what_came_before_the_end() {
    let case = Case {
        ring_bytes: 4,
        portions: &[&[1], &[2], &[3]],
        wanted: 2,
    };
    meet(case, 3);
}
