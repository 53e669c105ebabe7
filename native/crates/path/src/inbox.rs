//! The receive queue of a bound socket, and when its port counts as congested.
//!
//! Small payloads lie in chunks, long ones in memory of their own; the rare parts of a message (an
//! extension, times) lie in a second queue.
//!
//! Messages without payload fill no buffer, so no congestion map stops their sender. Once many
//! messages are queued, a run of them from one source is one item with a count: else a queue of
//! them would be over its hard bound, its path would pause, and with it the acknowledgements that
//! the local program may wait for.
//!
//! Congestion. Linux sets the port's bit as soon as the queue exceeds the buffer; with fast senders
//! that costs more bytes of maps than of messages. Here the bit is checked at the end of a pass,
//! and set when the queue is over its buffer at two checks a millisecond apart, or over four times
//! at once. It is cleared when less than half of the buffer is queued. Messages are never rejected.
//! Source: linux v6.12 `net/rds/recv.c` (`rds_recv_rcvbuf_delta`); docs/differences.md.

use std::collections::VecDeque;

use crate::address::SocketAddress;
use crate::chunks::Chunks;
use crate::constants::LONG_BYTES;
use crate::kinds::{Extension, NO_EXTENSION};
use crate::payload::{ArrivingPayload, Body};

/// How long a queue must be over its buffer before its port counts as congested.
pub const LOOK_AGAIN_NS: u64 = 1_000_000;
const AT_ONCE_FACTOR: usize = 4;
const MANY_MESSAGES: usize = 4096;
/// Overhead of a queued message beside its payload, for the hard bound. Both planes count the same,
/// so that they pause at the same message: the cost in the Python plane, whose messages are
/// objects. Measured there, with Python 3.11: 122 bytes; here 51.
const OVERHEAD_BYTES: usize = 128;
/// Overhead of an extension or times. Measured in Python 126 bytes, here 16.
const DETAIL_BYTES: usize = 128;
/// Room in the queue that an empty inbox keeps, in messages.
const KEPT_MESSAGES: usize = 64;

/// The next message of an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Front<'a> {
    pub payload: &'a [u8],
    pub source: SocketAddress,
    pub extension: Extension,
    /// Both times are zero unless passed to `push`.
    pub wall_ns: u64,
    pub arrived_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    bytes: u32, // of a payload in the chunks
    kind: Kind,
    source: SocketAddress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    has_body: bool,
    has_detail: bool,
    is_run: bool,
    /// Type of service of the connection that it came by.
    tos: u8,
}

#[derive(Clone, Copy, Debug, Default)]
struct Detail {
    extension: Extension,
    wall_ns: u64,
    arrived_ns: u64,
}

/// Queue, account and congestion state; the shell adds waiting and the descriptor.
#[derive(Debug)]
pub struct Inbox {
    pub receive_queued_bytes: usize,
    pub buffer_bytes: usize,
    pub congested: bool,
    /// A take that leaves less clears the local bit.
    pub clear_below_bytes: usize,
    /// When the queue was first seen over its buffer.
    pub over_since_ns: Option<u64>,
    items: VecDeque<Item>,
    chunks: Chunks,
    bodies: VecDeque<Body>,
    details: VecDeque<Detail>,
    /// For each run of messages without payload, how many follow its first; never 0.
    runs: VecDeque<usize>,
    /// The sum of `runs`.
    repeated: usize,
}

impl Inbox {
    pub fn new(buffer_bytes: usize) -> Self {
        Self {
            receive_queued_bytes: 0,
            buffer_bytes,
            congested: false,
            clear_below_bytes: 0,
            over_since_ns: None,
            items: VecDeque::new(),
            chunks: Chunks::default(),
            bodies: VecDeque::new(),
            details: VecDeque::new(),
            runs: VecDeque::new(),
            repeated: 0,
        }
    }

