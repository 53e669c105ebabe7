//! The stream that a path writes to and reads from: a connected descriptor that never blocks.

use std::any::Any;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use urds_path::SocketAddress;

use crate::sys::sockets;

/// A connection as a path uses it. Any thread may make any call; none of them blocks.
///
/// No call is made with the plane's lock held, so a stream may be a Python object. The plane drops
/// a stream without its lock as well; a dropped stream is closed.
pub trait Stream: Send + Sync {
    /// A descriptor that epoll can watch.
    fn descriptor(&self) -> RawFd;

    /// Read once, into `first` and then into `second`; `Ok(0)` is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is here, else the error that ended the stream.
    fn read(&self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize>;

    /// Write once; return the bytes taken.
    ///
    /// # Errors
    /// `WouldBlock` if nothing fits, else the error that ended the stream.
    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// End our direction; what the peer sent before can still be read.
    ///
    /// # Errors
    /// As `shutdown(2)`.
    fn shutdown(&self) -> io::Result<()>;

    /// Be readable only once this many bytes are here, or the end is; a hint, 1 undoes it.
    fn expect(&self, bytes: usize);

    /// How many bytes a read would give, 0 once closed.
    fn waiting(&self) -> usize;

    /// How many of the bytes written the peer's TCP has not acknowledged; valid after a reset.
    ///
    /// # Errors
    /// As `ioctl(2)`; for a stream that does not know.
    fn unacknowledged(&self) -> io::Result<u64>;

    /// Return whether this many bytes are here, or as many as ever are at once.
    fn has_come(&self, bytes: usize) -> bool {
        self.waiting() >= bytes
    }

    /// Return whether the descriptor is a doorbell: readable when there is something to look at,
    /// never writable for room. Such a stream is read and written at each doorbell.
    fn rings(&self) -> bool {
        false
    }

    /// Consume what the descriptor reports, before looking at the stream.
    fn hear(&self) {}

    /// Have the descriptor report later bytes; false: there are some already, which it will not
    /// report. Called whenever no thread reads any more.
    fn rest(&self) -> bool {
        true
    }

    /// With a doorbell: stop it until `rest`, for a thread polls `has_news` all the time.
    fn wake(&self) {}

    /// With a doorbell: return whether there is something to read, or a protocol error to find, by
    /// reading memory.
    fn has_news(&self) -> bool {
        false
    }

    /// With a doorbell: return whether a write would be taken, without trying.
    fn has_room(&self) -> bool {
        false
    }

    /// Transport of the stream, as rds-info names it.
    fn carrier(&self) -> &'static str {
        "tcp"
    }

    /// Our end and the peer's, for tables; `None` if it has no addresses.
    fn addresses(&self) -> Option<(SocketAddress, SocketAddress)> {
        None
    }

    /// This object, for the caller of `detach`.
    fn as_any(&self) -> &dyn Any;
}

/// A TCP connection, or one end of a socket pair; it owns the descriptor.
pub struct TcpStream {
    descriptor: OwnedFd,
}

impl TcpStream {
    /// Take over a connected descriptor. It may be a blocking one: no call waits.
    pub fn new(descriptor: OwnedFd) -> Self {
        Self { descriptor }
    }

    /// Return the descriptor.
    pub fn into_descriptor(self) -> OwnedFd {
        self.descriptor
    }
}

impl Stream for TcpStream {
    fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    fn read(&self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        if second.is_empty() {
            return sockets::receive(self.descriptor(), &mut [IoSliceMut::new(first)]);
        }
        let pieces = &mut [IoSliceMut::new(first), IoSliceMut::new(second)];
        sockets::receive(self.descriptor(), pieces)
    }

    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        sockets::send(self.descriptor(), slices)
    }

    fn shutdown(&self) -> io::Result<()> {
        sockets::shutdown_write(self.descriptor())
    }

    fn expect(&self, bytes: usize) {
        // As `socket(7)`, SO_RCVLOWAT; the kernel caps it by its buffer.
        drop(sockets::expect(self.descriptor(), bytes));
    }

    fn waiting(&self) -> usize {
        sockets::waiting(self.descriptor()).unwrap_or(0)
    }

    fn unacknowledged(&self) -> io::Result<u64> {
        Ok(sockets::unacknowledged(self.descriptor())? as u64)
    }

    fn addresses(&self) -> Option<(SocketAddress, SocketAddress)> {
        sockets::addresses(self.descriptor())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
