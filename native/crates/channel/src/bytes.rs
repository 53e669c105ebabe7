//! One direction of a shm stream: bytes between two processes without mutual trust, in the slots and
//! the ring of [`crate::slots`]. The layout is that of docs/protocol/shm-stream.md.
//!
//! A slot announces bytes. Its stamp is the last store into it and tells how many there are and the
//! slot's ordinal; up to [`INLINE_BYTES`] lie in the slot behind the stamp, more lie in the ring behind
//! those before. So a reader looks at one word, and a short message is in the cache lines of that word.
//! No place is told: each side counts slots and bytes by itself, so a writer that lies can only send
//! wrong bytes. What a reader has freed it tells in eighths and before it sleeps; the writer checks it.
//! A length is copied out once and then checked, bytes are copied once to their place.
//!
//! Sleepers use the words of [`crate::sleep`], which hold the position of the stream that the sleeper
//! waits for: a reader the end of a long payload, a writer the middle of what is on its way, so that a
//! slow reader does not wake it for each message. `native/loom` tests this file in every interleaving
//! of a writer and a reader, with its own `atomics`.

use core::ops::Deref;

use crate::atomics::Ordering;
use crate::rules::holds;
use crate::sleep::{awake, must_ring_if, set_waiting};
use crate::slots::{
    ChannelError, EIGHTHS, Freed, RING_STEP_BYTES, Rule, SLOT_BYTES, SlotMemory, Word, low,
    ordinal, slot_place,
};

/// The shortest ring.
pub const RING_BYTES_MIN: usize = 1 << 16;
/// The longest ring.
pub const RING_BYTES_MAX: usize = 1 << 28;
/// The most bytes that lie in their slot.
pub const INLINE_BYTES: usize = SLOT_BYTES - AT_BYTES;
/// The most bytes of a slot.
pub const SLOT_TELLS_MAX: usize = PUBLISH_BYTES + PUBLISH_BYTES / EIGHTHS;

const AT_BYTES: usize = 8;
/// A long write is published so often that the reader copies in parallel; the last slot may take an
/// eighth more, since a rest in a slot of its own would cost the reader as much as what is before it.
const PUBLISH_BYTES: usize = 1 << 16;
/// Words of sleepers hold this many bits of a position, and one that says that they sleep.
const POSITION_BITS: u32 = 31;
const POSITION_MASK: u32 = (1 << POSITION_BITS) - 1;

/// Memory of a direction of a shm stream.
pub trait ByteMemory: SlotMemory {
    /// Return the bytes of the ring, a power of two.
    fn ring_bytes(&self) -> usize;
}

/// Return what the word of a sleeper holds that waits for a position of the stream.
#[inline]
fn waiting_for(position: u64) -> u32 {
    // Masked: it fits.
    u32::try_from(position & u64::from(POSITION_MASK)).unwrap_or(0) | 1 << POSITION_BITS
}

/// Return whether a position is reached; no sleeper waits for more than half of the bits.
#[inline]
fn is_reached(word: u32, position: u64) -> bool {
    waiting_for(position).wrapping_sub(word) & POSITION_MASK <= POSITION_MASK / 2
}

/// Copy to or from the ring at a position, in two pieces where it ends.
#[inline]
fn for_each_piece<M: ByteMemory>(
    memory: &M,
    position: u64,
    bytes: usize,
    mut copy: impl FnMut(usize, usize, usize),
) {
    let mut done = 0;
    while done < bytes {
        let offset = low(position.wrapping_add(done as u64)) & (memory.ring_bytes() - 1);
        let step = (bytes - done).min(memory.ring_bytes() - offset);
        copy(M::SLOTS * SLOT_BYTES + offset, done, step);
        done += step;
    }
}

/// Return what so many bytes take in the ring.
#[inline]
fn in_ring(bytes: usize) -> u64 {
    if bytes <= INLINE_BYTES {
        0
    } else {
        bytes.next_multiple_of(RING_STEP_BYTES) as u64
    }
}

