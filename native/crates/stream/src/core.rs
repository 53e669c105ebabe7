//! One side of a stream socket over RDMA.
//!
//! Two sides exchange 40 bytes while they connect (`connect_data`, `adopt`). From then on each writes
//! into memory of the other: data into space that the other has announced, entries that announce space
//! into the other's table, mappings into its iomap. Most writes bring a word of immediate data, which
//! is all that the other side's software sees of them (`receive_data`).
//!
//! ```text
//! application                 core                               queue pair
//! send, shut_down ----------> Sending, StreamLifecycle --------> poll_transmit: Post
//!                             RemoteSgl  <------ CREDIT -------- receive_data(word)
//! receive_into, expect <----- ReceiveRing  <------ DATA -------- receive_data(word)
//!                             Sending <------------------------- handle_sent
//! ```
//! After every call that may make something due the owner polls `poll_transmit` until it has nothing
//! more; after a read it looks at `wanted_ring` and `take_released`. Posts complete in the order in which
//! they were polled. The send queue has `CONTROL_SLOTS` requests that data never take, so that a credit
//! can always be given: it costs no credit itself, and so nothing waits in a circle.
//!
//! What the peer sends is checked before it changes anything; a peer that breaks the protocol is a
//! `ProtocolError` of `adopt` and `receive_data` alone, and the owner cuts the connection then.

use crate::lifecycle::{Keepalive, StreamLifecycle, StreamState};
use crate::receive_ring::ReceiveRing;
use crate::records::{
    EINVAL, ENTRIES_MAX, IsExpecting, Mapped, Memory, Post, PostKind, ProtocolError, Refused,
    Region, Source, StreamSettings, StreamStats, ZERO_COPY_BYTES_MIN,
};
use crate::sending::{Sending, Sent};
use crate::tables::{Iomap, PeerIomap, RemoteSgl, check_range};
use crate::wire::{
    ARGUMENT_MAX, CONNECT_DATA_BYTES, CREDIT_HAS_ENTRY, CREDIT_LIMIT_MASK, ConnectData, Control,
    FLAG_BIG_ENDIAN, FLAG_IOMAP, FLAG_URDS, IOMAP_ENTRY_BYTES, Op, SGE_BYTES, Sge, VERSION,
    emit_word, parse_word, scale_slots, slots_of,
};

/// One side of a connection, for one owner at a time. Every call is quick; none waits.
#[derive(Debug)]
pub struct StreamCore<M> {
    pub stats: StreamStats,
    pub lifecycle: StreamLifecycle,
    pub keepalive: Keepalive,
    pub sending: Sending,
    pub receive_ring: ReceiveRing<M>,
    pub iomap: Iomap<M>,
    /// Then space is announced in small steps.
    pub is_urds_peer: bool,
    remote_sgl: RemoteSgl<M>,
    is_peer_gone: bool,
    region: Option<Region<M>>,
    connect_data: [u8; CONNECT_DATA_BYTES],
}

impl<M: Memory> StreamCore<M> {
    /// Make a stream with `region_bytes` of zeroed memory: entries, iomap, ring, in this order.
    pub fn new(settings: StreamSettings, region: Region<M>) -> Self {
        let layout = settings.layout();
        let is_big_endian = settings.is_big_endian;
        let entries = settings.table_entries;
        let memory = region.memory.clone();
        let receive_ring = ReceiveRing::new(
            &settings,
            region.clone(),
            layout.ring_start,
            layout.ring_bytes,
        );
        let mut flags = FLAG_IOMAP | FLAG_URDS;
        if is_big_endian {
            flags |= FLAG_BIG_ENDIAN;
        }
        let own = ConnectData {
            version: VERSION,
            flags,
            credits: settings.receive_queue,
            iomap_slots_scaled: scale_slots(settings.iomap_slots),
            target_sgl: Sge {
                address: region.address,
                key: region.rkey,
                length: entries,
            },
            data_buffer: receive_ring.first(),
        };
        Self {
            stats: StreamStats::default(),
            lifecycle: StreamLifecycle::default(),
            keepalive: Keepalive::new(settings.keepalive_ns),
            sending: Sending::new(&settings),
            receive_ring,
            iomap: Iomap::new(
                memory.clone(),
                layout.iomap_start,
                layout.slots,
                is_big_endian,
            ),
            is_urds_peer: false,
            remote_sgl: RemoteSgl::new(memory, entries, is_big_endian),
            is_peer_gone: false,
            region: Some(region),
            connect_data: own.emit(),
        }
    }

