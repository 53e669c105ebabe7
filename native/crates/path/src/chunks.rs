//! Bytes of small messages, first in first out, packed into pieces of memory.
//!
//! A piece holds whole messages and is freed when its last one is taken, so that one slow socket
//! pins no more than it holds. The first piece is small, and it alone is kept while nothing is
//! queued: a socket that answers one message at a time allocates nothing.

use std::collections::VecDeque;

const FIRST_BYTES: usize = 4096;
const CHUNK_BYTES: usize = 65536;

/// A queue of bytes; the caller knows the length of each message.
#[derive(Debug, Default)]
pub struct Chunks {
    full: VecDeque<Vec<u8>>, // ahead of `last`
    last: Vec<u8>,           // written to
    offset: usize,           // of the next message, in the first piece
}

impl Chunks {
    /// Append a copy of one message; it may not be longer than a piece of 64 KiB.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        if self.last.capacity() - self.last.len() < bytes.len() {
            self.begin_chunk(bytes.len());
        }
        self.last.extend_from_slice(bytes);
    }

    /// Return the first message, which is `bytes` long.
    #[inline]
    pub fn front(&self, bytes: usize) -> &[u8] {
        &self.first()[..bytes]
    }

    /// Return the first messages: those of one piece.
    #[inline]
    pub fn first(&self) -> &[u8] {
        &self.full.front().unwrap_or(&self.last)[self.offset..]
    }

    /// Remove the first message, or several of the first piece.
    #[inline]
    pub fn pop(&mut self, bytes: usize) {
        self.offset += bytes;
        if self.offset == self.full.front().unwrap_or(&self.last).len() {
            self.end_chunk();
        }
    }

    /// Return the bytes of memory held.
    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> usize {
        self.full.iter().map(Vec::capacity).sum::<usize>() + self.last.capacity()
    }

    #[cold]
    fn begin_chunk(&mut self, bytes: usize) {
        let first = self.last.capacity() == 0 && bytes <= FIRST_BYTES;
        let bytes = if first {
            FIRST_BYTES
        } else {
            CHUNK_BYTES.max(bytes)
        };
        let before = std::mem::replace(&mut self.last, Vec::with_capacity(bytes));
        if !before.is_empty() {
            self.full.push_back(before);
        }
    }

    #[cold]
    fn end_chunk(&mut self) {
        self.offset = 0;
        if self.full.pop_front().is_none() {
            if self.last.capacity() > FIRST_BYTES {
                self.last = Vec::new();
            }
            self.last.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_goes_with_its_last_message() {
        let mut chunks = Chunks::default();
        for number in 0..200_u8 {
            chunks.push(&[number; 1000]);
        }
        assert_eq!(chunks.held_bytes(), FIRST_BYTES + 4 * CHUNK_BYTES);
        for number in 0..200_u8 {
            assert_eq!(chunks.front(1000), [number; 1000]);
            chunks.pop(1000);
        }
        assert_eq!(chunks.held_bytes(), 0);
    }

    #[test]
    fn one_message_at_a_time_stays_in_the_small_piece() {
        let mut chunks = Chunks::default();
        for _ in 0..100 {
            chunks.push(&[1; 3000]);
            chunks.pop(3000);
            assert_eq!(chunks.held_bytes(), FIRST_BYTES);
        }
        chunks.push(&[2; 5000]);
        chunks.pop(5000);
        assert_eq!(chunks.held_bytes(), 0);
    }

    #[test]
    fn messages_without_bytes_take_no_room() {
        let mut chunks = Chunks::default();
        chunks.push(b"");
        chunks.push(b"a");
        assert_eq!(chunks.front(0), b"");
        chunks.pop(0);
        assert_eq!(chunks.front(1), b"a");
    }
}
