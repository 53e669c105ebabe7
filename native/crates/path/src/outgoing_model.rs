//! The sending half against a model: the same numbers, octets, places, accounts.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// What a path does with its messages, in the plainest words.
#[derive(Debug, Default)]
struct Model {
    unsent: Vec<(u64, usize)>,                 // owner, octets
    sent: Vec<(u64, u64, usize, Option<u64>)>, // number, owner, octets, end on this stream
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
    fn frame(&mut self, octets_max: usize) -> Vec<(u64, usize)> {
        let end = self.position + octets_max as u64;
        let mut made = Vec::new();
        for (number, _, octets, place) in self.sent.iter_mut().filter(|one| one.3.is_none()) {
            if self.position >= end {
                break;
            }
            self.position += 48 + *octets as u64;
            *place = Some(self.position);
            made.push((*number, *octets));
        }
        while self.position < end && !self.unsent.is_empty() {
            let (owner, octets) = self.unsent.remove(0);
            self.position += 48 + octets as u64;
            self.next += 1;
            self.sent
                .push((self.next, owner, octets, Some(self.position)));
            made.push((self.next, octets));
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
            Step::Queue(owner, octets) => self.unsent.push((owner, octets)),
            Step::Frame(_) => unreachable!("compared by its octets"),
            Step::Acknowledge(number) => {
                self.sent
                    .retain(|one| one.0 > number || number > self.next || one.3.is_none());
            }
            Step::StreamAcknowledged(octets) => {
                self.sent.retain(|one| one.3.is_none_or(|end| end > octets));
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

fn do_step(outgoing: &mut Outgoing, step: &Step) {
    match *step {
        Step::Acknowledge(number) => {
            outgoing.handle_peer_acknowledged(number);
        }
        Step::StreamAcknowledged(octets) => outgoing.handle_stream_acknowledged(octets),
        Step::EndStream => outgoing.end_stream(),
        Step::Cancel(owner) => {
            outgoing.cancel(Owner(owner), None);
        }
        Step::Forget(number) => outgoing.forget_repeats(number),
        Step::DropHandedOver => {
            outgoing.drop_handed_over();
        }
        Step::DropAll => {
            outgoing.drop_all();
        }
        Step::Queue(..) | Step::Frame(_) => unreachable!("done by the world"),
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let octets = prop_oneof![0_usize..100, 8190_usize..8194, Just(40_000_usize)];
    let step = prop_oneof![
        8 => (1_u64..3, octets).prop_map(|(owner, octets)| Step::Queue(owner, octets)),
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
    fn it_does_as_the_model(steps in steps(), own_node: bool, checksum: bool) {
        let mut world = World::new(Limits::default());
        if own_node {
            world.outgoing.release = Release::PeerAcknowledged;
        }
        world.outgoing.checksum = checksum;
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Frame(octets_max) => {
                    let made = world.frame(octets_max);
                    let made: Vec<_> = made.iter().map(|one| (one.0.sequence, one.1.len())).collect();
                    prop_assert_eq!(made, model.frame(octets_max));
                }
                Step::Queue(owner, octets) => {
                    world.queue(Owner(owner), 5000, &vec![7; octets]);
                    model.step(&step);
                }
                _ => {
                    do_step(&mut world.outgoing, &step);
                    model.step(&step);
                }
            }
            prop_assert_eq!(world.outgoing.position, model.position);
            prop_assert_eq!(world.outgoing.sequence_next, model.next + 1);
            prop_assert_eq!(world.outgoing.message_count(), model.unsent.len() + model.sent.len());
            let pending: usize = model.unsent.iter().map(|one| 48 + one.1).sum();
            prop_assert_eq!(world.outgoing.pending_bytes, pending);
            for owner in [ONE, OTHER] {
                prop_assert_eq!(world.account(owner), model.account(owner.0));
                prop_assert_eq!(
                    world.outgoing.holds(Some(owner)),
                    model.unsent.iter().any(|one| one.0 == owner.0)
                        || model.sent.iter().any(|one| one.1 == owner.0)
                );
            }
        }
    }
}
