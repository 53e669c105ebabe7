//! A client in this process, over the memory that both have.

use std::io::IoSliceMut;
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::Relaxed;

use urds_channel::journal;
use urds_channel::socket_memory::{
    ClientSide, Name, NodeSide, Outgoing, Rejected, Sizes, Word, layout,
};
use urds_channel::sys::area::Area;
use urds_path::{AckMode, Hold};

use super::*;
use crate::mailbox::{MailboxSettings, Route};
use crate::sys::sockets::{self, poll_now, unix_pair};
use crate::world::{self, PEER_PORT, PORT, World, acknowledgement, address};

pub(super) const SMALL: Sizes<'_> = Sizes {
    submissions: 64,
    send_bytes: 1 << 22,
    receive_bytes: 1 << 22,
    send_default: 65_536,
    receive_default: 65_536,
    send_limit: 1 << 20,
    receive_limit: 1 << 20,
    message_limit: 1 << 18,
    is_strict: false,
    cookie: 0,
    place: b"",
};

/// What a supervisor keeps of a socket.
struct Kept {
    node_end: Descriptor,
    memory: Descriptor,
    journal: Descriptor,
}

impl Kept {
    fn attach(&self, plane: &Plane, last: u8, port: u16, was_left: bool) -> MailboxId {
        let mailbox = plane.mailbox(address(last), port, MailboxSettings::default());
        let map = |file: &Descriptor| Area::map(file.get()).unwrap();
        let to_read = Area::map_to_read(self.memory.get()).unwrap();
        let parts = SocketParts {
            control: doorbell::duplicate(self.node_end.get()).unwrap(),
            side: NodeSide::new(map(&self.memory), map(&self.journal)).unwrap(),
            memory: SendMemory::new(to_read, map(&self.journal)).unwrap(),
            was_left,
        };
        plane.attach_socket(mailbox, parts).unwrap();
        mailbox
    }
}

pub(super) struct Client {
    pub(super) side: ClientSide,
    pub(super) user_end: Option<Descriptor>,
    pub(super) mailbox: MailboxId,
    plane: Arc<Plane>,
    kept: Kept,
    name: (u8, u16),
}

impl Client {
    pub(super) fn new(world: &World, last: u8, port: u16) -> Self {
        Self::sized(world, last, port, &SMALL)
    }

    pub(super) fn sized(world: &World, last: u8, port: u16, sizes: &Sizes<'_>) -> Self {
        let (user_end, node_end) = unix_pair().unwrap();
        let (file, _) = layout::make(sizes).unwrap();
        let (journal, _) = journal::make(sizes).unwrap();
        let kept = Kept {
            node_end,
            memory: Descriptor::new(file),
            journal: Descriptor::new(journal),
        };
        let mailbox = kept.attach(&world.plane, last, port, false);
        world.plane.progress();
        Self {
            side: ClientSide::new(Area::map(kept.memory.get()).unwrap()).unwrap(),
            user_end: Some(user_end),
            mailbox,
            plane: Arc::clone(&world.plane),
            kept,
            name: (last, port),
        }
    }

    /// Have the plane of another worker serve the socket.
    pub(super) fn move_to(&mut self, world: &World) {
        self.go_on(world, false);
    }

    /// The same of a socket that the worker before had closed.
    pub(super) fn move_left_to(&mut self, world: &World) {
        self.go_on(world, true);
    }

    fn go_on(&mut self, world: &World, was_left: bool) {
        let (last, port) = self.name;
        self.mailbox = self.kept.attach(&world.plane, last, port, was_left);
        self.plane = Arc::clone(&world.plane);
    }

    /// Close the last descriptor of the client, and the mailbox once its end is reported.
    pub(super) fn leave(&mut self, world: &World) {
        self.user_end = None;
        let mailbox = self.mailbox;
        let mut events = world.progress(0);
        events.extend(world.progress(0));
        let left = Event::Left { mailbox };
        assert!(events.contains(&left), "{events:?}");
        let plane = &world.plane;
        plane.close_mailbox(mailbox, None, &mut || false).unwrap();
    }

