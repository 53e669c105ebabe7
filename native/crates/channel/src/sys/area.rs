//! Memory that other processes write at any time: words of it as atomics, bytes of it by copying.

use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::sync::atomic::AtomicU8;

use super::{Errno, check, raw};
use crate::atomics::{AtomicU32, AtomicU64};

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
pub const PAGE_BYTES: usize = 4096;
/// Linux 6.3 and later warn without it, earlier ones do not know it.
const MFD_NOEXEC_SEAL: libc::c_uint = 8;

/// A mapping of a sealed file of memory, undone when it is dropped.
#[derive(Debug)]
pub struct Area {
    first: NonNull<u8>,
    length: usize,
}

/// What the second owner of a file does with its mapping.
#[derive(Debug, Clone, Copy)]
pub enum Access {
    Reads,
    Writes,
}

// SAFETY: the mapping belongs to no thread; its bytes are only copied, its words are atomics.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// Map a file of memory; its seals ensure that no access faults.
    ///
    /// # Errors
    /// EINVAL unless it is plain memory with the seals on; of the system.
    pub fn map(file: i32) -> Result<Self, Errno> {
        Self::map_with(file, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Map it for reading only: the atomics must not be stored to.
    ///
    /// # Errors
    /// As `map`.
    pub fn map_to_read(file: i32) -> Result<Self, Errno> {
        Self::map_with(file, libc::PROT_READ)
    }

    /// Map one file for two owners: the first may write, the second as well unless it only reads.
    ///
    /// # Errors
    /// As `map`.
    pub fn map_twice(file: i32, second: Access) -> Result<(Self, Self), Errno> {
        let length = sealed_length(file)?;
        let first = Self::map_length(file, length, libc::PROT_READ | libc::PROT_WRITE)?;
        let protection = match second {
            Access::Reads => libc::PROT_READ,
            Access::Writes => libc::PROT_READ | libc::PROT_WRITE,
        };
        Ok((first, Self::map_length(file, length, protection)?))
    }

    fn map_with(file: i32, protection: libc::c_int) -> Result<Self, Errno> {
        Self::map_length(file, sealed_length(file)?, protection)
    }

    /// Map a file that has this length for good.
    fn map_length(file: i32, length: usize, protection: libc::c_int) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let first = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                file,
                0,
            )
        };
        if first == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let first = NonNull::new(first.cast()).ok_or(Errno(libc::ENOMEM))?;
        Ok(Self { first, length })
    }

    /// Return its length in bytes.
    #[inline]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Return a word of four bytes.
    ///
    /// # Panics
    /// Beyond the end, or not at a multiple of 4.
    #[inline]
    pub fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && self.has(at, 4), "within the memory");
        // SAFETY: within the mapping, which starts at a page and lives as long as we do; every
        // bit pattern is a word, and other processes change it as threads would.
        unsafe { self.first.add(at).cast::<AtomicU32>().as_ref() }
    }

    /// Return a word of eight bytes.
    ///
    /// # Panics
    /// Beyond the end, or not at a multiple of 8.
    #[inline]
    pub fn long(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && self.has(at, 8), "within the memory");
        // SAFETY: as `word`.
        unsafe { self.first.add(at).cast::<AtomicU64>().as_ref() }
    }

    /// Copy bytes into the memory.
    ///
    /// # Panics
    /// Beyond its end.
    #[inline]
    pub fn copy_in(&self, at: usize, bytes: &[u8]) {
        assert!(self.has(at, bytes.len()), "within the memory");
        // SAFETY: the range is ours (above), and no slice of Rust's lies in it. Other processes may
        // read or write it meanwhile: that changes bytes and nothing else.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.first.as_ptr().add(at), bytes.len());
        }
    }

    /// Copy bytes out of the memory: whatever is there at the moment.
    ///
    /// # Panics
    /// Beyond its end.
    #[inline]
    pub fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        assert!(self.has(at, bytes.len()), "within the memory");
        // SAFETY: as in `copy_in`; any byte is one.
        unsafe {
            let from = self.first.as_ptr().add(at);
            ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
        }
    }

    /// Have the processor fetch the cache line of a place: a hint.
    ///
    /// # Panics
    /// Beyond the end of the memory.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        assert!(self.has(at, 1), "within the memory");
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the place is within the mapping, and a fetch changes nothing.
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.first.as_ptr().add(at).cast());
        }
    }

    /// Return bytes of the memory as what they are: others write them at any time.
    ///
    /// # Panics
    /// Beyond its end.
    #[inline]
    pub fn bytes(&self, at: usize, length: usize) -> &[AtomicU8] {
        assert!(self.has(at, length), "within the memory");
        // SAFETY: the range is ours as long as the mapping; an atomic byte has the layout of a byte.
        unsafe { core::slice::from_raw_parts(self.first.as_ptr().add(at).cast(), length) }
    }

    /// Copy from memory of the caller's program.
    ///
    /// # Panics
    /// Beyond the end of ours.
    ///
    /// # Safety
    /// `from` is readable for `length` bytes.
    #[inline]
    pub unsafe fn copy_from(&self, at: usize, from: *const u8, length: usize) {
        assert!(self.has(at, length), "within the memory");
        if length > 0 {
            // SAFETY: ours is checked, theirs is the caller's word.
            unsafe { ptr::copy_nonoverlapping(from, self.first.as_ptr().add(at), length) };
        }
    }

    /// Copy into memory of the caller's program.
    ///
    /// # Panics
    /// Beyond the end of ours.
    ///
    /// # Safety
    /// `to` is writable for `length` bytes.
    #[inline]
    pub unsafe fn copy_to(&self, at: usize, to: *mut u8, length: usize) {
        assert!(self.has(at, length), "within the memory");
        if length > 0 {
            // SAFETY: ours is checked, theirs is the caller's word.
            unsafe { ptr::copy_nonoverlapping(self.first.as_ptr().add(at), to, length) };
        }
    }

    /// Return where bytes lie, for a system call that reads or writes them.
    ///
    /// They may change at any time: no reference may be made of it.
    ///
    /// # Panics
    /// Beyond its end.
    #[inline]
    pub fn pointer(&self, at: usize, length: usize) -> *mut u8 {
        assert!(self.has(at, length), "within the memory");
        // SAFETY: the range is within the mapping.
        unsafe { self.first.as_ptr().add(at) }
    }

    /// Give pages back to the system; they read as zeros from now on. Only whole pages of it go.
    ///
    /// # Panics
    /// Beyond its end.
    pub fn give_back(&self, at: usize, length: usize) {
        assert!(self.has(at, length), "within the memory");
        let first = at.next_multiple_of(PAGE_BYTES);
        let end = (at + length) & !(PAGE_BYTES - 1);
        if first < end {
            // SAFETY: whole pages within the mapping. They go from the file, not from the mapping,
            // so every access stays good.
            unsafe {
                let from = self.first.as_ptr().add(first);
                libc::madvise(from.cast(), end - first, libc::MADV_REMOVE);
            }
        }
    }

    /// Unmap the first pages until they are used again; they keep what is in them.
    ///
    /// # Panics
    /// Beyond its end.
    pub fn rest(&self, length: usize) {
        assert!(self.has(0, length), "within the memory");
        // SAFETY: the range is within the mapping, which is shared: its bytes stay in the file, and
        // the next access finds them there.
        unsafe {
            libc::madvise(self.first.as_ptr().cast(), length, libc::MADV_DONTNEED);
        }
    }

    #[inline]
    fn has(&self, at: usize, length: usize) -> bool {
        at.checked_add(length).is_some_and(|end| end <= self.length)
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing that borrowed from it is left.
        unsafe { libc::munmap(self.first.as_ptr().cast(), self.length) };
    }
}

