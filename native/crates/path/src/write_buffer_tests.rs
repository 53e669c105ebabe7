use std::io::IoSlice;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn bytes_of(write_buffer: &WriteBuffer, skip: usize) -> Vec<u8> {
    let mut slices = [IoSlice::new(&[]); 1024];
    let used = write_buffer.fill(skip, &mut slices);
    assert!(slices[..used].iter().all(|slice| !slice.is_empty()));
    concat(&slices[..used])
}

fn concat(slices: &[IoSlice<'_>]) -> Vec<u8> {
    slices
        .iter()
        .flat_map(|slice| slice.iter().copied())
        .collect()
}

fn long(bytes: &[u8]) -> Payload {
    Payload::Owned(bytes.into())
}

#[test]
fn small_pieces_are_joined_and_long_ones_are_not_copied() {
    let mut write_buffer = WriteBuffer::default();
    write_buffer.join(b"head");
    write_buffer.join(b"er");
    assert_eq!(write_buffer.single(), Some(&b"header"[..]));
    let payload: Arc<[u8]> = vec![7; 9000].into();
    write_buffer.refer(Payload::Owned(payload.clone()));
    write_buffer.join(b"next");
    assert_eq!((write_buffer.len(), write_buffer.single()), (9010, None));
    let mut slices = [IoSlice::new(&[]); 8];
    assert_eq!(write_buffer.fill(0, &mut slices), 3);
    assert_eq!((&*slices[0], &*slices[2]), (&b"header"[..], &b"next"[..]));
    assert_eq!(slices[1].as_ptr(), payload.as_ptr());
}

#[test]
fn too_few_slices_take_the_first_bytes() {
    let mut write_buffer = WriteBuffer::default();
    write_buffer.join(b"a");
    write_buffer.refer(long(b"b"));
    write_buffer.join(b"c");
    let mut slices = [IoSlice::new(&[]); 2];
    assert_eq!(write_buffer.fill(0, &mut slices), 2);
    assert_eq!(concat(&slices), b"ab");
    assert_eq!(write_buffer.fill(1, &mut slices), 2);
    assert_eq!(concat(&slices), b"bc");
    assert_eq!(write_buffer.fill(3, &mut slices), 0);
}

#[test]
fn memory_is_used_again_and_given_back_by_the_idle() {
    let mut write_buffer = WriteBuffer::default();
    for _ in 0..3 {
        write_buffer.join(&vec![1; 60_000]);
        write_buffer.advance(60_000);
        assert!(write_buffer.is_empty() && write_buffer.joined.capacity() >= 60_000);
    }
    write_buffer.join(&vec![1; 2 * BUSY_BYTES]);
    write_buffer.advance(usize::MAX);
    assert!(write_buffer.joined.capacity() <= BUSY_BYTES);
    write_buffer.rest();
    assert!(write_buffer.joined.capacity() <= IDLE_BYTES);
}

#[test]
fn a_stream_that_takes_little_at_a_time_does_not_make_it_grow() {
    let mut write_buffer = WriteBuffer::default();
    for _ in 0..1000 {
        write_buffer.join(&[1; 1000]);
        write_buffer.refer(long(&[2; 10]));
        write_buffer.advance(if write_buffer.len() > 5000 { 1010 } else { 1 });
    }
    assert!(write_buffer.joined.len() <= 2 * TAKEN_BYTES_MAX);
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
    fn it_is_a_queue_of_bytes(steps in steps(), skip in 0_usize..500) {
        let (mut write_buffer, mut model, mut next) = (WriteBuffer::default(), Vec::<u8>::new(), 0_u8);
        for step in steps {
            match step {
                Step::Join(count) | Step::Refer(count) => {
                    let bytes: Vec<u8> = (0..count).map(|_| { next = next.wrapping_add(1); next }).collect();
                    model.extend_from_slice(&bytes);
                    if matches!(step, Step::Join(_)) { write_buffer.join(&bytes) } else { write_buffer.refer(long(&bytes)) }
                }
                Step::Advance(count) => {
                    write_buffer.advance(count);
                    model.drain(..count.min(model.len()));
                }
                Step::Clear => {
                    write_buffer.clear();
                    model.clear();
                }
            }
            prop_assert_eq!((write_buffer.len(), write_buffer.is_empty()), (model.len(), model.is_empty()));
            prop_assert_eq!(&bytes_of(&write_buffer, skip), model.get(skip..).unwrap_or_default());
            if let Some(single) = write_buffer.single() {
                prop_assert_eq!(single, &model);
            }
        }
    }
}
