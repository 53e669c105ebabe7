//! Memory of one direction, and a doorbell for each side, as a model.
//!
//! Bytes are cells in which loom finds two accesses without an order.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use urds_loom::Doorbell;
use urds_loom::bytes::ByteMemory;
use urds_loom::slots::{Freed, SLOT_BYTES, SlotMemory, Word};

/// Bytes are cells of 16, since no two accesses to one are of different sides at once.
pub struct Direction<const SLOTS: usize, const RING_BYTES: usize> {
    words: [AtomicU32; 5],
    freed: [AtomicU64; 3],
    stamps: [AtomicU64; SLOTS],
    cells: Vec<UnsafeCell<[u8; 16]>>,
    pub of_reader: Doorbell,
    pub of_writer: Doorbell,
}

// SAFETY: loom finds two accesses to a cell without an order.
unsafe impl<const SLOTS: usize, const RING_BYTES: usize> Sync for Direction<SLOTS, RING_BYTES> {}
// SAFETY: as above.
unsafe impl<const SLOTS: usize, const RING_BYTES: usize> Send for Direction<SLOTS, RING_BYTES> {}

impl<const SLOTS: usize, const RING_BYTES: usize> SlotMemory for Direction<SLOTS, RING_BYTES> {
    const SLOTS: usize = SLOTS;
    const RING_BYTES: usize = RING_BYTES;

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
        for (at, byte) in (at..).zip(bytes) {
            // SAFETY: loom finds an access of the other thread at the same time.
            self.cells[at / 16].with_mut(|cell| unsafe { (*cell)[at % 16] = *byte });
        }
    }

    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        for (at, byte) in (at..).zip(bytes) {
            // SAFETY: as above.
            *byte = self.cells[at / 16].with(|cell| unsafe { (*cell)[at % 16] });
        }
    }
}

impl<const SLOTS: usize, const RING_BYTES: usize> ByteMemory for Direction<SLOTS, RING_BYTES> {
    fn ring_bytes(&self) -> usize {
        RING_BYTES
    }
}

impl<const SLOTS: usize, const RING_BYTES: usize> Direction<SLOTS, RING_BYTES> {
    /// Never freed: loom cannot drop what is its own once it has found a deadlock.
    pub fn new() -> &'static Self {
        let cells = (SLOTS * SLOT_BYTES + RING_BYTES) / 16;
        Box::leak(Box::new(Self {
            words: std::array::from_fn(|_| AtomicU32::new(0)),
            freed: std::array::from_fn(|_| AtomicU64::new(0)),
            stamps: std::array::from_fn(|_| AtomicU64::new(0)),
            cells: (0..cells).map(|_| UnsafeCell::new([0; 16])).collect(),
            of_reader: Doorbell::default(),
            of_writer: Doorbell::default(),
        }))
    }
}
