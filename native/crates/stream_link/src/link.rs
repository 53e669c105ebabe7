//! The link of one stream, and the consumer that stands for it in its queue pair.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use urds_stream::{Memory, Post, PostKind, Refused, Source, StreamCore, StreamState};
use urds_verbs::Engine;
use urds_verbs::consumer::{self, Consumer};
use urds_verbs::errors::Rejected;
use urds_verbs::memory::{Extent, Payload};
use urds_verbs::numbers::{QpState, Status};
use urds_verbs::queue_pair::{Outlet, QueuePair};

use crate::attention::{Attention, ENDED, FILLED, READABLE, WRITABLE};

/// Bits of the word of which every change is told.
const CAN_READ: u32 = 8;
const CAN_WRITE: u32 = 16;
pub const OVER: u32 = 32;
const WANTS_DISCONNECT: u32 = 64;
pub const CUT: u32 = 128;
const KEEPALIVE_OUT: u32 = 256;

/// What the owner of a link and its queue pair share.
pub type SharedLink<M> = Arc<Mutex<Link<M>>>;

/// A stream and what came of its queue pair.
pub struct Link<M: Memory> {
    pub core: StreamCore<M>,
    /// Why the owner is to cut the connection: the peer broke the protocol, or a write failed.
    pub cut: Option<String>,
    attention: Arc<Attention>,
    /// The peer knows of the connection: what is posted finds its queue pair.
    has_begun: bool,
    /// Words of a peer that was faster than its connect data.
    early: Vec<u32>,
    early_max: usize,
}

impl<M: Memory> fmt::Debug for Link<M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Link")
    }
}

impl<M: Memory> Link<M> {
    /// Make the link of a stream that keeps up to `early_max` words until it is connected.
    pub fn new(core: StreamCore<M>, attention: Arc<Attention>, early_max: usize) -> Self {
        let mut made = Self {
            core,
            cut: None,
            attention,
            has_begun: false,
            early: Vec::new(),
            early_max,
        };
        made.update();
        made
    }

    /// Take the words that came before the connect data, and send from here on.
    pub fn begin(&mut self) {
        self.has_begun = true;
        self.core.sending.posts_at_once = true;
        for word in std::mem::take(&mut self.early) {
            self.take_word(word);
        }
        self.update();
    }

    fn take_word(&mut self, word: u32) {
        if let Err(error) = self.core.receive_data(word) {
            self.break_off(error.to_string());
        }
    }

    fn break_off(&mut self, reason: String) {
        if self.cut.is_none() {
            self.cut = Some(reason);
        }
    }

    /// Keep the word: after each change of the core.
    #[inline]
    pub fn update(&mut self) {
        let core = &self.core;
        let lifecycle = &core.lifecycle;
        let is_over = matches!(
            lifecycle.state,
            StreamState::Over | StreamState::Failed | StreamState::Closed
        );
        let mut word = 0;
        for (holds, bit) in [
            (core.is_readable(), READABLE),
            (core.is_writable(), WRITABLE),
            (core.is_ended(), ENDED),
            (lifecycle.can_read, CAN_READ),
            (lifecycle.can_write, CAN_WRITE),
            (is_over, OVER),
            (is_over && core.wants_disconnect(), WANTS_DISCONNECT),
            (self.cut.is_some(), CUT),
            (core.keepalive.is_out, KEEPALIVE_OUT),
            (core.receive_ring.expected_left() == 0, FILLED),
        ] {
            word |= if holds { bit } else { 0 };
        }
        self.attention.set(word);
    }
}

/// What stands for a link in its queue pair.
struct Bound<M: Memory> {
    link: SharedLink<M>,
    posting: Option<Post>,
}

impl<M: Memory> fmt::Debug for Bound<M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Bound")
    }
}

impl<M: Memory + Send + Sync + 'static> Consumer for Bound<M> {
    fn message(&mut self) {
        let mut link = self.link.lock();
        link.break_off("RECV where a write with immediate data was due".into());
        link.update();
    }

    fn word(&mut self, word: u32) {
        let mut link = self.link.lock();
        if link.core.lifecycle.is_connected {
            link.take_word(word);
        } else if link.early.len() < link.early_max {
            link.early.push(word);
        } else {
            link.break_off("more messages before the connect data than there are credits".into());
        }
        link.update();
        link.attention.stir();
    }

    fn next(&mut self) -> Option<consumer::Post<'_>> {
        let mut link = self.link.lock();
        if !(link.has_begun && link.core.may_post()) {
            return None; // of most packets nothing follows
        }
        self.posting = link.core.poll_transmit();
        if self.posting.is_some() {
            link.core.handle_posted(); // what is given here leaves, or the engine keeps a copy
        }
        link.update();
        drop(link);
        let post = self.posting.as_ref()?;
        Some(request(post, Payload::Bytes(post.data.own_bytes()?)))
    }

    fn sent(&mut self) {
        let mut link = self.link.lock();
        link.core.handle_sent();
        link.update();
        link.attention.stir();
    }

    fn ended(&mut self, status: Option<Status>) {
        if let Some(status) = status
            && status != Status::WrFlushErr
        {
            let mut link = self.link.lock();
            link.break_off(format!("a write failed: {}", status.name()));
            link.update();
        }
    }
}

