//! Work that becomes due with time: in a plane, and on a path.
//!
//! Batches and acknowledgements of paths with streams, second checks of mailboxes over their
//! buffer, ended lingers. The leader does it between two polls, else a call of `progress` or the progress thread.
//!
//! Linux does not report that its TCP has acknowledged; our TCP is asked, first after a
//! millisecond, then half as often each time. A sender whose account fills asks by itself.

use std::collections::VecDeque;

use urds_path::Release;

use crate::plane::Plane;
use crate::state::{PathId, State};

/// Age at which the progress thread sends a batch.
pub const TAIL_NS: u64 = 500_000;
/// How long after a write our TCP is first asked what the peer's TCP has.
pub const ACK_POLL_NS: u64 = 1_000_000;
const ACK_POLL_MAX_NS: u64 = 16_000_000;

/// When paths have to acknowledge; all wait equally long, so the first is due first.
#[derive(Default)]
pub struct AckDeadlines {
    /// In the order of time; an entry that differs from the path's time is stale.
    queue: VecDeque<(u64, PathId)>,
    /// Times by the slot of the path.
    times: Vec<Option<(PathId, u64)>>,
    count: usize,
}

impl AckDeadlines {
    /// Have a path acknowledge at a time; return whether that is new.
    pub fn insert(&mut self, path: PathId, at_ns: u64) -> bool {
        if self.times.len() <= path.place() {
            self.times.resize(path.place() + 1, None);
        }
        let before = self.times[path.place()].replace((path, at_ns));
        if before == Some((path, at_ns)) {
            return false;
        }
        self.count += usize::from(before.is_none());
        self.drop_stale();
        self.queue.push_back((at_ns, path));
        true
    }

    /// Forget the pending acknowledgement of a path: it has left.
    #[inline]
    pub fn remove(&mut self, path: PathId) {
        if let Some(entry) = self.times.get_mut(path.place())
            && entry.is_some_and(|(known, _)| known == path)
        {
            *entry = None;
            self.count -= 1;
        }
    }

    /// Return whether no acknowledgement is pending.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn drop_stale(&mut self) {
        while let Some(&(at_ns, path)) = self.queue.front()
            && self.times[path.place()] != Some((path, at_ns))
        {
            self.queue.pop_front();
        }
    }

    /// Return when the first path is due.
    pub fn first_ns(&mut self) -> Option<u64> {
        self.drop_stale();
        self.queue.front().map(|&(at_ns, _)| at_ns)
    }

    /// Move the paths that are due to the end of `paths`.
    fn take(&mut self, now_ns: u64, paths: &mut Vec<PathId>) {
        while self.first_ns().is_some_and(|at_ns| at_ns <= now_ns)
            && let Some((_, path)) = self.queue.pop_front()
        {
            self.remove(path);
            paths.push(path);
        }
    }
}

impl State {
    /// Have a path acknowledge at a time, unless its acknowledgement leaves before.
    #[inline]
    pub fn note_ack_pending(&mut self, path: PathId, at_ns: u64) {
        if self.ack_deadlines.insert(path, at_ns) {
            self.want_progress_thread_if_unread();
        }
    }

    /// Return the earliest time at which `serve_due` has work.
    pub fn next_due_ns(&mut self) -> Option<u64> {
        let mut earliest = self.ack_deadlines.first_ns();
        if !self.dirty.is_empty() {
            earliest = sooner(earliest, self.next_dirty_ns());
        }
        for mailbox in self.looks.iter() {
            let look = self
                .mailboxes
                .get(mailbox)
                .and_then(|record| record.inbox.look_again_ns());
            earliest = sooner(earliest, look);
        }
        earliest = sooner(earliest, self.next_missing_ns());
        for linger in &self.lingering {
            earliest = sooner(earliest, Some(linger.at_ns));
        }
        earliest
    }

    /// The same for the dirty paths; those with nothing due are no longer dirty.
    fn next_dirty_ns(&mut self) -> Option<u64> {
        let mut earliest = None;
        let mut paths = std::mem::take(&mut self.spare_paths);
        paths.clear();
        paths.extend(self.dirty.iter());
        for &path in &paths {
            match self.path_due_ns(path) {
                None => drop(self.dirty.remove(path)),
                at_ns => earliest = sooner(earliest, at_ns),
            }
        }
        self.spare_paths = paths;
        earliest
    }

