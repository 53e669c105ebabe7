//! How calls of a stream reach the engine, look for news, and leave to Python what they do not do.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::exceptions::PyTimeoutError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use urds_stream::{Refused, Region};
use urds_stream_link::{self as link, CUT, OVER, READABLE, SendContent, WRITABLE};
use urds_verbs::Engine as Machine;
use urds_verbs::memory::Extent;
use urds_verbs_shm::Channels;

use crate::deferred;
use crate::errors::os_error;
use crate::sys::{self, NewBytes};
use crate::verbs::engine::now_ns;
use crate::verbs::memory::Buffer;
use crate::verbs::stream::{Ram, Stream, region_of};
use crate::verbs::waiting::{Awaited, Woken};

/// Up to so many bytes are received by way of the stack.
const SHORT_BYTES: usize = 256;
/// Up to so many bytes of a send are copied at once.
const COPIED_BYTES: usize = 80;
/// So long a sender waits for room at the peer before its bytes are copied.
const ZERO_COPY_WAIT_NS: i64 = 5_000_000;
/// Looks for news between two readings of the clock.
const LOOKS: u32 = 16;
/// Looks before the interpreter is given away: some two microseconds.
const LOOKS_HELD: u32 = 64;

/// What looks have found.
enum Found {
    News,
    /// The adapter has something to do.
    Work,
    Nothing,
}

/// `MSG_WAITALL` of the system.
pub const WAITALL: i64 = 0x100;

/// What a send has done without waiting.
pub enum Sent {
    All(usize),
    Part(usize),
    /// Flags or bytes that are Python's to judge.
    Nothing,
}

/// The bytes of a call, as long as it lasts.
pub enum Given<'a> {
    Bytes(&'a [u8]),
    /// So many bytes, copied: that takes less than to keep an export.
    Short([u8; COPIED_BYTES], usize),
    Buffer(Arc<Buffer>),
}

impl<'a> Given<'a> {
    /// Raises `TypeError` without bytes, `OSError` unless they are in one piece.
    pub fn of(data: &'a Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = data.cast_exact::<PyBytes>() {
            return Ok(Self::Bytes(bytes.as_bytes()));
        }
        // Of other things than bytes the length may count more or less.
        if data.len().is_ok_and(|length| length <= COPIED_BYTES) {
            let mut room = [0; COPIED_BYTES];
            if let Some(length) = sys::copy_short(data, &mut room)? {
                return Ok(Self::Short(room, length));
            }
        }
        Ok(Self::Buffer(Arc::new(Buffer::of(data)?)))
    }

    /// Release what the engine does not have; no lock held.
    pub fn release(self, py: Python<'_>) {
        if let Self::Buffer(buffer) = self
            && let Some(buffer) = Arc::into_inner(buffer)
        {
            buffer.release(py);
        }
    }

    pub fn length(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Short(_, length) => *length,
            Self::Buffer(buffer) => buffer.length(),
        }
    }

    /// Return the bytes from `at` on.
    pub fn content(&self, at: usize) -> SendContent<'_> {
        match self {
            Self::Bytes(bytes) => SendContent::Bytes(&bytes[at..]),
            Self::Short(bytes, length) => SendContent::Bytes(&bytes[at..*length]),
            Self::Buffer(buffer) => SendContent::Memory(Extent {
                memory: &**buffer,
                at,
                length: buffer.length() - at,
            }),
        }
    }
}

