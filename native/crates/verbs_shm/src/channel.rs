//! One channel: memory of both directions, and the socket that rings the peer.

use std::sync::atomic::Ordering::Relaxed;

use urds_channel::channel_memory::{ChannelMemory, Direction};
use urds_channel::slots::{
    ChannelError, Fields, INLINE_BYTES, Reader, SlotMemory, Taken, Word, Writer, flags, kinds,
};
use urds_channel::sys::area::Area;
use urds_channel::sys::{doorbell, thread};
use urds_verbs::errors::ACK;
use urds_verbs::memory::{Memory, Payload};

use crate::acknowledgements::{Acknowledgements, Waiting};
use crate::mappings::Mappings;

/// A doorbell's byte on the socket, where other bytes begin messages.
const DOORBELL: u8 = 0;
/// Looks without a slot after which an acknowledgement waits no longer.
const EMPTY_LOOKS_MAX: u32 = 2;

/// Counts of a channel since it was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub slots_sent: u64,
    pub slots_received: u64,
    pub doorbells_rung: u64,
    pub waits_for_room: u64,
    pub writes_placed: u64,
    /// Payload that was copied: into the channel, out of it, into memory of the peer.
    pub bytes_put: u64,
    pub bytes_taken: u64,
    pub bytes_placed: u64,
    /// Memory of a direction was given back.
    pub trims: u64,
}

impl Counters {
    pub(crate) fn add(&mut self, other: &Self) {
        self.slots_sent += other.slots_sent;
        self.slots_received += other.slots_received;
        self.doorbells_rung += other.doorbells_rung;
        self.waits_for_room += other.waits_for_room;
        self.writes_placed += other.writes_placed;
        self.bytes_put += other.bytes_put;
        self.bytes_taken += other.bytes_taken;
        self.bytes_placed += other.bytes_placed;
        self.trims += other.trims;
    }
}

/// One end of a channel.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // independent of each other
pub struct Channel {
    pub counters: Counters,
    pub(crate) mappings: Mappings,
    memory: ChannelMemory,
    /// A descriptor that stays the caller's.
    socket: i32,
    /// The direction that this side writes.
    own: usize,
    writer: Writer,
    reader: Reader,
    acks: Acknowledgements,
    empty_looks: u32,
    /// Slots that were published since the last look whether to ring.
    has_published: bool,
    is_starved: bool,
    /// A ring was seen on the socket and is not taken yet.
    is_rung: bool,
    /// The processor that the peer was told of, plus 1.
    told_processor: u32,
    /// Slots that were written when it was last seen idle, and when its memory was given back.
    looked_at: u64,
    trimmed_at: u64,
    /// The packet that is to come again.
    returned: Option<Taken>,
    /// What ended it.
    pub(crate) error: Option<ChannelError>,
    pub(crate) is_reported: bool,
    /// A message of the connection manager was told: what follows waits until it had its effect.
    pub(crate) is_held: bool,
}

impl Channel {
    /// Take over memory, after the greeting; the socket is open until the channel is dropped.
    pub fn new(memory: ChannelMemory, socket: i32, is_connector: bool) -> Self {
        Self {
            counters: Counters::default(),
            mappings: Mappings::default(),
            memory,
            socket,
            own: usize::from(!is_connector),
            writer: Writer::default(),
            reader: Reader::default(),
            acks: Acknowledgements::default(),
            empty_looks: 0,
            has_published: false,
            is_starved: false,
            is_rung: false,
            told_processor: 0,
            looked_at: 0,
            trimmed_at: 0,
            returned: None,
            error: None,
            is_reported: false,
            is_held: false,
        }
    }

    fn doorbell(&mut self) {
        self.counters.doorbells_rung += 1;
        doorbell::ring_with(self.socket, DOORBELL); // a peer that is gone: its socket tells
    }

    // -- out

    /// Return whether a packet of `bytes` has room; without it the peer rings once there is.
    pub fn has_room(&mut self, bytes: usize) -> bool {
        let has_room = self.find_room(bytes);
        if !has_room {
            self.counters.waits_for_room += u64::from(!self.is_starved);
            self.is_starved = true; // until `has_room_again`: others may find room before those that wait
        }
        has_room
    }

    /// Return whether there is room again for what waited, and forget that it waited.
    pub fn has_room_again(&mut self, bytes: usize) -> bool {
        if !self.is_starved || self.error.is_some() {
            return false;
        }
        self.is_starved = !self.find_room(bytes);
        !self.is_starved
    }

    fn find_room(&mut self, bytes: usize) -> bool {
        if self.error.is_some() {
            return false;
        }
        let direction = self.memory.direction(self.own);
        let found = match self.writer.has_room(&direction, bytes) {
            Ok(false) => self.writer.sleep(&direction, bytes).map(|asleep| !asleep),
            found => found,
        };
        self.error = found.err();
        found == Ok(true)
    }

