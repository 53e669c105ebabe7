//! Memory of the kernel: zeros, kept until the process ends. No allocator is called.

use core::ffi::c_void;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};

/// Return what `place` points to; the first caller has it made, of zeros.
///
/// `T` must be valid when all its bytes are zero. None without memory.
///
/// # Safety
/// Zeros are a valid `T`, and only this function stores to `place`.
pub unsafe fn once<T>(place: &AtomicPtr<T>) -> Option<NonNull<T>> {
    let known = place.load(Ordering::Acquire);
    if let Some(there) = NonNull::new(known) {
        return Some(there);
    }
    let made = zeros(size_of::<T>())?.cast::<T>();
    match place.compare_exchange(
        ptr::null_mut(),
        made.as_ptr(),
        Ordering::AcqRel,
        Ordering::Acquire,
    ) {
        Ok(_) => Some(made),
        Err(theirs) => {
            // SAFETY: this mapping was made above, and no other thread knows of it.
            unsafe { libc::munmap(made.as_ptr().cast(), size_of::<T>()) };
            NonNull::new(theirs)
        }
    }
}

fn zeros(length: usize) -> Option<NonNull<c_void>> {
    // SAFETY: a new private mapping at an address of the kernel's choice.
    let made = unsafe {
        libc::mmap(
            ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if made == libc::MAP_FAILED {
        None
    } else {
        NonNull::new(made)
    }
}
