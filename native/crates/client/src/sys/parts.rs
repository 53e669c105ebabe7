//! Memory of the caller's program, in pieces: where a message comes from or goes to.

use urds_channel::sys::area::Area;

/// Pieces to send from.
#[derive(Clone, Copy)]
pub struct Readable<'a>(&'a [libc::iovec]);

impl<'a> Readable<'a> {
    /// Take pieces.
    ///
    /// # Safety
    /// Each is readable for its length, until this is dropped.
    pub unsafe fn new(parts: &'a [libc::iovec]) -> Self {
        Self(parts)
    }

    /// Return how many bytes they have together.
    pub fn length(&self) -> usize {
        let lengths = self.0.iter().map(|part| part.iov_len);
        lengths.fold(0, usize::saturating_add)
    }

    /// Copy all of them into shared memory.
    ///
    /// # Panics
    /// Beyond its end.
    pub(crate) fn copy_into(&self, area: &Area, mut at: usize) {
        for part in self.0 {
            // SAFETY: the maker of this has promised it.
            unsafe { area.copy_from(at, part.iov_base.cast(), part.iov_len) };
            at += part.iov_len;
        }
    }
}

/// Pieces to receive into.
#[derive(Clone, Copy)]
pub struct Writable<'a>(&'a [libc::iovec]);

impl<'a> Writable<'a> {
    /// Take pieces.
    ///
    /// # Safety
    /// Each is writable for its length, until this is dropped, and used by nothing else.
    pub unsafe fn new(parts: &'a [libc::iovec]) -> Self {
        Self(parts)
    }

    /// Copy `length` bytes of shared memory, as far as the pieces go; return how many.
    ///
    /// # Panics
    /// Beyond the end of the memory.
    pub(crate) fn copy_out(&self, area: &Area, at: usize, length: usize) -> usize {
        let mut copied = 0;
        for part in self.0 {
            let step = part.iov_len.min(length - copied);
            // SAFETY: the maker of this has promised it.
            unsafe { area.copy_to(at + copied, part.iov_base.cast(), step) };
            copied += step;
        }
        copied
    }
}