/// Return the length of a file of plain memory that has it for good.
fn sealed_length(file: i32) -> Result<usize, Errno> {
    let wrong = Errno(libc::EINVAL);
    // SAFETY: no memory is passed.
    let seals = check(unsafe { libc::fcntl(file, libc::F_GET_SEALS) })?;
    let mut system = MaybeUninit::<libc::statfs>::zeroed();
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: both places are writable; zeros are values of both.
    let (is_plain, bytes) = unsafe {
        check(libc::fstatfs(file, system.as_mut_ptr()))?;
        // In the GNU C library a name only since 2.33.
        if libc::syscall(libc::SYS_fstat, file, status.as_mut_ptr()) < 0 {
            return Err(Errno::last());
        }
        let kind = system.assume_init().f_type;
        (kind == libc::TMPFS_MAGIC, status.assume_init().st_size)
    };
    let length = usize::try_from(bytes).map_err(|_| wrong)?;
    if seals & SEALS != SEALS || !is_plain || length < PAGE_BYTES {
        return Err(wrong);
    }
    Ok(length)
}

/// Make a sealed file of memory, all zeros and sparse; return its descriptor and its mapping.
///
/// The descriptor is the caller's and closes with exec.
///
/// # Errors
/// Of the system.
pub fn make(length: usize) -> Result<(i32, Area), Errno> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a name that ends with zero.
    let file = unsafe {
        let made = libc::memfd_create(c"urds-socket".as_ptr(), flags | MFD_NOEXEC_SEAL);
        if made < 0 && Errno::last().0 == libc::EINVAL {
            check(libc::memfd_create(c"urds-socket".as_ptr(), flags))?
        } else {
            check(made)?
        }
    };
    fill_in(file, length).inspect_err(|_failure| {
        raw::close(file);
    })
}

fn fill_in(file: i32, length: usize) -> Result<(i32, Area), Errno> {
    let bytes = libc::off_t::try_from(length).map_err(|_| Errno(libc::EFBIG))?;
    // SAFETY: no memory is passed.
    unsafe {
        check(libc::ftruncate(file, bytes))?;
        check(libc::fcntl(file, libc::F_ADD_SEALS, SEALS))?;
    }
    let area = Area::map_length(file, length, libc::PROT_READ | libc::PROT_WRITE)?;
    Ok((file, area))
}
