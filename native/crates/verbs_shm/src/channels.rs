//! All channels of a device, and what comes through them.

use std::collections::VecDeque;

use urds_channel::channel_memory::ChannelMemory;
use urds_channel::slots::{ChannelError, Fields, Taken};
use urds_verbs::Engine;
use urds_verbs::errors::ACK;
use urds_verbs::memory::{Content, Payload};
use urds_verbs::numbers::{GID_BYTES, Kind};
use urds_verbs::packets::{self, Packet};
use urds_verbs::queue_pair::{Outlet, Placing, Takers};
use urds_verbs::time::Now;
use urds_verbs::work::Route;

use crate::channel::{Channel, Counters};
use crate::early::{Early, Kept};
use crate::mappings::Region;
use crate::records::{fields_of, operands_of, packet_of};

/// Below that a write is a packet.
pub const PLACED_BYTES_MIN: u64 = 256;
/// From that on payload that arrived goes to its place at once, below through the cache.
const IN_PLACE_BYTES_MIN: usize = 4096;
/// Packets of one channel at a time.
const PACKETS_MAX: u32 = 64;
/// Queue pair of the connection manager.
const MANAGER_QPN: u32 = 1;
/// Bytes under way to ourselves from which on queue pairs wait.
const LOOPED_BYTES_MAX: usize = 1 << 20;

pub type Gid = [u8; GID_BYTES];

/// What the owner of the device has to do, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message to the connection manager: its GID, `Q_Key`, bytes.
    Message(Gid, u32, Vec<u8>),
    /// Packets wait for a channel to this peer.
    Connect(Gid),
    /// Request the memory behind a key, as the peer of its queue pair: the two numbers.
    Map(Gid, u32, u32),
    /// The peer has said that nothing comes any more, and all was taken.
    Gone(Gid),
    /// The peer broke the protocol: its channel does nothing any more.
    Error(Gid, ChannelError),
}

/// The channels of a device.
#[derive(Debug, Default)]
pub struct Channels {
    pub events: VecDeque<Event>,
    /// Datagrams that found no room, and what waited for a peer that is not there.
    pub packets_lost: u64,
    /// A reader stopped where receives ran dry while sinks are due: they may give some back.
    pub is_paused: bool,
    /// The device is closed: what is posted stays in its queue pair.
    pub is_closed: bool,
    /// Payload after which a look at a channel ends, 0 for any: more than that its consumers do not keep.
    /// It stays when the last of those consumers is gone: the next look takes the rest (`has_more`), so
    /// this costs a look more for so many bytes, and nothing that comes.
    pub look_bytes_max: usize,
    gid: Gid,
    /// The longest payload that is sent.
    mtu_bytes: usize,
    placed_bytes_min: u64,
    open: Vec<(Gid, Channel)>,
    /// Packets to queue pairs of this device.
    looped: VecDeque<(Packet, Vec<u8>)>,
    looped_bytes: usize,
    is_loop_full: bool,
    early: Early,
    /// Of channels that are gone.
    ended: Counters,
    /// Room for a short payload.
    room: Vec<u8>,
}

/// What a look at the channels has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Packets, or room for those that wait.
    pub has_found: bool,
    /// Payload that was taken.
    pub bytes: usize,
    /// A packet is to come again.
    pub has_left: bool,
}

impl Channels {
    /// Make the channels of the device that has this GID and sends packets of so many bytes: none.
    ///
    /// Writes from `placed_bytes_min` on go into mapped memory without one.
    pub fn new(gid: Gid, mtu_bytes: usize, placed_bytes_min: u64) -> Self {
        Self {
            gid,
            mtu_bytes,
            placed_bytes_min,
            ..Self::default()
        }
    }

