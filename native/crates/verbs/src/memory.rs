//! Memory behind keys: copied in and out, never borrowed, since others write it meanwhile.

use std::fmt;
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

impl fmt::Debug for dyn Memory + '_ {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Memory")
    }
}

/// A range of memory that a key allows.
#[derive(Clone, Copy, Debug)]
pub struct Extent<'a> {
    pub memory: &'a dyn Memory,
    pub at: usize,
    pub length: usize,
}

/// The ranges of one payload; one costs no allocation.
#[derive(Debug, Default)]
pub enum Extents<'a> {
    #[default]
    None,
    One(Extent<'a>),
    Many(Vec<Extent<'a>>),
}

impl<'a> Extents<'a> {
    pub fn push(&mut self, extent: Extent<'a>) {
        match self {
            Self::None => *self = Self::One(extent),
            Self::One(first) => *self = Self::Many(vec![*first, extent]),
            Self::Many(extents) => extents.push(extent),
        }
    }

    pub fn as_slice(&self) -> &[Extent<'a>] {
        match self {
            Self::None => &[],
            Self::One(extent) => std::slice::from_ref(extent),
            Self::Many(extents) => extents,
        }
    }
}

/// The bytes of a packet that arrived. Where they lie in memory that the peer may write meanwhile they are
/// copied once to where they belong, and no reference to them is given.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    Bytes(&'a [u8]),
    /// A range that was checked.
    Range {
        memory: &'a dyn Memory,
        at: usize,
        length: usize,
    },
}

impl Content<'_> {
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Range { length, .. } => *length,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Return `length` of the bytes from `from` on.
    ///
    /// # Panics
    /// There are fewer.
    #[must_use]
    pub fn part(&self, from: usize, length: usize) -> Self {
        assert!(from + length <= self.len(), "within the packet");
        match self {
            Self::Bytes(bytes) => Self::Bytes(&bytes[from..from + length]),
            Self::Range { memory, at, .. } => Self::Range {
                memory: *memory,
                at: at + from,
                length,
            },
        }
    }

    /// Copy all bytes to `target`.
    ///
    /// # Panics
    /// It has another length.
    pub fn copy_to(&self, target: &mut [u8]) {
        assert_eq!(target.len(), self.len(), "room for the packet");
        self.copy_out(0, target);
    }

    /// Copy the bytes from `from` on that `target` has room for.
    ///
    /// # Panics
    /// There are fewer.
    pub fn copy_out(&self, from: usize, target: &mut [u8]) {
        match self.part(from, target.len()) {
            Self::Bytes(bytes) => target.copy_from_slice(bytes),
            Self::Range { memory, at, .. } => memory.read(at, target),
        }
    }

    /// Copy all bytes to a place in memory, which has room for them.
    pub fn write_to(&self, target: &dyn Memory, at: usize) {
        match self {
            Self::Bytes(bytes) => target.write(at, bytes),
            Self::Range {
                memory,
                at: from,
                length,
            } => {
                let mut done = 0;
                memory.give(*from, *length, &mut |piece| {
                    target.write(at + done, piece);
                    done += piece.len();
                });
            }
        }
    }
}

/// The bytes of a packet or of a placed write: some of the caller's, or ranges of memory.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    Bytes(&'a [u8]),
    Extents(&'a [Extent<'a>]),
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
