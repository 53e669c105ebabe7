//! The side that writes.

use super::fields::FIELDS_BYTES;
use super::{
    AT_FIELDS, AT_PAYLOAD, ChannelError, Fields, Freed, INLINE_BYTES, Rule, SlotMemory, Word,
    ordinal, ring_range, slot_place,
};
use crate::atomics::Ordering;
use crate::rules::holds;
use crate::sleep::{awake, must_ring, set_asleep};

const _: () = assert!(AT_FIELDS + FIELDS_BYTES == AT_PAYLOAD);

/// What the writer knows: it counts by itself and checks what it is told.
#[derive(Debug, Default)]
pub struct Writer {
    /// Slots published.
    slots: u64,
    /// Position in the ring.
    position: u64,
    slots_freed: u64,
    ring_freed: u64,
}

impl Writer {
    /// Begin with so many slots published and freed: for tests of what comes late.
    pub fn starting_at(slots: u64, position: u64) -> Self {
        Self {
            slots,
            position,
            slots_freed: slots,
            ring_freed: position,
        }
    }

    /// Return how many slots were published.
    #[inline]
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// Return whether a packet with so many bytes of payload has room.
    ///
    /// # Errors
    /// `Freed`.
    #[inline]
    pub fn has_room<M: SlotMemory>(
        &mut self,
        memory: &M,
        bytes: usize,
    ) -> Result<bool, ChannelError> {
        if self.has_known_room::<M>(bytes) {
            return Ok(true);
        }
        self.look_freed(memory)?;
        Ok(self.has_known_room::<M>(bytes))
    }

    #[inline]
    fn has_known_room<M: SlotMemory>(&self, bytes: usize) -> bool {
        let used = self.slots.wrapping_sub(self.slots_freed);
        if used >= M::SLOTS as u64 {
            return false;
        }
        bytes <= INLINE_BYTES || self.has_known_ring::<M>(bytes)
    }

    #[inline]
    fn has_known_ring<M: SlotMemory>(&self, bytes: usize) -> bool {
        let end = ring_range::<M>(self.position, bytes).end;
        end.wrapping_sub(self.ring_freed) <= M::RING_BYTES as u64
    }

    fn look_freed<M: SlotMemory>(&mut self, memory: &M) -> Result<(), ChannelError> {
        let slots = memory.freed(Freed::Slots).load(Ordering::Acquire);
        let ring = memory.freed(Freed::Ring).load(Ordering::Acquire);
        // Not back, and not beyond what was published.
        let is_right = |told: u64, before: u64, ours: u64| {
            told.wrapping_sub(before) <= ours.wrapping_sub(before)
        };
        let has_slots = is_right(slots, self.slots_freed, self.slots);
        if !has_slots || !is_right(ring, self.ring_freed, self.position) {
            return Err(ChannelError::Freed);
        }
        (self.slots_freed, self.ring_freed) = (slots, ring);
        Ok(())
    }

    /// Return whether the reader has told that all is free: then the memory may be given back.
    ///
    /// # Errors
    /// `Freed`.
    pub fn is_drained<M: SlotMemory>(&mut self, memory: &M) -> Result<bool, ChannelError> {
        self.look_freed(memory)?;
        Ok(self.slots_freed == self.slots && self.ring_freed == self.position)
    }

    /// Publish a packet; return false without room for it.
    ///
    /// `fill` copies its `bytes` of payload, at most `PAYLOAD_BYTES_MAX`, to the place that it gets,
    /// from the first slot on. After the last packet of a call comes `must_ring`.
    ///
    /// # Errors
    /// `Freed`.
    #[inline]
    pub fn put<M: SlotMemory>(
        &mut self,
        memory: &M,
        fields: &Fields,
        bytes: usize,
        fill: impl FnOnce(usize),
    ) -> Result<bool, ChannelError> {
        debug_assert!(bytes <= M::PAYLOAD_BYTES_MAX, "no longer than a packet");
        if !self.has_room(memory, bytes)? {
            return Ok(false);
        }
        let mut end = self.position;
        let at = if bytes <= INLINE_BYTES {
            slot_place::<M>(self.slots).0 + AT_PAYLOAD
        } else {
            let range = ring_range::<M>(end, bytes);
            end = range.end;
            range.at
        };
        if holds(Rule::StampLast) {
            fill(at);
            self.publish(memory, fields, bytes);
        } else {
            self.publish(memory, fields, bytes);
            fill(at);
        }
        self.position = end;
        Ok(true)
    }

    #[inline]
    fn publish<M: SlotMemory>(&mut self, memory: &M, fields: &Fields, bytes: usize) {
        let (at, place) = slot_place::<M>(self.slots);
        memory.copy_in(at + AT_FIELDS, &fields.to_slot());
        let stamp = u64::from(ordinal(self.slots)) << 32 | bytes as u64;
        memory.stamp(place).store(stamp, Ordering::Release);
        self.slots = self.slots.wrapping_add(1);
    }

    /// Return whether to ring: the reader slept when this call's slots were published.
    #[inline]
    pub fn must_ring<M: SlotMemory>(&self, memory: &M) -> bool {
        must_ring(memory.word(Word::ReaderAsleep))
    }

    /// Ask to be rung for when there is room, and look again; return false if there is some already.
    ///
    /// # Errors
    /// `Freed`.
    pub fn sleep<M: SlotMemory>(&mut self, memory: &M, bytes: usize) -> Result<bool, ChannelError> {
        let word = memory.word(Word::WriterAsleep);
        set_asleep(word);
        if holds(Rule::LookAgain) && self.has_room(memory, bytes)? {
            awake(word);
            return Ok(false);
        }
        Ok(true)
    }

    /// Note that no slot comes any more; the caller rings.
    pub fn end<M: SlotMemory>(&self, memory: &M) {
        memory.word(Word::Ended).store(1, Ordering::Release);
    }
}
