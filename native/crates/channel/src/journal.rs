//! What the node knows of a socket, and no other process may write: memory that outlives its worker.
//!
//! One journal per socket, of the node alone: places and lengths of the messages that it took and
//! has not freed, and of the messages that it delivered and that were not taken. A worker that is
//! started after another was killed finds in it what was done, by the order of the stores:
//!
//! | step | stores, in order |
//! |---|---|
//! | take a submission | slot (place, units, length, route, submission), slot used, count of taken |
//! | free a message | slot leaving, tile free, counts, slot free |
//! | deliver a message | entry of the receive queue, intent, bytes, `published` here and there, intent off |

use core::sync::atomic::Ordering;

use crate::socket_memory::layout::ROUTES;
use crate::socket_memory::{Name, Sizes};
use crate::sys::Errno;
use crate::sys::area::{self, Area, PAGE_BYTES};

/// First word: `URDSJRN1`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"URDSJRN1");

const AT_MAGIC: usize = 0;
const AT_SLOTS: usize = 8;
const AT_QUEUE: usize = 12;
/// Submissions taken.
pub const AT_TAKEN: usize = 64;
/// Bytes of messages freed.
pub const AT_FREED_BYTES: usize = 72;
/// Bytes of messages taken and not freed.
pub const AT_HELD_BYTES: usize = 80;
/// Slots that were ever used: those behind are free.
pub const AT_SLOTS_USED: usize = 88;
/// First free slot plus 1, linked by `SLOT_UNITS`.
pub const AT_FREE_SLOT: usize = 92;
/// Messages delivered.
pub const AT_PUBLISHED: usize = 128;
/// Messages whose record is given back: taken by the client, as far as the node has seen.
pub const AT_RELEASED: usize = 136;
/// What the plane does to deliver: see `Intent`.
pub const AT_INTENT: usize = 192;

const SLOT_BYTES: usize = 40;
/// In a slot: place of the record in units.
pub const SLOT_AT: usize = 0;
/// Its units; of a free slot the next free one plus 1.
pub const SLOT_UNITS: usize = 4;
/// Bytes of payload.
pub const SLOT_LENGTH: usize = 8;
/// Destination.
pub const SLOT_ROUTE: usize = 12;
/// `SLOT_FREE`, or `SLOT_USED`, or `SLOT_LEAVING`.
pub const SLOT_STATE: usize = 16;
/// Of the plane: which path has the message.
pub const SLOT_PATH: usize = 20;
/// Of the plane: its number on that path, 0 before it has one.
pub const SLOT_NUMBER: usize = 24;

/// Which submission it was, counted from 0: tells a record from a later one at its place.
pub const SLOT_SUBMISSION: usize = 32;

/// Nothing is in the slot.
pub const SLOT_FREE: u32 = 0;
/// A message that was taken and not freed.
pub const SLOT_USED: u32 = 1;
/// A message that is being freed.
pub const SLOT_LEAVING: u32 = 2;

const ROUTE_BYTES: usize = 32;
const ROUTE_NAME: usize = 8;

const ENTRY_BYTES: usize = 16;
/// In an entry of the receive queue: place of the record in units.
pub const ENTRY_AT: usize = 0;
/// Its units.
pub const ENTRY_UNITS: usize = 4;
/// Bytes of payload.
pub const ENTRY_LENGTH: usize = 8;

/// A mapped journal. Only the plane's lock lets one call it.
#[derive(Debug)]
pub struct Journal {
    area: Area,
    slots: u32,
    queue: u32,
}

/// What the plane is about to deliver; all zero if nothing is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intent {
    /// Whose message; the plane's number of it, not 0.
    pub path: u32,
    /// `published` once it is delivered.
    pub published: u32,
    /// Its number on the path.
    pub number: u64,
}

impl Journal {
    /// Take a mapped journal.
    ///
    /// # Errors
    /// EINVAL for what is none.
    pub fn new(area: Area) -> Result<Self, Errno> {
        let word = |at| area.word(at).load(Ordering::Relaxed);
        let (slots, queue) = (word(AT_SLOTS), word(AT_QUEUE));
        let is_good = area.long(AT_MAGIC).load(Ordering::Acquire) == MAGIC
            && queue.is_power_of_two()
            && area.length() == bytes_of(slots, queue);
        if !is_good {
            return Err(Errno(libc::EINVAL));
        }
        Ok(Self { area, slots, queue })
    }

