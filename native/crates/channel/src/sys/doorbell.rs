//! Control socket of a channel, an `AF_UNIX` stream: its doorbell, and the peer's sign of life.
//!
//! A byte means "look"; its value and their number do not matter. The other side cannot make a call
//! wait: each end has flags of its own, unlike a shared eventfd. Descriptors are the caller's, which
//! keeps them open for the call.

use core::cell::UnsafeCell;
use core::ptr;

use super::{Errno, check};

/// More doorbells than a correct peer can leave unread.
const HEARD_BYTES: usize = 64;

/// More than a client fills a control socket with.
const SCRATCH_BYTES: usize = 64 << 10;
/// A side that writes all the time does not hold the reader.
const EMPTY_READS_MAX: usize = 4;

/// Where bytes go that say nothing.
struct Scratch(UnsafeCell<[u8; SCRATCH_BYTES]>);

// SAFETY: the kernel writes it, and it is never read.
unsafe impl Sync for Scratch {}

static SCRATCH: Scratch = Scratch(UnsafeCell::new([0; SCRATCH_BYTES]));

/// Result of reading the control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Nothing,
    Doorbell,
    /// The other side is gone.
    End,
}

/// Duplicate the descriptor of a connection; the caller keeps the first and owns the second.
///
/// # Errors
/// Of the system.
pub fn duplicate(socket: i32) -> Result<i32, Errno> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(socket, libc::F_DUPFD_CLOEXEC, 3) })
}

/// Ring the other side's doorbell; false if that side is gone.
pub fn ring(socket: i32) -> bool {
    ring_with(socket, 1)
}

/// Ring it with a byte of a value, for a socket on which bytes say more than "look".
pub fn ring_with(socket: i32, byte: u8) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: one byte is readable there.
    let sent = unsafe { libc::send(socket, ptr::from_ref(&byte).cast(), 1, flags) };
    // Without room for a byte there are enough that it has not read.
    sent == 1 || (sent < 0 && Errno::last().0 == libc::EAGAIN)
}

/// Read the doorbells that arrived; never waits.
pub fn hear(socket: i32) -> Heard {
    let mut bytes = [0u8; HEARD_BYTES];
    // Descriptors sent along are dropped by the system.
    // SAFETY: all of `bytes` is writable.
    let heard = unsafe {
        libc::recv(
            socket,
            bytes.as_mut_ptr().cast(),
            HEARD_BYTES,
            libc::MSG_DONTWAIT,
        )
    };
    match heard {
        1.. => Heard::Doorbell,
        0 => Heard::End,
        _ if matches!(Errno::last().0, libc::EAGAIN | libc::EINTR) => Heard::Nothing,
        _ => Heard::End,
    }
}

/// What `take` found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    Nothing,
    Ring,
    /// A message, or the end: it is still there.
    Other,
}

/// Take one ring with a byte of a value from a socket of messages, and leave all else.
pub fn take(socket: i32, byte: u8) -> Taken {
    let mut bytes = [0u8; 2];
    let mut read = |flags| {
        let place = bytes.as_mut_ptr().cast();
        // SAFETY: all of `bytes` is writable.
        let count = unsafe { libc::recv(socket, place, 2, flags | libc::MSG_DONTWAIT) };
        (count, bytes[0])
    };
    match read(libc::MSG_PEEK) {
        (1, first) if first == byte => {
            read(0);
            Taken::Ring
        }
        (-1, _) if matches!(Errno::last().0, libc::EAGAIN | libc::EINTR) => Taken::Nothing,
        _ => Taken::Other,
    }
}

/// Read all that arrived, also from a side that filled the socket on purpose; never waits.
pub fn empty(socket: i32) -> Heard {
    let mut heard = Heard::Nothing;
    for _ in 0..EMPTY_READS_MAX {
        let read = unread(socket);
        match read {
            Ok(0) => return Heard::End,
            Ok(count) => {
                heard = Heard::Doorbell;
                if count < SCRATCH_BYTES {
                    break;
                }
            }
            Err(Errno(libc::EAGAIN | libc::EINTR)) => break,
            Err(_) => return Heard::End,
        }
    }
    heard
}

fn unread(socket: i32) -> Result<usize, Errno> {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: all of the place is writable; what the calls of several threads leave there is read by
    // none.
    let read = unsafe { libc::recv(socket, SCRATCH.0.get().cast(), SCRATCH_BYTES, flags) };
    usize::try_from(read).map_err(|_| Errno::last())
}

/// Have both sides see the end; the number stays the caller's.
pub fn end(socket: i32) {
    // SAFETY: no memory is passed.
    unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::vec;

    use super::*;

    const MOST: usize = EMPTY_READS_MAX * SCRATCH_BYTES;

    #[test]
    fn a_side_that_writes_more_than_is_read_does_not_hold_the_reader() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let bytes = 8 * MOST;
        let size = libc::c_int::try_from(bytes).unwrap();
        for option in [libc::SO_SNDBUF, libc::SO_SNDBUFFORCE] {
            // SAFETY: an integer is readable there.
            unsafe {
                let value = ptr::from_ref(&size).cast();
                libc::setsockopt(theirs.as_raw_fd(), libc::SOL_SOCKET, option, value, 4);
            }
        }
        theirs.set_nonblocking(true).unwrap();
        ours.set_nonblocking(true).unwrap();
        let piece = vec![0; 16 << 10];
        let mut sent = 0;
        while let Ok(count) = theirs.write(&piece) {
            sent += count;
        }
        assert!(sent > MOST, "{sent} bytes fill it");
        assert_eq!(empty(ours.as_raw_fd()), Heard::Doorbell);
        assert!(ours.read(&mut [0]).is_ok(), "the rest is there");
        while empty(ours.as_raw_fd()) == Heard::Doorbell {}
        let nothing = ours.read(&mut [0]).map_err(|failure| failure.kind());
        assert_eq!(nothing, Err(ErrorKind::WouldBlock));
        drop(theirs);
        assert_eq!(empty(ours.as_raw_fd()), Heard::End);
    }
}