/// The side that writes: it counts by itself and checks what it is told.
#[derive(Debug, Default)]
pub struct Writer {
    /// Slots published.
    slots: u64,
    /// Position in the ring.
    position: u64,
    /// Bytes written.
    bytes: u64,
    slots_freed: u64,
    ring_freed: u64,
    bytes_freed: u64,
}

/// What is left of a write.
struct Rest<'a, P> {
    pieces: &'a [P],
    /// Bytes of the first one that were copied.
    done: usize,
}

impl<P: Deref<Target = [u8]>> Rest<'_, P> {
    /// Copy the next bytes to a place of the memory.
    fn copy_in<M: ByteMemory>(&mut self, memory: &M, mut at: usize, mut bytes: usize) {
        while bytes > 0
            && let Some((piece, others)) = self.pieces.split_first()
        {
            let rest = &piece[self.done..];
            let step = rest.len().min(bytes);
            memory.copy_in(at, &rest[..step]);
            self.done += step;
            at += step;
            bytes -= step;
            if self.done == piece.len() {
                (self.pieces, self.done) = (others, 0);
            }
        }
    }
}

impl Writer {
    /// Return the count of all bytes written.
    #[inline]
    pub fn written(&self) -> u64 {
        self.bytes
    }

    /// Return how many bytes the reader has not told to be taken.
    ///
    /// # Errors
    /// `Freed`.
    pub fn pending<M: ByteMemory>(&mut self, memory: &M) -> Result<usize, ChannelError> {
        self.look_freed(memory)?;
        Ok(low(self.bytes.wrapping_sub(self.bytes_freed)))
    }

    fn look_freed<M: ByteMemory>(&mut self, memory: &M) -> Result<(), ChannelError> {
        let slots = memory.freed(Freed::Slots).load(Ordering::Acquire);
        let ring = memory.freed(Freed::Ring).load(Ordering::Acquire);
        let bytes = memory.freed(Freed::Bytes).load(Ordering::Acquire);
        // Not back, and not beyond what was published.
        let is_right = |told: u64, before: u64, ours: u64| {
            told.wrapping_sub(before) <= ours.wrapping_sub(before)
        };
        let is_right = is_right(slots, self.slots_freed, self.slots)
            && is_right(ring, self.ring_freed, self.position)
            && is_right(bytes, self.bytes_freed, self.bytes)
            && low(ring).is_multiple_of(RING_STEP_BYTES);
        if !is_right {
            return Err(ChannelError::Freed);
        }
        (self.slots_freed, self.ring_freed, self.bytes_freed) = (slots, ring, bytes);
        Ok(())
    }

    #[inline]
    fn slots_out(&self) -> u64 {
        self.slots.wrapping_sub(self.slots_freed)
    }

    /// Return how many of so many bytes are known to fit into the next slot.
    #[inline]
    fn known_room<M: ByteMemory>(&self, memory: &M, wanted: usize) -> usize {
        if self.slots_out() >= M::SLOTS as u64 {
            return 0;
        }
        if wanted <= INLINE_BYTES {
            return wanted;
        }
        let used = low(self.position.wrapping_sub(self.ring_freed));
        wanted.min(memory.ring_bytes() - used)
    }

    /// Return how many of the bytes that are left fit into the next slot.
    #[inline]
    fn room<M: ByteMemory>(&mut self, memory: &M, left: usize) -> Result<usize, ChannelError> {
        let wanted = if left <= SLOT_TELLS_MAX {
            left
        } else {
            PUBLISH_BYTES
        };
        let known = self.known_room(memory, wanted);
        if known == wanted {
            return Ok(known);
        }
        self.look_freed(memory)?;
        Ok(self.known_room(memory, wanted))
    }

    /// Return whether a write would be taken.
    ///
    /// # Errors
    /// `Freed`.
    pub fn has_room<M: ByteMemory>(&mut self, memory: &M) -> Result<bool, ChannelError> {
        Ok(self.room(memory, INLINE_BYTES + 1)? > 0)
    }

