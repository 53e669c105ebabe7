//! Busy polling: a leader polls without sleeping, as long as its socket's option says.
//!
//! It holds the leader slot, but its waiter state says that it runs, so notifying it wakes no
//! thread. It polls the positions of the shm streams read last, whose writers ring no doorbell
//! meanwhile, and the epoll set for all else. One *spell* of this is short; between two, the wait
//! does what it does between two sleeps: batches, dues, deadlines, signals. After a spell its shm
//! streams ring again before the thread sleeps or leaves the leader slot: the set reports what came
//! meanwhile, so no wake-up is lost.
//!
//! From time to time the thread yields the processor: the peer may need the one that it polls on.

use std::hint::spin_loop;
use std::sync::Arc;
use std::thread;

use crate::plane::Plane;
use crate::state::{PathId, State};
use crate::stream::Stream;
use crate::waiting::Waiter;

/// Length of a spell: no dues are looked at within it; the soonest is due in half a millisecond.
pub(crate) const SPELL_NS: u64 = 200_000;
/// Shm streams that a spell polls; the others ring, and the set is asked.
const POLLED_MAX: usize = 8;
/// Polls of the shm streams between two calls of the set, each of which is a system call.
const LOOKS_MAX: u32 = 64;

/// The shm streams that were read last, the last one first; some may be closed.
#[derive(Debug, Default)]
pub(crate) struct RecentStreams(Vec<PathId>);

impl RecentStreams {
    /// Note that a shm stream is read.
    #[inline]
    pub(crate) fn note(&mut self, path: PathId) {
        if self.0.first() != Some(&path) {
            self.move_to_front(path);
        }
    }

    fn move_to_front(&mut self, path: PathId) {
        self.0.retain(|other| *other != path);
        self.0.truncate(POLLED_MAX - 1);
        self.0.insert(0, path);
    }
}

impl State {
    /// Return the shm streams that a spell polls. Lock held.
    fn streams_to_poll(&self) -> Vec<Polled> {
        let open = |&path: &PathId| {
            let record = self.paths.get(path).filter(|record| !record.paused)?;
            let stream = record.stream.as_ref().filter(|stream| stream.rings())?;
            Some(Polled(path, Arc::clone(stream)))
        };
        self.recent.0.iter().filter_map(open).collect()
    }
}

struct Polled(PathId, Arc<dyn Stream>);

impl Plane {
    /// Poll until `waiter`, which does not sleep, is notified or the time comes; no lock held.
    pub(crate) fn spin(&self, waiter: &Waiter, until_ns: u64) {
        let mut streams = self.lock().streams_to_poll();
        for Polled(_, stream) in &streams {
            stream.wake();
        }
        while !waiter.is_notified() {
            if let Some(at) = first_with_news(&streams, waiter) {
                if !self.read_polled(streams[at].0) {
                    // Another thread reads it, it was paused, or it has ended.
                    let Polled(path, stream) = streams.swap_remove(at);
                    self.let_rest(path, &*stream);
                }
                self.finish_pass();
                continue;
            }
            if waiter.is_notified() || self.now_ns() >= until_ns {
                break;
            }
            self.poll_awake();
        }
        for Polled(path, stream) in &streams {
            self.let_rest(*path, &**stream);
        }
    }

    /// Progress, as the leader, what the set reports, and yield the processor.
    fn poll_awake(&self) {
        self.devices.serve();
        let mut ready = crate::sys::epoll::NOTHING;
        let told = self.poll_set.wait(&mut ready, Some(0)).unwrap_or(0);
        if told > 0 {
            self.serve(&ready[..told], true);
        } else {
            thread::yield_now();
        }
    }
}

/// Poll the shm streams for some time; return one that has something.
fn first_with_news(streams: &[Polled], waiter: &Waiter) -> Option<usize> {
    if streams.is_empty() {
        return None;
    }
    for _ in 0..LOOKS_MAX {
        let news = streams
            .iter()
            .position(|Polled(_, stream)| stream.has_news());
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
