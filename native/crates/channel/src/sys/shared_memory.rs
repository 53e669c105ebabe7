//! Memory that two processes share: a sealed file of memory, mapped once, used by copying only.
//!
//! The other process may write anything there at any time. So no function returns a reference to
//! its bytes; the control words in it are atomics.

use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};

use super::{Errno, check};
use crate::ring::Control;

/// Before the rings: the control words of both directions.
pub const CONTROL_BYTES: usize = 4096;
const DIRECTION_BYTES: usize = CONTROL_BYTES / 2;
const _: () = assert!(size_of::<Control>() <= DIRECTION_BYTES);
const _: () = assert!(DIRECTION_BYTES.is_multiple_of(align_of::<Control>()));

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Why memory was not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// It is not plain memory of just that length with the seals on.
    Unsealed,
    System(Errno),
}

impl From<Errno> for MapError {
    fn from(number: Errno) -> Self {
        Self::System(number)
    }
}

/// A mapping, undone when it is dropped.
#[derive(Debug)]
pub struct SharedMemory {
    first: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to no thread; its bytes are only copied, its words are atomics.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Map a file of memory whose length is sealed.
    ///
    /// # Errors
    /// `Unsealed`; of the system.
    pub fn map(file: i32, length: usize) -> Result<Self, MapError> {
        if length < CONTROL_BYTES || !is_sealed(file, length)? {
            return Err(MapError::Unsealed);
        }
        // SAFETY: a new mapping at an address of the kernel's choice. The seals ensure that all of
        // it stays backed by the file, so no access faults.
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
            return Err(Errno::last().into());
        }
        let first = NonNull::new(first.cast()).ok_or(Errno(libc::ENOMEM))?;
        Ok(Self { first, length })
    }

    /// Return the control words of a direction.
    ///
    /// # Panics
    /// Unless it is 0 or 1.
    pub fn control(&self, direction: usize) -> &Control {
        assert!(direction < 2, "a stream has two directions");
        // SAFETY: within the first page of the mapping, which is aligned to a page and lives as
        // long as we do; every bit pattern is a `Control`, and the other process changes its
        // atomics as a thread would.
        unsafe {
            let at = self.first.add(direction * DIRECTION_BYTES);
            at.cast::<Control>().as_ref()
        }
    }

    /// Copy bytes into the memory.
    ///
    /// # Panics
    /// Beyond its end.
    pub fn copy_in(&self, at: usize, bytes: &[u8]) {
        assert!(self.has(at, bytes.len()), "within the memory");
        // SAFETY: the range is ours (above), and no slice of Rust's lies in it. The other process
        // may read or write it meanwhile: that changes bytes and nothing else.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.first.as_ptr().add(at), bytes.len());
        }
    }

    /// Copy bytes out of the memory: whatever is there at the moment.
    ///
    /// # Panics
    /// Beyond its end.
    pub fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        assert!(self.has(at, bytes.len()), "within the memory");
        // SAFETY: as in `copy_in`; any byte is one.
        unsafe {
            let from = self.first.as_ptr().add(at);
            ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
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

    /// Unmap the page of the control words until they are used again; they keep their values.
    pub fn rest_control(&self) {
        // SAFETY: the range is within the mapping, which is shared: its bytes stay in the file, and
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

/// Return whether a file is plain memory (which always has free pages) of just that length, for
/// good.
fn is_sealed(file: i32, length: usize) -> Result<bool, Errno> {
    // SAFETY: no memory is passed.
    let seals = check(unsafe { libc::fcntl(file, libc::F_GET_SEALS) })?;
    let mut system = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `system` is writable and as large as the call expects.
    check(unsafe { libc::fstatfs(file, system.as_mut_ptr()) })?;
    // SAFETY: the call has filled it.
    let is_plain = unsafe { system.assume_init() }.f_type == libc::TMPFS_MAGIC; // no huge pages
    let mut about = MaybeUninit::<libc::stat>::uninit();
    // By its number: the GNU C library has the name since 2.33 only.
    // SAFETY: `about` is writable and as large as the call expects.
    if unsafe { libc::syscall(libc::SYS_fstat, file, about.as_mut_ptr()) } < 0 {
        return Err(Errno::last());
    }
    // SAFETY: the call has filled it.
    let bytes = unsafe { about.assume_init() }.st_size;
    Ok(seals & SEALS == SEALS && is_plain && usize::try_from(bytes) == Ok(length))
}

/// Make a sealed file of memory, which the caller owns: for tests and for the side that connects.
///
/// # Errors
/// Of the system.
pub fn make(length: usize) -> Result<i32, Errno> {
    let bytes = libc::off_t::try_from(length).map_err(|_| Errno(libc::EFBIG))?;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name ends with a zero.
    let file = check(unsafe { libc::memfd_create(c"urds-shm".as_ptr(), flags) })?;
    let made = fill(file, bytes);
    if made.is_err() {
        // SAFETY: the number is ours, and no other has it.
        unsafe { libc::close(file) };
    }
    made.map(|()| file)
}

fn fill(file: i32, bytes: libc::off_t) -> Result<(), Errno> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::ftruncate(file, bytes) })?;
    // SAFETY: as above.
    check(unsafe { libc::fcntl(file, libc::F_ADD_SEALS, SEALS) })?;
    Ok(())
}
