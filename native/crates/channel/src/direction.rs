//! One direction in a sealed file of two processes: its words, its slots and its ring.

use crate::atomics::{AtomicU32, AtomicU64};
use crate::slots::{Freed, SLOT_BYTES, SlotMemory, Word};
use crate::sys::area::Area;

/// Bytes of the words of both directions, which come first in a file.
pub const WORDS_BYTES: usize = 4096;

const AT_FREED: usize = 128;
const AT_READER_ASLEEP: usize = 256;
const AT_WRITER_ASLEEP: usize = 384;
const AT_PLACING: usize = 512;
const AT_ENDED: usize = 640;
const AT_PROCESSOR: usize = 768;

/// A direction with so many slots.
#[derive(Clone, Copy, Debug)]
pub struct Direction<'a, const SLOTS: usize> {
    area: &'a Area,
    words: usize,
    slots: usize,
    pub(crate) ring_bytes: usize,
}

impl<'a, const SLOTS: usize> Direction<'a, SLOTS> {
    /// Return the bytes of a file with two of them.
    pub(crate) const fn file_bytes(ring_bytes: usize) -> usize {
        WORDS_BYTES + 2 * (SLOTS * SLOT_BYTES + ring_bytes)
    }

    /// Return a direction: 0 is written by the side that connected, 1 by the one that accepted.
    #[inline]
    pub(crate) fn of(area: &'a Area, number: usize, ring_bytes: usize) -> Self {
        let number = number & 1;
        Self {
            area,
            words: number * (WORDS_BYTES / 2),
            slots: WORDS_BYTES + number * (SLOTS * SLOT_BYTES + ring_bytes),
            ring_bytes,
        }
    }

    /// Return the memory and, for a place from the first slot on, the place in it.
    #[inline]
    pub fn place(&self, at: usize) -> (&'a Area, usize) {
        (self.area, self.slots + at)
    }

    /// Give slots and ring back to the system. Only the writer does, when nothing is pending.
    pub fn give_back(&self) {
        let length = SLOTS * SLOT_BYTES + self.ring_bytes;
        self.area.give_back(self.slots, length);
    }
}

impl<const SLOTS: usize> SlotMemory for Direction<'_, SLOTS> {
    const SLOTS: usize = SLOTS;

    #[inline]
    fn word(&self, word: Word) -> &AtomicU32 {
        let at = match word {
            Word::ReaderAsleep => AT_READER_ASLEEP,
            Word::WriterAsleep => AT_WRITER_ASLEEP,
            Word::Placing => AT_PLACING,
            Word::Ended => AT_ENDED,
            Word::Processor => AT_PROCESSOR,
        };
        self.area.word(self.words + at)
    }

    #[inline]
    fn freed(&self, which: Freed) -> &AtomicU64 {
        let at = match which {
            Freed::Slots => AT_FREED,
            Freed::Ring => AT_FREED + 8,
            Freed::Bytes => AT_FREED + 16,
        };
        self.area.long(self.words + at)
    }

    #[inline]
    fn stamp(&self, place: usize) -> &AtomicU64 {
        self.area.long(self.slots + place * SLOT_BYTES)
    }

    #[inline]
    fn copy_in(&self, at: usize, bytes: &[u8]) {
        self.area.copy_in(self.slots + at, bytes);
    }

    #[inline]
    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        self.area.copy_out(self.slots + at, bytes);
    }

    #[inline]
    fn prefetch(&self, at: usize) {
        self.area.prefetch(self.slots + at);
    }
}
