//! The receive ring: space that the peer fills, and bytes read from it in the order of arrival.
//!
//! ```text
//! free -> announced (unfilled) -> arrived (unread) -> read, and free again
//! ```
//! Announced ranges are filled strictly in order, whatever memory they are of, so a data message needs
//! no address: its bytes are the next ones. Space is announced to urds peers in eighths of the ring, to
//! librdmacm in halves. A ring that the peer has filled while the application had read all of it is
//! doubled: the core says what it wants (`wanted_ring`), its owner brings memory (`grow`).
//!
//! `expect` puts memory of the application behind all that is announced: bytes that arrive there are
//! read by arriving. What is announced cannot be taken back: the memory of an expectation that ends
//! early stays until the peer has filled it.

use std::collections::VecDeque;

use crate::records::{
    DIRECT_BYTES_MIN, IsExpecting, LENGTH_MAX, Memory, Post, ProtocolError, Region, StreamSettings,
    StreamStats,
};
use crate::tables::SglUpdates;
use crate::wire::Sge;

/// Rings are multiples of it, so that an eighth is one of 64.
const RING_UNIT_BYTES: usize = 512;
/// An eighth below that costs more messages than it saves waits.
const STEP_BYTES_MIN: usize = 2048;
const HELD_BYTES_MAX: usize = 1 << 18;
/// Messages in a row that end where a range ends: space is what stops the peer.
const EDGES_MIN: u32 = 4;
const PARTS_FINE: usize = 8;
const PARTS_HALF: usize = 2;

/// A part of a memory that is used as a ring: `byte_count` bytes from `start`.
///
/// Bytes are announced, filled, read and free again in one order. A buffer that is left for a larger
/// one is released when all of it is free, for then nothing of it is announced.
#[derive(Debug)]
struct RingBuffer<M> {
    number: u32,
    /// `None` once the core is closed.
    region: Option<Region<M>>,
    start: usize,
    byte_count: usize,
    step: usize,         // less than that is not announced
    free: usize,         // neither announced nor unread
    announced_to: usize, // offset in the memory at which announcing goes on
    is_left: bool,
}

/// Bytes of a buffer in one piece: announced and not filled yet, or filled and not read.
#[derive(Clone, Copy, Debug)]
struct BufferRange {
    buffer: u32,
    offset: usize, // in the memory
    byte_count: usize,
}

impl<M> RingBuffer<M> {
    fn new(number: u32, region: Region<M>, start: usize, byte_count: usize, step: usize) -> Self {
        Self {
            number,
            region: Some(region),
            start,
            byte_count,
            step,
            free: byte_count,
            announced_to: start,
            is_left: false,
        }
    }

    /// Announce what is free and in one piece, whole steps of it if there are any.
    ///
    /// `None` if less than a step is free. What is before the end of the ring is announced as well.
    fn take_free(&mut self, byte_count_max: usize) -> Option<BufferRange> {
        if self.free < self.step || byte_count_max == 0 {
            return None;
        }
        let end = self.start + self.byte_count;
        let free = self.free.min(end - self.announced_to);
        let steps = free / self.step * self.step;
        let byte_count = if steps > 0 { steps } else { free }.min(byte_count_max);
        let taken = BufferRange {
            buffer: self.number,
            offset: self.announced_to,
            byte_count,
        };
        self.free -= byte_count;
        self.announced_to += byte_count;
        if self.announced_to == end {
            self.announced_to = self.start;
        }
        Some(taken)
    }

    /// Return the address and key of a range as the peer names it.
    fn place(&self, range: &BufferRange) -> (u64, u32) {
        self.region.as_ref().map_or((0, 0), |region| {
            let address = region.address.wrapping_add(range.offset as u64);
            (address, region.rkey)
        })
    }
}

/// Return how large the ring is at first: a chosen size, rounded up, or a small one.
pub(crate) fn first_ring_bytes(settings: &StreamSettings) -> usize {
    let wanted = if settings.is_receive_fixed {
        settings.receive_bytes
    } else {
        settings.ring_first_bytes
    };
    wanted.max(1).next_multiple_of(RING_UNIT_BYTES)
}