/// Return the request of a post.
fn request<'a>(post: &Post, payload: Payload<'a>) -> consumer::Post<'a> {
    consumer::Post {
        word: post.word,
        payload,
        address: post.address,
        rkey: post.rkey,
        // Space, entries and slots of tables are written once until the peer gives them back;
        // mapped buffers as the application likes.
        is_apart: post.kind != PostKind::Direct,
    }
}

/// The bytes of one send.
#[derive(Clone, Debug)]
pub enum SendContent<'a> {
    /// That no code changes meanwhile.
    Bytes(&'a [u8]),
    Memory(Extent<'a>),
}

impl Source for SendContent<'_> {
    fn length(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Memory(extent) => extent.length,
        }
    }

    fn copy_out(&self, at: usize, to: &mut [u8]) {
        match self {
            Self::Bytes(bytes) => to.copy_from_slice(&bytes[at..at + to.len()]),
            Self::Memory(extent) => extent.memory.read(extent.at + at, to),
        }
    }
}

/// Bind a link to a queue pair that is not connected yet.
///
/// # Errors
/// EINVAL: it is.
pub fn attach<M: Memory + Send + Sync + 'static>(
    engine: &mut Engine,
    number: u32,
    link: &SharedLink<M>,
) -> Result<(), Rejected> {
    let bound = Bound {
        link: Arc::clone(link),
        posting: None,
    };
    engine.consume(number, Box::new(bound))
}

/// Take bytes to send, and post what may leave; return how many were taken.
///
/// # Errors
/// ENOTCONN, EPIPE, ECONNRESET.
pub fn send<M: Memory>(
    engine: &mut Engine,
    number: u32,
    link: &SharedLink<M>,
    content: &SendContent<'_>,
    may_zero_copy: bool,
    outlet: &mut impl Outlet,
) -> Result<usize, Refused> {
    let mut link = link.lock();
    let may_zero_copy = may_zero_copy && link.has_begun;
    let taken = link.core.send(content, may_zero_copy);
    post_all(engine, number, &mut link, Some(content), outlet);
    taken
}

/// Write into buffers that the peer has mapped, from an offset on; return how many bytes were taken.
///
/// # Errors
/// As `send`.
pub fn send_mapped<M: Memory>(
    engine: &mut Engine,
    number: u32,
    link: &SharedLink<M>,
    content: &SendContent<'_>,
    offset: u64,
    outlet: &mut impl Outlet,
) -> Result<usize, Refused> {
    let mut link = link.lock();
    let may_zero_copy = link.has_begun;
    let taken = link.core.write_mapped(content, offset, may_zero_copy);
    post_all(engine, number, &mut link, Some(content), outlet);
    taken
}

/// Post what a stream has to send.
pub fn post_pending<M: Memory>(
    engine: &mut Engine,
    number: u32,
    link: &SharedLink<M>,
    outlet: &mut impl Outlet,
) {
    post_all(engine, number, &mut link.lock(), None, outlet);
}

fn post_all<M: Memory>(
    engine: &mut Engine,
    number: u32,
    link: &mut Link<M>,
    content: Option<&SendContent<'_>>,
    outlet: &mut impl Outlet,
) {
    let sends = |qp: &QueuePair| qp.state == QpState::Rts;
    while link.has_begun
        && engine.get(number).is_some_and(sends)
        && let Some(post) = link.core.poll_transmit()
    {
        match (&post.data, content) {
            (urds_stream::Data::Caller { at, length, .. }, Some(SendContent::Bytes(bytes))) => {
                let payload = Payload::Bytes(&bytes[*at..at + length]);
                engine.post(number, &request(&post, payload), outlet);
            }
            (urds_stream::Data::Caller { at, length, .. }, Some(SendContent::Memory(extent))) => {
                let part = Extent {
                    memory: extent.memory,
                    at: extent.at + at,
                    length: *length,
                };
                let payload = Payload::Extents(std::slice::from_ref(&part));
                engine.post(number, &request(&post, payload), outlet);
            }
            (data, _) => {
                let own = data.own_bytes().unwrap_or(&[]); // a caller's is posted in its call
                engine.post(number, &request(&post, Payload::Bytes(own)), outlet);
            }
        }
        link.core.handle_posted(); // placed, or a copy is the engine's
    }
    link.update();
}
