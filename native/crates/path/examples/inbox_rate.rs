//! Cost of one message in an inbox: `cargo run --release -p urds-path --example inbox_rate`.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Instant;

use urds_path::{Address, ArrivingPayload, Inbox, NO_EXTENSION, SocketAddress};

const MESSAGES: u32 = 4_000_000;

fn main() {
    let source = SocketAddress::new(Address::from(Ipv4Addr::LOCALHOST), 4000);
    let payload = [7; 64];
    for burst in [1, 16, 512, 8192, 65536] {
        let mut inbox = Inbox::new(1 << 20);
        let began = Instant::now();
        for _ in 0..MESSAGES / burst {
            for _ in 0..burst {
                let arriving = ArrivingPayload::Borrowed(black_box(&payload));
                inbox.push(source, NO_EXTENSION, arriving, 0, 0);
            }
            while let Some(front) = inbox.front() {
                black_box(front.payload.len());
                inbox.pop();
            }
        }
        let each_ns = began.elapsed().as_secs_f64() * 1e9 / f64::from(MESSAGES);
        println!("bursts of {burst:5}: {each_ns:5.1} ns for each message of 64 bytes");
    }
}
