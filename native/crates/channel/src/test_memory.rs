//! A direction in private memory, for tests.

use std::boxed::Box;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::vec::Vec;

use crate::bytes::ByteMemory;
use crate::slots::{Freed, SLOT_BYTES, SlotMemory, Word};

/// A small direction; what others write into it, tests do by its fields.
pub(crate) struct Own {
    pub(crate) words: [AtomicU32; 5],
    pub(crate) freed: [AtomicU64; 3],
    pub(crate) stamps: Vec<AtomicU64>,
    pub(crate) bytes: Box<[AtomicU8]>,
    pub(crate) ring_bytes: usize,
}

impl Own {
    pub(crate) fn new(ring_bytes: usize) -> Self {
        let bytes = Self::SLOTS * SLOT_BYTES + ring_bytes;
        Self {
            words: Default::default(),
            freed: Default::default(),
            stamps: (0..Self::SLOTS).map(|_| AtomicU64::new(0)).collect(),
            bytes: (0..bytes).map(|_| AtomicU8::new(0)).collect(),
            ring_bytes,
        }
    }
}

impl SlotMemory for Own {
    const SLOTS: usize = 16;
    const RING_BYTES: usize = 32 << 10;
    const PAYLOAD_BYTES_MAX: usize = 10 << 10;

    fn word(&self, word: Word) -> &AtomicU32 {
        &self.words[word as usize]
    }

    fn freed(&self, which: Freed) -> &AtomicU64 {
        &self.freed[which as usize]
    }

    fn stamp(&self, place: usize) -> &AtomicU64 {
        &self.stamps[place]
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) {
        for (place, &byte) in self.bytes[at..at + bytes.len()].iter().zip(bytes) {
            place.store(byte, Ordering::Relaxed);
        }
    }

    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        let places = &self.bytes[at..at + bytes.len()];
        for (place, byte) in places.iter().zip(bytes) {
            *byte = place.load(Ordering::Relaxed);
        }
    }
}

impl ByteMemory for Own {
    fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }
}
