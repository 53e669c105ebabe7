//! A worker that is killed, and the next one: the client and the peers see a connection that broke.

use std::panic::{AssertUnwindSafe, catch_unwind};

use urds_channel::socket_memory::{Name, Rejected};
use urds_channel::sys::doorbell;
use urds_path::constants::FLAG_RETRANSMITTED;
use urds_path::{AckMode, Header, Hold};

use super::steps::{BROKEN, KILL_AT, Rule, Step};
use super::tests::Client;
use crate::attached::Event;
use crate::mailbox::Route;
use crate::state::PathId;
use crate::world::{MS, PEER_PORT, PORT, Remote, World, acknowledgement, address};

/// End a worker as a kill does: nothing of it runs any more, and its memory stays.
fn kill(world: World) -> i32 {
    let file = world.plane.path_journal().unwrap();
    let file = doorbell::duplicate(file).unwrap();
    std::mem::forget(world);
    file
}

fn first_world() -> World {
    let world = World::bare();
    world.plane.path_journal().unwrap();
    world.with_own_path()
}

fn next_world(file: i32) -> World {
    let world = World::bare();
    world.plane.take_path_journal(file).unwrap();
    world
}

fn connect(world: &World) -> Remote {
    world.attach(Hold::Nothing, AckMode::PeerAcknowledged)
}

fn sent(remote: &mut Remote) -> Vec<(Header, Vec<u8>)> {
    let frames = remote.frames().into_iter();
    frames
        .filter(|(header, _)| header.target_port > 1)
        .collect()
}

#[test]
fn what_was_taken_and_not_acknowledged_is_sent_again_by_the_next_worker() {
    let world = first_world();
    let mut client = Client::new(&world, 1, PORT);
    let mut remote = connect(&world);
    let to = client.route(2, Route::Stream(world.path));
    for number in 1..=4u8 {
        client.send(to, PEER_PORT, &[number; 100]).unwrap();
    }
    world.progress(0);
    assert_eq!(sent(&mut remote).len(), 4);
    remote.say(acknowledgement(2), b"");
    world.progress(0);
    client.send(to, PEER_PORT, b"not taken").unwrap();

    let world = next_world(kill(world));
    client.move_to(&world);
    let events = world.plane.help(Some(0));
    let is_wanted =
        |event: &Event| matches!(event, Event::RouteWanted { peer, .. } if *peer == address(2));
    assert!(events.iter().any(is_wanted), "{events:?}");
    let world = world.with_own_path();
    client.route(2, Route::Stream(world.path));
    let mut remote = connect(&world);
    world.progress(0);
    assert!(sent(&mut remote).is_empty(), "sockets are being restored");
    world.plane.finish_restore();
    world.progress(0);
    let frames = sent(&mut remote);
    let seen: Vec<_> = frames
        .iter()
        .map(|(header, payload)| (header.sequence, payload[0]))
        .collect();
    assert_eq!(seen, [(3, 3), (4, 4), (5, b'n')]);
    assert!(frames[0].0.flags & FLAG_RETRANSMITTED != 0);
    assert!(frames[2].0.flags & FLAG_RETRANSMITTED == 0);
    remote.say(acknowledgement(5), b"");
    world.progress(0);
    assert_eq!(client.side.queued_bytes(), 0);
}

#[test]
fn a_message_that_was_delivered_is_dropped_when_the_peer_sends_it_again() {
    let world = first_world();
    let mut client = Client::new(&world, 1, PORT);
    let mut remote = connect(&world);
    for sequence in 1..=3 {
        remote.say_message(sequence, &[u8::try_from(sequence).unwrap()]);
    }
    world.progress(0);
    assert_eq!(client.receive().unwrap().0, [1]);

    let world = next_world(kill(world));
    client.move_to(&world);
    let world = world.with_own_path();
    world.plane.finish_restore();
    let mut remote = connect(&world);
    for sequence in 1..=4 {
        let again = Header {
            sequence,
            source_port: PEER_PORT,
            target_port: PORT,
            flags: if sequence < 4 { FLAG_RETRANSMITTED } else { 0 },
            ..Header::default()
        };
        remote.say(again, &[u8::try_from(sequence).unwrap()]);
    }
    world.progress(0);
    assert!(client.is_shown());
    let got: Vec<_> = std::iter::from_fn(|| client.receive())
        .map(|(payload, _)| payload[0])
        .collect();
    assert_eq!(got, [2, 3, 4]);
}

