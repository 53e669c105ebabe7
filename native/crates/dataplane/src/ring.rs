//! One direction of a lane: a ring of octets between two processes that need not trust each other.
//!
//! One side writes, the other reads; each keeps its own position to itself and only publishes it.
//! The position of the other side lies in memory that the other side can write, so each use of it
//! is checked: it never goes back, and never past ours or further ahead than the ring is long. A
//! position that does not fit is a [`Breach`]; octets may change while they are copied, but they
//! are copied once and judged after that. Positions count octets and only grow; a 64-bit count
//! does not run out.
//!
//! Sleeping. Who finds nothing to do says so in a word of the ring, looks again, and only then
//! sleeps; who has done something looks at that word and rings the bell if it is set, once:
//!
//! | reader | writer |
//! |---|---|
//! | asleep := wanted | head := ... (release) |
//! | fence | fence |
//! | looks at head (acquire) | looks at asleep, swaps it for 0, rings |
//!
//! and the same with the roles changed for a writer that waits for room. With both fences in the
//! one order of all, one of the two sees what the other wrote: no wake-up is lost. `native/loom`
//! drives this file through every order of the two, with its own `atomics`.

use std::io::IoSlice;

use crate::atomics::{AtomicU32, AtomicU64, Ordering, fence};

/// The shortest ring.
pub const RING_BYTES_MIN: usize = 1 << 16;
/// The longest ring.
pub const RING_BYTES_MAX: usize = 1 << 28;

/// A writer publishes so often that the reader copies while it does.
const PUBLISH_BYTES: usize = 1 << 16;

/// The other side wrote a position that no honest one has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breach;

/// Alone on the cache lines that processors fetch together.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

/// What both sides of one direction share beside the octets. All zero is an empty ring.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Control {
    /// Octets written since the start; the writer's.
    pub(crate) head: Apart<AtomicU64>,
    /// Octets read since the start; the reader's.
    pub(crate) tail: Apart<AtomicU64>,
    /// 0, or: ring when so many octets are here. Set by the reader, cleared by both.
    pub(crate) reader_asleep: Apart<AtomicU32>,
    /// Not 0: ring when there is room. Set by the writer, cleared by both.
    pub(crate) writer_asleep: Apart<AtomicU32>,
    /// Not 0: the writer will write no more.
    ended: Apart<AtomicU32>,
}

/// Where a direction lies.
pub trait RingMemory {
    /// Return the words of the direction.
    fn control(&self) -> &Control;

    /// Return the octets of the ring, a power of two.
    fn ring_bytes(&self) -> usize;

    /// Copy octets to a place of the ring; `at + octets.len()` is within it.
    fn copy_in(&self, at: usize, octets: &[u8]);

    /// Copy octets from a place of the ring; `at + octets.len()` is within it.
    fn copy_out(&self, at: usize, octets: &mut [u8]);
}

/// The side that writes.
#[derive(Debug, Default)]
pub struct Writer {
    head: u64,
    /// As it was seen last.
    tail: u64,
}

/// The side that reads.
#[derive(Debug, Default)]
pub struct Reader {
    tail: u64,
    /// As it was seen last.
    head: u64,
}

/// Return how far one position is ahead of another; both are within `usize` of each other.
fn distance(ahead: u64, behind: u64) -> usize {
    usize::try_from(ahead.wrapping_sub(behind)).unwrap_or(usize::MAX)
}

/// Return where a position lies in a ring.
fn place(position: u64, ring_bytes: usize) -> usize {
    // The mask comes first: what is left fits.
    usize::try_from(position & (ring_bytes as u64 - 1)).unwrap_or(0)
}

impl Writer {
    /// Return how many octets the reader has not taken.
    ///
    /// # Errors
    /// `Breach` for a position that the reader cannot have.
    pub fn pending(&mut self, ring: &impl RingMemory) -> Result<usize, Breach> {
        let tail = ring.control().tail.0.load(Ordering::Acquire);
        if distance(tail, self.tail) > distance(self.head, self.tail) {
            return Err(Breach);
        }
        self.tail = tail;
        Ok(distance(self.head, tail))
    }

