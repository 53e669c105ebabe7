//! A stream in its queue pair, whose peer sends any word and writes what it likes into our memory.
//!
//! The script is packets of the peer, with words near to right ones and with any, and entries of the
//! tables, between calls of the application. No panic; memory changes where a key allows it and
//! nowhere else; no more bytes are read than words have announced; what waits to be sent keeps to its
//! bound, what leaves fits the queue pair and its settings, and after a cut, which has a reason, and
//! after a close nothing leaves; all memory comes back.

use std::collections::VecDeque;
use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use parking_lot::Mutex;
use urds_stream::wire::{
    CREDIT_HAS_ENTRY, IOMAP_ENTRY_BYTES, IomapEntry, Op, SGE_BYTES, Sge, emit_word,
};
use urds_stream::{Mapped, Region, Shut, StreamCore, StreamSettings, StreamState};
use urds_stream_link::{
    Attention, Link, News, SendContent, SharedLink, attach, post_pending, send, send_mapped,
};
use urds_verbs::Engine;
use urds_verbs::attributes::{Cap, Field, Link as LinkTraits};
use urds_verbs::memory::{Content, Extent, Memory, Payload};
use urds_verbs::numbers::Kind;
use urds_verbs::packets::{FIRST, IMMEDIATE, LAST, PLACED, Packet};
use urds_verbs::queue_pair::Outlet;
use urds_verbs::work::Route;

use crate::streams::queue_pairs::{Guarded, lead, link_of, route_of, setup};
use crate::streams::{self, Ram, WRITE_ACCESS};

const STEPS_MAX: usize = 120;
const ADDRESS: u64 = 0x1_0000;
const STRIDE: u64 = 1 << 20;
const QPN: u32 = 16;
const PEER_QPN: u8 = 17;
const PEER: Route = route_of(PEER_QPN);
const SEND_QUEUE: u16 = 16;
const ENTRIES: u32 = 4;
const IOMAP_SLOTS: u16 = 2;
const CAP: Cap = Cap {
    max_send_wr: SEND_QUEUE as i64,
    max_recv_wr: 0,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline_data: 0,
};
const RING_MAX: usize = 1 << 13;
const SEND_BYTES: usize = 4096;
const CHUNK_MAX: usize = 1000;
const EXPECTED_BYTES: usize = 20_000;
/// Posts that one step may cause, at most.
const POSTS_MAX: usize = 400;

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step<'a> {
    // The peer.
    Word(u32),
    Data(u16),
    Credit {
        limit: u16,
        by: i8,
        has_entry: bool,
    },
    Iomap(u8),
    Control(u8),
    /// A table entry: space that it announces.
    Entry {
        slot: u8,
        address: u64,
        length: u32,
        shift: u8,
    },
    /// A mapping of its memory.
    Mapping {
        slot: u8,
        offset: u64,
        length: u32,
        shift: u8,
    },
    Bytes {
        at: u16,
        bytes: &'a [u8],
    },
    /// About the ends of a region.
    Edge {
        at: i8,
        length: u8,
        word: Option<u32>,
    },
    Message(u8),
    Acknowledge(u8),
    // The application.
    Send {
        length: u16,
        may_zero_copy: bool,
        from_memory: bool,
    },
    SendMapped {
        length: u16,
        offset: u64,
        shift: u8,
    },
    Receive {
        wanted: u16,
        peek: bool,
    },
    Expect(u16),
    EndExpect,
    Map {
        name: u8,
        length: u64,
        shift: u8,
        offset: Option<u64>,
    },
    Unmap(u8),
    Shut(u8),
    Time(u32),
    Room(bool),
    Begin,
    RefuseGrowth,
}

/// What leaves: the PSNs that ask for an acknowledgement.
#[derive(Default)]
struct Wire {
    is_full: bool,
    packets: usize,
    unanswered: VecDeque<u32>,
}

