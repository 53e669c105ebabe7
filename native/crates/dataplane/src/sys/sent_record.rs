//! A message in the memory of an attached socket, as a payload on a path.

use std::any::Any;
use std::slice;
use std::sync::Arc;

use urds_channel::sys::area::Area;
use urds_path::Memory;

use crate::attached::FreedRecords;
use crate::state::MailboxId;

/// The memory of one attached socket, mapped for reading: what its messages on paths refer to.
#[derive(Debug)]
pub struct SendMemory(Area);

impl SendMemory {
    /// Take a mapping of the socket's memory, of its own: it lives as long as its messages.
    pub fn new(area: Area) -> Self {
        Self(area)
    }

    fn has(&self, at: usize, length: usize) -> bool {
        at.checked_add(length)
            .is_some_and(|end| end <= self.0.length())
    }
}

/// A message that was taken from a socket; dropped, its record is free.
pub(crate) struct SentRecord {
    pub(crate) memory: Arc<SendMemory>,
    pub(crate) at: usize,
    pub(crate) length: usize,
    pub(crate) slot: u32,
    pub(crate) mailbox: MailboxId,
    pub(crate) freed: FreedRecords,
}

impl Memory for SentRecord {
    fn bytes(&self) -> &[u8] {
        if !self.memory.has(self.at, self.length) {
            return &[];
        }
        let first = self.memory.0.pointer(self.at, self.length);
        // SAFETY: the range is within the mapping, which lives as long as we do. Its client may
        // write there at any time, as a program may write into a buffer that it sends: what is
        // copied or sent is then some of both, and nothing decides by these bytes.
        unsafe { slice::from_raw_parts(first, self.length) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut [] // a message that is sent is only read
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
