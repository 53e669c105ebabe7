//! How a stream is attached to a path and leaves it: by the control plane, or at its end.
//!
//! No thread may read a stream that is given away, and whose descriptor may soon be another
//! connection: so the thread that reads it removes it from its path, in one critical section.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use urds_path::{DownReason, Hold};

use crate::events::Event;
use crate::plane::Plane;
use crate::state::{PathId, State};
use crate::stream::Stream;
use crate::stream_reader::Reading;
use crate::sys;

/// Time for another thread to finish with the stream: some microseconds.
const LEAVING_POLL: Duration = Duration::from_micros(200);

impl Plane {
    /// Give a path a connected stream: map first, then (after a hold) retransmits, new messages.
    ///
    /// An earlier one is read until it would block, and closed. A path that is closed closes the
    /// stream. May wait for a thread that reads the old stream: without the interpreter.
    pub fn attach(&self, path: PathId, stream: Arc<dyn Stream>, hold: Hold) {
        let old = self.detach(path);
        drop(old);
        let taken = self.lock().take_in_stream(path, &stream, hold);
        if taken.is_ok() {
            self.let_rest(path, &*stream);
        }
        drop(stream); // a second handle, or the stream of a removed path
        if let Err(failure) = taken {
            // No watches left: a stream that is not polled is useless.
            let errno = failure.raw_os_error().unwrap_or(libc::EIO);
            let dead = self.lock().end_stream(path, DownReason::Error, errno, None);
            drop(dead);
        }
        self.flush(path);
    }

    /// Return the stream, read until it would block; the queue stays, no `Down` follows.
    ///
    /// May wait for a thread that reads or writes it: without the interpreter.
    pub fn detach(&self, path: PathId) -> Option<Arc<dyn Stream>> {
        let mut reading = self.begin_detach(path)?;
        self.drain_stream(&mut reading);
        // Still true after a reset: what the peer's TCP had is delivered, for a kernel.
        let unacknowledged = reading.stream.unacknowledged().ok();
        let stream = {
            let mut state = self.lock();
            let stream = state.release_stream(path, unacknowledged);
            if let Some(record) = state.paths.get_mut(path) {
                record.reading = false;
            }
            stream
        };
        drop(reading);
        while self
            .lock()
            .paths
            .get(path)
            .is_some_and(|record| record.writing)
        {
            sys::pause(LEAVING_POLL); // the writer finds the stream gone, and leaves
        }
        stream
    }

    /// Wait until no thread reads, and become the reader.
    fn begin_detach(&self, path: PathId) -> Option<Reading> {
        loop {
            {
                let mut state = self.lock();
                let record = state.paths.get(path)?;
                record.stream.as_ref()?;
                if !record.reading {
                    return state.take_stream(path);
                }
            }
            sys::pause(LEAVING_POLL);
        }
    }

    /// Write again: the stream takes bytes.
    pub fn unblock(&self, path: PathId) {
        {
            let mut state = self.lock();
            let Some(record) = state.paths.get_mut(path) else {
                return;
            };
            record.blocked = false;
            state.counters.tcp_write_space_calls += 1;
            state.mark_dirty(path); // an acknowledgement may be pending
            state.update_watch(path);
        }
        self.flush(path);
    }

    /// Read again: the mailbox that paused the path is at half.
    pub fn resume(&self, path: PathId) {
        let mut state = self.lock();
        let Some(record) = state.paths.get_mut(path) else {
            return;
        };
        record.paused = false;
        state.update_watch(path);
    }
}

impl State {
    fn take_in_stream(
        &mut self,
        id: PathId,
        stream: &Arc<dyn Stream>,
        hold: Hold,
    ) -> io::Result<()> {
        let Some(path) = self.paths.get_mut(id) else {
            return Ok(());
        };
        path.stream = Some(Arc::clone(stream));
        path.expected_bytes = 1;
        path.attachment += 1;
        path.blocked = false;
        path.broken = false;
        path.paused = false;
        path.unheard = false;
        path.wanted = false;
        path.first_frame_told = false;
        path.is_batching = false;
        path.core.attach(hold);
        self.note_attached(id);
        self.watch_stream(id)
    }

    /// End the stream: report it, keep the queue; return it, to be closed without the lock.
    ///
    /// Called by the thread that reads it, which has asked what its TCP has not acknowledged.
    #[must_use]
    pub(crate) fn end_stream(
        &mut self,
        id: PathId,
        reason: DownReason,
        errno: i32,
        unacknowledged: Option<u64>,
    ) -> Option<Arc<dyn Stream>> {
        let path = self.paths.get(id)?;
        let (frames, attachment) = (path.core.incoming.frames, path.attachment);
        let stream = self.release_stream(id, unacknowledged)?;
        self.emit(Event::Down {
            path: id,
            reason,
            errno,
            frames,
            attachment,
        });
        // A probe or a pong alone is not worth a connection.
        if self
            .paths
            .get(id)
            .is_some_and(|path| path.core.outgoing.holds(None))
        {
            self.want_stream(id);
        }
        Some(stream)
    }

    /// Remove a path's stream; what was not acknowledged will be retransmitted.
    fn release_stream(
        &mut self,
        id: PathId,
        unacknowledged: Option<u64>,
    ) -> Option<Arc<dyn Stream>> {
        let path = self.paths.get_mut(id)?;
        path.stream.as_ref()?;
        if let Some(unacknowledged) = unacknowledged {
            let bytes = path.core.bytes_written.saturating_sub(unacknowledged);
            path.core.handle_stream_acknowledged(bytes);
        }
        self.forget_stream(id);
        let path = self.paths.get_mut(id)?;
        path.core.detach(&mut self.counters);
        let stream = path.stream.take();
        path.is_batching = false;
        path.plain = false;
        path.wanted = false;
        path.tail_since_ns = None;
        self.finish_freed(id);
        stream
    }
}
