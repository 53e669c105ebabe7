//! Two planes over a pair of sockets; senders and receivers block, give up and compete.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use urds_dataplane::events::Event;
use urds_dataplane::mailbox::{MailboxSettings, Route};
use urds_dataplane::path::Agreement;
use urds_dataplane::plane::Plane;
use urds_dataplane::receive_side::Taken;
use urds_dataplane::send_side::{Message, Sent};
use urds_dataplane::state::{MailboxId, PathId};
use urds_dataplane::stream::TcpStream;
use urds_path::{AckMode, Address, Hold, Limits, NO_EXTENSION, Payload, SocketAddress};

const PORT: u16 = 4000;
const BOXES: u16 = 3;
const SECOND_NS: u64 = 1_000_000_000;

struct Side {
    plane: Arc<Plane>,
    local: Address,
    peer: Address,
    path: PathId,
    boxes: Vec<MailboxId>,
    done: AtomicBool,
    taken: AtomicU64,
}

impl Side {
    fn new(last: u8, peer: u8) -> Self {
        let address = |last| Address::from(Ipv4Addr::new(127, 0, 0, last));
        let (local, peer) = (address(last), address(peer));
        let plane = Plane::new(Limits::default(), None, None, None).expect("descriptors");
        let path = plane.path(local, peer, 0, 1);
        let boxes = (0..BOXES)
            .map(|index| {
                let mailbox = plane.mailbox(local, PORT + index, MailboxSettings::default());
                plane.route(mailbox, peer, Some(Route::Stream(path)));
                mailbox
            })
            .collect();
        let (done, taken) = (AtomicBool::new(false), AtomicU64::new(0));
        Self {
            plane,
            local,
            peer,
            path,
            boxes,
            done,
            taken,
        }
    }

    fn attach(&self, end: UnixStream) {
        let stream = TcpStream::new(OwnedFd::from(end));
        self.plane
            .attach(self.path, Arc::new(stream), Hold::Nothing, None);
        let ack_mode = AckMode::PeerAcknowledged;
        let agreement = Agreement {
            ack_mode,
            checksum: false,
            message_bytes_max: 1 << 20,
        };
        self.plane.agree(self.path, agreement);
    }

    fn send(&self, from: u16, to: u16, bytes: &[u8]) {
        let target = SocketAddress::new(self.peer, PORT + to);
        let payload = Payload::copy_of(bytes);
        let message = Message::new(self.boxes[usize::from(from)], target, payload, NO_EXTENSION);
        let mut sent = self.plane.send_now(message, None).expect("it may be sent");
        if let Sent::Waits(message) = sent {
            sent = self
                .plane
                .send_waiting(*message, None, &mut || false)
                .expect("there is room");
        }
        match sent {
            Sent::Done => {}
            Sent::Leaves(leaving) => self.plane.finish_send(*leaving),
            Sent::External | Sent::NoRoute(_) | Sent::Waits(_) => {
                panic!("there is a route, and it has waited")
            }
        }
    }

    /// Return the first bytes of the next message as numbers, `None` when the time is over.
    fn receive(&self, at: u16, wait_ns: Option<u64>) -> Option<(u64, u64)> {
        let mailbox = self.boxes[usize::from(at)];
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let taken = self
            .plane
            .receive(mailbox, wait_ns, false, &mut || false, |message| {
                let bytes = message.payload.bytes();
                (number(&bytes[..8]), number(&bytes[8..16]))
            });
        match taken {
            Ok(Taken::Message(numbers)) => {
                self.taken.fetch_add(1, Ordering::Relaxed);
                Some(numbers)
            }
            _ => None,
        }
    }

    fn help(&self) {
        while !self.done.load(Ordering::Relaxed) {
            for event in self.plane.help(Some(self.plane.now_ns() + SECOND_NS / 10)) {
                assert!(!matches!(event, Event::Down { .. }), "{event:?}");
            }
        }
    }
}

fn pair() -> (Side, Side) {
    let (one, other) = (Side::new(1, 2), Side::new(2, 1));
    let (end, far) = UnixStream::pair().expect("two descriptors");
    one.attach(end);
    other.attach(far);
    (one, other)
}