    /// Publish a packet, with the acknowledgement that waits for its queue pair; false without room.
    pub fn put(&mut self, mut fields: Fields, payload: Payload<'_>) -> bool {
        let rider = self.acks.take(fields.target);
        if let Some(waiting) = rider {
            fields.flags |= flags::ACKNOWLEDGES;
            fields.acknowledged = waiting.psn;
        }
        let is_put = self.publish(&fields, payload);
        if let (false, Some(waiting)) = (is_put, rider) {
            self.acks.restore(waiting);
        }
        is_put
    }

    fn publish(&mut self, fields: &Fields, payload: Payload<'_>) -> bool {
        let direction = self.memory.direction(self.own);
        let bytes = payload.len();
        let fill = |at| copy_in(&direction, at, bytes, payload);
        match self.writer.put(&direction, fields, bytes, fill) {
            Ok(is_put) => {
                self.has_published |= is_put;
                if is_put {
                    self.counters.slots_sent += 1;
                    self.counters.bytes_put += bytes as u64;
                }
                is_put
            }
            Err(error) => {
                self.error = Some(error);
                false
            }
        }
    }

    /// Keep an acknowledgement for the next packet to its queue pair.
    pub fn acknowledge(&mut self, target: u32, psn: u32, msn: u32) {
        self.empty_looks = 0;
        if self.acks.keep(target, psn, msn)
            && let Some(waiting) = self.acks.take(target)
        {
            self.send_ack(waiting);
        }
    }

    fn send_ack(&mut self, waiting: Waiting) -> bool {
        let fields = Fields {
            kind: kinds::ACK,
            target: waiting.target,
            psn: waiting.psn,
            msn: waiting.msn,
            length: u32::from(ACK),
            ..Fields::default()
        };
        let is_sent = self.publish(&fields, Payload::Bytes(&[]));
        if !is_sent {
            self.acks.restore(waiting);
        }
        is_sent
    }

    /// Send all acknowledgements that wait, as far as there are slots.
    pub fn send_acks(&mut self) {
        while let Some(waiting) = self.acks.pop() {
            // Without room the peer rings once there is: nothing else may be there to ask for it.
            if !self.send_ack(waiting) && !self.has_room(0) {
                return;
            }
        }
    }

    /// Ring if the peer slept when something was published: at the end of a call.
    #[inline]
    pub fn ring(&mut self) {
        if !std::mem::take(&mut self.has_published) {
            return;
        }
        let direction = self.memory.direction(self.own);
        let processor = thread::processor().map_or(0, |number| number + 1);
        if processor != self.told_processor {
            self.told_processor = processor;
            direction.word(Word::Processor).store(processor, Relaxed);
        }
        if self.writer.must_ring(&direction) {
            self.doorbell();
        }
    }

    /// Return whether the peer published last on this processor: waiting for it only keeps it waiting.
    pub fn shares_processor(&self, number: u32) -> bool {
        let peers = self.memory.direction(1 - self.own);
        peers.word(Word::Processor).load(Relaxed) == number + 1
    }

    // -- in