    /// Have exchanged so many messages, all read: tests begin where 16 bits of them are used up.
    pub fn begin_at(&mut self, messages: u64) {
        self.sending.begin_at(messages);
        self.receive_ring.begin_at(messages);
    }

    // -- connecting

    /// Return what our side says of itself.
    pub fn connect_data(&self) -> &[u8; CONNECT_DATA_BYTES] {
        &self.connect_data
    }

    /// Take the private data of the peer; the stream is connected then. A stream connects once.
    ///
    /// Bytes behind the 40 are padding.
    ///
    /// # Errors
    /// Another version, sizes or addresses that cannot be; the stream is as before then.
    pub fn adopt(&mut self, data: &[u8]) -> Result<(), ProtocolError> {
        let peer = checked_connect_data(data)?;
        let is_urds = peer.flags & FLAG_URDS != 0;
        let is_big_endian = peer.flags & FLAG_BIG_ENDIAN != 0;
        let table = peer.target_sgl;
        self.is_urds_peer = is_urds;
        let spaces = &mut self.sending.spaces;
        self.remote_sgl.adopt(&peer.data_buffer, is_urds, spaces);
        self.sending.adopt(peer.credits, is_urds);
        self.receive_ring.adopt(table, is_big_endian, is_urds);
        let has_iomap = peer.flags & FLAG_IOMAP != 0;
        self.iomap.adopt(PeerIomap {
            // At the end of the addresses without slots: then nothing is written there.
            address: table
                .address
                .wrapping_add(u64::from(table.length) * SGE_BYTES as u64),
            rkey: table.key,
            slots: if has_iomap {
                slots_of(peer.iomap_slots_scaled)
            } else {
                0
            },
            is_big_endian,
            is_urds,
        });
        self.lifecycle.open();
        Ok(())
    }

    // -- sending

    /// Take bytes to send and return how many; 0 if there is no room.
    ///
    /// Bytes are copied, `send_bytes` of them at most until they complete. With `may_zero_copy`
    /// `ZERO_COPY_BYTES_MIN` and more are posted as ranges of `data`, as far as the peer has space.
    ///
    /// # Errors
    /// ENOTCONN, EPIPE (own shutdown), ECONNRESET.
    pub fn send(
        &mut self,
        data: &(impl Source + ?Sized),
        may_zero_copy: bool,
    ) -> Result<usize, Refused> {
        self.lifecycle.check_writable()?;
        Ok(self.sending.send(data, may_zero_copy, &mut self.stats))
    }

    /// Return whether a send would take something, or would raise.
    ///
    /// After a zero-copy send that failed for lack of space: whether such a one would.
    pub fn is_writable(&self) -> bool {
        if self.lifecycle.can_write {
            self.sending.is_writable()
        } else {
            self.lifecycle.state != StreamState::New
        }
    }

    /// Return how many accepted bytes are not completed.
    pub fn unsent_bytes(&self) -> usize {
        self.sending.buffered_bytes + self.sending.zero_copy_bytes
    }

    // -- receiving

    /// Hand bytes that are to be read to `take`; see `ReceiveRing::receive_into`.
    pub fn receive_into(
        &mut self,
        wanted: usize,
        peek: bool,
        take: &mut impl FnMut(&M, usize, usize),
    ) -> usize {
        self.receive_ring
            .receive_into(wanted, peek, take, &mut self.stats)
    }

    /// Return whether no more bytes will come and all were read.
    pub fn is_ended(&self) -> bool {
        let is_open = self.lifecycle.can_read || self.lifecycle.state == StreamState::New;
        !is_open && self.receive_ring.readable_bytes() == 0
    }

    /// Return whether there are bytes, or the end.
    pub fn is_readable(&self) -> bool {
        self.receive_ring.readable_bytes() > 0 || self.is_ended()
    }

