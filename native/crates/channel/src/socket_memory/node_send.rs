//! Taking what the client submitted, and freeing it when the peer has it.

use core::sync::atomic::Ordering;

use super::layout::{
    AT_FREED_BYTES, AT_SENDERS, AT_SUBMISSIONS_TAKEN, AT_SUBMITTED, RECORD_BYTES, ROUTE_FREED,
    ROUTES, SEND_EXTENSION, SEND_EXTENSION_BYTES, SEND_FLAGS, SEND_LENGTH, SEND_PORT, SEND_ROUTE,
    SEND_SUBMISSION, TILE_FREE, TILE_USED, route_at, soft_units, units_of,
};
use super::node_side::{ClientError, NodeSide};
use super::options::Word;
use super::send_area::SendArea;
use crate::journal::{
    self, SLOT_AT, SLOT_FREE, SLOT_LEAVING, SLOT_LENGTH, SLOT_ROUTE, SLOT_STATE, SLOT_SUBMISSION,
    SLOT_UNITS, SLOT_USED,
};
use crate::lock;
use crate::sys::area::Area;

/// A message of the client, checked. Its payload may change at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submission {
    /// What `free` takes.
    pub slot: u32,
    /// Where the payload lies in the memory.
    pub at: usize,
    /// Bytes of it.
    pub length: usize,
    /// Destination; below `layout::ROUTES`, whether it is one is the caller's to know.
    pub route: u32,
    /// Port of the destination.
    pub port: u16,
    /// As the client set them.
    pub flags: u32,
    /// Extension headers as the client wrote them.
    pub extension: [u8; 16],
    /// How many bytes of them, at most 16.
    pub extension_bytes: u8,
    tile: u64,
    order: u64,
}

/// A message that was taken and not freed, as a new worker finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The message; its port and extension are what the client has there now.
    pub message: Submission,
    /// What the plane left in `journal::SLOT_PATH`.
    pub path: u32,
    /// What it left in `journal::SLOT_NUMBER`.
    pub number: u64,
    /// Which of the socket's messages it was.
    pub order: u64,
}

/// What is due after a message was freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Bytes of its payload.
    pub bytes: usize,
    /// Its destination.
    pub route: u32,
}

/// The client is told of what was taken when it is so small a part of the ring, and when all is.
const TOLD_PARTS: u32 = 512;
/// The client is told of so many freed bytes at once, and of the rest by `after_freeing`: a word that
/// it reads with each message has its line fetched anew after each store.
const TOLD_BYTES: u64 = 2048;

impl NodeSide {
    /// Return how many submissions wait.
    ///
    /// # Errors
    /// `ClientError` for a count that cannot be.
    #[inline]
    pub fn submissions(&self) -> Result<u32, ClientError> {
        let submitted = self.area.long(AT_SUBMITTED).load(Ordering::Acquire);
        let waiting = submitted.wrapping_sub(self.journal.long(journal::AT_TAKEN));
        if waiting > u64::from(self.layout.submissions) {
            return Err(ClientError("a count of submissions"));
        }
        Ok(u32::try_from(waiting).unwrap_or(0))
    }

    /// Return how many slots were ever used.
    pub(super) fn slots_used(&self) -> u32 {
        self.journal
            .word(journal::AT_SLOTS_USED)
            .min(self.journal.slots())
    }

    /// Take the next submission; None if there is none, or no slot for it.
    ///
    /// # Errors
    /// `ClientError` for a record that no client writes.
    pub fn take(&mut self) -> Result<Option<Submission>, ClientError> {
        let taken = self.journal.long(journal::AT_TAKEN);
        if taken == self.submitted {
            // Looked at once for several: the client writes there with each message.
            let waiting = self.submissions()?;
            if waiting == 0 {
                self.tell_taken(taken);
                return Ok(None);
            }
            self.submitted = taken.wrapping_add(u64::from(waiting));
        }
        let entry = self.area.word(self.layout.ring_entry(taken));
        let unit = entry.load(Ordering::Relaxed);
        let (units, mut submission) = self.check(unit, taken)?;
        let Some((slot, is_new)) = self.free_slot() else {
            return Ok(None);
        };
        submission.slot = slot;
        let at = self.journal.slot(slot);
        let next_free = if is_new {
            0
        } else {
            self.journal.word(at + SLOT_UNITS)
        };
        let set = |offset, value| self.journal.set_word(at + offset, value);
        set(SLOT_AT, unit);
        set(SLOT_LENGTH, u32::try_from(submission.length).unwrap_or(0));
        set(SLOT_ROUTE, submission.route);
        set(journal::SLOT_PATH, 0);
        self.journal.set_long(at + journal::SLOT_NUMBER, 0);
        if is_new {
            self.journal.set_word(journal::AT_SLOTS_USED, slot + 1);
        } else {
            self.journal.set_word(journal::AT_FREE_SLOT, next_free);
        }
        set(SLOT_UNITS, units);
        self.journal.set_long(at + SLOT_SUBMISSION, taken);
        set(SLOT_STATE, SLOT_USED);
        self.held_slots += 1;
        self.sent_touched = self.sent_touched.max(unit + units);
        let taken = taken.wrapping_add(1);
        self.journal.set_long(journal::AT_TAKEN, taken);
        if taken.is_multiple_of(u64::from(self.layout.submissions / TOLD_PARTS).max(1)) {
            self.tell_taken(taken);
        }
        let held = self.held_bytes() + submission.length as u64;
        self.journal.set_long(journal::AT_HELD_BYTES, held);
        Ok(Some(submission))
    }

