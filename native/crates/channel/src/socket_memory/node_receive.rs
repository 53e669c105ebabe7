//! Delivering: records in order, their places and lengths remembered in the journal.
//!
//! A record's header names the one that follows, so the last record that was taken stays until the
//! next one is taken. Places are given by bump: up to a soft end of twice `SO_RCVBUF`, then from the
//! start again as soon as that is free, else on to the end of the area. So a short queue stays in
//! the same few pages.

use core::sync::atomic::{Ordering, fence};

use super::layout::{
    AT_PUBLISHED, AT_RECEIVE_LIMIT, AT_TAKEN, AT_WANTS_TAKEN, Layout, RECEIVE_ADDRESS,
    RECEIVE_EXTENSION, RECEIVE_EXTENSION_BYTES, RECEIVE_LENGTH, RECEIVE_NEXT, RECEIVE_PORT,
    RECEIVE_SCOPE, RECEIVE_TRACES, RECEIVE_WALL_NS, RECORD_BYTES, TRACE_BYTES, soft_units,
    units_of,
};
use super::name::Name;
use super::node_side::{ClientError, NodeSide};
use super::options::{Options, Word};
use crate::journal::{self, ENTRY_AT, ENTRY_LENGTH, ENTRY_UNITS, Journal};
use crate::sys::area::PAGE_BYTES;

const SEGMENTS: usize = 8;
/// The client is told of so many short messages at once, and of each that is longer than so many bytes.
const TOLD_MESSAGES: u64 = 16;
const TOLD_LENGTH: usize = 1024;

/// Receive-path positions and how long a message was there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// How many of the three there are; 0 is none.
    pub count: u8,
    /// Position as `enum rds_message_rxpath_latency` has it.
    pub positions: [u8; 3],
    /// Nanoseconds.
    pub ns: [u64; 3],
}

impl Trace {
    pub(super) fn read(count: u8, bytes: &[u8; TRACE_BYTES]) -> Self {
        let mut trace = Self {
            count: count.min(3),
            ..Self::default()
        };
        trace.positions.copy_from_slice(&bytes[..3]);
        for (index, ns) in trace.ns.iter_mut().enumerate() {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[8 + index * 8..16 + index * 8]);
            *ns = u64::from_le_bytes(eight);
        }
        trace
    }

    fn bytes(&self) -> [u8; TRACE_BYTES] {
        let mut bytes = [0; TRACE_BYTES];
        bytes[..3].copy_from_slice(&self.positions);
        for (index, ns) in self.ns.iter().enumerate() {
            bytes[8 + index * 8..16 + index * 8].copy_from_slice(&ns.to_le_bytes());
        }
        bytes
    }
}

/// What a delivered message says besides its payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Who sent it.
    pub source: Name,
    /// Extension headers as on the wire.
    pub extension: [u8; 16],
    /// How many bytes of them.
    pub extension_bytes: u8,
    /// Arrival by the clock of the host, 0 unless the client asks for it.
    pub wall_ns: u64,
    /// As far as the client asks for it; the same count as reserved.
    pub trace: Trace,
}

/// Room for one message: fill it, then publish it, or leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    unit: u32,
    units: u32,
    /// Where the payload goes in the memory.
    pub at: usize,
    /// Bytes of it.
    pub length: usize,
    has_trace: bool,
}

/// Units that hold records, in the order of the queue.
#[derive(Clone, Copy, Debug)]
pub struct Segments {
    /// First unit and the one behind the last.
    ranges: [(u32, u32); SEGMENTS],
    count: usize,
    /// Behind the last unit that was ever used since pages were given back.
    touched: u32,
    /// Behind the header that stayed then.
    left: u32,
}

impl Segments {
    fn new() -> Self {
        let mut made = Self {
            ranges: [(0, 0); SEGMENTS],
            count: 1,
            touched: 0,
            left: 0,
        };
        made.ranges[0] = (0, 1); // what the first record follows
        made
    }

    /// Rebuild them from the journal.
    pub(super) fn read(journal: &Journal, layout: &Layout) -> Self {
        let released = journal.long(journal::AT_RELEASED);
        let published = journal.long(journal::AT_PUBLISHED);
        let mut made = Self::new();
        made.touched = if published == 0 {
            0
        } else {
            layout.receive_units
        };
        let first = released.saturating_sub(1);
        for count in first..published {
            let entry = journal.entry(count);
            let at = journal.word(entry + ENTRY_AT);
            let end = at + journal.word(entry + ENTRY_UNITS);
            let last = &mut made.ranges[made.count - 1];
            if count == first && released > 0 {
                *last = (at, end);
            } else if last.1 == at {
                last.1 = end;
            } else if made.count < SEGMENTS {
                made.ranges[made.count] = (at, end);
                made.count += 1;
            }
        }
        made
    }

    fn used(&self) -> &[(u32, u32)] {
        &self.ranges[..self.count]
    }

