//! The completion queue; the rules are those of `urds.verbs.engine.completions`.

use std::collections::{BTreeMap, VecDeque};

use crate::errors::Rejected;
use crate::numbers::{AsyncEvent, Status, WcOpcode};
use crate::work::{Completion, Element, Event};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

/// Up to `capacity` completions; with a sink nothing stays beyond the pass.
#[derive(Debug)]
pub struct CompletionQueue {
    pub capacity: usize,
    pub overrun: bool,
    pub lost_count: u64,
    /// The channel where its events go; without one they are the owner's.
    pub channel: Option<u64>,
    has_sink: bool,
    entries: VecDeque<Completion>,
    armed: Armed,
}

impl CompletionQueue {
    /// Make an empty queue.
    ///
    /// # Errors
    /// EINVAL for a capacity below 1.
    pub fn new(capacity: i64, has_sink: bool) -> Result<Self, Rejected> {
        match usize::try_from(capacity) {
            Ok(capacity) if capacity >= 1 => Ok(Self {
                capacity,
                overrun: false,
                lost_count: 0,
                channel: None,
                has_sink,
                entries: VecDeque::new(),
                armed: Armed::No,
            }),
            _ => Err(Rejected::invalid(format!(
                "completion queue of {capacity} entries, at least 1"
            ))),
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Queue a completion of the queue that has this number; see `Shared::complete`.
    #[inline]
    pub fn push(&mut self, number: u32, completion: Completion, outbox: &mut Outbox) {
        outbox.pushed = outbox.pushed.wrapping_add(1);
        if self.has_sink {
            if self.entries.is_empty() {
                outbox.fed.push(number);
            }
            self.entries.push_back(completion);
            return;
        }
        if self.entries.len() >= self.capacity {
            self.lost_count += 1;
            if !self.overrun {
                self.overrun = true;
                let element = Element::CompletionQueue(number);
                outbox.events.push(Event::Async(AsyncEvent::CqErr, element));
            }
            return;
        }
        self.entries.push_back(completion);
        let qualifies = match self.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => completion.solicited || completion.status != Status::Success,
        };
        if qualifies {
            self.armed = Armed::No;
            let channel = self
                .channel
                .and_then(|channel| outbox.channels.get_mut(&channel));
            if channel.is_none_or(|channel| channel.add(number)) {
                outbox.events.push(Event::Completed(number));
            }
        }
    }

    /// Take the oldest completions, up to `count`, into `taken`.
    pub fn poll(&mut self, count: usize, taken: &mut Vec<Completion>) {
        let count = count.min(self.entries.len());
        taken.extend(self.entries.drain(..count));
    }

    /// Take the oldest completion.
    #[inline]
    pub fn take(&mut self) -> Option<Completion> {
        self.entries.pop_front()
    }

    /// Return the first entry from `at` on of which `is_wanted` says so, and where it is.
    pub fn find(
        &self,
        at: usize,
        mut is_wanted: impl FnMut(&Completion) -> bool,
    ) -> Option<(usize, Completion)> {
        let mut entries = self.entries.iter().enumerate().skip(at);
        let found = entries.find(|(_, entry)| is_wanted(entry));
        found.map(|(place, entry)| (place, *entry))
    }

    /// Return whether a receive of a queue pair has completed and was not polled.
    pub fn has_receive_of(&self, qpn: u32) -> bool {
        let is_receive = |entry: &Completion| {
            entry.qpn == qpn && matches!(entry.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm)
        };
        self.entries.iter().any(is_receive)
    }

    /// Take the entry at a place out.
    pub fn remove(&mut self, place: usize) {
        self.entries.remove(place);
    }

    /// Drop the completions of a queue pair that starts over or is gone.
    pub fn discard(&mut self, qpn: u32) {
        self.entries.retain(|completion| completion.qpn != qpn);
    }

    /// Request one event for the next completion, or for the next solicited one.
    pub fn arm(&mut self, solicited_only: bool) {
        if !solicited_only {
            self.armed = Armed::Any;
        } else if self.armed == Armed::No {
            self.armed = Armed::Solicited;
        }
    }

    /// Change the capacity.
    ///
    /// # Errors
    /// EINVAL below 1 or below what is queued.
    pub fn resize(&mut self, capacity: i64) -> Result<(), Rejected> {
        let queued = self.entries.len();
        match usize::try_from(capacity) {
            Ok(capacity) if capacity >= queued.max(1) => {
                self.capacity = capacity;
                Ok(())
            }
            _ => Err(Rejected::invalid(format!(
                "completion queue of {capacity} entries, at least 1 and the {queued} that are \
                 queued"
            ))),
        }
    }
}

/// A completion channel: the events of its queues, oldest first, as their numbers.
#[derive(Debug, Default)]
pub struct Channel {
    events: VecDeque<u32>,
    /// Its owner is told of each event as well.
    pub is_told: bool,
}

impl Channel {
    /// Queue an event; return whether the owner is told.
    fn add(&mut self, queue: u32) -> bool {
        self.events.push_back(queue);
        self.is_told
    }

    /// Take the oldest event, of one queue if it is given.
    pub fn take(&mut self, queue: Option<u32>) -> Option<u32> {
        let place = self.find(queue)?;
        self.events.remove(place)
    }

    /// Return whether there is an event, of one queue if it is given.
    pub fn has(&self, queue: Option<u32>) -> bool {
        self.find(queue).is_some()
    }

    /// Drop the events of a queue.
    pub fn forget(&mut self, queue: u32) {
        self.events.retain(|event| *event != queue);
    }

    fn find(&self, queue: Option<u32>) -> Option<usize> {
        let mut events = self.events.iter();
        events.position(|event| queue.is_none_or(|queue| *event == queue))
    }
}

/// What an engine has to tell: numbers of queues whose sinks are due, events, and completion channels.
#[derive(Debug, Default)]
pub struct Outbox {
    pub fed: Vec<u32>,
    pub events: Vec<Event>,
    /// By numbers that are not used again.
    pub channels: BTreeMap<u64, Channel>,
    last_channel: u64,
    /// Completions that came to any queue, lost ones too.
    pub pushed: u64,
}

impl Outbox {
    /// Return whether a channel has an event, of one queue if it is given.
    pub fn has_event(&self, channel: u64, queue: Option<u32>) -> bool {
        let channel = self.channels.get(&channel);
        channel.is_some_and(|channel| channel.has(queue))
    }

    /// Make a completion channel; returns its number.
    pub fn channel(&mut self) -> u64 {
        self.last_channel += 1;
        self.channels.insert(self.last_channel, Channel::default());
        self.last_channel
    }
}
