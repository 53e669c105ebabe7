//! A message in the memory of an attached socket, as a payload on a path.

use std::any::Any;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use urds_channel::journal::{Journal, SLOT_NUMBER, SLOT_PATH};
use urds_channel::sys::Errno;
use urds_channel::sys::area::Area;
use urds_path::Memory;

use crate::attached::FreedRecords;
use crate::attached::steps::{self, Rule, Step};
use crate::state::MailboxId;

/// The memory of one attached socket, mapped for reading: what its messages on paths refer to.
#[derive(Debug)]
pub struct SendMemory {
    area: Area,
    journal: Journal,
}

impl SendMemory {
    /// Take mappings of the socket's memory and journal, of their own: they live as long as the
    /// messages.
    ///
    /// # Errors
    /// EINVAL for a journal that is none.
    pub fn new(area: Area, journal: Area) -> Result<Self, Errno> {
        let journal = Journal::new(journal)?;
        Ok(Self { area, journal })
    }

    /// Return the bytes at a place, none if it is not within the memory.
    pub(crate) fn bytes(&self, at: usize, length: usize) -> &[u8] {
        let end = at.checked_add(length);
        if end.is_none_or(|end| end > self.area.length()) {
            return &[];
        }
        let first = self.area.pointer(at, length);
        // SAFETY: the range is within the mapping, which lives as long as we do. Its client may
        // write there at any time, as a program may write into a buffer that it sends: what is
        // copied or sent is then some of both, and nothing decides by these bytes.
        unsafe { slice::from_raw_parts(first, length) }
    }
}

/// A message that was taken from a socket; dropped, its record is free.
pub(crate) struct SentRecord {
    pub(crate) memory: Arc<SendMemory>,
    pub(crate) at: usize,
    pub(crate) length: usize,
    pub(crate) slot: u32,
    /// Which path has it, for the next worker; 0 for none. Written under the plane's lock.
    pub(crate) path: AtomicU32,
    pub(crate) mailbox: MailboxId,
    pub(crate) freed: FreedRecords,
}

impl Memory for SentRecord {
    fn bytes(&self) -> &[u8] {
        self.memory.bytes(self.at, self.length)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut [] // a message that is sent is only read
    }

    fn note_number(&self, sequence: u64) {
        let path = self.path.load(Ordering::Relaxed);
        if path != 0 && steps::holds(Rule::NoteNumber) && self.slot < self.memory.journal.slots() {
            let at = self.memory.journal.slot(self.slot);
            self.memory.journal.set_word(at + SLOT_PATH, path);
            self.memory.journal.set_long(at + SLOT_NUMBER, sequence);
            steps::pass(Step::Numbered);
        }
    }

    fn note_path(&self, place: u32) {
        self.path.store(place, Ordering::Relaxed);
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Drop for SentRecord {
    fn drop(&mut self) {
        self.freed.push(self.mailbox, self.slot);
    }
}
