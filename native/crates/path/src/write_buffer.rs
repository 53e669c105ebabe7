//! Bytes for one write to a stream: headers and small payloads joined, long payloads as they are.
//!
//! The bytes stand in two places. `joined` holds headers, small payloads and maps; `longs` holds
//! payloads from 8 KiB up, each with its position in `joined`. So a small message costs one append,
//! a long one is never copied, and every write of a path reuses both memories.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::iter;

use crate::constants::HEADER_BYTES;
use crate::payload::{INLINE_BYTES, Payload};

/// Bytes of `joined` that an idle path keeps.
const IDLE_BYTES: usize = 512;
/// A full write is a little longer than 64 KiB: it gets no memory of 128.
const FULL_BYTES: usize = 80 << 10;
const FULL_BYTES_MIN: usize = (64 << 10) + 1;
/// Bytes of `joined` that a busy path keeps; more is needed when small messages precede long ones.
const BUSY_BYTES: usize = 128 << 10;
/// Taken bytes in front of others: from this many on the others are moved.
const TAKEN_BYTES_MAX: usize = 64 << 10;

#[derive(Debug)]
struct Long {
    at: usize, // it stands behind this much of `joined`
    payload: Payload,
}

/// Bytes that a stream may take from the front.
///
/// It owns or shares all of its memory, so that it is written without the plane's lock.
#[derive(Debug, Default)]
pub struct WriteBuffer {
    pub(crate) stream: u64, // the path's stream number; other streams do not take it back
    joined: Vec<u8>,        // never shrinks: bytes behind `end` are of earlier writes
    longs: VecDeque<Long>,
    begin: usize, // bytes of `joined` that were taken
    end: usize,   // of the bytes in `joined`
    skip: usize,  // bytes of the first long payload that were taken
    bytes: usize,
}

impl WriteBuffer {
    /// Bytes left to take.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether no byte is left.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Put the bytes after the first `skip` into `slices`; return how many slices are used.
    ///
    /// Bytes that do not fit are left out; in practice a dozen slices are enough without long
    /// payloads.
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

    /// All bytes, if they are contiguous: one plain write takes them.
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
                let pieces = [&self.joined[begin..long.at], &long.payload.bytes()[skip..]];
                (begin, skip) = (long.at, 0);
                pieces
            })
            .chain(iter::once(&self.joined[rest..self.end]))
    }

    /// Append a copy of `bytes`.
    pub(crate) fn join(&mut self, bytes: &[u8]) {
        self.room(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.note_joined(bytes.len());
    }

    /// Append a header and a copy of its payload.
    #[inline]
    pub(crate) fn join_message(&mut self, header: &[u8; HEADER_BYTES], payload: &Payload) {
        let Payload::Inline { len, bytes } = payload else {
            self.join(header);
            self.join(payload.bytes());
            return;
        };
        // Copied at its full length, which the compiler knows: faster than its few used bytes.
        if let Some((front, rest)) = self
            .room(HEADER_BYTES + INLINE_BYTES)
            .split_first_chunk_mut()
            && let Some(behind) = rest.first_chunk_mut()
        {
            *front = *header;
            *behind = *bytes;
        }
        self.note_joined(HEADER_BYTES + usize::from(*len));
    }

    /// Take the memory of a buffer without bytes, unless this one has memory.
    pub(crate) fn take_memory(&mut self, from: &mut Self) {
        if self.joined.is_empty() {
            std::mem::swap(&mut self.joined, &mut from.joined);
        }
    }

    /// Append a payload by reference.
    pub(crate) fn refer(&mut self, payload: Payload) {
        self.bytes += payload.len();
        self.longs.push_back(Long {
            at: self.end,
            payload,
        });
    }

    /// Memory behind the joined bytes, at least so many bytes.
    #[inline]
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.joined.len() - self.end < bytes {
            self.grow(bytes);
        }
        &mut self.joined[self.end..]
    }

    #[cold]
    fn grow(&mut self, bytes: usize) {
        let enough = match self.end + bytes {
            FULL_BYTES_MIN..=FULL_BYTES => FULL_BYTES,
            needed => needed.next_power_of_two().max(IDLE_BYTES),
        };
        self.joined.resize(enough, 0);
    }

    #[inline]
    fn note_joined(&mut self, bytes: usize) {
        self.end += bytes;
        self.bytes += bytes;
    }

    /// Drop the first `taken` bytes, at most all.
    pub(crate) fn advance(&mut self, taken: usize) {
        let mut taken = taken.min(self.bytes);
        self.bytes -= taken;
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
        if self.bytes == 0 {
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

    /// Drop all bytes; the memory stays for later ones.
    pub(crate) fn clear(&mut self) {
        self.longs.clear();
        (self.begin, self.end, self.skip, self.bytes) = (0, 0, 0, 0);
        if self.joined.len() > BUSY_BYTES {
            self.shrink(BUSY_BYTES);
        }
    }

    /// Free the memory that an idle path does not need.
    pub(crate) fn rest(&mut self) {
        self.shrink(IDLE_BYTES);
        self.longs.shrink_to(0);
    }

    fn shrink(&mut self, bytes: usize) {
        self.joined.truncate(bytes.max(self.end));
        self.joined.shrink_to_fit();
    }
}

#[cfg(test)]
#[path = "write_buffer_tests.rs"]
mod tests;
