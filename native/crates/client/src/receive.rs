//! Receiving into the caller's memory, and waiting for a message.

use urds_channel::socket_memory::{Name, Received, ReceivedKind, Rejected, Trace};
use urds_channel::sys::area::Area;

use crate::socket::{Socket, number_of};
use crate::sys::parts::Writable;

/// How to receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `MSG_DONTWAIT`.
    pub dontwait: bool,
    /// `MSG_PEEK`: the message stays; a notification does not.
    pub peek: bool,
    /// With `dontwait`: the caller polls for POLLIN if nothing is there, which may be shown all the
    /// same. Its next call comes without this.
    pub polls: bool,
}

/// What was received.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// A message, or a notification without data.
    pub kind: ReceivedKind,
    /// Bytes that were copied.
    pub bytes: usize,
    /// Bytes of the whole message; what was not copied is lost unless it stays.
    pub length: usize,
    /// Who sent it; all zeros with a notification.
    pub source: Name,
    /// Extension headers as on the wire.
    pub extension: [u8; 16],
    /// How many bytes of them.
    pub extension_bytes: u8,
    /// Arrival by the clock of the host, 0 if it was not asked for.
    pub wall_ns: u64,
    /// Receive-path positions and times, as far as they were asked for.
    pub trace: Trace,
}

impl Socket {
    /// Receive one message, or one notification, into `parts`.
    ///
    /// # Errors
    /// EAGAIN, ETIMEDOUT after `SO_RCVTIMEO`, EINTR, EIO without the node; EAGAIN too in a signal
    /// handler that interrupted a receive of its own thread.
    pub fn receive(
        &self,
        descriptor: i32,
        parts: Writable<'_>,
        flags: Flags,
    ) -> Result<Message, i32> {
        self.receive_with(descriptor, flags, |area, at, length| {
            parts.copy_out(area, at, length)
        })
    }

    /// The same, where `take` gets the place of the payload in the memory and its length, and returns
    /// how many bytes it copied. It runs under the lock of receivers, and is not called twice.
    ///
    /// # Errors
    /// As `receive`.
    #[allow(clippy::inline_always)] // its result would be written to memory, to be read at once
    #[inline(always)]
    pub fn receive_with(
        &self,
        descriptor: i32,
        flags: Flags,
        mut take: impl FnMut(&Area, usize, usize) -> usize,
    ) -> Result<Message, i32> {
        loop {
            let mut copied = 0;
            let copy = |at, length| copied = take(self.side.area(), at, length);
            match self.side.receive(flags.peek, copy) {
                Ok(received) => return Ok(self.finish(descriptor, &received, copied)),
                Err(Rejected::Empty) => {
                    // Taking the last message took POLLIN away too, most times.
                    if !(flags.polls && self.side.is_asleep()) {
                        self.quiet(descriptor)?;
                    }
                    if flags.dontwait {
                        return Err(libc::EAGAIN);
                    }
                    Self::wait_readable(descriptor)?;
                }
                Err(reason) => return Err(number_of(reason)),
            }
        }
    }

    #[allow(clippy::inline_always)] // its result would be written to memory, to be read at once
    #[inline(always)]
    fn finish(&self, descriptor: i32, received: &Received, bytes: usize) -> Message {
        if received.is_last {
            // In a handler that interrupted a receive: that one finds nothing and does the same.
            let _ = self.quiet(descriptor);
        }
        if received.ring {
            // What was received is there, whether its node is or not: the next call says that.
            let _ = Self::ring(descriptor);
        }
        Message {
            kind: received.kind,
            bytes,
            length: received.length,
            source: received.source,
            extension: received.extension,
            extension_bytes: received.extension_bytes,
            wall_ns: received.wall_ns,
            trace: received.trace,
        }
    }
}
