//! What one message costs from the octets of a read to its mailbox, and out of it again.
//!
//! `cargo run --release -p urds-path --example incoming_rate`

use std::hint::black_box;
use std::time::Instant;

use urds_path::{Arriving, Counters, Ground, Header, Inbox, Incoming, Limits, SocketAddress};

const READ_BYTES: usize = 256 << 10;
const READS: u32 = 400;

/// A ground with one mailbox, or with none that keeps anything.
struct One {
    inbox: Option<Inbox>,
    source: SocketAddress,
    octets: usize,
}

impl Ground for One {
    fn deliver(&mut self, _: u16, message: Arriving<'_>) -> bool {
        self.octets += message.payload.len();
        if let Some(inbox) = &mut self.inbox {
            let source = SocketAddress {
                port: message.source_port,
                ..self.source
            };
            inbox.push(source, message.extension, message.payload, 0, 0);
        }
        true
    }
}

/// What one read brings: whole messages in a row.
fn read_of(payload_bytes: usize, checksum: bool) -> (Vec<u8>, u32) {
    let messages = READ_BYTES / (48 + payload_bytes);
    let mut octets = Vec::new();
    for sequence in 1..=messages as u64 {
        let header = Header {
            sequence,
            payload_bytes,
            source_port: 4000,
            target_port: 5000,
            ..Header::default()
        };
        octets.extend(header.emit(checksum));
        octets.resize(octets.len() + payload_bytes, 7);
    }
    (octets, u32::try_from(messages).expect("few messages"))
}

/// Take the same read in again and again: its first number is below the expected one, and taken.
fn cost_ns(octets: &[u8], messages: u32, checksum: bool, kept: bool) -> f64 {
    let mut incoming = Incoming::new(Limits::default());
    incoming.checksum = checksum;
    incoming.acknowledging = true;
    incoming.begin_stream();
    let mut counters = Counters::default();
    let mut ground = One {
        inbox: kept.then(|| Inbox::new(1 << 20)),
        source: SocketAddress::new(std::net::Ipv4Addr::LOCALHOST.into(), 0),
        octets: 0,
    };
    let began = Instant::now();
    for _ in 0..READS {
        let read = black_box(octets);
        incoming.begin_stream();
        incoming
            .receive(read, &mut ground, &mut counters)
            .expect("a healthy stream");
        while let Some(inbox) = &mut ground.inbox
            && let Some(front) = inbox.front()
        {
            ground.octets += front.payload.len();
            inbox.pop();
        }
    }
    let elapsed = began.elapsed();
    assert_eq!(counters.recv_queued, u64::from(READS * messages));
    elapsed.as_secs_f64() * 1e9 / f64::from(READS * messages)
}

fn main() {
    for payload_bytes in [0, 64, 512] {
        let (octets, messages) = read_of(payload_bytes, true);
        for (checksum, kept) in [(false, false), (true, false), (true, true)] {
            let cost_ns = |_| cost_ns(&octets, messages, checksum, kept);
            let best = (0..7).map(cost_ns).fold(f64::MAX, f64::min);
            let to = if kept {
                "through a mailbox"
            } else {
                "to nobody"
            };
            println!("{payload_bytes:4} octets, checksum {checksum:5}, {to:17}: {best:5.1} ns");
        }
    }
}