impl Outlet for Wire {
    fn packet(&mut self, _to: &Route, packet: &Packet, payload: Payload<'_>) {
        self.packets += 1;
        if packet.kind == Kind::Write {
            self.unanswered.push_back(packet.psn);
            let end = u128::from(packet.address) + payload.len() as u128;
            assert!(end <= 1 << 64, "a write beyond the addresses");
        }
    }

    fn has_room(&mut self, _to: &Route) -> bool {
        !self.is_full
    }
}

struct World {
    engine: Engine,
    qp: u32,
    link: SharedLink<Ram>,
    wire: Wire,
    regions: Vec<Region<Ram>>,
    settings: StreamSettings,
    data: Vec<u8>,
    /// Bytes that words have announced, and that were read.
    announced: u64,
    taken: u64,
    psn: i64,
    msn: u32,
    was_cut: bool,
}

/// Follow the script that the bytes make.
///
/// # Panics
/// If a rule is broken.
pub fn run(bytes: &[u8]) {
    let mut source = Unstructured::new(bytes);
    let choices = source.arbitrary().unwrap_or(0);
    let changed = source.arbitrary().unwrap_or((0, 0, 0));
    let mut world = World::new(choices, changed);
    for _ in 0..STEPS_MAX {
        match source.arbitrary() {
            Ok(step) if !source.is_empty() => world.follow(step),
            _ => break,
        }
        world.see();
    }
    world.end();
}

impl World {
    fn new(choices: u8, (at, byte, what): (u8, u8, u8)) -> Self {
        let settings = settings(choices);
        let mut engine = Engine::new(None, false);
        let cq = engine.completion_queue(1, false).expect("one entry");
        let traits = LinkTraits {
            acks_wait: choices & 16 != 0,
            ..link_of(4096)
        };
        let qp = engine.queue_pair(setup(16, cq, CAP, traits));
        let mut regions = Vec::new();
        let first = region(&mut engine, &mut regions, settings.region_bytes());
        let core = StreamCore::new(settings, first);
        let news = Arc::new(News::default());
        let link = Arc::new(Mutex::new(Link::new(
            core,
            Arc::new(Attention::new(QPN, news)),
            4,
        )));
        attach(&mut engine, qp, &link).expect("in RESET");
        let mut world = Self {
            engine,
            qp,
            link,
            wire: Wire::default(),
            regions,
            settings,
            data: vec![3; 1 << 15],
            announced: 0,
            taken: 0,
            psn: 0,
            msn: 0,
            was_cut: false,
        };
        world.connect();
        world.adopt(at, byte, what);
        if choices & 32 == 0 {
            world.begin();
        }
        world
    }

    fn connect(&mut self) {
        let numbers = [
            (Field::AccessFlags, WRITE_ACCESS),
            (Field::RnrRetry, 7),
            (Field::MinRnrTimer, 12),
            (Field::DestQpn, PEER_QPN.into()),
        ];
        let led = lead(&mut self.engine, self.qp, PEER, &numbers);
        assert_eq!(led, Ok(()));
    }

    /// Take private data of a peer like us, one byte of it changed.
    fn adopt(&mut self, at: u8, byte: u8, what: u8) {
        let theirs = Region {
            memory: Ram(Arc::new(Guarded::new(self.settings.region_bytes()))),
            address: 1 << 40,
            rkey: 9,
            length: self.settings.region_bytes(),
        };
        let mut data = *StreamCore::new(self.settings, theirs).connect_data();
        if what & 1 != 0 {
            data[usize::from(at) % data.len()] ^= byte;
        }
        if what & 2 != 0 {
            data[2..4].copy_from_slice(&1000_u16.to_be_bytes()); // credits
        }
        let mut link = self.link.lock();
        if link.core.adopt(&data).is_err() {
            assert_eq!(link.core.lifecycle.state, StreamState::New);
        }
    }

