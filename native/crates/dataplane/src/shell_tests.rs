//! Messages in and out of one path: when they leave, which calls fail, what a read reports.

use urds_path::{AckMode, DownReason, Header, Hold, Limits};

use crate::errors::ErrorReason;
use crate::events::Event;
use crate::mailbox::{MailboxSettings, Route};
use crate::receive_side::Taken;
use crate::world::{MS, PEER_PORT, World, acknowledgement, address, message, peer};

const LONG: usize = 64 << 10;

fn sized(send_bytes_max: usize) -> MailboxSettings {
    MailboxSettings {
        send_bytes_max,
        ..MailboxSettings::default()
    }
}

fn buffered(receive_bytes_max: usize) -> MailboxSettings {
    MailboxSettings {
        receive_bytes_max,
        ..MailboxSettings::default()
    }
}

#[test]
fn the_account_is_tested_before_a_message_is_added() {
    let world = World::new();
    let mailbox = world.mailbox(sized(100));
    assert_eq!(world.send(mailbox, &[0; 99]), Ok(()));
    assert_eq!(world.send(mailbox, &[0; 100]), Ok(()));
    assert_eq!(world.send(mailbox, &[]), Err(ErrorReason::QueueFull));
    assert_eq!(world.send(mailbox, &[0; 101]), Err(ErrorReason::TooLong));
    assert_eq!(world.snapshot().mailboxes[0].send_queued_bytes, 199);
    assert_eq!(
        world.progress(0),
        [Event::ConnectWanted { path: world.path }]
    );
}

#[test]
fn a_burst_leaves_as_a_batch_and_a_request_at_once() {
    let world = World::new();
    let mailbox = world.mailbox(MailboxSettings::default());
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    for text in [b"1", b"2", b"3", b"4"] {
        world.send(mailbox, text).unwrap();
    }
    // Two spend the burst budget; the rest waits.
    assert_eq!(remote.payloads(), [b"1", b"2"]);
    world.progress(MS);
    assert_eq!(remote.payloads(), [b"3", b"4"]);
    remote.say(acknowledgement(4), &[]);
    world.progress(0);
    assert_eq!(world.snapshot().mailboxes[0].send_queued_bytes, 0);
    for (sequence, text) in [(5, b"5"), (6, b"6"), (7, b"7"), (8, b"8")] {
        world.send(mailbox, text).unwrap();
        assert_eq!(remote.payloads(), [text]);
        remote.say(acknowledgement(sequence), &[]);
        world.progress(0);
    }
}

#[test]
fn copies_queue_what_single_messages_would() {
    // Bounds of the account and of the path: each ends it once the stream takes no more.
    for (send_bytes_max, path_messages_max, expected) in
        [(600_000, 65_536, 3000), (6_000_000, 2500, 2500)]
    {
        let limits = Limits {
            path_messages_max,
            ..Limits::default()
        };
        let results = [0, 1, 50].map(|at_once| {
            let world = World::with(limits);
            let mailbox = world.mailbox(sized(send_bytes_max));
            let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
            let mut queued = 0;
            let refused = loop {
                let (count, sent) = match at_once {
                    0 => {
                        let sent = world.send(mailbox, &[7; 200]);
                        (usize::from(sent.is_ok()), sent)
                    }
                    _ => world.send_burst(mailbox, &[7; 200], at_once),
                };
                queued += count;
                if let Err(reason) = sent {
                    break reason;
                }
            };
            let row = &world.snapshot().mailboxes[0];
            (queued, refused, row.send_queued_bytes, remote.payloads())
        });
        assert_eq!(results[0].0, expected);
        assert!(results[0].3.len() < expected, "the stream takes less");
        assert!(
            results[0] == results[1] && results[0] == results[2],
            "with a limit of {path_messages_max}"
        );
    }
}

