//! A direction of a shm stream whose other side writes what it likes into its words, and bytes at any time.
//!
//! The script is what the other side does between our calls. As long as it keeps to the rules the
//! stream is a queue. After that it may give an error or wrong bytes, but nothing out of bounds, no
//! more than was asked for, and no panic; an error lasts as long as the word that is one.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::io::IoSlice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arbitrary::{Arbitrary, Unstructured};
use urds_channel::bytes::{ByteMemory, INLINE_BYTES, Place, Reader, Writer};
use urds_channel::slots::{ChannelError, Freed, SLOT_BYTES, SlotMemory, Word};

const STEPS_MAX: usize = 60;
const SLOTS: usize = 16;

#[derive(Arbitrary, Debug)]
struct Script {
    bits: u8,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step {
    Write {
        first: u8,
        second: u16,
    },
    Read {
        first: u8,
        second: u16,
    },
    ReaderSleeps {
        wanted: u16,
    },
    WriterSleeps,
    Pending,
    Available,
    End,
    /// From here on the other side does as it likes.
    Stamp {
        place: u8,
        value: Value,
    },
    Freed {
        which: u8,
        value: Value,
    },
    Word {
        which: u8,
        value: u32,
    },
    Byte(u16),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Value {
    By(i8),
    /// Lengths of the slot that comes next.
    Next(u32),
    Any(u64),
}

struct Memory {
    words: [AtomicU32; 5],
    freed: [AtomicU64; 3],
    stamps: [AtomicU64; SLOTS],
    bytes: RefCell<Vec<u8>>,
    ring_bytes: usize,
}

impl SlotMemory for Memory {
    const SLOTS: usize = SLOTS;

    fn word(&self, word: Word) -> &AtomicU32 {
        &self.words[word as usize]
    }

    fn freed(&self, which: Freed) -> &AtomicU64 {
        &self.freed[which as usize]
    }

    fn stamp(&self, place: usize) -> &AtomicU64 {
        &self.stamps[place]
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) {
        self.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.bytes.borrow()[at..at + bytes.len()]);
    }
}

impl ByteMemory for Memory {
    fn ring_bytes(&self) -> usize {
        self.ring_bytes
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
    let mut world = World::new(1 << (7 + script.bits % 6));
    for step in script.steps.iter().take(STEPS_MAX) {
        world.follow(*step);
    }
}

impl World {
    fn new(ring_bytes: usize) -> Self {
        Self {
            memory: Memory {
                words: Default::default(),
                freed: Default::default(),
                stamps: Default::default(),
                bytes: RefCell::new(vec![0; SLOTS * SLOT_BYTES + ring_bytes]),
                ring_bytes,
            },
            writer: Writer::default(),
            reader: Reader::default(),
            queue: VecDeque::new(),
            is_honest: true,
            count: 0,
        }
    }

    /// Return the most bytes that can be on their way.
    fn most(&self) -> usize {
        self.memory.ring_bytes + SLOTS * INLINE_BYTES
    }

    fn follow(&mut self, step: Step) {
        match step {
            Step::Write { first, second } => {
                self.write(first.into(), usize::from(second) % 2000);
            }
            Step::Read { first, second } => self.read(first.into(), usize::from(second) % 2000),
            Step::ReaderSleeps { wanted } => {
                let come = self.reader.has_come(&self.memory, wanted.into());
                let has_ended = Reader::has_ended(&self.memory);
                let asleep = self.reader.sleep(&self.memory, wanted.into(), &mut || ());
                self.judge(&asleep, &(come == Ok(false) && !has_ended));
                let pending = self.writer.pending(&self.memory);
                self.judge(&pending, &self.queue.len());
            }
            Step::WriterSleeps => {
                let has_room = self.writer.has_room(&self.memory);
                let asleep = self.writer.sleep(&self.memory);
                self.judge(&asleep, &(has_room == Ok(false)));
            }
            Step::Pending => {
                let (pending, most) = (self.writer.pending(&self.memory), self.most());
                assert_eq!(pending, self.writer.pending(&self.memory));
                assert!(pending.is_ok_and(|bytes| bytes <= most) || !self.is_honest);
                assert!(pending.is_ok_and(|bytes| bytes >= self.queue.len()) || !self.is_honest);
            }
            Step::Available => {
                let here = self.reader.available(&self.memory);
                assert_eq!(here, self.reader.available(&self.memory));
                let has_some = here.map(|bytes| bytes > 0);
                self.judge(&has_some, &!self.queue.is_empty());
                let has_news = Place::of(self.reader.place().to_u64()).has_news(&self.memory);
                assert_eq!(
                    has_news,
                    has_some != Ok(false),
                    "bytes, or an error to find"
                );
            }
            Step::End => {
                self.writer.end(&self.memory);
                assert!(Reader::has_ended(&self.memory));
            }
            _ => self.interfere(step),
        }
    }

    fn interfere(&mut self, step: Step) {
        self.is_honest = false;
        let (word, value) = match step {
            Step::Stamp { place, value } => {
                (&self.memory.stamps[usize::from(place) % SLOTS], value)
            }
            Step::Freed { which, value } => (&self.memory.freed[usize::from(which) % 3], value),
            Step::Word { which, value } => {
                self.memory.words[usize::from(which) % 5].store(value, Ordering::Relaxed);
                return;
            }
            Step::Byte(at) => {
                let mut bytes = self.memory.bytes.borrow_mut();
                let at = usize::from(at) % bytes.len();
                bytes[at] ^= 0xFF;
                return;
            }
            _ => return,
        };
        let before = word.load(Ordering::Relaxed);
        let after = match value {
            Value::By(by) => before.wrapping_add_signed(by.into()),
            Value::Next(length) => ((before >> 32) + SLOTS as u64) << 32 | u64::from(length),
            Value::Any(any) => any,
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
        let mut rung = 0;
        let before = self.writer.written();
        let written = self.writer.write(&self.memory, &pieces, &mut || rung += 1);
        assert!(rung <= 1, "one word, one doorbell");
        let Ok(taken) = written else {
            assert!(!self.is_honest, "an error of an honest reader");
            return;
        };
        assert!(taken <= bytes.len());
        assert_eq!(self.writer.written(), before + taken as u64);
        if self.is_honest {
            self.queue.extend(&bytes[..taken]);
            assert!(self.queue.len() <= self.most());
            let is_full = self.writer.has_room(&self.memory) == Ok(false);
            assert!(taken == bytes.len() || is_full, "what fits is taken");
        }
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
        assert!(taken <= first + second);
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
    fn judge<T: PartialEq + Debug>(&self, answer: &Result<T, ChannelError>, expected: &T) {
        if self.is_honest {
            assert_eq!(answer.as_ref(), Ok(expected));
        }
    }
}