    /// Make a route, and tell the client; return the name of its end.
    pub(super) fn route(&self, to: u8, route: Route) -> Name {
        self.plane.route(self.mailbox, address(to), Some(route));
        let found = self.plane.route_number(self.mailbox, address(to));
        let (number, generation) = found.unwrap();
        let name = name_of(&address(to), 0);
        self.side.set_route(&name, 0, number, generation).unwrap();
        name
    }

    pub(super) fn send(&self, to: Name, port: u16, payload: &[u8]) -> Result<(), Rejected> {
        let outgoing = Outgoing {
            to: Name { port, ..to },
            ..Outgoing::default()
        };
        let area = self.side.area();
        let fill = |at| area.copy_in(at, payload);
        let published = self
            .side
            .send(&outgoing, payload.len(), |_, _| false, fill)?;
        if published.ring {
            self.ring();
        }
        Ok(())
    }

    pub(super) fn ring(&self) {
        doorbell::ring(self.user_end.as_ref().unwrap().get());
    }

    pub(super) fn receive(&self) -> Option<(Vec<u8>, Name)> {
        let mut payload = Vec::new();
        let area = self.side.area();
        let received = self.side.receive(false, |at, length| {
            payload.resize(length, 0);
            area.copy_out(at, &mut payload);
        });
        let received = received.ok()?;
        if received.ring {
            self.ring();
        }
        Some((payload, received.source))
    }

    /// Look for a message; with none, count as asleep.
    pub(super) fn receive_or_sleep(&self) -> Option<Vec<u8>> {
        let received = self.receive();
        if received.is_none() {
            let forget = || drop(self.forget());
            if self.side.sleep(forget) == Ok(true) {
                self.ring();
            }
        }
        received.map(|(payload, _)| payload)
    }

    pub(super) fn forget(&self) -> std::io::Result<usize> {
        let mut bytes = [0; 64];
        let socket = self.user_end.as_ref().unwrap().get();
        sockets::receive(socket, &mut [IoSliceMut::new(&mut bytes)])
    }

    pub(super) fn is_shown(&self) -> bool {
        let socket = self.user_end.as_ref().unwrap().get();
        poll_now(socket, libc::POLLIN) & libc::POLLIN != 0
    }
}

pub(super) fn node_pair(world: &World) -> (Client, Client) {
    (Client::new(world, 1, PORT), Client::new(world, 3, PORT))
}

#[test]
fn a_message_goes_from_one_attached_socket_to_another() {
    let world = World::new();
    let (one, other) = node_pair(&world);
    let route = one.route(3, Route::Loop);
    one.send(route, PORT, b"first").unwrap();
    one.send(route, PORT, &vec![7; 20_000]).unwrap();
    world.progress(0);
    assert!(other.is_shown());
    let (payload, source) = other.receive().unwrap();
    assert_eq!(payload, b"first");
    assert_eq!(source, name_of(&address(1), PORT));
    assert_eq!(other.receive().unwrap().0, vec![7; 20_000]);
    assert!(other.receive().is_none());
    world.progress(0);
    assert_eq!(one.side.queued_bytes(), 0, "delivered is acknowledged");
}

#[test]
fn over_quota_a_send_is_refused_and_what_was_sent_goes_on() {
    let world = World::new();
    let (one, other) = node_pair(&world);
    let route = one.route(3, Route::Loop);
    one.send(route, PORT, b"before").unwrap();
    world.plane.restrict(one.mailbox, true);
    assert_eq!(one.send(route, PORT, b"x"), Err(Rejected::OverQuota));
    world.progress(0);
    assert_eq!(other.receive().unwrap().0, b"before");
    assert_eq!(one.side.queued_bytes(), 0, "it holds no memory of its user");
    // A client that does not look at the word.
    one.side
        .area()
        .word(layout::AT_OVER_QUOTA)
        .store(0, Relaxed);
    one.send(route, PORT, b"in spite of it").unwrap();
    world.progress(0);
    world.progress(0);
    assert!(other.receive().is_none());
    world.plane.restrict(one.mailbox, false);
    one.send(route, PORT, b"after").unwrap();
    world.progress(0);
    assert_eq!(other.receive().unwrap().0, b"in spite of it");
    assert_eq!(other.receive().unwrap().0, b"after");
}