    /// Return when `serve_path` has something to do.
    pub fn path_due_ns(&self, path: PathId) -> Option<u64> {
        let path = self.paths.get(path)?;
        path.stream.as_ref()?;
        let mut due = None;
        if !path.blocked && !path.broken {
            // Else the stream itself reports when to continue.
            if path.core.incoming.acknowledgement_due {
                return Some(0);
            }
            due = path.core.poll_timeout();
            due = sooner(due, path.tail_since_ns.map(|since_ns| since_ns + TAIL_NS));
        }
        let outgoing = &path.core.outgoing;
        if !outgoing.unacked.is_empty() && outgoing.release == Release::StreamAcknowledged {
            due = sooner(due, Some(path.ack_poll_ns));
        }
        due
    }

    /// Take out the paths with something due; lingers that are over end here.
    fn take_due(&mut self, now_ns: u64, due: &mut Vec<PathId>) {
        due.extend(self.dirty.iter());
        due.retain(|&path| self.path_due_ns(path).is_some_and(|at_ns| at_ns <= now_ns));
        self.ack_deadlines.take(now_ns, due);
        self.note_absent(now_ns);
        for mailbox in self.looks.as_slice() {
            self.touched.insert(*mailbox);
        }
        self.looks.clear();
        while let Some(at) = self
            .lingering
            .iter()
            .position(|linger| linger.at_ns <= now_ns)
        {
            let linger = self.lingering.remove(at);
            self.end_linger(linger.host, linger.mailbox);
        }
    }
}

fn sooner(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

impl Plane {
    /// Do what is due: batches, acknowledgements, second checks, ended lingers.
    pub fn serve_due(&self) {
        let mut state = self.lock();
        if !state.has_dues() {
            return;
        }
        let now_ns = state.now_ns();
        let mut due = Vec::new();
        state.take_due(now_ns, &mut due);
        drop(state);
        for path in due {
            self.serve_path(path, now_ns);
        }
        self.finish_pass();
    }

    /// Send every batch: a thread that is about to sleep adds nothing to it.
    pub fn flush_batches(&self) {
        let mut state = self.lock();
        state.batches = false;
        let mut paths: Vec<PathId> = state.dirty.iter().collect();
        paths.retain(|&path| {
            state
                .paths
                .get(path)
                .is_some_and(|record| record.core.wants_to_write())
        });
        drop(state);
        for path in paths {
            self.flush(path);
        }
    }

    /// Do what is due on a path: a batch, an acknowledgement, a question to TCP.
    pub fn serve_path(&self, path: PathId, now_ns: u64) {
        let (ask, before) = {
            let mut state = self.lock();
            let Some(record) = state.paths.get_mut(path) else {
                return;
            };
            record.core.handle_timeout(now_ns);
            record.tail_since_ns = None;
            let outgoing = &record.core.outgoing;
            let before = outgoing.unacked.len();
            let is_asked = outgoing.release == Release::StreamAcknowledged && before > 0;
            (is_asked && now_ns >= record.ack_poll_ns, before)
        };
        if ask {
            self.ask_stream(path);
            if let Some(record) = self.lock().paths.get_mut(path) {
                if record.core.outgoing.unacked.len() == before {
                    let delay_ns = 2 * record.ack_poll_delay_ns;
                    record.ack_poll_delay_ns = delay_ns.min(ACK_POLL_MAX_NS);
                }
                record.ack_poll_ns = now_ns + record.ack_poll_delay_ns;
            }
        }
        self.flush(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(slot: u64, generation: u64) -> PathId {
        PathId::from_u64(slot << 32 | generation)
    }

    #[test]
    fn the_first_pending_ack_is_due_first() {
        let mut ack_deadlines = AckDeadlines::default();
        assert!(ack_deadlines.insert(path(1, 0), 10));
        assert!(ack_deadlines.insert(path(0, 0), 20));
        assert!(!ack_deadlines.insert(path(1, 0), 10), "known");
        assert_eq!(ack_deadlines.first_ns(), Some(10));
        let mut due = Vec::new();
        ack_deadlines.take(15, &mut due);
        assert_eq!(
            (due, ack_deadlines.first_ns()),
            (vec![path(1, 0)], Some(20))
        );
    }

    #[test]
    fn a_sent_ack_is_no_longer_pending() {
        let mut ack_deadlines = AckDeadlines::default();
        ack_deadlines.insert(path(1, 0), 10);
        ack_deadlines.remove(path(1, 7)); // an older path of the same slot
        assert!(!ack_deadlines.is_empty());
        ack_deadlines.remove(path(1, 0));
        assert!(ack_deadlines.is_empty());
        assert_eq!(ack_deadlines.first_ns(), None);
        ack_deadlines.insert(path(1, 0), 30);
        ack_deadlines.insert(path(1, 0), 40); // the old one left in a write
        let mut due = Vec::new();
        ack_deadlines.take(35, &mut due);
        assert_eq!((due.len(), ack_deadlines.first_ns()), (0, Some(40)));
        assert_eq!(ack_deadlines.queue.len(), 1, "nothing stale stays");
    }
}
