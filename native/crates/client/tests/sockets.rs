//! Sockets of a client over a node, in one process and over fork.

mod support;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use support::{NOW, WAIT, small, start, sys, to};
use urds_client::socket::TRANSPORT_NONE;
use urds_client::{Flags, Name, Socket, Word};

const IN: i16 = libc::POLLIN;
const OUT: i16 = libc::POLLOUT;
const COUNT: u32 = 50_000;
const EACH: u32 = 2000;
/// Messages at which a sender sees that its node ended awake: one look tells how many it has taken,
/// the next one, 64 messages later, that it took none since.
const LOOKS: u32 = 128;

#[test]
fn a_message_goes_from_one_socket_to_another() {
    let node = start("message", small());
    let (a, b) = (node.bound(4000), node.bound(4001));
    assert_eq!(a.send(4001, b"hello", false), Ok(5));
    let mut room = [0; 3];
    let message = b.receive_into(&mut room, WAIT).expect("a message");
    assert_eq!((&room, message.bytes, message.length), (b"hel", 3, 5));
    assert_eq!(message.source, Name::v4([127, 0, 0, 1], 4000));
    assert_eq!(b.receive(NOW), Err(libc::EAGAIN));
}

#[test]
fn errors_are_those_of_linux() {
    let node = start("errors", small());
    let (descriptor, socket) = Socket::open(node.place(), 0).expect("a socket");
    let end = support::End { descriptor, socket };
    assert_eq!(end.send(4000, b"x", true), Err(libc::ENOTCONN));
    assert_eq!(end.receive(NOW), Err(libc::EAGAIN));
    let a = node.bound(4000);
    let name = Name::v4([127, 0, 0, 1], 4000);
    let taken = end.socket.bind(end.descriptor, b"", &name, TRANSPORT_NONE);
    assert_eq!(taken, Err(libc::EADDRINUSE));
    let mut v6 = to(1);
    v6.to.address = [0xfd; 16];
    let parts = sys::readable(&[]);
    let sent = a.socket.send(a.descriptor, b"", &v6, parts, true);
    assert_eq!(sent, Err(libc::EOPNOTSUPP));
    let long = vec![0; 106_497];
    assert_eq!(a.send(4000, &long, true), Err(libc::EMSGSIZE));
    assert_eq!(a.send(9, b"no socket there", true), Ok(15));
    assert_eq!(Socket::find(node.place(), 0).err(), Some(libc::ENOTSOCK));
    assert_eq!(Socket::open(b"/nowhere", 0).err(), Some(libc::ENOENT));
}

#[test]
fn poll_shows_what_calls_find() {
    let node = start("poll", small());
    let (a, b) = (node.bound(4000), node.bound(4001));
    assert_eq!(sys::events(b.descriptor), OUT);
    for round in 0..50 {
        a.send(4001, b"x", false).expect("room");
        wait_for(b.descriptor, IN | OUT);
        assert_eq!(b.receive(NOW).as_deref(), Ok(b"x".as_slice()));
        assert_eq!(sys::events(b.descriptor), OUT, "round {round}");
    }
    let peek = Flags {
        dontwait: true,
        peek: true,
        polls: false,
    };
    a.send(4001, b"y", false).expect("room");
    wait_for(b.descriptor, IN | OUT);
    for _ in 0..3 {
        assert_eq!(b.receive(peek).as_deref(), Ok(b"y".as_slice()));
        assert_eq!(sys::events(b.descriptor), IN | OUT);
    }
}

fn wait_for(descriptor: i32, events: i16) {
    for _ in 0..20_000 {
        if sys::events(descriptor) == events {
            return;
        }
        thread::sleep(Duration::from_micros(100));
    }
    panic!("events {:#x}, not {events:#x}", sys::events(descriptor));
}

/// Send to a socket that is not read until there is no room; return how many messages had some.
fn filled(a: &support::End) -> u32 {
    // The receiver's memory fills, then the sender's account.
    let (mut sent, mut rejected) = (0u32, 0);
    while rejected < 20 {
        match a.send(4001, &[0; 8192], true) {
            Ok(_) => (sent, rejected) = (sent + 1, 0),
            Err(reason) => {
                assert_eq!(reason, libc::EAGAIN);
                rejected += 1; // the node may still make room
                thread::sleep(Duration::from_millis(2));
            }
        }
    }
    sent
}

