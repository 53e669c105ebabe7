//! Busy polling: a leader that looks without sleeping, as long as its socket asks for.
//!
//! It has the chair, but its word says that it runs, so who notifies it wakes nobody (`word`). Of
//! the lanes that were read last it looks at the positions in memory, and their writers ring no bell
//! meanwhile; for all else it asks the set, which does not sleep. A *spell* of this is short, and
//! between two of them the wait does what it does between two sleeps: tails, dues, deadlines,
//! signals. Whatever ends a spell, its lanes are put to rest again before the chair is left or slept
//! in: what came unseen is told by the set, as after any reading, and no wake-up is lost.
//!
//! Once in a while the processor is offered to others: the peer may need the one that we look with.

use std::hint::spin_loop;
use std::sync::Arc;
use std::thread;

use crate::plane::Plane;
use crate::state::{PathId, State};
use crate::stream::Stream;
use crate::waiting::Waiter;

/// A spell: within it nobody looks at what is due, of which the soonest is due in half a millisecond.
pub(crate) const SPELL_NS: u64 = 200_000;
/// Lanes that a spell looks at; the others ring, and the set is asked.
const LANES_MAX: usize = 8;
/// Looks at the lanes between two questions to the set, of which each costs a system call.
const LOOKS_MAX: u32 = 64;

/// The lanes that were read last, the last one first; some may be gone.
#[derive(Debug, Default)]
pub(crate) struct NearLanes(Vec<PathId>);

impl NearLanes {
    /// Note that a lane is read.
    #[inline]
    pub(crate) fn note(&mut self, path: PathId) {
        if self.0.first() != Some(&path) {
            self.move_to_front(path);
        }
    }

    fn move_to_front(&mut self, path: PathId) {
        self.0.retain(|other| *other != path);
        self.0.truncate(LANES_MAX - 1);
        self.0.insert(0, path);
    }
}

impl State {
    /// Return the lanes that a spell is to look at. Lock held.
    fn lanes_to_watch(&self) -> Vec<Lane> {
        let open = |&path: &PathId| {
            let record = self.paths.get(path).filter(|record| !record.paused)?;
            let stream = record.stream.as_ref().filter(|stream| stream.rings())?;
            Some(Lane(path, Arc::clone(stream)))
        };
        self.near.0.iter().filter_map(open).collect()
    }
}

struct Lane(PathId, Arc<dyn Stream>);

impl Plane {
    /// Look until `waiter`, who sits awake, is notified, or the time comes; no lock held.
    pub(crate) fn spin(&self, waiter: &Waiter, until_ns: u64) {
        let mut lanes = self.lock().lanes_to_watch();
        for Lane(_, stream) in &lanes {
            stream.wake();
        }
        while !waiter.is_notified() {
            if let Some(at) = first_with_news(&lanes, waiter) {
                let Lane(path, stream) = &lanes[at];
                if self.read(*path) {
                    stream.wake(); // reading has put it to rest
                } else {
                    // Another thread reads it, it was paused, or it has ended.
                    let Lane(path, stream) = lanes.swap_remove(at);
                    self.let_rest(path, &*stream);
                }
                self.settle();
                continue;
            }
            if waiter.is_notified() || self.now_ns() >= until_ns {
                break;
            }
            self.poll_awake();
        }
        for Lane(path, stream) in &lanes {
            self.let_rest(*path, &**stream);
        }
    }

    /// Serve what the set has, as the leader, and offer the processor to others.
    fn poll_awake(&self) {
        let mut ready = crate::sys::epoll::NOTHING;
        let told = self.poll_set.wait(&mut ready, Some(0)).unwrap_or(0);
        if told > 0 {
            self.serve(&ready[..told], true);
        } else {
            thread::yield_now();
        }
    }
}

/// Look at the lanes for some time; return which has something.
fn first_with_news(lanes: &[Lane], waiter: &Waiter) -> Option<usize> {
    if lanes.is_empty() {
        return None;
    }
    for _ in 0..LOOKS_MAX {
        let news = lanes.iter().position(|Lane(_, stream)| stream.has_news());
        if news.is_some() {
            return news;
        }
        if waiter.is_notified() {
            return None;
        }
        spin_loop();
    }
    None
}

#[cfg(test)]
#[path = "spinning_tests.rs"]
mod tests;