/// Return how much of a ring is announced at a time: it divides the ring.
fn step_of(ring_bytes: usize, is_fine: bool) -> usize {
    let mut parts = if is_fine { PARTS_FINE } else { PARTS_HALF };
    while parts > PARTS_HALF && ring_bytes / parts < STEP_BYTES_MIN {
        parts /= 2;
    }
    ring_bytes / parts
}

/// Memory of the application in which a receive is expected.
#[derive(Clone, Copy, Debug)]
struct Expected {
    buffer: u32,
    byte_count: usize,
    ahead: usize,  // bytes to be read before those in place
    landed: usize, // bytes in place
}

/// What the peer may write, and what of it has arrived.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
pub struct ReceiveRing<M> {
    updates: SglUpdates,
    is_fine: bool,
    /// An update.
    pub(crate) may_be_due: bool,
    /// No data will come: updates are of no use.
    pub is_stopped: bool,
    // Space
    ring: RingBuffer<M>,
    others: Vec<RingBuffer<M>>, // that were left or expected, while a range or receive is in them
    numbers: u32,
    unfilled: VecDeque<BufferRange>, // announced, in the order in which the peer fills it
    unfilled_bytes: usize,
    read: u64, // bytes since the beginning
    // Growth
    grow_at: u64, // bytes read before the ring may grow
    ring_max: usize,
    wanted: Option<usize>,
    released: VecDeque<Region<M>>,
    is_full: bool, // all that was announced was filled, since it was looked at last
    // Up to `held_until` bytes read, no more than `held_bytes` of the ring are not free.
    held_until: Option<u64>,
    held_bytes: usize,
    held_wait_bytes: usize,
    // What has arrived
    readable_bytes: usize,
    unread: VecDeque<BufferRange>, // in order
    arrived: u64,                  // bytes since the beginning
    edges: u32,                    // messages in a row that ended where a range ends
    messages_received: u64,
    message_ends: VecDeque<u64>, // of messages not read, in bytes like `arrived`
    // Direct receive
    expected: Option<Expected>,
    expected_range: Option<BufferRange>, // announced before more of the ring
}

impl<M: Memory> ReceiveRing<M> {
    /// Announce the first half of a ring in `region`, from `start` on.
    pub(crate) fn new(
        settings: &StreamSettings,
        region: Region<M>,
        start: usize,
        ring_bytes: usize,
    ) -> Self {
        let half = ring_bytes / 2;
        let mut ring = RingBuffer::new(0, region, start, ring_bytes, half);
        let first = ring.take_free(half); // of two halves
        let ring_max = if settings.is_receive_fixed {
            ring_bytes
        } else {
            settings.ring_max_bytes / RING_UNIT_BYTES * RING_UNIT_BYTES
        };
        Self {
            updates: SglUpdates::new(settings),
            is_fine: false,
            may_be_due: false,
            is_stopped: false,
            ring,
            others: Vec::new(),
            numbers: 0,
            unfilled: first.into_iter().collect(),
            unfilled_bytes: half,
            read: 0,
            grow_at: ring_bytes as u64,
            ring_max,
            wanted: None,
            released: VecDeque::new(),
            is_full: false,
            held_until: None,
            held_bytes: 0,
            held_wait_bytes: settings.held_wait_bytes,
            readable_bytes: 0,
            unread: VecDeque::new(),
            arrived: 0,
            edges: 0,
            messages_received: 0,
            message_ends: VecDeque::new(),
            expected: None,
            expected_range: None,
        }
    }

    pub(crate) fn begin_at(&mut self, messages: u64) {
        self.messages_received = messages;
        self.updates.begin_at(messages);
    }

    /// Return how many bytes are to be read, those that arrived in place not among them.
    pub fn readable_bytes(&self) -> usize {
        self.readable_bytes
    }

    /// Return the space that the connect data tell.
    pub(crate) fn first(&self) -> Sge {
        self.unfilled
            .front()
            .map_or(Sge::default(), |first| self.sge(first))
    }

    /// Take where the peer's table is; from now on updates may be due.
    pub(crate) fn adopt(&mut self, table: Sge, is_big_endian: bool, is_urds: bool) {
        self.updates.adopt(table, is_big_endian, is_urds);
        self.is_fine = is_urds && table.length > 2;
        self.ring.step = step_of(self.ring.byte_count, self.is_fine);
        self.may_be_due = true;
    }