    fn tell_taken(&self, taken: u64) {
        self.area
            .long(AT_SUBMISSIONS_TAKEN)
            .store(taken, Ordering::Release);
    }

    /// Read a record once, then check what was read.
    #[allow(clippy::inline_always)] // as `read_record`
    #[inline(always)]
    fn check(&self, unit: u32, count: u64) -> Result<(u32, Submission), ClientError> {
        if unit >= self.layout.send_units {
            return Err(ClientError("a place of a record"));
        }
        let submission = Self::read_record(&self.area, self.layout.send_unit(unit));
        let units = u32::try_from(submission.tile & 0xffff_ffff).unwrap_or(u32::MAX);
        let length = submission.length;
        if submission.order != count || submission.tile & !0xffff_ffff != TILE_USED {
            return Err(ClientError("a record that was not submitted"));
        }
        if units > self.layout.send_units - unit || units < units_of(length) {
            return Err(ClientError("units of a record"));
        }
        if length > self.layout.message_limit as usize {
            return Err(ClientError("the length of a message"));
        }
        if submission.route as usize >= ROUTES || submission.extension_bytes > 16 {
            return Err(ClientError("the destination of a message"));
        }
        Ok((units, submission))
    }

    /// Return whether there is a slot for another message.
    pub fn has_slot(&self) -> bool {
        self.free_slot().is_some()
    }

    /// Return a slot to use, and whether it was never used before.
    fn free_slot(&self) -> Option<(u32, bool)> {
        let free = self.journal.word(journal::AT_FREE_SLOT);
        if let Some(slot) = free.checked_sub(1) {
            return Some((slot, false));
        }
        let used = self.slots_used();
        (used < self.journal.slots()).then_some((used, true))
    }

    /// Give a taken message's record back to the client; `Freed` tells what it was.
    ///
    /// Then `after_freeing` is due, once for several.
    ///
    /// # Panics
    /// For a slot that holds no message.
    pub fn free(&mut self, slot: u32) -> Freed {
        let at = self.journal.slot(slot);
        assert!(
            self.journal.word(at + SLOT_STATE) == SLOT_USED,
            "a message in the slot"
        );
        let bytes = u64::from(self.journal.word(at + SLOT_LENGTH));
        let route = self.journal.word(at + SLOT_ROUTE);
        self.journal.set_word(at + SLOT_STATE, SLOT_LEAVING);
        self.set_tile_free(at);
        self.count_freed(route, bytes);
        self.journal.set_word(at + SLOT_STATE, SLOT_FREE);
        self.held_slots -= 1;
        let next_free = self.journal.word(journal::AT_FREE_SLOT);
        self.journal.set_word(at + SLOT_UNITS, next_free);
        self.journal.set_word(journal::AT_FREE_SLOT, slot + 1);
        Freed {
            bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            route,
        }
    }

    /// Return whether to show POLLIN after messages were freed: a refused sender may go on. Senders
    /// that sleep for a destination are woken; `must_empty` is the caller's next question.
    pub fn after_freeing(&mut self) -> bool {
        self.tell_freed(self.journal.long(journal::AT_FREED_BYTES));
        self.room_changed()
    }

    fn count_freed(&mut self, route: u32, bytes: u64) {
        let held = self.held_bytes().saturating_sub(bytes);
        self.journal.set_long(journal::AT_HELD_BYTES, held);
        let before = self.journal.long(journal::AT_FREED_BYTES);
        let freed = before.wrapping_add(bytes);
        self.journal.set_long(journal::AT_FREED_BYTES, freed);
        if self.untold_freed.0 != route {
            self.tell_route_freed();
            self.untold_freed.0 = route;
        }
        self.untold_freed.1 += bytes;
        if freed / TOLD_BYTES != before / TOLD_BYTES {
            self.tell_freed(freed);
        }
    }

    /// Tell the sums: that of a route first, or it would seem to hold more than all do.
    fn tell_freed(&mut self, freed: u64) {
        self.tell_route_freed();
        let of_socket = self.area.long(AT_FREED_BYTES);
        of_socket.store(freed, Ordering::Release);
    }