#[test]
fn what_follows_others_meets_what_has_changed_since() {
    let world = World::new();
    let mailbox = world.mailbox(MailboxSettings::default());
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    let queue = || world.send_burst(mailbox, &[7; 20], 1);
    for _ in 0..6 {
        assert_eq!(queue(), (1, Ok(())));
    }
    let mut map = [0; 8192];
    map[usize::from(PEER_PORT / 8)] = 1 << (PEER_PORT % 8);
    remote.say_map(&map);
    world.progress(0);
    assert_eq!(queue(), (0, Err(ErrorReason::PeerCongested)));
    remote.say_map(&[0; 8192]);
    world.progress(0);
    assert_eq!(queue(), (1, Ok(())));
    let route = world
        .plane
        .lock()
        .mailboxes
        .get(mailbox)
        .map(|one| one.routes[&peer(0).address]);
    world.plane.route(mailbox, peer(0).address, None);
    assert_eq!(queue(), (0, Err(ErrorReason::NoRoute)));
    world.plane.route(mailbox, peer(0).address, route);
    for _ in 0..2 {
        assert_eq!(queue(), (1, Ok(()))); // the first checks all, the second begins a run
    }
    world.plane.drop_queue(world.path);
    assert_eq!(queue(), (0, Err(ErrorReason::PeerUnreachable)));
    assert_eq!(queue(), (1, Ok(())));
}

#[test]
fn messages_arrive_with_their_source_and_are_counted() {
    let world = World::new();
    let mailbox = world.mailbox(MailboxSettings::default());
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    remote.say_message(41, b"first");
    remote.say(
        Header {
            target_port: 9,
            ..message(42)
        },
        b"lost",
    );
    remote.say_message(43, b"second");
    let attachment = 1;
    let told = Event::FirstFrame {
        path: world.path,
        attachment,
        generation: None,
    };
    assert_eq!(world.progress(0), [told]);
    let looked = world.plane.take(mailbox, true, |message| message.source);
    assert_eq!(looked.unwrap(), Taken::Message(peer(PEER_PORT)));
    assert_eq!(world.take(mailbox), [&b"first"[..], b"second"]);
    assert_eq!(world.counter("recv_drop_no_sock"), 1);
    assert_eq!(world.counter("recv_delivered"), 3);
    let row = &world.snapshot().paths[0];
    assert_eq!((row.sequence_expected, row.up), (44, true));
}

#[test]
fn long_messages_come_whole_in_whatever_pieces() {
    for piece in [1000, 50_000, 90_000] {
        let world = World::new();
        let mailbox = world.mailbox(buffered(8 << 20));
        let mut remote = world.attach(Hold::Nothing, AckMode::NotYet);
        let sent: Vec<Vec<u8>> = [LONG, 10, 8192, 300_000, 20_000, 0, LONG]
            .iter()
            .zip(1..)
            .map(|(&bytes, number)| vec![number; bytes])
            .collect();
        let mut bytes = Vec::new();
        for (number, text) in (1..).zip(&sent) {
            let header = Header {
                payload_bytes: text.len(),
                ..message(number)
            };
            bytes.extend_from_slice(&header.emit(false));
            bytes.extend_from_slice(text);
        }
        let mut got = Vec::new();
        for bytes in bytes.chunks(piece) {
            remote.write(bytes);
            world.progress(0);
            got.append(&mut world.take(mailbox));
        }
        assert!(got == sent, "in pieces of {piece}");
    }
}

#[test]
fn what_was_not_acknowledged_is_repeated_on_the_next_stream() {
    let world = World::new();
    let mailbox = world.mailbox(MailboxSettings::default());
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    world.send(mailbox, b"repeated").unwrap();
    assert_eq!(remote.payloads().len(), 1);
    remote.say_message(1, b"said before the end");
    drop(remote);
    let events = world.progress(0);
    assert!(
        matches!(
            events[..],
            [
                Event::FirstFrame { .. },
                Event::Down {
                    reason: DownReason::EndOfStream,
                    frames: 1,
                    ..
                },
                Event::ConnectWanted { .. }
            ]
        ),
        "{events:?}"
    );
    assert_eq!(world.take(mailbox).len(), 1);
    let mut remote = world.attach(Hold::Hello, AckMode::NotYet);
    assert_eq!(remote.payloads().len(), 0);
    world.plane.end_hold(world.path, None);
    assert_eq!(remote.payloads(), [b"repeated"]);
    assert!(world.plane.detach(world.path).is_some());
    let mut remote = world.attach(Hold::Hello, AckMode::NotYet);
    world.plane.end_hold(world.path, Some(1));
    assert_eq!(remote.payloads().len(), 0);
    assert_eq!(world.snapshot().mailboxes[0].send_queued_bytes, 0);
}