#[test]
fn pages_of_a_long_queue_are_given_back_after_a_while() {
    let world = World::new();
    let (one, other) = node_pair(&world);
    let route = one.route(3, Route::Loop);
    let has_late = || {
        let read = |side: &NodeSide| side.has_late();
        world.plane.read_attached(other.mailbox, read).unwrap()
    };
    for _ in 0..4 {
        one.send(route, PORT, &vec![7; 40_000]).unwrap();
        world.progress(0);
    }
    while other.receive_or_sleep().is_some() {}
    world.plane.lock().serve_soon(other.mailbox);
    world.progress(0);
    assert!(has_late(), "not at once: the next messages may need them");
    world.progress(LATE_NS - 1);
    assert!(has_late());
    world.progress(1);
    assert!(!has_late());
    assert_eq!(world.plane.lock().next_attached_ns(), None);
}

#[test]
fn over_quota_an_idle_sender_keeps_no_pages_for_long() {
    let world = World::new();
    let (one, other) = node_pair(&world);
    let route = one.route(3, Route::Loop);
    one.send(route, PORT, &vec![7; 40_000]).unwrap();
    world.plane.restrict(one.mailbox, true);
    world.progress(0);
    assert!(other.receive().is_some());
    let has_late = || {
        let read = |side: &NodeSide| side.has_late();
        world.plane.read_attached(one.mailbox, read).unwrap()
    };
    assert!(has_late());
    world.progress(LATE_NS);
    assert!(!has_late());
    world.plane.restrict(one.mailbox, false);
    one.send(route, PORT, b"after").unwrap();
    world.progress(0);
    assert_eq!(other.receive().unwrap().0, b"after");
}

#[test]
fn the_next_worker_refuses_nothing_until_it_finds_a_user_over_its_quota() {
    let world = World::new();
    let mut client = Client::new(&world, 1, PORT);
    let route = client.route(3, Route::Loop);
    world.plane.restrict(client.mailbox, true);
    assert_eq!(client.send(route, PORT, b"x"), Err(Rejected::OverQuota));
    drop(world);
    let next = World::new();
    client.move_to(&next);
    let route = client.route(3, Route::Loop);
    assert_eq!(client.send(route, PORT, b"x"), Ok(()));
}

#[test]
fn over_quota_a_send_that_was_under_way_is_taken_and_its_pages_given_back() {
    let world = World::new();
    let (one, other) = node_pair(&world);
    let route = one.route(3, Route::Loop);
    world.plane.restrict(one.mailbox, true);
    world.progress(0);
    // As of clients that looked at the word before it was set.
    let refused = one.side.area().word(layout::AT_OVER_QUOTA);
    refused.store(0, Relaxed);
    one.send(route, PORT, &vec![7; 40_000]).unwrap();
    one.send(route, PORT, b"second").unwrap();
    refused.store(1, Relaxed);
    for expected in [vec![7; 40_000], b"second".to_vec()] {
        world.progress(0);
        assert!(other.receive().is_none(), "one at a time");
        world.progress(LATE_NS);
        assert_eq!(other.receive().unwrap().0, expected);
    }
    world.progress(LATE_NS);
    let read = |side: &NodeSide| side.has_late();
    assert!(!world.plane.read_attached(one.mailbox, read).unwrap());
}

