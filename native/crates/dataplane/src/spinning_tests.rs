use std::io::IoSlice;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use urds_channel::bytes::RING_BYTES_MIN;
use urds_channel::slots::{SlotMemory, Word};
use urds_channel::sys::area;
use urds_path::{Header, Hold, Limits, SocketAddress};

use super::*;
use crate::mailbox::MailboxSettings;
use crate::receive_side::Taken;
use crate::shm_stream::{ShmStream, Side, memory_bytes};
use crate::state::MailboxId;
use crate::sys::descriptor::Descriptor;
use crate::sys::sockets::{poll_now, unix_pair};
use crate::world::{PORT, address, message};

const LATE: Duration = Duration::from_secs(5);
const FOR_EVER_NS: u64 = 60_000_000_000;
/// Limit of a wait: a test that fails ends.
const WAIT_NS: u64 = 8_000_000_000;

fn bound(busy_poll_ns: u64) -> (Arc<Plane>, MailboxId) {
    let plane = Plane::new(Limits::default(), None, None, None).expect("descriptors are left");
    let settings = MailboxSettings {
        busy_poll_ns,
        ..MailboxSettings::default()
    };
    let mailbox = plane.mailbox(address(1), PORT, settings);
    (plane, mailbox)
}

/// The peer's end of a shm stream, and ours, which the plane has.
struct Pair {
    theirs: ShmStream,
    ours: Arc<ShmStream>,
    sequence: u64,
}

impl Pair {
    fn attached(plane: &Plane, peer: u8) -> Self {
        let (near, far) = unix_pair().expect("descriptors are left");
        let made = area::make(memory_bytes(RING_BYTES_MIN)).expect("there is memory");
        let memory = Descriptor::new(made.0);
        let ends = [address(1), address(peer)].map(|end| SocketAddress::new(end, PORT));
        let open = |line, side, ends| {
            ShmStream::new(line, memory.get(), RING_BYTES_MIN, side, ends)
                .expect("the memory is good")
        };
        let ours = Arc::new(open(near.get(), Side::Accepts, (ends[0], ends[1])));
        let path = plane.path(address(1), address(peer), 0, 1);
        plane.attach(
            path,
            Arc::clone(&ours) as Arc<dyn Stream>,
            Hold::Nothing,
            None,
        );
        Self {
            theirs: open(far.get(), Side::Dials, (ends[1], ends[0])),
            ours,
            sequence: 0,
        }
    }

    fn say(&mut self, byte: u8) {
        self.sequence += 1;
        let header = Header {
            payload_bytes: 1,
            ..message(self.sequence)
        };
        let bytes = [&header.emit(false)[..], &[byte]].concat();
        let written = self.theirs.write(&[IoSlice::new(&bytes)]);
        assert_eq!(written.ok(), Some(bytes.len()));
    }

    /// Return whether a write of the peer would ring.
    fn is_at_rest(&self) -> bool {
        let way = self.ours.inward_way();
        way.word(Word::ReaderAsleep).load(Ordering::Relaxed) != 0
    }
}

/// Return the byte of the next message, `None` when the time is over.
fn take(plane: &Plane, mailbox: MailboxId, wait_ns: u64) -> Option<u8> {
    let taken = plane.receive(mailbox, Some(wait_ns), false, &mut || false, |message| {
        message.payload.bytes()[0]
    });
    match taken.expect("it is open") {
        Taken::Message(byte) => Some(byte),
        _ => None,
    }
}

fn until(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LATE, "it never comes to be");
        thread::sleep(Duration::from_millis(1));
    }
}

fn doorbells(plane: &Plane) -> u64 {
    plane.lock().counters.tcp_data_ready_calls
}

fn is_awake(plane: &Plane) -> bool {
    plane.lock().wait_queue.leader_looks_before_it_sleeps()
}