    /// Copy in what fits; return how many bytes did, 0 if there is no room.
    ///
    /// # Errors
    /// `Freed`; then no further bytes are published.
    #[inline]
    pub fn write<M: ByteMemory, P: Deref<Target = [u8]>>(
        &mut self,
        memory: &M,
        pieces: &[P],
        doorbell: &mut impl FnMut(),
    ) -> Result<usize, ChannelError> {
        let mut left = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let (mut rest, mut taken) = (Rest { pieces, done: 0 }, 0);
        while left > 0 {
            let bytes = self.room(memory, left)?;
            if bytes == 0 {
                break;
            }
            let slot = self.slots;
            if holds(Rule::StampLast) {
                self.fill(memory, slot, &mut rest, bytes);
                self.publish(memory, bytes, doorbell);
            } else {
                self.publish(memory, bytes, doorbell);
                self.fill(memory, slot, &mut rest, bytes);
            }
            self.position = self.position.wrapping_add(in_ring(bytes));
            left -= bytes;
            taken += bytes;
        }
        Ok(taken)
    }

    #[inline]
    fn fill<M: ByteMemory, P: Deref<Target = [u8]>>(
        &self,
        memory: &M,
        slot: u64,
        rest: &mut Rest<'_, P>,
        bytes: usize,
    ) {
        if bytes <= INLINE_BYTES {
            rest.copy_in(memory, slot_place::<M>(slot).0 + AT_BYTES, bytes);
        } else {
            for_each_piece(memory, self.position, bytes, |at, _, step| {
                rest.copy_in(memory, at, step);
            });
        }
    }

    #[inline]
    fn publish<M: ByteMemory>(&mut self, memory: &M, bytes: usize, doorbell: &mut impl FnMut()) {
        let stamp = u64::from(ordinal(self.slots)) << 32 | bytes as u64;
        let place = slot_place::<M>(self.slots).1;
        memory.stamp(place).store(stamp, Ordering::Release);
        self.slots = self.slots.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(bytes as u64);
        if must_ring_if(memory.word(Word::ReaderAsleep), |word| {
            self.is_due(memory, word)
        }) {
            doorbell();
        }
    }

    /// Return whether a reader that sleeps is to be rung for: what it waits for is here, or it has to
    /// take something first, since half of the slots are used.
    fn is_due<M: ByteMemory>(&mut self, memory: &M, word: u32) -> bool {
        // A count that is wrong is found by the next write: here it rings.
        is_reached(word, self.bytes)
            || self.look_freed(memory).is_err()
            || self.slots_out() >= (M::SLOTS / 2) as u64
    }

    /// Ask to be rung for when there is room, and look again; return false if there is some already.
    ///
    /// # Errors
    /// `Freed`.
    pub fn sleep<M: ByteMemory>(&mut self, memory: &M) -> Result<bool, ChannelError> {
        let word = memory.word(Word::WriterAsleep);
        let out = self.bytes.wrapping_sub(self.bytes_freed);
        set_waiting(word, waiting_for(self.bytes.wrapping_sub(out / 2)));
        if holds(Rule::LookAgain) && self.has_room(memory)? {
            awake(word);
            return Ok(false);
        }
        Ok(true)
    }

    /// Note that no byte comes any more; the caller rings.
    pub fn end<M: ByteMemory>(&self, memory: &M) {
        memory.word(Word::Ended).store(1, Ordering::Release);
    }
}

/// The side that reads: it counts by itself.
#[derive(Debug, Default)]
pub struct Reader {
    /// Slots taken, without the one that is open.
    slots: u64,
    /// Position in the ring, before the open slot.
    position: u64,
    /// Bytes taken.
    bytes: u64,
    /// Bytes of the open slot, 0 if there is none, and how many of them were taken.
    open: usize,
    taken: usize,
    slots_told: u64,
    ring_told: u64,
    bytes_told: u64,
}