#[test]
fn a_stream_that_takes_no_more_is_written_to_when_it_does() {
    let world = World::new();
    let mailbox = world.mailbox(sized(8 << 20));
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    let sent: Vec<Vec<u8>> = (0..40).map(|number| vec![number; LONG]).collect();
    for text in &sent {
        world.send(mailbox, text).unwrap();
    }
    assert!(world.counter("tcp_sndbuf_full") > 0);
    let mut got = Vec::new();
    for _ in 0..100 {
        got.append(&mut remote.payloads());
        world.progress(MS);
    }
    assert!(got == sent, "{} of {}", got.len(), sent.len());
}

#[test]
fn a_send_after_a_full_stream_was_taken_away_asks_for_another() {
    let world = World::new();
    let mailbox = world.mailbox(sized(8 << 20));
    let _remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    for _ in 0..4000 {
        world.send(mailbox, &[7; 1000]).unwrap();
    }
    assert!(world.counter("tcp_sndbuf_full") > 0);
    assert!(world.plane.detach(world.path).is_some());
    assert_eq!(world.progress(0), []);
    world.send(mailbox, b"again").unwrap();
    let events = world.progress(0);
    assert_eq!(events, [Event::ConnectWanted { path: world.path }]);
}

#[test]
fn a_protocol_error_cuts_the_stream_and_is_counted() {
    let world = World::new();
    world.mailbox(MailboxSettings::default());
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    remote.say(acknowledgement(7), &[]);
    let events = world.progress(0);
    let is_protocol_error = |event: &Event| matches!(event, Event::Down { reason, .. } if *reason == DownReason::BadAcknowledgement);
    assert!(events.iter().any(is_protocol_error), "{events:?}");
    assert_eq!(world.counter("recv_drop_bad_ack"), 1);
}

#[test]
fn a_full_mailbox_marks_its_port_and_pauses_its_peer() {
    let limits = Limits {
        receive_hard_bytes: 1000,
        ..Limits::default()
    };
    let world = World::with(limits);
    let mailbox = world.mailbox(buffered(1000));
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    for number in 1..=6 {
        remote.say_message(number, &[0; 1000]);
    }
    world.progress(0);
    assert_eq!(world.counter("recv_paused"), 1);
    let maps = remote.frames();
    assert!(maps.last().unwrap().1[625] != 0, "port 5000 is in byte 625");
    remote.say_message(7, b"read later");
    world.progress(0);
    assert_eq!(world.take(mailbox).len(), 6);
    world.progress(0);
    assert_eq!(world.take(mailbox), [b"read later"]);
    assert!(
        remote
            .frames()
            .last()
            .unwrap()
            .1
            .iter()
            .all(|&byte| byte == 0)
    );
}

#[test]
fn a_congested_peer_refuses_until_its_map_says_otherwise() {
    let world = World::new();
    let monitor = MailboxSettings {
        monitor: true,
        ..MailboxSettings::default()
    };
    let mailbox = world.mailbox(monitor);
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    let mut map = vec![0; 8192];
    map[usize::from(PEER_PORT) / 8] = 1 << (PEER_PORT % 8);
    remote.say_map(&map);
    world.progress(0);
    assert!(world.plane.peer_is_congested(world.path, PEER_PORT));
    assert_eq!(world.send(mailbox, b"x"), Err(ErrorReason::PeerCongested));
    assert_eq!(world.counter("cong_send_error"), 1);
    remote.say_map(&[0; 8192]);
    world.progress(0);
    let noticed = world.plane.take(mailbox, false, |_| ()).unwrap();
    assert_eq!(noticed, Taken::Congestion(1 << (PEER_PORT % 64)));
    assert_eq!(world.send(mailbox, b"x"), Ok(()));
}

