use std::io::IoSlice;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn octets_of(offer: &Offer, skip: usize) -> Vec<u8> {
    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
    let used = offer.fill(skip, &mut slices);
    assert!(slices[..used].iter().all(|slice| !slice.is_empty()));
    concat(&slices[..used])
}

fn concat(slices: &[IoSlice<'_>]) -> Vec<u8> {
    slices
        .iter()
        .flat_map(|slice| slice.iter().copied())
        .collect()
}

fn long(octets: &[u8]) -> Payload {
    Payload::Owned(octets.into())
}

#[test]
fn small_pieces_are_joined_and_long_ones_are_not_copied() {
    let mut offer = Offer::default();
    offer.join(b"head");
    offer.join(b"er");
    assert_eq!(offer.single(), Some(&b"header"[..]));
    let payload: Arc<[u8]> = vec![7; 9000].into();
    offer.refer(Payload::Owned(payload.clone()));
    offer.join(b"next");
    assert_eq!((offer.len(), offer.single()), (9010, None));
    let mut slices = [IoSlice::new(&[]); 8];
    assert_eq!(offer.fill(0, &mut slices), 3);
    assert_eq!((&*slices[0], &*slices[2]), (&b"header"[..], &b"next"[..]));
    assert_eq!(slices[1].as_ptr(), payload.as_ptr());
}

#[test]
fn too_few_slices_take_the_first_octets() {
    let mut offer = Offer::default();
    offer.join(b"a");
    offer.refer(long(b"b"));
    offer.join(b"c");
    let mut slices = [IoSlice::new(&[]); 2];
    assert_eq!(offer.fill(0, &mut slices), 2);
    assert_eq!(concat(&slices), b"ab");
    assert_eq!(offer.fill(1, &mut slices), 2);
    assert_eq!(concat(&slices), b"bc");
    assert_eq!(offer.fill(3, &mut slices), 0);
}

#[test]
fn memory_is_used_again_and_given_back_by_the_idle() {
    let mut offer = Offer::default();
    for _ in 0..3 {
        offer.join(&vec![1; 60_000]);
        offer.advance(60_000);
        assert!(offer.is_empty() && offer.joined.capacity() >= 60_000);
    }
    offer.join(&vec![1; 2 * BUSY_BYTES]);
    offer.advance(usize::MAX);
    assert!(offer.joined.capacity() <= BUSY_BYTES);
    offer.rest();
    assert!(offer.joined.capacity() <= IDLE_BYTES);
}

#[test]
fn a_stream_that_takes_little_at_a_time_does_not_make_it_grow() {
    let mut offer = Offer::default();
    for _ in 0..1000 {
        offer.join(&[1; 1000]);
        offer.refer(long(&[2; 10]));
        offer.advance(if offer.len() > 5000 { 1010 } else { 1 });
    }
    assert!(offer.joined.len() <= 2 * TAKEN_BYTES_MAX);
}

#[derive(Clone, Debug)]
enum Step {
    Join(usize),
    Refer(usize),
    Advance(usize),
    Clear,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0_usize..200).prop_map(Step::Join),
        1 => (30_000_usize..50_000).prop_map(Step::Join),
        3 => (1_usize..300).prop_map(Step::Refer),
        6 => (0_usize..400).prop_map(Step::Advance),
        2 => (0_usize..90_000).prop_map(Step::Advance),
        1 => Just(Step::Clear),
    ];
    vec(step, 0..60)
}

proptest! {
    #[test]
    fn it_is_a_queue_of_octets(steps in steps(), skip in 0_usize..500) {
        let (mut offer, mut model, mut next) = (Offer::default(), Vec::<u8>::new(), 0_u8);
        for step in steps {
            match step {
                Step::Join(count) | Step::Refer(count) => {
                    let octets: Vec<u8> = (0..count).map(|_| { next = next.wrapping_add(1); next }).collect();
                    model.extend_from_slice(&octets);
                    if matches!(step, Step::Join(_)) { offer.join(&octets) } else { offer.refer(long(&octets)) }
                }
                Step::Advance(count) => {
                    offer.advance(count);
                    model.drain(..count.min(model.len()));
                }
                Step::Clear => {
                    offer.clear();
                    model.clear();
                }
            }
            prop_assert_eq!((offer.len(), offer.is_empty()), (model.len(), model.is_empty()));
            prop_assert_eq!(&octets_of(&offer, skip), model.get(skip..).unwrap_or_default());
            if let Some(single) = offer.single() {
                prop_assert_eq!(single, &model);
            }
        }
    }
}
