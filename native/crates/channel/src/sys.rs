//! System calls of a channel, and all of its `unsafe`.

pub mod area;
pub mod doorbell;
pub mod futex;
pub mod random;
pub mod raw;
#[cfg(test)]
pub mod stepped;
pub mod thread;

/// Error number of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Return the one of the call that has just failed.
    pub fn last() -> Self {
        // SAFETY: the place of the calling thread's own number, always readable.
        Self(unsafe { *libc::__errno_location() })
    }
}

/// Turn the result of a system call into its value, or into the error in `errno`.
///
/// # Errors
/// Of the system, when the result is negative.
pub(crate) fn check(result: libc::c_int) -> Result<libc::c_int, Errno> {
    if result < 0 {
        Err(Errno::last())
    } else {
        Ok(result)
    }
}