    /// Add a channel after its greeting; the first one of a peer is the one that is written to.
    /// The socket stays the caller's, and open until `detach` or `abandon`.
    pub fn attach(&mut self, gid: Gid, memory: ChannelMemory, socket: i32, connector: bool) {
        let mut channel = Channel::new(memory, socket, connector);
        self.room.resize(IN_PLACE_BYTES_MIN, 0);
        for (packet, payload) in self.early.take(&gid) {
            let is_sent = channel.put(fields_of(&packet), Payload::Bytes(&payload));
            self.packets_lost += u64::from(!is_sent);
        }
        for (qpn, key) in self.early.take_wanted(&gid) {
            if channel.mappings.wants(qpn, key) {
                self.events.push_back(Event::Map(gid, qpn, key));
            }
        }
        self.open.push((gid, channel));
    }

    /// End the channels of a peer; what was not read is lost.
    pub fn detach(&mut self, gid: &Gid) {
        for (_, channel) in self.open.iter_mut().filter(|(of, _)| of == gid) {
            channel.end();
            self.ended.add(&channel.counters);
        }
        self.open.retain(|(of, _)| of != gid);
        self.packets_lost += self.early.take(gid).count() as u64;
        self.early.take_wanted(gid);
    }

    /// Forget all channels and packets; peers are not told.
    pub fn abandon(&mut self) {
        self.open.clear();
        self.early.clear();
        self.looped.clear();
        self.events.clear();
    }

    pub fn channel(&mut self, gid: &Gid) -> Option<&mut Channel> {
        let found = self.open.iter_mut().find(|(of, _)| of == gid);
        found.map(|(_, channel)| channel)
    }

    /// Take an answer of a peer on the memory behind a key. See `Mappings::answer`.
    ///
    /// # Errors
    /// As `Mappings::answer`.
    pub fn map(
        &mut self,
        gid: &Gid,
        qpn: u32,
        key: u32,
        region: Option<Region>,
    ) -> Result<(), urds_channel::sys::Errno> {
        match self.channel(gid) {
            Some(channel) => channel.mappings.answer(qpn, key, region),
            None => Ok(()),
        }
    }

    /// Forget what was mapped for a queue pair of a peer: it is gone, or failed.
    pub fn unmap(&mut self, gid: &Gid, qpn: u32) {
        if let Some(channel) = self.channel(gid) {
            channel.mappings.forget(qpn);
        }
    }

    /// Return the sums of the counters of all channels that there were.
    pub fn counters(&self) -> Counters {
        let mut sum = self.ended;
        for (_, channel) in &self.open {
            sum.add(&channel.counters);
        }
        sum
    }

    /// Return how many regions of peers are mapped.
    pub fn mapped(&self) -> usize {
        let counts = self.open.iter();
        counts.map(|(_, channel)| channel.mappings.mapped()).sum()
    }

    /// Return how many acknowledgements wait.
    pub fn waiting_acks(&self) -> usize {
        let counts = self.open.iter();
        counts.map(|(_, channel)| channel.waiting_acks()).sum()
    }

    /// Return whether a peer says that it is copying into our memory.
    pub fn is_placing(&self, gid: &Gid) -> bool {
        let mut own = self.open.iter().filter(|(of, _)| of == gid);
        own.any(|(_, channel)| channel.is_placing())
    }

    /// Send all acknowledgements that wait, as far as there is room.
    pub fn acknowledge(&mut self) {
        for (_, channel) in &mut self.open {
            channel.send_acks();
            channel.ring();
        }
    }

    /// Return whether a channel was written to since its memory was given back.
    pub fn is_stirred(&self) -> bool {
        self.open.iter().any(|(_, channel)| channel.is_stirred())
    }

    /// Give memory of idle channels back; return whether others are busy: see `Channel::trim`.
    pub fn trim(&mut self) -> bool {
        let mut is_left = false;
        for (_, channel) in &mut self.open {
            is_left |= !channel.trim();
        }
        is_left
    }

    // -- progress

    /// Go on behind the messages of the connection manager that were told: their owner has acted.
    pub fn release(&mut self) {
        for (_, channel) in &mut self.open {
            channel.is_held = false;
        }
    }

