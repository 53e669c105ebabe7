//! Streams are replaced while messages of all lengths cross: each arrives once, in its order.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use urds_dataplane::mailbox::{MailboxSettings, Route};
use urds_dataplane::path::Agreement;
use urds_dataplane::plane::Plane;
use urds_dataplane::receive_side::Taken;
use urds_dataplane::send_side::{Message, Sent};
use urds_dataplane::state::{MailboxId, PathId};
use urds_dataplane::stream::TcpStream;
use urds_path::{AckMode, Address, Hold, Limits, NO_EXTENSION, Payload, SocketAddress};

const PORT: u16 = 4000;
const MESSAGES: u32 = 6000;
const STREAMS: u32 = 60;
const SECOND_NS: u64 = 1_000_000_000;
/// Short ones, one that is kept by reference, one that is read into its own memory.
const LENGTHS: [usize; 7] = [4, 100, 4, 9000, 60, 100_000, 8191];

struct Side {
    plane: Arc<Plane>,
    path: PathId,
    mailbox: MailboxId,
    target: SocketAddress,
    done: AtomicBool,
}

impl Side {
    fn new(local: u8, peer: u8) -> Self {
        let address = |last| Address::from(Ipv4Addr::new(127, 0, 0, last));
        let plane = Plane::new(Limits::default(), None, None, None).expect("descriptors");
        let path = plane.path(address(local), address(peer), 0, 1);
        let mailbox = plane.mailbox(address(local), PORT, MailboxSettings::default());
        plane.route(mailbox, address(peer), Some(Route::Stream(path)));
        let target = SocketAddress::new(address(peer), PORT);
        let done = AtomicBool::new(false);
        Self {
            plane,
            path,
            mailbox,
            target,
            done,
        }
    }

    fn attach(&self, end: UnixStream) {
        let agreement = Agreement {
            ack_mode: AckMode::PeerAcknowledged,
            checksum: true,
            message_bytes_max: 1 << 20,
        };
        self.plane.agree(self.path, agreement);
        let stream = TcpStream::new(OwnedFd::from(end));
        self.plane
            .attach(self.path, Arc::new(stream), Hold::Nothing, None);
    }

    fn send_all(&self) {
        for number in 0..MESSAGES {
            let mut bytes = vec![0; LENGTHS[number as usize % LENGTHS.len()]];
            bytes[..4].copy_from_slice(&number.to_le_bytes());
            let payload = Payload::copy_of(&bytes);
            let message = Message::new(self.mailbox, self.target, payload, NO_EXTENSION);
            let mut sent = self.plane.send_now(message, None).expect("it may be sent");
            if let Sent::Waits(message) = sent {
                let waited = self
                    .plane
                    .send_waiting(*message, Some(30 * SECOND_NS), &mut || false);
                sent = waited.expect("there is room in the end");
            }
            match sent {
                Sent::Done => {}
                Sent::Leaves(leaving) => self.plane.finish_send(*leaving),
                Sent::External | Sent::NoRoute(_) | Sent::Waits(_) => {
                    panic!("there is a route, and it waited")
                }
            }
        }
    }

    fn receive_all(&self) {
        for number in 0..MESSAGES {
            let wait_ns = Some(30 * SECOND_NS);
            let taken =
                self.plane
                    .receive(self.mailbox, wait_ns, false, &mut || false, |message| {
                        let bytes = message.payload.bytes();
                        let (number, rest) = bytes.split_first_chunk().expect("4 bytes");
                        assert!(rest.iter().all(|&byte| byte == 0));
                        (u32::from_le_bytes(*number), bytes.len())
                    });
            let expected = (number, LENGTHS[number as usize % LENGTHS.len()]);
            assert_eq!(taken, Ok(Taken::Message(expected)));
        }
    }

    fn help(&self) {
        while !self.done.load(Ordering::Relaxed) {
            self.plane.help(Some(self.plane.now_ns() + SECOND_NS / 10));
        }
    }
}

/// Give both sides new streams; by round the old ones are superseded, detached, or cut in between.
fn reconnect(one: &Side, other: &Side, round: u32) {
    if round % 3 == 1 {
        drop(one.plane.detach(one.path));
    }
    if round % 3 == 2 {
        drop(other.plane.detach(other.path));
        drop(one.plane.detach(one.path));
    }
    // Bytes of an old stream must not arrive behind those of its successor.
    drop(other.plane.detach(other.path));
    let (end, far) = UnixStream::pair().expect("two descriptors");
    one.attach(end);
    other.attach(far);
}

#[test]
fn each_message_arrives_once_however_often_streams_end() {
    let (one, other) = (Side::new(1, 2), Side::new(2, 1));
    thread::scope(|scope| {
        let background = [&one, &other].map(|side| scope.spawn(|| side.help()));
        let works = [&one, &other].map(|side| {
            [
                scope.spawn(|| side.send_all()),
                scope.spawn(|| side.receive_all()),
            ]
        });
        for round in 0..STREAMS {
            reconnect(&one, &other, round);
            thread::sleep(Duration::from_millis(u64::from(round % 7) * 3));
        }
        for work in works.into_iter().flatten() {
            work.join().expect("it went well");
        }
        for side in [&one, &other] {
            assert_eq!(side.plane.drain(SECOND_NS), 0); // the other's progress thread answers
        }
        for side in [&one, &other] {
            side.done.store(true, Ordering::Relaxed);
            side.plane.wake();
        }
        for progress_thread in background {
            progress_thread.join().expect("it went well");
        }
    });
    let repeated = one.plane.snapshot().counters;
    let repeated = repeated
        .iter()
        .find(|(name, _)| *name == "send_retransmitted");
    assert!(repeated.is_some_and(|&(_, count)| count > 0));
    for side in [&one, &other] {
        assert_eq!(side.plane.close(SECOND_NS), 0);
        side.plane.release();
    }
}
