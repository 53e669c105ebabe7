//! Receive queues, the receives that messages hold, and the counts that `recv_query` reads.
//!
//! Messages arrive in order here, so the buffers that are held are those of consecutive messages:
//! their count and the span that they cover are one number. `urds.verbs.engine.receives` has the
//! rules, and the cases with gaps.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::completions::Outbox;
use crate::errors::{ENOMEM, Rejected};
use crate::numbers::AsyncEvent;
use crate::work::{Completion, Element, Event, RecvWork};

/// Up to `capacity` receives, taken in posting order; several queue pairs may share one.
#[derive(Debug)]
pub struct ReceiveQueue {
    pub capacity: i64,
    pub max_sge: i64,
    /// Of a shared queue: below so many receives one event follows; 0 is not armed.
    pub limit: i64,
    /// Of a shared queue: its number.
    number: Option<u32>,
    entries: VecDeque<RecvWork>,
}

impl ReceiveQueue {
    pub fn new(capacity: i64, max_sge: i64) -> Self {
        Self {
            capacity,
            max_sge,
            limit: 0,
            number: None,
            entries: VecDeque::new(),
        }
    }

    /// Note that it is shared, under a number.
    pub fn share(&mut self, number: u32) {
        self.number = Some(number);
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn count(&self) -> i64 {
        i64::try_from(self.entries.len()).unwrap_or(i64::MAX)
    }

    /// Queue a receive.
    ///
    /// # Errors
    /// ENOMEM when full, EINVAL for its pieces.
    pub fn post(&mut self, work: RecvWork) -> Result<(), Rejected> {
        let count = i64::try_from(work.pieces.as_slice().len()).unwrap_or(i64::MAX);
        check_count(work.num_sge, count)?;
        if count > self.max_sge {
            return Err(Rejected::invalid(format!(
                "receive of {count} pieces, limit {} (max_sge)",
                self.max_sge
            )));
        }
        if self.count() >= self.capacity {
            return Err(Rejected::new(
                ENOMEM,
                format!(
                    "receive queue is full: {} work requests (max_wr)",
                    self.capacity
                ),
            ));
        }
        self.entries.push_back(work);
        Ok(())
    }

    /// Take the oldest receive; an armed limit may be passed.
    pub fn take(&mut self, outbox: &mut Outbox) -> Option<RecvWork> {
        let work = self.entries.pop_front()?;
        if self.limit != 0 {
            self.check_limit(outbox);
        }
        Some(work)
    }

    /// Request one event when fewer than `limit` receives wait; at once if so. 0 disarms.
    ///
    /// # Errors
    /// EINVAL for a limit below 0 or above the capacity.
    pub fn arm_limit(&mut self, limit: i64, outbox: &mut Outbox) -> Result<(), Rejected> {
        if !(0..=self.capacity).contains(&limit) {
            return Err(Rejected::invalid(format!(
                "limit {limit}, from 0 to max_wr {}",
                self.capacity
            )));
        }
        self.limit = limit;
        self.check_limit(outbox);
        Ok(())
    }

    /// Change the capacity.
    ///
    /// # Errors
    /// EINVAL below 1, below what waits, or below the limit.
    pub fn resize(&mut self, capacity: i64) -> Result<(), Rejected> {
        if capacity < self.limit {
            return Err(Rejected::invalid(format!(
                "{capacity} work requests, below the limit {}",
                self.limit
            )));
        }
        let waiting = self.count();
        if capacity < waiting.max(1) {
            return Err(Rejected::invalid(format!(
                "receive queue of {capacity} work requests, at least 1 and the {waiting} that wait"
            )));
        }
        self.capacity = capacity;
        Ok(())
    }

    fn check_limit(&mut self, outbox: &mut Outbox) {
        if self.count() < self.limit
            && let Some(number) = self.number
        {
            self.limit = 0;
            let element = Element::ReceiveQueue(number);
            outbox
                .events
                .push(Event::Async(AsyncEvent::SrqLimitReached, element));
        }
    }
}

/// Check the `num_sge` of a work request.
///
/// # Errors
/// EINVAL.
pub fn check_count(num_sge: Option<i64>, count: i64) -> Result<(), Rejected> {
    match num_sge {
        Some(claimed) if claimed != count => Err(Rejected::invalid(format!(
            "num_sge {claimed}, the list `sg` has {count}"
        ))),
        _ => Ok(()),
    }
}

/// Count and span of held receive buffers in one word, for readers without the lock.
#[derive(Clone, Debug, Default)]
pub struct HeldWord(Arc<AtomicU64>);

impl HeldWord {
    /// Return how many buffers are held, and the span of messages that they cover.
    pub fn get(&self) -> (u32, u32) {
        let word = self.0.load(Relaxed);
        #[allow(clippy::cast_possible_truncation)] // its halves
        (word as u32, (word >> 32) as u32)
    }

    fn set(&self, count: u64) {
        let half = count.min(u64::from(u32::MAX));
        self.0.store(half << 32 | half, Relaxed);
    }
}

/// Which messages of one connection hold a receive buffer: those after `last_completed`, up to
/// `highest`.
#[derive(Debug, Default)]
pub struct ReceiveTracker {
    pub word: HeldWord,
    last_completed: u64,
    highest: u64,
    pub soft_max: Option<i64>,
    pub hard_max: Option<i64>,
}

impl ReceiveTracker {
    fn count(&self) -> u64 {
        self.highest - self.last_completed
    }

    /// Count a buffer for the message after all others.
    pub fn allocate_next(&mut self) {
        self.highest += 1;
        self.word.set(self.count());
    }

    /// Count the completion of the next message in order.
    pub fn complete_next(&mut self) {
        self.last_completed += 1;
        debug_assert!(self.last_completed <= self.highest);
        self.word.set(self.count());
    }

    /// Count every held buffer as completed: the connection is over.
    pub fn flush(&mut self) {
        self.last_completed = self.highest;
        self.word.set(0);
    }

    /// Start a new connection. Watermarks stay.
    pub fn reset(&mut self) {
        (self.last_completed, self.highest) = (0, 0);
        self.word.set(0);
    }

    /// Return whether a mark is passed.
    fn passes(&self, mark: Option<i64>) -> bool {
        mark.is_some_and(|most| i64::try_from(self.count()).unwrap_or(i64::MAX) > most)
    }

    /// Return true once per arming: when more buffers are held than the soft mark.
    pub fn passes_soft(&mut self) -> bool {
        let passes = self.passes(self.soft_max);
        if passes {
            self.soft_max = None;
        }
        passes
    }

    /// Return true once per arming: when more buffers are held than the hard mark.
    pub fn passes_hard(&mut self) -> bool {
        let passes = self.passes(self.hard_max);
        if passes {
            self.hard_max = None;
        }
        passes
    }
}

/// The receives of one connected queue pair that have been taken and not yet completed.
#[derive(Debug, Default)]
pub struct Incoming {
    /// That of the message whose packets come now.
    pub taken: Option<RecvWork>,
    /// Completions that are held back (`hold_receives`).
    pub held: VecDeque<Completion>,
}