impl Reader {
    /// Return what `has_news` needs to look without this.
    #[inline]
    pub fn place(&self) -> Place {
        Place(if self.open > 0 {
            0
        } else {
            self.slots.wrapping_add(1)
        })
    }

    /// Return the bytes of a slot, if it is published.
    #[inline]
    fn stamp<M: ByteMemory>(memory: &M, slot: u64) -> Result<Option<usize>, ChannelError> {
        let stamp = memory
            .stamp(slot_place::<M>(slot).1)
            .load(Ordering::Acquire);
        if stamp >> 32 != u64::from(ordinal(slot)) {
            return Ok(None);
        }
        let bytes = low(stamp & u64::from(u32::MAX));
        if bytes == 0 || bytes > SLOT_TELLS_MAX.min(memory.ring_bytes()) {
            return Err(ChannelError::Payload);
        }
        Ok(Some(bytes))
    }

    /// Return how many bytes are here, and whether to read them now: there are `enough`, half of the
    /// slots are used, or a slot is open, whose bytes in the ring are free once all of them are taken.
    fn count<M: ByteMemory>(
        &self,
        memory: &M,
        enough: usize,
    ) -> Result<(usize, bool), ChannelError> {
        let mut here = self.open - self.taken;
        let is_open = self.open > 0;
        let mut used = u64::from(is_open);
        while here < enough && used < (M::SLOTS / 2) as u64 {
            match Self::stamp(memory, self.slots.wrapping_add(used))? {
                None => return Ok((here, is_open)),
                Some(bytes) => here += bytes,
            }
            used += 1;
        }
        Ok((here, true))
    }

    /// Return how many bytes are here, or a part of them: 0 if there are none.
    ///
    /// # Errors
    /// `Payload`.
    pub fn available<M: ByteMemory>(&self, memory: &M) -> Result<usize, ChannelError> {
        Ok(self.count(memory, usize::MAX)?.0)
    }

    /// Return whether so many bytes are here, or as many as ever are at once.
    ///
    /// # Errors
    /// `Payload`.
    pub fn has_come<M: ByteMemory>(&self, memory: &M, wanted: usize) -> Result<bool, ChannelError> {
        Ok(self
            .count(memory, wanted.clamp(1, memory.ring_bytes() / 2))?
            .1)
    }

    /// Return whether the writer has ended; call it before `read`.
    #[inline]
    pub fn has_ended<M: ByteMemory>(memory: &M) -> bool {
        memory.word(Word::Ended).load(Ordering::Acquire) != 0
    }

    /// Note that the reader looks by itself: no doorbell until the next `sleep`.
    #[inline]
    pub fn awake<M: ByteMemory>(memory: &M) {
        awake(memory.word(Word::ReaderAsleep));
    }

    /// Copy out what is here, into `first` and then into `second`; return how many bytes.
    ///
    /// # Errors
    /// `Payload`; then the bytes before it are lost.
    #[inline]
    pub fn read<M: ByteMemory>(
        &mut self,
        memory: &M,
        first: &mut [u8],
        second: &mut [u8],
        doorbell: &mut impl FnMut(),
    ) -> Result<usize, ChannelError> {
        let (mut done, of_first) = (0, first.len());
        let room = of_first + second.len();
        while done < room {
            if self.open == 0 {
                let Some(bytes) = Self::stamp(memory, self.slots)? else {
                    break;
                };
                (self.open, self.taken) = (bytes, 0);
            }
            if done == 0 {
                Self::awake(memory); // no doorbell while we read
            }
            let step = (self.open - self.taken).min(room - done);
            let now = step.min(of_first.saturating_sub(done));
            if now > 0 {
                self.copy_out(memory, &mut first[done..done + now]);
            }
            if now < step {
                let at = done + now - of_first;
                self.copy_out(memory, &mut second[at..at + step - now]);
            }
            done += step;
            if self.taken == self.open {
                self.close(memory, doorbell);
            }
        }
        Ok(done)
    }

