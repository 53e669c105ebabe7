//! The memory of a channel: words, slots and rings of both directions in one sealed file.

use crate::atomics::{AtomicU32, AtomicU64};
use crate::slots::{Freed, RING_BYTES, SLOT_BYTES, SLOTS, SlotMemory, Word};
use crate::sys::Errno;
use crate::sys::area::Area;

/// Bytes of the words of both directions.
pub(crate) const WORDS_BYTES: usize = 4096;
const DIRECTION_BYTES: usize = SLOTS * SLOT_BYTES + RING_BYTES;
/// Bytes of the file.
pub const FILE_BYTES: usize = WORDS_BYTES + 2 * DIRECTION_BYTES;

const AT_FREED: usize = 128;
const AT_READER_ASLEEP: usize = 256;
const AT_WRITER_ASLEEP: usize = 384;
const AT_PLACING: usize = 512;
const AT_ENDED: usize = 640;
const AT_PROCESSOR: usize = 768;

/// Return where a word lies among those of a direction.
#[inline]
pub(crate) fn word_at(word: Word) -> usize {
    match word {
        Word::ReaderAsleep => AT_READER_ASLEEP,
        Word::WriterAsleep => AT_WRITER_ASLEEP,
        Word::Placing => AT_PLACING,
        Word::Ended => AT_ENDED,
        Word::Processor => AT_PROCESSOR,
    }
}

/// Return where a count lies among the words of a direction.
#[inline]
pub(crate) fn freed_at(which: Freed) -> usize {
    match which {
        Freed::Slots => AT_FREED,
        Freed::Ring => AT_FREED + 8,
    }
}

/// A mapping of a channel's file.
#[derive(Debug)]
pub struct ChannelMemory(Area);

impl ChannelMemory {
    /// Map a file, whose descriptor stays the caller's.
    ///
    /// # Errors
    /// EINVAL unless it is sealed plain memory of just that length; of the system.
    pub fn map(file: i32) -> Result<Self, Errno> {
        let area = Area::map(file)?;
        if area.length() == FILE_BYTES {
            Ok(Self(area))
        } else {
            Err(Errno(libc::EINVAL))
        }
    }

    /// Return a direction: 0 is written by the side that connected, 1 by the one that accepted.
    #[inline]
    pub fn direction(&self, number: usize) -> Direction<'_> {
        let number = number & 1;
        Direction {
            area: &self.0,
            words: number * (WORDS_BYTES / 2),
            slots: WORDS_BYTES + number * DIRECTION_BYTES,
        }
    }
}

/// A direction in a channel's memory.
#[derive(Clone, Copy, Debug)]
pub struct Direction<'a> {
    area: &'a Area,
    words: usize,
    slots: usize,
}

impl<'a> Direction<'a> {
    /// Return the memory and, for a place from the first slot on, the place in it.
    #[inline]
    pub fn place(&self, at: usize) -> (&'a Area, usize) {
        (self.area, self.slots + at)
    }

    /// Give slots and ring back to the system. Only the writer does, when it `is_drained`.
    pub fn give_back(&self) {
        self.area.give_back(self.slots, DIRECTION_BYTES);
    }
}

impl SlotMemory for Direction<'_> {
    #[inline]
    fn word(&self, word: Word) -> &AtomicU32 {
        self.area.word(self.words + word_at(word))
    }

    #[inline]
    fn freed(&self, which: Freed) -> &AtomicU64 {
        self.area.long(self.words + freed_at(which))
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
}
