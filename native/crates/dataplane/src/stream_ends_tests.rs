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
const BURSTS_MAX: usize = 1000;
const PAUSE: Duration = Duration::from_millis(1);
const BURST: usize = 5; // the first of them leave at once; what follows waits as a batch

/// A kernel as peer that was sent some messages, while others wait.
struct Begun {
    world: World,
    mailbox: MailboxId,
    kernel: Remote,
    sent: usize,
    queued: usize,
}

fn begin() -> Begun {
    begin_with(AckMode::StreamAcknowledged)
}

fn begin_with(ack_mode: AckMode) -> Begun {
    let world = World::of_real_time();
    let mailbox = world.mailbox(MailboxSettings::default());
    let mut kernel = world.attach(Hold::Nothing, ack_mode);
    kernel.say_map(&[0; 8192]);
    await_first_frame(&world);
    let mut sent = 0;
    // A pause of this thread among the sends has later ones leave at once too, and all before them.
    for bursts in 1..=BURSTS_MAX {
        for _ in 0..BURST {
            world.send(mailbox, b"sent").unwrap();
        }
        sent += numbered(&mut kernel).count();
        let queued = bursts * BURST - sent;
        if queued > 0 {
            return Begun {
                world,
                mailbox,
                kernel,
                sent,
                queued,
            };
        }
    }
    panic!("each of {BURSTS_MAX} bursts was interrupted near its end");
}

fn numbered(kernel: &mut Remote) -> impl Iterator<Item = (Header, Vec<u8>)> {
    let frames = kernel.frames().into_iter();
    frames.filter(|(header, _)| header.sequence > 0)
}

/// Read until a ping comes; return all numbered frames up to it.
fn frames_to_ping(kernel: &mut Remote) -> Vec<(Header, Vec<u8>)> {
    let mut found = Vec::new();
    for _ in 0..LOOKS {
        found.extend(numbered(kernel));
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

fn asked_to_the_end(begun: Begun) {
    let Begun {
        world,
        mailbox,
        mut kernel,
        sent,
        queued,
    } = begun;
    thread::scope(|scope| {
        let ended = scope.spawn(|| world.plane.end_streams(LONG_ENOUGH_NS));
        let frames = frames_to_ping(&mut kernel);
        let [(ping, payload)] = &frames[..] else {
            panic!("a ping alone, not {frames:?}");
        };
        assert!(payload.is_empty() && ping.source_port > 1);
        assert_eq!(ping.sequence, sent as u64 + 1);
        assert_eq!(world.plane.unacknowledged(mailbox), sent + queued);
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
    assert_eq!(world.plane.unacknowledged(mailbox), queued);
    assert_eq!(world.counter("recv_drop_no_sock"), 0);
}

#[test]
fn without_an_answer_all_that_was_sent_is_kept() {
    let Begun {
        world,
        mailbox,
        mut kernel,
        sent,
        queued,
    } = begin();
    thread::scope(|scope| {
        let ended = scope.spawn(|| world.plane.end_streams(SHORT_NS));
        frames_to_ping(&mut kernel); // its TCP has them
        ended.join().unwrap();
    });
    assert_eq!(world.plane.unacknowledged(mailbox), sent + queued);
}

#[test]
fn the_ping_stays_behind_what_is_retransmitted() {
    let Begun { world, kernel, .. } = begin();
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
