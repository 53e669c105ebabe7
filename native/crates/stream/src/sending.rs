//! The sending half: bytes that wait, posts that go, slots and credits that come back.
//!
//! ```text
//! send --+-- room at the peer, nothing before it ----------------> ready --+
//!        +-- pending: gathered, or one block of its own --+               | next_post
//!                                                         +--------------+--> in flight
//!                                                                             | handle_sent
//! ```
//! A data message costs a credit, a slot of the send queue and space at the peer; what lacks one of
//! them waits in pending. Small bytes gather there while writes are under way; more than
//! `COALESCE_BYTES_MAX` never waits for that reason. What is longer than a chunk leaves in equal ones.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::records::{
    CONTROL_SLOTS, Data, Post, PostKind, ProtocolError, SHORT_BYTES, Source, StreamSettings,
    StreamStats, WRITABLE_BYTES_MIN, ZERO_COPY_BYTES_MIN, copied,
};
use crate::tables::{RemoteRange, Updates};
use crate::wire::{ARGUMENT_MAX, Control, Op, emit_word};

const COALESCE_BYTES_MAX: usize = 1 << 14;
/// Data writes under way beside which a small send is still posted.
const UNFINISHED_MAX: usize = 1;
/// As `UNFINISHED_MAX`, with no delay or of posts that land at once.
const UNFINISHED_NO_DELAY_MAX: usize = 8;
/// Of a write into a mapped buffer that lands at once: no reader goes along with it.
const DIRECT_BYTES_MAX: usize = 1 << 30;
/// Of a gathering block; each that fills doubles the next.
const BLOCK_BYTES_MIN: usize = 1 << 12;
const BLOCK_BYTES_MAX: usize = 1 << 16;
const DISCONNECT: u32 = emit_word(Op::Control, Control::Disconnect as u32);

/// Return the first of equal parts of so many bytes, none longer than `chunk_max`.
///
/// A short last one would cost as much as a whole one.
fn chunk_of(byte_count: usize, chunk_max: usize) -> usize {
    if byte_count <= chunk_max {
        return byte_count;
    }
    byte_count.div_ceil(byte_count.div_ceil(chunk_max))
}

/// A post under way.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    kind: PostKind,
    is_zero_copy: bool,
    is_disconnect: bool,
    is_done: bool, // before its completion: `handle_posted`
    byte_count: usize,
}

impl InFlight {
    /// Return whether it is among the unfinished: data, but for long ones that landed.
    fn is_counted(&self) -> bool {
        let has_landed = self.is_done && self.byte_count >= COALESCE_BYTES_MAX;
        self.kind == PostKind::Data && !has_landed
    }
}

/// What has completed, for the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Data,
    Keepalive,
    Disconnect,
}

/// A range of bytes that wait, in a block that is written no more.
#[derive(Debug)]
struct Piece {
    block: Arc<Vec<u8>>,
    at: usize,
    length: usize,
}

/// What one stream has to send, without its control messages.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
pub struct Sending {
    in_flight: VecDeque<InFlight>, // in the order of their completions
    ready: VecDeque<Post>,         // slots, credits and space are theirs already
    pub(crate) updates: Updates,
    pub(crate) spaces: VecDeque<RemoteRange>, // in the order in which it is filled; none is empty
    /// Accepted and not in a post yet.
    pub pending_bytes: usize,
    /// Copied and not completed.
    pub buffered_bytes: usize,
    /// Of the caller's memory and not completed.
    pub zero_copy_bytes: usize,
    /// The last send was large and found no space.
    pub is_zero_copy_blocked: bool,
    pub credits: u32,
    pub data_slots: usize,
    pub control_slots: usize,
    limit: u32, // credits that the peer may ever have outstanding
    sequence: u16,
    send_bytes: usize,
    chunk_max: usize,
    pending: VecDeque<Piece>,
    block: Option<Vec<u8>>, // gathers, behind all of `pending`
    block_bytes: usize,
    unfinished: usize, // data posts that are ready or in flight; without long ones that landed
    unfinished_max: usize,
    no_delay: bool,
    lands: bool, // `handle_posted` was called
    /// What a send makes ready leaves before its call ends: nothing is copied for later.
    pub posts_at_once: bool,
    sends: u64,
    is_blocked: bool,
    is_update_paid: bool,
}

