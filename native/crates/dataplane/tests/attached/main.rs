//! Attached sockets with clients that wait: their threads see nothing of a plane but memory and a
//! descriptor.

use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use urds_channel::journal;
use urds_channel::socket_memory::{NodeSide, Sizes, layout};
use urds_channel::sys::area::Area;
use urds_channel::sys::doorbell;
use urds_client::{Name, Outgoing, Socket};
use urds_dataplane::attached::SocketParts;
use urds_dataplane::events::Event;
use urds_dataplane::mailbox::{MailboxSettings, Route};
use urds_dataplane::path::Agreement;
use urds_dataplane::plane::Plane;
use urds_dataplane::state::{MailboxId, PathId};
use urds_dataplane::stream::TcpStream;
use urds_dataplane::sys::descriptor::Descriptor;
use urds_dataplane::sys::sent_record::SendMemory;
use urds_dataplane::sys::socket_pair;
use urds_dataplane::sys::sockets::poll_now;
use urds_path::{AckMode, Address, Hold, Limits};

mod sys;

const PORT: u16 = 4000;
const LATE: Duration = Duration::from_secs(60);
const MESSAGES: u64 = 20_000;
const SIZES: Sizes<'_> = Sizes {
    submissions: 256,
    send_bytes: 1 << 22,
    receive_bytes: 1 << 24,
    send_default: 100_000,
    receive_default: 100_000,
    send_limit: 1 << 20,
    receive_limit: 1 << 20,
    message_limit: 1 << 20,
    is_strict: false,
    cookie: 0,
    place: b"",
};

fn address(last: u8) -> Address {
    Address::from(Ipv4Addr::new(127, 0, 91, last))
}

fn name(last: u8) -> Name {
    Name::v4([127, 0, 91, last], PORT)
}

/// A plane and the thread that serves it.
struct Node {
    plane: Arc<Plane>,
    progress_thread: Option<thread::JoinHandle<Vec<Event>>>,
}

impl Node {
    fn new() -> Self {
        let plane = Plane::new(Limits::default(), None, None, None).expect("descriptors");
        let own = Arc::clone(&plane);
        let progress_thread = thread::spawn(move || {
            let mut events = Vec::new();
            while !own.lock().closed {
                events.extend(own.help(None));
            }
            events
        });
        Self {
            plane,
            progress_thread: Some(progress_thread),
        }
    }

    fn path(&self, last: u8, peer: u8, end: UnixStream) -> PathId {
        let path = self.plane.path(address(last), address(peer), 0, 1);
        let stream = TcpStream::new(OwnedFd::from(end));
        self.plane
            .attach(path, Arc::new(stream), Hold::Nothing, None);
        let agreement = Agreement {
            ack_mode: AckMode::PeerAcknowledged,
            checksum: false,
            message_bytes_max: 1 << 20,
        };
        self.plane.agree(path, agreement);
        path
    }

    fn end(mut self) -> Vec<Event> {
        self.plane.close(0);
        let progress_thread = self.progress_thread.take().expect("it runs");
        progress_thread.join().expect("no panic")
    }
}

/// A program with one socket; `plane` is its node's, for what requests would do.
struct Client {
    socket: Socket,
    user_end: OwnedFd,
    plane: Arc<Plane>,
    mailbox: MailboxId,
}

impl Client {
    fn new(node: &Node, last: u8) -> Self {
        let plane = &node.plane;
        let mailbox = plane.mailbox(address(last), PORT, MailboxSettings::default());
        let pair = socket_pair::make(false).expect("a pair");
        let (file, area) = layout::make(&SIZES).expect("memory");
        let (journal_file, journal) = journal::make(&SIZES).expect("memory");
        let (file, journal_file) = (Descriptor::new(file), Descriptor::new(journal_file));
        let to_read = Area::map_to_read(file.get()).expect("memory");
        let parts = SocketParts {
            was_left: false,
            control: pair.node_end.into_raw_fd(),
            side: NodeSide::new(area, journal).expect("it is one"),
            memory: SendMemory::new(to_read, Area::map(journal_file.get()).expect("memory"))
                .expect("a journal"),
        };
        let (to_read, _) = plane.congestion_memory().expect("memory");
        plane.attach_socket(mailbox, parts).expect("it is open");
        Self {
            socket: Socket::attach(file.get(), to_read).expect("a socket's memory"),
            user_end: pair.user_end,
            plane: Arc::clone(plane),
            mailbox,
        }
    }

    fn route(&self, to: u8, route: Route) {
        self.plane.route(self.mailbox, address(to), Some(route));
        let found = self.plane.route_number(self.mailbox, address(to));
        let (number, generation) = found.expect("there is a route");
        let side = self.socket.side();
        side.set_route(&name(to), 0, number, generation)
            .expect("no handler runs");
    }

    fn send(&self, to: u8, bytes: &[u8]) {
        let message = Outgoing {
            to: name(to),
            ..Outgoing::default()
        };
        let sent = sys::send(
            &self.socket,
            self.user_end.as_raw_fd(),
            &message,
            bytes,
            false,
        );
        assert_eq!(sent, Ok(bytes.len()));
    }