#[test]
fn who_looks_all_the_time_is_told_without_a_kick() {
    let (plane, mailbox) = bound(FOR_EVER_NS);
    thread::scope(|scope| {
        let taker = scope.spawn(|| take(&plane, mailbox, WAIT_NS));
        until(|| is_awake(&plane));
        thread::sleep(Duration::from_millis(2)); // ten spells
        assert!(is_awake(&plane), "it does not sleep");
        let sender = plane.mailbox(address(1), PORT + 1, MailboxSettings::default());
        let route = Some(crate::mailbox::Route::Loop);
        plane.route(sender, address(1), route);
        let target = SocketAddress::new(address(1), PORT);
        let payload = urds_path::Payload::copy_of(b"x");
        let message =
            crate::send_side::Message::new(sender, target, payload, urds_path::NO_EXTENSION);
        assert!(plane.send_now(message, Some(0)).is_ok());
        assert_eq!(taker.join().expect("no panic"), Some(b'x'));
    });
    assert_eq!(poll_now(plane.kick.descriptor(), libc::POLLIN), 0);
}

#[test]
fn when_its_time_is_over_it_sleeps_and_is_woken() {
    let (plane, mailbox) = bound(3_000_000);
    let mut pair = Pair::attached(&plane, 2);
    thread::scope(|scope| {
        let taker = scope.spawn(|| take(&plane, mailbox, WAIT_NS));
        until(|| plane.lock().wait_queue.has_leader() && !is_awake(&plane));
        assert!(pair.is_at_rest());
        pair.say(7);
        assert_eq!(taker.join().expect("no panic"), Some(7));
    });
}

#[test]
fn a_wait_ends_in_time() {
    let (plane, mailbox) = bound(FOR_EVER_NS);
    let start = Instant::now();
    assert_eq!(take(&plane, mailbox, 20_000_000), None);
    assert!(start.elapsed() >= Duration::from_millis(20) && start.elapsed() < LATE);
    assert!(plane.lock().wait_queue.is_empty());
}

#[test]
fn a_stream_rings_no_thread_that_polls() {
    let (plane, mailbox) = bound(FOR_EVER_NS);
    let mut pair = Pair::attached(&plane, 2);
    pair.say(1);
    assert_eq!(take(&plane, mailbox, WAIT_NS), Some(1)); // polled from now on
    // Between two spells the stream rings for a moment, which some messages may meet.
    let (rounds, mut rung) = (48, 0);
    thread::scope(|scope| {
        for byte in 2..2 + rounds {
            let before = doorbells(&plane);
            let taker = scope.spawn(|| take(&plane, mailbox, WAIT_NS));
            until(|| !pair.is_at_rest());
            pair.say(byte);
            assert_eq!(taker.join().expect("no panic"), Some(byte));
            rung += u8::from(doorbells(&plane) != before);
            assert!(pair.is_at_rest(), "no thread polls any more");
        }
    });
    assert!(rung < rounds / 4, "{rung} of {rounds} messages rang");
}

#[test]
fn a_message_of_one_stream_leaves_the_others_asleep() {
    let (plane, mailbox) = bound(FOR_EVER_NS);
    let mut pairs = [2, 3, 4].map(|peer| Pair::attached(&plane, peer));
    for pair in &mut pairs {
        pair.say(1);
        assert_eq!(take(&plane, mailbox, WAIT_NS), Some(1));
    }
    thread::scope(|scope| {
        for round in 0..30 {
            let taker = scope.spawn(|| take(&plane, mailbox, WAIT_NS));
            until(|| pairs.iter().all(|pair| !pair.is_at_rest()));
            pairs[round % 3].say(2);
            assert_eq!(taker.join().expect("no panic"), Some(2));
            assert!(pairs.iter().all(Pair::is_at_rest));
        }
    });
}

#[test]
fn streams_beyond_those_polled_ring() {
    let (plane, mailbox) = bound(FOR_EVER_NS);
    let peers: Vec<u8> = (2..2 + u8::try_from(POLLED_MAX).expect("few") + 3).collect();
    let mut pairs: Vec<Pair> = peers
        .iter()
        .map(|&peer| Pair::attached(&plane, peer))
        .collect();
    for _ in 0..3 {
        for pair in &mut pairs {
            thread::scope(|scope| {
                let taker = scope.spawn(|| take(&plane, mailbox, WAIT_NS));
                until(|| is_awake(&plane));
                pair.say(3);
                assert_eq!(taker.join().expect("no panic"), Some(3));
            });
        }
    }
    assert_eq!(plane.lock().recent.0.len(), POLLED_MAX);
}
