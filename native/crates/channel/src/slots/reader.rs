//! The side that reads.

use super::fields::FIELDS_BYTES;
use super::{
    AT_FIELDS, AT_PAYLOAD, ChannelError, EIGHTHS, Fields, Freed, INLINE_BYTES, Rule, SlotMemory,
    Word, low, ordinal, ring_range, slot_place,
};
use crate::atomics::Ordering;
use crate::rules::holds;
use crate::sleep::{awake, must_ring, set_asleep};

/// A packet whose payload still lies in the memory, until the next call of the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    pub fields: Fields,
    /// Place of its payload, from the first slot on.
    pub at: usize,
    pub bytes: usize,
}

/// What the reader knows: it counts by itself.
#[derive(Debug, Default)]
pub struct Reader {
    /// Slots taken.
    slots: u64,
    /// Position in the ring.
    position: u64,
    slots_told: u64,
    ring_told: u64,
    /// What was told when a writer that waits was rung for last.
    slots_rung: u64,
    ring_rung: u64,
}

impl Reader {
    /// Begin with so many slots taken and told: for tests of what comes late.
    pub fn starting_at(slots: u64, position: u64) -> Self {
        Self {
            slots,
            position,
            slots_told: slots,
            ring_told: position,
            slots_rung: slots,
            ring_rung: position,
        }
    }

    /// Return how many slots were taken.
    #[inline]
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// Return whether a packet is here.
    #[inline]
    pub fn is_ready<M: SlotMemory>(&self, memory: &M) -> bool {
        self.stamp(memory).is_some()
    }

    /// Return the bytes of the next slot's payload, if it is published.
    #[inline]
    fn stamp<M: SlotMemory>(&self, memory: &M) -> Option<usize> {
        let place = slot_place::<M>(self.slots).1;
        let stamp = memory.stamp(place).load(Ordering::Acquire);
        let is_next = stamp >> 32 == u64::from(ordinal(self.slots));
        is_next.then_some(low(stamp & u64::from(u32::MAX)))
    }

    /// Take the next packet, if one is here. The payload of the one before is free from now on, and
    /// `doorbell` is called for a writer that waits for it.
    ///
    /// # Errors
    /// What is wrong with the packet; then the channel has to be closed.
    #[inline]
    pub fn take<M: SlotMemory>(
        &mut self,
        memory: &M,
        doorbell: &mut impl FnMut(),
    ) -> Result<Option<Taken>, ChannelError> {
        self.free::<M>(memory, doorbell);
        let Some(bytes) = self.stamp(memory) else {
            return Ok(None);
        };
        if bytes > M::PAYLOAD_BYTES_MAX {
            return Err(ChannelError::Payload);
        }
        let slot = slot_place::<M>(self.slots).0;
        let mut copy = [0; FIELDS_BYTES];
        memory.copy_out(slot + AT_FIELDS, &mut copy);
        let fields = Fields::of_slot(&copy, bytes)?;
        self.slots = self.slots.wrapping_add(1);
        let mut at = slot + AT_PAYLOAD;
        if bytes > INLINE_BYTES {
            let range = ring_range::<M>(self.position, bytes);
            at = range.at;
            self.position = range.end;
        }
        Ok(Some(Taken { fields, at, bytes }))
    }

    /// Free all that was taken; tell it if it is an eighth, and ring for a half.
    #[inline]
    fn free<M: SlotMemory>(&mut self, memory: &M, doorbell: &mut impl FnMut()) {
        let slots = self.slots.wrapping_sub(self.slots_told);
        let ring = self.position.wrapping_sub(self.ring_told);
        if slots >= (M::SLOTS / EIGHTHS) as u64 || ring >= (M::RING_BYTES / EIGHTHS) as u64 {
            self.tell(memory, doorbell);
        }
    }

    fn tell<M: SlotMemory>(&mut self, memory: &M, doorbell: &mut impl FnMut()) {
        let (slots, ring) = (memory.freed(Freed::Slots), memory.freed(Freed::Ring));
        slots.store(self.slots, Ordering::Release);
        ring.store(self.position, Ordering::Release);
        (self.slots_told, self.ring_told) = (self.slots, self.position);
        // A writer waits for room once all is used, so half of it is free before there is nothing to take.
        let slots = self.slots.wrapping_sub(self.slots_rung);
        let ring = self.position.wrapping_sub(self.ring_rung);
        if slots >= (M::SLOTS / 2) as u64 || ring >= (M::RING_BYTES / 2) as u64 {
            self.ring(memory, doorbell);
        }
    }

    /// Ring if the writer waits for what was told to be free.
    fn ring<M: SlotMemory>(&mut self, memory: &M, doorbell: &mut impl FnMut()) {
        (self.slots_rung, self.ring_rung) = (self.slots_told, self.ring_told);
        if holds(Rule::LookAfterTelling) && must_ring(memory.word(Word::WriterAsleep)) {
            doorbell();
        }
    }

    /// Tell all that is free, ask to be rung for, and look again; return false if a packet is here, or
    /// the end. Call it when `take` has found none.
    pub fn sleep<M: SlotMemory>(&mut self, memory: &M, doorbell: &mut impl FnMut()) -> bool {
        if self.slots != self.slots_told || self.position != self.ring_told {
            self.tell(memory, doorbell);
        }
        self.ring(memory, doorbell);
        let word = memory.word(Word::ReaderAsleep);
        set_asleep(word);
        let has_news = || self.is_ready(memory) || Self::has_ended(memory);
        if holds(Rule::LookAgain) && has_news() {
            awake(word);
            return false;
        }
        true
    }

    /// Note that the reader looks by itself: no doorbell until the next `sleep`.
    #[inline]
    pub fn awake<M: SlotMemory>(memory: &M) {
        awake(memory.word(Word::ReaderAsleep));
    }

    /// Return whether the writer has ended; what it published before is still to be taken: look at
    /// this first.
    #[inline]
    pub fn has_ended<M: SlotMemory>(memory: &M) -> bool {
        memory.word(Word::Ended).load(Ordering::Acquire) != 0
    }
}
