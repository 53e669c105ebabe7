//! What a new worker reads of the messages that an earlier one delivered.

use super::node_side::NodeSide;
use crate::journal::{self, ENTRY_LENGTH};

impl NodeSide {
    /// Return the bytes that were delivered and not seen as taken.
    pub fn unread_bytes(&self) -> usize {
        let released = self.journal.long(journal::AT_RELEASED);
        let published = self.journal.long(journal::AT_PUBLISHED);
        (released..published)
            .map(|count| self.journal.word(self.journal.entry(count) + ENTRY_LENGTH) as usize)
            .sum()
    }

    /// Return how many messages were ever delivered.
    pub fn published(&self) -> u64 {
        self.journal.long(journal::AT_PUBLISHED)
    }
}