impl Sending {
    pub(crate) fn new(settings: &StreamSettings) -> Self {
        let mut made = Self {
            in_flight: VecDeque::new(),
            ready: VecDeque::new(),
            updates: Updates::new(),
            spaces: VecDeque::new(),
            pending_bytes: 0,
            buffered_bytes: 0,
            zero_copy_bytes: 0,
            is_zero_copy_blocked: false,
            credits: 0,
            data_slots: usize::from(settings.send_queue).saturating_sub(CONTROL_SLOTS),
            control_slots: CONTROL_SLOTS,
            limit: 0,
            sequence: 0,
            send_bytes: settings.send_bytes,
            chunk_max: settings.chunk_max_bytes.clamp(1, ARGUMENT_MAX as usize),
            pending: VecDeque::new(),
            block: None,
            block_bytes: BLOCK_BYTES_MIN,
            unfinished: 0,
            unfinished_max: UNFINISHED_MAX,
            no_delay: settings.no_delay,
            lands: false,
            posts_at_once: false,
            sends: 0,
            is_blocked: false,
            is_update_paid: true,
        };
        made.choose_unfinished_max();
        made
    }

    /// Choose how many small writes may be under way before more of them gather.
    pub fn set_no_delay(&mut self, no_delay: bool) {
        self.no_delay = no_delay;
        self.choose_unfinished_max();
    }

    fn choose_unfinished_max(&mut self) {
        self.unfinished_max = if self.no_delay || self.lands {
            UNFINISHED_NO_DELAY_MAX
        } else {
            UNFINISHED_MAX
        };
    }

    pub(crate) fn begin_at(&mut self, messages: u64) {
        let [low, high, ..] = messages.to_le_bytes();
        self.sequence = u16::from_le_bytes([low, high]);
    }

    /// Return the ordinal of the last `send` or `write_mapped`, which posts name.
    pub fn last_send(&self) -> u64 {
        self.sends
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    // -- what the peer allows

    /// Take the credits of the connect data, and whether the peer gives those of updates back.
    ///
    /// To a peer that does not, updates go without a credit, but only while there is one: then a
    /// receive is there for them as well.
    pub(crate) fn adopt(&mut self, credits: u16, is_update_returned: bool) {
        self.credits = credits.into();
        self.limit = credits.into();
        self.is_update_paid = is_update_returned;
    }

    /// Take the absolute limit of a credit update.
    ///
    /// # Errors
    /// One that takes credits back, or gives more than the peer has receives.
    pub(crate) fn take_limit(&mut self, limit: u16) -> Result<(), ProtocolError> {
        let available = u32::from(limit.wrapping_sub(self.sequence));
        if !(self.credits..=self.limit).contains(&available) {
            return Err(ProtocolError(format!(
                "limit {limit} at message {} leaves {available} credits, not {} to {}",
                self.sequence, self.credits, self.limit
            )));
        }
        self.credits = available;
        Ok(())
    }

    /// Return whether a data message could be made now.
    pub fn can_post(&self) -> bool {
        self.credits > 0 && self.data_slots > 0 && !self.spaces.is_empty()
    }

    /// Return whether a large zero-copy send would be taken, at least in part.
    pub fn can_zero_copy(&self) -> bool {
        self.can_post() && self.pending_bytes == 0 && self.updates.is_empty()
    }

    /// Return how many bytes may be copied in.
    pub fn room(&self) -> usize {
        self.send_bytes.saturating_sub(self.buffered_bytes)
    }

    /// Return whether a send like the last one would be taken, at least in part.
    pub fn is_writable(&self) -> bool {
        if self.is_zero_copy_blocked {
            return self.can_zero_copy();
        }
        self.room() >= WRITABLE_BYTES_MIN
    }

    /// Return whether there is nothing left to hand out.
    pub fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.pending_bytes == 0 && self.updates.is_empty()
    }

