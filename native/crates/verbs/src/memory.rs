//! Memory behind keys: copied in and out, never borrowed, since others write it meanwhile.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Bytes that are copied at once between memory that we may not borrow.
const PIECE_BYTES: usize = 8 << 10;

/// Memory of the owner's, which stays where it is while a region or request has it.
///
/// Ranges were checked; one outside is a fault of the engine, and an implementation panics.
pub trait Memory: Send + Sync {
    fn read(&self, at: usize, to: &mut [u8]);
    fn write(&self, at: usize, from: &[u8]);

    /// Give bytes out in pieces: copies, unless they cannot change meanwhile.
    fn give(&self, at: usize, length: usize, give: &mut dyn FnMut(&[u8])) {
        let mut room = [0; PIECE_BYTES];
        let mut done = 0;
        while done < length {
            let count = PIECE_BYTES.min(length - done);
            self.read(at + done, &mut room[..count]);
            give(&room[..count]);
            done += count;
        }
    }

    /// Append bytes to `out`.
    fn append_to(&self, at: usize, length: usize, out: &mut Vec<u8>) {
        let begin = out.len();
        out.resize(begin + length, 0);
        self.read(at, &mut out[begin..]);
    }

    /// Copy bytes to memory that others write meanwhile, without a place in between if it can.
    fn copy_to(&self, at: usize, to: &[AtomicU8]) {
        let mut bytes = vec![0; to.len()];
        self.read(at, &mut bytes);
        for (place, byte) in to.iter().zip(bytes) {
            place.store(byte, Relaxed);
        }
    }
}

impl fmt::Debug for dyn Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Memory")
    }
}

/// A range of memory that a key allows.
#[derive(Clone, Debug)]
pub struct Extent {
    pub memory: Arc<dyn Memory>,
    pub at: usize,
    pub length: usize,
}

/// The bytes of a packet or of a placed write: some of the caller's, or ranges of memory.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    Bytes(&'a [u8]),
    Extents(&'a [Extent]),
}

impl Payload<'_> {
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Extents(extents) => extents.iter().map(|extent| extent.length).sum(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Append all bytes to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            Self::Bytes(bytes) => out.extend_from_slice(bytes),
            Self::Extents(extents) => {
                for extent in *extents {
                    extent.memory.append_to(extent.at, extent.length, out);
                }
            }
        }
    }

    /// Copy all bytes to `target`, which has so many.
    pub fn copy_to(&self, target: &mut [u8]) {
        match self {
            Self::Bytes(bytes) => target.copy_from_slice(bytes),
            Self::Extents(extents) => {
                let mut rest = target;
                for extent in *extents {
                    let (head, tail) = rest.split_at_mut(extent.length);
                    extent.memory.read(extent.at, head);
                    rest = tail;
                }
            }
        }
    }
}