impl Stream {
    /// Work with the engine, then have the device do what that left.
    pub fn through<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Machine, &mut Channels, u32) -> T,
    ) -> PyResult<T> {
        let number = self.qp.get().number();
        self.core.through_pass(py, |machine, channels, now| {
            let result = work(machine, channels, number);
            if machine.has_ready() {
                channels.flush(machine, now);
            }
            result
        })
    }

    /// Post what is due, and give the memory back that is free.
    pub fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.post(py)?;
        self.tend(py)
    }

    fn post(&self, py: Python<'_>) -> PyResult<()> {
        self.through(py, |machine, channels, number| {
            link::post_pending(machine, number, &self.link, channels);
        })
    }

    /// Give the ring the memory that it wants, and the source what is free.
    pub fn tend(&self, py: Python<'_>) -> PyResult<()> {
        let (wanted, released) = {
            let mut link = self.link.lock();
            (link.core.wanted_ring(), link.core.take_released())
        };
        if wanted.is_none() && released.is_none() {
            return self.core.tell_ready(py); // the word may have changed without the engine
        }
        self.tend_now(py, wanted, released)
    }

    #[cold]
    pub fn tend_now(
        &self,
        py: Python<'_>,
        wanted: Option<usize>,
        mut released: Option<Region<Ram>>,
    ) -> PyResult<()> {
        let source = self.source.lock().as_ref().map(|one| one.clone_ref(py));
        let Some(source) = source else {
            return Ok(());
        };
        if let Some(bytes) = wanted {
            match source.call_method1(py, intern!(py, "allocate"), (bytes,)) {
                Ok(memory) => {
                    let region = region_of(memory.bind(py))?;
                    let rkey = region.rkey;
                    self.memories.lock().insert(rkey, memory);
                    self.link.lock().core.grow(region);
                }
                Err(_) => self.link.lock().core.refuse_growth(),
            }
            self.post(py)?;
        }
        while let Some(region) = released
            .take()
            .or_else(|| self.link.lock().core.take_released())
        {
            let rkey = region.rkey;
            drop(region);
            deferred::drain(py);
            let memory = self.memories.lock().remove(&rkey);
            if let Some(memory) = memory {
                source.call_method1(py, intern!(py, "release"), (memory,))?;
            }
        }
        Ok(())
    }

    /// Look for news for a moment, without the interpreter, until a bit of the word is set.
    pub fn look(&self, py: Python<'_>, bit: u32) -> PyResult<bool> {
        let look_ns = self.look_ns.load(Relaxed);
        if look_ns <= 0 || self.core.shares_processor() {
            return Ok(false); // looking would only keep the peer from running
        }
        // An answer that is near comes before the interpreter could be given away and taken back.
        let mut found = self.search(bit, LOOKS_HELD, i64::MAX);
        let mut until_ns = 0;
        loop {
            match found {
                Some(Found::Work) => self.core.pass(py)?,
                Some(Found::Nothing) if until_ns > 0 => return Ok(false),
                Some(_) => (),
                None => return Ok(false), // the engine is broken: the next call says so
            }
            if self.attention.word() & bit != 0 {
                return Ok(true);
            }
            if until_ns == 0 {
                until_ns = self.core.now_ns() + look_ns;
            }
            found = py.detach(|| self.search(bit, u32::MAX, until_ns));
        }
    }

    /// Look for a bit of the word, so often or until a time; `None` if the engine is broken.
    fn search(&self, bit: u32, looks_max: u32, until_ns: i64) -> Option<Found> {
        for looks in 0..looks_max {
            let is_timed = looks % LOOKS == LOOKS - 1;
            if self.core.look_outside(is_timed)? {
                return Some(Found::Work);
            }
            if self.attention.word() & bit != 0 {
                return Some(Found::News);
            }
            if is_timed && self.core.now_ns() >= until_ns {
                break;
            }
            std::hint::spin_loop();
        }
        Some(Found::Nothing)
    }

    /// Wait for something to receive, `until_ns` being known from the first wait on; return false to
    /// leave it to Python. Raises `TimeoutError`.
    pub fn may_take(&self, py: Python<'_>, until_ns: &mut Option<i64>) -> PyResult<bool> {
        let wait_ns = self.wait_ns.load(Relaxed);
        if wait_ns == 0 || self.attention.word() & READABLE != 0 {
            return Ok(false);
        }
        if wait_ns > 0 && until_ns.is_none() {
            *until_ns = Some(now_ns().saturating_add(wait_ns));
        }
        match self.wait(py, READABLE, *until_ns)? {
            Woken::Late => Err(PyTimeoutError::new_err("timed out")),
            Woken::Ready => Ok(self.attention.word() & READABLE != 0),
            Woken::Ended => Ok(false),
        }
    }

    /// Wait for room after `sent` bytes; return false to leave the rest to Python.
    ///
    /// That copies what finds no place at the peer in time, and keeps timeouts.
    pub fn may_go_on(&self, py: Python<'_>, sent: usize) -> PyResult<bool> {
        let wait_ns = self.wait_ns.load(Relaxed);
        if wait_ns == 0 || self.attention.word() & WRITABLE != 0 {
            return Ok(wait_ns != 0 && self.look(py, WRITABLE)?);
        }
        if sent > 0 && wait_ns > 0 {
            return self.look(py, WRITABLE);
        }
        let rest_ns = if wait_ns < 0 { i64::MAX } else { wait_ns };
        let until_ns = now_ns().saturating_add(rest_ns.min(ZERO_COPY_WAIT_NS));
        let woken = self.wait(py, WRITABLE, Some(until_ns))?;
        Ok(woken == Woken::Ready && self.attention.word() & WRITABLE != 0)
    }

    /// Look for a moment, then sleep, until a bit is set or all is over.
    fn wait(&self, py: Python<'_>, bit: u32, until_ns: Option<i64>) -> PyResult<Woken> {
        if self.look(py, bit)? {
            return Ok(Woken::Ready);
        }
        let (attention, closed) = (Arc::clone(&self.attention), Arc::clone(&self.is_closed));
        let awaited = Awaited::Bits(attention, bit | OVER | CUT, closed);
        self.core.wait(py, &awaited, until_ns)
    }

    /// Send what can be sent, and look for room for a moment where that is not all.
    ///
    /// What a send is refused for Python finds when it goes on.
    pub fn send_now(&self, py: Python<'_>, data: &Bound<'_, PyAny>, flags: i64) -> PyResult<Sent> {
        let Some(given) = (flags == 0).then(|| Given::of(data).ok()).flatten() else {
            return Ok(Sent::Nothing);
        };
        let (length, mut sent, mut is_refused) = (given.length(), 0, false);
        loop {
            let taken = self.through(py, |machine, channels, number| {
                if self.link.lock().core.sending.is_gathering() && !channels.is_quiet(machine) {
                    channels.progress(machine, now_ns()); // the peer may have caught up
                }
                let content = given.content(sent);
                link::send(machine, number, &self.link, &content, true, channels)
            })?;
            match taken {
                Ok(taken) => sent += taken,
                Err(_) => is_refused = true,
            }
            if sent == length || is_refused || !self.may_go_on(py, sent)? {
                break;
            }
        }
        given.release(py);
        if sent < length || is_refused {
            return Ok(Sent::Part(sent));
        }
        self.tell(py)?;
        Ok(Sent::All(sent))
    }

    /// Write into buffers of the peer; return how many bytes were taken.
    pub fn write(
        &self,
        py: Python<'_>,
        given: Given<'_>,
        offset: u64,
    ) -> PyResult<Result<usize, Refused>> {
        let taken = self.through(py, |machine, channels, number| {
            let content = given.content(0);
            link::send_mapped(machine, number, &self.link, &content, offset, channels)
        })?;
        given.release(py);
        Ok(taken)
    }

    /// Return whether a receive of so many bytes at once may have the peer write them to their place.
    pub fn may_arrive_in_place(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        wanted: usize,
    ) -> PyResult<bool> {
        if !self.link.lock().core.receive_ring.may_expect(wanted) {
            return Ok(false);
        }
        let is_shared = self.leave_to(py, "is_allocated", (buffer,))?;
        is_shared.is_truthy()
    }

    /// Have Python do a call, whole or what is left of it.
    #[cold]
    pub fn leave_to<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        arguments: impl pyo3::call::PyCallArgs<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let transfer = self.transfer.lock().as_ref().map(|one| one.clone_ref(py));
        match transfer {
            Some(transfer) => transfer.into_bound(py).call_method1(name, arguments),
            None => Err(os_error(crate::errors::EBADF, "closed")),
        }
    }

    /// Tell those who show readiness that it may have changed.
    #[inline]
    pub fn tell(&self, py: Python<'_>) -> PyResult<()> {
        if self.has_watchers.load(Relaxed) {
            self.leave_to(py, "tell", ())?;
        }
        Ok(())
    }

    /// Return how many bytes may be taken now; looks at the channels once if there are none.
    pub fn available(&self, py: Python<'_>) -> PyResult<usize> {
        let available = || self.link.lock().core.receive_ring.available();
        let found = available();
        if found > 0 {
            return Ok(found);
        }
        self.core.through_pass(py, |machine, channels, now| {
            channels.progress(machine, now);
            self.core.progressed_ns.store(now.ns(), Relaxed);
        })?;
        Ok(available())
    }

    /// Hand bytes to `put`, up to `wanted` that are available; return how many.
    fn take(
        &self,
        py: Python<'_>,
        wanted: usize,
        peek: bool,
        mut put: impl FnMut(&Ram, usize, usize),
    ) -> PyResult<usize> {
        let (taken, may_post, has_memory_work) = {
            let mut link = self.link.lock();
            let taken = link.core.receive_into(wanted, peek, &mut put);
            link.update();
            let core = &link.core;
            (taken, core.may_post(), core.has_memory_work())
        };
        if may_post {
            self.post(py)?;
        }
        if has_memory_work {
            self.tend(py)?;
        }
        Ok(taken)
    }

    pub fn take_bytes<'py>(
        &self,
        py: Python<'py>,
        bytes_max: usize,
        peek: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let wanted = bytes_max.min(self.available(py)?);
        let mut done = 0;
        if wanted <= SHORT_BYTES {
            let mut room = [0; SHORT_BYTES];
            let taken = self.take(py, wanted, peek, |ram, at, length| {
                urds_stream::Memory::read(ram, at, &mut room[done..done + length]);
                done += length;
            })?;
            return sys::bytes_of(py, &room[..taken]);
        }
        let mut made = NewBytes::to_be_filled(py, wanted)?;
        let taken = self.take(py, wanted, peek, |ram, at, length| {
            let room = &mut made.bytes_mut()[done..done + length];
            urds_stream::Memory::read(ram, at, room);
            done += length;
        })?;
        if taken == wanted {
            return Ok(made.into_object().into_bound(py));
        }
        let short = sys::bytes_of(py, &made.bytes()[..taken])?;
        drop(made.into_object().into_bound(py));
        Ok(short)
    }

    /// Fill a buffer, or take what comes first unless `is_whole`, and wait for that; return how many
    /// bytes, and false if the rest is Python's. Raises `TimeoutError`.
    pub fn fill(
        &self,
        py: Python<'_>,
        buffer: &Buffer,
        wanted: usize,
        is_whole: bool,
    ) -> PyResult<(usize, bool)> {
        let (mut taken, mut until_ns) = (0, None);
        while !self.is_expecting.load(Relaxed) {
            let count = self.take_into(py, buffer, (taken, wanted), false)?;
            taken += count;
            if taken == wanted || (count > 0 && !is_whole) {
                return Ok((taken, true));
            }
            if count > 0 {
                continue;
            }
            match self.may_take(py, &mut until_ns) {
                Ok(true) => (),
                Ok(false) => break,
                Err(error) if taken > 0 && error.is_instance_of::<PyTimeoutError>(py) => {
                    return Ok((taken, true));
                }
                Err(error) => return Err(error),
            }
        }
        Ok((taken, false))
    }

    /// Take bytes in front of those that are expected, while looking finds some; return how many.
    pub fn take_before_expected(&self, py: Python<'_>, buffer: &Buffer) -> PyResult<usize> {
        let (wanted, mut taken) = (buffer.length(), 0);
        loop {
            let count = self.take_into(py, buffer, (taken, wanted), false)?;
            taken += count;
            let is_idle = count == 0 && self.attention.word() & READABLE == 0;
            if taken == wanted || (count == 0 && !(is_idle && self.look(py, READABLE)?)) {
                return Ok(taken);
            }
        }
    }

    /// Take bytes into a buffer from `at` to `end`; return how many.
    pub fn take_into(
        &self,
        py: Python<'_>,
        buffer: &Buffer,
        (at, end): (usize, usize),
        peek: bool,
    ) -> PyResult<usize> {
        let wanted = (end - at).min(self.available(py)?);
        if wanted == 0 {
            return Ok(0);
        }
        let mut done = at;
        self.take(py, wanted, peek, |ram, from, length| {
            buffer.copy_from(done, &ram.0, from, length);
            done += length;
        })
    }
}