    /// Return whether small sends gather, as far as they do for what is under way.
    pub fn is_gathering(&self) -> bool {
        self.unfinished >= self.unfinished_max
    }

    fn space(&self) -> usize {
        let space = self.spaces.front().map_or(0, |space| space.byte_count);
        usize::try_from(space).unwrap_or(usize::MAX)
    }

    // -- what the application gives

    /// Take bytes and return how many; copies them unless they go from the caller's memory.
    pub(crate) fn send(
        &mut self,
        data: &(impl Source + ?Sized),
        may_zero_copy: bool,
        stats: &mut StreamStats,
    ) -> usize {
        self.sends += 1;
        let given = data.length();
        if may_zero_copy && given >= ZERO_COPY_BYTES_MIN {
            return self.send_zero_copy(given, stats);
        }
        self.is_zero_copy_blocked = false;
        let byte_count = given.min(self.room());
        if byte_count == 0 {
            return 0;
        }
        let is_direct = !self.is_gathering()
            && self.pending_bytes == 0
            && self.can_post()
            && byte_count <= self.space()
            && byte_count <= self.chunk_max
            && self.updates.is_empty();
        if is_direct {
            let data = self.taken(data, 0, byte_count, stats);
            self.post(data, stats);
            return byte_count;
        }
        self.buffered_bytes += byte_count;
        stats.bytes_copied_in += byte_count as u64;
        self.gather(data, byte_count);
        byte_count
    }

    /// Take bytes of a send that leave next: a copy, or their range where that lasts.
    fn taken(
        &mut self,
        data: &(impl Source + ?Sized),
        at: usize,
        length: usize,
        stats: &mut StreamStats,
    ) -> Data {
        if self.posts_at_once && length > SHORT_BYTES {
            return self.borrowed(at, length, stats);
        }
        self.buffered_bytes += length;
        stats.bytes_copied_in += length as u64;
        Data::copy_of(data, at, length)
    }

    fn borrowed(&mut self, at: usize, length: usize, stats: &mut StreamStats) -> Data {
        self.zero_copy_bytes += length;
        stats.bytes_zero_copy += length as u64;
        let send = self.sends;
        Data::Caller { send, at, length }
    }

    /// Post straight from the caller's memory as far as can be posted at once.
    fn send_zero_copy(&mut self, byte_count: usize, stats: &mut StreamStats) -> usize {
        self.flush_updates(stats);
        while self.pending_bytes > 0 && self.can_post() {
            self.post_pending(stats);
        }
        let mut taken = 0;
        if self.can_zero_copy() {
            while taken < byte_count && self.can_post() {
                let length = chunk_of((byte_count - taken).min(self.space()), self.chunk_max);
                let data = self.borrowed(taken, length, stats);
                taken += length;
                self.post(data, stats);
            }
        }
        self.is_zero_copy_blocked = taken == 0;
        if taken == 0 {
            self.note_blocked(stats);
        }
        taken
    }

    /// Copy bytes to the end of what is pending.
    fn gather(&mut self, data: &(impl Source + ?Sized), byte_count: usize) {
        self.pending_bytes += byte_count;
        if let Some(block) = &mut self.block {
            let used = block.len();
            if used + byte_count < self.block_bytes {
                data.append_to(0, byte_count, block);
                return;
            }
        }
        if byte_count >= BLOCK_BYTES_MAX / 2 {
            self.seal();
            self.pending.push_back(Piece {
                block: Arc::new(copied(data, 0, byte_count)),
                at: 0,
                length: byte_count,
            });
            return;
        }
        let mut done = 0;
        while done < byte_count {
            if self.block.is_none() {
                let wanted = ((byte_count - done) * 2).min(BLOCK_BYTES_MAX);
                self.block_bytes = self.block_bytes.max(wanted);
            }
            let block_bytes = self.block_bytes;
            let block = self
                .block
                .get_or_insert_with(|| Vec::with_capacity(block_bytes));
            let used = block.len();
            let taken = (byte_count - done).min(block_bytes - used);
            data.append_to(done, taken, block);
            done += taken;
            if used + taken == block_bytes {
                self.seal();
                self.block_bytes = (block_bytes * 2).min(BLOCK_BYTES_MAX);
            }
        }
    }

