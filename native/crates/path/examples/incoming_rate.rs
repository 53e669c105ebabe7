//! Cost of one message from the bytes of a read to its mailbox, and out of it again.
//!
//! `cargo run --release -p urds-path --example incoming_rate`

use std::hint::black_box;
use std::time::Instant;

use urds_path::{Arriving, Counters, Header, Inbox, Limits, MessageSink, Receiver, SocketAddress};

const READ_BYTES: usize = 256 << 10;
const READS: u32 = 400;

/// A message sink with one mailbox, or with one that keeps nothing.
struct One {
    inbox: Option<Inbox>,
    source: SocketAddress,
    bytes: usize,
}

impl MessageSink for One {
    fn deliver(&mut self, _: u16, message: Arriving<'_>) -> bool {
        self.bytes += message.payload.len();
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

/// The bytes of one read: whole messages in a row.
fn read_of(payload_bytes: usize, checksum: bool) -> (Vec<u8>, u32) {
    let messages = READ_BYTES / (48 + payload_bytes);
    let mut bytes = Vec::new();
    for sequence in 1..=messages as u64 {
        let header = Header {
            sequence,
            payload_bytes,
            source_port: 4000,
            target_port: 5000,
            ..Header::default()
        };
        bytes.extend(header.emit(checksum));
        bytes.resize(bytes.len() + payload_bytes, 7);
    }
    (bytes, u32::try_from(messages).expect("few messages"))
}

/// Receive the same read repeatedly: its first number is below the expected one, and accepted.
fn cost_ns(bytes: &[u8], messages: u32, checksum: bool, kept: bool) -> f64 {
    let mut receiver = Receiver::new(Limits::default());
    receiver.checksum = checksum;
    receiver.acknowledging = true;
    receiver.begin_stream();
    let mut counters = Counters::default();
    let mut sink = One {
        inbox: kept.then(|| Inbox::new(1 << 20)),
        source: SocketAddress::new(std::net::Ipv4Addr::LOCALHOST.into(), 0),
        bytes: 0,
    };
    let began = Instant::now();
    for _ in 0..READS {
        let read = black_box(bytes);
        receiver.begin_stream();
        receiver
            .receive(read, &mut sink, &mut counters)
            .expect("a healthy stream");
        while let Some(inbox) = &mut sink.inbox
            && let Some(front) = inbox.front()
        {
            sink.bytes += front.payload.len();
            inbox.pop();
        }
    }
    let elapsed = began.elapsed();
    assert_eq!(counters.recv_queued, u64::from(READS * messages));
    elapsed.as_secs_f64() * 1e9 / f64::from(READS * messages)
}

fn main() {
    for payload_bytes in [0, 64, 512] {
        let (bytes, messages) = read_of(payload_bytes, true);
        for (checksum, kept) in [(false, false), (true, false), (true, true)] {
            let cost_ns = |_| cost_ns(&bytes, messages, checksum, kept);
            let best = (0..7).map(cost_ns).fold(f64::MAX, f64::min);
            let to = if kept {
                "through a mailbox"
            } else {
                "to no port"
            };
            println!("{payload_bytes:4} bytes, checksum {checksum:5}, {to:17}: {best:5.1} ns");
        }
    }
}
