//! A counter that wakes the threads that poll it.

use std::io;
use std::os::fd::IntoRawFd;

use rustix::event::EventfdFlags;

use super::borrowed;
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
        let made = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self(Descriptor::new(made.into_raw_fd())))
    }

    /// Make another descriptor of one, which its owner keeps.
    ///
    /// # Errors
    /// Of the system, when no descriptors are left.
    pub fn duplicate(descriptor: i32) -> io::Result<Self> {
        let made = rustix::io::fcntl_dupfd_cloexec(borrowed(descriptor)?, 0)?;
        Ok(Self(Descriptor::new(made.into_raw_fd())))
    }

    /// Return the number.
    pub fn descriptor(&self) -> i32 {
        self.0.get()
    }

    /// Make it readable; no effect once closed.
    pub fn ring(&self) {
        ring_at(self.0.get());
    }

    /// Make it not readable.
    pub fn silence(&self) {
        silence_at(self.0.get());
    }

    /// Close it, once.
    pub fn close(&self) {
        self.0.close();
    }
}

/// Make one of the caller's readable; no effect for -1.
pub fn ring_at(descriptor: i32) {
    // A full counter is readable anyhow.
    if let Ok(own) = borrowed(descriptor) {
        let _ = rustix::io::write(own, &1u64.to_ne_bytes());
    }
}

/// Make one of the caller's unreadable.
pub fn silence_at(descriptor: i32) {
    if let Ok(own) = borrowed(descriptor) {
        let _ = rustix::io::read(own, &mut [0u8; 8]);
    }
}
