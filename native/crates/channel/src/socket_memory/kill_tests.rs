//! Each side killed between any two of its instructions, and the other one after it.

use super::model_tests::restarted;
use super::tests::{Pair, pair, small};
use crate::sys::stepped::{self, Run};

/// Places of a kill that are tried, spread over the work.
const TRIES: u64 = 24;

/// Have a child do `work` and be killed at places that are spread over all of it, then `check`.
fn killed_everywhere(
    prepared: impl Fn() -> Pair,
    work: impl Fn(&mut Pair),
    mut check: impl FnMut(Pair, Run),
) {
    let mut pair = prepared();
    let Run::Ended(whole) = stepped::run(u64::MAX, || work(&mut pair)) else {
        panic!("nothing killed it");
    };
    check(pair, Run::Ended(whole));
    for number in 0..TRIES {
        // Odd steps, so that the places differ from those of a loop.
        let after = whole * number / TRIES + number % 7;
        let mut pair = prepared();
        let run = stepped::run(after, || work(&mut pair));
        check(pair, run);
    }
}

/// Two messages of another process are held, with room between them.
fn with_holes() -> Pair {
    let mut pair = pair(&small());
    for length in [500, 900, 300] {
        pair.send(1, &vec![1; length]).expect("room");
    }
    let slots: Vec<u32> = (0..3).map(|_| pair.take().expect("a message").0).collect();
    pair.free(slots[1]);
    pair
}

fn used(pair: &Pair) -> usize {
    let tiles = pair.client.tiles().tiles();
    tiles.iter().filter(|tile| tile.2).count()
}

#[test]
fn a_killed_sender_leaves_a_whole_message_or_none() {
    let mut found = [false; 2];
    let send = |pair: &mut Pair| {
        let _ = pair.send(2, &[9; 700]);
    };
    killed_everywhere(with_holes, send, |mut pair, run| {
        pair.send(1, b"after").expect("the lock is free, and room");
        let first = pair.take().expect("a message");
        let is_sent = first.1 == 2;
        found[usize::from(is_sent)] = true;
        if is_sent {
            assert_eq!(first.2, vec![9; 700], "after {run:?}");
            assert_eq!(pair.take().expect("the second").2, b"after");
        } else {
            assert_eq!(first.2, b"after", "after {run:?}");
        }
        assert_eq!(pair.take(), None);
        let queued = 800 + 5 + if is_sent { 700 } else { 0 };
        assert_eq!(pair.client.queued_bytes(), queued, "after {run:?}");
        assert_eq!(used(&pair), 3 + usize::from(is_sent), "after {run:?}");
        let mut slots = Vec::new();
        pair.node
            .held_messages(|held| slots.push(held.message.slot));
        for slot in slots {
            pair.free(slot);
        }
        assert_eq!((pair.client.queued_bytes(), used(&pair)), (0, 0));
    });
    assert_eq!(found, [true; 2], "killed before and after");
}

#[test]
fn a_killed_receiver_leaves_a_message_taken_or_not() {
    let mut found = [false; 2];
    let prepared = || {
        let mut pair = pair(&small());
        for message in [b"one".as_slice(), b"two", b"three"] {
            pair.deliver(message).expect("room");
        }
        pair
    };
    let receive = |pair: &mut Pair| {
        let _ = pair.client.receive(false, |_, _| ());
    };
    killed_everywhere(prepared, receive, |mut pair, run| {
        let (_, first) = pair.receive(false).expect("the lock is free");
        let is_taken = first == b"two";
        found[usize::from(is_taken)] = true;
        assert!(is_taken || first == b"one", "after {run:?}");
        pair.node.look_taken(|_| ()).expect("a count of messages");
        assert_eq!(pair.node.unread(), if is_taken { 1 } else { 2 });
    });
    assert_eq!(found, [true; 2], "killed before and after");
}

#[test]
fn a_killed_worker_takes_nothing_twice_and_loses_nothing() {
    let prepared = || {
        let pair = with_holes();
        for number in 0..3u8 {
            pair.send(2, &[number; 100]).expect("room");
        }
        pair
    };
    let work = |pair: &mut Pair| {
        let mut slots = Vec::new();
        pair.node
            .held_messages(|held| slots.push(held.message.slot));
        let taken = pair.node.take().expect("no error").expect("a message");
        pair.node.free(0);
        pair.node.free(taken.slot);
        let _ = pair.node.take();
    };
    killed_everywhere(prepared, work, |mut pair, run| {
        restarted(&mut pair);
        let before = pair.client.queued_bytes();
        let (mut held, mut bytes) = (Vec::new(), 0);
        pair.node.held_messages(|one| {
            held.push(one.message.slot);
            bytes += one.message.length as u64;
        });
        let waiting = u64::from(pair.node.submissions().expect("a count")) * 100;
        assert_eq!(before, bytes + waiting, "after {run:?}");
        assert_eq!(
            used(&pair),
            held.len() + usize::try_from(waiting / 100).expect("few")
        );
        let mut numbers = Vec::new();
        while let Some((slot, _, payload)) = pair.take() {
            numbers.push(payload[0]);
            held.push(slot);
        }
        // What was taken before is held or freed, what was not comes now, in order.
        assert!([0, 1, 2].ends_with(&numbers), "{numbers:?} after {run:?}");
        for slot in held {
            pair.free(slot);
        }
        assert_eq!((pair.client.queued_bytes(), used(&pair)), (0, 0), "{run:?}");
        pair.send(0, &[5; 4000]).expect("all is free");
    });
}

#[test]
fn a_killed_worker_delivers_a_message_or_not() {
    let mut found = [false; 2];
    let prepared = || {
        let mut pair = pair(&small());
        pair.deliver(b"one").expect("room");
        pair
    };
    let work = |pair: &mut Pair| {
        pair.deliver(b"two");
    };
    killed_everywhere(prepared, work, |mut pair, run| {
        restarted(&mut pair);
        let is_delivered = pair.node.unread() == 2;
        found[usize::from(is_delivered)] = true;
        pair.deliver(b"three").expect("room");
        let mut received = Vec::new();
        while let Ok((_, payload)) = pair.receive(false) {
            received.push(payload);
        }
        let expected: &[&[u8]] = if is_delivered {
            &[b"one", b"two", b"three"]
        } else {
            &[b"one", b"three"]
        };
        assert_eq!(received, expected, "after {run:?}");
    });
    assert_eq!(found, [true; 2], "killed before and after");
}

#[test]
fn a_worker_killed_while_it_gives_pages_back_leaves_a_tiling() {
    let prepared = || {
        let mut pair = pair(&small());
        for _ in 0..4 {
            pair.send(1, &[1; 1000]).expect("room");
        }
        while let Some((slot, ..)) = pair.take() {
            pair.node.free(slot); // the client is not told yet, so it does not begin at the start
        }
        pair
    };
    let work = |pair: &mut Pair| pair.client.tiles().give_back(0, 100);
    let mut pair = prepared();
    let Run::Ended(whole) = stepped::run(u64::MAX, || work(&mut pair)) else {
        panic!("nothing killed it");
    };
    for after in 0..whole {
        let mut pair = prepared();
        stepped::run(after, || work(&mut pair));
        pair.send(1, &[2; 1000]).expect("room");
        pair.send(1, &[3; 3000]).expect("room");
        assert_eq!(used(&pair), 2, "after {after} of {whole}");
    }
}
