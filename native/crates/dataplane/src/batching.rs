//! When a message leaves: at once on an idle path, with others in a burst.
//!
//! A gap between sends gives credits; a write spends one. Without credit a message waits as a
//! *batch* until enough bytes are pending, its sender waits for something, or the progress thread
//! finds it half a millisecond old. Small messages leave once the plane's `flush_bytes` are
//! pending. A write of long ones costs by their number, not by their bytes, so more of them join,
//! up to a quarter of their sender's account.
//!
//! A single message, a request or a reply, leaves at once whatever the credits are: as with Nagle's
//! rule, nothing is in flight to wait for.

use crate::path::StreamPath;
use crate::state::{PathId, State};

/// A pause that makes the next sends leave at once.
const GAP_NS: u64 = 20_000;
const CREDITS: u8 = 2;

impl StreamPath {
    /// Return whether a message would leave alone: nothing is queued, and nothing is in flight.
    pub(crate) fn sends_alone(&self) -> bool {
        let outgoing = &self.core.outgoing;
        self.plain && !self.writing && outgoing.unacked.is_empty() && outgoing.unsent.is_empty()
    }
}

impl State {
    /// Return whether to write now that a message is queued: spend a credit, or note a batch.
    ///
    /// In a burst of long messages they leave once `burst_bytes` are pending, if that is more than
    /// the plane's own bound.
    pub(crate) fn leaves_now(&mut self, id: PathId, burst_bytes: usize) -> bool {
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
        if burst_bytes > enough_bytes && path.core.outgoing.is_long() {
            enough_bytes = burst_bytes;
        }
        if path.core.outgoing.pending_bytes >= enough_bytes {
            self.check_full(id); // a blocked stream ends no write, which would check this
            return true;
        }
        let now_ns = self.clock.now_ns();
        if now_ns.saturating_sub(path.idle_since_ns) > GAP_NS {
            path.credits = CREDITS;
        }
        path.idle_since_ns = now_ns;
        if path.credits > 0 {
            path.credits -= 1;
            return true;
        }
        path.is_batching = true;
        path.flush_bytes = enough_bytes;
        path.tail_since_ns = Some(now_ns);
        self.batches = true;
        self.check_full(id);
        self.mark_dirty(id);
        false
    }
}
