//! A stream between two processes of one host: two rings in shared memory and a line for the bell.
//!
//! To the path above it is what a TCP connection is: octets in order, until it ends. The protocol
//! runs over it unchanged, so what holds over a connection that breaks holds over a lane that does:
//! what was published lies in memory that the survivor has mapped, and is read to its end.
//!
//! The line is an `AF_UNIX` stream. It is what epoll watches: an octet on it says "look", its end
//! says that the other process is gone, however it went. Nobody rings for who is awake, so a lane
//! between two busy processes costs no system call. See `ring` for why no wake-up is lost.

use std::any::Any;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use urds_path::SocketAddress;

use crate::ring::{Breach, Control, Reader, RingMemory, Writer};
use crate::ring::{RING_BYTES_MAX, RING_BYTES_MIN};
use crate::stream::Stream;
use crate::sys::descriptor::Descriptor;
use crate::sys::line::{self, Heard};
use crate::sys::shared_memory::{CONTROL_BYTES, SharedMemory};

/// Which end of a lane we are: it decides which ring is ours to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Dials,
    Accepts,
}

/// Return the octets of the memory of a lane whose rings have so many each.
pub fn memory_bytes(ring_bytes: usize) -> usize {
    CONTROL_BYTES + 2 * ring_bytes
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

    fn copy_in(&self, at: usize, octets: &[u8]) {
        self.memory.copy_in(self.first() + at, octets);
    }

    fn copy_out(&self, at: usize, octets: &mut [u8]) {
        self.memory.copy_out(self.first() + at, octets);
    }
}

/// The side that writes, and when its idle ring was given back.
#[derive(Default)]
struct Outward {
    writer: Writer,
    /// Position at the last look of `rest_memory`.
    looked_at: u64,
    given_back_at: u64,
}

/// A lane; any thread may make any call, and none waits for the other process.
pub struct LaneStream {
    memory: SharedMemory,
    line: Descriptor,
    ring_bytes: usize,
    side: Side,
    addresses: (SocketAddress, SocketAddress),
    inward: Mutex<Reader>,
    outward: Mutex<Outward>,
    /// Position of `inward`, for a look without its lock.
    taken: AtomicU64,
    /// What `rest` waits for, in octets.
    expected: AtomicUsize,
    /// The other side is gone; what it published can still be read.
    gone: AtomicBool,
    /// The other side wrote what no honest one does.
    breached: AtomicBool,
    /// Our process: a child of a fork has copies of it all and touches nothing.
    process: u32,
}

impl LaneStream {
    /// Make our end of a lane of a connected line and its memory; the descriptors given stay the
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
            memory: SharedMemory::map(memory, memory_bytes(ring_bytes))?,
            line: line::duplicate(line)?,
            ring_bytes,
            side,
            addresses,
            inward: Mutex::default(),
            outward: Mutex::default(),
            taken: AtomicU64::new(0),
            expected: AtomicUsize::new(1),
            gone: AtomicBool::new(false),
            breached: AtomicBool::new(false),
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

    fn bell(&self) {
        if !line::ring(&self.line) {
            self.gone.store(true, Ordering::Release);
        }
    }

    /// Judge what a ring gave: after a breach the lane is at its end.
    fn judged<T>(&self, result: Result<T, Breach>) -> io::Result<T> {
        result.map_err(|Breach| {
            self.breached.store(true, Ordering::Relaxed);
            line::end(&self.line);
            io::Error::from_raw_os_error(libc::EPROTO)
        })
    }

    /// Tell whether the other side wrote into the shared memory what no honest one does.
    pub fn is_breached(&self) -> bool {
        self.breached.load(Ordering::Relaxed)
    }

    /// End both directions at once, as the end of the process would; in the child of a fork,
    /// nothing.
    pub fn end(&self) {
        if self.process == std::process::id() {
            line::end(&self.line);
        }
    }

    /// Give the memory of our ring back if nothing was written since the last call and all of it
    /// was taken. The page of the positions then leaves our mapping, until somebody looks at it: an
    /// idle lane costs that page, once for both processes.
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

impl Drop for LaneStream {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            self.line.forget(); // closed in the child already; the number may mean another
        }
    }
}

impl Stream for LaneStream {
    fn descriptor(&self) -> RawFd {
        self.line.get()
    }

    fn read(&self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        let way = self.inward_way();
        // The end before the octets: what was published before it is read first.
        let has_ended = self.gone.load(Ordering::Acquire) || Reader::has_ended(way.control());
        let read = {
            let mut reader = self.inward.lock();
            let read = reader.read(&way, first, second, &mut || self.bell());
            self.taken.store(reader.position(), Ordering::Relaxed);
            read
        };
        match self.judged(read)? {
            0 if has_ended => Ok(0),
            0 => Err(ErrorKind::WouldBlock.into()),
            octets => Ok(octets),
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
            let written = writer.write(&way, slices, &mut || self.bell());
            let taken = self.judged(written)?;
            if taken > 0 {
                return Ok(taken);
            }
            if self.judged(writer.sleep(&way))? {
                return Err(ErrorKind::WouldBlock.into());
            }
        }
    }

    fn shutdown(&self) -> io::Result<()> {
        self.outward.lock().writer.end(self.outward_way().control());
        self.bell();
        Ok(())
    }

    fn expect(&self, octets: usize) {
        self.expected.store(octets, Ordering::Relaxed);
    }

    fn waiting(&self) -> usize {
        let here = self.inward.lock().available(&self.inward_way());
        self.judged(here).unwrap_or(0)
    }

    fn has_come(&self, octets: usize) -> bool {
        self.waiting() >= octets.min(self.ring_bytes / 2)
    }

    fn unacknowledged(&self) -> io::Result<u64> {
        let pending = self.outward.lock().writer.pending(&self.outward_way());
        Ok(self.judged(pending)? as u64)
    }

    fn rings(&self) -> bool {
        true
    }

    fn hear(&self) {
        if line::hear(&self.line) == Heard::End {
            self.gone.store(true, Ordering::Release);
        }
    }

    fn rest(&self) -> bool {
        let wanted = self.expected.load(Ordering::Relaxed);
        let asleep = self.inward.lock().sleep(&self.inward_way(), wanted);
        // After a breach somebody has to come and find it.
        self.judged(asleep).unwrap_or(false)
    }

    fn wake(&self) {
        Reader::wake(self.inward_way().control());
    }

    fn has_news(&self) -> bool {
        Reader::head(self.inward_way().control()) != self.taken.load(Ordering::Relaxed)
    }

    fn has_room(&self) -> bool {
        let pending = self.outward.lock().writer.pending(&self.outward_way());
        pending != Ok(self.ring_bytes) // who writes after a breach finds it
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
#[path = "lane_tests.rs"]
mod tests;
