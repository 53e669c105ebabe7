//! Two cores and a peer that says anything: arithmetic, ranges, bytes. Equality with Python's core is
//! shown by `tests/parity`.

use std::sync::{Arc, Mutex};

use crate::records::{Data, Memory, Region, StreamSettings, ZERO_COPY_BYTES_MIN};
use crate::wire::{CREDIT_HAS_ENTRY, Control, IomapEntry, Op, Sge, emit_word};
use crate::{Mapped, PostKind, Shut, StreamCore, StreamState};

/// Memory that panics outside of its range, as `Memory` asks for.
#[derive(Clone, Debug)]
struct Plain(Arc<Mutex<Vec<u8>>>);

impl Memory for Plain {
    fn read(&self, at: usize, to: &mut [u8]) {
        let bytes = self.0.lock().expect("no panic before");
        to.copy_from_slice(&bytes[at..at + to.len()]);
    }

    fn write(&self, at: usize, from: &[u8]) {
        let mut bytes = self.0.lock().expect("no panic before");
        bytes[at..at + from.len()].copy_from_slice(from);
    }
}

/// A generator of numbers: the same ones for the same seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).expect("below a size")
    }

    fn word(&mut self) -> u32 {
        u32::try_from(self.next() >> 32).expect("32 bits")
    }
}

struct Side {
    core: StreamCore<Plain>,
    regions: Vec<Region<Plain>>,
    next_address: u64,
    sent: Vec<u8>, // the data of the last send
}

impl Side {
    fn new(settings: StreamSettings, base: u64) -> Self {
        let mut made = Self {
            core: StreamCore::new(settings, region(base, 0, settings.region_bytes())),
            regions: Vec::new(),
            next_address: base,
            sent: Vec::new(),
        };
        let first = made.allocate(settings.region_bytes());
        made.core = StreamCore::new(settings, first);
        made
    }

    fn allocate(&mut self, length: usize) -> Region<Plain> {
        let rkey = u32::try_from(self.regions.len()).expect("few");
        let made = region(self.next_address, rkey, length);
        self.next_address += (length as u64).next_multiple_of(4096) + 4096;
        self.regions.push(made.clone());
        made
    }

    fn land(&self, address: u64, rkey: u32, bytes: &[u8]) {
        let region = &self.regions[rkey as usize];
        let at = usize::try_from(address - region.address).expect("within the region");
        region.memory.write(at, bytes);
    }

    /// Let all posts land at an honest peer, and complete.
    fn tell(&mut self, peer: &mut Self) -> bool {
        let mut has_told = false;
        while let Some(post) = self.core.poll_transmit() {
            has_told = true;
            let bytes = match &post.data {
                Data::Caller { at, length, .. } => &self.sent[*at..at + length],
                own => own.own_bytes().expect("not the caller's"),
            };
            if !bytes.is_empty() {
                peer.land(post.address, post.rkey, bytes);
            }
            if let Some(word) = post.word {
                peer.core.receive_data(word).expect("an honest peer");
            }
            self.core.handle_sent();
        }
        has_told
    }

    fn read(&mut self, wanted: usize) -> Vec<u8> {
        let mut taken = Vec::new();
        let mut take = |memory: &Plain, at: usize, length: usize| {
            let begin = taken.len();
            taken.resize(begin + length, 0);
            memory.read(at, &mut taken[begin..]);
        };
        self.core.receive_into(wanted, false, &mut take);
        if let Some(bytes) = self.core.wanted_ring() {
            let grown = self.allocate(bytes);
            self.core.grow(grown);
        }
        while self.core.take_released().is_some() {}
        taken
    }
}

fn region(address: u64, rkey: u32, length: usize) -> Region<Plain> {
    Region {
        memory: Plain(Arc::new(Mutex::new(vec![0; length]))),
        address,
        rkey,
        length,
    }
}

fn small() -> StreamSettings {
    StreamSettings {
        send_queue: 16,
        receive_queue: 16,
        receive_bytes: 2048,
        ring_first_bytes: 1024,
        ring_max_bytes: 1 << 13,
        send_bytes: 4096,
        chunk_max_bytes: 1000,
        iomap_slots: 2,
        table_entries: 4,
        keepalive_ns: Some(100),
        ..StreamSettings::default()
    }
}

fn pair(settings: StreamSettings) -> [Side; 2] {
    let mut sides = [1 << 40, 2 << 40].map(|base| Side::new(settings, base));
    let told = [1, 0].map(|peer: usize| *sides[peer].core.connect_data());
    for (side, data) in sides.iter_mut().zip(&told) {
        side.core.adopt(data).expect("a side of ours");
    }
    sides
}

#[test]
fn what_is_sent_arrives() {
    for seed in 0..200 {
        let mut numbers = Numbers(seed);
        let [mut left, mut right] = pair(small());
        let data: Vec<u8> = (0..60_000)
            .map(|_| numbers.word().to_le_bytes()[0])
            .collect();
        let (mut sent, mut got) = (0, Vec::new());
        for _ in 0..10_000 {
            let size = numbers
                .below(2 * ZERO_COPY_BYTES_MIN)
                .min(data.len() - sent);
            left.sent = data[sent..sent + size].to_vec();
            let rest = &data[sent..sent + size];
            sent += left.core.send(rest, true).expect("connected");
            left.tell(&mut right);
            let wanted = numbers.below(4000);
            got.extend(right.read(wanted));
            right.tell(&mut left);
            if got.len() == data.len() {
                break;
            }
        }
        assert!(got == data, "seed {seed}: {} of {} bytes", got.len(), sent);
        left.core.lifecycle.shut_down(Shut::RdWr);
        left.tell(&mut right);
        assert!(right.core.is_ended() && left.core.wants_disconnect());
    }
}

