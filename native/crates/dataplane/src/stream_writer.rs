//! How a path is written to: by one thread at a time, without the lock, until nothing is left.
//!
//! A thread that finds `writing` set leaves; the writer looks again before it clears it, in the
//! same critical section, so nothing stays. A write error does not end the stream, for what the
//! peer sent before is acknowledged to it already and must be read first.

use std::io::{self, ErrorKind, IoSlice};
use std::sync::Arc;

use urds_path::{AckMode, WriteBuffer};

use crate::background::ACK_POLL_NS;
use crate::path::StreamPath;
use crate::plane::Plane;
use crate::rules::{self, Rule};
use crate::state::{PathId, State};
use crate::stream::Stream;

/// Slices of one write; what does not fit goes with the next one.
const SLICES_MAX: usize = 256;

/// Bytes on their way to a stream, owned by the only thread that writes there.
///
/// Pass it to [`Plane::finish_write`]: until then no other thread writes to this path.
#[must_use]
pub struct Writing {
    path: PathId,
    attachment: u64,
    stream: Arc<dyn Stream>,
    write_buffer: WriteBuffer,
    /// A single message: its write says nothing about a burst.
    alone: bool,
    /// Streams replaced meanwhile; closed when this is dropped, without the lock.
    dead: Vec<Arc<dyn Stream>>,
}

impl Writing {
    /// Bytes to be written; many are better written without the interpreter's lock.
    pub fn bytes(&self) -> usize {
        self.write_buffer.len()
    }

    /// Write once; return the bytes taken and why the stream takes no more. No lock held.
    fn write(&self) -> (usize, Option<io::Error>) {
        loop {
            let written = if let Some(bytes) = self.write_buffer.single() {
                self.stream.write(&[IoSlice::new(bytes)])
            } else {
                let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                let used = self.write_buffer.fill(0, &mut slices);
                self.stream.write(&slices[..used])
            };
            match written {
                Ok(taken) => return (taken, None),
                Err(failure) if failure.kind() == ErrorKind::Interrupted => {}
                Err(failure) => {
                    if failure.kind() != ErrorKind::WouldBlock {
                        // Whatever failed, the stream ends and is read to its end.
                        drop(self.stream.shutdown());
                    }
                    return (0, Some(failure));
                }
            }
        }
    }
}

impl Plane {
    /// Write until nothing is left or the stream takes no more; never blocks. No lock held.
    pub fn flush(&self, path: PathId) {
        let writing = self.lock().begin_write(path, false);
        if let Some(writing) = writing {
            self.finish_write(writing);
        }
    }

    /// Write, as the writer of the path, until nothing is left or the stream takes no more.
    ///
    /// Returns whether the path is at its limit of messages.
    pub fn finish_write(&self, mut writing: Writing) -> bool {
        loop {
            let (taken, failure) = writing.write();
            let mut state = self.lock();
            if !state.advance_write(&mut writing, taken, failure.as_ref()) {
                return state.paths.get(writing.path).is_some_and(|path| path.full);
            }
        }
    }
}

impl State {
    /// Become the writer of a path; `None` if another thread is or there is nothing to do.
    pub(crate) fn begin_write(&mut self, id: PathId, alone: bool) -> Option<Writing> {
        if self.is_restoring() {
            return None;
        }
        let path = self.paths.get_mut(id)?;
        if path.writing || path.blocked || path.broken || path.stream.is_none() {
            path.left_to_writer = path.writing;
            return None;
        }
        path.writing = true;
        let stream = Arc::clone(path.stream.as_ref()?);
        let attachment = path.attachment;
        let write_buffer = self.next_write(id, alone, true)?;
        Some(Writing {
            path: id,
            attachment,
            stream,
            write_buffer,
            alone,
            dead: Vec::new(),
        })
    }

    /// Write a single message: no clock is read, no budget spent, nothing is left over.
    pub(crate) fn begin_alone(&mut self, id: PathId) -> Option<Writing> {
        self.dirty.remove(id);
        let path = self.paths.get_mut(id)?;
        path.is_batching = false;
        path.core.sender.lone = true;
        let writing = self.begin_write(id, true);
        self.paths.get_mut(id)?.core.sender.lone = false;
        writing
    }

    /// Return what to write next; with nothing left, stop writing.
    ///
    /// One critical section for the last look and for clearing `writing`: a message queued in
    /// between would find a writer that has looked already.
    fn next_write(&mut self, id: PathId, alone: bool, is_first: bool) -> Option<WriteBuffer> {
        let path = self.paths.get_mut(id)?;
        path.core.borrow_memory(&mut self.spare_buffer);
        if path.stream.is_some()
            && (is_first || rules::holds(Rule::WriterLooksAgain))
            && let Some(host) = self.hosts.get(path.host)
            && let Some(write_buffer) = path.core.poll_transmit(&host.congested, &mut self.counters)
        {
            if let (Some(numbers), Some(entry)) = (&self.attached.numbers, path.entry) {
                let next = path.core.sender.sequence_next;
                numbers.note_next(entry, next);
            }
            return Some(write_buffer);
        }
        self.written(id, alone);
        None
    }

