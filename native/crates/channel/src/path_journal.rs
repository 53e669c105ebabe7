//! The numbers of a node's paths, in memory of the node alone that outlives its worker.
//!
//! An entry is a path: two addresses, an index, the number of its next message, the peer's numbers,
//! whether it has a connection, for the next worker to make it again, and whether it was closed: the
//! next worker begins with those that were not. `next` is stored after the numbers of the messages
//! before it and before their first byte leaves; `expected` after a message is delivered and before
//! it is acknowledged. The generation is the node's own: to its peers a new worker is a connection
//! that broke.

use core::sync::atomic::Ordering;

use crate::socket_memory::Name;
use crate::sys::Errno;
use crate::sys::area::{self, Area, PAGE_BYTES};

/// First word: `URDSPATH`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"URDSPATH");

const ENTRIES: u32 = 16_384;
const ENTRY_BYTES: usize = 128;
const AT_MAGIC: usize = 0;
const AT_USED: usize = 8;
const AT_GENERATION: usize = 12;

const LOCAL: usize = 0;
const PEER: usize = 24;
const INDEX: usize = 48;
const FLAGS: usize = 52;
const NEXT: usize = 56;
const EXPECTED: usize = 64;
const FLOOR: usize = 72;
const PROBE: usize = 80;
const PEER_GENERATION: usize = 88;
const MAP_GENERATION: usize = 96;
/// Another release left it 0.
const CONNECTED: usize = 104;
/// Another release left it 0: so its paths count as there.
const CLOSED: usize = 108;

const HAS_FLOOR: u32 = 1;
const HAS_PROBE: u32 = 2;
const HAS_PEER_GENERATION: u32 = 4;
const HAS_MAP_GENERATION: u32 = 8;
const WATCHES: u32 = 16;

/// What names a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathName {
    pub local: Name,
    pub peer: Name,
    pub index: u32,
}

/// The peer's numbers on a path, as its receiver has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerNumbers {
    pub expected: u64,
    pub floor: Option<u64>,
    pub probe: Option<u64>,
    pub generation: Option<u64>,
    pub map_generation: Option<u64>,
    pub watch_restarts: bool,
}

/// The mapped journal. One thread at a time.
#[derive(Debug)]
pub struct PathJournal {
    area: Area,
}

/// Make one: its descriptor, which is the caller's, and the journal.
///
/// # Errors
/// Of the system.
pub fn make(generation: u32) -> Result<(i32, PathJournal), Errno> {
    let bytes = PAGE_BYTES + ENTRIES as usize * ENTRY_BYTES;
    let (file, area) = area::make(bytes)?;
    area.word(AT_GENERATION)
        .store(generation, Ordering::Relaxed);
    area.long(AT_MAGIC).store(MAGIC, Ordering::Release);
    Ok((file, PathJournal { area }))
}

impl PathJournal {
    /// Go on with that of an earlier worker.
    ///
    /// # Errors
    /// EINVAL for what is none; of the system.
    pub fn open(file: i32) -> Result<Self, Errno> {
        let area = Area::map(file)?;
        let is_good = area.length() == PAGE_BYTES + ENTRIES as usize * ENTRY_BYTES
            && area.long(AT_MAGIC).load(Ordering::Acquire) == MAGIC;
        if is_good {
            Ok(Self { area })
        } else {
            Err(Errno(libc::EINVAL))
        }
    }

    /// Return the generation of the node; 0 for none.
    pub fn generation(&self) -> u32 {
        self.area.word(AT_GENERATION).load(Ordering::Relaxed)
    }

    /// Return how many entries are in use: those below this number.
    pub fn used(&self) -> u32 {
        self.area.word(AT_USED).load(Ordering::Relaxed).min(ENTRIES)
    }

    /// Add a path; return its entry, `None` if there is no room for more.
    pub fn add(&self, name: &PathName, next: u64) -> Option<u32> {
        let entry = self.used();
        if entry >= ENTRIES {
            return None;
        }
        let at = entry_at(entry);
        self.area.copy_in(at + LOCAL, &name.local.bytes());
        self.area.copy_in(at + PEER, &name.peer.bytes());
        self.area
            .word(at + INDEX)
            .store(name.index, Ordering::Relaxed);
        self.set_numbers(entry, &PeerNumbers::default());
        self.set_next(entry, next);
        self.set_connected(entry, false);
        self.set_closed(entry, false);
        self.area.word(AT_USED).store(entry + 1, Ordering::Release);
        Some(entry)
    }

    /// Return what an entry is named by.
    pub fn name(&self, entry: u32) -> PathName {
        let at = entry_at(entry);
        let read = |place| {
            let mut bytes = [0; 24];
            self.area.copy_out(at + place, &mut bytes);
            Name::from_bytes(&bytes)
        };
        PathName {
            local: read(LOCAL),
            peer: read(PEER),
            index: self.area.word(at + INDEX).load(Ordering::Relaxed),
        }
    }