    /// Copy the next bytes of the open slot.
    #[inline]
    fn copy_out<M: ByteMemory>(&mut self, memory: &M, bytes: &mut [u8]) {
        if self.open <= INLINE_BYTES {
            let slot = slot_place::<M>(self.slots).0;
            memory.copy_out(slot + AT_BYTES + self.taken, bytes);
        } else {
            let from = self.position.wrapping_add(self.taken as u64);
            for_each_piece(memory, from, bytes.len(), |at, done, step| {
                memory.copy_out(at, &mut bytes[done..done + step]);
            });
        }
        self.taken += bytes.len();
        self.bytes = self.bytes.wrapping_add(bytes.len() as u64);
    }

    /// Free the open slot, whose bytes are taken; tell it if it is an eighth.
    #[inline]
    fn close<M: ByteMemory>(&mut self, memory: &M, doorbell: &mut impl FnMut()) {
        self.position = self.position.wrapping_add(in_ring(self.open));
        self.slots = self.slots.wrapping_add(1);
        (self.open, self.taken) = (0, 0);
        let slots = self.slots.wrapping_sub(self.slots_told);
        let ring = self.position.wrapping_sub(self.ring_told);
        if slots >= (M::SLOTS / EIGHTHS) as u64 || ring >= (memory.ring_bytes() / EIGHTHS) as u64 {
            self.tell(memory, doorbell);
        }
    }

    fn tell<M: ByteMemory>(&mut self, memory: &M, doorbell: &mut impl FnMut()) {
        memory
            .freed(Freed::Slots)
            .store(self.slots, Ordering::Release);
        memory
            .freed(Freed::Ring)
            .store(self.position, Ordering::Release);
        memory
            .freed(Freed::Bytes)
            .store(self.bytes, Ordering::Release);
        (self.slots_told, self.ring_told) = (self.slots, self.position);
        self.bytes_told = self.bytes;
        let is_due = |word| is_reached(word, self.bytes);
        if holds(Rule::LookAfterTelling) && must_ring_if(memory.word(Word::WriterAsleep), is_due) {
            doorbell();
        }
    }

    /// Tell all that is free, ask to be rung for once `wanted` bytes are here, at most half a ring, and
    /// look again; return false if they are, or the end is.
    ///
    /// # Errors
    /// `Payload`.
    pub fn sleep<M: ByteMemory>(
        &mut self,
        memory: &M,
        wanted: usize,
        doorbell: &mut impl FnMut(),
    ) -> Result<bool, ChannelError> {
        if self.bytes != self.bytes_told {
            self.tell(memory, doorbell);
        }
        let wanted = wanted.clamp(1, memory.ring_bytes() / 2);
        let word = memory.word(Word::ReaderAsleep);
        set_waiting(word, waiting_for(self.bytes.wrapping_add(wanted as u64)));
        if holds(Rule::LookAgain) && (self.has_come(memory, wanted)? || Self::has_ended(memory)) {
            awake(word);
            return Ok(false);
        }
        Ok(true)
    }
}

/// Where a reader stands, for a look without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u64);

impl Place {
    /// Return the number that `of` makes the same place of.
    pub fn to_u64(self) -> u64 {
        self.0
    }

    pub fn of(number: u64) -> Self {
        Self(number)
    }

    /// Return whether there is something to read, or an error to find.
    #[inline]
    pub fn has_news<M: ByteMemory>(self, memory: &M) -> bool {
        // 0: a slot is open, whose bytes are here.
        let Some(slot) = self.0.checked_sub(1) else {
            return true;
        };
        let (at, place) = slot_place::<M>(slot);
        let stamp = memory.stamp(place).load(Ordering::Acquire);
        let has_news = stamp >> 32 == u64::from(ordinal(slot));
        if !has_news {
            // The line behind the stamp's: else it is asked for only once the stamp is here.
            memory.prefetch(at + SLOT_BYTES / 2);
        }
        has_news
    }
}

#[cfg(test)]
#[path = "bytes_tests.rs"]
mod tests;
