//! Control socket of a shm stream, an `AF_UNIX` stream: its doorbell, and the peer's sign of life.
//!
//! A byte means "look"; its value and their number do not matter. The other side cannot make a call
//! wait: each end has flags of its own, unlike a shared eventfd.

use std::io;
use std::os::fd::IntoRawFd;

use rustix::net::{RecvFlags, SendFlags, Shutdown};

use super::borrowed;
use super::descriptor::Descriptor;

/// More doorbells than a correct peer can leave unread.
const HEARD_BYTES: usize = 64;

/// Result of reading the control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Nothing,
    Doorbell,
    /// The other side is gone.
    End,
}

/// Duplicate the descriptor of a connection; the caller keeps the first.
///
/// # Errors
/// Of the system.
pub fn duplicate(descriptor: i32) -> io::Result<Descriptor> {
    let owned = borrowed(descriptor)?.try_clone_to_owned()?;
    Ok(Descriptor::new(owned.into_raw_fd()))
}

/// Ring the other side's doorbell; false if that side is gone.
pub fn ring(line: &Descriptor) -> bool {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = borrowed(line.get()).and_then(|own| Ok(rustix::net::send(own, &[1], flags)?));
    // Without room for a byte there are enough that it has not read.
    sent.map_or_else(
        |failure| failure.kind() == io::ErrorKind::WouldBlock,
        |count| count == 1,
    )
}

/// Read the doorbells that arrived; never waits.
pub fn hear(line: &Descriptor) -> Heard {
    let mut bytes = [0u8; HEARD_BYTES];
    // Descriptors sent along are dropped by the system.
    let heard = borrowed(line.get())
        .and_then(|own| Ok(rustix::net::recv(own, &mut bytes, RecvFlags::DONTWAIT)?.0));
    match heard.map_err(|failure| failure.kind()) {
        Ok(1..) => Heard::Doorbell,
        Err(io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Heard::Nothing,
        Ok(0) | Err(_) => Heard::End,
    }
}

/// Have both sides see the end; the number stays ours until it is dropped.
pub fn end(line: &Descriptor) {
    if let Ok(own) = borrowed(line.get()) {
        let _ = rustix::net::shutdown(own, Shutdown::Both);
    }
}
