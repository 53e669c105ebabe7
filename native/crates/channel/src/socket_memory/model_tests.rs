//! Random sequences of both sides' calls against queues of Rust.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::tests::{Pair, pair, small};
use super::*;
use crate::sys::area::Area;

#[derive(Clone, Debug)]
enum Step {
    Send(u32, usize),
    Take,
    Free(usize),
    Deliver(usize),
    Receive(bool),
    LookTaken,
    /// The node's worker is killed between two calls, and another one goes on.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u32..3, length()).prop_map(|(route, length)| Step::Send(route, length)),
        4 => Just(Step::Take),
        4 => any::<usize>().prop_map(Step::Free),
        4 => length().prop_map(Step::Deliver),
        4 => any::<bool>().prop_map(Step::Receive),
        2 => Just(Step::LookTaken),
        1 => Just(Step::Restart),
    ]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), 1usize..100, 100usize..2000, 2000usize..8193]
}

/// Payload of a message, unlike that of any other.
fn payload(number: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| u8::try_from((at * 31 + number * 101) % 251).expect("a byte"))
        .collect()
}

pub(super) fn restarted(pair: &mut Pair) {
    let area = Area::map(pair.memory).expect("a mapping");
    let journal = Area::map(pair.journal).expect("a mapping");
    pair.node = NodeSide::new(area, journal).expect("both are good");
}

/// What both sides should know.
#[derive(Default)]
struct Model {
    number: usize,
    submitted: VecDeque<(u32, Vec<u8>)>,
    /// Slot, route and length.
    held: Vec<(u32, u32, usize)>,
    delivered: VecDeque<Vec<u8>>,
    received: Vec<usize>,
}

impl Model {
    fn queued(&self) -> usize {
        let submitted: usize = self.submitted.iter().map(|one| one.1.len()).sum();
        submitted + self.held.iter().map(|one| one.2).sum::<usize>()
    }

    fn receive(&mut self, peek: bool, pair: &Pair) {
        let (received, payload) = match pair.receive(peek) {
            Ok(both) => both,
            Err(reason) => {
                assert_eq!(reason, Rejected::Empty);
                assert!(self.delivered.is_empty());
                return;
            }
        };
        assert_eq!(Some(&payload), self.delivered.front());
        if !peek {
            self.delivered.pop_front();
            self.received.push(payload.len());
            assert_eq!(received.is_last, self.delivered.is_empty());
        }
    }

    fn apply(&mut self, step: &Step, pair: &mut Pair) {
        self.number += 1;
        match *step {
            Step::Send(route, length) => {
                let sent = payload(self.number, length);
                let queued = self.queued();
                match pair.send(route, &sent) {
                    Ok(_) => self.submitted.push_back((route, sent)),
                    Err(reason) => {
                        let is_short = self.submitted.len() == 16;
                        assert!(queued >= 4096 || is_short, "{reason:?} at {queued}");
                    }
                }
            }
            Step::Take => {
                let taken = pair.take();
                let expected = self.submitted.pop_front();
                let as_sent = taken.as_ref().map(|one| (one.1, one.2.clone()));
                assert_eq!(as_sent, expected);
                if let Some((slot, route, payload)) = taken {
                    self.held.push((slot, route, payload.len()));
                }
            }
            Step::Free(index) if !self.held.is_empty() => {
                let (slot, route, bytes) = self.held.swap_remove(index % self.held.len());
                assert_eq!(pair.free(slot), Freed { bytes, route });
            }
            Step::Free(_) => {}
            Step::Deliver(length) => {
                let message = payload(self.number, length);
                if pair.deliver(&message).is_some() {
                    self.delivered.push_back(message);
                } else {
                    let unread: usize = self.delivered.iter().map(Vec::len).sum();
                    assert!(unread + self.received.iter().sum::<usize>() > 32 << 10);
                }
            }
            Step::Receive(peek) => self.receive(peek, pair),
            Step::LookTaken => {
                let mut lengths = Vec::new();
                pair.node
                    .look_taken(|length| lengths.push(length))
                    .expect("no error");
                assert_eq!(lengths, std::mem::take(&mut self.received));
            }
            Step::Restart => restarted(pair),
        }
    }
}

proptest! {
    #[test]
    fn both_sides_are_queues(steps in proptest::collection::vec(step(), 0..300)) {
        let mut pair = pair(&small());
        let mut model = Model::default();
        for step in &steps {
            model.apply(step, &mut pair);
            prop_assert_eq!(pair.client.queued_bytes(), model.queued() as u64);
            let held: usize = model.held.iter().map(|one| one.2).sum();
            prop_assert_eq!(pair.node.held_bytes(), held as u64);
            let used = pair.client.tiles().tiles().iter().filter(|tile| tile.2).count();
            prop_assert_eq!(used, model.held.len() + model.submitted.len());
        }
    }
}
