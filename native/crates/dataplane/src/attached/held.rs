//! Messages of a socket that were taken and wait: for a route, for room on a path or at a socket here.
//!
//! Those to one peer keep their order; they hold up none to others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use urds_channel::socket_memory::Submission;

/// The messages of one socket that wait, by the number of their route.
#[derive(Default)]
pub(super) struct HeldMessages {
    queues: BTreeMap<u32, VecDeque<Submission>>,
    /// Routes that the control plane was asked for.
    asked: BTreeSet<u32>,
}

impl HeldMessages {
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Return how many messages wait.
    pub(super) fn count(&self) -> usize {
        self.queues.values().map(VecDeque::len).sum()
    }

    /// Return whether a message has to queue up behind others to its peer.
    #[inline]
    pub(super) fn waits(&self, route: u32) -> bool {
        !self.queues.is_empty() && self.queues.contains_key(&route)
    }

    /// Return the routes that messages wait for, none twice.
    pub(super) fn routes(&self) -> Vec<u32> {
        self.queues.keys().copied().collect()
    }

    /// Add a message behind those to its peer.
    pub(super) fn push(&mut self, submission: Submission) {
        let queue = self.queues.entry(submission.route).or_default();
        queue.push_back(submission);
    }

    pub(super) fn first(&self, route: u32) -> Option<Submission> {
        self.queues.get(&route)?.front().copied()
    }

    /// Take out the message that `first` returns.
    pub(super) fn pop(&mut self, route: u32) -> Option<Submission> {
        let queue = self.queues.get_mut(&route)?;
        let first = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&route);
        }
        first
    }

    /// Take out those that `is_meant` says; return their slots.
    pub(super) fn remove(&mut self, mut is_meant: impl FnMut(&Submission) -> bool) -> Vec<u32> {
        let mut slots = Vec::new();
        self.queues.retain(|_, queue| {
            queue.retain(|submission| {
                let stays = !is_meant(submission);
                if !stays {
                    slots.push(submission.slot);
                }
                stays
            });
            !queue.is_empty()
        });
        slots
    }

    /// Note that a route is asked for; return false if it was before.
    pub(super) fn ask(&mut self, route: u32) -> bool {
        self.asked.insert(route)
    }

    /// Have the next message that finds no route ask for it again.
    #[inline]
    pub(super) fn end_asking(&mut self, route: u32) {
        if !self.asked.is_empty() {
            self.asked.remove(&route);
        }
    }
}