    /// Announce nothing more: no data will come.
    pub(crate) fn stop(&mut self) {
        self.is_stopped = true;
        self.may_be_due = false;
    }

    // -- buffers

    fn buffer(&self, number: u32) -> &RingBuffer<M> {
        if self.ring.number == number {
            return &self.ring;
        }
        self.others
            .iter()
            .find(|buffer| buffer.number == number)
            .expect("a range keeps its buffer")
    }

    fn buffer_mut(&mut self, number: u32) -> &mut RingBuffer<M> {
        if self.ring.number == number {
            return &mut self.ring;
        }
        self.others
            .iter_mut()
            .find(|buffer| buffer.number == number)
            .expect("a range keeps its buffer")
    }

    /// Forget a buffer that no range or receive is in any more.
    fn forget_unused(&mut self, number: u32) {
        let is_expected = self
            .expected
            .is_some_and(|expected| expected.buffer == number);
        if self.ring.number == number || is_expected {
            return;
        }
        let mut ranges = self.unfilled.iter().chain(&self.unread);
        if !ranges.any(|range| range.buffer == number) {
            self.others.retain(|buffer| buffer.number != number);
        }
    }

    fn sge(&self, range: &BufferRange) -> Sge {
        let (address, key) = self.buffer(range.buffer).place(range);
        Sge {
            address,
            key,
            length: u32::try_from(range.byte_count).unwrap_or(u32::MAX), // `expect` checks it
        }
    }

    // -- updates

    /// Return a credit update if one is due; the caller has a control slot for it.
    pub(crate) fn next_update(&mut self, stats: &mut StreamStats) -> Option<Post> {
        let space = self.next_range();
        let has_credits = self.updates.messages_read >= self.updates.threshold;
        if space.is_none() && (!has_credits || self.is_stopped) {
            self.may_be_due = false;
            return None;
        }
        let space = space.map(|range| self.sge(&range));
        Some(self.updates.update(space, stats))
    }

    /// Announce the next range if there is one and a slot of the peer's table for it.
    ///
    /// A slot is free when the bytes of its last entry have arrived.
    fn next_range(&mut self) -> Option<BufferRange> {
        if self.unfilled.len() >= self.updates.entries as usize || self.is_stopped {
            return None;
        }
        let found = match self.expected_range.take() {
            Some(found) => found,
            None => self.ring.take_free(self.announce_max())?,
        };
        self.unfilled_bytes += found.byte_count;
        self.unfilled.push_back(found);
        Some(found)
    }

    fn is_held(&self) -> bool {
        self.held_until.is_some_and(|until| self.read <= until)
    }

    /// Return how much of the ring may be one entry now; 0 if it has to wait.
    fn announce_max(&self) -> usize {
        if !self.is_fine {
            return self.ring.step;
        }
        if !self.is_held() {
            return self.ring.byte_count;
        }
        // Two parts, so that the second is there while the peer fills the first.
        let part = self.held_bytes / 2;
        if self.ring.byte_count - self.ring.free <= part {
            part
        } else {
            0
        }
    }

    // -- growing

    /// Double the ring if peer and application both wait for each other because of it.
    ///
    /// The peer has filled it since the last look and the application has read it all: a reader that
    /// is slower than the peer never comes here, and must not have more memory for it.
    fn consider_growth(&mut self) {
        self.is_full = false;
        let size_bytes = self.ring.byte_count;
        let is_enough = self.is_held() && size_bytes >= self.held_bytes;
        if is_enough || size_bytes >= self.ring_max || self.read < self.grow_at || self.is_stopped {
            return;
        }
        let ring_bytes = (size_bytes * 2).min(self.ring_max);
        self.grow_at = self.read + ring_bytes as u64;
        self.wanted = Some(ring_bytes);
    }

    /// Return how many zeroed bytes the ring would grow into: `grow` or `refuse_growth` answers.
    ///
    /// Asked after a read; an answer may come at any time.
    pub fn wanted_ring(&self) -> Option<usize> {
        self.wanted
    }

