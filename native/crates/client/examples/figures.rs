//! Figures of messages through a node, beside a bare `SOCK_SEQPACKET` pair; `cargo run --release
//! --example figures -- [SECONDS]`.
//!
//! Three processes: a sender, the node of the tests, a receiver. Printed are rates and, where
//! messages go there and back, times.

#![allow(clippy::cast_precision_loss)] // of figures that are printed with few digits

#[path = "../tests/support/mod.rs"]
mod support;

use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use support::{End, WAIT, node, sys, to};
use urds_channel::socket_memory::{Name, Sizes};
use urds_client::Socket;
use urds_client::socket::TRANSPORT_NONE;

/// What carries messages.
trait Carrier {
    fn send(&self, payload: &[u8]);
    fn receive(&self, room: &mut [u8]) -> usize;
}

struct OverNode(End, u16);

impl Carrier for OverNode {
    fn send(&self, payload: &[u8]) {
        let parts = [sys::part(payload)];
        let (socket, descriptor) = (&self.0.socket, self.0.descriptor);
        let parts = sys::readable(&parts);
        let sent = socket.send(descriptor, b"", &to(self.1), parts, false);
        assert_eq!(sent, Ok(payload.len()));
    }

    fn receive(&self, room: &mut [u8]) -> usize {
        self.0.receive_into(room, WAIT).expect("a message").bytes
    }
}

struct OverPair(i32);

impl Carrier for OverPair {
    fn send(&self, payload: &[u8]) {
        sys::send(self.0, payload);
    }

    fn receive(&self, room: &mut [u8]) -> usize {
        sys::receive_bytes(self.0, room)
    }
}

fn one_way(what: &str, length: usize, time: Duration, a: &dyn Carrier, b: &dyn Carrier) {
    let sender = sys::fork(|| {
        let payload = vec![7; length];
        loop {
            a.send(&payload);
        }
    });
    let mut room = vec![0; 1 << 20];
    b.receive(&mut room);
    let (start, mut count) = (Instant::now(), 0u64);
    let own = sys::cpu_ns();
    while start.elapsed() < time {
        for _ in 0..64 {
            assert_eq!(b.receive(&mut room), length);
        }
        count += 64;
    }
    let (seconds, own) = (start.elapsed().as_secs_f64(), sys::cpu_ns() - own);
    sys::kill(sender);
    let rate = count as f64 / seconds;
    println!(
        "{what:28} {length:6} bytes one way: {rate:10.0}/s {:8.1} MB/s, receiver {:6.3} us of processor each",
        rate * length as f64 / 1e6,
        own as f64 / 1000.0 / count as f64,
    );
}

fn there_and_back(what: &str, length: usize, time: Duration, a: &dyn Carrier, b: &dyn Carrier) {
    let echo = sys::fork(|| {
        let mut room = vec![0; 1 << 20];
        loop {
            let length = b.receive(&mut room);
            b.send(&room[..length]);
        }
    });
    let (payload, mut room) = (vec![7; length], vec![0; 1 << 20]);
    let (start, mut times) = (Instant::now(), Vec::new());
    while start.elapsed() < time {
        let one = Instant::now();
        a.send(&payload);
        assert_eq!(a.receive(&mut room), length);
        times.push(one.elapsed());
    }
    sys::kill(echo);
    times.sort_unstable();
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    println!(
        "{what:28} {length:6} bytes there and back: median {:6.1} us, least {:6.1} us",
        us(times[times.len() / 2]),
        us(times[0]),
    );
}

fn bound(place: &[u8], port: u16, peer: u16) -> OverNode {
    let (descriptor, socket) = Socket::open(place, 0).expect("a socket");
    let name = Name::v4([127, 0, 0, 1], port);
    socket
        .bind(descriptor, b"", &name, TRANSPORT_NONE)
        .expect("a free port");
    OverNode(End { descriptor, socket }, peer)
}

fn over_node(what: &str, send_default: u32, time: Duration) {
    let path = std::env::temp_dir().join(format!("urds-figures-{}.sock", std::process::id()));
    let listener = sys::listen(&path);
    let sizes = Sizes {
        send_default,
        ..Sizes::default()
    };
    let carrier = sys::fork(|| {
        let never = AtomicBool::new(false);
        node::Node::new(listener.try_clone().expect("a descriptor"), &path, sizes).run(&never);
    });
    let place = path.as_os_str().as_encoded_bytes();
    let mut port = 4000;
    let mut ends = || {
        port += 2;
        (bound(place, port, port + 1), bound(place, port + 1, port))
    };
    for length in [64, 8192, 65536] {
        let (a, b) = ends();
        one_way(what, length, time, &a, &b);
    }
    let (a, b) = ends();
    there_and_back(what, 64, time, &a, &b);
    sys::kill(carrier);
    let _ = std::fs::remove_file(path);
}

fn over_pair(time: Duration) {
    let what = "SOCK_SEQPACKET pair";
    for length in [64, 8192, 65536] {
        let (a, b) = sys::packet_pair();
        let (a, b) = (OverPair(a.as_raw_fd()), OverPair(b.as_raw_fd()));
        one_way(what, length, time, &a, &b);
    }
    let (a, b) = sys::packet_pair();
    let (a, b) = (OverPair(a.as_raw_fd()), OverPair(b.as_raw_fd()));
    there_and_back(what, 64, time, &a, &b);
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|one| one.parse().ok());
    let time = Duration::from_secs_f64(seconds.unwrap_or(1.0));
    over_pair(time);
    over_node("node, default buffers", 1 << 20, time);
    over_node("node, Linux's buffers", 106_496, time);
}
