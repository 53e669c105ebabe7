//! The send side compared with a model: the same numbers, bytes, positions, accounts.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A model of a path and its messages.
#[derive(Debug, Default)]
struct Model {
    unsent: Vec<(u64, usize)>,                 // owner, bytes
    sent: Vec<(u64, u64, usize, Option<u64>)>, // number, owner, bytes, end on this stream
    next: u64,
    position: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Queue(u64, usize),
    Frame(usize),
    Acknowledge(u64),
    StreamAcknowledged(u64),
    EndStream,
    Cancel(u64),
    Forget(u64),
    DropHandedOver,
    DropAll,
}

impl Model {
    fn frame(&mut self, bytes_max: usize) -> Vec<(u64, usize)> {
        let end = self.position + bytes_max as u64;
        let mut made = Vec::new();
        for (number, _, bytes, place) in self.sent.iter_mut().filter(|one| one.3.is_none()) {
            if self.position >= end {
                break;
            }
            self.position += 48 + *bytes as u64;
            *place = Some(self.position);
            made.push((*number, *bytes));
        }
        while self.position < end && !self.unsent.is_empty() {
            let (owner, bytes) = self.unsent.remove(0);
            self.position += 48 + bytes as u64;
            self.next += 1;
            self.sent
                .push((self.next, owner, bytes, Some(self.position)));
            made.push((self.next, bytes));
        }
        made
    }

    fn account(&self, owner: u64) -> usize {
        let unsent = self
            .unsent
            .iter()
            .filter(|one| one.0 == owner)
            .map(|one| one.1);
        let sent = self
            .sent
            .iter()
            .filter(|one| one.1 == owner)
            .map(|one| one.2);
        unsent.chain(sent).sum()
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Queue(owner, bytes) => self.unsent.push((owner, bytes)),
            Step::Frame(_) => unreachable!("compared by its bytes"),
            Step::Acknowledge(number) => {
                self.sent
                    .retain(|one| one.0 > number || number > self.next || one.3.is_none());
            }
            Step::StreamAcknowledged(bytes) => {
                self.sent.retain(|one| one.3.is_none_or(|end| end > bytes));
            }
            Step::EndStream => {
                self.position = 0;
                self.sent.iter_mut().for_each(|one| one.3 = None);
            }
            Step::Cancel(owner) => {
                self.unsent.retain(|one| one.0 != owner);
                self.sent.retain(|one| one.1 != owner);
            }
            Step::Forget(number) => {
                self.sent
                    .retain(|one| one.0 > number || number > self.next || one.3.is_some());
            }
            Step::DropHandedOver => self.sent.clear(),
            Step::DropAll => {
                self.sent.clear();
                self.unsent.clear();
            }
        }
    }
}

fn do_step(sender: &mut Sender, step: &Step) {
    match *step {
        Step::Acknowledge(number) => {
            sender.handle_peer_acknowledged(number);
        }
        Step::StreamAcknowledged(bytes) => sender.handle_stream_acknowledged(bytes),
        Step::EndStream => sender.end_stream(),
        Step::Cancel(owner) => {
            sender.cancel(Owner(owner), None);
        }
        Step::Forget(number) => sender.forget_retransmits(number),
        Step::DropHandedOver => {
            sender.drop_handed_over();
        }
        Step::DropAll => {
            sender.drop_all();
        }
        Step::Queue(..) | Step::Frame(_) => unreachable!("done by the world"),
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![0_usize..100, 8190_usize..8194, Just(40_000_usize)];
    let step = prop_oneof![
        8 => (1_u64..3, bytes).prop_map(|(owner, bytes)| Step::Queue(owner, bytes)),
        6 => prop_oneof![1_usize..300, 1000_usize..100_000].prop_map(Step::Frame),
        3 => (0_u64..40).prop_map(Step::Acknowledge),
        3 => (0_u64..60_000).prop_map(Step::StreamAcknowledged),
        2 => Just(Step::EndStream),
        1 => (1_u64..3).prop_map(Step::Cancel),
        1 => (0_u64..40).prop_map(Step::Forget),
        1 => Just(Step::DropHandedOver),
        1 => Just(Step::DropAll),
    ];
    vec(step, 0..80)
}

proptest! {
    #[test]
    fn it_does_as_the_model(steps in steps(), urds_node: bool, checksum: bool) {
        let mut world = World::new(Limits::default());
        if urds_node {
            world.sender.ack_mode = AckMode::PeerAcknowledged;
        }
        world.sender.checksum = checksum;
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Frame(bytes_max) => {
                    let made = world.frame(bytes_max);
                    let made: Vec<_> = made.iter().map(|one| (one.0.sequence, one.1.len())).collect();
                    prop_assert_eq!(made, model.frame(bytes_max));
                }
                Step::Queue(owner, bytes) => {
                    world.queue(Owner(owner), 5000, &vec![7; bytes]);
                    model.step(&step);
                }
                _ => {
                    do_step(&mut world.sender, &step);
                    model.step(&step);
                }
            }
            prop_assert_eq!(world.sender.position, model.position);
            prop_assert_eq!(world.sender.sequence_next, model.next + 1);
            prop_assert_eq!(world.sender.message_count(), model.unsent.len() + model.sent.len());
            let pending: usize = model.unsent.iter().map(|one| 48 + one.1).sum();
            prop_assert_eq!(world.sender.pending_bytes, pending);
            for owner in [ONE, OTHER] {
                prop_assert_eq!(world.account(owner), model.account(owner.0));
                prop_assert_eq!(
                    world.sender.holds(Some(owner)),
                    model.unsent.iter().any(|one| one.0 == owner.0)
                        || model.sent.iter().any(|one| one.1 == owner.0)
                );
            }
        }
    }
}