    /// End the block that gathers: from here on it is only read.
    fn seal(&mut self) {
        if let Some(block) = self.block.take() {
            self.pending.push_back(Piece {
                at: 0,
                length: block.len(),
                block: Arc::new(block),
            });
        }
    }

    // -- what goes to the queue pair

    /// Return the next post that needs no control slot, and have it in flight.
    pub(crate) fn next_post(&mut self, stats: &mut StreamStats) -> Option<Post> {
        if !self.updates.is_empty() {
            self.flush_updates(stats);
        }
        if self.ready.is_empty() {
            if self.pending_bytes == 0 {
                return None;
            }
            if self.is_gathering() && self.pending_bytes < COALESCE_BYTES_MAX {
                return None;
            }
            if !self.can_post() {
                self.note_blocked(stats);
                return None;
            }
            self.post_pending(stats);
        }
        self.ready.pop_front()
    }

    pub(crate) fn note_in_flight(&mut self, post: &Post) {
        self.in_flight.push_back(InFlight {
            kind: post.kind,
            is_zero_copy: post.is_zero_copy(),
            is_disconnect: post.word == Some(DISCONNECT),
            is_done: false,
            byte_count: post.data.length(),
        });
    }

    /// Make the updates of the iomap ready, as far as there are credits and slots for them.
    ///
    /// While one is left no data can be posted either, so none overtake it.
    pub(crate) fn flush_updates(&mut self, stats: &mut StreamStats) {
        while self.credits > 0
            && self.data_slots > 0
            && let Some((_, post)) = self.updates.pop_front()
        {
            self.ready.push_back(post);
            self.data_slots -= 1;
            stats.iomap_sent += 1;
            if self.is_update_paid {
                self.credits -= 1;
                self.sequence = self.sequence.wrapping_add(1);
            }
        }
    }

    /// Make one write of the front of what is pending.
    fn post_pending(&mut self, stats: &mut StreamStats) {
        if self.pending.is_empty() {
            self.seal();
        }
        let space = self.space();
        let Some(front) = self.pending.front_mut() else {
            return;
        };
        let chunk = chunk_of(front.length.min(space), self.chunk_max);
        let data = Data::Block {
            block: Arc::clone(&front.block),
            at: front.at,
            length: chunk,
        };
        front.at += chunk;
        front.length -= chunk;
        if front.length == 0 {
            self.pending.pop_front();
        }
        self.pending_bytes -= chunk;
        if self.pending_bytes == 0 {
            self.block_bytes = BLOCK_BYTES_MIN;
        }
        self.post(data, stats);
    }

    /// Make a data message; its credit, slot and space are known to be there.
    fn post(&mut self, data: Data, stats: &mut StreamStats) {
        let byte_count = data.length();
        let Some(space) = self.spaces.front_mut() else {
            return;
        };
        #[expect(clippy::cast_possible_truncation, reason = "a chunk has 29 bits")]
        let word = emit_word(Op::Data, byte_count as u32);
        let post = Post {
            kind: PostKind::Data,
            data,
            address: space.address,
            rkey: space.rkey,
            word: Some(word),
        };
        if byte_count as u64 == space.byte_count {
            self.spaces.pop_front();
        } else {
            space.address += byte_count as u64;
            space.byte_count -= byte_count as u64;
        }
        self.credits -= 1;
        self.sequence = self.sequence.wrapping_add(1);
        self.data_slots -= 1;
        self.unfinished += 1;
        self.is_blocked = false;
        stats.messages_sent += 1;
        stats.bytes_sent += byte_count as u64;
        self.ready.push_back(post);
    }