    /// Count what the stream took; return whether there is more to write.
    fn advance_write(
        &mut self,
        writing: &mut Writing,
        taken: usize,
        failure: Option<&io::Error>,
    ) -> bool {
        let id = writing.path;
        let Some(path) = self.paths.get_mut(id) else {
            return false;
        };
        writing.alone &= taken == writing.write_buffer.len() && !path.left_to_writer;
        path.core
            .transmitted(std::mem::take(&mut writing.write_buffer), taken);
        match &path.stream {
            Some(_) if path.attachment == writing.attachment => {
                if let Some(failure) = failure {
                    let is_full = failure.kind() == ErrorKind::WouldBlock;
                    // Room may have come, and been reported, before `blocked` is set.
                    if !(is_full && writing.stream.has_room()) {
                        path.blocked = is_full;
                        path.broken = !is_full;
                        self.counters.tcp_sndbuf_full += u64::from(is_full);
                        self.written(id, false);
                        self.update_watch(id);
                        return false;
                    }
                }
            }
            Some(stream) => {
                let stream = Arc::clone(stream);
                writing.attachment = path.attachment;
                writing
                    .dead
                    .push(std::mem::replace(&mut writing.stream, stream));
            }
            None => {}
        }
        let Some(write_buffer) = self.next_write(id, writing.alone, false) else {
            return false;
        };
        writing.write_buffer = write_buffer;
        true
    }

    /// Update the path after a write: the batch is gone, acknowledgements may come.
    fn written(&mut self, id: PathId, alone: bool) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        path.core.return_memory(&mut self.spare_buffer);
        path.writing = false;
        path.left_to_writer = false;
        path.batch_since_ns = None;
        path.is_batching = false; // also without a stream: the next send must request one
        if path.core.poll_timeout().is_none() {
            self.ack_deadlines.remove(id); // the pending acknowledgement has left
        }
        if alone {
            return;
        }
        path.rest_if_idle();
        path.idle_since_ns = self.clock.now_ns();
        let sender = &path.core.sender;
        let ask = sender.unacked_len() > 0 && sender.ack_mode != AckMode::PeerAcknowledged;
        if ask {
            path.ack_poll_delay_ns = ACK_POLL_NS;
            path.ack_poll_ns = path.idle_since_ns + ACK_POLL_NS;
        }
        self.check_full(id);
        if ask {
            self.mark_dirty(id);
        }
    }
}

// -- batches
//
// When a message leaves: at once on an idle path, with others in a burst.
//
// A gap between sends fills the burst budget; a write spends one of it. Once it is spent, a message
// waits as a *batch* until enough bytes are pending, its sender waits for something, or the progress thread
// finds it half a millisecond old. Small messages leave once the plane's `flush_bytes` are
// pending. A write of long ones costs by their number, not by their bytes, so more of them join,
// up to a quarter of their sender's account.
//
// A single message, a request or a reply, leaves at once whatever the budget is: as with Nagle's
// rule, nothing is in flight to wait for.

/// A pause that makes the next sends leave at once.
const GAP_NS: u64 = 20_000;
const BURST_BUDGET: u8 = 2;

impl StreamPath {
    /// Return whether a message would leave alone: nothing is queued, and nothing is in flight.
    pub(crate) fn sends_alone(&self) -> bool {
        let sender = &self.core.sender;
        sender.message_count() == 0
            && !(self.writing || self.blocked || self.broken)
            && self.core.is_plain()
    }
}

impl State {
    /// Return whether to write now that a message is queued: spend the budget, or note a batch.
    ///
    /// In a burst of long messages they leave once `burst_bytes` are pending, if that is more than
    /// the plane's own bound.
    pub(crate) fn should_flush(&mut self, id: PathId, burst_bytes: usize) -> bool {
        let Some(path) = self.paths.get_mut(id) else {
            return false;
        };
        if !path.core.attached {
            path.is_batching = true;
            self.check_full(id);
            self.want_stream(id);
            return false;
        }
        let mut enough_bytes = self.limits.flush_bytes;
        if burst_bytes > enough_bytes && path.core.sender.is_long() {
            enough_bytes = burst_bytes;
        }
        if path.core.sender.pending_bytes >= enough_bytes {
            self.check_full(id); // a blocked stream ends no write, which would check this
            return true;
        }
        let now_ns = self.clock.now_ns();
        if now_ns.saturating_sub(path.idle_since_ns) > GAP_NS {
            path.burst_budget = BURST_BUDGET;
        }
        path.idle_since_ns = now_ns;
        if path.burst_budget > 0 {
            path.burst_budget -= 1;
            return true;
        }
        path.is_batching = true;
        path.flush_bytes = enough_bytes;
        path.batch_since_ns = Some(now_ns);
        self.batches = true;
        self.check_full(id);
        self.mark_dirty(id);
        false
    }
}
