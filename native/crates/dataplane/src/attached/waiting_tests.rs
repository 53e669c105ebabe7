//! Messages of a client that wait: for a route, for room, for a slot of the journal.

use urds_channel::socket_memory::{Rejected, Sizes};
use urds_path::{AckMode, Hold};

use super::tests::{Client, SMALL, node_pair};
use crate::events::Event;
use crate::mailbox::{MailboxSettings, Route};
use crate::world::{PEER_PORT, PORT, Remote, World, acknowledgement, address};

/// A world whose paths take two messages.
fn with_room_for_two() -> World {
    World::with(urds_path::Limits {
        path_messages_max: 2,
        ..Default::default()
    })
}

fn route_wanted(client: &Client) -> Event {
    Event::RouteWanted {
        mailbox: client.mailbox,
        peer: address(2),
    }
}

#[test]
fn a_message_waits_for_its_route_and_for_room_on_its_path() {
    let world = with_room_for_two();
    let client = Client::new(&world, 1, PORT);
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    let route = client.route(2, Route::Stream(world.path));
    world.plane.route(client.mailbox, address(2), None);
    for number in 0..4u8 {
        client.send(route, PEER_PORT, &[number]).unwrap();
    }
    let events = world.progress(0);
    let wanted = route_wanted(&client);
    assert_eq!(events.iter().filter(|event| **event == wanted).count(), 1);
    assert!(remote.payloads().is_empty());
    client.route(2, Route::Stream(world.path));
    world.progress(0);
    assert_eq!(remote.payloads(), [[0], [1]]);
    remote.say(acknowledgement(2), b"");
    world.progress(0);
    world.progress(0);
    assert_eq!(remote.payloads(), [[2], [3]]);
}

#[test]
fn what_waits_for_room_lets_the_plane_sleep() {
    let world = with_room_for_two();
    let client = Client::new(&world, 1, PORT);
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    let route = client.route(2, Route::Stream(world.path));
    for number in 0..6u8 {
        client.send(route, PEER_PORT, &[number]).unwrap();
    }
    world.progress(0);
    assert_eq!(remote.payloads(), [[0], [1]]);
    assert_eq!(world.plane.lock().next_attached_ns(), None);
    client.send(route, PEER_PORT, &[6]).unwrap();
    for acknowledged in [2, 4, 6] {
        remote.say(acknowledgement(acknowledged), b"");
        world.progress(0);
        world.progress(0);
    }
    assert_eq!(remote.payloads(), [[2], [3], [4], [5], [6]]);
}

#[test]
fn what_waits_for_room_holds_up_none_to_others_and_is_cancelled() {
    let world = with_room_for_two();
    let (client, other) = node_pair(&world);
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    let away = client.route(2, Route::Stream(world.path));
    let near = client.route(3, Route::Loop);
    for number in 0..6u8 {
        let port = if number < 4 { PEER_PORT } else { 4999 };
        client.send(away, port, &[number]).unwrap();
    }
    client.send(near, PORT, b"to another").unwrap();
    world.progress(0);
    assert_eq!(other.receive().unwrap().0, b"to another");
    assert_eq!(remote.payloads(), [[0], [1]]);
    let cancel = |last, port| {
        world
            .plane
            .cancel(client.mailbox, Some(address(last)), port)
    };
    assert_eq!(cancel(3, None), 0);
    assert_eq!(cancel(2, Some(4999)), 2);
    client.send(away, PEER_PORT, &[9]).unwrap();
    for acknowledged in [2, 4] {
        remote.say(acknowledgement(acknowledged), b"");
        world.progress(0);
        world.progress(0);
    }
    assert_eq!(remote.payloads(), [[2], [3], [9]], "in order");
    remote.say(acknowledgement(5), b"");
    world.progress(0);
    assert_eq!(client.side.queued_bytes(), 0);
}

const SLOTS: u64 = 256; // of SMALL

/// A client with as many messages under way as its journal has slots, and some submitted behind them.
fn without_slots(world: &World, behind: u64) -> (Client, Remote) {
    let client = Client::new(world, 1, PORT);
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    let route = client.route(2, Route::Stream(world.path));
    for number in 1..=SLOTS + behind {
        client.send(route, PEER_PORT, b"").unwrap();
        if number % 32 == 0 {
            world.progress(0);
        }
    }
    world.progress(0);
    assert_eq!(remote.payloads().len() as u64, SLOTS);
    (client, remote)
}

#[test]
fn with_all_slots_of_the_journal_in_use_what_is_submitted_waits_for_one() {
    const BEHIND: u64 = 40;
    for leaves in [false, true] {
        let world = World::new();
        let (mut client, mut remote) = without_slots(&world, BEHIND);
        let left = Event::Left {
            mailbox: client.mailbox,
        };
        if leaves {
            client.user_end = None;
            for _ in 0..3 {
                assert!(!world.progress(0).contains(&left));
                assert!(!world.plane.take_rest(client.mailbox));
            }
        } else {
            assert_eq!(world.plane.lock().next_attached_ns(), None, "it sleeps");
        }
        remote.say(acknowledgement(SLOTS), b"");
        let events: Vec<_> = (0..3).flat_map(|_| world.progress(0)).collect();
        assert_eq!(remote.payloads().len() as u64, BEHIND);
        assert_eq!(events.contains(&left), leaves);
    }
}

