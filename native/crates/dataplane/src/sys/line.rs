//! The connected `AF_UNIX` stream of a lane: its bell, and the sign that the other side lives.
//!
//! An octet means "look"; which one does not matter, nor how many. No call can be made to wait by
//! the other side: each end of a socket has flags of its own, unlike an eventfd that is shared.

use std::io;
use std::os::fd::{BorrowedFd, IntoRawFd};

use super::check;
use super::descriptor::Descriptor;

/// More rings than an honest peer can leave unheard.
const HEARD_BYTES: usize = 64;

/// What was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Nothing,
    Bell,
    /// The other side is gone.
    End,
}

/// Make a second descriptor of a connection; who gave the first keeps it.
///
/// # Errors
/// Of the system.
pub fn duplicate(descriptor: i32) -> io::Result<Descriptor> {
    if descriptor < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: borrowed for the call only; a number that is not open is refused by the system.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let owned = borrowed.try_clone_to_owned()?;
    Ok(Descriptor::new(owned.into_raw_fd()))
}

/// Have the other side look; false if it is gone.
pub fn ring(line: &Descriptor) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: one readable octet.
    let sent = unsafe { libc::send(line.get(), [1u8].as_ptr().cast(), 1, flags) };
    // Without room for an octet there are enough that it did not hear yet.
    sent == 1 || io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
}

/// Take the rings that came; never waits.
pub fn hear(line: &Descriptor) -> Heard {
    let mut octets = [0u8; HEARD_BYTES];
    // SAFETY: so many writable octets. Descriptors that come along are dropped by the system.
    let heard = unsafe {
        libc::recv(
            line.get(),
            octets.as_mut_ptr().cast(),
            HEARD_BYTES,
            libc::MSG_DONTWAIT,
        )
    };
    if heard > 0 {
        return Heard::Bell;
    }
    let may_come = |kind| matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
    if heard < 0 && may_come(io::Error::last_os_error().kind()) {
        return Heard::Nothing;
    }
    Heard::End
}

/// Have both sides see the end; the number stays ours until it is dropped.
pub fn end(line: &Descriptor) {
    // SAFETY: no memory is involved.
    let _ = check(unsafe { libc::shutdown(line.get(), libc::SHUT_RDWR) });
}