#[test]
fn a_full_socket_is_not_writable_until_there_is_room() {
    let sizes = urds_channel::socket_memory::Sizes {
        receive_bytes: 256 << 10,
        ..small()
    };
    let node = start("full", sizes);
    let (a, b) = (node.bound(4000), node.bound(4001));
    let sent = filled(&a);
    assert_eq!(sys::events(a.descriptor) & OUT, 0);
    sys::set_timeout(a.descriptor, libc::SO_SNDTIMEO, 20);
    assert_eq!(a.send(4001, &[0; 8192], false), Err(libc::ETIMEDOUT));
    sys::set_timeout(a.descriptor, libc::SO_SNDTIMEO, 0);
    let mut received = 0;
    while sys::events(a.descriptor) & OUT == 0 {
        assert_eq!(b.receive(WAIT).map(|payload| payload.len()), Ok(8192));
        received += 1;
        assert!(received <= sent);
        thread::sleep(Duration::from_millis(1));
    }
    assert!(received < sent);
    assert_eq!(a.send(4001, b"room", false), Ok(4));
}

#[test]
fn a_waiting_receive_ends_with_its_time() {
    let node = start("timeout", small());
    let a = node.bound(4000);
    sys::set_timeout(a.descriptor, libc::SO_RCVTIMEO, 20);
    assert_eq!(a.receive(WAIT), Err(libc::ETIMEDOUT));
}

/// Interrupt a receive that waits, until it ends, or so often before a message comes.
fn interrupted(a: &support::End, b: &support::End, count: u32) -> Result<Vec<u8>, i32> {
    let (told, thread) = mpsc::channel();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            told.send(sys::this_thread()).expect("it is awaited");
            b.receive(WAIT)
        });
        let thread = thread.recv().expect("the thread's number");
        for _ in 0..count {
            thread::sleep(Duration::from_millis(2));
            if waiting.is_finished() {
                break;
            }
            sys::interrupt(thread);
        }
        if !waiting.is_finished() {
            a.send(4001, b"late", false).expect("room");
        }
        waiting.join().expect("no panic")
    })
}

#[test]
fn a_signal_ends_a_waiting_receive_unless_its_handler_restarts_calls() {
    let node = start("signal", small());
    let (a, b) = (node.bound(4000), node.bound(4001));
    sys::handle_signal(0);
    assert_eq!(interrupted(&a, &b, 5_000), Err(libc::EINTR));
    sys::handle_signal(libc::SA_RESTART);
    assert_eq!(interrupted(&a, &b, 20).as_deref(), Ok(b"late".as_slice()));
}

#[test]
fn a_node_that_ends_is_no_hang() {
    let node = start("ends", small());
    let a = node.bound(4000);
    let waiting = thread::scope(|scope| {
        let waiting = scope.spawn(|| a.receive(WAIT));
        thread::sleep(Duration::from_millis(20));
        drop(node);
        waiting.join().expect("no panic")
    });
    assert_eq!(waiting, Err(libc::EIO));
}

#[test]
fn a_sender_with_room_learns_that_its_node_has_ended() {
    for pause_ms in [50, 0] {
        let node = start("ends-room", small());
        let (a, b) = (node.bound(4000), node.bound(4001));
        assert_eq!(a.send(4001, b"before", false), Ok(6));
        assert_eq!(b.receive(WAIT).as_deref(), Ok(b"before".as_slice()));
        thread::sleep(Duration::from_millis(pause_ms));
        drop(node);
        let mut accepted = 0;
        while a.send(4001, b"after", accepted % 2 == 0) == Ok(5) {
            accepted += 1;
            assert!(
                accepted <= LOOKS,
                "it may have ended awake, and rests no more"
            );
        }
        assert!(pause_ms == 0 || accepted == 0, "it slept");
        assert_eq!(a.send(4001, b"after", true), Err(libc::EIO));
    }
}

#[test]
fn a_sender_without_room_learns_that_its_node_has_ended() {
    let node = start("ends-full", small());
    let (a, _b) = (node.bound(4000), node.bound(4001));
    filled(&a);
    let waiting = thread::scope(|scope| {
        let waiting = scope.spawn(|| a.send(4001, &[0; 8192], false));
        thread::sleep(Duration::from_millis(20));
        drop(node);
        waiting.join().expect("no panic")
    });
    assert_eq!(waiting, Err(libc::EIO));
    assert_eq!(a.send(4001, &[0; 8192], true), Err(libc::EIO));
    let mut received = a.receive(NOW);
    if received == Err(libc::EAGAIN) {
        received = a.receive(NOW); // the first one took what the node showed before it ended
    }
    assert_eq!(received, Err(libc::EIO));
}

