//! The memory of a shm stream: words, slots and rings of both directions in one sealed file.

use crate::atomics::{AtomicU32, AtomicU64};
use crate::bytes::{ByteMemory, RING_BYTES_MAX, RING_BYTES_MIN};
use crate::channel_memory::{WORDS_BYTES, freed_at, word_at};
use crate::slots::{Freed, SLOT_BYTES, SlotMemory, Word};
use crate::sys::Errno;
use crate::sys::area::Area;

/// Slots of a direction: fewer than a channel's, for a burst of messages is one write.
pub const SLOTS: usize = 512;
const AT_FREED_BYTES: usize = 144;

/// Return the bytes of the file for rings of this size.
pub fn file_bytes(ring_bytes: usize) -> usize {
    WORDS_BYTES + 2 * (SLOTS * SLOT_BYTES + ring_bytes)
}

/// A mapping of a stream's file.
#[derive(Debug)]
pub struct StreamMemory {
    area: Area,
    ring_bytes: usize,
}

impl StreamMemory {
    /// Map a file, whose descriptor stays the caller's.
    ///
    /// # Errors
    /// EINVAL for a size that no ring has, or unless it is sealed plain memory of just the length for it;
    /// of the system.
    pub fn map(file: i32, ring_bytes: usize) -> Result<Self, Errno> {
        let has_size = (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes);
        if !has_size || !ring_bytes.is_power_of_two() {
            return Err(Errno(libc::EINVAL));
        }
        let area = Area::map(file)?;
        if area.length() == file_bytes(ring_bytes) {
            Ok(Self { area, ring_bytes })
        } else {
            Err(Errno(libc::EINVAL))
        }
    }

    /// Return a direction: 0 is written by the side that connected, 1 by the one that accepted.
    #[inline]
    pub fn direction(&self, number: usize) -> StreamDirection<'_> {
        let number = number & 1;
        StreamDirection {
            area: &self.area,
            words: number * (WORDS_BYTES / 2),
            slots: WORDS_BYTES + number * (SLOTS * SLOT_BYTES + self.ring_bytes),
            ring_bytes: self.ring_bytes,
        }
    }

    /// Unmap the page of the words until they are used again; they keep their values.
    pub fn rest_words(&self) {
        self.area.rest(WORDS_BYTES);
    }
}

/// A direction in a stream's memory.
#[derive(Clone, Copy, Debug)]
pub struct StreamDirection<'a> {
    area: &'a Area,
    words: usize,
    slots: usize,
    ring_bytes: usize,
}

impl StreamDirection<'_> {
    /// Give slots and ring back to the system. Only the writer does, when nothing is pending.
    pub fn give_back(&self) {
        let length = SLOTS * SLOT_BYTES + self.ring_bytes;
        self.area.give_back(self.slots, length);
    }
}

impl SlotMemory for StreamDirection<'_> {
    const SLOTS: usize = SLOTS;

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

impl ByteMemory for StreamDirection<'_> {
    #[inline]
    fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    #[inline]
    fn freed_bytes(&self) -> &AtomicU64 {
        self.area.long(self.words + AT_FREED_BYTES)
    }
}