#[test]
fn a_ping_to_an_address_of_this_node_is_answered() {
    let world = World::new();
    let (one, _other) = node_pair(&world);
    let route = one.route(3, Route::Loop);
    one.send(route, 0, b"").unwrap();
    world.progress(0);
    let (payload, source) = one.receive().unwrap();
    assert_eq!((payload.len(), source), (0, name_of(&address(3), 0)));
}

#[test]
fn a_message_leaves_on_a_path_and_is_freed_when_the_peer_has_it() {
    let world = World::new();
    let client = Client::new(&world, 1, PORT);
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    let route = client.route(2, Route::Stream(world.path));
    client.send(route, PEER_PORT, b"short").unwrap();
    client.send(route, PEER_PORT, &vec![9; 30_000]).unwrap();
    world.progress(0);
    assert_eq!(remote.payloads(), [b"short".to_vec(), vec![9; 30_000]]);
    assert_eq!(client.side.queued_bytes(), 30_005);
    remote.say(acknowledgement(1), b"");
    world.progress(0);
    assert_eq!(client.side.queued_bytes(), 30_000);
    remote.say(acknowledgement(2), b"");
    world.progress(0);
    assert_eq!(client.side.queued_bytes(), 0);
}

#[test]
fn what_fills_a_control_socket_stays_until_half_of_the_account_is_free() {
    let world = World::new();
    let client = Client::new(&world, 1, PORT);
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    let route = client.route(2, Route::Stream(world.path));
    let is_filled = || poll_now(client.kept.node_end.get(), libc::POLLIN) & libc::POLLIN != 0;
    for _ in 0..4 {
        client.send(route, PEER_PORT, &[9; 16_384]).unwrap();
    }
    world.progress(0);
    assert!(!is_filled(), "a doorbell is heard");
    client.side.wait_for_room(1000);
    client.ring(); // the node looked before the word was set
    for acknowledged in 1..4 {
        world.progress(0);
        assert_eq!(is_filled(), acknowledged < 3, "{acknowledged}");
        remote.say(acknowledgement(acknowledged), b"");
    }
}

#[test]
fn a_doorbell_among_what_fills_a_control_socket_is_heard() {
    let world = World::new();
    let client = Client::new(&world, 1, PORT);
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    let route = client.route(2, Route::Stream(world.path));
    client.send(route, PEER_PORT, b"first").unwrap();
    world.progress(0);
    assert_eq!(remote.payloads(), [b"first"]);
    // Between the last look of the node, which sleeps now, and its emptying.
    client.send(route, PEER_PORT, b"second").unwrap();
    client.side.wait_for_room(1000);
    world.plane.lock().empty_control_socket(client.mailbox);
    world.progress(0);
    assert_eq!(remote.payloads(), [b"second"]);
}

#[test]
fn what_arrives_lies_in_the_memory_of_its_socket() {
    let world = World::new();
    let client = Client::new(&world, 1, PORT);
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    for sequence in 1..=3 {
        remote.say_message(sequence, &[u8::try_from(sequence).unwrap(); 5000]);
    }
    world.progress(0);
    assert!(client.is_shown());
    for sequence in 1..=3u8 {
        let (payload, source) = client.receive().unwrap();
        assert_eq!(payload, [sequence; 5000]);
        assert_eq!(source, name_of(&address(2), PEER_PORT));
    }
    assert_eq!(client.receive_or_sleep(), None);
    assert!(!client.is_shown());
    remote.say_message(4, b"again");
    world.progress(0);
    assert!(client.is_shown());
    assert_eq!(client.receive_or_sleep().unwrap(), b"again");
}