    /// Return how many zeroed bytes the ring would grow into; see `ReceiveRing::wanted_ring`.
    pub fn wanted_ring(&self) -> Option<usize> {
        self.receive_ring.wanted_ring()
    }

    /// Go on in a larger ring. Poll afterwards.
    pub fn grow(&mut self, region: Region<M>) {
        self.receive_ring.grow(region, &mut self.stats);
    }

    /// Do without a larger ring for now.
    pub fn refuse_growth(&mut self) {
        self.receive_ring.refuse_growth(&mut self.stats);
    }

    /// Return memory into which the peer writes no more, one after the other.
    pub fn take_released(&mut self) -> Option<Region<M>> {
        self.receive_ring.take_released()
    }

    /// Return whether `wanted_ring` or `take_released` has something.
    pub fn has_memory_work(&self) -> bool {
        self.receive_ring.has_memory_work()
    }

    /// Let bytes of a wait arrive in place; see `ReceiveRing::expect`.
    ///
    /// # Errors
    /// Another expectation stands.
    pub fn expect(&mut self, region: Region<M>, byte_count: usize) -> Result<usize, IsExpecting> {
        self.receive_ring.expect(region, byte_count)
    }

    /// End the wait; see `ReceiveRing::end_expect`.
    pub fn end_expect(&mut self) -> usize {
        self.receive_ring.end_expect(&mut self.stats)
    }

    // -- mapped buffers

    /// Let the peer write to a buffer from `offset` on; `None` is its address. Returns the offset.
    ///
    /// The peer knows it once it has received data sent later.
    ///
    /// # Errors
    /// EINVAL without a connection or for an offset out of range, ENOMEM if the peer's slots are
    /// taken.
    pub fn map_buffer(&mut self, buffer: &Mapped, offset: Option<i128>) -> Result<i128, Refused> {
        if self.lifecycle.state != StreamState::Open {
            let state = self.lifecycle.state.name();
            let detail = format!("a stream that is {state} maps nothing");
            return Err(Refused::new(EINVAL, detail));
        }
        let offset = offset.unwrap_or(buffer.address.into());
        self.iomap
            .map_buffer(buffer, offset, &mut self.sending.updates)?;
        self.sending.flush_updates(&mut self.stats);
        Ok(offset)
    }

    /// Take a mapping back: the caller ends the registration now.
    ///
    /// librdmacm is not told: its write there breaks the connection.
    ///
    /// # Errors
    /// EINVAL for memory that is not mapped.
    pub fn unmap(&mut self, name: u64, address: u64) -> Result<(), Refused> {
        let is_told = self.lifecycle.state == StreamState::Open;
        self.iomap
            .unmap(name, address, is_told, &mut self.sending.updates)?;
        self.sending.flush_updates(&mut self.stats);
        Ok(())
    }

    /// Write into buffers of the peer and return how many bytes were taken.
    ///
    /// Fewer if there is no room or slot, or at an offset that is not mapped. Bytes are copied or not
    /// as by `send`, arrive before whatever is sent later, and may overtake what waits for space.
    ///
    /// # Errors
    /// As `send`.
    pub fn write_mapped(
        &mut self,
        data: &(impl Source + ?Sized),
        offset: u64,
        may_zero_copy: bool,
    ) -> Result<usize, Refused> {
        self.lifecycle.check_writable()?;
        let byte_count = data.length();
        let is_zero_copy = may_zero_copy && byte_count >= ZERO_COPY_BYTES_MIN;
        self.sending.begin_mapped();
        let mut taken = 0;
        while taken < byte_count {
            let left = (byte_count - taken) as u64;
            let Some(from) = offset.checked_add(taken as u64) else {
                break;
            };
            let Some((address, rkey, here)) = self.iomap.place(from, left) else {
                break;
            };
            let here = usize::try_from(here).unwrap_or(usize::MAX); // at most what is left
            let place = (address, rkey, here);
            let stats = &mut self.stats;
            let done = self
                .sending
                .write_mapped(data, taken, place, is_zero_copy, stats);
            taken += done;
            if done < here {
                break;
            }
        }
        Ok(taken)
    }

