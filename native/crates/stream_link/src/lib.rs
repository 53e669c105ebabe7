//! A stream joined to a queue pair: words go into the core, and its posts to the engine.
//!
//! The twin of what `src/urds/rsocket/link/stream_link.py` does per message. Connecting, closing and
//! timers stay there. No I/O, clock or thread; the caller holds the engine's lock in each call that
//! takes the engine. Locks: the engine's, then the link's.

#![forbid(unsafe_code)]

mod attention;
mod link;

pub use attention::{Attention, ENDED, FILLED, News, READABLE, WRITABLE};
pub use link::{CUT, Link, OVER, SendContent, SharedLink, attach, post_pending, send, send_mapped};
