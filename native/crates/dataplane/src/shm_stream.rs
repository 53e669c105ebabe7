//! A shm stream between two processes of one host: slots and rings in shared memory, and a control socket.
//!
//! The path above uses it like a TCP connection: bytes in order, until it ends. The protocol runs
//! over it unchanged, and a broken one is treated like a broken connection: published bytes lie in
//! memory that the surviving process has mapped, and are read to their end.
//!
//! The control socket is an `AF_UNIX` stream. It is what epoll watches: a byte on it is a doorbell,
//! its end means that the other process is gone, for any reason. A side that is awake needs no
//! doorbell, so two busy processes make no system call. See `bytes` for why no wake-up is lost.

use std::any::Any;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use urds_channel::bytes::{Place, Reader, Writer};
use urds_channel::slots::ChannelError;
use urds_channel::stream_memory::{StreamDirection, StreamMemory, file_bytes};
use urds_channel::sys::Errno;
use urds_channel::sys::doorbell::{self, Heard};
use urds_path::SocketAddress;

use crate::stream::Stream;
use crate::sys::descriptor::Descriptor;

/// Which end of a shm stream this is: it selects the ring to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Dials,
    Accepts,
}

/// Return the bytes of shared memory for rings of this size.
pub fn memory_bytes(ring_bytes: usize) -> usize {
    file_bytes(ring_bytes)
}

fn of_system(Errno(number): Errno) -> io::Error {
    io::Error::from_raw_os_error(number)
}

/// The writing side, and the state of the release of its idle memory.
#[derive(Default)]
struct Outward {
    writer: Writer,
    /// Position at the last call of `rest_memory`.
    looked_at: u64,
    given_back_at: u64,
}

/// A shm stream; any thread may make any call, and none waits for the other process.
pub struct ShmStream {
    memory: StreamMemory,
    line: Descriptor,
    side: Side,
    addresses: (SocketAddress, SocketAddress),
    inward: Mutex<Reader>,
    outward: Mutex<Outward>,
    /// Place of `inward`, to be read without its lock.
    place: AtomicU64,
    /// What `rest` waits for, in bytes.
    expected: AtomicUsize,
    /// The other side is gone; what it published can still be read.
    gone: AtomicBool,
    /// The other side wrote counts or lengths that break the protocol.
    has_protocol_error: AtomicBool,
    /// Our process: a child of a fork has copies of everything and touches nothing.
    process: u32,
}

impl ShmStream {
    /// Make our end from a connected control socket and its memory; the descriptors given stay the
    /// caller's. `addresses` are ours and the peer's.
    ///
    /// # Errors
    /// EINVAL for a size that no ring has, and for memory that is not sealed or not of that size; of
    /// the system.
    pub fn new(
        line: RawFd,
        memory: RawFd,
        ring_bytes: usize,
        side: Side,
        addresses: (SocketAddress, SocketAddress),
    ) -> io::Result<Self> {
        Ok(Self {
            memory: StreamMemory::map(memory, ring_bytes).map_err(of_system)?,
            line: Descriptor::new(doorbell::duplicate(line).map_err(of_system)?),
            side,
            addresses,
            inward: Mutex::default(),
            outward: Mutex::default(),
            place: AtomicU64::new(Reader::default().place().to_u64()),
            expected: AtomicUsize::new(1),
            gone: AtomicBool::new(false),
            has_protocol_error: AtomicBool::new(false),
            process: std::process::id(),
        })
    }