    /// Take what is here, up to a limit for each channel, and send what is due; return whether
    /// there was anything.
    pub fn progress(&mut self, engine: &mut Engine, now: impl Into<Now>) -> bool {
        self.look(engine, now, self.look_bytes_max, Takers::Unasked)
            .has_found
    }

    /// As `progress`, where takers are asked, and with another limit of bytes, 0 for none.
    pub fn look(
        &mut self,
        engine: &mut Engine,
        now: impl Into<Now>,
        bytes_max: usize,
        takers: Takers,
    ) -> Looked {
        let now = now.into();
        let mut looked = Looked::default();
        self.is_paused = false;
        engine.shared.takers = takers;
        for place in 0..self.open.len() {
            self.read(place, engine, now, bytes_max, &mut looked);
        }
        engine.shared.takers = Takers::Unasked;
        let found = looked.has_found;
        let has_timer = engine
            .poll_timeout()
            .is_some_and(|due_ns| due_ns <= now.ns());
        if has_timer {
            engine.handle_timeout(now.ns());
        }
        if found || has_timer || engine.has_ready() || !self.looped.is_empty() {
            self.flush(engine, now);
        }
        looked
    }

    /// Take what is here of a peer that is gone, as `progress`; return whether there was anything.
    pub fn drain(&mut self, gid: &Gid, engine: &mut Engine, now: impl Into<Now>) -> bool {
        let now = now.into();
        let (mut looked, bytes_max) = (Looked::default(), self.look_bytes_max);
        self.is_paused = false;
        for place in 0..self.open.len() {
            if self.open[place].0 == *gid {
                self.read(place, engine, now, bytes_max, &mut looked);
            }
        }
        self.flush(engine, now);
        looked.has_found
    }

    /// Return whether a look would find nothing; timers are not looked at.
    #[inline]
    pub fn is_quiet(&self, engine: &Engine) -> bool {
        !engine.has_ready()
            && self.looped.is_empty()
            && self.open.iter().all(|(_, channel)| channel.is_quiet())
    }

    /// Return whether packets are here that a look has left.
    pub fn has_more(&self) -> bool {
        let is_readable = |(_, channel): &(Gid, Channel)| channel.is_ready() && !channel.is_held;
        self.open.iter().any(is_readable)
    }

    /// Take packets of one channel.
    fn read(
        &mut self,
        place: usize,
        engine: &mut Engine,
        now: Now,
        bytes_max: usize,
        looked: &mut Looked,
    ) {
        let (mut count, mut target) = (0, None);
        let mut left = match bytes_max {
            0 => usize::MAX,
            most => most,
        };
        while count < PACKETS_MAX
            && left > 0
            && !self.open[place].1.is_held
            && let Some(taken) = self.open[place].1.take()
        {
            count += 1;
            target = Some(taken.fields.target);
            if !self.receive(place, taken, engine, now) {
                looked.has_left = true;
                break;
            }
            left = left.saturating_sub(taken.bytes);
            looked.bytes += taken.bytes;
            if runs_dry(engine, taken.fields.target) {
                self.is_paused = true;
                break;
            }
        }
        if let Some(qpn) = target {
            self.keep_ack(place, qpn, engine);
        }
        let (gid, channel) = &mut self.open[place];
        if let Some(error) = channel.error
            && !std::mem::replace(&mut channel.is_reported, true)
        {
            self.events.push_back(Event::Error(*gid, error));
        }
        if count == 0 && !channel.is_held {
            channel.note_empty();
            if channel.has_ended() && !std::mem::replace(&mut channel.is_reported, true) {
                self.events.push_back(Event::Gone(*gid));
            }
        }
        let has_room = channel.has_room_again(self.mtu_bytes);
        if has_room {
            engine.resume();
        }
        looked.has_found |= count > 0 || has_room;
    }