/// Senders to the other side until the time is over; each numbers its messages.
fn send_until(side: &Side, sender: u16, until: Instant, sent: &AtomicU64) {
    let mut bytes = vec![0; 20_000];
    bytes[..8].copy_from_slice(&u64::from(sender).to_le_bytes());
    let mut number = 0u64;
    while Instant::now() < until {
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        let length = if number.is_multiple_of(97) {
            20_000
        } else {
            64
        };
        let to = u16::try_from(number % u64::from(BOXES)).expect("less than a few");
        side.send(sender % BOXES, to, &bytes[..length]);
        number += 1;
        sent.fetch_add(1, Ordering::Relaxed);
        if number % 1000 < 3 {
            thread::sleep(Duration::from_micros(300)); // sparse: nothing repairs a lost wake-up
        }
    }
}

/// Take messages of one mailbox; those of each sender come in order.
fn receive_all(side: &Side, at: u16, wait_ns: Option<u64>, in_order: bool) {
    let mut last: HashMap<u64, u64> = HashMap::new();
    while !side.done.load(Ordering::Relaxed) {
        let Some((sender, number)) = side.receive(at, wait_ns) else {
            continue;
        };
        let before = last.insert(sender, number);
        assert!(
            !in_order || before.is_none_or(|before| before < number),
            "order of {sender}"
        );
    }
}

fn crowd(seconds: f64) {
    let (one, other) = pair();
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let sent = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| one.help());
        scope.spawn(|| other.help());
        for at in 0..BOXES {
            let other = &other;
            // The first has one reader, the others have two, one of which gives up all the time.
            scope.spawn(move || receive_all(other, at, Some(SECOND_NS / 5), at == 0));
            if at > 0 {
                scope.spawn(move || receive_all(other, at, Some(200_000), false));
            }
        }
        let senders = [0, 1, 2, 3].map(|sender| {
            let (one, sent) = (&one, &sent);
            scope.spawn(move || send_until(one, sender, until, sent))
        });
        for sender in senders {
            sender.join().expect("no panic");
        }
        let late = Instant::now() + Duration::from_secs(5);
        let all = sent.load(Ordering::Relaxed);
        while other.taken.load(Ordering::Relaxed) < all && Instant::now() < late {
            thread::sleep(Duration::from_millis(5));
        }
        for side in [&one, &other] {
            side.done.store(true, Ordering::Relaxed);
            side.plane.wake();
        }
        println!("{all} messages");
        assert_eq!(
            other.taken.load(Ordering::Relaxed),
            all,
            "all that was sent is taken"
        );
    });
    assert_ne!(one.local, other.local);
}

/// One message in flight in each of some conversations: nothing else wakes any thread.
fn converse(seconds: f64, with_progress_thread: bool) {
    let (one, other) = pair();
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    thread::scope(|scope| {
        if with_progress_thread {
            scope.spawn(|| one.help());
            scope.spawn(|| other.help());
        }
        for at in 0..BOXES {
            let (one, other) = (&one, &other);
            scope.spawn(move || {
                while let Some((sender, number)) = other.receive(at, Some(SECOND_NS)) {
                    let mut bytes = [0; 16];
                    bytes[..8].copy_from_slice(&sender.to_le_bytes());
                    bytes[8..].copy_from_slice(&number.to_le_bytes());
                    other.send(at, at, &bytes);
                }
            });
            scope.spawn(move || {
                let mut number = 0u64;
                while Instant::now() < until {
                    let mut bytes = [0; 16];
                    bytes[8..].copy_from_slice(&number.to_le_bytes());
                    one.send(at, at, &bytes);
                    let reply = one.receive(at, Some(SECOND_NS));
                    assert_eq!(reply, Some((0, number)), "a reply within a second");
                    number += 1;
                }
                println!("{number} round trips");
            });
        }
        thread::sleep(until.saturating_duration_since(Instant::now()));
        thread::sleep(Duration::from_millis(1200));
        for side in [&one, &other] {
            side.done.store(true, Ordering::Relaxed);
            side.plane.wake();
        }
    });
}

#[test]
fn a_crowd_loses_nothing() {
    crowd(0.3);
}

#[test]
fn each_reply_comes_with_a_progress_thread() {
    converse(0.2, true);
}

#[test]
fn each_reply_comes_without_a_progress_thread() {
    converse(0.2, false);
}

#[test]
#[ignore = "takes 15 s"]
fn stress() {
    crowd(5.0);
    converse(5.0, true);
    converse(5.0, false);
}
