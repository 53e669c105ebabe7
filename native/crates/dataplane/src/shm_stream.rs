//! A shm stream between two processes of one host: two rings in shared memory and a control socket.
//!
//! The path above uses it like a TCP connection: bytes in order, until it ends. The protocol runs
//! over it unchanged, and a broken one is treated like a broken connection: published bytes lie in
//! memory that the surviving process has mapped, and are read to their end.
//!
//! The control socket is an `AF_UNIX` stream. It is what epoll watches: a byte on it is a doorbell,
//! its end means that the other process is gone, for any reason. A side that is awake needs no
//! doorbell, so two busy processes make no system call. See `ring` for why no wake-up is lost.

use std::any::Any;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use urds_channel::ring::{Control, ProtocolError, Reader, RingMemory, Writer};
use urds_channel::ring::{RING_BYTES_MAX, RING_BYTES_MIN};
use urds_channel::sys::Errno;
use urds_channel::sys::doorbell::{self, Heard};
use urds_channel::sys::shared_memory::{CONTROL_BYTES, MapError, SharedMemory};
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
    CONTROL_BYTES + 2 * ring_bytes
}

fn of_system(Errno(number): Errno) -> io::Error {
    io::Error::from_raw_os_error(number)
}

fn mapped(file: RawFd, length: usize) -> io::Result<SharedMemory> {
    SharedMemory::map(file, length).map_err(|reason| match reason {
        MapError::Unsealed => ErrorKind::InvalidData.into(),
        MapError::System(number) => of_system(number),
    })
}

/// One direction in the mapping.
struct Way<'a> {
    memory: &'a SharedMemory,
    direction: usize,
    ring_bytes: usize,
}

impl Way<'_> {
    fn first(&self) -> usize {
        CONTROL_BYTES + self.direction * self.ring_bytes
    }
}

impl RingMemory for Way<'_> {
    fn control(&self) -> &Control {
        self.memory.control(self.direction)
    }

    fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) {
        self.memory.copy_in(self.first() + at, bytes);
    }

    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        self.memory.copy_out(self.first() + at, bytes);
    }
}

/// The writing side, and the state of the release of its idle ring.
#[derive(Default)]
struct Outward {
    writer: Writer,
    /// Position at the last call of `rest_memory`.
    looked_at: u64,
    given_back_at: u64,
}

/// A shm stream; any thread may make any call, and none waits for the other process.
pub struct ShmStream {
    memory: SharedMemory,
    line: Descriptor,
    ring_bytes: usize,
    side: Side,
    addresses: (SocketAddress, SocketAddress),
    inward: Mutex<Reader>,
    outward: Mutex<Outward>,
    /// Position of `inward`, to be read without its lock.
    taken: AtomicU64,
    /// What `rest` waits for, in bytes.
    expected: AtomicUsize,
    /// The other side is gone; what it published can still be read.
    gone: AtomicBool,
    /// The other side wrote positions that break the protocol.
    has_protocol_error: AtomicBool,
    /// Our process: a child of a fork has copies of everything and touches nothing.
    process: u32,
}

impl ShmStream {
    /// Make our end from a connected control socket and its memory; the descriptors given stay the
    /// caller's. `addresses` are ours and the peer's.
    ///
    /// # Errors
    /// `InvalidInput` for a size that no ring has, `InvalidData` for memory that is not sealed or
    /// not of that size; of the system.
    pub fn new(
        line: RawFd,
        memory: RawFd,
        ring_bytes: usize,
        side: Side,
        addresses: (SocketAddress, SocketAddress),
    ) -> io::Result<Self> {
        let has_size = (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes);
        if !has_size || !ring_bytes.is_power_of_two() {
            return Err(ErrorKind::InvalidInput.into());
        }
        Ok(Self {
            memory: mapped(memory, memory_bytes(ring_bytes))?,
            line: Descriptor::new(doorbell::duplicate(line).map_err(of_system)?),
            ring_bytes,
            side,
            addresses,
            inward: Mutex::default(),
            outward: Mutex::default(),
            taken: AtomicU64::new(0),
            expected: AtomicUsize::new(1),
            gone: AtomicBool::new(false),
            has_protocol_error: AtomicBool::new(false),
            process: std::process::id(),
        })
    }

    fn way(&self, direction: usize) -> Way<'_> {
        Way {
            memory: &self.memory,
            direction,
            ring_bytes: self.ring_bytes,
        }
    }

    fn inward_way(&self) -> Way<'_> {
        self.way(usize::from(self.side == Side::Dials))
    }

    #[cfg(test)]
    pub(crate) fn inward_control(&self) -> &Control {
        self.memory.control(self.inward_way().direction)
    }

    fn outward_way(&self) -> Way<'_> {
        self.way(usize::from(self.side == Side::Accepts))
    }

    fn doorbell(&self) {
        if !doorbell::ring(self.line.get()) {
            self.gone.store(true, Ordering::Release);
        }
    }

    /// Check the result of a ring: a protocol error ends the stream.
    fn checked<T>(&self, result: Result<T, ProtocolError>) -> io::Result<T> {
        result.map_err(|ProtocolError| {
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

    /// Give the memory of our ring back if nothing was written since the last call and all of it
    /// was read. The page of the positions then leaves our mapping until its next use: an idle shm
    /// stream costs that page, once for both processes.
    pub fn rest_memory(&self) {
        let way = self.outward_way();
        let mut outward = self.outward.lock();
        let position = outward.writer.position();
        let was_idle = std::mem::replace(&mut outward.looked_at, position) == position;
        if was_idle && outward.given_back_at != position && outward.writer.pending(&way) == Ok(0) {
            outward.given_back_at = position;
            self.memory.give_back(way.first(), self.ring_bytes);
            self.memory.rest_control();
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
        let has_ended = self.gone.load(Ordering::Acquire) || Reader::has_ended(way.control());
        let read = {
            let mut reader = self.inward.lock();
            let read = reader.read(&way, first, second, &mut || self.doorbell());
            self.taken.store(reader.position(), Ordering::Relaxed);
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
        self.outward.lock().writer.end(self.outward_way().control());
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
        self.waiting() >= bytes.min(self.ring_bytes / 2)
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
        let asleep = self.inward.lock().sleep(&self.inward_way(), wanted);
        // After a protocol error some thread has to come and find it.
        self.checked(asleep).unwrap_or(false)
    }

    fn wake(&self) {
        Reader::wake(self.inward_way().control());
    }

    fn has_news(&self) -> bool {
        Reader::head(self.inward_way().control()) != self.taken.load(Ordering::Relaxed)
    }

    fn has_room(&self) -> bool {
        let pending = self.outward.lock().writer.pending(&self.outward_way());
        pending != Ok(self.ring_bytes) // a write after a protocol error finds it
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
