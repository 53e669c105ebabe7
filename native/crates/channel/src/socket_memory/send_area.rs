//! The send area: tiled by records, each with its length and state in one word.
//!
//! A tile's first word holds its units (of 64 bytes) and whether it is used. Senders, who hold the
//! lock of senders, split free tiles and join them; the node sets tiles free. Each of these is one
//! store: a sender that is killed at any instruction leaves a tiling. A word of zero units is the
//! rest of the area, free: so memory of zeros is one free tile.

use core::sync::atomic::Ordering;

use super::layout::{AT_CURSOR, Layout, TILE_FREE, TILE_USED};
use crate::sys::area::{Area, PAGE_BYTES};

/// The tiling is none: a process wrote nonsense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// A tile as read.
struct Tile {
    units: u32,
    is_free: bool,
}

/// Tiles of one socket, for who holds the lock of its senders.
pub struct SendArea<'a> {
    pub area: &'a Area,
    pub layout: &'a Layout,
}

impl SendArea<'_> {
    fn read(&self, unit: u32) -> Result<Tile, Corrupt> {
        let word = self
            .area
            .long(self.layout.send_unit(unit))
            .load(Ordering::Acquire);
        let rest = self.layout.send_units - unit;
        let units = match u32::try_from(word & 0xffff_ffff).unwrap_or(u32::MAX) {
            0 => rest,
            units => units,
        };
        if units > rest {
            return Err(Corrupt);
        }
        Ok(Tile {
            units,
            is_free: word & TILE_USED == 0,
        })
    }

    fn write(&self, unit: u32, units: u32, state: u64) {
        let word = u64::from(units) | state;
        self.area
            .long(self.layout.send_unit(unit))
            .store(word, Ordering::Release);
    }

    fn set_cursor(&self, unit: u32) {
        self.area.word(AT_CURSOR).store(unit, Ordering::Relaxed);
    }

    /// Find a free tile of so many units; None if there is none. `soft` is how far to go before
    /// turning back, so that few pages are used.
    ///
    /// The tile is joined of what is free, and not split or used yet.
    pub fn find(&self, needed: u32, soft: u32) -> Result<Option<u32>, Corrupt> {
        let end = self.layout.send_units;
        let cursor = self.area.word(AT_CURSOR).load(Ordering::Relaxed);
        // Behind the soft end it goes on while nothing is free at the start: to look from there each
        // time would be to look at every message that waits.
        if cursor > 0 && cursor < end && (cursor < soft || self.is_used(0)?) {
            let to = if cursor < soft { soft } else { end };
            let found = self.walk(cursor, to, needed)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        self.walk(0, end, needed)
    }

    /// Look at the tiles that begin in a range.
    fn walk(&self, from: u32, to: u32, needed: u32) -> Result<Option<u32>, Corrupt> {
        let mut at = from;
        while at < to {
            let tile = self.read(at)?;
            let mut units = tile.units;
            if tile.is_free {
                while units < needed && at + units < self.layout.send_units {
                    let next = self.read(at + units)?;
                    if !next.is_free {
                        break;
                    }
                    units += next.units;
                }
                if units > tile.units {
                    self.join(at, units);
                }
                if units >= needed {
                    return Ok(Some(at));
                }
            }
            at += units; // never 0: at least one unit
        }
        Ok(None)
    }

    fn join(&self, at: u32, units: u32) {
        let cursor = self.area.word(AT_CURSOR).load(Ordering::Relaxed);
        if cursor > at && cursor < at + units {
            self.set_cursor(at); // or it would point into the middle of a tile
        }
        self.write(at, units, TILE_FREE);
    }

    /// Use the first units of a free tile that `find` returned.
    pub fn claim(&self, at: u32, needed: u32) -> Result<(), Corrupt> {
        let tile = self.read(at)?;
        if !tile.is_free || tile.units < needed {
            return Err(Corrupt);
        }
        let next = at + needed;
        if tile.units > needed {
            self.write(next, tile.units - needed, TILE_FREE);
        }
        self.write(at, needed, TILE_USED);
        let is_end = next >= self.layout.send_units;
        self.set_cursor(if is_end { 0 } else { next });
        Ok(())
    }

    /// Set a tile free that was claimed and not published.
    pub fn unclaim(&self, at: u32) -> Result<(), Corrupt> {
        let tile = self.read(at)?;
        self.write(at, tile.units, TILE_FREE);
        Ok(())
    }

    /// Count the tiles that are used.
    pub fn used(&self) -> Result<usize, Corrupt> {
        let (mut at, mut count) = (0, 0);
        while at < self.layout.send_units {
            let tile = self.read(at)?;
            count += usize::from(!tile.is_free);
            at += tile.units; // never 0: at least one unit
        }
        Ok(count)
    }

    /// Return the tiles of the area: where each begins, its units, and whether it is used.
    #[cfg(test)]
    pub fn tiles(&self) -> Vec<(u32, u32, bool)> {
        let (mut at, mut tiles) = (0, Vec::new());
        while at < self.layout.send_units {
            let tile = self.read(at).expect("a tiling");
            tiles.push((at, tile.units, !tile.is_free));
            at += tile.units;
        }
        assert_eq!(at, self.layout.send_units, "the tiles fill the area");
        tiles
    }

    /// Return whether a tile is used.
    pub fn is_used(&self, at: u32) -> Result<bool, Corrupt> {
        Ok(!self.read(at)?.is_free)
    }

    /// Give the pages from one unit to another back; no tile is used. All is one free tile then.
    pub fn give_back(&self, from: u32, to: u32) {
        self.rewind(); // first: killed between the two it would point into the middle of a tile
        self.write(0, 0, TILE_FREE);
        let at = self.layout.send_unit(from);
        let end = (self.layout.send_unit(to) + 1).next_multiple_of(PAGE_BYTES); // a tile was split there
        let end = end.min(self.layout.receive_at);
        self.area.give_back(at, end - at);
    }

    /// Begin at the start again: nothing is in use.
    pub fn rewind(&self) {
        self.set_cursor(0);
    }
}
