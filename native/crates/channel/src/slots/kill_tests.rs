//! Each side killed between any two of its instructions, and the other one after it.

use std::sync::atomic::Ordering;
use std::vec;
use std::vec::Vec;

use super::tests::{payload, real, send};
use super::*;
use crate::channel_memory::Direction;
use crate::sys::stepped::{self, Run};

/// How often a side is killed, spread over its work.
const KILLS: u64 = 30;

/// Of packets in slots, and one in the ring.
const LENGTHS: [usize; 4] = [3, 80, 81, 0];

fn publish_some(direction: &Direction<'_>, content: &[u8]) {
    let mut writer = Writer::default();
    for (number, bytes) in (0..).zip(LENGTHS) {
        let fill = |at| direction.copy_in(at, &content[..bytes]);
        let _ = writer.put(direction, &send(number), bytes, fill);
    }
    writer.must_ring(direction);
}

/// Take what is there; return how many packets came, each whole and without a gap.
fn take_all(direction: &Direction<'_>, expected: &[u8]) -> u32 {
    let (mut reader, mut count) = (Reader::default(), 0);
    while let Some(taken) = reader.take(direction, &mut || ()).expect("no half slot") {
        let mut content = vec![0; taken.bytes];
        direction.copy_out(taken.at, &mut content);
        assert_eq!(taken.fields, send(count));
        assert_eq!(content, expected[..taken.bytes]);
        count += 1;
    }
    count
}

#[test]
fn a_killed_writer_leaves_whole_packets_without_a_gap() {
    let content = payload(1, 100);
    let mut counts = Vec::new();
    let mut run = |after| {
        let (_, memory) = real();
        let direction = memory.direction(0);
        let run = stepped::run(after, || publish_some(&direction, &content));
        counts.push(take_all(&direction, &content));
        run
    };
    let Run::Ended(whole) = run(u64::MAX) else {
        panic!("nothing killed it");
    };
    for number in 0..KILLS {
        run(whole * number / KILLS + number % 7);
    }
    counts.sort_unstable();
    counts.dedup();
    assert_eq!(counts, [0, 1, 2, 3, 4]);
}

#[test]
fn a_killed_reader_leaves_counts_that_are_right_and_a_word_at_most() {
    let eighth = (SLOTS / EIGHTHS) as u64;
    let try_once = |after| {
        let (_, memory) = real();
        let direction = memory.direction(1);
        let (mut writer, mut reader) = (Writer::default(), Reader::default());
        for number in 0..=eighth {
            let psn = u32::try_from(number).expect("few");
            assert_eq!(writer.put(&direction, &send(psn), 0, |_| ()), Ok(true));
        }
        for _ in 1..eighth {
            reader.take(&direction, &mut || ()).expect("honest");
        }
        let run = stepped::run(after, || {
            for _ in 0..3 {
                let _ = reader.take(&direction, &mut || ());
            }
            reader.sleep(&direction, &mut || ());
        });
        while writer
            .has_room(&direction, 0)
            .expect("a count that is right")
        {
            let is_put = writer.put(&direction, &send(0), 0, |_| ());
            assert_eq!(is_put, Ok(true));
        }
        // Asleep until the end of the socket tells.
        assert_eq!(writer.sleep(&direction, 0), Ok(true));
        let told = direction.freed(Freed::Slots).load(Ordering::Relaxed);
        let is_asleep = direction.word(Word::ReaderAsleep).load(Ordering::Relaxed) != 0;
        (run, (told, is_asleep))
    };
    let (Run::Ended(whole), last) = try_once(u64::MAX) else {
        panic!("nothing killed it");
    };
    assert_eq!(last, (eighth + 1, true));
    let mut found: Vec<_> = (0..KILLS)
        .map(|number| try_once(whole * number / KILLS + number % 7).1)
        .collect();
    found.sort_unstable();
    found.dedup();
    let early = [(0, false), (eighth, false), (eighth + 1, false)];
    assert_eq!(found[..3], early, "killed between any two");
}