    /// Go on in a larger buffer. Poll afterwards.
    pub(crate) fn grow(&mut self, region: Region<M>, stats: &mut StreamStats) {
        self.wanted = None;
        if self.is_stopped || region.length < 2 {
            self.released.push_back(region);
            return;
        }
        stats.ring_grown += 1;
        self.numbers += 1;
        let ring_bytes = region.length;
        let step = step_of(ring_bytes, self.is_fine);
        let next = RingBuffer::new(self.numbers, region, 0, ring_bytes, step);
        let mut left = std::mem::replace(&mut self.ring, next);
        let number = left.number;
        // The first buffer shares its memory with our tables.
        if left.start == 0 {
            left.is_left = true;
            if left.free == left.byte_count {
                self.released.extend(left.region.clone());
            }
        }
        self.others.push(left);
        self.forget_unused(number);
        self.may_be_due = true;
    }

    /// Have `take_released` give memory of the core's.
    pub(crate) fn release(&mut self, region: Region<M>) {
        self.released.push_back(region);
    }

    /// Do without a larger buffer for now.
    pub(crate) fn refuse_growth(&mut self, stats: &mut StreamStats) {
        self.wanted = None;
        stats.ring_growth_failed += 1;
    }

    /// Return memory into which the peer writes no more, one after the other.
    pub fn take_released(&mut self) -> Option<Region<M>> {
        self.released.pop_front()
    }

    /// Return whether the owner has memory to bring or to take back.
    pub fn has_memory_work(&self) -> bool {
        self.wanted.is_some() || !self.released.is_empty()
    }

    // -- what arrives

    /// Take the immediate data of a data message: its bytes have landed.
    ///
    /// # Errors
    /// A message without a credit, without bytes, with more than was announced, or beyond the end of
    /// a range whose memory does not continue.
    pub(crate) fn take_message(
        &mut self,
        byte_count: usize,
        stats: &mut StreamStats,
    ) -> Result<(), ProtocolError> {
        self.check_credit()?;
        if byte_count == 0 || byte_count > self.unfilled_bytes {
            return Err(ProtocolError(format!(
                "message of {byte_count} bytes, published are {}",
                self.unfilled_bytes
            )));
        }
        self.messages_received += 1;
        self.arrived += byte_count as u64;
        self.message_ends.push_back(self.arrived);
        self.unfilled_bytes -= byte_count;
        stats.messages_received += 1;
        stats.bytes_received += byte_count as u64;
        match self.unfilled.front_mut() {
            Some(first) if byte_count < first.byte_count => {
                let landed = BufferRange {
                    byte_count,
                    ..*first
                };
                first.offset += byte_count;
                first.byte_count -= byte_count;
                self.land(landed, stats);
                self.edges = 0;
                Ok(())
            }
            _ => self.fill_ranges(byte_count, stats),
        }
    }

    /// Fill the first range to its end, and more.
    fn fill_ranges(
        &mut self,
        byte_count: usize,
        stats: &mut StreamStats,
    ) -> Result<(), ProtocolError> {
        let mut left = byte_count;
        let mut is_edge = false;
        while let Some(first) = self.unfilled.front_mut() {
            let taken = left.min(first.byte_count);
            let landed = BufferRange {
                byte_count: taken,
                ..*first
            };
            first.offset += taken;
            first.byte_count -= taken;
            left -= taken;
            let rest = *first;
            self.land(landed, stats);
            is_edge = rest.byte_count == 0;
            if is_edge {
                self.unfilled.pop_front();
            }
            let is_beyond = left > 0 && !self.is_continued(&rest);
            self.forget_unused(rest.buffer);
            if is_beyond {
                return Err(ProtocolError(format!(
                    "message goes {left} bytes beyond its piece"
                )));
            }
            if left == 0 {
                break;
            }
        }
        // On a long path something is always announced that the peer does not know of yet: that it
        // stops for space shows by where its messages end.
        self.edges = if is_edge { self.edges + 1 } else { 0 };
        self.is_full |= self.unfilled.is_empty() || self.edges >= EDGES_MIN;
        self.may_be_due = true;
        Ok(())
    }

    /// Return whether a peer sees the next range as one with `filled`, of which no byte is left.
    fn is_continued(&self, filled: &BufferRange) -> bool {
        let Some(next) = self.unfilled.front() else {
            return false;
        };
        self.buffer(filled.buffer).place(filled) == self.buffer(next.buffer).place(next)
    }

    fn check_credit(&self) -> Result<(), ProtocolError> {
        let received = self.messages_received;
        if received >= self.updates.limit {
            return Err(ProtocolError(format!(
                "message {received} without a credit"
            )));
        }
        Ok(())
    }