    fn begin(&mut self) {
        let mut link = self.link.lock();
        if link.core.lifecycle.is_connected {
            link.begin();
        }
    }

    fn follow(&mut self, step: Step<'_>) {
        match step {
            Step::Word(word) => self.say(word),
            Step::Data(length) => {
                let (_, _, announced) = self.link.lock().core.receive_ring.sizes();
                let most = announced.clamp(1, 700);
                let length = usize::from(length) % most + 1;
                self.say(emit_word(Op::Data, u32::try_from(length).unwrap_or(0)));
            }
            Step::Credit {
                limit,
                by,
                has_entry,
            } => {
                let limit = if by == 0 {
                    limit
                } else {
                    (limit % 32).wrapping_add_signed(by.into())
                };
                let flag = if has_entry { CREDIT_HAS_ENTRY } else { 0 };
                self.say(emit_word(Op::Credit, u32::from(limit) | flag));
            }
            Step::Iomap(slot) => self.say(emit_word(Op::Iomap, u32::from(slot) / 64)),
            Step::Control(what) => self.say(emit_word(Op::Control, u32::from(what) / 64)),
            Step::Entry { .. } | Step::Mapping { .. } => self.fill_table(step),
            Step::Bytes { at, bytes } => self.place(at.into(), bytes),
            Step::Edge { at, length, word } => self.write_at_an_edge(at, length, word),
            Step::Message(length) => {
                let packet = Packet::new(Kind::Send, QPN, self.psn, FIRST | LAST);
                self.receive(packet, &[7; 256][..length.into()]);
            }
            Step::Acknowledge(count) => self.acknowledge(count),
            _ => self.call(step),
        }
    }

    fn fill_table(&mut self, step: Step<'_>) {
        match step {
            Step::Entry {
                slot,
                address,
                length,
                shift,
            } => {
                let address = address >> (shift % 64);
                let (key, length) = (1, length >> (shift % 32));
                let entry = Sge {
                    address,
                    key,
                    length,
                };
                let at = usize::from(slot) % ENTRIES as usize * SGE_BYTES;
                self.place(at, &entry.emit(shift & 64 != 0));
            }
            Step::Mapping {
                slot,
                offset,
                length,
                shift,
            } => {
                let entry = IomapEntry {
                    offset: offset >> (shift % 64),
                    address: offset.rotate_left(shift.into()),
                    key: 1,
                    length: length >> (shift % 32),
                };
                let slot = usize::from(slot) % usize::from(IOMAP_SLOTS);
                let at = ENTRIES as usize * SGE_BYTES + slot * IOMAP_ENTRY_BYTES;
                self.place(at, &entry.emit(shift & 64 != 0));
            }
            _ => (),
        }
    }

    fn call(&mut self, step: Step<'_>) {
        match step {
            Step::Send {
                length,
                may_zero_copy,
                from_memory,
            } => self.send(length.into(), may_zero_copy, from_memory),
            Step::SendMapped {
                length,
                offset,
                shift,
            } => {
                let content = SendContent::Bytes(&self.data[..usize::from(length) % 30_000]);
                let (engine, wire) = (&mut self.engine, &mut self.wire);
                let offset = offset >> (shift % 64);
                let taken = send_mapped(engine, self.qp, &self.link, &content, offset, wire);
                assert!(taken.is_ok_and(|taken| taken <= 30_000) || !self.is_open());
            }
            Step::Receive { wanted, peek } => self.take(usize::from(wanted) % 10_000, peek),
            Step::Expect(less) => {
                let memory = region(&mut self.engine, &mut self.regions, EXPECTED_BYTES);
                let wanted = EXPECTED_BYTES - usize::from(less) % 10_000;
                let _ = self.link.lock().core.expect(memory, wanted);
            }
            Step::EndExpect => {
                self.taken += self.link.lock().core.end_expect() as u64;
            }
            Step::Map {
                name,
                length,
                shift,
                offset,
            } => {
                let buffer = Mapped {
                    name: (name % 4).into(),
                    address: length.rotate_left(shift.into()),
                    rkey: 1,
                    length: length >> (shift % 64),
                };
                let offset = offset.map(i128::from);
                let _ = self.link.lock().core.map_buffer(&buffer, offset);
            }
            Step::Unmap(name) => {
                let _ = self.link.lock().core.unmap((name % 4).into(), 0);
            }
            Step::Shut(how) => {
                let how = [Shut::Rd, Shut::Wr, Shut::RdWr][usize::from(how) % 3];
                self.link.lock().core.lifecycle.shut_down(how);
            }
            Step::Time(at) => self.link.lock().core.handle_timeout(at.into()),
            Step::Room(is_there) => {
                self.wire.is_full = !is_there;
                self.engine.resume();
            }
            Step::Begin => self.begin(),
            _ => self.link.lock().core.refuse_growth(),
        }
    }

