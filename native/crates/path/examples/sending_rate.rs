//! Cost of sending one message: `cargo run --release -p urds-path --example sending_rate`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use urds_path::{
    AckMode, CongestionMap, Counters, Hold, Limits, NO_EXTENSION, Owner, PathCore, Payload,
};

const MESSAGES: u32 = 2_000_000;

/// How long each burst took to queue, to frame, to free.
type Spent = [Vec<Duration>; 3];

fn main() {
    for payload_bytes in [64, 200, 8192] {
        for burst in [1, 16, 512, 8192, 32768] {
            let spent = measure(&vec![7; payload_bytes], burst);
            // The median: it leaves out the load of other processes.
            let [queue, frame, free] = spent.map(|mut bursts| {
                bursts.sort_unstable();
                bursts[bursts.len() / 2].as_secs_f64() * 1e9 / f64::from(burst)
            });
            println!(
                "{payload_bytes:5} bytes, bursts of {burst:5}: queue {queue:5.1} ns, \
                 frame {frame:5.1} ns, free {free:5.1} ns"
            );
        }
    }
}

fn measure(payload: &[u8], burst: u32) -> Spent {
    let (map, mut counters) = (CongestionMap::default(), Counters::default());
    let mut core = PathCore::new(Limits::default(), 1, None);
    core.agree(AckMode::PeerAcknowledged, true);
    core.attach(Hold::Nothing);
    let (mut spent, mut freed) = (Spent::default(), Vec::with_capacity(8));
    let payload = Payload::copy_of(payload);
    for _ in 0..MESSAGES / burst {
        let began = Instant::now();
        for _ in 0..burst {
            core.send(
                Owner(7),
                4000,
                5000,
                black_box(&payload).clone(),
                NO_EXTENSION,
            );
        }
        let queued = Instant::now();
        while let Some(write_buffer) = core.poll_transmit(&map, &mut counters) {
            let taken = black_box(&write_buffer).len();
            core.transmitted(write_buffer, taken);
        }
        let framed = Instant::now();
        let newest = core.sender.sequence_next - 1;
        assert!(
            core.sender.handle_peer_acknowledged(newest),
            "all were handed over"
        );
        core.take_freed(&mut freed);
        for (bursts, took) in
            spent
                .iter_mut()
                .zip([queued - began, framed - queued, framed.elapsed()])
        {
            bursts.push(took);
        }
    }
    spent
}
