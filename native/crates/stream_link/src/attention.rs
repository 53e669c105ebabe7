//! What the owner of a stream wants to know, as a word that any thread reads without a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

use parking_lot::Mutex;

/// There are bytes, or the end.
pub const READABLE: u32 = 1;
/// A send would take something, or would fail.
pub const WRITABLE: u32 = 2;
/// No more bytes will come and all were taken.
pub const ENDED: u32 = 4;
/// Nothing is expected in memory of the application, or all of it has come.
pub const FILLED: u32 = 512;
/// Bits of the word that only a listener hears of. Each change of the others is told.
const EDGES: u32 = READABLE | WRITABLE | ENDED | FILLED;

/// Streams whose owners have something to do, of one engine.
#[derive(Debug, Default)]
pub struct News {
    has: AtomicBool,
    of: Mutex<Vec<u32>>,
}

impl News {
    /// Return whether there are any.
    #[inline]
    pub fn has(&self) -> bool {
        self.has.load(Relaxed)
    }

    /// Take the numbers of their queue pairs, each once.
    pub fn take(&self) -> Vec<u32> {
        let mut of = self.of.lock();
        self.has.store(false, Relaxed);
        std::mem::take(&mut of)
    }

    /// Add the number of a queue pair, unless it is there.
    pub fn add(&self, qpn: u32) {
        let mut of = self.of.lock();
        if !of.contains(&qpn) {
            of.push(qpn);
        }
        self.has.store(true, Relaxed);
    }
}

/// The word of one stream, and who hears of its changes.
#[derive(Debug)]
pub struct Attention {
    word: AtomicU32,
    /// Someone sleeps for readiness, or shows it.
    listeners: AtomicU32,
    qpn: u32,
    news: Arc<News>,
}

impl Attention {
    pub fn new(qpn: u32, news: Arc<News>) -> Self {
        Self {
            word: AtomicU32::new(0),
            listeners: AtomicU32::new(0),
            qpn,
            news,
        }
    }

    /// Return the word.
    #[inline]
    pub fn word(&self) -> u32 {
        self.word.load(SeqCst)
    }

    /// Count a listener: from here on changes of readiness are told. Look at the word afterwards.
    pub fn listen(&self) {
        self.listeners.fetch_add(1, SeqCst);
    }

    /// Remove one `listen`.
    pub fn leave(&self) {
        self.listeners.fetch_sub(1, SeqCst);
    }

    /// Keep a new word, and tell its change where it is to be told. The link's lock is held.
    #[inline]
    pub fn set(&self, word: u32) {
        let before = self.word.load(Relaxed);
        if word == before {
            return;
        }
        self.word.store(word, SeqCst);
        let changed = word ^ before;
        if changed & !EDGES != 0 || self.listeners.load(SeqCst) != 0 {
            self.news.add(self.qpn);
        }
    }

    /// Tell listeners that something came, whether or not the word changed: edges count arrivals.
    #[inline]
    pub fn stir(&self) {
        if self.listeners.load(SeqCst) != 0 {
            self.news.add(self.qpn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_is_told_to_listeners_alone_and_all_else_always() {
        let news = Arc::new(News::default());
        let attention = Attention::new(7, Arc::clone(&news));
        attention.set(READABLE | WRITABLE);
        assert!(!news.has());
        attention.set(READABLE | WRITABLE | 16);
        assert_eq!(news.take(), [7]);
        attention.listen();
        attention.set(READABLE | 16);
        attention.set(16);
        assert!(news.has());
        assert_eq!(news.take(), [7], "once");
        attention.set(16);
        assert!(!news.has());
        attention.stir();
        assert_eq!(news.take(), [7]);
        attention.leave();
        attention.stir();
        attention.set(READABLE | 16);
        assert!(!news.has());
        assert_eq!(attention.word(), READABLE | 16);
    }
}