#[test]
fn many_messages_between_two_threads_arrive_once_and_in_order() {
    let node = start("order", small());
    let (a, b) = (node.bound(4000), node.bound(4001));
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..COUNT {
                let length = 4 + (number as usize * 7919) % 3000;
                let mut payload = vec![0; length];
                payload[..4].copy_from_slice(&number.to_le_bytes());
                assert_eq!(a.send(4001, &payload, false), Ok(length));
            }
        });
        for number in 0..COUNT {
            let payload = b.receive(WAIT).expect("a message");
            assert_eq!(payload[..4], number.to_le_bytes());
            assert_eq!(payload.len(), 4 + (number as usize * 7919) % 3000);
        }
    });
    assert_eq!(b.receive(NOW), Err(libc::EAGAIN));
}

#[test]
fn a_descriptor_is_found_again_and_shared_with_a_child() {
    let node = start("fork", small());
    let (a, b) = (node.bound(4000), node.bound(4001));
    let found = Socket::find(node.place(), a.descriptor).expect("it is of that node");
    assert_eq!(found.cookie(), a.socket.cookie());
    assert_ne!(found.cookie(), b.socket.cookie());
    found.options().set(Word::Tos, 3);
    assert_eq!(a.socket.options().get(Word::Tos), 3);
    found.options().set(Word::Tos, 0);
    let children: Vec<i32> = (0..3u8)
        .map(|child| {
            sys::fork(|| {
                for number in 0..EACH {
                    let mut payload = [child; 5];
                    payload[1..].copy_from_slice(&number.to_le_bytes());
                    a.send(4001, &payload, false).expect("room");
                }
            })
        })
        .collect();
    let mut next = [0u32; 3];
    for _ in 0..3 * EACH {
        let payload = b.receive(WAIT).expect("a message");
        let child = usize::from(payload[0]);
        assert_eq!(payload[1..], next[child].to_le_bytes());
        next[child] += 1;
    }
    for child in children {
        assert_eq!(sys::wait(child), 0);
    }
}

#[test]
fn killed_senders_leave_no_lock_and_no_part_of_a_message() {
    let node = start("kill", small());
    let (a, b) = (node.bound(4000), node.bound(4001));
    a.send(4001, b"a route", false).expect("room");
    for round in 0..60u64 {
        let child = sys::fork(|| {
            loop {
                let _ = a.send(4001, &[7; 3000], true);
            }
        });
        thread::sleep(Duration::from_micros(300 + 97 * round));
        sys::kill(child);
        // The child may have filled both queues: take from the one while the other has no room.
        let mut is_sent = false;
        loop {
            is_sent = is_sent || a.send(4001, b"alive", true).is_ok();
            let Ok(last) = b.receive(NOW) else {
                thread::sleep(Duration::from_micros(50));
                continue;
            };
            if last == b"alive" {
                break;
            }
            let is_whole = last.len() == 3000 && last.iter().all(|&byte| byte == 7);
            assert!(is_whole || last == b"a route");
        }
    }
    for _ in 0..1000 {
        if a.socket.side().queued_bytes() == 0 {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!(
        "{} bytes stay in the account",
        a.socket.side().queued_bytes()
    );
}

/// A node whose worker dies so often before it answers, with an error.
fn answered_after(deaths: usize) -> i32 {
    let path = std::env::temp_dir().join(format!("urds-dies-{}-{deaths}", std::process::id()));
    let listener = sys::listen(&path);
    let place = path.as_os_str().as_encoded_bytes();
    let found = thread::scope(|scope| {
        let asking = scope.spawn(|| Socket::find(place, 0).err());
        let mut accepted = 0;
        while !asking.is_finished() {
            let Some(connection) = sys::accept(&listener) else {
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            accepted += 1;
            let mut record = [0; urds_client::request::RECORD_BYTES];
            sys::receive(&connection, &mut record);
            if accepted > deaths {
                record[12..16].copy_from_slice(&libc::ENOTSOCK.to_le_bytes());
                sys::answer(&connection, &record, &[]);
            }
        }
        asking.join().expect("no panic")
    });
    let _ = std::fs::remove_file(path);
    found.expect("an error")
}

#[test]
fn a_request_is_made_again_when_its_worker_dies() {
    assert_eq!(answered_after(0), libc::ENOTSOCK);
    assert_eq!(answered_after(2), libc::ENOTSOCK);
    assert_eq!(answered_after(3), libc::EIO, "not for ever");
}