    /// Return where a record of so many units goes, and whether it follows the last one.
    fn find(&self, needed: u32, soft: u32, hard: u32, is_empty: bool) -> Option<(u32, bool)> {
        let used = self.used();
        let back = used.last().map_or(0, |last| last.1);
        let lowest = used.iter().map(|range| range.0).min().unwrap_or(hard);
        let highest = used.iter().map(|range| range.1).max().unwrap_or(0);
        let limit = used
            .iter()
            .map(|range| range.0)
            .filter(|&start| start >= back)
            .min()
            .unwrap_or(hard);
        let may_jump = self.count < SEGMENTS;
        let fits_start = may_jump && needed <= lowest;
        let fits_back = needed <= limit - back;
        if is_empty && fits_start {
            return Some((0, false));
        }
        if fits_back && back + needed <= soft {
            return Some((back, true));
        }
        if fits_start {
            return Some((0, false));
        }
        if fits_back {
            return Some((back, true));
        }
        (may_jump && needed <= hard - highest).then_some((highest, false))
    }

    fn add(&mut self, unit: u32, units: u32) {
        let end = unit + units;
        self.touched = self.touched.max(end).max(self.left);
        let last = &mut self.ranges[self.count - 1];
        if last.1 == unit {
            last.1 = end;
        } else if self.count < SEGMENTS {
            self.ranges[self.count] = (unit, end);
            self.count += 1;
        }
    }

    /// Take the oldest record off.
    fn remove(&mut self, units: u32) {
        let first = &mut self.ranges[0];
        first.0 = (first.0 + units).min(first.1);
        if first.0 == first.1 && self.count > 1 {
            self.ranges.copy_within(1..self.count, 0);
            self.count -= 1;
        }
    }
}

impl NodeSide {
    /// Find room for a message; None if there is none now. Nothing is taken by it.
    pub fn reserve(&mut self, length: usize, has_trace: bool) -> Option<Place> {
        let waiting = self.unread();
        if waiting + 1 >= self.journal.queue() {
            return None;
        }
        let before = if has_trace { TRACE_BYTES } else { 0 };
        let needed = units_of(before + length);
        let (soft, hard) = (self.soft_units(), self.layout.receive_units);
        let (unit, _) = self.segments.find(needed, soft, hard, waiting == 0)?;
        Some(Place {
            unit,
            units: needed,
            at: self.layout.receive_unit(unit) + RECORD_BYTES + before,
            length,
            has_trace,
        })
    }

    /// Return whether there may ever be room for a message.
    pub fn may_hold(&self, length: usize) -> bool {
        units_of(TRACE_BYTES + length) <= self.layout.receive_units
    }

    fn soft_units(&self) -> u32 {
        let limit = self.area.word(AT_RECEIVE_LIMIT).load(Ordering::Relaxed);
        let chosen = Options(&self.area).get(Word::ReceiveBytes).min(limit);
        soft_units(chosen, self.layout.receive_units)
    }

    /// Copy bytes of a message into its place, from one of its offsets on.
    ///
    /// # Panics
    /// Beyond its length.
    pub fn fill(&self, place: &Place, from: usize, bytes: &[u8]) {
        assert!(from + bytes.len() <= place.length, "within the message");
        self.area.copy_in(place.at + from, bytes);
    }

    /// Publish a message that was filled; the client is sure to see it after `must_show`, the caller's
    /// next question, once for several.
    ///
    /// With an intent of the plane: `Journal::intend` before, `finish_intent` after the path knows.
    pub fn publish(&mut self, place: &Place, arrival: &Arrival) {
        let published = self.journal.long(journal::AT_PUBLISHED);
        let entry = self.journal.entry(published);
        let length = u32::try_from(place.length).unwrap_or(u32::MAX);
        self.journal.set_word(entry + ENTRY_AT, place.unit);
        self.journal.set_word(entry + ENTRY_UNITS, place.units);
        self.journal.set_word(entry + ENTRY_LENGTH, length);
        self.write_header(place, arrival, length);
        let last = published.checked_sub(1).map_or(0, |before| {
            self.journal.word(self.journal.entry(before) + ENTRY_AT)
        });
        let next = self
            .area
            .word(self.layout.receive_unit(last) + RECEIVE_NEXT);
        next.store(place.unit, Ordering::Release);
        self.segments.add(place.unit, place.units);
        let published = published.wrapping_add(1);
        self.journal.set_long(journal::AT_PUBLISHED, published);
        // Each time, the client would have to fetch the line of that word for each message.
        if published.is_multiple_of(TOLD_MESSAGES) || place.length > TOLD_LENGTH {
            self.tell_published(published);
        }
    }

    pub(super) fn tell_published(&self, published: u64) {
        self.area
            .long(AT_PUBLISHED)
            .store(published & 0xffff_ffff, Ordering::Release);
    }