    /// Return whether a write into a mapped buffer would take something, or would raise.
    pub fn can_write_mapped(&self) -> bool {
        let sending = &self.sending;
        !self.lifecycle.can_write || (sending.data_slots > 0 && sending.room() > 0)
    }

    // -- the end

    /// Return whether nothing is to be sent and nothing un-completed.
    pub fn is_drained(&self) -> bool {
        let sending = &self.sending;
        sending.is_idle() && sending.in_flight() == 0 && self.lifecycle.due.is_none()
    }

    /// Return whether the stream has ended and nothing is left to send or complete.
    pub fn wants_disconnect(&self) -> bool {
        let is_over = matches!(
            self.lifecycle.state,
            StreamState::Over | StreamState::Failed
        );
        is_over && self.is_drained()
    }

    /// Release all memory: `take_released` gives it. The queue pair is gone before.
    pub fn close(&mut self) {
        if self.lifecycle.state == StreamState::Closed {
            return;
        }
        self.lifecycle.close();
        self.sending.drop_all();
        self.sending.spaces.clear();
        self.receive_ring.close();
        self.iomap.close();
        if let Some(region) = self.region.take() {
            self.receive_ring.release(region);
        }
    }

    // -- the queue pair

    /// Return whether `poll_transmit` may have something; false is certain.
    pub fn may_post(&self) -> bool {
        let is_due = self.receive_ring.may_be_due
            || self.lifecycle.due.is_some()
            || self.keepalive.is_due
            || !self.sending.is_idle();
        is_due && self.lifecycle.is_sending
    }

    /// Return the next request to post, in order; `None` if there is none now.
    pub fn poll_transmit(&mut self) -> Option<Post> {
        if !self.lifecycle.is_sending {
            return None;
        }
        let stats = &mut self.stats;
        let mut post = None;
        if self.receive_ring.may_be_due && self.sending.control_slots > 0 {
            post = self.receive_ring.next_update(stats);
        }
        if post.is_some() {
            self.sending.control_slots -= 1;
        } else {
            post = self.sending.next_post(stats);
        }
        if post.is_none() && (self.lifecycle.due.is_some() || self.keepalive.is_due) {
            post = self.next_control();
        }
        let post = post?;
        self.sending.note_in_flight(&post);
        Some(post)
    }

    /// Return what needs a control slot and comes last.
    fn next_control(&mut self) -> Option<Post> {
        if self.sending.control_slots == 0 {
            return None;
        }
        let post = if self.lifecycle.due.is_some() && self.sending.is_idle() {
            let control = self.lifecycle.next_control()?;
            if control == Control::Disconnect {
                self.receive_ring.stop();
            }
            self.stats.controls_sent += 1;
            let word = emit_word(Op::Control, control as u32);
            Post::without_bytes(PostKind::Control, Some(word))
        } else if self.keepalive.is_due && self.lifecycle.state == StreamState::Open {
            self.keepalive.is_due = false;
            self.keepalive.is_out = true;
            self.stats.keepalives_sent += 1;
            Post::without_bytes(PostKind::Keepalive, None)
        } else {
            return None;
        };
        self.sending.control_slots -= 1;
        Some(post)
    }

    /// Take the completion of the oldest post. Late ones of a stream that is over do nothing.
    pub fn handle_sent(&mut self) {
        match self.sending.handle_sent() {
            Some(Sent::Keepalive) => self.keepalive.is_out = false,
            Some(Sent::Disconnect) => self.end("disconnected", 0),
            Some(Sent::Data) | None => (),
        }
    }

    /// Have the newest post be done before its completion: its bytes are at the peer.
    ///
    /// For an owner whose posts land before the call ends. Slot, room and bytes are free then; what
    /// its completion tells (DISCONNECT, a keepalive, that all is out) still waits for it, and small
    /// sends gather behind the first ones without completion.
    pub fn handle_posted(&mut self) {
        self.sending.handle_posted();
    }

    /// Be over, in order if `error` is 0: no request completes any more.
    ///
    /// What arrived stays readable; what was not sent is lost.
    pub fn handle_disconnected(&mut self, reason: &str, error: i32) {
        self.end(reason, error);
        self.sending.drop_all();
    }