#[test]
fn the_next_worker_is_told_which_connections_there_were() {
    let pair = (address(1), address(2));
    let world = first_world();
    connect(&world);
    let world = next_world(kill(world));
    assert_eq!(world.plane.finish_restore(), [pair]);
    // Not made again before this one ended as well.
    let world = next_world(kill(world)).with_own_path();
    assert_eq!(world.plane.finish_restore(), [pair]);
    drop(connect(&world)); // by the peer
    world.progress(0);
    let world = next_world(kill(world)).with_own_path();
    assert!(world.plane.finish_restore().is_empty());
    connect(&world);
    world.plane.end_streams(0);
    let world = next_world(kill(world)).with_own_path();
    assert_eq!(world.plane.finish_restore(), [pair], "this side ended it");
    connect(&world);
    world.plane.close_path(world.path);
    assert!(next_world(kill(world)).plane.finish_restore().is_empty());
}

#[test]
fn the_next_worker_is_told_how_many_paths_there_were() {
    let (local, peer) = (address(1), address(2));
    let world = first_world();
    let world = next_world(kill(world));
    assert!(world.plane.npaths_before().is_empty(), "one");
    let world = world.with_own_path();
    for index in 1..4 {
        world.plane.path(local, peer, index, 1);
    }
    let world = next_world(kill(world));
    assert_eq!(world.plane.npaths_before(), [(local, peer, 4)]);
    // Each counts until it is closed, though it is not made in every worker.
    for index in [3, 2] {
        let path = world.plane.path(local, peer, index, 1);
        world.plane.close_path(path);
    }
    let world = next_world(kill(world));
    assert_eq!(world.plane.npaths_before(), [(local, peer, 2)]);
    world.plane.path(local, peer, 2, 1);
    let world = next_world(kill(world));
    assert_eq!(world.plane.npaths_before(), [(local, peer, 2)], "of three");
    world.plane.path(local, peer, 3, 1);
    let world = next_world(kill(world));
    assert_eq!(world.plane.npaths_before(), [(local, peer, 4)]);
}

fn four_paths(world: &World) -> Vec<PathId> {
    let make = |index| world.plane.path(address(1), address(2), index, 1);
    (0..4).map(make).collect()
}

/// Hold the paths of a fan-out behind the one of before.
fn fan_out(world: &World, paths: &[PathId], before: PathId) {
    for &path in &paths[1..] {
        if path != before {
            world.plane.hold_behind(path, None);
            world.plane.hold_behind(path, Some(before));
        }
    }
}

/// End a worker just after a socket moved from a path to another one, before anything is
/// acknowledged; return what the next worker sends on the socket's path, before that and after.
fn killed_in_fan_out(index_before: usize) -> (Vec<u8>, Vec<u8>) {
    let first_bytes = |remote: &mut Remote| -> Vec<u8> {
        sent(remote).iter().map(|(_, payload)| payload[0]).collect()
    };
    let world = World::bare();
    world.plane.path_journal().unwrap();
    let paths = four_paths(&world);
    let before = paths[index_before];
    let world = world.with_path(before);
    let mut client = Client::new(&world, 1, PORT);
    let mut remote = connect(&world);
    let to = client.route(2, Route::Stream(before));
    for number in 1..=2u8 {
        client.send(to, PEER_PORT, &[number]).unwrap();
    }
    world.progress(0);
    assert_eq!(first_bytes(&mut remote), [1, 2]);
    fan_out(&world, &paths, before);
    client.route(2, Route::Stream(paths[3]));
    client.send(to, PEER_PORT, &[3]).unwrap();
    world.progress(0);

    let world = next_world(kill(world));
    let paths = four_paths(&world);
    fan_out(&world, &paths, paths[0]);
    client.move_to(&world);
    client.route(2, Route::Stream(paths[3]));
    let world = world.with_path(paths[3]);
    let mut moved = connect(&world);
    let world = world.with_path(paths[index_before]);
    let mut remote = connect(&world);
    world.plane.finish_restore();
    world.progress(0);
    assert_eq!(first_bytes(&mut remote), [1, 2]);
    let early = first_bytes(&mut moved);
    remote.say(acknowledgement(2), b"");
    world.progress(0);
    world.progress(0);
    (early, first_bytes(&mut moved))
}

