//! A stream between two cores in one thread, for counts of instructions;
//! `cargo run --release -p urds-stream --example stream_rate -- [MESSAGES [BYTES]]`, or below
//! `perf stat -e instructions:u`.
//!
//! The cores alone: a post is copied from its bytes into the peer's memory, its word told, its
//! completion given at once. `echo` answers each message, `flow` reads what is there at the end of each.

#![allow(clippy::cast_precision_loss)] // of figures

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use urds_stream::{Memory, Region, StreamCore, StreamSettings};

/// Memory of this thread, which both sides write.
#[derive(Clone)]
struct Plain(Rc<RefCell<Vec<u8>>>);

impl Memory for Plain {
    fn read(&self, at: usize, to: &mut [u8]) {
        to.copy_from_slice(&self.0.borrow()[at..at + to.len()]);
    }

    fn write(&self, at: usize, from: &[u8]) {
        self.0.borrow_mut()[at..at + from.len()].copy_from_slice(from);
    }
}

struct Side {
    core: StreamCore<Plain>,
    regions: Vec<Region<Plain>>,
    next_address: u64,
    taken: Vec<u8>,
}

impl Side {
    fn new(settings: StreamSettings, base: u64) -> Self {
        let first = region(base, 0, settings.region_bytes());
        Self {
            core: StreamCore::new(settings, first.clone()),
            next_address: base + (1 << 32),
            regions: vec![first],
            taken: Vec::new(),
        }
    }

    /// Let all that a side has to say arrive at the other; return whether there was something.
    fn tell(&mut self, peer: &mut Self, data: &[u8]) -> bool {
        let mut has_told = false;
        while let Some(post) = self.core.poll_transmit() {
            has_told = true;
            let bytes = match post.data {
                urds_stream::Data::Caller { at, length, .. } => &data[at..at + length],
                ref own => own.own_bytes().unwrap_or(&[]),
            };
            if !bytes.is_empty() {
                let region = &peer.regions[post.rkey as usize];
                let at = usize::try_from(post.address - region.address).unwrap_or(usize::MAX);
                region.memory.write(at, bytes);
            }
            if let Some(word) = post.word {
                peer.core.receive_data(word).expect("an honest peer");
            }
            self.core.handle_sent();
        }
        has_told
    }

    /// Read all that is there; bring the ring what it wants.
    fn read(&mut self) -> usize {
        let Self { core, taken, .. } = self;
        let mut count = 0;
        core.receive_into(taken.len(), false, &mut |memory: &Plain, at, length| {
            memory.read(at, &mut taken[count..count + length]);
            count += length;
        });
        if let Some(byte_count) = core.wanted_ring() {
            let rkey = u32::try_from(self.regions.len()).unwrap_or(u32::MAX);
            let grown = region(self.next_address, rkey, byte_count);
            self.next_address += 1 << 32;
            self.regions.push(grown.clone());
            core.grow(grown);
        }
        while core.take_released().is_some() {}
        count
    }
}

fn region(address: u64, rkey: u32, length: usize) -> Region<Plain> {
    Region {
        memory: Plain(Rc::new(RefCell::new(vec![0; length]))),
        address,
        rkey,
        length,
    }
}

fn pair(settings: StreamSettings, byte_count: usize) -> [Side; 2] {
    let mut sides = [1 << 40, 2 << 40].map(|base| Side::new(settings, base));
    let introductions = [1, 0].map(|peer: usize| *sides[peer].core.connect_data());
    for (side, introduction) in sides.iter_mut().zip(&introductions) {
        side.core.adopt(introduction).expect("a side of ours");
        side.taken = vec![0; byte_count.max(1 << 16)];
    }
    sides
}

/// Move one message from a side to the other, all of it.
fn carry(from: &mut Side, to: &mut Side, data: &[u8]) {
    let (mut sent, mut got) = (0, 0);
    while got < data.len() {
        let rest = &data[sent..];
        if !rest.is_empty() {
            sent += from.core.send(rest, true).expect("connected");
        }
        let first = from.tell(to, rest);
        got += to.read();
        let second = to.tell(from, &[]);
        assert!(first || second || got == data.len(), "stands still");
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|one| one.parse().ok());
    let messages = arguments.next().unwrap_or(100_000).max(1);
    let byte_count = arguments.next().unwrap_or(8).max(1);
    let settings = StreamSettings {
        chunk_max_bytes: 1 << 16,
        ..StreamSettings::default()
    };
    let data = vec![7; byte_count];
    for (name, answers) in [("flow", false), ("echo", true)] {
        let [mut first, mut second] = pair(settings, byte_count);
        let began = Instant::now();
        for _ in 0..messages {
            carry(&mut first, &mut second, &data);
            if answers {
                carry(&mut second, &mut first, &data);
            }
        }
        let each_ns = began.elapsed().as_secs_f64() * 1e9 / messages as f64;
        let posts = first.core.stats.messages_sent + first.core.stats.credits_sent;
        println!(
            "{name}: {messages} messages of {byte_count} bytes, {each_ns:.0} ns each, {:.2} posts each",
            posts as f64 / messages as f64
        );
    }
}
