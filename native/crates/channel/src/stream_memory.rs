//! The memory of a shm stream: words, slots and rings of both directions in one sealed file.

use crate::bytes::{ByteMemory, RING_BYTES_MAX, RING_BYTES_MIN};
use crate::direction::{Direction, WORDS_BYTES};
use crate::sys::Errno;
use crate::sys::area::Area;

/// Slots of a direction: fewer than a channel's, for a burst of messages is one write.
pub const SLOTS: usize = 512;

/// A direction in a stream's memory.
pub type StreamDirection<'a> = Direction<'a, SLOTS>;

/// Return the bytes of the file for rings of this size.
pub fn file_bytes(ring_bytes: usize) -> usize {
    StreamDirection::file_bytes(ring_bytes)
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
        Direction::of(&self.area, number, self.ring_bytes)
    }

    /// Unmap the page of the words until they are used again; they keep their values.
    pub fn rest_words(&self) {
        self.area.rest(WORDS_BYTES);
    }
}

impl ByteMemory for StreamDirection<'_> {
    #[inline]
    fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }
}