#[test]
fn a_kill_in_a_fan_out_has_no_message_overtake_those_of_the_path_before() {
    for index_before in [0, 1] {
        let none: Vec<u8> = Vec::new();
        assert_eq!(killed_in_fan_out(index_before), (none.clone(), vec![3]));
        BROKEN.set(Some(Rule::HoldMoved));
        let found = killed_in_fan_out(index_before);
        BROKEN.set(None);
        assert_eq!(found, (vec![3], none), "it is felt");
    }
}

#[test]
fn what_moved_to_another_path_is_sent_again_on_that_by_the_next_worker() {
    let world = World::bare();
    world.plane.path_journal().unwrap();
    let paths = four_paths(&world);
    let mut client = Client::new(&world, 1, PORT);
    let to = client.route(2, Route::Stream(paths[3]));
    client.send(to, PEER_PORT, &[1]).unwrap();
    world.progress(0);
    let (from, staying) = (paths[3], paths[1]);
    world.plane.move_queue(from, staying, &[client.mailbox]);
    client.send(to, PEER_PORT, &[2]).unwrap();
    let world = world.with_path(staying);
    let mut remote = connect(&world);
    world.progress(0);
    let numbers = |remote: &mut Remote| -> Vec<(u64, u8)> {
        let frames = sent(remote).into_iter();
        frames
            .map(|(header, payload)| (header.sequence, payload[0]))
            .collect()
    };
    assert_eq!(numbers(&mut remote), [(1, 1), (2, 2)]);

    let world = next_world(kill(world));
    let paths = four_paths(&world);
    client.move_to(&world);
    client.route(2, Route::Stream(paths[1]));
    let world = world.with_path(paths[1]);
    let mut remote = connect(&world);
    world.plane.finish_restore();
    world.progress(0);
    assert_eq!(numbers(&mut remote), [(1, 1), (2, 2)]);
    remote.say(acknowledgement(2), b"");
    world.progress(0);
    assert_eq!(client.side.queued_bytes(), 0);
}

#[test]
fn what_a_path_that_is_made_again_expects_is_there_for_the_next_worker() {
    let world = first_world();
    let _client = Client::new(&world, 1, PORT);
    let mut remote = connect(&world);
    remote.say_message(1, b"a");
    world.progress(0);
    let received = world.plane.received(world.path).unwrap();
    world.plane.close_path(world.path);
    let world = world.with_own_path();
    world.plane.expect(world.path, received);
    let world = next_world(kill(world)).with_own_path();
    assert_eq!(world.plane.received(world.path), Some(received));
}

#[test]
fn messages_between_sockets_of_a_node_arrive_once() {
    let world = first_world();
    let mut one = Client::new(&world, 1, PORT);
    let mut other = Client::new(&world, 3, PORT);
    let to = one.route(3, Route::Loop);
    one.send(to, PORT, b"before").unwrap();
    world.progress(0);
    one.send(to, PORT, b"between").unwrap();

    let world = next_world(kill(world));
    one.move_to(&world);
    other.move_to(&world);
    one.route(3, Route::Loop);
    world.plane.finish_restore();
    world.progress(0);
    assert!(other.is_shown());
    assert_eq!(other.receive().unwrap().0, b"before");
    assert_eq!(other.receive().unwrap().0, b"between");
    assert!(other.receive().is_none());
    world.progress(0);
    assert_eq!(one.side.queued_bytes(), 0);
}

// -- kills in the middle, and rules that are left out

/// What a client and its peer saw, once everything had time to arrive.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// Numbers and first bytes that the peer took as new, in their order.
    by_peer: Vec<u8>,
    by_client: Vec<u8>,
    by_neighbour: Vec<u8>,
    /// The neighbour's descriptor told of what was sent before the kill.
    is_shown: bool,
    is_freed: bool,
}

fn wanted() -> Seen {
    Seen {
        by_peer: vec![1, 2, 3, 4],
        by_client: vec![11, 12, 13, 14],
        by_neighbour: vec![21, 22, 23, 24],
        is_shown: true,
        is_freed: true,
    }
}

