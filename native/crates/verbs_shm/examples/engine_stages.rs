//! What each stage of a SEND costs, two engines of one thread: no line goes between processors;
//! `cargo run --release -p urds-verbs-shm --example engine_stages -- [ROUNDS]`.

#![allow(clippy::cast_precision_loss, clippy::unwrap_used)] // of figures; of an example

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Instant;

use support::{End, pair};
use urds_verbs::numbers::Opcode;
use urds_verbs::work::SendWork;

const BYTES: usize = 64;
/// Rounds of one run.
const RUN: usize = 100;
const STAGES: [&str; 6] = [
    "post",
    "flush",
    "receive",
    "poll",
    "post receive",
    "acknowledge",
];

fn round(ends: &mut [End; 2], batch: usize, spent: &mut [f64; 6]) {
    let [first, second] = ends;
    let mut before = Instant::now();
    let mut stage = 0;
    let mut lap = || {
        let now = Instant::now();
        spent[stage] += (now - before).as_secs_f64() * 1e9;
        (before, stage) = (now, stage + 1);
    };
    for _ in 0..batch {
        let mut work = SendWork::boxed(0, Opcode::Send, first.piece(0, BYTES));
        work.flags = 0;
        first.post_boxed(work).unwrap();
    }
    lap();
    first.flush();
    lap();
    second.progress();
    lap();
    for _ in 0..batch {
        second.poll().unwrap();
    }
    lap();
    for _ in 0..batch {
        second.receive(1, 4096, BYTES);
    }
    lap();
    second.progress();
    second.progress();
    first.progress();
    lap();
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let rounds: usize = rounds.unwrap_or(20_000);
    for batch in [1, 16] {
        let (mut ends, _heard) = pair();
        for _ in 0..64 {
            ends[1].receive(1, 4096, BYTES);
        }
        let mut best = [f64::INFINITY; 6];
        // The least of many short runs: the machine has other work.
        for _ in 0..rounds / RUN {
            let mut spent = [0.0; 6];
            for _ in 0..RUN {
                round(&mut ends, batch, &mut spent);
            }
            for (best, spent) in best.iter_mut().zip(spent) {
                *best = best.min(spent / (RUN * batch) as f64);
            }
        }
        println!("SEND of {BYTES} bytes, {batch} a call, ns a message:");
        for (name, spent) in STAGES.iter().zip(best) {
            println!("  {name:<14}{spent:8.1}");
        }
        println!("  {:<14}{:8.1}", "all", best.iter().sum::<f64>());
    }
}