    /// Note bytes that are to be read, or are by having arrived where they are expected.
    fn land(&mut self, landed: BufferRange, stats: &mut StreamStats) {
        let byte_count = landed.byte_count;
        match &mut self.expected {
            Some(expected) if expected.buffer == landed.buffer => {
                expected.landed += byte_count;
                stats.bytes_direct += byte_count as u64;
                if self.unread.is_empty() {
                    self.note_free(landed.buffer, byte_count);
                    return;
                }
            }
            _ => self.readable_bytes += byte_count,
        }
        if let Some(last) = self.unread.back_mut()
            && last.buffer == landed.buffer
            && last.offset + last.byte_count == landed.offset
        {
            last.byte_count += byte_count;
            return;
        }
        self.unread.push_back(landed);
    }

    /// Count a message that costs a credit and has nothing to read.
    ///
    /// # Errors
    /// A message without a credit.
    pub(crate) fn count_update(&mut self) -> Result<(), ProtocolError> {
        self.check_credit()?;
        self.messages_received += 1;
        self.updates.messages_read += 1;
        self.may_be_due = true;
        Ok(())
    }

    // -- what is read

    /// Return how many bytes `receive_into` would give: while a receive is expected, those before it.
    pub fn available(&self) -> usize {
        match &self.expected {
            Some(expected) => self.readable_bytes.min(expected.ahead),
            None => self.readable_bytes,
        }
    }

    /// Hand bytes that are to be read to `take`, piece by piece and in order, and free their space
    /// unless `peek`; return how many.
    ///
    /// `take` gets a memory and a range of it, and copies; at most `wanted` bytes in all. While a
    /// receive is expected, only bytes before it. Poll afterwards.
    pub(crate) fn receive_into(
        &mut self,
        wanted: usize,
        peek: bool,
        take: &mut impl FnMut(&M, usize, usize),
        stats: &mut StreamStats,
    ) -> usize {
        let wanted = match &self.expected {
            Some(expected) => wanted.min(expected.ahead),
            None => wanted,
        };
        let mut done = 0;
        let mut at = 0;
        while done < wanted
            && let Some(&part) = self.unread.get(at)
        {
            let taken = part.byte_count.min(wanted - done);
            let Some(region) = &self.buffer(part.buffer).region else {
                break;
            };
            take(&region.memory, part.offset, taken);
            done += taken;
            if peek {
                at += 1;
            } else {
                self.consume(taken, stats);
            }
        }
        done
    }

    /// Note that bytes of the first unread range were copied out.
    fn consume(&mut self, byte_count: usize, stats: &mut StreamStats) {
        let Some(first) = self.unread.front_mut() else {
            return;
        };
        let number = first.buffer;
        self.readable_bytes -= byte_count;
        stats.bytes_copied_out += byte_count as u64;
        first.offset += byte_count;
        first.byte_count -= byte_count;
        if first.byte_count == 0 {
            self.unread.pop_front();
        }
        self.note_free(number, byte_count);
        self.forget_unused(number);
        if let Some(expected) = &mut self.expected {
            expected.ahead -= byte_count;
            // What landed where it is expected is read, once all before it is.
            let number = expected.buffer;
            if let Some(&first) = self.unread.front()
                && first.buffer == number
            {
                self.unread.pop_front();
                self.note_free(number, first.byte_count);
            }
        }
        if self.is_full && self.readable_bytes == 0 {
            self.consider_growth();
        }
    }

    /// Note that the next bytes in order are read.
    fn note_free(&mut self, number: u32, byte_count: usize) {
        let buffer = self.buffer_mut(number);
        buffer.free += byte_count;
        let has_step = buffer.free >= buffer.step;
        if buffer.is_left && buffer.free == buffer.byte_count {
            let released = buffer.region.clone();
            self.released.extend(released);
        }
        self.read += byte_count as u64;
        while self
            .message_ends
            .front()
            .is_some_and(|end| *end <= self.read)
        {
            self.message_ends.pop_front();
            self.updates.messages_read += 1;
        }
        if has_step || self.updates.messages_read >= self.updates.threshold {
            self.may_be_due = true;
        }
    }

    // -- direct receive

