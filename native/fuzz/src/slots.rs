//! A direction of a verbs channel whose other side writes what it likes into its memory at any time.
//!
//! The script is what the other side does between our calls. As long as it keeps to the rules the
//! direction is a queue of packets. After that it may give an error or wrong packets, but nothing out
//! of bounds, no more than a packet holds, and no panic; and a writer that was told a wrong count
//! publishes nothing. Bytes around the direction stay what they were.
//!
//! Cheap, since it has to run often: the memory is made once, and cleared as far as it was written.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arbitrary::{Arbitrary, Unstructured};
use urds_channel::slots::{
    Fields, Freed, Reader, SLOT_BYTES, SlotMemory, Word, Writer, flags, kinds,
};

const STEPS_MAX: usize = 60;
/// Before and behind the direction: what no side may write.
const GUARD_BYTES: usize = 64;
const GUARD: u8 = 0xA5;
/// Longer ones cost time and find little.
const SHORT_BYTES: usize = 300;

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step {
    Put(u16),
    Take(u8),
    ReaderSleeps,
    WriterSleeps(u16),
    /// From here on the other side does as it likes.
    Word(u8, u32),
    Freed {
        of_ring: bool,
        by: i16,
    },
    FreedAny {
        of_ring: bool,
        count: u64,
    },
    Stamp {
        ahead: u8,
        bytes: u32,
    },
    /// Of the slot that is next.
    Field {
        at: u8,
        byte: u8,
    },
    Byte {
        at: u16,
        byte: u8,
    },
}

struct Memory {
    words: [AtomicU32; 5],
    freed: [AtomicU64; 2],
    stamps: [AtomicU64; Memory::SLOTS],
    /// Slots, then the ring, between guards.
    bytes: RefCell<Vec<u8>>,
    /// End of what was written since it was cleared.
    written: Cell<usize>,
}

thread_local! {
    static BYTES: RefCell<Vec<u8>> = RefCell::new({
        let inside = Memory::SLOTS * SLOT_BYTES + Memory::RING_BYTES;
        let mut bytes = vec![GUARD; inside + 2 * GUARD_BYTES];
        bytes[GUARD_BYTES..][..inside].fill(0);
        bytes
    });
}

impl SlotMemory for Memory {
    const SLOTS: usize = 8;
    const RING_BYTES: usize = 32 << 10;
    const PAYLOAD_BYTES_MAX: usize = 10 << 10;

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
        let at = at + GUARD_BYTES;
        let end = at + bytes.len();
        self.bytes.borrow_mut()[at..end].copy_from_slice(bytes);
        self.written.set(self.written.get().max(end));
    }

    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        let at = at + GUARD_BYTES;
        bytes.copy_from_slice(&self.bytes.borrow()[at..at + bytes.len()]);
    }
}

impl Memory {
    fn starting_at(slots: u64, position: u64) -> Self {
        Self {
            words: Default::default(),
            freed: [AtomicU64::new(slots), AtomicU64::new(position)],
            stamps: Default::default(),
            bytes: RefCell::new(BYTES.take()),
            written: Cell::new(GUARD_BYTES),
        }
    }

    fn length(&self) -> usize {
        self.bytes.borrow().len() - 2 * GUARD_BYTES
    }
}

impl Drop for Memory {
    /// Look at the guards, clear what was written and keep the bytes for the next script.
    fn drop(&mut self) {
        let mut bytes = self.bytes.take();
        let end = bytes.len() - GUARD_BYTES;
        let guards = bytes[..GUARD_BYTES].iter().chain(&bytes[end..]);
        assert!({ guards }.all(|byte| *byte == GUARD), "written outside");
        let written = self.written.get().min(end);
        bytes[GUARD_BYTES..written].fill(0);
        BYTES.set(bytes);
    }
}

struct World {
    memory: Memory,
    writer: Writer,
    reader: Reader,
    queue: VecDeque<(Fields, Vec<u8>)>,
    is_honest: bool,
    sent: u32,
}

/// Follow the script that the bytes make.
///
/// # Panics
/// If a rule is broken.
pub fn run(bytes: &[u8]) {
    let mut source = Unstructured::new(bytes);
    // Late: before the ordinals come round.
    let is_late = source.arbitrary().unwrap_or(false);
    let mut world = if is_late {
        World::new(u64::from(u32::MAX) - 5, 1 << 32)
    } else {
        World::new(0, 0)
    };
    for _ in 0..STEPS_MAX {
        match source.arbitrary() {
            Ok(step) if !source.is_empty() => world.follow(step),
            _ => return,
        }
    }
}

