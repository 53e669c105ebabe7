//! The calling thread's number, and the place where the kernel looks for its lock when it is killed.
//!
//! The C library registers with the kernel, for each thread, a list of locks that the kernel gives free
//! when the thread is killed. Beside the list there is one place for a lock that is being taken or
//! given back: `list_op_pending`. We use that place for as long as we hold a lock and put back what
//! was in it. Source: linux v6.12 kernel/futex/core.c (`exit_robust_list`), include/uapi/linux/futex.h.

use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicIsize, Ordering, compiler_fence};

/// As the kernel has it.
#[repr(C)]
struct RobustListHead {
    first: *mut u8,
    futex_offset: isize,
    pending: UnsafeCell<usize>,
}

/// Not looked for yet.
const UNKNOWN: isize = 0;
/// The C library has no list, or it is not where the thread's own memory is.
const NONE: isize = 1;
/// In the GNU C library a thread's number lies this far before its list.
const TID_BEFORE: usize = 16;

/// How far a thread's list is from its thread pointer: the same for all threads of a process.
static LIST: AtomicIsize = AtomicIsize::new(UNKNOWN);
/// 1: the number lies at `TID_BEFORE`; 2: it does not.
static NUMBER: AtomicIsize = AtomicIsize::new(0);

/// Return the number of the processor that the calling thread runs on, a hint; `None` if unknown.
#[inline]
pub fn processor() -> Option<u32> {
    // SAFETY: no memory is passed.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// What a lock needs of the thread that takes it.
#[derive(Clone, Copy)]
pub struct Thread {
    /// Its number, as the kernel has it.
    pub number: u32,
    list: *const RobustListHead,
}

#[cfg(target_arch = "x86_64")]
fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads the first word of the thread's own memory, which points to itself.
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, preserves_flags, readonly));
    }
    pointer
}

#[cfg(target_arch = "aarch64")]
fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, preserves_flags));
    }
    pointer
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn thread_pointer() -> usize {
    0
}

fn number_by_call() -> u32 {
    // SAFETY: no memory is passed.
    let number = unsafe { libc::syscall(libc::SYS_gettid) };
    u32::try_from(number).unwrap_or(0)
}

#[cold]
fn find() -> isize {
    let mut head: *const RobustListHead = ptr::null();
    let mut length = 0usize;
    // SAFETY: both places are writable.
    let result =
        unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut length) };
    let pointer = thread_pointer();
    let far = (head as usize).wrapping_sub(pointer).cast_signed();
    // A list elsewhere than in the thread's own memory is not the C library's as we know it.
    let is_known = result == 0
        && !head.is_null()
        && pointer != 0
        && length == size_of::<RobustListHead>()
        && far.unsigned_abs() < 1 << 16
        && !matches!(far, UNKNOWN | NONE);
    let found = if is_known { far } else { NONE };
    if is_known {
        // SAFETY: the GNU C library has the number there; elsewhere there is other memory of the
        // same structure.
        let number = unsafe { head.byte_sub(TID_BEFORE).cast::<u32>().read_volatile() };
        let is_there = number == number_by_call();
        NUMBER.store(if is_there { 1 } else { 2 }, Ordering::Relaxed);
    }
    LIST.store(found, Ordering::Release);
    found
}

impl Thread {
    /// Return the calling thread.
    #[inline]
    pub fn current() -> Self {
        let far = match LIST.load(Ordering::Acquire) {
            UNKNOWN => find(),
            known => known,
        };
        if far == NONE {
            let number = number_by_call();
            let list = ptr::null();
            return Self { number, list };
        }
        let list = thread_pointer().wrapping_add_signed(far) as *const RobustListHead;
        let number = if NUMBER.load(Ordering::Relaxed) == 1 {
            // SAFETY: as in `find`, for this thread.
            unsafe { list.byte_sub(TID_BEFORE).cast::<u32>().read_volatile() }
        } else {
            number_by_call()
        };
        Self { number, list }
    }

    /// Return the value that names a lock's word to the kernel; 0 without a list.
    #[inline]
    pub fn name_of(&self, word: *const u32) -> usize {
        if self.list.is_null() {
            return 0;
        }
        // SAFETY: the thread's own list.
        let offset = unsafe { (*self.list).futex_offset };
        word.wrapping_byte_offset(offset.wrapping_neg()) as usize
    }

    /// Return what the kernel would give free now.
    #[inline]
    pub fn pending(&self) -> usize {
        if self.list.is_null() {
            return 0;
        }
        // SAFETY: the thread's own list, which no other thread touches.
        unsafe { (*self.list).pending.get().read_volatile() }
    }

    /// Set what the kernel gives free if the thread is killed from now on.
    #[inline]
    pub fn set_pending(&self, name: usize) {
        if self.list.is_null() {
            return;
        }
        compiler_fence(Ordering::SeqCst);
        // SAFETY: as in `pending`.
        unsafe { (*self.list).pending.get().write_volatile(name) };
        compiler_fence(Ordering::SeqCst);
    }
}