    /// Return how many messages are queued.
    #[inline]
    pub fn len(&self) -> usize {
        self.items.len() + self.repeated
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Return length, source and type of service of each queued message, in its order.
    pub fn rows(&self) -> impl Iterator<Item = (usize, SocketAddress, u8)> {
        let mut bodies = self.bodies.iter();
        let mut runs = self.runs.iter();
        self.items.iter().flat_map(move |item| {
            let body = if item.kind.has_body {
                bodies.next()
            } else {
                None
            };
            let retransmits = if item.kind.is_run { runs.next() } else { None };
            let bytes = body.map_or(item.bytes as usize, Body::len);
            let row = (bytes, item.source, item.kind.tos);
            std::iter::repeat_n(row, 1 + retransmits.copied().unwrap_or(0))
        })
    }

    /// Queue a message and count it. Copies a borrowed payload; times not requested are zero.
    #[allow(clippy::inline_always)] // its result would be written to memory, to be read at once
    #[inline(always)]
    pub fn push(
        &mut self,
        source: SocketAddress,
        extension: Extension,
        payload: ArrivingPayload<'_>,
        wall_ns: u64,
        arrived_ns: u64,
    ) {
        let has_detail = wall_ns != 0 || arrived_ns != 0 || extension != NO_EXTENSION;
        if has_detail {
            self.details.push_back(Detail {
                extension,
                wall_ns,
                arrived_ns,
            });
        }
        let (bytes, has_body) = match payload {
            ArrivingPayload::Borrowed([]) if !has_detail && self.joins_run(source) => return,
            ArrivingPayload::Borrowed(bytes) if bytes.len() < LONG_BYTES => {
                self.chunks.push(bytes);
                (bytes.len(), false)
            }
            long => (self.keep_body(long), true),
        };
        self.receive_queued_bytes += bytes;
        let kind = Kind {
            has_body,
            has_detail,
            is_run: false,
            tos: 0,
        };
        self.items.push_back(Item {
            bytes: if has_body { 0 } else { narrow(bytes) },
            kind,
            source,
        });
    }

    /// Note the type of service of the message that was queued last; 0 unless noted.
    pub fn note_tos(&mut self, tos: u8) {
        if let Some(item) = self.items.back_mut() {
            item.kind.tos = tos;
        }
    }

    /// Look at the next message.
    #[allow(clippy::inline_always)] // its result would be written to memory, to be read at once
    #[inline(always)]
    pub fn front(&self) -> Option<Front<'_>> {
        let item = self.items.front()?;
        let payload = if item.kind.has_body {
            self.bodies.front().map_or(&[][..], Body::bytes)
        } else {
            self.chunks.front(item.bytes as usize)
        };
        let detail = if item.kind.has_detail {
            self.details.front()
        } else {
            None
        };
        let Detail {
            extension,
            wall_ns,
            arrived_ns,
        } = detail.copied().unwrap_or_default();
        Some(Front {
            payload,
            source: item.source,
            extension,
            wall_ns,
            arrived_ns,
        })
    }

    /// Return whether the next message has memory of its own, to be taken by `take_body`.
    #[inline]
    pub fn is_front_long(&self) -> bool {
        self.items.front().is_some_and(|item| item.kind.has_body)
    }

    /// Take the next message out of the queue and the account.
    #[allow(clippy::inline_always)] // its result would be written to memory, to be read at once
    #[inline(always)]
    pub fn pop(&mut self) {
        let Some(&item) = self.items.front() else {
            return;
        };
        if item.kind.is_run {
            self.shorten_run();
            return;
        }
        self.items.pop_front();
        if item.kind.has_body {
            self.pop_body();
        } else {
            self.chunks.pop(item.bytes as usize);
            self.receive_queued_bytes -= item.bytes as usize;
        }
        if item.kind.has_detail {
            self.details.pop_front();
        }
        self.rest();
    }

    /// Pass source and payload of the next messages to `take` and take them out, at most `count_max`;
    /// return how many. It stops at one that has memory of its own, an extension or times, at a run of
    /// empty ones, and where a piece of memory ends; it takes one at least if the first is none of them.
    #[inline]
    pub fn take_plain(
        &mut self,
        count_max: usize,
        mut take: impl FnMut(SocketAddress, &[u8]),
    ) -> usize {
        let first = self.chunks.first();
        let (mut count, mut bytes) = (0, 0);
        for item in self.items.iter().take(count_max) {
            let Kind {
                has_body,
                has_detail,
                is_run,
                tos: _,
            } = item.kind;
            let end = bytes + item.bytes as usize;
            let Some(payload) = first.get(bytes..end) else {
                break;
            };
            if has_body || has_detail || is_run {
                break;
            }
            take(item.source, payload);
            (count, bytes) = (count + 1, end);
        }
        if count > 0 {
            self.items.drain(..count);
            self.chunks.pop(bytes);
            self.receive_queued_bytes -= bytes;
            self.rest();
        }
        count
    }