    /// Keep the acknowledgement of the queue pair whose packet came last: mostly all that it has to send.
    fn keep_ack(&mut self, place: usize, qpn: u32, engine: &mut Engine) {
        let gid = self.open[place].0;
        if !self.is_closed
            && let Some(channel) = self.channel(&gid) // others of the peer are not written to
            && let Some((target, psn, msn)) = engine.take_lone_ack(qpn, Route { gid, port: 0 })
        {
            channel.acknowledge(target, psn, msn);
        }
    }

    /// Process one packet of a channel; false: it comes again.
    fn receive(&mut self, place: usize, taken: Taken, engine: &mut Engine, now: Now) -> bool {
        let (gid, channel) = &mut self.open[place];
        let source = Route { gid: *gid, port: 0 };
        let (fields, bytes) = (taken.fields, taken.bytes);
        let memory = channel.payload(&taken);
        let mut payload = Content::Range {
            memory: &memory,
            at: 0,
            length: bytes,
        };
        if bytes < IN_PLACE_BYTES_MIN {
            let room = &mut self.room[..bytes];
            payload.copy_to(room);
            payload = Content::Bytes(room);
        }
        let Some(packet) = packet_of(&fields, payload) else {
            return true; // its kind was checked
        };
        if packet.target_qpn == MANAGER_QPN {
            let mut content = vec![0; bytes];
            payload.copy_to(&mut content);
            let message = Event::Message(*gid, packet.qkey, content);
            self.events.push_back(message);
            channel.is_held = true;
            return true;
        }
        if packet.kind.is_atomic() {
            payload = Content::Bytes(&[]);
        }
        let is_done = engine.receive_packet(&packet, payload, source, now);
        if !is_done {
            channel.give_back(taken);
        }
        is_done
    }

    /// Send what the engine has to send, to ourselves as well; then ring.
    pub fn flush(&mut self, engine: &mut Engine, now: impl Into<Now>) {
        let now = now.into();
        if self.is_closed {
            return;
        }
        loop {
            while engine.poll(now, self) {
                engine.counters.sent += 1;
            }
            let Some((packet, payload)) = self.looped.pop_front() else {
                if std::mem::take(&mut self.is_loop_full) {
                    engine.resume();
                    continue;
                }
                break;
            };
            self.looped_bytes -= payload.len();
            let source = Route {
                gid: self.gid,
                port: 0,
            };
            engine.receive_packet(&packet, Content::Bytes(&payload), source, now);
            if runs_dry(engine, packet.target_qpn) {
                self.is_paused = true;
                break;
            }
        }
        for (_, channel) in &mut self.open {
            channel.ring();
        }
    }

    /// Prepare to sleep: peers ring from now on. Return false if there is something to do instead.
    pub fn sleep(&mut self) -> bool {
        if self.has_more() {
            return false; // acknowledgements, for which a peer is woken, go with those of what is here
        }
        let mut asleep = self.looped.is_empty();
        for (_, channel) in &mut self.open {
            asleep &= channel.sleep();
        }
        if !asleep {
            self.awake();
        }
        asleep
    }

    /// Note that a socket is readable; false if it is none of a channel.
    pub fn note_rung(&mut self, socket: i32) -> bool {
        let mut channels = self.open.iter_mut();
        channels.any(|(_, channel)| channel.note_rung(socket))
    }

    /// Take the rings that were seen; return whether a socket has something for its owner.
    pub fn take_rings(&mut self) -> bool {
        let mut has_other = false;
        for (_, channel) in &mut self.open {
            has_other |= channel.take_ring();
        }
        has_other
    }

    /// Return whether a peer published last on the processor with this number.
    pub fn shares_processor(&self, number: u32) -> bool {
        let mut channels = self.open.iter();
        channels.any(|(_, channel)| channel.shares_processor(number))
    }

    /// Ask for no doorbell: this side looks by itself.
    pub fn awake(&self) {
        for (_, channel) in &self.open {
            channel.awake();
        }
    }

