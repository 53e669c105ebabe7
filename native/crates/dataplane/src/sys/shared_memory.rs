//! Memory that two processes share: a sealed file of memory, mapped once, used by copying only.
//!
//! The other process may write anything there at any time. So nothing here hands out a reference
//! to octets of it; the words that it has are atomics.

use std::io;
use std::ptr::{self, NonNull};

use super::check;
use crate::ring::Control;

/// Before the rings: the words of both directions.
pub const CONTROL_BYTES: usize = 4096;
const DIRECTION_BYTES: usize = CONTROL_BYTES / 2;
const _: () = assert!(size_of::<Control>() <= DIRECTION_BYTES);
const _: () = assert!(DIRECTION_BYTES.is_multiple_of(align_of::<Control>()));

const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A mapping, undone when it is dropped.
#[derive(Debug)]
pub struct SharedMemory {
    first: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to no thread; its octets are only copied, its words are atomics.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Map a file of memory that nobody can cut short or lengthen any more.
    ///
    /// # Errors
    /// `InvalidData` unless it is plain memory of just that length with the seals on; of the
    /// system.
    pub fn map(file: i32, length: usize) -> io::Result<Self> {
        if length < CONTROL_BYTES || !is_sealed(file, length)? {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: a new mapping at an address of the kernel's choice. The seals see to it that all
        // of it stays behind it, so no access faults.
        let first = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file,
                0,
            )
        };
        if first == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let first = NonNull::new(first.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { first, length })
    }

    /// Return the words of a direction.
    ///
    /// # Panics
    /// Unless it is 0 or 1.
    pub fn control(&self, direction: usize) -> &Control {
        assert!(direction < 2, "a lane has two directions");
        // SAFETY: within the first page of the mapping, which is aligned to a page and lives as
        // long as we do; every bit pattern is a `Control`, and the other process changes its
        // atomics as a thread would.
        unsafe {
            let at = self.first.add(direction * DIRECTION_BYTES);
            at.cast::<Control>().as_ref()
        }
    }

    /// Copy octets into the memory.
    ///
    /// # Panics
    /// Beyond its end.
    pub fn copy_in(&self, at: usize, octets: &[u8]) {
        assert!(self.has(at, octets.len()), "within the memory");
        // SAFETY: the range is ours (above), and no slice of Rust's lies in it. The other process
        // may read or write it meanwhile: that changes octets and nothing else.
        unsafe {
            ptr::copy_nonoverlapping(octets.as_ptr(), self.first.as_ptr().add(at), octets.len());
        }
    }

    /// Copy octets out of the memory: whatever is there at the moment.
    ///
    /// # Panics
    /// Beyond its end.
    pub fn copy_out(&self, at: usize, octets: &mut [u8]) {
        assert!(self.has(at, octets.len()), "within the memory");
        // SAFETY: as in `copy_in`; any octet is one.
        unsafe {
            let from = self.first.as_ptr().add(at);
            ptr::copy_nonoverlapping(from, octets.as_mut_ptr(), octets.len());
        }
    }

    /// Give pages back to the system; they read as zeros from now on. Only whole pages of it go.
    ///
    /// # Panics
    /// Beyond its end.
    pub fn give_back(&self, at: usize, length: usize) {
        assert!(self.has(at, length), "within the memory");
        // SAFETY: the range is within the mapping. Pages go from the file, not from the mapping,
        // so every access stays good.
        unsafe {
            let from = self.first.as_ptr().add(at);
            libc::madvise(from.cast(), length, libc::MADV_REMOVE);
        }
    }

    /// Take the words out of our mapping until they are touched again; they keep their values.
    pub fn rest_control(&self) {
        // SAFETY: the range is within the mapping, which is shared: its octets stay in the file, and
        // the next access finds them there.
        unsafe {
            libc::madvise(
                self.first.as_ptr().cast(),
                CONTROL_BYTES,
                libc::MADV_DONTNEED,
            );
        }
    }

    fn has(&self, at: usize, length: usize) -> bool {
        at.checked_add(length).is_some_and(|end| end <= self.length)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing that borrowed from it is left.
        unsafe { libc::munmap(self.first.as_ptr().cast(), self.length) };
    }
}

/// Tell whether a file is plain memory (pages of which can always be had) of that very length,
/// for ever.
fn is_sealed(file: i32, length: usize) -> io::Result<bool> {
    // SAFETY: no memory is involved.
    let seals = check(unsafe { libc::fcntl(file, libc::F_GET_SEALS) })?;
    let mut system = std::mem::MaybeUninit::<libc::statfs>::uninit();
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: each call fills its record when it succeeds, and only then it is read.
    let (kind, octets) = unsafe {
        check(libc::fstatfs(file, system.as_mut_ptr()))?;
        check(libc::fstat(file, status.as_mut_ptr()))?;
        (system.assume_init().f_type, status.assume_init().st_size)
    };
    let is_plain = kind == libc::TMPFS_MAGIC; // not of huge pages, which may run out
    Ok(seals & SEALS == SEALS && is_plain && usize::try_from(octets) == Ok(length))
}

/// Make a sealed file of memory, for tests and for who dials.
///
/// # Errors
/// Of the system.
pub fn make(length: usize) -> io::Result<super::descriptor::Descriptor> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a string that ends in a zero.
    let made = check(unsafe { libc::memfd_create(c"urds-lane".as_ptr(), flags) })?;
    let file = super::descriptor::Descriptor::new(made);
    let octets = libc::off_t::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: no memory is involved.
    unsafe {
        check(libc::ftruncate(made, octets))?;
        check(libc::fcntl(made, libc::F_ADD_SEALS, SEALS))?;
    }
    Ok(file)
}
