//! Figures of two engines over a channel, both polling, beside the floor of a cache line to and fro;
//! `cargo run --release -p urds-verbs-shm --example engine_rate -- [SECONDS]`.
//!
//! Two threads on two processors, by `taskset`; each figure is the median of windows of 64 operations.

#![allow(clippy::cast_precision_loss, clippy::unwrap_used)] // of figures; of an example

#[path = "../tests/support/mod.rs"]
mod support;

use std::hint::{black_box, spin_loop};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use support::{ADDRESS, End, GIDS, REGION_BYTES, pair};
use urds_verbs::numbers::{Opcode, WcOpcode};
use urds_verbs::work::SendWork;
use urds_verbs_shm::{Event, Region};

const STEP: u32 = 64;

/// Alone in the cache lines that processors fetch together.
#[repr(align(128))]
struct Apart<T>(T);

fn pin(processor: usize) {
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    let own = own.file_name().unwrap().to_owned();
    let mut taskset = Command::new("taskset");
    taskset.args(["-cp", &processor.to_string()]).arg(own);
    let done = taskset.stdout(Stdio::null()).status();
    assert!(done.is_ok_and(|status| status.success()), "taskset");
}

fn window(mut operation: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..STEP {
        operation();
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(STEP)
}

fn measured(time: Duration, mut operation: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut found = Vec::new();
    while start.elapsed() < time {
        found.push(window(&mut operation));
    }
    found.sort_by(f64::total_cmp);
    found[found.len() / 2]
}

fn floor(time: Duration) -> f64 {
    let (there, back) = (Apart(AtomicU64::new(0)), Apart(AtomicU64::new(0)));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            while !stop.load(Ordering::Relaxed) {
                back.0
                    .store(there.0.load(Ordering::Acquire), Ordering::Release);
                spin_loop();
            }
        });
        let mut number = 0;
        let found = measured(time, || {
            number += 1;
            there.0.store(number, Ordering::Release);
            while back.0.load(Ordering::Acquire) != number {
                spin_loop();
            }
        });
        stop.store(true, Ordering::Relaxed);
        found
    })
}

/// Look until a receive has completed; post it again, take what was sent.
fn receive(end: &mut End, stop: &AtomicBool) -> bool {
    loop {
        while let Some(done) = end.poll() {
            if done.opcode == WcOpcode::Recv {
                end.receive(done.wr_id, 4096, 4096);
                return true;
            }
        }
        if !end.progress() {
            if stop.load(Ordering::Relaxed) {
                return false;
            }
            spin_loop();
        }
    }
}

fn with_pair<T>(
    of_second: impl FnOnce(&mut End, &AtomicBool) + Send,
    of_first: impl FnOnce(&mut End, &AtomicBool) -> T,
) -> T {
    let (ends, _heard) = pair();
    let [mut first, mut second] = ends;
    for end in [&mut first, &mut second] {
        for id in 0..512 {
            end.receive(id, 4096, 4096);
        }
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            of_second(&mut second, &stop);
        });
        let found = of_first(&mut first, &stop);
        stop.store(true, Ordering::Relaxed);
        found
    })
}

fn round_trip(bytes: usize, time: Duration) -> f64 {
    let echo = |end: &mut End, stop: &AtomicBool| {
        while receive(end, stop) {
            end.send(0, 0, bytes);
        }
    };
    with_pair(echo, |end, stop| {
        measured(time, || {
            end.send(0, 0, bytes);
            receive(end, stop);
        })
    })
}

fn one_way(bytes: usize, batch: usize, time: Duration) -> f64 {
    let pour = |end: &mut End, stop: &AtomicBool| {
        while !stop.load(Ordering::Relaxed) {
            while end.poll().is_some() {}
            let open = end.engine.get(end.number).unwrap().outstanding_requests();
            if open < 256 {
                for _ in 0..batch {
                    end.post(SendWork::new(0, Opcode::Send, end.piece(0, bytes)));
                }
                end.flush();
            }
            end.progress();
        }
    };
    with_pair(pour, |end, stop| {
        measured(time, || {
            black_box(receive(end, stop));
        })
    })
}

/// Writes into mapped memory, and a copy of the same length as their measure.
fn place(bytes: usize, span: usize, time: Duration) -> (f64, f64) {
    let (mut ends, _heard) = pair();
    let (key, file) = (ends[1].key, ends[1].file);
    let work = |end: &End, at: usize| {
        let mut work = SendWork::new(0, Opcode::RdmaWrite, end.piece(0, bytes));
        (work.remote_addr, work.rkey) = (ADDRESS + at as u64, key);
        work
    };
    let first = work(&ends[0], 0);
    ends[0].post(first);
    ends[0].flush();
    assert!(matches!(
        ends[0].channels.events.pop_front(),
        Some(Event::Map(..))
    ));
    for _ in 0..200 {
        ends[1].progress();
        ends[0].progress();
    }
    let region = Region {
        file,
        address: ADDRESS,
        length: REGION_BYTES as u64,
        generation: 1,
    };
    ends[0]
        .channels
        .map(&GIDS[1], 0x11, key, Some(region))
        .unwrap();
    let mut at = 0;
    let placed = measured(time, || {
        at = (at + bytes) % span;
        let next = work(&ends[0], at);
        ends[0].post(next);
        ends[0].flush();
        ends[1].progress();
        ends[0].progress();
        while ends[0].poll().is_some() {}
    });
    let (source, mut target) = (vec![1u8; bytes], vec![0u8; span]);
    let copied = measured(time, || {
        at = (at + bytes) % span;
        target[at..at + bytes].copy_from_slice(black_box(&source));
        black_box(&mut target);
    });
    (placed, copied)
}

fn main() {
    pin(0);
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let time = Duration::from_secs_f64(seconds.unwrap_or(1.0));
    for bytes in [8, 64, 1024] {
        let found = round_trip(bytes, time);
        let line = floor(time / 4);
        println!("SEND {bytes} bytes there and back: {found:.3} µs; floor {line:.3}");
    }
    for (bytes, batch) in [(64, 1), (64, 16), (64, 64), (1024, 16)] {
        let found = one_way(bytes, batch, time);
        let line = floor(time / 4);
        println!(
            "SEND {bytes} bytes one way, {batch} a call: {:.2} M/s; floor {line:.3}",
            1.0 / found
        );
    }
    for (bytes, span) in [
        (64 << 10, 64 << 10),
        (64 << 10, 1 << 20),
        (1 << 20, 1 << 20),
    ] {
        let (placed, copied) = place(bytes, span, time);
        let rate = bytes as f64 / 1000.0;
        println!(
            "WRITE {} KiB over {} KiB: {:.1} GB/s, a copy {:.1}",
            bytes >> 10,
            span >> 10,
            rate / placed,
            rate / copied,
        );
    }
}