/// Return a length of payload: seven of eight are short.
fn length(word: u16) -> usize {
    let is_long = word % 8 == 7;
    let below = if is_long {
        Memory::PAYLOAD_BYTES_MAX + 1
    } else {
        SHORT_BYTES
    };
    usize::from(word) % below
}

impl World {
    fn new(start: u64, position: u64) -> Self {
        let memory = Memory::starting_at(start, position);
        Self {
            memory,
            writer: Writer::starting_at(start, position),
            reader: Reader::starting_at(start, position),
            queue: VecDeque::new(),
            is_honest: true,
            sent: 0,
        }
    }

    fn follow(&mut self, step: Step) {
        match step {
            Step::Put(bytes) => self.put(length(bytes)),
            Step::Take(count) => (0..count % 40).for_each(|_| self.take()),
            Step::ReaderSleeps => {
                let asleep = self.reader.sleep(&self.memory, &mut || ());
                assert!(!self.is_honest || asleep == self.queue.is_empty());
            }
            Step::WriterSleeps(bytes) => {
                let bytes = length(bytes);
                let has_room = self.writer.has_room(&self.memory, bytes);
                let asleep = self.writer.sleep(&self.memory, bytes);
                assert_eq!(asleep, has_room.map(|has_room| !has_room));
                assert!(!self.is_honest || asleep.is_ok());
            }
            _ => self.interfere(step),
        }
    }

    fn interfere(&mut self, step: Step) {
        self.is_honest = false;
        let memory = &self.memory;
        let place = |ahead: u8| {
            let number = self.reader.slots() + u64::from(ahead % 3);
            (number, usize::try_from(number).unwrap_or(0) % Memory::SLOTS)
        };
        match step {
            Step::Word(at, value) => {
                memory.words[usize::from(at) % 5].store(value, Ordering::Relaxed);
            }
            Step::Freed { of_ring, by } => {
                let word = &memory.freed[usize::from(of_ring)];
                let by = i64::from(by) * if of_ring { 64 } else { 1 };
                let told = word.load(Ordering::Relaxed).wrapping_add_signed(by);
                word.store(told, Ordering::Relaxed);
            }
            Step::FreedAny { of_ring, count } => {
                memory.freed[usize::from(of_ring)].store(count, Ordering::Relaxed);
            }
            Step::Stamp { ahead, bytes } => {
                let (number, place) = place(ahead);
                let ordinal = number % u64::from(u32::MAX) + 1;
                memory.stamps[place].store(ordinal << 32 | u64::from(bytes), Ordering::Relaxed);
            }
            Step::Field { at, byte } => {
                let at = place(0).1 * SLOT_BYTES + 8 + usize::from(at) % 40;
                memory.copy_in(at, &[byte]);
            }
            Step::Byte { at, byte } => {
                memory.copy_in(usize::from(at) % memory.length(), &[byte]);
            }
            _ => (),
        }
    }

    fn fields(&mut self) -> Fields {
        self.sent += 1;
        Fields {
            kind: kinds::SEND,
            flags: flags::FIRST | flags::LAST,
            psn: self.sent,
            ..Fields::default()
        }
    }

    fn put(&mut self, bytes: usize) {
        let fields = self.fields();
        let payload = vec![self.sent.to_le_bytes()[0]; bytes];
        let memory = &self.memory;
        let before = self.writer.slots();
        let put = self
            .writer
            .put(memory, &fields, bytes, |at| memory.copy_in(at, &payload));
        let published = self.writer.slots().wrapping_sub(before);
        assert_eq!(published, u64::from(put == Ok(true)));
        assert!(!self.is_honest || put.is_ok());
        if put == Ok(true) {
            self.queue.push_back((fields, payload));
        }
        self.writer.must_ring(&self.memory);
    }

    fn take(&mut self) {
        let mut rung = 0;
        let taken = self.reader.take(&self.memory, &mut || rung += 1);
        assert!(rung <= 1, "one word, one doorbell");
        let expected = self.queue.pop_front();
        if let Ok(Some(taken)) = taken {
            assert!(taken.bytes <= Memory::PAYLOAD_BYTES_MAX);
            let mut payload = vec![0; taken.bytes];
            self.memory.copy_out(taken.at, &mut payload);
            assert!(!self.is_honest || expected == Some((taken.fields, payload)));
        } else {
            assert!(!self.is_honest || (taken == Ok(None) && expected.is_none()));
        }
    }
}