    fn is_open(&self) -> bool {
        self.link.lock().core.lifecycle.can_write
    }

    // -- the peer

    fn say(&mut self, word: u32) {
        let mut packet = Packet::new(Kind::Write, QPN, self.psn, FIRST | LAST | IMMEDIATE);
        packet.immediate = word;
        let before = self.link.lock().core.stats.bytes_received;
        self.receive(packet, &[]);
        self.announced += self.link.lock().core.stats.bytes_received - before;
    }

    /// Write into one of the regions, by its key.
    fn place(&mut self, at: usize, bytes: &[u8]) {
        let region = &self.regions[at / 1024 % self.regions.len()];
        let at = at % region.length;
        let length = bytes.len().min(region.length - at);
        let (address, rkey) = (region.address + at as u64, region.rkey);
        let mut packet = Packet::new(Kind::Write, QPN, self.psn, FIRST | LAST);
        (packet.address, packet.rkey) = (address, rkey);
        self.receive(packet, &bytes[..length]);
    }

    fn write_at_an_edge(&mut self, at: i8, length: u8, word: Option<u32>) {
        let region = &self.regions[usize::from(length) % self.regions.len()];
        let end = region.address + if at & 1 == 0 { region.length as u64 } else { 0 };
        let mut packet = Packet::new(Kind::Write, QPN, self.psn, FIRST | LAST);
        packet.address = end.wrapping_add_signed(i64::from(at) / 2);
        packet.rkey = region.rkey ^ u32::from(length == 255);
        if let Some(word) = word {
            packet.flags |= IMMEDIATE | if at == 5 { PLACED } else { 0 };
            (packet.immediate, packet.length) = (word, length.into());
        }
        let before = self.link.lock().core.stats.bytes_received;
        let payload = if packet.has(PLACED) { 0 } else { length };
        self.receive(packet, &[9; 256][..usize::from(payload)]);
        self.announced += self.link.lock().core.stats.bytes_received - before;
    }

    fn receive(&mut self, mut packet: Packet, payload: &[u8]) {
        if packet.kind == Kind::Send || packet.has(IMMEDIATE) {
            self.msn = self.msn.wrapping_add(1);
            packet.msn = self.msn;
        }
        self.psn += 1;
        self.engine
            .receive_packet(&packet, Content::Bytes(payload), PEER, 0);
    }

    fn acknowledge(&mut self, count: u8) {
        let mut last = None;
        for _ in 0..=count % 8 {
            last = self.wire.unanswered.pop_front().or(last);
        }
        if let Some(psn) = last {
            let mut packet = Packet::new(Kind::Ack, QPN, psn.into(), 0);
            packet.syndrome = if count == 255 { 0x62 } else { 0x1F };
            self.engine
                .receive_packet(&packet, Content::Bytes(&[]), PEER, 0);
        }
    }

    // -- the application