    /// Let bytes of a wait for `byte_count` of them arrive in `region`, at their place.
    ///
    /// Returns from which offset on they do; `byte_count` if it is not worth while, and then nothing
    /// is expected. The region has `byte_count` bytes, and stays registered while `holds` says so.
    /// Poll afterwards.
    ///
    /// # Errors
    /// Another expectation stands.
    pub fn expect(&mut self, region: Region<M>, byte_count: usize) -> Result<usize, IsExpecting> {
        if self.expected.is_some() {
            return Err(IsExpecting);
        }
        self.hold_back(byte_count);
        let ahead = self.readable_bytes + self.unfilled_bytes;
        let rest = byte_count.saturating_sub(ahead);
        if rest < DIRECT_BYTES_MIN || rest as u64 > LENGTH_MAX || self.is_stopped {
            return Ok(byte_count);
        }
        self.numbers += 1;
        let number = self.numbers;
        let mut buffer = RingBuffer::new(number, region, ahead, rest, rest);
        buffer.free = 0;
        self.others.push(buffer);
        self.expected = Some(Expected {
            buffer: number,
            byte_count: rest,
            ahead,
            landed: 0,
        });
        self.expected_range = Some(BufferRange {
            buffer: number,
            offset: ahead,
            byte_count: rest,
        });
        self.may_be_due = true;
        Ok(ahead)
    }

    /// Return whether `expect` may do something for a wait for so many bytes.
    pub fn may_expect(&self, byte_count: usize) -> bool {
        let ahead = self.readable_bytes + self.unfilled_bytes;
        byte_count >= self.held_wait_bytes || byte_count.saturating_sub(ahead) >= DIRECT_BYTES_MIN
    }

    /// Announce less of the ring until a long wait is over: an eighth of what it waits for.
    ///
    /// More would be copied instead of arriving in place at the next one. Less would leave the peer
    /// idle between two waits, which costs shorter waits more than the copy.
    fn hold_back(&mut self, byte_count: usize) {
        if byte_count >= self.held_wait_bytes {
            self.held_until = Some(self.read + byte_count as u64);
            self.held_bytes = (byte_count / 8).min(HELD_BYTES_MAX);
        }
    }

    /// Return how many bytes have yet to arrive in the expected memory.
    pub fn expected_left(&self) -> usize {
        self.expected
            .map_or(0, |expected| expected.byte_count - expected.landed)
    }

    /// End the expectation, fulfilled or not; return how many bytes arrived in place.
    ///
    /// These are read; they count from the offset that `expect` returned. While bytes ahead are not
    /// read they are none: `receive_into` gives them in their order, and what the peer still writes
    /// into the memory.
    pub(crate) fn end_expect(&mut self, stats: &mut StreamStats) -> usize {
        self.expected_range = None;
        let Some(expected) = self.expected.take() else {
            return 0;
        };
        self.forget_unused(expected.buffer);
        if expected.ahead > 0 {
            self.readable_bytes += expected.landed;
            stats.bytes_direct -= expected.landed as u64;
            return 0;
        }
        expected.landed
    }

    /// Return whether the peer may still write there, or unread bytes lie there.
    pub fn holds(&self, address: u64, length: usize) -> bool {
        let end = u128::from(address) + length as u128;
        self.unfilled.iter().chain(&self.unread).any(|range| {
            let Some(held) = &self.buffer(range.buffer).region else {
                return false;
            };
            let held_end = u128::from(held.address) + held.length as u128;
            u128::from(held.address) < end && u128::from(address) < held_end
        })
    }

    /// Forget everything and release what the ring has grown into.
    pub(crate) fn close(&mut self) {
        self.stop();
        self.unread.clear();
        self.unfilled.clear();
        self.readable_bytes = 0;
        self.expected = None;
        self.expected_range = None;
        self.wanted = None;
        let left = self.others.drain(..).filter(|buffer| buffer.is_left);
        self.released
            .extend(left.filter_map(|buffer| buffer.region));
        // Taken: who keeps the core does not keep the memory.
        let region = self.ring.region.take();
        if self.ring.start == 0 {
            self.released.extend(region);
        }
    }

    /// Return sizes of the ring, for tests: its bytes, its step, and what is announced of it.
    pub fn sizes(&self) -> (usize, usize, usize) {
        (self.ring.byte_count, self.ring.step, self.unfilled_bytes)
    }
}