    fn tell_route_freed(&mut self) {
        let (route, bytes) = self.untold_freed;
        self.untold_freed.1 = 0;
        let of_route = self.area.long(route_at(route) + ROUTE_FREED);
        // The node alone writes it. An atomic addition would wait for every store before it.
        let route_freed = of_route.load(Ordering::Relaxed).wrapping_add(bytes);
        of_route.store(route_freed, Ordering::Release);
    }

    fn set_tile_free(&self, slot_at: usize) {
        let unit = self.journal.word(slot_at + SLOT_AT);
        let units = self.journal.word(slot_at + SLOT_UNITS);
        let word = self.area.long(self.layout.send_unit(unit));
        word.store(u64::from(units) | TILE_FREE, Ordering::Release);
    }

    /// Behind which unit pages are given back once all is freed; over quota none is kept.
    fn sent_kept(&self) -> u32 {
        if self.is_over_quota {
            return 0;
        }
        soft_units(self.options().get(Word::SendBytes), self.layout.send_units)
    }

    /// Return behind which unit there are pages to give back, if nothing is taken and not freed.
    #[inline]
    pub(super) fn late_sent(&self) -> Option<u32> {
        let kept = self.sent_kept();
        (self.held_slots == 0 && self.sent_touched > kept).then_some(kept)
    }

    /// Give back the pages behind the soft end, and over quota all, if nothing is in them. While a
    /// sender has the lock, or left a message to take, they stay: again after a while.
    pub(super) fn give_back_sent(&mut self) {
        // Asked once: the client may change its buffer meanwhile.
        let Some(kept) = self.late_sent() else {
            return;
        };
        {
            let Some(_guard) = lock::try_lock(self.area.word(AT_SENDERS)) else {
                return;
            };
            if self.submissions() != Ok(0) {
                return;
            }
            let tiles = SendArea {
                area: &self.area,
                layout: &self.layout,
            };
            tiles.give_back(kept, self.sent_touched);
        }
        self.sent_touched = kept;
    }

    /// Have a taken message be on no path, for the next worker.
    ///
    /// # Panics
    /// For a slot that is none.
    pub fn forget_number(&self, slot: u32) {
        let at = self.journal.slot(slot);
        self.journal.set_long(at + journal::SLOT_NUMBER, 0);
    }

    /// Return how many submissions were ever taken.
    pub fn taken(&self) -> u64 {
        self.journal.long(journal::AT_TAKEN)
    }

    /// Return whether any message is taken and not freed.
    pub fn holds_messages(&self) -> bool {
        self.held_slots > 0
    }

    /// Return how many bytes are taken and not freed.
    pub fn held_bytes(&self) -> u64 {
        self.journal.long(journal::AT_HELD_BYTES)
    }

    /// Call `each` with the messages that were taken and not freed, in no order.
    pub fn held_messages(&self, mut each: impl FnMut(&Held)) {
        for slot in 0..self.slots_used() {
            let at = self.journal.slot(slot);
            if self.journal.word(at + SLOT_STATE) != SLOT_USED {
                continue;
            }
            let word = |offset| self.journal.word(at + offset);
            let place = self.layout.send_unit(word(SLOT_AT));
            // Place, length and route are ours; the rest is as it lies there now.
            let mut message = Self::read_record(&self.area, place);
            message.slot = slot;
            message.length = word(SLOT_LENGTH) as usize;
            message.route = word(SLOT_ROUTE);
            message.extension_bytes = message.extension_bytes.min(16);
            each(&Held {
                message,
                path: word(journal::SLOT_PATH),
                number: self.journal.long(at + journal::SLOT_NUMBER),
                order: self.journal.long(at + SLOT_SUBMISSION),
            });
        }
    }

    #[allow(clippy::inline_always)] // its result would be written to memory, to be read at once
    #[inline(always)]
    fn read_record(area: &Area, place: usize) -> Submission {
        let word = |offset| area.word(place + offset).load(Ordering::Relaxed);
        let long = |offset| area.long(place + offset).load(Ordering::Relaxed);
        let mut extension = [0; 16];
        extension[..8].copy_from_slice(&long(SEND_EXTENSION).to_le_bytes());
        extension[8..].copy_from_slice(&long(SEND_EXTENSION + 8).to_le_bytes());
        let [port_low, port_high, extension_bytes, _] = word(SEND_PORT).to_le_bytes();
        Submission {
            slot: 0,
            at: place + RECORD_BYTES,
            length: word(SEND_LENGTH) as usize,
            route: word(SEND_ROUTE),
            port: u16::from_le_bytes([port_low, port_high]),
            flags: word(SEND_FLAGS),
            extension,
            extension_bytes,
            tile: long(0),
            order: long(SEND_SUBMISSION),
        }
    }
}

const _: () = assert!(SEND_EXTENSION_BYTES == SEND_PORT + 2);
