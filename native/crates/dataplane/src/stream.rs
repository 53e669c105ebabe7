//! What a path writes to and reads from: a connected descriptor that never blocks.

use std::any::Any;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use urds_path::SocketAddress;

use crate::sys::sockets;

/// A connection as a path sees it. Any thread may make any call; none of them blocks.
///
/// No call is made with the plane's lock held, so that a stream may be an object of Python. The
/// plane drops a stream without its lock as well; what is dropped is closed.
pub trait Stream: Send + Sync {
    /// A descriptor that epoll can watch.
    fn descriptor(&self) -> RawFd;

    /// Read once, into `first` and then into `second`; `Ok(0)` is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is here, else whatever ended the stream.
    fn read(&self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize>;

    /// Write once; return the octets taken.
    ///
    /// # Errors
    /// `WouldBlock` if nothing fits, else whatever ended the stream.
    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// End our direction; what the peer sent before can still be read.
    ///
    /// # Errors
    /// As `shutdown(2)`.
    fn shutdown(&self) -> io::Result<()>;

    /// Be readable only once so many octets are here, or the end is; a hint, 1 ends it.
    fn expect(&self, octets: usize);

    /// How many octets a read would give, 0 once closed.
    fn waiting(&self) -> usize;

    /// How many of the octets written the peer's TCP has not acknowledged; true after a reset.
    ///
    /// # Errors
    /// As `ioctl(2)`; for a stream that does not know.
    fn unacknowledged(&self) -> io::Result<u64>;

    /// Tell whether so many octets are here, or as many as ever are at once.
    fn has_come(&self, octets: usize) -> bool {
        self.waiting() >= octets
    }

    /// Tell whether the descriptor is a bell: readable for whatever there is to look at, never
    /// writable for room. Such a stream is heard, read and written to whenever it rings.
    fn rings(&self) -> bool {
        false
    }

    /// Take note of what the descriptor tells, before looking at the stream.
    fn hear(&self) {}

    /// Have the descriptor tell of what comes from now on; false: there is something already, of
    /// which it will not tell. Called whenever nobody reads any more.
    fn rest(&self) -> bool {
        true
    }

    /// Of a stream that rings: have it not ring until `rest`, for somebody looks at `has_news` all
    /// the time.
    fn wake(&self) {}

    /// Of a stream that rings: tell whether there is something to read, or a breach to find, by a
    /// look into memory.
    fn has_news(&self) -> bool {
        false
    }

    /// Of a stream that rings: tell whether a write would be taken, without trying.
    fn has_room(&self) -> bool {
        false
    }

    /// What carries it, as rds-info names transports.
    fn carrier(&self) -> &'static str {
        "tcp"
    }

    /// Our end and the peer's, for tables; `None` if it has no addresses.
    fn addresses(&self) -> Option<(SocketAddress, SocketAddress)> {
        None
    }

    /// The thing itself, for whoever gets it back from `detach`.
    fn as_any(&self) -> &dyn Any;
}

/// A TCP connection, or one end of a socket pair; it owns the descriptor.
pub struct TcpStream {
    descriptor: OwnedFd,
}

impl TcpStream {
    /// Take over a connected descriptor. It may be a blocking one: each call says not to wait.
    pub fn new(descriptor: OwnedFd) -> Self {
        Self { descriptor }
    }

    /// Give the descriptor back.
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

    fn expect(&self, octets: usize) {
        // As `socket(7)`, SO_RCVLOWAT; the kernel caps it by its buffer.
        drop(sockets::expect(self.descriptor(), octets));
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