/// A peer that is a urds node: it drops what it had, and sends again what was not acknowledged.
#[derive(Default)]
struct Peer {
    expected: u64,
    taken: Vec<u8>,
    acknowledged: u64,
    sent: u64,
}

impl Peer {
    fn say(&mut self, remote: &mut Remote, upto: u64) {
        for sequence in self.acknowledged + 1..=upto {
            let header = Header {
                sequence,
                source_port: PEER_PORT,
                target_port: PORT,
                flags: if sequence <= self.sent {
                    FLAG_RETRANSMITTED
                } else {
                    0
                },
                ..Header::default()
            };
            remote.say(header, &[10 + u8::try_from(sequence).unwrap()]);
        }
        self.sent = self.sent.max(upto);
    }

    fn hear(&mut self, remote: &mut Remote) {
        for (header, payload) in remote.frames() {
            self.acknowledged = self.acknowledged.max(header.ack);
            let is_again = header.flags & FLAG_RETRANSMITTED != 0;
            if header.target_port <= 1 || (is_again && header.sequence < self.expected) {
                continue;
            }
            self.expected = header.sequence + 1;
            self.taken.push(payload[0]);
        }
        let newest = self.expected.saturating_sub(1);
        remote.say(acknowledgement(newest), b"");
    }
}

/// A worker with a client, its neighbour on the node, and a peer.
struct Scene {
    world: World,
    client: Client,
    neighbour: Client,
    peer: Peer,
    remote: Remote,
    by_neighbour: Vec<u8>,
}

fn take(client: &Client) -> Vec<u8> {
    let taken = std::iter::from_fn(|| client.receive());
    taken.map(|(payload, _)| payload[0]).collect()
}

fn route(scene: &Scene) -> (Name, Name) {
    let far = scene.client.route(2, Route::Stream(scene.world.path));
    (far, scene.client.route(3, Route::Loop))
}

impl Scene {
    /// Two messages of each kind are there, the third of each is on its way.
    fn before() -> Self {
        let world = first_world();
        let (client, neighbour) = (Client::new(&world, 1, PORT), Client::new(&world, 3, PORT));
        let remote = connect(&world);
        let mut scene = Self {
            world,
            client,
            neighbour,
            peer: Peer::default(),
            remote,
            by_neighbour: Vec::new(),
        };
        let (far, near) = route(&scene);
        for number in 1..=2u8 {
            scene.client.send(far, PEER_PORT, &[number]).unwrap();
            scene.client.send(near, PORT, &[20 + number]).unwrap();
            scene.world.progress(0);
        }
        scene.peer.say(&mut scene.remote, 2);
        scene.world.progress(0);
        scene.peer.hear(&mut scene.remote);
        scene.world.progress(0);
        scene.by_neighbour = take(&scene.neighbour);
        assert!(scene.neighbour.receive_or_sleep().is_none());
        scene.client.send(far, PEER_PORT, &[3]).unwrap();
        scene.client.send(near, PORT, &[23]).unwrap();
        scene.peer.say(&mut scene.remote, 3);
        scene
    }

    /// The next worker: its peer connects before all of its sockets are attached.
    fn restart(mut self) -> Self {
        self.peer.hear(&mut self.remote);
        self.world = next_world(kill(self.world)).with_own_path();
        self.remote = connect(&self.world);
        self.peer.say(&mut self.remote, 3);
        self.world.progress(0);
        self.client.move_to(&self.world);
        self.neighbour.move_to(&self.world);
        route(&self);
        self.world.plane.finish_restore();
        self.world.progress(0);
        self
    }

    fn after(mut self) -> Seen {
        let (far, near) = route(&self);
        let is_shown = self.neighbour.is_shown();
        self.client.send(far, PEER_PORT, &[4]).unwrap();
        for _ in 0..4 {
            self.world.progress(0);
            self.peer.hear(&mut self.remote);
        }
        self.peer.say(&mut self.remote, 4);
        for _ in 0..4 {
            self.world.progress(50 * MS);
            self.peer.hear(&mut self.remote);
        }
        self.client.send(near, PORT, &[24]).unwrap();
        self.world.progress(0);
        self.by_neighbour.extend(take(&self.neighbour));
        self.world.progress(0);
        Seen {
            by_peer: self.peer.taken,
            by_client: take(&self.client),
            by_neighbour: self.by_neighbour,
            is_shown,
            is_freed: self.client.side.queued_bytes() == 0,
        }
    }
}

