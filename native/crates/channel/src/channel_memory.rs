//! The memory of a channel: words, slots and rings of both directions in one sealed file.

use crate::direction;
use crate::slots::{RING_BYTES, SLOTS};
use crate::sys::Errno;
use crate::sys::area::Area;

/// A direction in a channel's memory.
pub type Direction<'a> = direction::Direction<'a, SLOTS>;

/// Bytes of the file.
pub const FILE_BYTES: usize = Direction::file_bytes(RING_BYTES);

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
        Direction::of(&self.0, number, RING_BYTES)
    }
}