#[test]
fn the_port_is_congested_until_the_client_has_taken_half() {
    let world = World::new();
    let client = Client::new(&world, 1, PORT);
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    let is_marked = || {
        let state = world.plane.lock();
        let host = state.hosts.iter().next().unwrap().1;
        host.congested.test(PORT)
    };
    for sequence in 1..=20 {
        remote.say_message(sequence, &[1; 10_000]);
        world.progress(world::MS);
    }
    world.progress(2 * world::MS);
    assert!(is_marked());
    // What is there is less than half of a buffer that is eight times as large.
    client.side.options().set(Word::ReceiveBytes, 8 * 65_536);
    client.ring();
    world.progress(0);
    assert!(!is_marked(), "the client chose a larger buffer");
    client.side.options().set(Word::ReceiveBytes, 65_536);
    client.ring();
    for _ in 0..2 {
        world.progress(2 * world::MS);
    }
    assert!(is_marked());
    while client.receive().is_some() {
        world.progress(0);
    }
    world.progress(0);
    assert!(!is_marked());
}

#[test]
fn a_buffer_is_as_large_as_its_own_area_has_room_for() {
    let world = World::new();
    for (send_bytes, receive_bytes) in [(1 << 22, 1 << 14), (1 << 14, 1 << 22)] {
        let sizes = Sizes {
            send_bytes,
            receive_bytes,
            ..SMALL
        };
        let client = Client::sized(&world, 1, 0, &sizes);
        client.side.options().set(Word::SendBytes, u32::MAX);
        client.side.options().set(Word::ReceiveBytes, u32::MAX);
        client.ring();
        world.progress(0);
        let state = world.plane.lock();
        let settings = &state.mailboxes.get(client.mailbox).unwrap().settings;
        let found = (settings.send_bytes_max, settings.receive_bytes_max);
        assert_eq!(found, (send_bytes / 4, receive_bytes / 4));
    }
}

#[test]
fn a_message_that_its_receiver_may_not_send_is_received_and_one_that_never_fits_dropped() {
    let world = World::with(urds_path::Limits {
        message_bytes_max: 1 << 23,
        ..Default::default()
    });
    let mut sizes = Sizes {
        send_bytes: 1 << 23,
        send_default: 1 << 23,
        message_limit: 1 << 23,
        ..SMALL
    };
    let sender = Client::sized(&world, 1, PORT, &sizes);
    sizes.receive_bytes = 1 << 21;
    sizes.message_limit = 1 << 10;
    let receiver = Client::sized(&world, 3, PORT, &sizes);
    let route = sender.route(3, Route::Loop);
    for bytes in [1 << 20, 1 << 22, 5] {
        sender.send(route, PORT, &vec![3; bytes]).unwrap();
        world.progress(0);
    }
    assert_eq!(receiver.receive().unwrap().0.len(), 1 << 20);
    world.progress(0);
    assert_eq!(receiver.receive().unwrap().0.len(), 5);
    assert_eq!(world.counter("recv_drop_too_long"), 1);
}

#[test]
fn a_message_longer_than_the_worker_allows_by_now_is_an_error_of_the_next_send() {
    let world = World::with(urds_path::Limits {
        message_bytes_max: 1000,
        ..Default::default()
    });
    let (client, other) = node_pair(&world);
    let route = client.route(3, Route::Loop);
    client.send(route, PORT, &[1; 1001]).unwrap();
    world.progress(0);
    let refused = Err(Rejected::Failed(libc::EMSGSIZE));
    assert_eq!(client.send(route, PORT, b""), refused);
    client.send(route, PORT, &[1; 1000]).unwrap();
    world.progress(0);
    assert_eq!(other.receive().unwrap().0.len(), 1000);
    assert_eq!(client.side.queued_bytes(), 0);
}

#[test]
fn what_is_left_has_the_time_of_so_linger() {
    for (word, after_ns, is_over) in [(0, 0, false), (1, 0, true), (10, 8, false), (10, 10, true)] {
        let world = World::new();
        let mut client = Client::new(&world, 1, PORT);
        let _remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
        let route = client.route(2, Route::Stream(world.path));
        client.side.options().set(Word::Linger, word);
        client.send(route, PEER_PORT, b"last words").unwrap();
        client.user_end = None;
        world.progress(0);
        world.progress(0);
        let mailbox = client.mailbox;
        world
            .plane
            .close_mailbox(mailbox, None, &mut || false)
            .unwrap();
        world.progress(after_ns * 1_000_000_000);
        assert_eq!(world.plane.is_over(mailbox), is_over, "{word} {after_ns}");
    }
}

