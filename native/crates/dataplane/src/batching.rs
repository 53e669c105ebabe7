//! When a message leaves: at once on an idle path, with others in a burst.
//!
//! A gap between sends gives credits; a write spends one. Without credit a message waits as a
//! *tail* until enough octets are pending, its sender waits for something, or the helper finds it
//! half a millisecond old. Small messages leave once the plane's `flush_bytes` are pending. A write
//! of long ones costs by their number, not by their octets, so more of them join, up to a quarter
//! of their sender's account.
//!
//! A message that is alone, a request or a reply with nothing beside it, leaves at once whatever
//! the credits are: as with Nagle's rule there is nothing to wait for.

use crate::state::{PathId, State};
use crate::stream_path::StreamPath;

/// A pause that makes the next sends leave at once.
const GAP_NS: u64 = 20_000;
const CREDITS: u8 = 2;

impl StreamPath {
    /// Tell whether a message would leave alone: nothing waits, and nothing is on its way.
    pub(crate) fn sends_alone(&self) -> bool {
        let outgoing = &self.core.outgoing;
        self.plain && !self.writing && outgoing.unacked.is_empty() && outgoing.unsent.is_empty()
    }
}

impl State {
    /// Decide, after a message was queued, whether to write: spend a credit or note a tail.
    ///
    /// In a burst of long messages they leave once `burst_bytes` are pending, if that is more than
    /// the plane's own bound.
    pub(crate) fn leaves_now(&mut self, id: PathId, burst_bytes: usize) -> bool {
        let Some(path) = self.paths.get_mut(id) else {
            return false;
        };
        if !path.core.attached {
            path.settled = true;
            self.judge_full(id);
            self.want_stream(id);
            return false;
        }
        let mut enough_bytes = self.limits.flush_bytes;
        if burst_bytes > enough_bytes && path.core.outgoing.is_long() {
            enough_bytes = burst_bytes;
        }
        if path.core.outgoing.pending_bytes >= enough_bytes {
            self.judge_full(id); // a stream that takes nothing more has no end of a write that would
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
        path.settled = true;
        path.flush_bytes = enough_bytes;
        path.tail_since_ns = Some(now_ns);
        self.tails = true;
        self.judge_full(id);
        self.mark_dirty(id);
        false
    }
}