    /// Copy in what fits; return how many octets did, 0 if the ring is full.
    ///
    /// # Errors
    /// `Breach`; then nothing that was not published before is.
    pub fn write(
        &mut self,
        ring: &impl RingMemory,
        pieces: &[IoSlice<'_>],
        bell: &mut impl FnMut(),
    ) -> Result<usize, Breach> {
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
                    self.publish(ring.control(), bell);
                    unpublished = 0;
                }
            }
        }
        if unpublished > 0 {
            self.publish(ring.control(), bell);
        }
        Ok(taken)
    }

    fn publish(&self, control: &Control, bell: &mut impl FnMut()) {
        control.head.0.store(self.head, Ordering::Release);
        fence(Ordering::SeqCst);
        let wanted = control.reader_asleep.0.load(Ordering::Relaxed);
        if wanted == 0 {
            return;
        }
        // Not checked: a wrong position here rings a bell too many or too few.
        let here = distance(self.head, control.tail.0.load(Ordering::Relaxed));
        if here >= wanted as usize && control.reader_asleep.0.swap(0, Ordering::Relaxed) != 0 {
            bell();
        }
    }

    /// Say that we wait for room, and look again; false: there is some.
    ///
    /// # Errors
    /// `Breach`.
    pub fn sleep(&mut self, ring: &impl RingMemory) -> Result<bool, Breach> {
        let asleep = &ring.control().writer_asleep.0;
        asleep.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let is_full = self.pending(ring)? == ring.ring_bytes();
        if !is_full {
            asleep.store(0, Ordering::Relaxed);
        }
        Ok(is_full)
    }

    /// Say that nothing more comes; the bell is the caller's to ring.
    pub fn end(&self, control: &Control) {
        control.ended.0.store(1, Ordering::Release);
    }

    /// Return the count of all octets written.
    pub fn position(&self) -> u64 {
        self.head
    }
}

impl Reader {
    /// Return how many octets are here.
    ///
    /// # Errors
    /// `Breach` for a position that the writer cannot have.
    pub fn available(&mut self, ring: &impl RingMemory) -> Result<usize, Breach> {
        let head = ring.control().head.0.load(Ordering::Acquire);
        let known = distance(self.head, self.tail);
        let here = distance(head, self.tail);
        if here > ring.ring_bytes() || here < known {
            return Err(Breach);
        }
        self.head = head;
        Ok(here)
    }

    /// Tell whether the writer said that nothing more comes; ask before `read`.
    pub fn has_ended(control: &Control) -> bool {
        control.ended.0.load(Ordering::Acquire) != 0
    }

    /// Return the position that the writer published, whatever it is.
    pub fn head(control: &Control) -> u64 {
        control.head.0.load(Ordering::Acquire)
    }

    /// Return the count of all octets read.
    pub fn position(&self) -> u64 {
        self.tail
    }

    /// Say that we look at `head` all the time: no bell until the next `sleep`.
    pub fn wake(control: &Control) {
        if control.reader_asleep.0.load(Ordering::Relaxed) != 0 {
            control.reader_asleep.0.store(0, Ordering::Relaxed);
        }
    }

    /// Copy out what is here, into `first` and then into `second`; return how many octets.
    ///
    /// # Errors
    /// `Breach`.
    pub fn read(
        &mut self,
        ring: &impl RingMemory,
        first: &mut [u8],
        second: &mut [u8],
        bell: &mut impl FnMut(),
    ) -> Result<usize, Breach> {
        let here = self.available(ring)?;
        if here == 0 {
            return Ok(0);
        }
        let control = ring.control();
        Self::wake(control); // no bell while we read
        let of_first = here.min(first.len());
        let of_second = (here - of_first).min(second.len());
        self.copy(ring, &mut first[..of_first]);
        self.copy(ring, &mut second[..of_second]);
        control.tail.0.store(self.tail, Ordering::Release);
        fence(Ordering::SeqCst);
        let asleep = &control.writer_asleep.0;
        // Half a ring at least, so that a slow reader does not wake the writer for each message.
        let is_roomy = distance(self.head, self.tail) <= ring.ring_bytes() / 2;
        if is_roomy && asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
        {
            bell();
        }
        Ok(of_first + of_second)
    }

    fn copy(&mut self, ring: &impl RingMemory, mut octets: &mut [u8]) {
        while !octets.is_empty() {
            let at = place(self.tail, ring.ring_bytes());
            let step = octets.len().min(ring.ring_bytes() - at);
            let (now, later) = octets.split_at_mut(step);
            ring.copy_out(at, now);
            self.tail = self.tail.wrapping_add(step as u64);
            octets = later;
        }
    }

    /// Say that we wait for so many octets (at most half a ring), and look again; false: they are
    /// here, or the end is.
    ///
    /// # Errors
    /// `Breach`.
    pub fn sleep(&mut self, ring: &impl RingMemory, wanted: usize) -> Result<bool, Breach> {
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