    /// Return the memory.
    pub fn area(&self) -> &Area {
        &self.area
    }

    /// Return how many messages may be taken and not freed.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Return how many messages may be delivered and not taken.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Return a word.
    pub fn word(&self, at: usize) -> u32 {
        self.area.word(at).load(Ordering::Relaxed)
    }

    /// Store a word, after all stores before it.
    pub fn set_word(&self, at: usize, value: u32) {
        self.area.word(at).store(value, Ordering::Release);
    }

    /// Return a word of eight bytes.
    pub fn long(&self, at: usize) -> u64 {
        self.area.long(at).load(Ordering::Relaxed)
    }

    /// Store a word of eight bytes, after all stores before it.
    pub fn set_long(&self, at: usize, value: u64) {
        self.area.long(at).store(value, Ordering::Release);
    }

    /// Return where a slot lies.
    ///
    /// # Panics
    /// Without such a slot.
    pub fn slot(&self, slot: u32) -> usize {
        assert!(slot < self.slots, "a slot of this journal");
        PAGE_BYTES + slot as usize * SLOT_BYTES
    }

    /// Return where the entry of the receive queue for a count lies.
    pub fn entry(&self, count: u64) -> usize {
        let masked = u32::try_from(count & u64::from(self.queue - 1)).unwrap_or(0);
        PAGE_BYTES + self.slots as usize * SLOT_BYTES + masked as usize * ENTRY_BYTES
    }

    /// Keep the address that a route's number means, before the client gets that number.
    ///
    /// # Panics
    /// Without such a number.
    pub fn set_route(&self, route: u32, to: &Name) {
        let at = self.route_at(route);
        self.area.copy_in(at + ROUTE_NAME, &to.bytes());
        self.set_word(at, 1);
    }

    /// Return the address that a route's number means, if it was given.
    pub fn route(&self, route: u32) -> Option<Name> {
        let at = self.route_at(route);
        if self.area.word(at).load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut bytes = [0; 24];
        self.area.copy_out(at + ROUTE_NAME, &mut bytes);
        Some(Name::from_bytes(&bytes))
    }

    fn route_at(&self, route: u32) -> usize {
        assert!((route as usize) < ROUTES, "a number of a route");
        routes_at(self.slots, self.queue) + route as usize * ROUTE_BYTES
    }

    /// Set what is about to be delivered, before the first byte of it.
    pub fn intend(&self, intent: Intent) {
        self.set_word(AT_INTENT + 4, intent.published);
        self.set_long(AT_INTENT + 8, intent.number);
        self.set_word(AT_INTENT, intent.path);
    }

    /// Note that it was delivered, and that the path knows.
    pub fn finish_intent(&self) {
        self.set_word(AT_INTENT, 0);
    }

    /// Return what a killed worker was about to deliver.
    pub fn intent(&self) -> Option<Intent> {
        let path = self.area.word(AT_INTENT).load(Ordering::Acquire);
        (path != 0).then(|| Intent {
            path,
            published: self.word(AT_INTENT + 4),
            number: self.long(AT_INTENT + 8),
        })
    }
}

fn routes_at(slots: u32, queue: u32) -> usize {
    PAGE_BYTES + slots as usize * SLOT_BYTES + queue as usize * ENTRY_BYTES
}

fn bytes_of(slots: u32, queue: u32) -> usize {
    (routes_at(slots, queue) + ROUTES * ROUTE_BYTES).next_multiple_of(PAGE_BYTES)
}

/// Make the journal of a socket with memory of these sizes: its descriptor, which is the
/// caller's, and its mapping. Both are for the node alone.
///
/// # Errors
/// Of the system.
pub fn make(sizes: &Sizes<'_>) -> Result<(i32, Area), Errno> {
    // As many as there can be, each at least two units with its header; sparse as the areas.
    let queue = u32::try_from(sizes.receive_bytes / 128).unwrap_or(u32::MAX);
    let queue = queue.clamp(64, 1 << 20).next_power_of_two();
    let slots = sizes.submissions.saturating_mul(4).clamp(64, 1 << 18);
    let (file, area) = area::make(bytes_of(slots, queue))?;
    area.word(AT_SLOTS).store(slots, Ordering::Relaxed);
    area.word(AT_QUEUE).store(queue, Ordering::Relaxed);
    area.long(AT_MAGIC).store(MAGIC, Ordering::Release);
    Ok((file, area))
}