    fn receive(&self, bytes: &mut [u8]) -> usize {
        let received = sys::receive(&self.socket, self.user_end.as_raw_fd(), bytes, false);
        received.expect("it waits").bytes
    }
}

fn payload(number: u64) -> Vec<u8> {
    let place = usize::try_from(number % 5).expect("small");
    let length = [8, 70, 900, 9000, 40_000][place];
    let mut bytes = vec![u8::try_from(number % 251).expect("short"); length];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Send numbered messages both ways between two clients; each sees all of the other's, in order.
fn exchange(one: Client, other: Client) {
    exchange_some(one, 2, other, 1, MESSAGES);
}

fn exchange_some(one: Client, other_name: u8, other: Client, one_name: u8, messages: u64) {
    let started = Instant::now();
    let (one, other) = (Arc::new(one), Arc::new(other));
    let mut threads = Vec::new();
    for (client, peer) in [(&one, other_name), (&other, one_name)] {
        let (sender, receiver) = (Arc::clone(client), Arc::clone(client));
        threads.push(thread::spawn(move || {
            for number in 0..messages {
                sender.send(peer, &payload(number));
            }
        }));
        threads.push(thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            for number in 0..messages {
                let length = receiver.receive(&mut bytes);
                assert!(bytes[..length] == payload(number), "message {number}");
            }
        }));
    }
    for one in threads {
        one.join().expect("all came in order");
    }
    assert!(started.elapsed() < LATE, "a wake-up was lost");
    for client in [&one, &other] {
        until(|| client.socket.side().queued_bytes() == 0);
    }
}

fn until(done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < LATE, "it never comes");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn clients_of_one_node_exchange_messages() {
    let node = Node::new();
    let (one, other) = (Client::new(&node, 1), Client::new(&node, 2));
    one.route(2, Route::Loop);
    other.route(1, Route::Loop);
    exchange(one, other);
    node.end();
}

#[test]
fn clients_of_two_nodes_exchange_messages() {
    let (here, there) = (Node::new(), Node::new());
    let (end, far_end) = UnixStream::pair().expect("a pair");
    let path = here.path(1, 2, end);
    let far_path = there.path(2, 1, far_end);
    let (one, other) = (Client::new(&here, 1), Client::new(&there, 2));
    one.route(2, Route::Stream(path));
    other.route(1, Route::Stream(far_path));
    exchange(one, other);
    here.end();
    there.end();
}

/// Write nonsense all over the memory of a socket that has messages under way, for a while.
fn write_nonsense(client: &Client, mut seed: u64, rounds: u32) {
    let area = client.socket.side().area();
    let places = (layout::AT_RING + 1024) as u64 / 8;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..rounds {
        // The words of the head are few: every other value goes there.
        let place = if round % 2 == 0 {
            next() % 512
        } else {
            next() % places
        };
        let value = match next() % 4 {
            0 => 0,
            1 => u64::MAX,
            2 => next() % 1024,
            _ => next(),
        };
        let at = usize::try_from(place * 8).expect("small");
        area.long(at).store(value, Ordering::Relaxed);
        if round % 8 == 0 {
            let message = Outgoing {
                to: name(2),
                ..Outgoing::default()
            };
            let fd = client.user_end.as_raw_fd();
            let _ = sys::send(&client.socket, fd, &message, b"nonsense", true);
            let _ = doorbell::ring(fd);
        }
    }
}

#[test]
fn a_client_that_writes_nonsense_harms_no_other() {
    for seed in 1..=4 {
        let node = Node::new();
        let (one, other) = (Client::new(&node, 1), Client::new(&node, 3));
        one.route(3, Route::Loop);
        other.route(1, Route::Loop);
        let (hostile, victim) = (Client::new(&node, 4), Client::new(&node, 2));
        hostile.route(2, Route::Loop);
        let writer = thread::spawn(move || {
            write_nonsense(&hostile, 0x9E37_79B9_7F4A_7C15 ^ seed, 20_000);
            hostile
        });
        exchange_some(one, 3, other, 1, MESSAGES / 10);
        drop((writer.join().expect("it cannot fail"), victim));
        let liar = Client::new(&node, 5);
        let submitted = liar.socket.side().area().long(layout::AT_SUBMITTED);
        submitted.store(u64::MAX, Ordering::Relaxed);
        doorbell::ring(liar.user_end.as_raw_fd());
        let is_ended = || poll_now(liar.user_end.as_raw_fd(), libc::POLLIN) & libc::POLLHUP != 0;
        until(is_ended);
        let mailbox = liar.mailbox;
        let is_error = |event: &Event| matches!(event, Event::ClientError { mailbox: of, .. } if *of == mailbox);
        assert!(node.end().iter().any(is_error));
    }
}

#[test]
fn the_node_sees_the_end_of_a_client() {
    let node = Node::new();
    let client = Client::new(&node, 1);
    let mailbox = client.mailbox;
    drop(client);
    let is_over = || !node.plane.lock().has_attached_due();
    thread::sleep(Duration::from_millis(20));
    until(is_over);
    let events = node.end();
    assert!(events.contains(&Event::Left { mailbox }), "{events:?}");
}
