//! How a path reads its stream: one thread at a time, to its end, and what a read brings.
//!
//! Bytes are read without the lock into a buffer of the thread, or straight into a long payload;
//! then they are processed under it. A mailbox over its buffer does not stop reading, for
//! acknowledgements and maps come in the same stream; far over it, the path pauses. Whatever ends a
//! stream, everything that our TCP has acknowledged is processed first.

use std::cell::Cell;
use std::hint::black_box;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Once};

use urds_path::{Body, BodyReading, DownReason};

use crate::events::{Control, Event};
use crate::plane::Plane;
use crate::receive_side::StateSink;
use crate::state::{MailboxId, PathId, State};
use crate::stream::Stream;
use crate::stream_writer::Writing;

/// Read buffer of a thread; it stays in the processor's cache.
const BUFFER_BYTES: usize = 256 << 10;
/// From this length on, a payload is read alone and straight into its own memory; for a shorter one
/// a system call each costs more than the copy.
const DIRECT_BYTES: usize = 32 << 10;
/// The part of the buffer that is used meanwhile: a header and the start of the next message.
const HEAD_BYTES: usize = 9216;
/// A block that is freed once so that the allocator keeps others of its size.
const KEPT_BYTES: usize = 4 << 20;
const READS_PER_PASS: usize = 8;
/// Most bytes of one pass; then other paths are read.
const PASS_BYTES: usize = 4 << 20;
/// The same where other paths are ready: a peer that sends without end gets no more of a socket
/// than the others. A single read of a long payload may bring more.
const SHARED_PASS_BYTES: usize = 256 << 10;
/// The same for a stream whose last read was empty: a flood of pings, of maps or of messages
/// without a receiver must not delay what other streams bring.
const EMPTY_READ_BYTES: usize = 16384;
/// From so much of a payload on, one wake-up for the whole is worth a system call.
const EXPECT_BYTES: usize = 131_072;
const EXPECT_FROM_BYTES: usize = 262_144;
const EXPECT_MAX_BYTES: usize = 4 << 20;
const DRAIN_READS: usize = 1024;

