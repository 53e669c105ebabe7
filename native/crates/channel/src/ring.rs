//! One direction of a shm stream: a ring of bytes between two processes without mutual trust.
//!
//! One side writes, the other reads; each keeps its own position in private memory and only
//! publishes it. The published position lies in memory that the other side can write, so each use
//! of it is checked: it never goes back, never passes ours, and is never further ahead than the
//! ring is long. An invalid position is a [`ProtocolError`]; bytes may change while they are
//! copied, so they are copied once, then checked. Positions count bytes, only grow, and do not run
//! out of 64 bits.
//!
//! Sleeping. A side with nothing to do sets its asleep flag in the ring, looks again, and then
//! sleeps; the other side reads that flag after its work and rings the doorbell once if it is set:
//!
//! | reader | writer |
//! |---|---|
//! | asleep := wanted | head := ... (release) |
//! | fence | fence |
//! | looks at head (acquire) | looks at asleep, swaps it for 0, rings |
//!
//! and the same with the roles changed for a writer that waits for room. Both fences are in one
//! total order, so one of the two sees what the other wrote: no wake-up is lost. `native/loom`
//! tests this file in every interleaving of the two, with its own `atomics`.

use core::ops::Deref;

use crate::atomics::{AtomicU32, AtomicU64, Ordering, fence};

/// The shortest ring.
pub const RING_BYTES_MIN: usize = 1 << 16;
/// The longest ring.
pub const RING_BYTES_MAX: usize = 1 << 28;

/// The writer publishes this often, so that the reader copies in parallel.
const PUBLISH_BYTES: usize = 1 << 16;

/// The other side wrote a position that breaks the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolError;

/// Placed so that no two values share the cache lines that processors fetch together.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Apart<T>(pub T);

/// What both sides of one direction share besides the bytes. All zero is an empty ring.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Control {
    /// Bytes written since the start; only the writer changes it.
    pub head: Apart<AtomicU64>,
    /// Bytes read since the start; only the reader changes it.
    pub tail: Apart<AtomicU64>,
    /// 0, or: ring when this many bytes are here. Set by the reader, cleared by both.
    pub reader_asleep: Apart<AtomicU32>,
    /// Not 0: ring when there is room. Set by the writer, cleared by both.
    pub writer_asleep: Apart<AtomicU32>,
    /// Not 0: the writer will write no more.
    pub ended: Apart<AtomicU32>,
}

/// Memory of a direction.
pub trait RingMemory {
    /// Return the control words of the direction.
    fn control(&self) -> &Control;

    /// Return the bytes of the ring, a power of two.
    fn ring_bytes(&self) -> usize;

    /// Copy bytes to a place of the ring; `at + bytes.len()` is within it.
    fn copy_in(&self, at: usize, bytes: &[u8]);

    /// Copy bytes from a place of the ring; `at + bytes.len()` is within it.
    fn copy_out(&self, at: usize, bytes: &mut [u8]);
}

/// The side that writes.
#[derive(Debug, Default)]
pub struct Writer {
    head: u64,
    /// The reader's position as last read.
    tail: u64,
}

/// The side that reads.
#[derive(Debug, Default)]
pub struct Reader {
    tail: u64,
    /// The writer's position as last read.
    head: u64,
}

/// Return how far one position is ahead of another; both are within `usize` of each other.
fn distance(ahead: u64, behind: u64) -> usize {
    usize::try_from(ahead.wrapping_sub(behind)).unwrap_or(usize::MAX)
}

/// Return where a position lies in a ring.
fn place(position: u64, ring_bytes: usize) -> usize {
    // Masked first: the result fits.
    usize::try_from(position & (ring_bytes as u64 - 1)).unwrap_or(0)
}

impl Writer {
    /// Return how many bytes the reader has not read.
    ///
    /// # Errors
    /// `ProtocolError` for a position that the reader cannot have.
    pub fn pending(&mut self, ring: &impl RingMemory) -> Result<usize, ProtocolError> {
        let tail = ring.control().tail.0.load(Ordering::Acquire);
        if distance(tail, self.tail) > distance(self.head, self.tail) {
            return Err(ProtocolError);
        }
        self.tail = tail;
        Ok(distance(self.head, tail))
    }

    /// Copy in what fits; return how many bytes did, 0 if the ring is full.
    ///
    /// # Errors
    /// `ProtocolError`; then no further bytes are published.
    pub fn write(
        &mut self,
        ring: &impl RingMemory,
        pieces: &[impl Deref<Target = [u8]>],
        doorbell: &mut impl FnMut(),
    ) -> Result<usize, ProtocolError> {
        let mut free = ring.ring_bytes() - self.pending(ring)?;
        let (mut taken, mut unpublished) = (0, 0);
        for piece in pieces {
            let mut piece: &[u8] = piece;
            while !piece.is_empty() && free > 0 {
                let at = place(self.head, ring.ring_bytes());
                let step = piece
                    .len()
                    .min(free)
                    .min(ring.ring_bytes() - at)
                    .min(PUBLISH_BYTES);
                ring.copy_in(at, &piece[..step]);
                piece = &piece[step..];
                self.head = self.head.wrapping_add(step as u64);
                free -= step;
                taken += step;
                unpublished += step;
                if unpublished >= PUBLISH_BYTES {
                    self.publish(ring.control(), doorbell);
                    unpublished = 0;
                }
            }
        }
        if unpublished > 0 {
            self.publish(ring.control(), doorbell);
        }
        Ok(taken)
    }

