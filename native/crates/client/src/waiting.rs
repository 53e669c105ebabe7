//! Bytes on the control socket: doorbells, what shows POLLIN, what takes POLLOUT away.

use urds_channel::sys::raw;

use crate::socket::{Socket, number_of};
use crate::sys;

/// A piece of what fills the control socket: four of them do.
const PIECE: [u8; 4096] = [0; 4096];
const PIECES_MAX: usize = 16;
/// More bytes that show POLLIN than a node leaves there.
const SHOWN_BYTES: usize = 64;

impl Socket {
    /// Have the node look.
    ///
    /// # Errors
    /// EIO without the node.
    #[inline]
    pub(crate) fn ring(descriptor: i32) -> Result<(), i32> {
        match raw::send_bytes_now(descriptor, &[1]) {
            Err(failure) if failure.0 == libc::EPIPE => Err(libc::EIO),
            // Without room for a byte the node looks by itself.
            _ => Ok(()),
        }
    }

    /// Take POLLOUT away: the node gives it back once there is room for messages of such a length.
    pub(crate) fn fill_control(&self, descriptor: i32, length: usize) {
        self.side.wait_for_room(length);
        for _ in 0..PIECES_MAX {
            let sent = raw::send_bytes_now(descriptor, &PIECE);
            if sent.is_err() || !self.side.waits_for_room() {
                break;
            }
        }
    }

    /// Take POLLIN away, since nothing is left to receive.
    ///
    /// # Errors
    /// EIO without the node: the end is readable for ever, so EAGAIN would have programs poll again.
    pub(crate) fn quiet(&self, descriptor: i32) -> Result<(), i32> {
        let mut is_end = false;
        let forget = || {
            let mut bytes = [0; SHOWN_BYTES];
            is_end = raw::receive_bytes_now(descriptor, &mut bytes).is_ok_and(|count| count == 0);
        };
        let must_ring = self.side.sleep(forget).map_err(number_of)?;
        if is_end {
            return Err(libc::EIO);
        }
        if must_ring {
            Self::ring(descriptor)?;
        }
        Ok(())
    }

    /// Return `number`, of a call that finds no room, or EIO where no node will make any.
    #[cold]
    pub(crate) fn without_room(descriptor: i32, number: i32) -> i32 {
        if sys::has_ended(descriptor) {
            libc::EIO
        } else {
            number
        }
    }

    /// Wait on the control socket for room to send.
    ///
    /// # Errors
    /// EAGAIN with `O_NONBLOCK`, ETIMEDOUT after `SO_SNDTIMEO`, EINTR, EIO without the node.
    pub(crate) fn wait_writable(descriptor: i32) -> Result<(), i32> {
        sys::wait_writable(descriptor).map_err(|number| ended(descriptor, number))?;
        Ok(())
    }

    /// Wait on the control socket for something to receive.
    ///
    /// # Errors
    /// EAGAIN with `O_NONBLOCK`, ETIMEDOUT after `SO_RCVTIMEO`, EINTR, EIO without the node.
    pub(crate) fn wait_readable(descriptor: i32) -> Result<(), i32> {
        match sys::wait_readable(descriptor) {
            Ok(0) => Err(libc::EIO),
            Ok(_) => Ok(()),
            Err(number) => Err(ended(descriptor, number)),
        }
    }
}

/// Return what a call on the control socket that ended so means for the socket.
#[cold]
fn ended(descriptor: i32, number: i32) -> i32 {
    match number {
        libc::EAGAIN if !sys::is_nonblocking(descriptor) => libc::ETIMEDOUT,
        libc::EPIPE | libc::ECONNRESET => libc::EIO,
        _ => number,
    }
}
