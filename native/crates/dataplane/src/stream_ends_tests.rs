//! A worker that another one follows ends its streams to a kernel, which the test plays.

use std::io::Read;
use std::thread;
use std::time::Duration;

use urds_path::constants::FLAG_RETRANSMITTED;
use urds_path::{AckMode, Header, Hold};

use crate::events::Event;
use crate::mailbox::MailboxSettings;
use crate::state::MailboxId;
use crate::sys;
use crate::world::{MS, Remote, World};

const LONG_ENOUGH_NS: u64 = 20_000 * MS;
const SHORT_NS: u64 = 20 * MS;
const LOOKS: usize = 10_000;
const PAUSE: Duration = Duration::from_millis(1);
const SENT: usize = 2; // at once, by the burst budget; what follows waits as a batch
const QUEUED: usize = 3;

/// Have a kernel as peer that was sent some messages, while others wait.
fn begin() -> (World, MailboxId, Remote) {
    begin_with(AckMode::StreamAcknowledged)
}

fn begin_with(ack_mode: AckMode) -> (World, MailboxId, Remote) {
    let world = World::of_real_time();
    let mailbox = world.mailbox(MailboxSettings::default());
    let mut kernel = world.attach(Hold::Nothing, ack_mode);
    kernel.say_map(&[0; 8192]);
    await_first_frame(&world);
    for number in 0..SENT + QUEUED {
        world
            .send(mailbox, &[u8::try_from(number).unwrap()])
            .unwrap();
    }
    (world, mailbox, kernel)
}

/// Read until a ping comes; return all numbered frames up to it.
fn frames_to_ping(kernel: &mut Remote) -> Vec<(Header, Vec<u8>)> {
    let mut found = Vec::new();
    for _ in 0..LOOKS {
        let frames = kernel.frames().into_iter();
        found.extend(frames.filter(|(header, _)| header.sequence > 0));
        if found.iter().any(|(header, _)| header.target_port == 0) {
            return found;
        }
        sys::pause(PAUSE);
    }
    panic!("no ping behind {found:?}");
}

fn await_first_frame(world: &World) {
    let is_first = |event: &Event| matches!(event, Event::FirstFrame { .. });
    let mut looks = 0..LOOKS;
    assert!(looks.any(|_| {
        sys::pause(PAUSE);
        world.progress(0).iter().any(is_first)
    }));
}

fn answer(kernel: &mut Remote, asked: &Header, sequence: u64) {
    let header = Header {
        sequence,
        target_port: asked.source_port,
        ..Header::default()
    };
    kernel.say(header, b"");
}

#[test]
fn a_ping_follows_what_was_sent_and_all_is_delivered_to_the_end() {
    // A kernel that has not answered the probe yet counts as delivered what it was acknowledged, too.
    for ack_mode in [AckMode::StreamAcknowledged, AckMode::NotYet] {
        asked_to_the_end(begin_with(ack_mode));
    }
}

fn asked_to_the_end((world, mailbox, mut kernel): (World, MailboxId, Remote)) {
    thread::scope(|scope| {
        let ended = scope.spawn(|| world.plane.end_streams(LONG_ENOUGH_NS));
        let frames = frames_to_ping(&mut kernel);
        let sent: Vec<_> = frames.iter().map(|(header, _)| header.sequence).collect();
        let (ping, payload) = &frames[frames.len() - 1];
        assert!(payload.is_empty() && ping.source_port > 1);
        assert_eq!(sent, (1..=SENT as u64 + 1).collect::<Vec<_>>());
        assert_eq!(world.plane.unacknowledged(mailbox), SENT + QUEUED);
        kernel.say_message(1, b"before the answer");
        answer(&mut kernel, ping, 2);
        kernel.socket.set_nonblocking(false).unwrap();
        assert_eq!(
            kernel.socket.read(&mut [0]).unwrap(),
            0,
            "its end, and nothing new"
        );
        kernel.say_message(3, b"behind its end");
        drop(kernel);
        ended.join().unwrap();
    });
    assert_eq!(
        world.take(mailbox),
        [&b"before the answer"[..], b"behind its end"]
    );
    assert_eq!(world.plane.unacknowledged(mailbox), QUEUED);
    assert_eq!(world.counter("recv_drop_no_sock"), 0);
}

#[test]
fn without_an_answer_all_that_was_sent_is_kept() {
    let (world, mailbox, mut kernel) = begin();
    thread::scope(|scope| {
        let ended = scope.spawn(|| world.plane.end_streams(SHORT_NS));
        frames_to_ping(&mut kernel); // its TCP has them
        ended.join().unwrap();
    });
    assert_eq!(world.plane.unacknowledged(mailbox), SENT + QUEUED);
}

#[test]
fn the_ping_stays_behind_what_is_retransmitted() {
    let (world, _, kernel) = begin();
    drop(kernel);
    let mut looks = 0..LOOKS;
    assert!(looks.any(|_| {
        sys::pause(PAUSE);
        world.progress(0);
        !world.snapshot().paths[0].up
    }));
    let mut kernel = world.attach(Hold::FirstFrame, AckMode::StreamAcknowledged);
    kernel.say_map(&[0; 8192]);
    await_first_frame(&world);
    thread::scope(|scope| {
        let ended = scope.spawn(|| world.plane.end_streams(SHORT_NS));
        let frames = frames_to_ping(&mut kernel);
        let flagged = |(header, _): &(Header, _)| header.flags & FLAG_RETRANSMITTED != 0;
        let again = frames.iter().filter(|one| flagged(one)).count();
        assert!(!flagged(&frames[frames.len() - 1]) && frames[..again].iter().all(flagged));
        let numbers = frames.iter().map(|(header, _)| header.sequence);
        assert!(numbers.is_sorted(), "in order");
        drop(kernel);
        ended.join().unwrap();
    });
}