    fn publish(&self, control: &Control, doorbell: &mut impl FnMut()) {
        control.head.0.store(self.head, Ordering::Release);
        fence(Ordering::SeqCst);
        let wanted = control.reader_asleep.0.load(Ordering::Relaxed);
        if wanted == 0 {
            return;
        }
        // Not checked: a wrong position here rings the doorbell once too often or once too few.
        let here = distance(self.head, control.tail.0.load(Ordering::Relaxed));
        if here >= wanted as usize && control.reader_asleep.0.swap(0, Ordering::Relaxed) != 0 {
            doorbell();
        }
    }

    /// Set the writer's asleep flag and look again; return false if there is room.
    ///
    /// # Errors
    /// `ProtocolError`.
    pub fn sleep(&mut self, ring: &impl RingMemory) -> Result<bool, ProtocolError> {
        let asleep = &ring.control().writer_asleep.0;
        asleep.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let is_full = self.pending(ring)? == ring.ring_bytes();
        if !is_full {
            asleep.store(0, Ordering::Relaxed);
        }
        Ok(is_full)
    }

    /// Note that the writer writes no more; the caller rings the doorbell.
    pub fn end(&self, control: &Control) {
        control.ended.0.store(1, Ordering::Release);
    }

    /// Return the count of all bytes written.
    pub fn position(&self) -> u64 {
        self.head
    }
}

impl Reader {
    /// Return how many bytes are here.
    ///
    /// # Errors
    /// `ProtocolError` for a position that the writer cannot have.
    pub fn available(&mut self, ring: &impl RingMemory) -> Result<usize, ProtocolError> {
        let head = ring.control().head.0.load(Ordering::Acquire);
        let known = distance(self.head, self.tail);
        let here = distance(head, self.tail);
        if here > ring.ring_bytes() || here < known {
            return Err(ProtocolError);
        }
        self.head = head;
        Ok(here)
    }

    /// Return whether the writer has ended; call it before `read`.
    pub fn has_ended(control: &Control) -> bool {
        control.ended.0.load(Ordering::Acquire) != 0
    }

    /// Return the position that the writer published, unchecked.
    pub fn head(control: &Control) -> u64 {
        control.head.0.load(Ordering::Acquire)
    }

    /// Return the count of all bytes read.
    pub fn position(&self) -> u64 {
        self.tail
    }

    /// Note that the reader polls `head`: no doorbell until the next `sleep`.
    pub fn wake(control: &Control) {
        if control.reader_asleep.0.load(Ordering::Relaxed) != 0 {
            control.reader_asleep.0.store(0, Ordering::Relaxed);
        }
    }

    /// Copy out what is here, into `first` and then into `second`; return how many bytes.
    ///
    /// # Errors
    /// `ProtocolError`.
    pub fn read(
        &mut self,
        ring: &impl RingMemory,
        first: &mut [u8],
        second: &mut [u8],
        doorbell: &mut impl FnMut(),
    ) -> Result<usize, ProtocolError> {
        let here = self.available(ring)?;
        if here == 0 {
            return Ok(0);
        }
        let control = ring.control();
        Self::wake(control); // no doorbell while we read
        let of_first = here.min(first.len());
        let of_second = (here - of_first).min(second.len());
        self.copy(ring, &mut first[..of_first]);
        self.copy(ring, &mut second[..of_second]);
        control.tail.0.store(self.tail, Ordering::Release);
        fence(Ordering::SeqCst);
        let asleep = &control.writer_asleep.0;
        // At least half a ring, so that a slow reader does not wake the writer for each message.
        let is_roomy = distance(self.head, self.tail) <= ring.ring_bytes() / 2;
        if is_roomy && asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
        {
            doorbell();
        }
        Ok(of_first + of_second)
    }

    fn copy(&mut self, ring: &impl RingMemory, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let at = place(self.tail, ring.ring_bytes());
            let step = bytes.len().min(ring.ring_bytes() - at);
            let (now, later) = bytes.split_at_mut(step);
            ring.copy_out(at, now);
            self.tail = self.tail.wrapping_add(step as u64);
            bytes = later;
        }
    }

    /// Set the reader's asleep flag for `wanted` bytes (at most half a ring) and look again; return
    /// false if they are here, or the end is.
    ///
    /// # Errors
    /// `ProtocolError`.
    pub fn sleep(&mut self, ring: &impl RingMemory, wanted: usize) -> Result<bool, ProtocolError> {
        let control = ring.control();
        let wanted = wanted.clamp(1, ring.ring_bytes() / 2);
        let word = u32::try_from(wanted).unwrap_or(1);
        control.reader_asleep.0.store(word, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let is_idle = self.available(ring)? < wanted && !Self::has_ended(control);
        if !is_idle {
            control.reader_asleep.0.store(0, Ordering::Relaxed);
        }
        Ok(is_idle)
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
