//! The congestion memory: maps of the peers that are congested, for all clients of a node to read.
//!
//! The node alone can write it: clients get a descriptor that was opened for reading. A word tells
//! whether any map has a bit; a map lies in a slot, which the node's route table names to each
//! client. A slot's words change behind a sequence: odd while they do.

use core::sync::atomic::{Ordering, fence};

use crate::sys::Errno;
use crate::sys::area::{self, Area, PAGE_BYTES};

/// First word: `URDSCONG`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"URDSCONG");
/// Of this layout.
pub const VERSION: u32 = 1;
/// One bit per port, as on the wire.
pub const MAP_BYTES: usize = 8192;

const AT_MAGIC: usize = 0;
const AT_VERSION: usize = 8;
const AT_SLOTS: usize = 12;
const AT_ANY: usize = 128;
const AT_SEQUENCES: usize = PAGE_BYTES;
/// Looks at a slot that is being changed, before it counts as not congested.
const LOOKS: usize = 64;

fn maps_at(slots: u32) -> usize {
    (AT_SEQUENCES + slots as usize * 4).next_multiple_of(PAGE_BYTES)
}

/// A mapped congestion memory.
#[derive(Debug)]
pub struct CongestionMemory {
    area: Area,
    slots: u32,
}

/// Make one with so many slots: its descriptor, which is the caller's, and the node's view of it.
///
/// # Errors
/// Of the system.
pub fn make(slots: u32) -> Result<(i32, CongestionMemory), Errno> {
    let bytes = maps_at(slots) + slots as usize * MAP_BYTES;
    let (file, area) = area::make(bytes)?;
    area.word(AT_VERSION).store(VERSION, Ordering::Relaxed);
    area.word(AT_SLOTS).store(slots, Ordering::Relaxed);
    area.long(AT_MAGIC).store(MAGIC, Ordering::Release);
    Ok((file, CongestionMemory { area, slots }))
}

/// Take over the one of an earlier worker, by the descriptor that can write it.
///
/// # Errors
/// As `CongestionMemory::map`.
pub fn open(file: i32) -> Result<CongestionMemory, Errno> {
    CongestionMemory::of(Area::map(file)?)
}

impl CongestionMemory {
    /// Map one for reading.
    ///
    /// # Errors
    /// EINVAL for what is none, EPROTO for one of another version; of the system.
    pub fn map(file: i32) -> Result<Self, Errno> {
        Self::of(Area::map_to_read(file)?)
    }

    fn of(area: Area) -> Result<Self, Errno> {
        if area.long(AT_MAGIC).load(Ordering::Acquire) != MAGIC {
            return Err(Errno(libc::EINVAL));
        }
        if area.word(AT_VERSION).load(Ordering::Relaxed) != VERSION {
            return Err(Errno(libc::EPROTO));
        }
        let slots = area.word(AT_SLOTS).load(Ordering::Relaxed);
        if area.length() != maps_at(slots) + slots as usize * MAP_BYTES {
            return Err(Errno(libc::EINVAL));
        }
        Ok(Self { area, slots })
    }

    /// Return how many slots there are.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Return whether any port of any peer is congested.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.area.word(AT_ANY).load(Ordering::Acquire) != 0
    }

    /// Return whether a port is congested in the map of a slot.
    pub fn is_congested(&self, slot: u32, port: u16) -> bool {
        if slot >= self.slots {
            return false;
        }
        let sequence = self.area.word(AT_SEQUENCES + slot as usize * 4);
        let at = maps_at(self.slots) + slot as usize * MAP_BYTES + usize::from(port) / 32 * 4;
        for _ in 0..LOOKS {
            let before = sequence.load(Ordering::Acquire);
            let word = self.area.word(at).load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && sequence.load(Ordering::Relaxed) == before {
                return u32::from_le(word) >> (port % 32) & 1 != 0;
            }
            core::hint::spin_loop();
        }
        false
    }

    /// Set whether any port of any peer is congested. Of the node.
    pub fn set_any(&self, is_any: bool) {
        self.area
            .word(AT_ANY)
            .store(u32::from(is_any), Ordering::Release);
    }

    /// Empty a slot, if it is not. Of the node.
    ///
    /// # Panics
    /// Without such a slot.
    pub fn clear(&self, slot: u32) {
        let sequence = self.area.word(AT_SEQUENCES + slot as usize * 4);
        if sequence.load(Ordering::Relaxed) != 0 {
            self.set_map(slot, &[0; MAP_BYTES]);
        }
    }

    /// Put a map into a slot. Of the node.
    ///
    /// # Panics
    /// Without such a slot.
    pub fn set_map(&self, slot: u32, map: &[u8; MAP_BYTES]) {
        assert!(slot < self.slots, "a slot of this memory");
        let sequence = self.area.word(AT_SEQUENCES + slot as usize * 4);
        let number = sequence.load(Ordering::Relaxed) | 1; // odd, also after a killed worker
        sequence.store(number, Ordering::Relaxed);
        fence(Ordering::Release);
        let at = maps_at(self.slots) + slot as usize * MAP_BYTES;
        for (index, bytes) in map.chunks_exact(4).enumerate() {
            let word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let there = self.area.word(at + index * 4);
            if there.load(Ordering::Relaxed) != word {
                there.store(word, Ordering::Relaxed);
            }
        }
        sequence.store(number.wrapping_add(1), Ordering::Release);
    }
}

#[cfg(test)]
#[path = "congestion_tests.rs"]
mod tests;