    fn write_header(&self, place: &Place, arrival: &Arrival, length: u32) {
        let mut header = [0u8; RECORD_BYTES];
        header[RECEIVE_LENGTH..RECEIVE_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        let source = &arrival.source;
        header[RECEIVE_SCOPE..RECEIVE_SCOPE + 4].copy_from_slice(&source.scope.to_le_bytes());
        header[RECEIVE_ADDRESS..RECEIVE_ADDRESS + 16].copy_from_slice(&source.address);
        header[RECEIVE_PORT..RECEIVE_PORT + 2].copy_from_slice(&source.port.to_le_bytes());
        header[RECEIVE_EXTENSION_BYTES] = arrival.extension_bytes.min(16);
        header[RECEIVE_TRACES] = if place.has_trace {
            arrival.trace.count.clamp(1, 3)
        } else {
            0
        };
        header[RECEIVE_WALL_NS..RECEIVE_WALL_NS + 8]
            .copy_from_slice(&arrival.wall_ns.to_le_bytes());
        header[RECEIVE_EXTENSION..].copy_from_slice(&arrival.extension);
        let at = self.layout.receive_unit(place.unit);
        self.area.copy_in(at, &header);
        if place.has_trace {
            self.area.copy_in(at + RECORD_BYTES, &arrival.trace.bytes());
        }
    }

    /// Return how many messages were delivered and not seen as taken.
    pub fn unread(&self) -> u32 {
        let published = self.journal.long(journal::AT_PUBLISHED);
        let unread = published.wrapping_sub(self.journal.long(journal::AT_RELEASED));
        u32::try_from(unread).unwrap_or(u32::MAX)
    }

    /// Return whether the client has messages or a notification that it did not take, as far as its
    /// own word tells.
    pub fn has_unread(&self) -> bool {
        let taken = self.area.long(AT_TAKEN).load(Ordering::Acquire) >> 32;
        let published = self.journal.long(journal::AT_PUBLISHED) & 0xffff_ffff;
        let notify = self.area.long(super::layout::AT_NOTIFY);
        taken != published || notify.load(Ordering::Relaxed) != 0
    }

    /// Note what the client took: `each` gets the length of each message. Return whether it took
    /// any.
    ///
    /// # Errors
    /// `ClientError` for a count that cannot be.
    pub fn look_taken(&mut self, mut each: impl FnMut(usize)) -> Result<bool, ClientError> {
        let taken = self.area.long(AT_TAKEN).load(Ordering::Acquire) >> 32;
        let released = self.journal.long(journal::AT_RELEASED);
        let new = taken.wrapping_sub(released) & 0xffff_ffff;
        if new == 0 {
            return Ok(false);
        }
        if new > u64::from(self.unread()) {
            return Err(ClientError("a count of messages taken"));
        }
        for count in released..released + new {
            // The one before this gives its place back, this one stays for its `next`.
            let before = count.checked_sub(1).map_or(1, |before| {
                self.journal.word(self.journal.entry(before) + ENTRY_UNITS)
            });
            self.segments.remove(before);
            let entry = self.journal.entry(count);
            each(self.journal.word(entry + ENTRY_LENGTH) as usize);
        }
        self.journal.set_long(journal::AT_RELEASED, released + new);
        if self.is_over_quota {
            self.give_back_received(); // else its owner does so after a while
        }
        Ok(true)
    }

    /// Behind which unit pages are given back once nothing is unread; over quota none is kept.
    fn received_kept(&self) -> u32 {
        if self.is_over_quota {
            0
        } else {
            self.soft_units()
        }
    }

    /// Return behind which unit there are pages to give back, if nothing is unread.
    #[inline]
    pub(super) fn late_received(&self) -> Option<u32> {
        let kept = self.received_kept();
        (self.segments.touched > kept && self.unread() == 0).then_some(kept)
    }

    /// Give back the pages behind the soft end, and over quota all, if nothing is unread. The last
    /// record's header stays, where the next one's place is written, until that one is read too.
    pub(super) fn give_back_received(&mut self) {
        let Some(kept) = self.late_received() else {
            return;
        };
        let header = self.segments.used().first().map_or(0, |range| range.0);
        let behind = header + 1;
        let at = |unit| self.layout.receive_unit(unit);
        let end = at(self.segments.touched).next_multiple_of(PAGE_BYTES);
        for (from, to) in [(at(kept), at(header)), (at(behind.max(kept)), end)] {
            if from < to {
                self.area.give_back(from, to - from);
            }
        }
        self.segments.touched = kept;
        self.segments.left = behind;
    }

    /// Have the client ring once it has taken the message after `ahead` more; `look_taken` again
    /// after it.
    pub fn await_taken(&self, ahead: u32) {
        let released = self.journal.long(journal::AT_RELEASED);
        let count = released.wrapping_add(u64::from(ahead)) & 0xffff_ffff;
        self.area
            .long(AT_WANTS_TAKEN)
            .store(count | 1 << 32, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}