    /// Send a message to a peer's connection manager; false without a channel or room.
    ///
    /// Acknowledgements go before it, so that an end does not overtake them.
    pub fn send_message(&mut self, gid: &Gid, qkey: u32, content: &[u8]) -> bool {
        let mut packet = Packet::new(
            Kind::Datagram,
            MANAGER_QPN,
            0,
            packets::FIRST | packets::LAST,
        );
        (packet.source_qpn, packet.qkey) = (MANAGER_QPN, qkey);
        let Some(channel) = self.channel(gid) else {
            return false;
        };
        channel.send_acks();
        // Asked for first, so that the peer rings when there is room again.
        let is_sent = channel.has_room(content.len())
            && channel.put(fields_of(&packet), Payload::Bytes(content));
        channel.ring();
        is_sent
    }
}

impl Outlet for Channels {
    fn packet(&mut self, to: &Route, packet: &Packet, payload: Payload<'_>) {
        if to.gid == self.gid {
            let mut content = Vec::new();
            payload.append_to(&mut content);
            self.looped_bytes += content.len();
            self.looped.push_back((*packet, content));
            return;
        }
        let is_ack = packet.kind == Kind::Ack && packet.syndrome <= ACK;
        let Some(channel) = self.channel(&to.gid) else {
            if is_ack {
                self.packets_lost += 1;
                return;
            }
            let bytes = payload.len();
            let kept = self.early.keep(to.gid, packet, bytes, || {
                let mut content = Vec::new();
                if packet.kind.is_atomic() {
                    content.extend_from_slice(&operands_of(packet));
                } else {
                    payload.append_to(&mut content);
                }
                content
            });
            match kept {
                Kept::First => self.events.push_back(Event::Connect(to.gid)),
                Kept::Behind => {}
                Kept::Dropped => self.packets_lost += 1,
            }
            return;
        };
        if is_ack {
            channel.acknowledge(packet.target_qpn, packet.psn, packet.msn);
            return;
        }
        let fields: Fields = fields_of(packet);
        let is_sent = if packet.kind.is_atomic() {
            channel.put(fields, Payload::Bytes(&operands_of(packet)))
        } else {
            channel.put(fields, payload)
        };
        self.packets_lost += u64::from(!is_sent);
    }

    fn has_room(&mut self, to: &Route) -> bool {
        if to.gid == self.gid {
            self.is_loop_full |= self.looped_bytes >= LOOPED_BYTES_MAX;
            return self.looped_bytes < LOOPED_BYTES_MAX;
        }
        let mtu_bytes = self.mtu_bytes;
        if let Some(channel) = self.channel(&to.gid) {
            return channel.has_room(mtu_bytes);
        }
        !self.early.holds(&to.gid) // the first packet asks for a channel
    }

    fn place(&mut self, to: &Route, write: &Placing, payload: Payload<'_>) -> bool {
        let Some(channel) = self.channel(&to.gid) else {
            if to.gid != self.gid {
                self.early.want(to.gid, write.target_qpn, write.rkey);
            }
            return false;
        };
        let bytes = payload.len() as u64;
        if channel.place(write.target_qpn, write.rkey, write.address, payload) {
            channel.counters.writes_placed += 1;
            channel.counters.bytes_placed += bytes;
            return true;
        }
        if channel.mappings.wants(write.target_qpn, write.rkey) {
            let wanted = Event::Map(to.gid, write.target_qpn, write.rkey);
            self.events.push_back(wanted);
        }
        false
    }

    fn placed_bytes_min(&self) -> Option<u64> {
        Some(self.placed_bytes_min)
    }
}

/// Return whether a queue pair has no receive left while sinks are due, which may give some back.
#[inline]
fn runs_dry(engine: &Engine, qpn: u32) -> bool {
    !engine.shared.outbox.fed.is_empty() && engine.is_dry(qpn)
}