#[test]
fn a_path_is_full_at_its_bound_of_messages() {
    let limits = Limits {
        path_messages_max: 10,
        flush_bytes: 100,
        ..Limits::default()
    };
    let world = World::with(limits);
    let mailbox = world.mailbox(MailboxSettings::default());
    let mut sent = 0;
    while world.send(mailbox, &[]) == Ok(()) {
        sent += 1;
    }
    assert!((10..20).contains(&sent), "{sent}");
    assert_eq!(world.send(mailbox, &[]), Err(ErrorReason::PathFull));
    assert_eq!(world.plane.cancel(mailbox, None, Some(PEER_PORT)), sent);
    assert_eq!(world.send(mailbox, &[]), Ok(()));
}

#[test]
fn giving_up_is_told_once() {
    let world = World::new();
    let mailbox = world.mailbox(MailboxSettings::default());
    world.send(mailbox, b"x").unwrap();
    assert_eq!(world.plane.drop_queue(world.path), 1);
    assert_eq!(world.send(mailbox, b"y"), Err(ErrorReason::PeerUnreachable));
    assert_eq!(world.send(mailbox, b"y"), Ok(()));
    assert_eq!(world.counter("send_given_up"), 1);
}

#[test]
fn within_the_process_the_sender_delivers() {
    let world = World::new();
    let sender = world.mailbox(MailboxSettings::default());
    let target = world
        .plane
        .mailbox(address(3), 7, MailboxSettings::default());
    let there = |port| urds_path::SocketAddress::new(address(3), port);
    assert_eq!(
        world.send_to(sender, there(7), b"x"),
        Err(ErrorReason::NoRoute)
    );
    let long = vec![7; LONG];
    world.plane.route(sender, address(3), Some(Route::Loop));
    for payload in [&b"short"[..], &long] {
        world.send_to(sender, there(7), payload).unwrap();
    }
    assert_eq!(world.take(target), [&b"short"[..], &long]);
    world.send_to(sender, there(0), b"").unwrap();
    world.send_to(sender, there(8), b"").unwrap();
    assert_eq!(world.take(sender).len(), 1, "a pong");
    assert_eq!(world.counter("recv_drop_no_sock"), 1);
    assert_eq!(world.snapshot().mailboxes[0].send_queued_bytes, 0);
}

#[test]
fn a_closed_mailbox_refuses_and_its_port_takes_nothing() {
    let world = World::new();
    let mailbox = world.mailbox(MailboxSettings::default());
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    remote.say_message(1, b"queued");
    world.progress(0);
    world
        .plane
        .close_mailbox(mailbox, Some(0), &mut || false)
        .unwrap();
    remote.say_message(2, b"late");
    world.progress(0);
    assert_eq!(world.counter("recv_drop_closed"), 1);
    assert_eq!(world.counter("recv_drop_no_sock"), 1);
    assert_eq!(world.send(mailbox, b"x"), Err(ErrorReason::Closed));
    assert!(world.plane.take(mailbox, false, |_| ()).is_err());
}

#[test]
fn a_fence_keeps_what_goes_by_another_path_behind() {
    let world = World::new();
    let mailbox = world.mailbox(MailboxSettings::default());
    let other = world.plane.path(address(1), address(2), 1, 1);
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    world.send(mailbox, b"before").unwrap();
    assert_eq!(remote.payloads().len(), 1);
    let first = world.path;
    let world = world.with_path(other);
    let mut behind = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    world.plane.hold_behind(other, Some(first));
    world
        .plane
        .route(mailbox, address(2), Some(Route::Stream(other)));
    world.send(mailbox, b"after").unwrap();
    world.progress(MS);
    assert_eq!(behind.payloads().len(), 0);
    remote.say(acknowledgement(1), &[]);
    world.progress(MS);
    assert_eq!(behind.payloads(), [b"after"]);
}

#[test]
fn pings_are_reported_up_to_a_bound() {
    let world = World::new();
    let mut remote = world.attach(Hold::Nothing, AckMode::PeerAcknowledged);
    let ping = |number| Header {
        target_port: 0,
        ..message(number)
    };
    for number in 1..=100 {
        remote.say(ping(number), &[]);
    }
    let events = world.progress(0);
    let controls = events
        .iter()
        .filter(|event| matches!(event, Event::Control(_)));
    assert_eq!(controls.count(), 64);
    assert_eq!(world.counter("recv_drop_control_full"), 36);
}