thread_local! {
    static BUFFER: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// A path that the calling thread reads; no other thread does.
pub(crate) struct Reading {
    path: PathId,
    pub(crate) stream: Arc<dyn Stream>,
    body: Option<BodyReading>,
    buffer: Box<[u8]>,
    last_read_was_empty: bool,
    /// Long payloads arrive.
    long: bool,
    expected: usize,
}

/// How a read ended.
enum Outcome {
    /// There may be more.
    More,
    /// Nothing more is here now.
    Enough,
    /// The stream has ended, or must be closed.
    Over(DownReason, i32),
}

impl Drop for Reading {
    fn drop(&mut self) {
        BUFFER.set(Some(std::mem::take(&mut self.buffer)));
    }
}

impl Reading {
    fn new(path: PathId, stream: Arc<dyn Stream>) -> Self {
        let buffer = BUFFER.take().filter(|buffer| buffer.len() == BUFFER_BYTES);
        let buffer = buffer.unwrap_or_else(|| vec![0; BUFFER_BYTES].into_boxed_slice());
        Self {
            path,
            stream,
            body: None,
            buffer,
            last_read_was_empty: false,
            long: false,
            expected: 1,
        }
    }

    /// Read once; return the bytes of the body and of the buffer, and whether both were filled.
    fn read(&mut self) -> io::Result<(usize, usize, bool)> {
        let room = match self.long {
            true => HEAD_BYTES,
            false if self.last_read_was_empty => EMPTY_READ_BYTES,
            false => BUFFER_BYTES,
        };
        let buffer = &mut self.buffer[..room];
        let Some(body) = &mut self.body else {
            let bytes = self.stream.read(buffer, &mut [])?;
            return Ok((0, bytes, bytes == room));
        };
        let rest = body.rest_mut();
        let missing = rest.len();
        let bytes = self.stream.read(rest, buffer)?;
        let of_body = bytes.min(missing);
        body.filled += of_body;
        Ok((of_body, bytes - of_body, bytes == missing + room))
    }

    fn reads_directly(&self) -> bool {
        let body = self.body.as_ref();
        body.is_some_and(|body| body.total >= DIRECT_BYTES)
    }

    /// Allocate memory for a long payload. No lock held: it may be a Python object.
    fn allocate(&mut self, plane: &Plane) {
        if let Some(body) = &mut self.body
            && body.memory.is_none()
        {
            let memory = plane.allocate_body(body.total);
            if body.carry_over(memory).is_err() {
                let zeroed = Body::zeroed(body.total);
                drop(body.carry_over(zeroed));
            }
        }
    }

    /// Return whether to read on: not while most of a long payload is still on its way.
    fn has_come(&self) -> bool {
        self.expected == 1 || self.stream.has_come(self.expected)
    }
}

/// Have the allocator keep freed memory of payloads and of queues that grow and shrink.
///
/// glibc takes the length of a freed large block as the threshold: from then on blocks of that
/// length come from its heap, and twice as much may lie free there before it shrinks. Before that,
/// the memory of each batch of messages goes back to the kernel page by page: a fifth of a sender's
/// time. Source: mallopt(3), `M_MMAP_THRESHOLD`.
pub(crate) fn keep_freed() {
    static DONE: Once = Once::new();
    DONE.call_once(|| drop(black_box(Vec::<u8>::with_capacity(KEPT_BYTES))));
}

impl Plane {
    /// Read what is there, a bounded number of times; return whether anything arrived.
    ///
    /// No lock held. Does nothing if another thread reads the path, or a full mailbox pauses it.
    pub fn read(&self, path: PathId) -> bool {
        self.read_within(path, PASS_BYTES, false)
    }

    /// The same for a thread that polls the stream, which rings no doorbell meanwhile.
    pub(crate) fn read_polled(&self, path: PathId) -> bool {
        self.read_within(path, PASS_BYTES, true)
    }

    /// The same, with a smaller bound if `others` are ready as well.
    pub(crate) fn read_beside(&self, path: PathId, others: bool) -> bool {
        let bytes_max = if others {
            SHARED_PASS_BYTES
        } else {
            PASS_BYTES
        };
        self.read_within(path, bytes_max, false)
    }

    fn read_within(&self, path: PathId, bytes_max: usize, polled: bool) -> bool {
        let Some(mut reading) = self.lock().begin_read(path) else {
            return false;
        };
        let (mut reads, mut bytes) = (0, 0);
        let mut over = None;
        loop {
            let (taken, outcome) = self.read_once(&mut reading);
            bytes += taken;
            reads += 1;
            match outcome {
                Outcome::Over(reason, errno) => {
                    over = Some((reason, errno));
                    break;
                }
                Outcome::More
                    if reads < READS_PER_PASS
                        && bytes < bytes_max
                        && !reading.last_read_was_empty
                        && reading.has_come() => {}
                _ => break,
            }
        }
        match over {
            Some((reason, errno)) => self.end_what_we_read(&reading, reason, errno),
            None => self.end_read(reading, polled),
        }
        bytes > 0
    }

    /// Process everything that can be read without waiting. Keeps `reading` set.
    pub(crate) fn drain_stream(&self, reading: &mut Reading) {
        for _ in 0..DRAIN_READS {
            match self.read_once(reading) {
                (0, _) | (_, Outcome::Over(..)) => return,
                _ => {}
            }
        }
    }

    /// Read once and process the bytes; return how many, and how the read ended.
    fn read_once(&self, reading: &mut Reading) -> (usize, Outcome) {
        reading.allocate(self);
        let read = loop {
            match reading.read() {
                Err(failure) if failure.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        match read {
            Ok((0, 0, _)) => (0, Outcome::Over(DownReason::EndOfStream, 0)),
            Ok((of_body, of_buffer, full)) => {
                let outcome = self.lock().take_in(reading, of_buffer, full);
                (of_body + of_buffer, outcome)
            }
            Err(failure) if failure.kind() == ErrorKind::WouldBlock => (0, Outcome::Enough),
            Err(failure) => {
                // Python code raised in the read: how many bytes it took is not known.
                let errno = failure.raw_os_error().unwrap_or(libc::EINTR);
                (0, Outcome::Over(DownReason::Error, errno))
            }
        }
    }

    /// End a pass: update the watch, allow other readers, and write what the read calls for. A stream
    /// that is not `polled` reports later bytes.
    fn end_read(&self, mut reading: Reading, polled: bool) {
        let expected = reading.expected;
        let mut state = self.lock();
        if state.expects_anew(reading.path, expected) {
            // Done by the reading thread: it must not outlive what the next reader finds.
            drop(state);
            reading.stream.expect(expected);
            state = self.lock();
        }
        let writing = state.release_reading(&mut reading);
        drop(state);
        if !polled {
            self.let_rest(reading.path, &*reading.stream);
        }
        if let Some(writing) = writing {
            self.finish_write(writing);
        }
    }

    /// Ask the stream to report later bytes, or look again at once; called after `reading` was
    /// cleared, for reports that came meanwhile were not acted on. No lock held.
    pub(crate) fn let_rest(&self, path: PathId, stream: &dyn Stream) {
        if stream.rest() {
            return;
        }
        let mut state = self.lock();
        if let Some(record) = state.paths.get_mut(path)
            && record.stream.is_some()
        {
            record.unheard = true; // of another stream than this: one empty read
            state.update_watch(path);
        }
    }

    /// End the stream that this thread reads: report it, close it, keep the queue.
    fn end_what_we_read(&self, reading: &Reading, reason: DownReason, errno: i32) {
        // True even after a reset; asked without the lock, and no other thread can end the stream.
        let acknowledged = self.acknowledged_bytes(reading.path, &*reading.stream);
        let mut state = self.lock();
        let dead = state.end_stream(reading.path, reason, errno, acknowledged);
        if let Some(path) = state.paths.get_mut(reading.path) {
            path.reading = false;
        }
        drop(state);
        drop(dead);
    }

    /// Free messages that, as our TCP reports, the peer's TCP has. No lock held.
    pub fn ask_stream(&self, path: PathId) {
        let Some((stream, attachment)) = self.lock().stream_of(path) else {
            return;
        };
        let Some(acknowledged) = self.acknowledged_bytes(path, &*stream) else {
            return;
        };
        self.lock()
            .note_acknowledged(path, attachment, acknowledged);
    }

    /// Return how many bytes of its path a stream reports as acknowledged. No lock held.
    ///
    /// They are counted before it is asked: what another thread writes meanwhile may be lost yet.
    pub(crate) fn acknowledged_bytes(&self, path: PathId, stream: &dyn Stream) -> Option<u64> {
        let written = self.lock().paths.get(path)?.core.bytes_written;
        let unacknowledged = stream.unacknowledged().ok()?;
        Some(written.saturating_sub(unacknowledged))
    }
}

impl State {
    /// Become the reader of a path; `None` if another thread is, or the path is not to be read.
    pub(crate) fn begin_read(&mut self, id: PathId) -> Option<Reading> {
        let path = self.paths.get_mut(id)?;
        if path.stream.is_none() || path.reading || path.paused {
            self.driven |= path.reading;
            return None;
        }
        self.take_stream(id)
    }

    /// The same also for a path that pauses; the caller saw that no thread reads it.
    pub(crate) fn take_stream(&mut self, id: PathId) -> Option<Reading> {
        let path = self.paths.get_mut(id)?;
        if std::mem::take(&mut path.unheard) {
            self.update_watch(id);
        }
        let path = self.paths.get_mut(id)?;
        let stream = Arc::clone(path.stream.as_ref()?);
        if stream.rings() {
            self.recent.note(id);
        }
        let mut reading = Reading::new(id, stream);
        path.reading = true;
        reading.body = path.core.receiver.take_body();
        reading.last_read_was_empty = path.last_read_was_empty;
        reading.long = path.long;
        reading.expected = path.expected_bytes;
        Some(reading)
    }

    /// Give back an unfinished long payload and allow other readers; return the answer to write.
    fn release_reading(&mut self, reading: &mut Reading) -> Option<Writing> {
        let id = reading.path;
        if let Some(body) = reading.body.take() {
            let _ = self.receive_bytes(id, Some(body), &[]); // incomplete, so not checked
        }
        let path = self.paths.get_mut(id)?;
        path.reading = false;
        if path.paused {
            self.update_watch(id);
        }
        if self.paths.get(id)?.core.wants_to_write() {
            self.begin_write(id, false)
        } else {
            None
        }
    }

    /// Note how many bytes the stream is to wait for; return whether the number has changed.
    fn expects_anew(&mut self, id: PathId, expected: usize) -> bool {
        let Some(path) = self.paths.get_mut(id) else {
            return false;
        };
        std::mem::replace(&mut path.expected_bytes, expected) != expected
    }

    /// Process what was read: a part of a body, and bytes of the buffer behind it.
    fn take_in(&mut self, reading: &mut Reading, bytes: usize, full: bool) -> Outcome {
        let id = reading.path;
        let had_direct = reading.reads_directly();
        let data = &reading.buffer[..bytes];
        let received = self.receive_bytes(id, reading.body.take(), data);
        self.finish_read(id);
        if let Err(reason) = received {
            self.count_protocol_error(reason);
            return Outcome::Over(reason, 0);
        }
        let Some(path) = self.paths.get_mut(id) else {
            return Outcome::Enough;
        };
        let missing = path.core.receiver.remaining().1;
        let is_long = missing >= EXPECT_FROM_BYTES || reading.expected > 1;
        reading.expected = if missing >= EXPECT_BYTES && is_long {
            missing.min(EXPECT_MAX_BYTES)
        } else {
            1
        };
        reading.body = path.core.receiver.take_body();
        reading.last_read_was_empty = path.last_read_was_empty;
        path.long = had_direct || reading.reads_directly();
        reading.long = path.long;
        if full { Outcome::More } else { Outcome::Enough }
    }

    fn receive_bytes(
        &mut self,
        id: PathId,
        body: Option<BodyReading>,
        data: &[u8],
    ) -> Result<(), DownReason> {
        let Some(path) = self.paths.get_mut(id) else {
            return Ok(());
        };
        let Some(host) = self.hosts.get(path.host) else {
            return Ok(());
        };
        let now_ns = self.clock.now_ns();
        let numbers = self.attached.numbers.as_ref();
        let journal = numbers.and_then(|numbers| Some((&numbers.journal, path.entry?)));
        let mut sink = StateSink::new(
            &host.inboxes,
            &mut self.mailboxes,
            path.peer,
            now_ns,
            &mut self.arrivals,
            journal,
        );
        if let Some(body) = body {
            let core = &mut path.core;
            let resumed = core.resume_body(body, now_ns, &mut sink, &mut self.counters);
            // A wrong acknowledgement does not affect framing: messages read with it are delivered,
            // and the error is still reported then.
            let goes_on = matches!(resumed, Ok(()) | Err(DownReason::BadAcknowledgement));
            if data.is_empty() || !goes_on {
                return resumed;
            }
        }
        if data.is_empty() {
            return Ok(());
        }
        path.core
            .receive(data, now_ns, &mut sink, &mut self.counters)
    }

    /// Return a path's stream, to call it without the lock.
    pub(crate) fn stream_of(&self, id: PathId) -> Option<(Arc<dyn Stream>, u64)> {
        let path = self.paths.get(id)?;
        Some((Arc::clone(path.stream.as_ref()?), path.attachment))
    }

    /// Free messages whose bytes the peer's TCP has.
    fn note_acknowledged(&mut self, id: PathId, attachment: u64, bytes: u64) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        if path.stream.is_none() || path.attachment != attachment {
            return;
        }
        path.core.handle_stream_acknowledged(bytes);
        self.finish_freed(id);
    }
}

// -- the results of a read
//
// The results of a read, reported to receivers, senders and the control plane.

impl State {
    /// Report the results of a read: arrivals, room, control messages, maps.
    pub(crate) fn finish_read(&mut self, id: PathId) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let has_freed = path.core.sender.has_freed();
        let looks =
            has_freed || path.full || !path.room_wanted.is_empty() || !path.dependents.is_empty();
        path.last_read_was_empty =
            self.arrivals.is_empty() && !has_freed && path.core.receiver.remaining().1 == 0;
        if !self.arrivals.is_empty() {
            self.finish_arrivals(id);
        }
        if looks {
            self.finish_freed(id);
        }
        self.finish_rare(id);
        self.note_numbers(id);
        let Some(path) = self.paths.get(id) else {
            return;
        };
        if let Some(ack_pending_ns) = path.core.poll_timeout() {
            self.note_ack_pending(id, ack_pending_ns);
        }
    }

    fn finish_arrivals(&mut self, id: PathId) {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        for &(mailbox, messages) in &arrivals {
            self.note_arrival(mailbox, messages);
            let may_be = self.mailboxes.get(mailbox);
            if may_be.is_some_and(|one| one.inbox.may_be_too_full())
                && self.is_over_hard_bound(mailbox)
            {
                self.pause(id, mailbox);
            }
        }
        arrivals.clear();
        self.arrivals = arrivals;
    }

    /// Report a first frame, control messages, a restart of the peer, its map.
    fn finish_rare(&mut self, id: PathId) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let receiver = &mut path.core.receiver;
        if receiver.frames > 0 && !path.first_frame_told {
            path.first_frame_told = true;
            let attachment = path.attachment;
            let generation = receiver.received().map_generation;
            self.emit(Event::FirstFrame {
                path: id,
                attachment,
                generation,
            });
        }
        self.finish_controls(id);
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let receiver = &mut path.core.receiver;
        let peer_map = receiver.peer_map.take();
        if std::mem::take(&mut receiver.restarted) {
            self.counters.peer_restarted += 1;
            self.emit(Event::PeerRestarted { path: id });
        }
        if let Some(bytes) = peer_map {
            self.note_peer_map(id, &bytes);
        }
    }

    /// Report pings, pongs and probes.
    fn finish_controls(&mut self, id: PathId) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let attachment = path.attachment;
        for message in std::mem::take(&mut path.core.receiver.controls) {
            self.emit(Event::Control(Control {
                path: id,
                sequence: message.sequence,
                acknowledgement: message.acknowledgement,
                source_port: message.source_port,
                target_port: message.target_port,
                extension: message.extension,
                payload: message.payload,
                attachment,
            }));
        }
    }

    /// Pause the path until the mailbox is at half of its hard bound.
    fn pause(&mut self, id: PathId, mailbox: MailboxId) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let Some(record) = self.mailboxes.get_mut(mailbox) else {
            return;
        };
        let is_known = record.pausing.contains(&id);
        if path.paused && is_known {
            return;
        }
        path.paused = true;
        if !is_known {
            record.pausing.push(id);
        }
        record.special = true;
        self.counters.recv_paused += 1;
    }

    /// Count the protocol error for which a peer's stream is closed.
    pub(crate) fn count_protocol_error(&mut self, reason: DownReason) {
        match reason {
            DownReason::TooLong => self.counters.recv_drop_too_long += 1,
            DownReason::BadMap => self.counters.recv_drop_bad_map += 1,
            DownReason::BadChecksum => self.counters.recv_drop_bad_checksum += 1,
            DownReason::BadAcknowledgement => self.counters.recv_drop_bad_ack += 1,
            DownReason::EndOfStream | DownReason::Error => {}
        }
    }
}
