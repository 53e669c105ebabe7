//! A ring of a shm stream whose other side writes what it likes into its words, and bytes at any time.
//!
//! The script is what the other side does between our calls. As long as it keeps to the rules the
//! ring is a queue. After that it may give a protocol error or wrong bytes, but nothing out of bounds, no
//! more than the ring holds, and no panic; a protocol error lasts as long as the position that is one.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::atomic::Ordering;

use arbitrary::{Arbitrary, Unstructured};

use crate::shared_ring::{Control, ProtocolError, Reader, RingMemory, Writer};

const STEPS_MAX: usize = 60;

#[derive(Arbitrary, Debug)]
struct Script {
    bits: u8,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step {
    Write {
        first: u8,
        second: u8,
    },
    Read {
        first: u8,
        second: u8,
    },
    ReaderSleeps {
        wanted: u16,
    },
    WriterSleeps,
    Pending,
    Available,
    End,
    /// From here on the other side does as it likes.
    Head(Position),
    Tail(Position),
    ReaderAsleep(u32),
    WriterAsleep(u32),
    Byte(u8),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Position {
    By(i8),
    Times(u8), // rings ahead
    Any(u64),
}

struct Memory {
    control: Control,
    bytes: RefCell<Box<[u8]>>,
}

impl RingMemory for Memory {
    fn control(&self) -> &Control {
        &self.control
    }

    fn ring_bytes(&self) -> usize {
        self.bytes.borrow().len()
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) {
        self.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.bytes.borrow()[at..at + bytes.len()]);
    }
}

struct World {
    memory: Memory,
    writer: Writer,
    reader: Reader,
    queue: VecDeque<u8>,
    is_honest: bool,
    count: u8,
}

/// Follow the script that the bytes make.
///
/// # Panics
/// If a rule is broken.
pub fn run(bytes: &[u8]) {
    let Ok(script) = Script::arbitrary_take_rest(Unstructured::new(bytes)) else {
        return;
    };
    let mut world = World::new(1 << (1 + script.bits % 8));
    for step in script.steps.iter().take(STEPS_MAX) {
        world.follow(*step);
    }
}

impl World {
    fn new(ring_bytes: usize) -> Self {
        Self {
            memory: Memory {
                control: Control::default(),
                bytes: RefCell::new(vec![0; ring_bytes].into()),
            },
            writer: Writer::default(),
            reader: Reader::default(),
            queue: VecDeque::new(),
            is_honest: true,
            count: 0,
        }
    }

    fn follow(&mut self, step: Step) {
        let length = self.memory.ring_bytes();
        match step {
            Step::Write { first, second } => self.write(first.into(), second.into()),
            Step::Read { first, second } => self.read(first.into(), second.into()),
            Step::ReaderSleeps { wanted } => {
                let asleep = self.reader.sleep(&self.memory, wanted.into());
                let wanted = usize::from(wanted).clamp(1, length / 2);
                let here = self.queue.len();
                let has_ended = Reader::has_ended(&self.memory.control);
                self.judge(&asleep, &(here < wanted && !has_ended));
            }
            Step::WriterSleeps => {
                let asleep = self.writer.sleep(&self.memory);
                self.judge(&asleep, &(self.queue.len() == length));
            }
            Step::Pending => {
                let pending = self.writer.pending(&self.memory);
                assert_eq!(pending, self.writer.pending(&self.memory));
                assert!(pending.is_ok_and(|bytes| bytes <= length) || pending.is_err());
                self.judge(&pending, &self.queue.len());
            }
            Step::Available => {
                let here = self.reader.available(&self.memory);
                assert_eq!(here, self.reader.available(&self.memory));
                assert!(here.is_ok_and(|bytes| bytes <= length) || here.is_err());
                self.judge(&here, &self.queue.len());
            }
            Step::End => {
                self.writer.end(&self.memory.control);
                assert!(Reader::has_ended(&self.memory.control));
            }
            Step::Head(_) | Step::Tail(_) | Step::Byte(_) => self.interfere(step),
            Step::ReaderAsleep(word) => {
                self.memory
                    .control
                    .reader_asleep
                    .0
                    .store(word, Ordering::Relaxed);
            }
            Step::WriterAsleep(word) => {
                self.memory
                    .control
                    .writer_asleep
                    .0
                    .store(word, Ordering::Relaxed);
            }
        }
    }

    fn interfere(&mut self, step: Step) {
        self.is_honest = false;
        let length = self.memory.ring_bytes() as u64;
        let control = &self.memory.control;
        let (word, position) = match step {
            Step::Head(position) => (&control.head.0, position),
            Step::Tail(position) => (&control.tail.0, position),
            Step::Byte(at) => {
                let mut bytes = self.memory.bytes.borrow_mut();
                let at = usize::from(at) % bytes.len();
                bytes[at] ^= 0xFF;
                return;
            }
            _ => return,
        };
        let before = word.load(Ordering::Relaxed);
        let after = match position {
            Position::By(by) => before.wrapping_add_signed(by.into()),
            Position::Times(times) => before.wrapping_add(length * u64::from(times)),
            Position::Any(any) => any,
        };
        word.store(after, Ordering::Relaxed);
    }

    fn write(&mut self, first: usize, second: usize) {
        let bytes: Vec<u8> = (0..first + second)
            .map(|_| {
                self.count = self.count.wrapping_add(1);
                self.count
            })
            .collect();
        let pieces = [IoSlice::new(&bytes[..first]), IoSlice::new(&bytes[first..])];
        let room = self.memory.ring_bytes();
        let mut rung = 0;
        let before = self.writer.position();
        let written = self.writer.write(&self.memory, &pieces, &mut || rung += 1);
        assert!(rung <= 1, "one word, one doorbell");
        let taken = written.unwrap_or(0);
        assert!(taken <= room.min(bytes.len()));
        assert_eq!(self.writer.position(), before + taken as u64);
        let expected = bytes.len().min(room - self.queue.len().min(room));
        if self.is_honest {
            self.queue.extend(&bytes[..taken]);
        }
        self.judge(&written, &expected);
    }

    fn read(&mut self, first: usize, second: usize) {
        let (mut one, mut other) = (vec![0; first], vec![0; second]);
        let mut rung = 0;
        let memory = &self.memory;
        let read = self
            .reader
            .read(memory, &mut one, &mut other, &mut || rung += 1);
        assert!(rung <= 1, "one word, one doorbell");
        let taken = read.unwrap_or(0);
        assert!(taken <= (first + second).min(memory.ring_bytes()));
        let expected = self.queue.len().min(first + second);
        if self.is_honest {
            one.truncate(taken);
            other.truncate(taken.saturating_sub(first));
            let bytes: Vec<u8> = self.queue.drain(..taken).collect();
            assert_eq!([one, other].concat(), bytes);
        }
        self.judge(&read, &expected);
    }

    /// As long as the other side kept to the rules the answer is that of a queue.
    fn judge<T: PartialEq + std::fmt::Debug>(
        &self,
        answer: &Result<T, ProtocolError>,
        expected: &T,
    ) {
        if self.is_honest {
            assert_eq!(answer.as_ref(), Ok(expected));
        }
    }
}