    /// Return whether a packet is here.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.error.is_none() && self.has_packet()
    }

    #[inline]
    fn has_packet(&self) -> bool {
        self.returned.is_some() || self.reader.is_ready(&self.memory.direction(1 - self.own))
    }

    /// Return whether a look would find nothing and change nothing.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        !(self.has_packet() || self.is_starved)
            && self.acks.is_empty()
            && (self.error.is_none() || self.is_reported)
    }

    /// Take the next packet, whose payload stays where it is until the next call; `None` if there is none.
    pub fn take(&mut self) -> Option<Taken> {
        if self.error.is_some() {
            return None;
        }
        if let Some(returned) = self.returned.take() {
            return Some(returned);
        }
        let direction = self.memory.direction(1 - self.own);
        let mut rings = false;
        let found = self.reader.take(&direction, &mut || rings = true);
        if let Ok(Some(taken)) = &found {
            self.counters.slots_received += 1;
            self.counters.bytes_taken += taken.bytes as u64;
        }
        self.error = found.err();
        if rings {
            self.doorbell();
        }
        found.ok().flatten()
    }

    /// Have the packet that was taken last come again, as if it had not; what it acknowledges was seen.
    pub fn give_back(&mut self, mut taken: Taken) {
        taken.fields.flags &= !flags::ACKNOWLEDGES;
        taken.fields.acknowledged = 0;
        self.returned = Some(taken);
    }

    /// Return where the payload of the packet lies that was taken last.
    pub fn payload(&self, taken: &Taken) -> PeerMemory<'_> {
        let (area, at) = self.memory.direction(1 - self.own).place(taken.at);
        PeerMemory { area, at }
    }

    /// Note a look that found nothing: the second one in a row sends what waits.
    #[inline]
    pub fn note_empty(&mut self) {
        if self.acks.is_empty() {
            return;
        }
        self.empty_looks += 1;
        if self.empty_looks >= EMPTY_LOOKS_MAX {
            self.empty_looks = 0;
            self.send_acks();
            self.ring();
        }
    }

    /// Note that the socket is readable, if it is ours.
    pub fn note_rung(&mut self, socket: i32) -> bool {
        self.is_rung |= self.socket == socket;
        self.socket == socket
    }

    /// Take a ring that was seen; return whether the socket has something for its owner instead.
    ///
    /// It is taken late, before the next sleep: the peer does not wait for this.
    pub fn take_ring(&mut self) -> bool {
        std::mem::take(&mut self.is_rung)
            && doorbell::take(self.socket, DOORBELL) == doorbell::Taken::Other
    }

    /// Prepare to sleep; return false if there is something to do instead.
    pub fn sleep(&mut self) -> bool {
        self.send_acks();
        self.ring();
        if self.error.is_some() {
            return false;
        }
        if self.returned.is_some() {
            return false; // the reader would tell that its place is free
        }
        let direction = self.memory.direction(1 - self.own);
        let mut rings = false;
        let asleep = self.reader.sleep(&direction, &mut || rings = true);
        // An end is no reason to stay awake: the socket tells it as well.
        let is_over = Reader::has_ended(&direction) && !self.reader.is_ready(&direction);
        if rings {
            self.doorbell();
        }
        asleep || is_over
    }

    /// Return whether the peer has said that no slot comes any more, and all were taken.
    #[inline]
    pub fn has_ended(&self) -> bool {
        Reader::has_ended(&self.memory.direction(1 - self.own)) && !self.has_packet()
    }

    /// Ask for no doorbell: this side looks by itself.
    #[inline]
    pub fn awake(&self) {
        Reader::awake(&self.memory.direction(1 - self.own));
    }

    /// Return whether the peer says that it is copying into our memory.
    pub fn is_placing(&self) -> bool {
        urds_channel::slots::is_placing(&self.memory.direction(1 - self.own))
    }

    /// Return how many queue pairs' acknowledgements wait.
    pub fn waiting_acks(&self) -> usize {
        self.acks.len()
    }

    /// Return whether slots were written since the memory was given back.
    pub fn is_stirred(&self) -> bool {
        self.writer.slots() != self.trimmed_at && self.error.is_none()
    }

    /// Give the memory of our direction back if it idles; return whether there is none left.
    ///
    /// It does on the second call without a slot between both, as only the writer can know that none
    /// is under way. Slots read as 0 from then on, which is no ordinal; numbers and positions go on.
    pub fn trim(&mut self) -> bool {
        if !self.is_stirred() {
            return true;
        }
        let published = self.writer.slots();
        let direction = self.memory.direction(self.own);
        let is_idle = published == self.looked_at;
        match self.writer.is_drained(&direction) {
            Ok(true) if is_idle => {
                direction.give_back();
                self.trimmed_at = published;
                self.counters.trims += 1;
                return true;
            }
            Ok(_) => self.looked_at = published,
            Err(error) => self.error = Some(error),
        }
        false
    }

    /// Copy into memory of the peer that is mapped; false if it is not, or was withdrawn.
    pub fn place(&mut self, qpn: u32, key: u32, address: u64, payload: Payload<'_>) -> bool {
        let direction = self.memory.direction(self.own);
        self.mappings.place(&direction, qpn, key, address, payload)
    }

    /// Tell the peer that no slot comes any more.
    pub fn end(&mut self) {
        let direction = self.memory.direction(self.own);
        self.writer.end(&direction);
        self.doorbell();
    }
}

/// Payload that arrived, in memory that the peer may write at any time.
#[derive(Clone, Copy, Debug)]
pub struct PeerMemory<'a> {
    area: &'a Area,
    at: usize,
}

impl Memory for PeerMemory<'_> {
    fn read(&self, at: usize, to: &mut [u8]) {
        self.area.copy_out(self.at + at, to);
    }

    fn write(&self, _at: usize, _from: &[u8]) {
        debug_assert!(false, "what arrived is only read");
    }
}

/// Copy payload to its place in a direction.
#[inline]
fn copy_in(direction: &Direction<'_>, at: usize, bytes: usize, payload: Payload<'_>) {
    let (area, at) = direction.place(at);
    match payload {
        Payload::Bytes(content) => area.copy_in(at, content),
        Payload::Extents(_) if bytes <= INLINE_BYTES => {
            let mut room = [0; INLINE_BYTES];
            payload.copy_to(&mut room[..bytes]);
            area.copy_in(at, &room[..bytes]);
        }
        Payload::Extents(extents) => {
            let mut done = 0;
            for extent in extents {
                extent.memory.give(extent.at, extent.length, &mut |piece| {
                    area.copy_in(at + done, piece);
                    done += piece.len();
                });
            }
        }
    }
}
