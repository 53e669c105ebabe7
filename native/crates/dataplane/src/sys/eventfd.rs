//! A counter to wake whoever polls it.

use std::io;

use super::check;
use super::descriptor::Descriptor;

/// Non-blocking, closed on exec.
#[derive(Debug)]
pub struct EventFd(Descriptor);

impl EventFd {
    /// Make one that is not readable.
    ///
    /// # Errors
    /// Of the system, when no descriptors are left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no memory is involved.
        let made = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        Ok(Self(Descriptor::new(check(made)?)))
    }

    /// Return the number.
    pub fn descriptor(&self) -> i32 {
        self.0.get()
    }

    /// Make it readable; once closed, in vain.
    pub fn ring(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight readable octets. A full counter is readable anyhow.
        unsafe { libc::write(self.0.get(), one.as_ptr().cast(), one.len()) };
    }

    /// Make it not readable.
    pub fn silence(&self) {
        let mut count = [0u8; 8];
        // SAFETY: eight writable octets.
        unsafe { libc::read(self.0.get(), count.as_mut_ptr().cast(), count.len()) };
    }

    /// Close it; again in vain.
    pub fn close(&self) {
        self.0.close();
    }
}
