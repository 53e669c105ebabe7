//! The word of errno. A call that succeeds leaves it as it was.

use crate::Answer;

/// Return errno of this thread.
pub fn get() -> i32 {
    // SAFETY: the place of errno is valid in every thread.
    unsafe { *place() }
}

/// Set errno of this thread.
pub fn set(value: i32) {
    // SAFETY: as above.
    unsafe { *place() = value }
}

fn place() -> *mut i32 {
    // SAFETY: it takes nothing.
    unsafe { libc::__errno_location() }
}

/// Run a call of ours; return its value, or -1 with errno set. A success keeps errno.
pub fn kept(call: impl FnOnce() -> Answer) -> isize {
    let before = get();
    match call() {
        Ok(value) => {
            set(before);
            value.cast_signed()
        }
        Err(errno) => {
            set(errno);
            -1
        }
    }
}

/// Return the value of a system call, or its errno.
///
/// # Errors
/// What the system call failed with.
pub fn checked(value: isize) -> Answer {
    usize::try_from(value).map_err(|_| get())
}