/// Kill a worker at a step of the third message of each kind; `None`: the step was not met.
fn killed_at(step: Option<Step>) -> Option<Seen> {
    let scene = Scene::before();
    KILL_AT.set(step);
    let passed = catch_unwind(AssertUnwindSafe(|| drop(scene.world.progress(0))));
    KILL_AT.set(None);
    (passed.is_err() == step.is_some()).then(|| scene.restart().after())
}

const STEPS: [Step; 8] = [
    Step::Numbered,
    Step::NextNoted,
    Step::Intended,
    Step::Published,
    Step::ExpectedNoted,
    Step::DeliveredHere,
    Step::FreedHere,
    Step::ShowDue,
];

#[test]
fn a_kill_at_any_step_loses_and_doubles_nothing() {
    assert_eq!(killed_at(None), Some(wanted()));
    for step in STEPS {
        assert_eq!(killed_at(Some(step)), Some(wanted()), "killed at {step:?}");
    }
}

#[test]
fn each_rule_that_is_left_out_is_found() {
    for rule in [
        Rule::NoteNumber,
        Rule::NoteNext,
        Rule::IntendFromPath,
        Rule::IntendFromSocket,
        Rule::NoteExpected,
        Rule::ShowUnread,
        Rule::HoldStreams,
    ] {
        BROKEN.set(Some(rule));
        let kills = STEPS.into_iter().map(Some).chain([None]);
        let found = kills.filter_map(killed_at).any(|seen| seen != wanted());
        BROKEN.set(None);
        assert!(found, "{rule:?} may be left out");
    }
}

#[test]
fn a_number_that_another_message_has_by_the_second_kill_loses_none() {
    let world = first_world();
    let (mut slow, mut quick) = (
        Client::new(&world, 1, PORT),
        Client::new(&world, 1, PORT + 1),
    );
    let _remote = connect(&world);
    let to = slow.route(2, Route::Stream(world.path));
    slow.send(to, PEER_PORT, b"slow").unwrap();
    KILL_AT.set(Some(Step::Numbered));
    let passed = catch_unwind(AssertUnwindSafe(|| drop(world.progress(0))));
    assert!(
        passed.is_err(),
        "it has the first number, which its path does not know"
    );

    let world = next_world(kill(world)).with_own_path();
    slow.move_to(&world); // its route is not found before the next kill
    quick.move_to(&world);
    let to = quick.route(2, Route::Stream(world.path));
    let mut remote = connect(&world);
    world.plane.finish_restore();
    quick.send(to, PEER_PORT, b"quick").unwrap();
    world.progress(0);
    assert_eq!(sent(&mut remote)[0].0.sequence, 1);

    let world = next_world(kill(world)).with_own_path();
    for client in [&mut slow, &mut quick] {
        client.move_to(&world);
        client.route(2, Route::Stream(world.path));
    }
    let mut remote = connect(&world);
    world.plane.finish_restore();
    world.progress(0);
    let frames = sent(&mut remote);
    let seen: Vec<_> = frames
        .iter()
        .map(|(header, payload)| (header.sequence, &payload[..]))
        .collect();
    assert_eq!(seen, [(1, &b"quick"[..]), (2, b"slow")]);
}

// -- sockets that were closed before the worker ended

