//! All channels of a device, and what comes through them.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;

use urds_channel::channel_memory::ChannelMemory;
use urds_channel::slots::{ChannelError, Fields, flags};
use urds_verbs::Engine;
use urds_verbs::errors::ACK;
use urds_verbs::memory::Payload;
use urds_verbs::numbers::{GID_BYTES, Kind};
use urds_verbs::packets::{self, Packet};
use urds_verbs::queue_pair::{Outlet, Placing};
use urds_verbs::work::Route;

use crate::channel::{Channel, Counters};
use crate::mappings::Region;
use crate::records::{fields_of, operands_of, packet_of};

/// Below that a write is a packet.
pub const PLACED_BYTES_MIN: u64 = 256;
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
    /// The peer broke the protocol: its channel does nothing any more.
    Error(Gid, ChannelError),
}

/// The channels of a device.
#[derive(Debug, Default)]
pub struct Channels {
    pub events: VecDeque<Event>,
    /// Datagrams that found no room.
    pub packets_lost: u64,
    gid: Gid,
    /// The longest payload that is sent.
    mtu_bytes: usize,
    placed_bytes_min: u64,
    open: Vec<(Gid, Channel)>,
    /// Packets to queue pairs of this device.
    looped: VecDeque<(Packet, Vec<u8>)>,
    looped_bytes: usize,
    is_loop_full: bool,
    /// The first packet to each peer without a channel.
    early: HashMap<Gid, (Packet, Vec<u8>)>,
    /// Room for the payload of one packet.
    room: Vec<u8>,
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
    pub fn attach(&mut self, gid: Gid, memory: ChannelMemory, socket: OwnedFd, connector: bool) {
        let mut channel = Channel::new(memory, socket, connector);
        if let Some((packet, payload)) = self.early.remove(&gid) {
            channel.put(fields_of(&packet), Payload::Bytes(&payload));
        }
        self.open.push((gid, channel));
    }

    /// Take the channels of a peer away; what they still held is lost.
    pub fn detach(&mut self, gid: &Gid) {
        self.open.retain(|(of, _)| of != gid);
        self.early.remove(gid);
    }

    /// Tell all peers that nothing comes any more.
    pub fn end(&mut self) {
        for (_, channel) in &mut self.open {
            channel.send_acks();
            channel.end();
        }
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

    /// Return the sums of the counters of all channels.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for (_, channel) in &self.open {
            sum.slots_sent += channel.counters.slots_sent;
            sum.slots_received += channel.counters.slots_received;
            sum.doorbells_rung += channel.counters.doorbells_rung;
            sum.waits_for_room += channel.counters.waits_for_room;
            sum.writes_placed += channel.counters.writes_placed;
        }
        sum
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
    pub fn progress(&mut self, engine: &mut Engine, now_ns: i64) -> bool {
        let mut found = false;
        for place in 0..self.open.len() {
            found |= self.read(place, engine, now_ns);
        }
        let has_timer = engine.poll_timeout().is_some_and(|due_ns| due_ns <= now_ns);
        if has_timer {
            engine.handle_timeout(now_ns);
        }
        if found || has_timer || engine.has_ready() {
            self.flush(engine, now_ns);
        }
        found
    }

    /// Take packets of one channel; return whether there were any.
    fn read(&mut self, place: usize, engine: &mut Engine, now_ns: i64) -> bool {
        let (gid, channel) = &mut self.open[place];
        let source = Route { gid: *gid, port: 0 };
        let mut count = 0;
        while count < PACKETS_MAX
            && !channel.is_held
            && let Some((fields, bytes)) = channel.take(&mut self.room)
        {
            count += 1;
            let payload = &self.room[..bytes];
            if fields.flags & flags::ACKNOWLEDGES != 0 {
                let acknowledged = i64::from(fields.acknowledged);
                let mut ack = Packet::new(Kind::Ack, fields.target, acknowledged, 0);
                ack.syndrome = ACK;
                engine.receive_packet(&ack, &[], source, now_ns);
            }
            let Some(packet) = packet_of(&fields, payload) else {
                continue; // its kind was checked
            };
            if packet.target_qpn == MANAGER_QPN {
                let message = Event::Message(*gid, packet.qkey, payload.to_vec());
                self.events.push_back(message);
                channel.is_held = true;
                continue;
            }
            let payload = if packet.kind.is_atomic() {
                &[]
            } else {
                payload
            };
            engine.receive_packet(&packet, payload, source, now_ns);
        }
        if let Some(error) = channel.error
            && !std::mem::replace(&mut channel.is_reported, true)
        {
            self.events.push_back(Event::Error(*gid, error));
        }
        if count == 0 && !channel.is_held {
            channel.note_empty();
        }
        let has_room = channel.has_room_again(self.mtu_bytes);
        if has_room {
            engine.resume();
        }
        count > 0 || has_room
    }

    /// Send what the engine has to send, to ourselves as well; then ring.
    pub fn flush(&mut self, engine: &mut Engine, now_ns: i64) {
        loop {
            while engine.poll(now_ns, self) {
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
            engine.receive_packet(&packet, &payload, source, now_ns);
        }
        for (_, channel) in &mut self.open {
            channel.ring();
        }
    }

    /// Prepare to sleep: peers ring from now on. Return false if there is something to do instead.
    pub fn sleep(&mut self) -> bool {
        let mut asleep = true;
        for (_, channel) in &mut self.open {
            asleep &= channel.sleep();
        }
        if !asleep {
            self.awake();
        }
        asleep
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
            self.packets_lost += u64::from(is_ack || self.early.contains_key(&to.gid));
            if !is_ack && !self.early.contains_key(&to.gid) {
                let mut content = Vec::new();
                if packet.kind.is_atomic() {
                    content.extend_from_slice(&operands_of(packet));
                } else {
                    payload.append_to(&mut content);
                }
                self.early.insert(to.gid, (*packet, content));
                self.events.push_back(Event::Connect(to.gid));
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
        !self.early.contains_key(&to.gid) // the first packet asks for a channel
    }

    fn place(&mut self, to: &Route, write: &Placing, payload: Payload<'_>) -> bool {
        let Some(channel) = self.channel(&to.gid) else {
            return false;
        };
        if channel.place(write.target_qpn, write.rkey, write.address, payload) {
            channel.counters.writes_placed += 1;
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
