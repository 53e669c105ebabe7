//! What a transport of messages asks of the plane: charge, refund, deliver, maps, its own limit.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use urds_path::{ArrivingPayload, Limits, NO_EXTENSION};

use crate::errors::{ErrorReason, Rejected};
use crate::events::Event;
use crate::external::{Charge, ExternalId};
use crate::gathering::Carrier;
use crate::mailbox::{MailboxSettings, Route};
use crate::operations::OperationNotice;
use crate::receive_side::Taken;
use crate::send_side::{Message, Sent};
use crate::state::MailboxId;
use crate::world::{MS, PEER_PORT, PORT, World, address};

const QUEUED: Result<Charge, ErrorReason> = Ok(Charge::Queued { asks: false });

fn world_with(settings: MailboxSettings, limits: Limits) -> (World, MailboxId, ExternalId) {
    let world = World::with(limits);
    let path = world.plane.external(address(1), address(3), 7, 1 << 20);
    let mailbox = world.plane.mailbox(address(1), PORT, settings);
    world
        .plane
        .route(mailbox, address(3), Some(Route::External(path)));
    (world, mailbox, path)
}

fn world(send_bytes_max: usize) -> (World, MailboxId, ExternalId) {
    let settings = MailboxSettings {
        send_bytes_max,
        receive_bytes_max: 1000,
        ..MailboxSettings::default()
    };
    world_with(settings, Limits::default())
}

fn charge(
    world: &World,
    path: ExternalId,
    mailbox: MailboxId,
    bytes: usize,
) -> Result<Charge, ErrorReason> {
    let charged = world.plane.charge(path, mailbox, PEER_PORT, bytes, false);
    charged.map_err(|Rejected { reason, .. }| reason)
}

fn deliver(world: &World, path: ExternalId, port: u16, payload: &[u8]) -> bool {
    let payload = ArrivingPayload::Borrowed(payload);
    let more = world
        .plane
        .deliver(path, PEER_PORT, port, payload, NO_EXTENSION);
    world.plane.finish_pass();
    more
}

/// Settings and limits with which a mailbox pauses a path as soon as it is over its buffer.
fn pausing_at_1000_bytes() -> (MailboxSettings, Limits) {
    let limits = Limits {
        receive_hard_factor: 1,
        receive_hard_bytes: 0,
        ..Limits::default()
    };
    let settings = MailboxSettings {
        receive_bytes_max: 1000,
        ..MailboxSettings::default()
    };
    (settings, limits)
}

fn queued_bytes(world: &World) -> usize {
    world.snapshot().mailboxes[0].send_queued_bytes
}

#[test]
fn a_send_leaves_the_plane_uncharged() {
    let (world, mailbox, _) = world(100);
    let target = urds_path::SocketAddress::new(address(3), PEER_PORT);
    let payload = urds_path::Payload::copy_of(b"text");
    let message = Message::new(mailbox, target, payload, NO_EXTENSION);
    let sent = world.plane.send_now(message, Some(0));
    assert!(matches!(sent, Ok(Sent::External)));
    assert_eq!((queued_bytes(&world), world.counter("send_queued")), (0, 0));
}

#[test]
fn what_is_charged_is_in_the_account_until_it_is_refunded() {
    let (world, mailbox, path) = world(100);
    assert_eq!(charge(&world, path, mailbox, 49), QUEUED);
    let asks = Ok(Charge::Queued { asks: true });
    assert_eq!(charge(&world, path, mailbox, 51), asks, "half is full");
    assert_eq!(queued_bytes(&world), 100);
    assert_eq!(world.plane.unacknowledged(mailbox), 2);
    let full = Err(ErrorReason::QueueFull);
    assert_eq!(charge(&world, path, mailbox, 0), full);
    assert_eq!(world.counter("send_queue_full"), 1);
    world.plane.refund(path, mailbox, 1, 49);
    assert_eq!(charge(&world, path, mailbox, 1), asks);
    world.plane.refund(path, mailbox, 2, 52);
    assert_eq!(
        (queued_bytes(&world), world.plane.unacknowledged(mailbox)),
        (0, 0)
    );
    assert_eq!(world.counter("send_queue_empty"), 1);
}

