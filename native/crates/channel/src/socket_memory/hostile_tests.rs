//! Anything written over the memory between any two calls: no panic, no access outside, an end.

use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::layout::{self, UNIT_BYTES};
use super::tests::{Pair, pair, small};
use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// Of the head, the tables or the ring.
    WriteHead(usize, u64),
    /// First words of a record of the send area or the receive area.
    WriteRecord(bool, u32, usize, u64),
    Node(u8, usize),
    Client(u8, usize),
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0u64..40,
        (0u64..1 << 20).prop_map(|low| 1 << 32 | low),
        (0u64..64).prop_map(|bit| (1u64 << bit).wrapping_sub(1)),
        Just(u64::MAX),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let head = prop_oneof![
        4 => (32usize..512).prop_map(|word| word * 8),
        1 => (512usize..(layout::AT_RING / 8 + 8)).prop_map(|word| word * 8),
        2 => (0usize..8).prop_map(|word| layout::AT_RING + word * 8),
    ];
    prop_oneof![
        3 => (head, value()).prop_map(|(at, value)| Step::WriteHead(at, value)),
        3 => (any::<bool>(), 0u32..200, 0usize..8, value())
            .prop_map(|(sends, unit, word, value)| Step::WriteRecord(sends, unit, word * 8, value)),
        4 => (0u8..10, 0usize..3000).prop_map(|(call, with)| Step::Node(call, with)),
        4 => (0u8..6, 0usize..3000).prop_map(|(call, with)| Step::Client(call, with)),
    ]
}

fn node(pair: &mut Pair, call: u8, with: usize) -> Result<(), ClientError> {
    match call {
        0 | 1 => {
            if let Some(taken) = pair.node.take()? {
                let mut room = vec![0; taken.length];
                pair.node.area().copy_out(taken.at, &mut room);
            }
        }
        2 => {
            let mut slots = Vec::new();
            pair.node
                .held_messages(|held| slots.push(held.message.slot));
            if let Some(&slot) = slots.get(with % slots.len().max(1)) {
                pair.node.free(slot);
            }
        }
        3 | 4 => {
            pair.deliver(&vec![1; with]);
        }
        5 => {
            let mut calls = 0;
            pair.node.look_taken(|_| calls += 1)?;
            assert!(calls <= pair.node.journal().queue());
        }
        6 => {
            pair.node.sleep()?;
        }
        7 => {
            pair.node.after_freeing();
            pair.node.must_empty();
            pair.node.must_show_again();
        }
        8 => {
            pair.node.congestion_changed(with as u64);
            pair.node.await_taken(u32::try_from(with).expect("small"));
        }
        _ => super::model_tests::restarted(pair),
    }
    Ok(())
}

fn client(pair: &mut Pair, call: u8, with: usize) {
    match call {
        0 | 1 => {
            let _ = pair.send(u32::try_from(with % 3).expect("small"), &vec![2; with]);
        }
        2 | 3 => {
            let _ = pair.receive(with.is_multiple_of(2));
        }
        4 => {
            let _ = pair.client.sleep(|| ());
        }
        _ => {
            pair.client.is_writable();
            pair.client.wait_for(1 << (with % 64), layout::WAIT_ANY);
            pair.route(&tests::peer(1), 0);
        }
    }
}

/// The locks are words too: what is written there would keep the test waiting, as it would keep the
/// processes of the one socket.
fn is_lock(at: usize) -> bool {
    at == layout::AT_SENDERS || at == layout::AT_RECEIVERS
}

/// What is written once is read when the memory is mapped: it is refused then.
fn is_shape(at: usize) -> bool {
    at < 256
}

fn play(steps: &[Step]) -> usize {
    let mut pair = pair(&small());
    let mut errors = 0;
    for step in steps {
        match *step {
            Step::WriteHead(at, value) => {
                if !is_lock(at) && !is_shape(at) {
                    let word = pair.client.area().long(at);
                    word.store(value, Ordering::Relaxed);
                }
            }
            Step::WriteRecord(sends, unit, word, value) => {
                let first = if sends {
                    pair.client.layout.send_at
                } else {
                    pair.client.layout.receive_at
                };
                let at = first + unit as usize * UNIT_BYTES + word;
                let word = pair.client.area().long(at);
                word.store(value, Ordering::Relaxed);
            }
            Step::Node(call, with) => {
                errors += usize::from(node(&mut pair, call, with).is_err());
            }
            Step::Client(call, with) => client(&mut pair, call, with),
        }
    }
    errors
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn nothing_that_is_written_hurts_a_side(steps in proptest::collection::vec(step(), 0..120)) {
        play(&steps);
    }
}

#[test]
fn what_no_client_writes_is_an_error() {
    let head = |at, value| {
        let steps = [Step::Client(0, 100), Step::WriteHead(at, value)];
        let calls = [Step::Node(5, 0), Step::Node(0, 0)];
        play(&[steps, calls].concat())
    };
    assert_eq!(head(layout::AT_WANTS_TAKEN, 1), 0, "a word of the node");
    assert_eq!(head(layout::AT_SUBMITTED, 17), 1);
    assert_eq!(head(layout::AT_TAKEN, 1 << 32), 1);
    assert_eq!(head(layout::AT_RING, 1 << 20), 1, "outside of the area");
    assert_eq!(head(layout::AT_RING, 5), 1, "no record");
    let record = |word, value| {
        let steps = [
            Step::Client(0, 100),
            Step::WriteRecord(true, 0, word, value),
        ];
        play(&[steps.to_vec(), vec![Step::Node(0, 0)]].concat())
    };
    assert_eq!(record(0, 1 << 32 | 3), 0, "as the client wrote it");
    assert_eq!(record(0, 1 << 32 | 2), 1, "shorter than its message");
    assert_eq!(record(0, 1 << 32 | 1 << 20), 1, "beyond the area");
    assert_eq!(record(0, 3), 1, "free");
    assert_eq!(record(8, 1 << 32 | 0xfa0), 1, "longer than its tile");
    assert_eq!(record(8, 4096 << 32 | 0x64), 1, "no route");
    assert_eq!(record(layout::SEND_SUBMISSION, 1), 1, "another one's");
}