    /// Take and return the body of the next message if it has memory of its own.
    pub fn take_body(&mut self) -> Option<Body> {
        let item = *self.items.front().filter(|item| item.kind.has_body)?;
        self.items.pop_front();
        if item.kind.has_detail {
            self.details.pop_front();
        }
        let body = self.pop_body();
        self.rest(); // last: it gives back the room of bodies
        body
    }

    /// Drop every queued message; the congestion state stays.
    pub fn clear(&mut self) {
        *self = Self {
            congested: self.congested,
            clear_below_bytes: self.clear_below_bytes,
            over_since_ns: self.over_since_ns,
            ..Self::new(self.buffer_bytes)
        };
    }

    /// Check the queue; return the new state of the local bit if it changed.
    pub fn check_congestion(&mut self, now_ns: u64) -> Option<bool> {
        let queued = self.receive_queued_bytes;
        if self.congested {
            if queued != 0 && queued >= self.buffer_bytes / 2 {
                return None;
            }
            self.congested = false;
            self.clear_below_bytes = 0;
            self.over_since_ns = None;
            return Some(false);
        }
        if queued <= self.buffer_bytes {
            self.over_since_ns = None;
            return None;
        }
        let waited_ns = now_ns.saturating_sub(*self.over_since_ns.get_or_insert(now_ns));
        if waited_ns < LOOK_AGAIN_NS && queued <= self.buffer_bytes.saturating_mul(AT_ONCE_FACTOR) {
            return None;
        }
        self.congested = true;
        self.clear_below_bytes = (self.buffer_bytes / 2).max(1);
        Some(true)
    }

    /// Return the time of the next due `check_congestion`.
    pub fn look_again_ns(&self) -> Option<u64> {
        if self.congested {
            None
        } else {
            Some(self.over_since_ns?.saturating_add(LOOK_AGAIN_NS))
        }
    }

    /// Return cheaply whether the hard bound needs a check.
    #[inline]
    pub fn may_be_too_full(&self) -> bool {
        self.receive_queued_bytes > self.buffer_bytes || self.items.len() > MANY_MESSAGES
    }

    /// Return the bytes that count against the hard bound.
    pub fn hard_bytes(&self) -> usize {
        self.receive_queued_bytes
            + OVERHEAD_BYTES * self.items.len()
            + DETAIL_BYTES * self.details.len()
    }

    /// Count an empty message to the last run, if many messages are queued and the last one is
    /// empty and from the same source; return whether it was counted.
    #[cold]
    fn joins_run(&mut self, source: SocketAddress) -> bool {
        if self.items.len() <= MANY_MESSAGES {
            return false;
        }
        let Some(last) = self.items.back_mut() else {
            return false;
        };
        let is_plain = last.bytes == 0 && !last.kind.has_body && !last.kind.has_detail;
        if !is_plain || last.source != source {
            return false;
        }
        match self.runs.back_mut().filter(|_| last.kind.is_run) {
            Some(retransmits) => *retransmits += 1,
            None => self.runs.push_back(1),
        }
        last.kind.is_run = true;
        self.repeated += 1;
        true
    }

    /// Take one message off the run at the front.
    #[cold]
    fn shorten_run(&mut self) {
        let (Some(retransmits), Some(item)) = (self.runs.front_mut(), self.items.front_mut())
        else {
            return;
        };
        *retransmits -= 1;
        self.repeated -= 1;
        if *retransmits == 0 {
            item.kind.is_run = false;
            self.runs.pop_front();
        }
    }

    #[cold]
    fn keep_body(&mut self, payload: ArrivingPayload<'_>) -> usize {
        let body = match payload {
            ArrivingPayload::Borrowed(bytes) => Body::Owned(bytes.into()),
            ArrivingPayload::Whole(body) => body,
        };
        let bytes = body.len();
        self.bodies.push_back(body);
        bytes
    }

    fn pop_body(&mut self) -> Option<Body> {
        let body = self.bodies.pop_front();
        self.receive_queued_bytes -= body.as_ref().map_or(0, Body::len);
        body
    }

    /// Free the room of a long queue once it is empty.
    #[inline]
    fn rest(&mut self) {
        if self.items.is_empty() && self.items.capacity() > KEPT_MESSAGES {
            self.items.shrink_to(KEPT_MESSAGES);
            self.bodies = VecDeque::new();
            self.details = VecDeque::new();
            self.runs = VecDeque::new();
        }
    }
}

/// Return the length of a payload that is shorter than `LONG_BYTES`.
fn narrow(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