#[test]
fn errors_come_in_the_order_of_linux() {
    let (world, mailbox, path) = world(100);
    let mut marked = [0; 8192];
    marked[usize::from(PEER_PORT / 8)] = 1 << (PEER_PORT % 8);
    assert_eq!(
        charge(&world, path, mailbox, 100),
        Ok(Charge::Queued { asks: true })
    );
    world.plane.take_peer_map(path, &marked);
    world.plane.set_full(path, true);
    assert_eq!(
        charge(&world, path, mailbox, 101),
        Err(ErrorReason::TooLong)
    );
    assert_eq!(
        charge(&world, path, mailbox, 0),
        Err(ErrorReason::PeerCongested)
    );
    world.plane.take_peer_map(path, &[0; 8192]);
    assert_eq!(
        charge(&world, path, mailbox, 0),
        Err(ErrorReason::QueueFull)
    );
    world.plane.refund(path, mailbox, 1, 100);
    assert_eq!(charge(&world, path, mailbox, 0), Err(ErrorReason::PathFull));
    world.plane.set_full(path, false);
    assert_eq!(charge(&world, path, mailbox, 0), QUEUED);
    world.plane.fail_external(path, mailbox);
    assert_eq!(
        charge(&world, path, mailbox, 0),
        Err(ErrorReason::PeerUnreachable)
    );
    assert_eq!(charge(&world, path, mailbox, 0), QUEUED, "it is told once");
    world
        .plane
        .close_mailbox(mailbox, Some(0), &mut || false)
        .unwrap();
    assert_eq!(charge(&world, path, mailbox, 0), Err(ErrorReason::Closed));
    assert_eq!(world.counter("cong_send_error"), 1);
}

#[test]
fn a_path_that_was_closed_is_no_route() {
    let (world, mailbox, path) = world(100);
    world.plane.set_full(path, true);
    world.plane.close_external(path);
    assert_eq!(charge(&world, path, mailbox, 0), Ok(Charge::NoRoute));
    assert!(!world.plane.has_route(mailbox));
    assert_eq!(world.plane.lock().full_externals, 0);
}

#[test]
fn a_message_is_delivered_with_its_source_and_counted_once() {
    let (world, mailbox, path) = world(100);
    assert!(deliver(&world, path, PORT, b"text"));
    let row = world.snapshot().receive_queue[0];
    assert_eq!(
        (row.peer, row.peer_port, row.tos),
        (address(3), PEER_PORT, 7)
    );
    assert_eq!(world.take(mailbox), [b"text"]);
    assert_eq!(
        (
            world.counter("recv_queued"),
            world.counter("recv_delivered")
        ),
        (1, 1)
    );
    assert!(deliver(&world, path, 9, b"lost"));
    assert_eq!(world.counter("recv_drop_no_sock"), 1);
}

#[test]
fn a_frame_for_several_ports_is_counted_and_pauses_as_its_messages_would() {
    let (settings, limits) = pausing_at_1000_bytes();
    let (world, one, path) = world_with(settings.clone(), limits);
    let other = world.plane.mailbox(address(1), PORT + 1, settings);
    let frame = |parts: &[(u16, usize)]| {
        let mut bytes = Vec::new();
        for &(target_port, payload_bytes) in parts {
            let header = urds_path::Header {
                sequence: 1,
                payload_bytes,
                source_port: PEER_PORT,
                target_port,
                ..urds_path::Header::default()
            };
            bytes.extend_from_slice(&header.emit(true));
            bytes.resize(bytes.len() + payload_bytes, 7);
        }
        let delivered = world.plane.deliver_plain(path, &bytes, 1 << 20, 1);
        assert_eq!(
            (delivered.bytes, delivered.messages),
            (bytes.len(), parts.len())
        );
        delivered.pauses
    };
    assert!(!frame(&[
        (PORT, 1),
        (PORT + 1, 2),
        (9, 3),
        (PORT + 1, 4),
        (PORT, 5)
    ]));
    let counted = [
        "recv_queued",
        "recv_bytes_added_to_sock",
        "recv_drop_no_sock",
    ];
    assert_eq!(counted.map(|name| world.counter(name)), [4, 12, 1]);
    assert_eq!(world.take(one), [vec![7; 1], vec![7; 5]]);
    assert_eq!(world.take(other), [vec![7; 2], vec![7; 4]]);
    assert!(
        frame(&[(PORT, 2000), (PORT + 1, 1), (9, 1)]),
        "that before counts"
    );
    assert!(frame(&[(PORT + 1, 1), (PORT, 1)]));
    assert_eq!(world.counter("recv_paused"), 1);
}

