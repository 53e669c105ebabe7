//! What a requester has sent and not seen answered, and the one timer for all of it.
//!
//! On a link without loss the window bounds what is under way, and repeats follow an RNR NAK, or a
//! `timeout` without an answer: the queue pair of the peer is not there, or not yet.
//! `urds.verbs.engine.flight` has the rules, and those for loss.

use std::collections::{BTreeSet, VecDeque};

use crate::time::Now;

const WINDOW_PACKETS: i64 = 128;
const WINDOW_LEAST_PACKETS: i64 = 4;
const MS: i64 = 1_000_000;
const LEAST_NS: i64 = 20 * MS;
const MOST_NS: i64 = 2_000 * MS;
const TIMEOUT_UNIT_NS: i64 = 4096;

/// A PSN that waits for its answer, and the ordinal of its request.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    pub psn: i64,
    pub request: u64,
}

/// PSNs that wait for answers, counted without wrapping, lowest first.
#[derive(Debug)]
pub struct Unanswered {
    entries: VecDeque<Pending>,
    retries: BTreeSet<i64>,
    window: i64,
    completed_count: i64, // since the window was widened
}

impl Default for Unanswered {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            retries: BTreeSet::new(),
            window: WINDOW_PACKETS,
            completed_count: 0,
        }
    }
}

impl Unanswered {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn has_retries(&self) -> bool {
        !self.retries.is_empty()
    }

    /// Return the lowest PSN that waits, `default` if none does.
    pub fn oldest(&self, default: i64) -> i64 {
        self.entries.front().map_or(default, |entry| entry.psn)
    }

    /// Return the one at a place, counted from the lowest PSN.
    pub fn at(&self, place: usize) -> Option<Pending> {
        self.entries.get(place).copied()
    }

    fn place_of(&self, psn: i64) -> Option<usize> {
        self.entries
            .binary_search_by_key(&psn, |entry| entry.psn)
            .ok()
    }

    /// Return the request of a PSN, `None` if the PSN does not wait.
    pub fn request_of(&self, psn: i64) -> Option<u64> {
        Some(self.entries[self.place_of(psn)?].request)
    }

    /// Return whether the window allows a PSN now. It always allows the only one.
    pub fn has_room(&self, psn: i64) -> bool {
        let oldest = self.oldest(psn);
        oldest == psn || psn + 1 - oldest <= self.window
    }

    /// Halve the window: nothing was answered in time.
    pub fn narrow(&mut self) {
        self.window = WINDOW_LEAST_PACKETS.max(self.window / 2);
    }

    /// Record that a PSN was sent, for the first time or again.
    pub fn note_sent(&mut self, psn: i64, request: u64) {
        // New PSNs are the highest.
        if self.entries.back().is_none_or(|entry| entry.psn < psn) {
            self.entries.push_back(Pending { psn, request });
        }
    }

    /// Remove a PSN that was answered.
    pub fn complete(&mut self, psn: i64) {
        match self.place_of(psn) {
            Some(0) => drop(self.entries.pop_front()),
            Some(place) => drop(self.entries.remove(place)),
            None => return,
        }
        self.completed_count += 1;
        if self.completed_count * 4 >= self.window {
            self.completed_count = 0;
            self.window = WINDOW_PACKETS.min(self.window + 1);
        }
    }

    /// Forget all PSNs of a request.
    pub fn drop_request(&mut self, request: u64) {
        self.entries.retain(|entry| entry.request != request);
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.retries.clear();
    }

    /// Plan to repeat every unanswered PSN from `first` on.
    pub fn retry_from(&mut self, first: i64) {
        let found = self.entries.iter().map(|entry| entry.psn);
        self.retries.extend(found.filter(|psn| *psn >= first));
    }

    /// Return the PSN to repeat next.
    pub fn next_retry(&mut self) -> Option<Pending> {
        while let Some(&psn) = self.retries.first() {
            if let Some(request) = self.request_of(psn) {
                return Some(Pending { psn, request });
            }
            self.retries.pop_first();
        }
        None
    }

    pub fn take_retry(&mut self) {
        self.retries.pop_first();
    }
}

/// One timer for all unanswered packets; unused with a `timeout` of 0.
///
/// It does not learn: without loss a late answer means that the peer is busy.
#[derive(Debug, Default)]
pub struct Patience {
    pub deadline_ns: Option<i64>,
    period_ns: Option<i64>,
    give_up_ns: i64,
    since_ns: i64, // the last progress
}

impl Patience {
    /// Set the code of `timeout`, and how many repeats must fail.
    pub fn configure(&mut self, code: i64, retry_count: i64) {
        self.period_ns = (code != 0).then(|| LEAST_NS.max(TIMEOUT_UNIT_NS << code));
        self.give_up_ns = self.period_ns.unwrap_or(MOST_NS) * (retry_count + 1);
        if self.period_ns.is_none() {
            self.deadline_ns = None;
        }
    }

    /// Record a sent packet; the timer runs from the first one on.
    pub fn note_sent(&mut self, now: Now) {
        if self.period_ns.is_some() && self.deadline_ns.is_none() {
            self.since_ns = now.ns();
            self.arm(self.since_ns);
        }
    }

    /// Restart after progress; stop when nothing is unanswered.
    pub fn note_progress(&mut self, now: Now, is_idle: bool) {
        if self.period_ns.is_none() {
            return;
        }
        self.since_ns = now.ns();
        if is_idle {
            self.deadline_ns = None;
        } else {
            self.arm(self.since_ns);
        }
    }

    /// Handle an expiry; return whether to give up.
    pub fn expire(&mut self, now_ns: i64) -> bool {
        // A late timer is a delay of this side: the peer's answer may wait to be read.
        self.since_ns += (now_ns - self.deadline_ns.unwrap_or(now_ns)).max(0);
        if now_ns - self.since_ns >= self.give_up_ns {
            self.deadline_ns = None;
            return true;
        }
        self.arm(now_ns);
        false
    }

    fn arm(&mut self, now_ns: i64) {
        if let Some(period_ns) = self.period_ns {
            let end_ns = self.since_ns + self.give_up_ns;
            self.deadline_ns = Some(end_ns.min(now_ns + period_ns));
        }
    }
}
