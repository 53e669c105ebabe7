//! What a new worker makes good before it serves a socket whose worker was killed.

use core::hint::spin_loop;
use core::sync::atomic::Ordering;

use super::layout::{
    AT_FREED_BYTES, AT_SENDERS, AT_SENT_BYTES, AT_SUBMISSIONS_TAKEN, AT_SUBMITTED, ROUTE_FREED,
    ROUTES, SEND_LENGTH, SEND_ROUTE, SEND_SUBMISSION, TILE_FREE, TILE_USED, route_at,
    route_sent_at,
};
use super::node_side::NodeSide;
use crate::journal::{
    self, SLOT_AT, SLOT_FREE, SLOT_LEAVING, SLOT_LENGTH, SLOT_ROUTE, SLOT_STATE, SLOT_SUBMISSION,
    SLOT_UNITS, SLOT_USED,
};
use crate::lock;

/// How often the lock of senders is tried, with a pause of so many loops: a few milliseconds in all, in
/// which a sender copies a message of some megabytes.
const TRIES: u32 = 2000;
const LOOPS: u32 = 200;

impl NodeSide {
    /// Finish what was begun, count what is derived, tell the client what is published.
    pub(super) fn recover(&self) {
        if self.is_fresh() {
            return; // all is zero, and to read it would take memory
        }
        self.finish_slots();
        self.link_free_slots();
        let senders = self.try_hold_senders();
        self.count_freed_anew();
        drop(senders);
        let taken = self.journal.long(journal::AT_TAKEN);
        let there = self.area.long(AT_SUBMISSIONS_TAKEN);
        there.store(taken, Ordering::Release);
        self.tell_published(self.published());
    }

    /// Have no sender change its sums while they are read. One that was killed or stopped with the
    /// lock, and still has it after a while, changes none.
    fn try_hold_senders(&self) -> Option<lock::Guard<'_>> {
        let word = self.area.word(AT_SENDERS);
        for _ in 0..TRIES {
            if let Some(guard) = lock::try_lock(word) {
                return Some(guard);
            }
            for _ in 0..LOOPS {
                spin_loop();
            }
        }
        None
    }

    /// Tell whether nothing was submitted yet, nor delivered.
    fn is_fresh(&self) -> bool {
        self.journal.long(journal::AT_TAKEN) == 0
            && self.journal.long(journal::AT_PUBLISHED) == 0
            && self.area.long(AT_SUBMITTED).load(Ordering::Acquire) == 0
    }

    fn finish_slots(&self) {
        let taken = self.journal.long(journal::AT_TAKEN);
        for slot in 0..self.slots_used() {
            let at = self.journal.slot(slot);
            let state = self.journal.word(at + SLOT_STATE);
            let submission = self.journal.long(at + SLOT_SUBMISSION);
            if state == SLOT_LEAVING {
                self.finish_freeing(at, submission);
            }
            // Used before the count was stored: not taken, so it will be taken again.
            let is_taken = submission < taken;
            if state == SLOT_LEAVING || (state == SLOT_USED && !is_taken) {
                self.journal.set_word(at + SLOT_STATE, SLOT_FREE);
            }
        }
    }

    /// Set the tile free, unless that was done: then the client may have used it again.
    fn finish_freeing(&self, slot_at: usize, submission: u64) {
        let unit = self.journal.word(slot_at + SLOT_AT);
        let units = u64::from(self.journal.word(slot_at + SLOT_UNITS));
        let place = self.layout.send_unit(unit);
        let word = self.area.long(place);
        // In this order: a client that uses it again writes its number before it takes the tile.
        let is_used = word.load(Ordering::Acquire) == units | TILE_USED;
        let of_record = self.area.long(place + SEND_SUBMISSION);
        if is_used && of_record.load(Ordering::Relaxed) == submission {
            word.store(units | TILE_FREE, Ordering::Release);
        }
    }

    fn link_free_slots(&self) {
        let mut free = 0;
        for slot in 0..self.slots_used() {
            let at = self.journal.slot(slot);
            if self.journal.word(at + SLOT_STATE) == SLOT_FREE {
                self.journal.set_word(at + SLOT_UNITS, free);
                free = slot + 1;
            }
        }
        self.journal.set_word(journal::AT_FREE_SLOT, free);
    }

    /// Freed is what was sent and is neither held nor waits to be taken.
    fn count_freed_anew(&self) {
        for route in 0..u32::try_from(ROUTES).unwrap_or(0) {
            let sent = self.area.long(route_sent_at(route)).load(Ordering::Relaxed);
            if sent != 0 {
                let freed = self.area.long(route_at(route) + ROUTE_FREED);
                freed.store(sent, Ordering::Relaxed);
            }
        }
        let mut held = 0;
        for slot in 0..self.slots_used() {
            let at = self.journal.slot(slot);
            if self.journal.word(at + SLOT_STATE) == SLOT_USED {
                let bytes = u64::from(self.journal.word(at + SLOT_LENGTH));
                held += bytes;
                self.hold(self.journal.word(at + SLOT_ROUTE), bytes);
            }
        }
        self.journal.set_long(journal::AT_HELD_BYTES, held);
        let waiting = self.count_waiting();
        let sent = self.area.long(AT_SENT_BYTES).load(Ordering::Acquire);
        let freed = sent.wrapping_sub(held).wrapping_sub(waiting);
        self.journal.set_long(journal::AT_FREED_BYTES, freed);
        let there = self.area.long(AT_FREED_BYTES);
        there.store(freed, Ordering::Release);
    }

    /// Return the bytes of submissions that wait, as the client has them: it harms itself alone.
    fn count_waiting(&self) -> u64 {
        let taken = self.journal.long(journal::AT_TAKEN);
        let submitted = self.area.long(AT_SUBMITTED).load(Ordering::Acquire);
        let waiting = submitted.wrapping_sub(taken);
        let mut bytes = 0u64;
        for count in 0..waiting.min(u64::from(self.layout.submissions)) {
            let entry = self.layout.ring_entry(taken.wrapping_add(count));
            let unit = self.area.word(entry).load(Ordering::Relaxed);
            if unit < self.layout.send_units {
                let place = self.layout.send_unit(unit);
                let word = |offset| self.area.word(place + offset).load(Ordering::Relaxed);
                let length = u64::from(word(SEND_LENGTH));
                bytes += length;
                self.hold(word(SEND_ROUTE), length);
            }
        }
        bytes
    }

    fn hold(&self, route: u32, bytes: u64) {
        let freed = self.area.long(route_at(route) + ROUTE_FREED);
        freed.fetch_sub(bytes, Ordering::Relaxed);
    }
}