/// Nearly good words and tables, and calls of an application: it ends with a refusal, or goes on.
#[test]
fn nothing_that_a_peer_says_breaks_the_core() {
    let mut rejected = 0;
    for seed in 0..3000 {
        let mut numbers = Numbers(seed);
        let [mut side, mut peer] = pair(small());
        side.tell(&mut peer);
        let mut under_way = 0;
        for _ in 0..numbers.below(200) {
            besiege(&mut numbers, &mut side, &mut under_way, &mut rejected);
            while let Some(post) = side.core.poll_transmit() {
                under_way += 1;
                assert!(post.data.length() <= 1000 || post.kind == PostKind::Data);
                assert!(
                    post.address
                        .checked_add(post.data.length() as u64)
                        .is_some()
                );
            }
            let unsent = side.core.unsent_bytes() - side.core.sending.zero_copy_bytes;
            assert!(unsent <= 4096, "seed {seed}");
        }
        side.core.close();
        assert!(side.core.poll_transmit().is_none());
    }
    assert!(rejected > 100, "{rejected}: no seed is hostile");
}

fn besiege(numbers: &mut Numbers, side: &mut Side, under_way: &mut u32, rejected: &mut u32) {
    match numbers.below(16) {
        0..5 => {
            let word = word_of(numbers, side);
            if let Err(error) = side.core.receive_data(word) {
                *rejected += 1;
                side.core.handle_disconnected(&error.0, 104);
                *under_way = 0;
            }
        }
        5 | 6 => write(numbers, &side.regions[0].memory),
        7 | 8 => {
            let data = vec![3; numbers.below(30_000)];
            let _ = side.core.send(&data[..], numbers.below(2) == 0);
        }
        9 | 10 => {
            let wanted = numbers.below(4000);
            side.read(wanted);
        }
        11 => {
            let memory = side.allocate(20_000);
            let wanted = 20_000 - numbers.below(200);
            let _ = side.core.expect(memory, wanted);
        }
        12 => {
            side.core.end_expect();
        }
        13 => {
            let data = vec![3; numbers.below(30_000)];
            let offset = numbers.next() >> numbers.below(64);
            let _ = side.core.write_mapped(&data[..], offset, true);
            let buffer = Mapped {
                name: numbers.next() & 3,
                address: numbers.next(),
                rkey: 1,
                length: numbers.next() >> numbers.below(64),
            };
            let _ = side.core.map_buffer(&buffer, None);
            let _ = side.core.unmap(numbers.next() & 3, 0);
        }
        14 if numbers.below(20) == 0 => side.core.lifecycle.shut_down(Shut::Wr),
        14 => side.core.handle_timeout(i64::from(numbers.word())),
        _ => {
            if *under_way > 0 {
                *under_way -= 1;
                side.core.handle_sent();
            }
        }
    }
}

/// Write an entry into one of the tables.
fn write(numbers: &mut Numbers, memory: &Plain) {
    if numbers.below(2) == 0 {
        let entry = Sge {
            address: (1 << 41) | (numbers.next() & 0xFFFF_FFFF),
            key: 1,
            length: numbers.word() >> numbers.below(32),
        };
        let bytes = entry.emit(numbers.below(8) == 0);
        memory.write(numbers.below(4) * 16, &bytes);
        return;
    }
    let entry = IomapEntry {
        offset: numbers.next() >> numbers.below(64),
        address: numbers.next() >> numbers.below(64),
        key: 1,
        length: numbers.word() >> numbers.below(32),
    };
    memory.write(64 + numbers.below(2) * 24, &entry.emit(false));
}

fn word_of(numbers: &mut Numbers, side: &Side) -> u32 {
    let (_, _, announced) = side.core.receive_ring.sizes();
    match numbers.below(40) {
        0 => numbers.word(),
        1 => emit_word(Op::Control, Control::Shutdown as u32),
        2 => emit_word(Op::Iomap, numbers.word() & 1),
        3..8 => {
            let (limit, flag) = (numbers.word() & 31, numbers.word() & CREDIT_HAS_ENTRY);
            emit_word(Op::Credit, limit | flag)
        }
        _ => {
            let most = announced.clamp(1, 700);
            emit_word(
                Op::Data,
                u32::try_from(numbers.below(most) + 1).expect("few"),
            )
        }
    }
}

#[test]
fn a_late_larger_ring_is_given_back_after_the_end() {
    let [mut left, mut right] = pair(small());
    for _ in 0..20 {
        left.core.send(&[1; 512][..], false).expect("connected");
        left.tell(&mut right);
        right.core.receive_into(1 << 16, false, &mut |_, _, _| ());
        right.tell(&mut left);
    }
    let wanted = right.core.wanted_ring().expect("it was full and read");
    left.core.lifecycle.shut_down(Shut::RdWr);
    left.tell(&mut right);
    assert_eq!(right.core.lifecycle.state, StreamState::Over);
    let late = right.allocate(wanted);
    right.core.grow(late);
    assert_eq!(
        right.core.take_released().map(|region| region.length),
        Some(wanted)
    );
    assert_eq!(right.core.stats.ring_grown, 0);
}