    /// Post writes from `taken` on to one place as far as slots and room go; return how many bytes.
    pub(crate) fn write_mapped(
        &mut self,
        data: &(impl Source + ?Sized),
        taken: usize,
        place: (u64, u32, usize),
        is_zero_copy: bool,
        stats: &mut StreamStats,
    ) -> usize {
        let (address, rkey, byte_count) = place;
        let mut done = 0;
        while done < byte_count {
            let left = byte_count - done;
            let mut length = if self.posts_at_once {
                left.min(DIRECT_BYTES_MAX)
            } else {
                chunk_of(left, self.chunk_max)
            };
            if !is_zero_copy {
                length = length.min(self.room());
            }
            if length == 0 || self.data_slots == 0 {
                break;
            }
            let at = taken + done;
            let data = if is_zero_copy {
                self.borrowed(at, length, stats)
            } else {
                self.taken(data, at, length, stats)
            };
            self.data_slots -= 1;
            stats.bytes_mapped += length as u64;
            self.ready.push_back(Post {
                kind: PostKind::Direct,
                data,
                address: address + done as u64,
                rkey,
                word: None,
            });
            done += length;
        }
        done
    }

    /// Begin a `write_mapped`.
    pub(crate) fn begin_mapped(&mut self) {
        self.sends += 1;
    }

    /// Count what pending bytes wait for, once until they move.
    fn note_blocked(&mut self, stats: &mut StreamStats) {
        if self.is_blocked {
            return;
        }
        self.is_blocked = true;
        if self.credits == 0 {
            stats.blocked_on_credit += 1;
        } else if self.spaces.is_empty() {
            stats.blocked_on_space += 1;
        } else {
            stats.blocked_on_slots += 1;
        }
    }

    // -- what comes back

    /// Take the completion of the oldest post in flight; `None` without one.
    pub(crate) fn handle_sent(&mut self) -> Option<Sent> {
        let post = self.in_flight.pop_front()?;
        if !post.is_done {
            self.finish(post);
        }
        self.unfinished -= usize::from(post.is_counted());
        Some(match post.kind {
            PostKind::Keepalive => Sent::Keepalive,
            _ if post.is_disconnect => Sent::Disconnect,
            _ => Sent::Data,
        })
    }

    /// Have the newest post be done, unless its completion tells something.
    ///
    /// Short data are counted until it comes, so that small sends gather while the peer is behind.
    pub(crate) fn handle_posted(&mut self) {
        if !self.lands {
            self.lands = true;
            self.choose_unfinished_max();
        }
        if let Some(newest) = self.in_flight.back_mut()
            && !newest.is_done
            && !newest.is_disconnect
            && newest.kind != PostKind::Keepalive
        {
            let was_counted = newest.is_counted();
            newest.is_done = true;
            self.unfinished -= usize::from(was_counted && !newest.is_counted());
            let post = *newest;
            self.finish(post);
        }
    }

    /// Give back what a post occupied.
    fn finish(&mut self, post: InFlight) {
        match post.kind {
            PostKind::Credit | PostKind::Control | PostKind::Keepalive => {
                self.control_slots += 1;
                return;
            }
            PostKind::Data | PostKind::Iomap | PostKind::Direct => (),
        }
        self.data_slots += 1;
        if post.is_zero_copy {
            self.zero_copy_bytes -= post.byte_count;
        } else if post.kind != PostKind::Iomap {
            self.buffered_bytes -= post.byte_count;
        }
    }

    /// Forget what is not in flight: the peer takes no more messages.
    pub(crate) fn drop_waiting(&mut self) {
        self.ready.clear();
        self.updates.clear();
        self.pending.clear();
        self.block = None;
        self.pending_bytes = 0;
        self.zero_copy_bytes = 0;
        self.buffered_bytes = 0;
        for post in &self.in_flight {
            if matches!(post.kind, PostKind::Data | PostKind::Direct) && !post.is_done {
                if post.is_zero_copy {
                    self.zero_copy_bytes += post.byte_count;
                } else {
                    self.buffered_bytes += post.byte_count;
                }
            }
        }
    }

    /// Forget everything: no completion will come that matters.
    pub(crate) fn drop_all(&mut self) {
        self.in_flight.clear();
        self.drop_waiting();
    }
}