    /// Take the immediate data of a write that has landed.
    ///
    /// # Errors
    /// The peer broke the protocol: cut the connection then.
    pub fn receive_data(&mut self, word: u32) -> Result<(), ProtocolError> {
        if !self.lifecycle.is_sending {
            if self.lifecycle.state == StreamState::New || self.is_peer_gone {
                return Err(ProtocolError(format!(
                    "word {word:#010x} outside of the connection"
                )));
            }
            return Ok(()); // it crossed our own end
        }
        if word <= ARGUMENT_MAX {
            // The operation of data is 0.
            self.lifecycle.check_data()?;
            return self
                .receive_ring
                .take_message(word as usize, &mut self.stats);
        }
        let (op, argument) = parse_word(word)?;
        match op {
            Op::Credit => self.take_credit(argument),
            Op::Iomap => {
                self.receive_ring.count_update()?;
                self.iomap.take_update(argument)?;
                self.stats.iomap_received += 1;
                Ok(())
            }
            Op::Control | Op::Data => {
                self.take_control(argument);
                Ok(())
            }
        }
    }

    /// Take a new limit, and the entry that came with it.
    fn take_credit(&mut self, argument: u32) -> Result<(), ProtocolError> {
        self.stats.credits_received += 1;
        let mut has_entry = false;
        if self.is_urds_peer {
            has_entry = argument & CREDIT_HAS_ENTRY != 0;
            if argument & !(CREDIT_LIMIT_MASK | CREDIT_HAS_ENTRY) != 0 {
                return Err(ProtocolError(format!(
                    "credit update with argument {argument:#x}"
                )));
            }
        }
        let limit = (argument & CREDIT_LIMIT_MASK) as u16;
        self.sending.take_limit(limit)?;
        if has_entry || !self.is_urds_peer {
            let spaces = &mut self.sending.spaces;
            let was_there = self.remote_sgl.take_entry(has_entry, spaces)?;
            self.stats.entries_received += u64::from(was_there);
        }
        Ok(())
    }

    /// React to a control message. KEEPALIVE asks for nothing; librdmacm never sends it.
    fn take_control(&mut self, control: u32) {
        if control == Control::Disconnect as u32 {
            self.is_peer_gone = true;
            self.end("the peer disconnected", 0);
        } else if control == Control::Shutdown as u32 {
            self.receive_ring.stop();
            if self.lifecycle.take_shutdown() {
                self.end("both sides shut down", 0);
            }
        }
    }

    fn end(&mut self, reason: &str, error: i32) {
        self.lifecycle.end(reason, error);
        self.receive_ring.stop();
        self.sending.drop_waiting();
    }

    // -- time

    /// Return when `handle_timeout` is due, 0 for at once; `None` if no keepalive is wanted.
    pub fn poll_timeout(&self) -> Option<i64> {
        if self.lifecycle.state != StreamState::Open {
            return None;
        }
        self.keepalive.poll_timeout()
    }

    /// Make a sign of life due if it is time. Poll afterwards.
    pub fn handle_timeout(&mut self, now_ns: i64) {
        self.keepalive.handle_timeout(now_ns);
    }
}

/// Read private data and check each number.
///
/// Unknown flags pass: a later release of librdmacm may mean something by them.
fn checked_connect_data(data: &[u8]) -> Result<ConnectData, ProtocolError> {
    let peer = ConnectData::parse(data)?;
    if peer.version != VERSION {
        return Err(ProtocolError(format!(
            "version {} of rsockets, not {VERSION}",
            peer.version
        )));
    }
    if peer.credits == 0 {
        return Err(ProtocolError("a peer that takes no message".into()));
    }
    let table = peer.target_sgl;
    if !(1..=ENTRIES_MAX).contains(&table.length) {
        return Err(ProtocolError(format!(
            "table of {} entries, not 1 to {ENTRIES_MAX}",
            table.length
        )));
    }
    let table_bytes = u64::from(table.length) * SGE_BYTES as u64
        + u64::from(slots_of(peer.iomap_slots_scaled)) * IOMAP_ENTRY_BYTES as u64;
    check_range(table.address, table_bytes, || "tables".into())?;
    let buffer = peer.data_buffer;
    check_range(buffer.address, buffer.length.into(), || {
        "data buffer".into()
    })?;
    Ok(peer)
}