#[test]
fn a_mailbox_far_over_its_buffer_pauses_the_path_and_resumes_it_at_half() {
    let (settings, limits) = pausing_at_1000_bytes();
    let (world, mailbox, path) = world_with(settings, limits);
    assert!(deliver(&world, path, PORT, &[0; 600]));
    assert!(!deliver(&world, path, PORT, &[0; 600]));
    assert!(
        !deliver(&world, path, PORT, &[0; 600]),
        "it is taken all the same"
    );
    assert_eq!(world.counter("recv_paused"), 1);
    world.progress(2 * MS);
    assert_eq!(world.take(mailbox).len(), 3);
    let events = world.progress(0);
    assert!(events.contains(&Event::Resumed { path }), "{events:?}");
}

/// Counts what it is told.
#[derive(Debug, Default)]
struct Counting(AtomicUsize);

impl Carrier for Counting {
    fn push(&self) {}

    fn push_map(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn what_follows_to_a_destination_gathers_under_the_same_checks() {
    let (world, mailbox, path) = world(100);
    let carrier = Arc::new(Counting::default());
    world.plane.set_carrier(path, Some(carrier));
    let mut queue = VecDeque::new();
    let mut take = |is_idle| {
        let taken = world.plane.take_for_carrier(path, is_idle, 9, &mut queue);
        assert!(!taken.1);
        let taken = std::mem::take(&mut queue);
        world.plane.refund_gathered(path, &taken);
        let facts = taken.iter().map(|one| (one.payload.len(), one.asks));
        facts.collect::<Vec<_>>()
    };
    let target = urds_path::SocketAddress::new(address(3), PEER_PORT);
    let send = |bytes: usize| {
        let sent = world
            .plane
            .send_copy(mailbox, &target, &vec![7; bytes], Some(0));
        sent.map(|sent| matches!(sent, Sent::Done))
            .map_err(|refused| refused.reason)
    };
    take(false);
    assert_eq!([send(20), send(20), send(20), send(40)], [Ok(true); 4]);
    assert_eq!(send(1), Err(ErrorReason::QueueFull));
    assert_eq!(queued_bytes(&world), 100);
    let asking = [(20, false), (20, false), (20, true), (40, true)];
    assert_eq!(take(true), asking);
    assert_eq!(queued_bytes(&world), 0);
    assert!(take(true).is_empty());
    assert_eq!(send(1), Ok(false), "an idle carrier is told");
    assert_eq!(send(101), Err(ErrorReason::TooLong));
    let mut marked = [0; 8192];
    marked[usize::from(PEER_PORT / 8)] = 1 << (PEER_PORT % 8);
    world.plane.take_peer_map(path, &marked);
    world.plane.finish_pass();
    assert_eq!(send(1), Err(ErrorReason::PeerCongested));
    world.plane.take_peer_map(path, &[0; 8192]);
    world.plane.finish_pass();
    assert_eq!(send(1), Ok(true));
    assert_eq!(take(false), [(1, false); 2]);
    for _ in 0..9 {
        assert_eq!(send(1), Ok(true));
    }
    assert_eq!(send(1), Ok(false), "the tenth is the transport's");
    world.plane.set_full(path, true);
    assert_eq!(take(false), [(1, false); 9]);
    assert_eq!(send(1), Err(ErrorReason::PathFull));
    world.plane.set_full(path, false);
    world
        .plane
        .close_mailbox(mailbox, None, &mut || false)
        .unwrap();
    assert_eq!(send(1), Err(ErrorReason::Closed));
}

#[test]
fn a_changed_local_map_is_its_carriers_and_not_reported() {
    let (world, mailbox, path) = world(100);
    let carrier = Arc::new(Counting::default());
    world.plane.set_carrier(path, Some(carrier.clone()));
    deliver(&world, path, PORT, &[0; 5000]);
    assert_eq!(world.progress(0), []);
    assert_eq!(carrier.0.load(Relaxed), 1);
    let mut queue = VecDeque::new();
    let mut is_map_due = || world.plane.take_for_carrier(path, true, 1, &mut queue).1;
    assert!(is_map_due());
    assert!(!is_map_due(), "only once");
    world.take(mailbox);
    assert_eq!(world.progress(0), []);
    assert_eq!(carrier.0.load(Relaxed), 2);
    assert!(world.plane.set_carrier(path, None), "it has not taken it");
    deliver(&world, path, PORT, &[0; 5000]);
    let local = address(1);
    assert_eq!(world.progress(0), [Event::LocalMapChanged { local }]);
    assert_eq!(carrier.0.load(Relaxed), 2);
}

#[test]
fn a_changed_local_map_is_reported_once() {
    let (world, mailbox, path) = world(100);
    deliver(&world, path, PORT, &[0; 5000]);
    let local = address(1);
    assert_eq!(world.progress(0), [Event::LocalMapChanged { local }]);
    let bit = world.plane.local_map(path)[usize::from(PORT / 8)];
    assert_eq!(bit, 1 << (PORT % 8));
    world.take(mailbox);
    assert_eq!(world.progress(0), [Event::LocalMapChanged { local }]);
    assert_eq!(world.plane.local_map(path), [0; 8192]);
    assert_eq!(world.progress(MS), []);
}

#[test]
fn the_messages_of_a_closed_mailbox_linger_and_are_reported_then() {
    let (world, mailbox, path) = world(100);
    charge(&world, path, mailbox, 0).unwrap();
    world
        .plane
        .close_mailbox(mailbox, None, &mut || false)
        .unwrap();
    assert_eq!(world.progress(MS), []);
    assert_eq!(world.plane.drain(0), 1);
    let ended = [Event::LingerEnded { path, mailbox }];
    assert_eq!(world.progress(2000 * MS), ended);
    world.plane.refund(path, mailbox, 1, 0);
    assert_eq!(world.plane.drain(0), 0);
    assert_eq!(world.progress(2000 * MS), []);
}

#[test]
fn an_absent_peer_gives_way_when_the_third_account_is_full() {
    let (world, mailbox, path) = world(100);
    let other = world.plane.external(address(1), address(4), 0, 1 << 20);
    world
        .plane
        .route(mailbox, address(4), Some(Route::External(other)));
    for one in [path, other] {
        charge(&world, one, mailbox, 90).ok();
        world.plane.set_connected(one, false);
        world.progress(31_000 * MS);
    }
    world.plane.set_connected(path, true);
    assert!(
        world
            .plane
            .lock()
            .externals
            .get(other)
            .is_some_and(|one| one.absent)
    );
    assert!(
        world
            .plane
            .lock()
            .externals
            .get(path)
            .is_some_and(|one| !one.absent)
    );
}

#[test]
fn notices_come_first_and_a_waiter_is_told_of_every_end() {
    let (world, mailbox, path) = world(100);
    deliver(&world, path, PORT, b"text");
    let notice = |token| OperationNotice { token, status: 0 };
    world.plane.note_operation(mailbox, Some(notice(1)));
    world.plane.note_operation(mailbox, None);
    world.plane.note_operation(mailbox, Some(notice(2)));
    assert_eq!(world.plane.operations_ended(mailbox), Ok(3));
    let taken = world.plane.take(mailbox, false, |_| ()).unwrap();
    assert_eq!(taken, Taken::Operations);
    assert_eq!(world.plane.take_notices(mailbox, 0), [notice(1)]);
    assert_eq!(world.plane.take_notices(mailbox, 9), [notice(2)]);
    assert_eq!(world.take(mailbox), [b"text"]);
    let seen = world
        .plane
        .wait_operation(mailbox, 2, Some(0), &mut || false);
    assert_eq!(seen, Ok(true));
    let seen = world
        .plane
        .wait_operation(mailbox, 3, Some(0), &mut || false);
    assert_eq!(seen, Ok(false));
}