#[test]
fn with_all_slots_of_the_journal_in_use_a_socket_that_submits_nothing_may_leave() {
    let world = World::new();
    let (mut client, _remote) = without_slots(&world, 0);
    client.leave(&world);
}

#[test]
fn with_all_slots_of_the_journal_in_use_a_reader_is_shown_what_it_rings_for() {
    let world = World::new();
    let (client, mut remote) = without_slots(&world, 1);
    remote.say_message(1, b"for which it is woken");
    world.progress(0);
    client.forget().unwrap();
    assert!(client.receive().is_some());
    let as_it_falls_asleep = || {
        remote.say_message(2, b"not shown: it is awake");
        world.progress(0);
    };
    assert_eq!(client.side.sleep(as_it_falls_asleep), Ok(true));
    assert!(!client.is_shown());
    client.ring();
    world.progress(0);
    assert!(client.is_shown());
}

#[test]
fn with_all_slots_of_the_journal_in_use_what_is_submitted_is_cancelled_too() {
    let world = World::new();
    let (client, _remote) = without_slots(&world, 40);
    assert_eq!(world.plane.cancel(client.mailbox, None, None), 296);
    assert_eq!(client.side.unacknowledged(), Ok(0));
}

#[test]
fn what_is_behind_a_cancelled_message_goes_on() {
    let world = World::with(urds_path::Limits {
        receive_hard_bytes: 0,
        receive_hard_factor: 1,
        ..Default::default()
    });
    let (client, _full) = node_pair(&world);
    let roomy = Client::new(&world, 3, PORT + 1);
    let route = client.route(3, Route::Loop);
    let mut sent = 0;
    while client.side.queued_bytes() == 0 {
        assert!(sent < 1000, "it takes all");
        client.send(route, PORT, &[1; 10_000]).unwrap();
        world.progress(0);
        sent += 1;
    }
    client.send(route, PORT + 1, b"behind").unwrap();
    world.progress(0);
    assert!(roomy.receive().is_none(), "in order");
    let cancelled = world
        .plane
        .cancel(client.mailbox, Some(address(3)), Some(PORT));
    assert_eq!(cancelled, 1);
    world.progress(0);
    assert_eq!(roomy.receive().unwrap().0, b"behind");
}

#[test]
fn a_cancel_meets_what_is_submitted_behind_many_that_wait() {
    let world = World::new();
    let sizes = Sizes {
        submissions: 1024,
        ..SMALL
    };
    let client = Client::sized(&world, 1, PORT, &sizes);
    let _other = Client::new(&world, 3, PORT);
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    let away = client.route(2, Route::Stream(world.path));
    let near = client.route(3, Route::Loop);
    world.plane.route(client.mailbox, address(2), None);
    for _ in 0..300 {
        client.send(away, PEER_PORT, b"").unwrap(); // more than a pass takes
    }
    world.progress(0);
    world.progress(0);
    client.route(2, Route::Stream(world.path));
    for _ in 0..40 {
        client.send(away, 4999, b"").unwrap();
    }
    client.send(near, PORT, b"").unwrap();
    assert_eq!(
        world
            .plane
            .cancel(client.mailbox, Some(address(2)), Some(4999)),
        40
    );
    world.progress(0);
    world.progress(0);
    assert_eq!(remote.payloads().len(), 300);
}

#[test]
fn a_route_that_fails_after_its_message_was_cancelled_is_no_error_of_the_next() {
    let world = World::new();
    let client = Client::new(&world, 1, PORT);
    let route = client.route(2, Route::Stream(world.path));
    world.plane.route(client.mailbox, address(2), None);
    for cancels in [true, false] {
        client.send(route, PEER_PORT, b"").unwrap();
        world.progress(0);
        if cancels {
            assert_eq!(world.plane.cancel(client.mailbox, None, None), 1);
        }
        let plane = &world.plane;
        plane.fail_route(client.mailbox, address(2), libc::EHOSTUNREACH);
        let wanted = if cancels {
            Ok(())
        } else {
            Err(Rejected::Failed(libc::EHOSTUNREACH))
        };
        assert_eq!(client.send(route, PEER_PORT, b""), wanted);
        world.plane.cancel(client.mailbox, None, None);
    }
}

#[test]
fn a_route_that_goes_while_messages_wait_for_room_is_wanted_anew() {
    let world = with_room_for_two();
    let client = Client::new(&world, 1, PORT);
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    let route = client.route(2, Route::Stream(world.path));
    world.plane.route(client.mailbox, address(2), None);
    let other = world.mailbox_at(PORT + 1, MailboxSettings::default());
    for _ in 0..2 {
        world.send(other, b"before").unwrap();
    }
    client.send(route, PEER_PORT, b"waits").unwrap();
    let wanted = route_wanted(&client);
    assert!(world.progress(0).contains(&wanted));
    client.route(2, Route::Stream(world.path));
    assert_eq!(world.progress(0), [], "the path is full");
    world.plane.route(client.mailbox, address(2), None);
    assert!(world.progress(0).contains(&wanted));
    client.route(2, Route::Stream(world.path));
    remote.say(acknowledgement(2), b"");
    world.progress(0);
    world.progress(0);
    assert_eq!(remote.payloads(), [&b"before"[..], b"before", b"waits"]);
}