    pub(crate) fn inward_way(&self) -> StreamDirection<'_> {
        self.memory.direction(usize::from(self.side == Side::Dials))
    }

    fn outward_way(&self) -> StreamDirection<'_> {
        self.memory
            .direction(usize::from(self.side == Side::Accepts))
    }

    fn doorbell(&self) {
        if !doorbell::ring(self.line.get()) {
            self.gone.store(true, Ordering::Release);
        }
    }

    /// Check a result of the memory: a protocol error ends the stream.
    fn checked<T>(&self, result: Result<T, ChannelError>) -> io::Result<T> {
        result.map_err(|_| {
            self.has_protocol_error.store(true, Ordering::Relaxed);
            doorbell::end(self.line.get());
            io::Error::from_raw_os_error(libc::EPROTO)
        })
    }

    /// Return whether the other side broke the protocol in the shared memory.
    pub fn has_protocol_error(&self) -> bool {
        self.has_protocol_error.load(Ordering::Relaxed)
    }

    /// End both directions at once, as the end of the process would; in the child of a fork, do
    /// nothing.
    pub fn end(&self) {
        if self.process == std::process::id() {
            doorbell::end(self.line.get());
        }
    }

    /// Give the memory of our slots and ring back if nothing was written since the last call and all of
    /// it was read. The page of the words then leaves our mapping until its next use: an idle shm
    /// stream costs that page, once for both processes.
    pub fn rest_memory(&self) {
        let way = self.outward_way();
        let mut outward = self.outward.lock();
        let position = outward.writer.written();
        let was_idle = std::mem::replace(&mut outward.looked_at, position) == position;
        if was_idle
            && outward.given_back_at != position
            && self
                .checked(outward.writer.pending(&way))
                .is_ok_and(|bytes| bytes == 0)
        {
            outward.given_back_at = position;
            way.give_back();
            self.memory.rest_words();
        }
    }
}

impl Drop for ShmStream {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            self.line.forget(); // closed in the child already; the number may be reused
        }
    }
}

impl Stream for ShmStream {
    fn descriptor(&self) -> RawFd {
        self.line.get()
    }

    fn read(&self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        let way = self.inward_way();
        // The end before the bytes: what was published before it is read first.
        let has_ended = self.gone.load(Ordering::Acquire) || Reader::has_ended(&way);
        let read = {
            let mut reader = self.inward.lock();
            let read = reader.read(&way, first, second, &mut || self.doorbell());
            self.place.store(reader.place().to_u64(), Ordering::Relaxed);
            read
        };
        match self.checked(read)? {
            0 if has_ended => Ok(0),
            0 => Err(ErrorKind::WouldBlock.into()),
            bytes => Ok(bytes),
        }
    }

    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.gone.load(Ordering::Acquire) {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let way = self.outward_way();
        let mut outward = self.outward.lock();
        let writer = &mut outward.writer;
        loop {
            let written = writer.write(&way, slices, &mut || self.doorbell());
            let taken = self.checked(written)?;
            if taken > 0 {
                return Ok(taken);
            }
            if self.checked(writer.sleep(&way))? {
                return Err(ErrorKind::WouldBlock.into());
            }
        }
    }

    fn shutdown(&self) -> io::Result<()> {
        self.outward.lock().writer.end(&self.outward_way());
        self.doorbell();
        Ok(())
    }

    fn expect(&self, bytes: usize) {
        self.expected.store(bytes, Ordering::Relaxed);
    }

    fn waiting(&self) -> usize {
        let here = self.inward.lock().available(&self.inward_way());
        self.checked(here).unwrap_or(0)
    }

    fn has_come(&self, bytes: usize) -> bool {
        let come = self.inward.lock().has_come(&self.inward_way(), bytes);
        self.checked(come).unwrap_or(false)
    }

    fn unacknowledged(&self) -> io::Result<u64> {
        let pending = self.outward.lock().writer.pending(&self.outward_way());
        Ok(self.checked(pending)? as u64)
    }

    fn rings(&self) -> bool {
        true
    }

    fn hear(&self) {
        if doorbell::hear(self.line.get()) == Heard::End {
            self.gone.store(true, Ordering::Release);
        }
    }

    fn rest(&self) -> bool {
        let wanted = self.expected.load(Ordering::Relaxed);
        let way = self.inward_way();
        let mut reader = self.inward.lock();
        let asleep = reader.sleep(&way, wanted, &mut || self.doorbell());
        drop(reader);
        // After a protocol error some thread has to come and find it.
        self.checked(asleep).unwrap_or(false)
    }

    fn wake(&self) {
        Reader::awake(&self.inward_way());
    }

    fn has_news(&self) -> bool {
        Place::of(self.place.load(Ordering::Relaxed)).has_news(&self.inward_way())
    }

    fn has_room(&self) -> bool {
        let has_room = self.outward.lock().writer.has_room(&self.outward_way());
        has_room.unwrap_or(true) // a write after a protocol error finds it
    }

    fn carrier(&self) -> &'static str {
        "shm"
    }

    fn addresses(&self) -> Option<(SocketAddress, SocketAddress)> {
        Some(self.addresses)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
#[path = "shm_stream_tests.rs"]
mod tests;