#[test]
fn the_end_of_the_client_is_reported_after_what_it_submitted_was_taken() {
    let world = World::new();
    let mut client = Client::new(&world, 1, PORT);
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    let route = client.route(2, Route::Stream(world.path));
    client.send(route, PEER_PORT, b"last words").unwrap();
    client.user_end = None;
    let mut events = world.progress(0);
    events.extend(world.progress(0));
    let left = Event::Left {
        mailbox: client.mailbox,
    };
    assert!(events.contains(&left), "{events:?}");
    world
        .plane
        .close_mailbox(client.mailbox, None, &mut || false)
        .unwrap();
    assert!(!world.plane.is_over(client.mailbox));
    assert_eq!(remote.payloads(), [b"last words"]);
    remote.say(acknowledgement(1), b"");
    world.progress(0);
    assert!(world.plane.is_over(client.mailbox));
}

#[test]
fn what_a_client_submitted_before_its_end_is_taken_before_its_port_is_given_away() {
    let world = World::new();
    let mut client = Client::new(&world, 1, PORT);
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    let route = client.route(2, Route::Stream(world.path));
    client.send(route, PEER_PORT, b"last words").unwrap();
    client.user_end = None;
    assert!(world.plane.take_rest(client.mailbox));
    world
        .plane
        .close_mailbox(client.mailbox, None, &mut || false)
        .unwrap();
    assert_eq!(remote.payloads(), [b"last words"]);
    assert!(world.plane.take_rest(client.mailbox), "it is closed");
}

#[test]
fn without_time_to_linger_the_port_of_a_long_queue_is_given_away_at_once() {
    let world = World::new();
    let sizes = Sizes {
        submissions: 1024,
        ..SMALL
    };
    let mut client = Client::sized(&world, 1, PORT, &sizes);
    let route = client.route(2, Route::Stream(world.path));
    client.side.options().set(Word::Linger, 1);
    for _ in 0..300 {
        client.send(route, PEER_PORT, b"").unwrap();
    }
    client.user_end = None;
    assert!(world.plane.take_rest(client.mailbox));
}

#[test]
fn a_client_that_writes_nonsense_loses_its_socket_and_no_other() {
    let world = World::new();
    let (one, other) = node_pair(&world);
    let back = other.route(1, Route::Loop);
    let nowhere = name_of(&address(9), 0);
    one.side.set_route(&nowhere, 0, 4000, 1).unwrap();
    one.send(nowhere, PORT, b"to nowhere").unwrap();
    let events = world.progress(0);
    let is_error = |event: &Event| matches!(event, Event::ClientError { mailbox, .. } if *mailbox == one.mailbox);
    assert!(events.iter().any(is_error), "{events:?}");
    assert_eq!(one.forget().unwrap(), 0, "the control socket has ended");
    other.send(back, PORT, b"still").unwrap();
    world.progress(0);
}

#[test]
fn what_was_submitted_a_moment_ago_is_cancelled_too() {
    let world = World::new();
    let client = Client::new(&world, 1, PORT);
    let route = client.route(2, Route::Stream(world.path));
    for number in 0..40u8 {
        let port = if number % 4 == 0 { 4999 } else { PEER_PORT };
        client.send(route, port, &[number]).unwrap();
    }
    let cancel = |port| world.plane.cancel(client.mailbox, Some(address(2)), port);
    assert_eq!(cancel(Some(PEER_PORT)), 30);
    assert_eq!(cancel(None), 10);
    world.progress(0);
    assert_eq!(client.side.queued_bytes(), 0);
}

#[test]
fn an_address_is_as_the_memory_has_it() {
    let name = name_of(&Address::from(Ipv4Addr::new(127, 0, 83, 1)), 7);
    assert_eq!(name, Name::v4([127, 0, 83, 1], 7));
}