    fn send(&mut self, length: usize, may_zero_copy: bool, from_memory: bool) {
        let length = length % 30_000;
        let memory = Guarded::new(if from_memory { length } else { 0 });
        let content = if from_memory {
            SendContent::Memory(Extent {
                memory: &memory,
                at: 0,
                length,
            })
        } else {
            SendContent::Bytes(&self.data[..length])
        };
        let (engine, wire) = (&mut self.engine, &mut self.wire);
        let taken = send(engine, self.qp, &self.link, &content, may_zero_copy, wire);
        assert!(taken.is_ok_and(|taken| taken <= length) || !self.is_open());
    }

    fn take(&mut self, wanted: usize, peek: bool) {
        let mut got = 0;
        let mut link = self.link.lock();
        let readable = link.core.receive_ring.available();
        let mut copy = |memory: &Ram, at: usize, length: usize| {
            let mut room = vec![0; length];
            memory.0.read(at, &mut room);
            got += length;
        };
        link.core.receive_into(wanted, peek, &mut copy);
        assert_eq!(got, wanted.min(readable), "what is readable is read");
        if !peek {
            self.taken += got as u64;
        }
        let grown = link.core.wanted_ring();
        drop(link);
        if let Some(bytes) = grown {
            assert!(bytes <= 2 * RING_MAX);
            let made = region(&mut self.engine, &mut self.regions, bytes);
            self.link.lock().core.grow(made);
        }
    }

    /// Let what is due leave, and look at all that has to hold.
    fn see(&mut self) {
        let before = self.wire.packets;
        post_pending(&mut self.engine, self.qp, &self.link, &mut self.wire);
        while self.engine.poll(0, &mut self.wire) {}
        assert!(self.wire.packets - before <= POSTS_MAX, "posts without end");
        let mut link = self.link.lock();
        assert!(self.taken <= self.announced, "bytes that no word announced");
        let core = &link.core;
        let unsent = core.unsent_bytes() - core.sending.zero_copy_bytes;
        assert!(unsent <= SEND_BYTES);
        assert!(core.sending.in_flight() <= SEND_QUEUE.into());
        while let Some(gone) = link.core.take_released() {
            assert!(self.regions.iter().any(|one| one.address == gone.address));
        }
        if let Some(reason) = link.cut.clone()
            && !self.was_cut
        {
            assert!(!reason.is_empty(), "a cut has a reason");
            self.was_cut = true;
            link.core.handle_disconnected(&reason, 104); // as its owner does
            link.update();
            assert!(link.core.poll_transmit().is_none(), "a cut is the end");
        }
    }

    fn end(mut self) {
        self.engine.close_queue_pair(self.qp);
        let mut link = self.link.lock();
        link.core.close();
        assert!(link.core.poll_transmit().is_none());
        let mut released = 0;
        while link.core.take_released().is_some() {
            released += 1;
        }
        assert!(released >= 1, "the first region at least");
        drop(link);
        assert!(self.regions.iter().all(|one| one.memory.0.is_whole()));
    }
}

fn settings(choices: u8) -> StreamSettings {
    StreamSettings {
        send_queue: SEND_QUEUE,
        receive_queue: 16,
        receive_bytes: 2048,
        is_receive_fixed: choices & 1 != 0,
        ring_first_bytes: 1024,
        ring_max_bytes: RING_MAX,
        send_bytes: SEND_BYTES,
        chunk_max_bytes: CHUNK_MAX,
        iomap_slots: IOMAP_SLOTS,
        table_entries: ENTRIES,
        is_big_endian: choices & 2 != 0,
        no_delay: choices & 4 != 0,
        keepalive_ns: (choices & 8 != 0).then_some(100),
        ..StreamSettings::default()
    }
}

fn region(engine: &mut Engine, regions: &mut Vec<Region<Ram>>, length: usize) -> Region<Ram> {
    let made = streams::region(engine, length, ADDRESS + regions.len() as u64 * STRIDE);
    regions.push(made.clone());
    made
}