    /// Return the number of a path's next message.
    pub fn next(&self, entry: u32) -> u64 {
        let word = self.area.long(entry_at(entry) + NEXT);
        word.load(Ordering::Relaxed)
    }

    /// Set it, before the first byte of the messages before it leaves.
    #[inline]
    pub fn set_next(&self, entry: u32, next: u64) {
        let word = self.area.long(entry_at(entry) + NEXT);
        word.store(next, Ordering::Release);
    }

    /// Set which message of the peer comes next: all before it are delivered.
    #[inline]
    pub fn set_expected(&self, entry: u32, expected: u64) {
        let word = self.area.long(entry_at(entry) + EXPECTED);
        word.store(expected, Ordering::Release);
    }

    /// Note whether a path has a connection.
    pub fn set_connected(&self, entry: u32, is_connected: bool) {
        let word = self.area.word(entry_at(entry) + CONNECTED);
        word.store(u32::from(is_connected), Ordering::Relaxed);
    }

    /// Return whether a path had a connection when that was last noted.
    pub fn is_connected(&self, entry: u32) -> bool {
        let word = self.area.word(entry_at(entry) + CONNECTED);
        word.load(Ordering::Relaxed) != 0
    }

    /// Note whether a path was closed for good; it may be made again.
    pub fn set_closed(&self, entry: u32, is_closed: bool) {
        let word = self.area.word(entry_at(entry) + CLOSED);
        word.store(u32::from(is_closed), Ordering::Relaxed);
    }

    /// Return whether a path was closed.
    pub fn is_closed(&self, entry: u32) -> bool {
        let word = self.area.word(entry_at(entry) + CLOSED);
        word.load(Ordering::Relaxed) != 0
    }

    /// Return the peer's numbers.
    pub fn numbers(&self, entry: u32) -> PeerNumbers {
        let at = entry_at(entry);
        let flags = self.area.word(at + FLAGS).load(Ordering::Relaxed);
        let long = |place| self.area.long(at + place).load(Ordering::Relaxed);
        let optional = |flag, place| (flags & flag != 0).then(|| long(place));
        PeerNumbers {
            expected: long(EXPECTED),
            floor: optional(HAS_FLOOR, FLOOR),
            probe: optional(HAS_PROBE, PROBE),
            generation: optional(HAS_PEER_GENERATION, PEER_GENERATION),
            map_generation: optional(HAS_MAP_GENERATION, MAP_GENERATION),
            watch_restarts: flags & WATCHES != 0,
        }
    }

    /// Set the peer's numbers.
    pub fn set_numbers(&self, entry: u32, numbers: &PeerNumbers) {
        let at = entry_at(entry);
        let mut flags = 0;
        for (value, flag, place) in [
            (numbers.floor, HAS_FLOOR, FLOOR),
            (numbers.probe, HAS_PROBE, PROBE),
            (numbers.generation, HAS_PEER_GENERATION, PEER_GENERATION),
            (numbers.map_generation, HAS_MAP_GENERATION, MAP_GENERATION),
        ] {
            if let Some(value) = value {
                flags |= flag;
                self.area.long(at + place).store(value, Ordering::Relaxed);
            }
        }
        if numbers.watch_restarts {
            flags |= WATCHES;
        }
        self.area.word(at + FLAGS).store(flags, Ordering::Release);
        self.set_expected(entry, numbers.expected);
    }
}

fn entry_at(entry: u32) -> usize {
    assert!(entry < ENTRIES, "an entry of the journal");
    PAGE_BYTES + entry as usize * ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_worker_notes_the_next_one_reads() {
        let (file, journal) = make(7).expect("memory");
        let name = PathName {
            local: Name::v4([127, 0, 0, 1], 0),
            peer: Name::v4([127, 0, 0, 2], 0),
            index: 3,
        };
        assert_eq!(journal.add(&name, 10), Some(0));
        assert_eq!(journal.add(&PathName { index: 4, ..name }, 20), Some(1));
        journal.set_next(1, 25);
        journal.set_connected(1, true);
        journal.set_closed(0, true);
        let numbers = PeerNumbers {
            expected: 100,
            floor: Some(90),
            map_generation: Some(5),
            watch_restarts: true,
            ..PeerNumbers::default()
        };
        journal.set_numbers(1, &numbers);
        journal.set_expected(1, 101);
        drop(journal);
        let journal = PathJournal::open(file).expect("it is one");
        crate::sys::raw::close(file);
        assert_eq!((journal.generation(), journal.used()), (7, 2));
        assert_eq!((journal.name(0), journal.next(0)), (name, 10));
        assert_eq!(journal.next(1), 25);
        assert_eq!(
            [0, 1].map(|entry| journal.is_connected(entry)),
            [false, true]
        );
        assert_eq!([0, 1].map(|entry| journal.is_closed(entry)), [true, false]);
        let read = journal.numbers(1);
        assert_eq!(
            read,
            PeerNumbers {
                expected: 101,
                ..numbers
            }
        );
    }
}