#[test]
fn the_next_worker_sends_what_a_closed_socket_had_sent() {
    let world = first_world();
    let mut client = Client::new(&world, 1, PORT);
    let mut remote = connect(&world);
    let to = client.route(2, Route::Stream(world.path));
    client.send(to, PEER_PORT, b"1 numbered").unwrap();
    world.progress(0);
    assert_eq!(sent(&mut remote).len(), 1);
    drop(remote);
    world.progress(0);
    client.send(to, PEER_PORT, b"2 not numbered").unwrap();
    client.leave(&world);
    assert!(!world.plane.is_over(client.mailbox));

    let world = next_world(kill(world));
    client.move_left_to(&world);
    let events = world.plane.help(Some(0));
    let is_wanted = |event: &Event| matches!(event, Event::RouteWanted { .. });
    assert!(events.iter().any(is_wanted), "{events:?}");
    world.plane.finish_restore();
    let left = Event::Left {
        mailbox: client.mailbox,
    };
    assert!(!world.progress(0).contains(&left), "there is no path yet");
    assert!(!world.plane.take_rest(client.mailbox));
    let world = world.with_own_path();
    client.route(2, Route::Stream(world.path));
    client.leave(&world);
    assert!(!world.plane.is_over(client.mailbox));
    let mut remote = connect(&world);
    world.progress(0);
    let seen: Vec<_> = sent(&mut remote)
        .iter()
        .map(|(header, payload)| (header.sequence, header.source_port, payload[0]))
        .collect();
    assert_eq!(seen, [(1, PORT, b'1'), (2, PORT, b'2')]);
    remote.say(acknowledgement(2), b"");
    world.progress(0);
    assert!(world.plane.is_over(client.mailbox));
}

#[test]
fn a_closed_socket_leaves_its_port_to_the_one_that_has_it_now() {
    for is_left_first in [true, false] {
        let world = first_world();
        let mut left = Client::new(&world, 1, PORT);
        let to = left.route(2, Route::Stream(world.path));
        left.send(to, PEER_PORT, b"of the first").unwrap();
        left.leave(&world);
        let mut live = Client::new(&world, 1, PORT);

        let world = next_world(kill(world)).with_own_path();
        if is_left_first {
            left.move_left_to(&world);
        }
        live.move_to(&world);
        if !is_left_first {
            left.move_left_to(&world);
        }
        left.route(2, Route::Stream(world.path));
        world.plane.finish_restore();
        let mut remote = connect(&world);
        left.leave(&world);
        remote.say_message(1, b"for the second");
        world.progress(0);
        assert_eq!(live.receive().unwrap().0, b"for the second");
        assert_eq!(remote.payloads(), [b"of the first"]);
    }
}

#[test]
fn what_finds_no_path_is_cancelled_and_ends_with_a_route_that_fails() {
    for fails in [false, true] {
        let world = first_world();
        let mut client = Client::new(&world, 1, PORT);
        let _remote = connect(&world);
        let to = client.route(2, Route::Stream(world.path));
        for port in [PEER_PORT, PEER_PORT, 4999] {
            client.send(to, port, b"numbered").unwrap();
        }
        world.progress(0);

        let world = next_world(kill(world));
        client.move_to(&world);
        world.plane.finish_restore();
        if fails {
            let errno = libc::EACCES;
            world.plane.fail_route(client.mailbox, address(2), errno);
            let refused = Err(Rejected::Failed(errno));
            assert_eq!(client.send(to, PEER_PORT, b""), refused);
        } else {
            let cancel = |last, port| {
                world
                    .plane
                    .cancel(client.mailbox, Some(address(last)), port)
            };
            assert_eq!(cancel(3, None), 0);
            assert_eq!(cancel(2, Some(PEER_PORT)), 2);
            assert_eq!(cancel(2, None), 1);
        }
        world.progress(0);
        assert_eq!(client.side.queued_bytes(), 0);
        let world = world.with_own_path();
        client.route(2, Route::Stream(world.path));
        let mut remote = connect(&world);
        world.progress(0);
        assert!(sent(&mut remote).is_empty());
    }
}

#[test]
fn what_finds_no_path_is_dropped_after_the_time_of_linger() {
    let world = first_world();
    let mut client = Client::new(&world, 1, PORT);
    let remote = connect(&world);
    let to = client.route(2, Route::Stream(world.path));
    client.send(to, PEER_PORT, b"numbered").unwrap();
    world.progress(0);
    drop(remote);
    client.leave(&world);

    let world = next_world(kill(world));
    client.move_left_to(&world);
    world.plane.finish_restore();
    let linger_ns = world.plane.lock().limits.linger_ns;
    world.pass(linger_ns);
    client.leave(&world);
    assert!(!world.plane.is_over(client.mailbox));
    world.progress(linger_ns);
    assert!(world.plane.is_over(client.mailbox));
    let world = world.with_own_path();
    assert!(sent(&mut connect(&world)).is_empty());
}
