//! Octets for one write to a stream: headers and small payloads joined, long payloads as they are.
//!
//! The octets stand in two places. `joined` holds headers, small payloads and maps; `longs` holds
//! payloads from 8 KiB up, each with the place in `joined` that it stands behind. So a small
//! message costs one append, a long one is never copied, and both memories are used again for
//! every write of their path.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::iter;

use crate::constants::HEADER_BYTES;
use crate::payload::{INLINE_BYTES, Payload};

/// Slices that one write takes at most. Source: linux v6.12 include/uapi/linux/uio.h (`UIO_MAXIOV`).
pub const SLICES_MAX: usize = 1024;
/// Octets of `joined` that an idle path keeps.
const IDLE_BYTES: usize = 512;
/// A full write is a little longer than 64 KiB: it gets no memory of 128.
const FULL_BYTES: usize = 80 << 10;
const FULL_BYTES_MIN: usize = (64 << 10) + 1;
/// Octets of `joined` that a busy path keeps; more is needed when small messages precede long ones.
const BUSY_BYTES: usize = 128 << 10;
/// Octets that were taken and still lie in front of others: from here on these are moved.
const TAKEN_BYTES_MAX: usize = 64 << 10;

#[derive(Debug)]
struct Long {
    at: usize, // it stands behind this much of `joined`
    payload: Payload,
}

/// Octets that a stream may take from the front.
///
/// It owns or shares all of its memory, so that it is written without the plane's lock.
#[derive(Debug, Default)]
pub struct Offer {
    pub(crate) stream: u64, // of the streams of its path, counted; others do not take it back
    joined: Vec<u8>,        // as long as it ever was: what is behind `end` was used before
    longs: VecDeque<Long>,
    begin: usize, // octets of `joined` that were taken
    end: usize,   // of the octets in `joined`
    skip: usize,  // octets of the first long payload that were taken
    octets: usize,
}

impl Offer {
    /// Octets that are left to take.
    pub fn len(&self) -> usize {
        self.octets
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.octets == 0
    }

    /// Put what follows the first `skip` octets into `slices`; return how many of them are used.
    ///
    /// What does not fit is left out: with [`SLICES_MAX`] slices that is nothing, in practice a
    /// dozen are enough unless there are long payloads.
    pub fn fill<'a>(&'a self, skip: usize, slices: &mut [IoSlice<'a>]) -> usize {
        let (mut skip, mut used) = (skip, 0);
        for piece in self.pieces() {
            if let Some(rest) = piece.get(skip..).filter(|rest| !rest.is_empty()) {
                let Some(slice) = slices.get_mut(used) else {
                    break;
                };
                *slice = IoSlice::new(rest);
                used += 1;
            }
            skip = skip.saturating_sub(piece.len());
        }
        used
    }

    /// All octets, if they lie in one piece: one plain write takes them.
    pub fn single(&self) -> Option<&[u8]> {
        self.longs
            .is_empty()
            .then(|| &self.joined[self.begin..self.end])
    }

    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let (mut begin, mut skip) = (self.begin, self.skip);
        let rest = self.longs.back().map_or(self.begin, |long| long.at);
        self.longs
            .iter()
            .flat_map(move |long| {
                let pieces = [&self.joined[begin..long.at], &long.payload.octets()[skip..]];
                (begin, skip) = (long.at, 0);
                pieces
            })
            .chain(iter::once(&self.joined[rest..self.end]))
    }

    /// Append a copy of `octets`.
    pub(crate) fn join(&mut self, octets: &[u8]) {
        self.room(octets.len())[..octets.len()].copy_from_slice(octets);
        self.note_joined(octets.len());
    }

    /// Append a header and a copy of its payload.
    #[inline]
    pub(crate) fn join_message(&mut self, header: &[u8; HEADER_BYTES], payload: &Payload) {
        let Payload::Inline { len, octets } = payload else {
            self.join(header);
            self.join(payload.octets());
            return;
        };
        // Copied at its full length, which the compiler knows: faster than the few that count.
        if let Some((front, rest)) = self
            .room(HEADER_BYTES + INLINE_BYTES)
            .split_first_chunk_mut()
            && let Some(behind) = rest.first_chunk_mut()
        {
            *front = *header;
            *behind = *octets;
        }
        self.note_joined(HEADER_BYTES + usize::from(*len));
    }

    /// Append a payload by reference.
    pub(crate) fn refer(&mut self, payload: Payload) {
        self.octets += payload.len();
        self.longs.push_back(Long {
            at: self.end,
            payload,
        });
    }

    /// Memory behind what is joined, at least so many octets.
    #[inline]
    fn room(&mut self, octets: usize) -> &mut [u8] {
        if self.joined.len() - self.end < octets {
            self.grow(octets);
        }
        &mut self.joined[self.end..]
    }

    #[cold]
    fn grow(&mut self, octets: usize) {
        let enough = match self.end + octets {
            FULL_BYTES_MIN..=FULL_BYTES => FULL_BYTES,
            needed => needed.next_power_of_two().max(IDLE_BYTES),
        };
        self.joined.resize(enough, 0);
    }

    #[inline]
    fn note_joined(&mut self, octets: usize) {
        self.end += octets;
        self.octets += octets;
    }

    /// Drop the first `taken` octets, at most all.
    pub(crate) fn advance(&mut self, taken: usize) {
        let mut taken = taken.min(self.octets);
        self.octets -= taken;
        while taken > 0 {
            let until = self.longs.front().map_or(self.end, |long| long.at);
            let step = taken.min(until - self.begin);
            self.begin += step;
            taken -= step;
            let Some(long) = self.longs.front() else {
                break;
            };
            let left = long.payload.len() - self.skip;
            if taken < left {
                self.skip += taken;
                break;
            }
            taken -= left;
            self.skip = 0;
            self.longs.pop_front();
        }
        if self.octets == 0 {
            self.clear();
        } else if self.begin >= TAKEN_BYTES_MAX {
            self.close_gap();
        }
    }

    fn close_gap(&mut self) {
        self.joined.copy_within(self.begin..self.end, 0);
        self.end -= self.begin;
        for long in &mut self.longs {
            long.at -= self.begin;
        }
        self.begin = 0;
    }

    /// Forget all octets; the memory stays for those that follow.
    pub(crate) fn clear(&mut self) {
        self.longs.clear();
        (self.begin, self.end, self.skip, self.octets) = (0, 0, 0, 0);
        if self.joined.len() > BUSY_BYTES {
            self.shrink(BUSY_BYTES);
        }
    }

    /// Give back the memory that an idle path does not need.
    pub(crate) fn rest(&mut self) {
        self.shrink(IDLE_BYTES);
        self.longs.shrink_to(0);
    }

    fn shrink(&mut self, octets: usize) {
        self.joined.truncate(octets.max(self.end));
        self.joined.shrink_to_fit();
    }
}

#[cfg(test)]
#[path = "offer_tests.rs"]
mod tests;
