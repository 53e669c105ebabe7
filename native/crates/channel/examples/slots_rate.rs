//! Figures of a verbs channel's slots beside the floor, one cache line to and fro; `cargo run --release
//! --example slots_rate -- [SECONDS]`.
//!
//! Two threads of one process, which share memory as two processes do. Where the two run decides: some
//! 0.04 µs for the floor are siblings of one core, 0.1 µs near, 0.45 µs far; so floor and figure are taken
//! in turn, in windows of some microseconds, and printed is the median with the best tenth behind it: on a
//! machine with other work the one of those windows in which both threads ran.

#![allow(clippy::cast_precision_loss, clippy::unwrap_used)] // of figures; of an example

use std::hint::spin_loop;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use urds_channel::channel_memory::{ChannelMemory, Direction, FILE_BYTES};
use urds_channel::slots::{Fields, Reader, SlotMemory, Writer, flags, kinds};
use urds_channel::sys::{area, raw};

/// Operations of a window.
const STEP: u32 = 64;

/// Alone in the cache lines that processors fetch together.
#[derive(Default)]
#[repr(align(128))]
struct Apart<T>(T);

#[derive(Default)]
struct Stage {
    /// The floor's lines.
    ping: Apart<AtomicU64>,
    pong: Apart<AtomicU64>,
    stop: AtomicBool,
}

fn fields() -> Fields {
    Fields {
        kind: kinds::SEND,
        flags: flags::FIRST | flags::LAST,
        target: 1,
        ..Fields::default()
    }
}

fn channel() -> ChannelMemory {
    let (file, mapping) = area::make(FILE_BYTES).unwrap();
    drop(mapping);
    let memory = ChannelMemory::map(file).unwrap();
    raw::close(file);
    memory
}

/// Return what an operation takes in a window, in µs.
fn window(mut operation: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..STEP {
        operation();
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(STEP)
}

/// Bind the calling thread to a processor, by the program of util-linux.
fn pin(processor: usize) {
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    let own = own.file_name().unwrap().to_owned();
    let mut taskset = Command::new("taskset");
    taskset.args(["-cp", &processor.to_string()]).arg(own);
    let done = taskset.stdout(Stdio::null()).status();
    assert!(done.is_ok_and(|status| status.success()), "taskset");
}

/// Look until there is something, or a stop.
fn wait(mut look: impl FnMut() -> bool) {
    while !look() {
        spin_loop();
    }
}

fn floor(time: Duration) -> Vec<f64> {
    let stage = Stage::default();
    let mut found = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            let mut last = 0;
            wait(|| {
                let ping = stage.ping.0.load(Ordering::Acquire);
                if ping != last {
                    last = ping;
                    stage.pong.0.store(ping, Ordering::Release);
                }
                stage.stop.load(Ordering::Relaxed)
            });
        });
        let (start, mut number) = (Instant::now(), 0u64);
        while start.elapsed() < time {
            found.push(window(|| {
                number += 1;
                stage.ping.0.store(number, Ordering::Release);
                wait(|| stage.pong.0.load(Ordering::Acquire) == number);
            }));
        }
        stage.stop.store(true, Ordering::Relaxed);
    });
    found
}

fn put(direction: &Direction<'_>, writer: &mut Writer, payload: &[u8]) {
    let fill = |at| direction.copy_in(at, payload);
    while !writer
        .put(direction, &fields(), payload.len(), fill)
        .unwrap()
    {
        spin_loop();
    }
    assert!(!writer.must_ring(direction), "the reader does not sleep");
}

fn take(direction: &Direction<'_>, reader: &mut Reader, room: &mut [u8]) -> bool {
    let taken = reader.take(direction, &mut || ()).unwrap();
    if let Some(taken) = taken {
        direction.copy_out(taken.at, &mut room[..taken.bytes]);
    }
    taken.is_some()
}

fn round_trip(bytes: usize, time: Duration) -> Vec<f64> {
    let (memory, stop) = (channel(), AtomicBool::new(false));
    let (there, back) = (memory.direction(0), memory.direction(1));
    let mut found = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            let (mut reader, mut writer) = (Reader::default(), Writer::default());
            let mut room = vec![0; bytes];
            wait(|| {
                if take(&there, &mut reader, &mut room) {
                    put(&back, &mut writer, &room);
                }
                stop.load(Ordering::Relaxed)
            });
        });
        let (mut reader, mut writer) = (Reader::default(), Writer::default());
        let (payload, mut room) = (vec![7; bytes], vec![0; bytes]);
        let start = Instant::now();
        while start.elapsed() < time {
            found.push(window(|| {
                put(&there, &mut writer, &payload);
                wait(|| take(&back, &mut reader, &mut room));
            }));
        }
        stop.store(true, Ordering::Relaxed);
    });
    found
}

/// One way, as slots of their own or in bursts; times of one packet at the reader.
fn one_way(bytes: usize, burst: usize, time: Duration) -> Vec<f64> {
    let (memory, stop) = (channel(), AtomicBool::new(false));
    let there = memory.direction(0);
    let mut found = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            let mut writer = Writer::default();
            let payload = vec![7; bytes];
            let fill = |at| there.copy_in(at, &payload);
            wait(|| {
                let mut sent = 0;
                if burst > 1
                    && let Some(mut records) = writer.burst(&there).unwrap()
                {
                    while sent < burst && records.add(&fields(), bytes, fill) {
                        sent += 1;
                    }
                    records.publish();
                } else {
                    writer.put(&there, &fields(), bytes, fill).unwrap();
                }
                writer.must_ring(&there);
                stop.load(Ordering::Relaxed)
            });
        });
        let (mut reader, mut room) = (Reader::default(), vec![0; bytes]);
        let start = Instant::now();
        while start.elapsed() < time {
            found.push(window(|| wait(|| take(&there, &mut reader, &mut room))));
        }
        stop.store(true, Ordering::Relaxed);
    });
    found
}

/// Return the median, and the limit of the best tenth.
fn middle(mut found: Vec<f64>) -> (f64, f64) {
    found.sort_by(f64::total_cmp);
    (found[found.len() / 2], found[found.len() / 10])
}

fn main() {
    pin(0);
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let time = Duration::from_secs_f64(seconds.unwrap_or(1.0));
    let line = |what: &str, found: Vec<f64>, per: f64| {
        let (median, best) = middle(found);
        let (lines, best_lines) = middle(floor(time / 4));
        println!(
            "{what:34} {median:7.3} µs (best tenth {best:6.3}) {:6.2} M/s ({:5.2}); floor {lines:5.3} ({best_lines:5.3}), {:4.1} of it",
            per / median,
            per / best,
            best / best_lines,
        );
    };
    for bytes in [0, 8, 64, 80, 1024] {
        let what = format!("{bytes} bytes there and back");
        line(&what, round_trip(bytes, time), 1.0);
    }
    for (bytes, burst) in [
        (8, 1),
        (64, 1),
        (64, 16),
        (64, 32),
        (1024, 1),
        (32 << 10, 1),
    ] {
        let how = if burst > 1 {
            format!("bursts of {burst}")
        } else {
            "slots".into()
        };
        line(
            &format!("{bytes} bytes one way, {how}"),
            one_way(bytes, burst, time),
            1.0,
        );
    }
}
