//! Messages that a taker has out of the channel, without a receive.

mod support;

use std::collections::VecDeque;
use std::mem::take;
use std::sync::{Arc, Mutex};

use support::{End, pair_with_memory};
use urds_verbs::consumer::{Taker, Taking};
use urds_verbs::memory::{Content, Memory};
use urds_verbs::queue_pair::Takers;
use urds_verbs_shm::Looked;

/// From a slot, through the cache, from the ring at once.
const LENGTHS: [usize; 4] = [8, 3000, 60_000, 100_000];
const LONG_BYTES: usize = 60_000;
const MTU_BYTES: u32 = 128 << 10;

/// Answers as it was told, then takes all; keeps what it took.
#[derive(Debug, Default)]
struct Noted {
    answers: Mutex<VecDeque<Taking>>,
    taken: Mutex<Vec<Vec<u8>>>,
    may_wait: Mutex<Vec<bool>>,
}

impl Noted {
    fn taken(&self) -> Vec<Vec<u8>> {
        take(&mut *self.taken.lock().expect("no test panics with it"))
    }
}

impl Taker for Noted {
    fn take(&self, message: Content<'_>, may_wait: bool) -> Taking {
        let mut answers = self.answers.lock().expect("no test panics with it");
        self.may_wait.lock().expect("as above").push(may_wait);
        let answer = answers.pop_front().unwrap_or(Taking::Taken);
        if answer == Taking::Taken {
            let mut bytes = vec![0; message.len()];
            message.copy_to(&mut bytes);
            self.taken.lock().expect("as above").push(bytes);
        }
        answer
    }
}

/// Return two ends; the second one's taker answers so.
fn pair_with_taker(answers: &[Taking]) -> ([End; 2], Arc<Noted>) {
    let (mut ends, _, _) = pair_with_memory([MTU_BYTES; 2]);
    let taker = Arc::new(Noted::default());
    *taker.answers.lock().expect("as above") = answers.iter().copied().collect();
    let number = ends[1].number;
    assert!(
        ends[1]
            .engine
            .set_taker(number, Some(taker.clone()))
            .is_none()
    );
    (ends, taker)
}

fn look(end: &mut End, takers: Takers) -> Looked {
    end.channels.look(&mut end.engine, 0, 0, takers)
}

fn written(end: &End, first: u8, length: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..length)
        .map(|at| first.wrapping_add((at % 251).to_le_bytes()[0]))
        .collect();
    end.memory.write(0, &bytes);
    bytes
}

/// Let the first end take what is there; return how many of its requests are not acknowledged.
fn unacknowledged(ends: &mut [End; 2]) -> i64 {
    for _ in 0..4 {
        ends[1].progress();
        ends[0].progress();
    }
    let queue_pair = ends[0].engine.get(ends[0].number);
    queue_pair.map_or(-1, urds_verbs::queue_pair::QueuePair::outstanding_requests)
}

#[test]
fn a_message_that_is_taken_needs_no_receive_completes_nothing_and_is_acknowledged() {
    let (mut ends, taker) = pair_with_taker(&[]);
    for (place, length) in LENGTHS.into_iter().enumerate() {
        let bytes = written(&ends[0], 7 + u8::try_from(place).unwrap_or(0), length);
        ends[0].send(1, 0, length);
        let looked = look(&mut ends[1], Takers::Now);
        assert_eq!((looked.bytes, looked.has_left), (length, false));
        assert!(taker.taken() == [bytes], "of {length} bytes");
        assert!(ends[1].poll().is_none());
        assert_eq!(unacknowledged(&mut ends), 0);
    }
    assert!(
        taker
            .may_wait
            .lock()
            .expect("as above")
            .iter()
            .all(|one| !one)
    );
}

#[test]
fn each_message_goes_to_a_receive_where_takers_are_not_asked() {
    let (mut ends, taker) = pair_with_taker(&[]);
    ends[1].receive(9, 0, LONG_BYTES);
    ends[0].send(1, 0, LONG_BYTES);
    assert!(ends[1].progress());
    assert_eq!(ends[1].poll().map(|done| done.wr_id), Some(9));
    assert_eq!(taker.taken().len(), 0);
}

#[test]
fn behind_a_message_in_a_receive_none_is_offered_until_that_was_polled() {
    let (mut ends, taker) = pair_with_taker(&[Taking::Left]);
    for id in 0..4 {
        ends[1].receive(id, 0, LONG_BYTES);
    }
    for id in 0..3 {
        ends[0].send(1, 0, 8);
        look(&mut ends[1], Takers::Now);
        if id > 0 {
            assert_eq!(ends[1].poll().map(|done| done.wr_id), Some(id - 1));
        }
    }
    assert_eq!(taker.taken().len(), 0, "all went to receives");
    assert_eq!(ends[1].poll().map(|done| done.wr_id), Some(2));
    ends[0].send(1, 0, 8);
    look(&mut ends[1], Takers::Now);
    assert_eq!((taker.taken().len(), ends[1].poll()), (1, None));
}

#[test]
fn a_message_of_several_packets_is_not_offered() {
    let (mut ends, taker) = pair_with_taker(&[]);
    let length = MTU_BYTES as usize + 1;
    ends[1].receive(9, 0, length);
    ends[0].send(1, 0, length);
    look(&mut ends[1], Takers::Now);
    assert_eq!(
        ends[1].poll().map(|done| done.byte_len),
        Some(length as u64)
    );
    assert_eq!(taker.taken().len(), 0);
}

#[test]
fn a_message_that_comes_again_stays_where_it_is_and_so_does_all_behind_it() {
    let (mut ends, taker) = pair_with_taker(&[Taking::Taken, Taking::Later, Taking::Later]);
    let mut sent = Vec::new();
    for first in 0..12 {
        sent.push(written(&ends[0], first, LONG_BYTES));
        ends[0].send(1, 0, LONG_BYTES);
    }
    for _ in 0..2 {
        let looked = look(&mut ends[1], Takers::NowOrLater);
        assert!(looked.has_left);
        assert!(ends[1].channels.has_more() && !ends[1].channels.is_quiet(&ends[1].engine));
        assert!(!ends[1].channels.sleep(), "which would free its place");
    }
    for first in 100..110 {
        // As much as there is room for: none of it overwrites what waits.
        written(&ends[0], first, LONG_BYTES);
        ends[0].send(1, 0, LONG_BYTES);
    }
    let received = ends[1].engine.counters.received;
    look(&mut ends[1], Takers::NowOrLater);
    let found = taker.taken();
    assert!(
        found.len() >= sent.len() && found[..12] == sent,
        "each once, in order"
    );
    let count = ends[1].engine.counters.received - received;
    assert_eq!(
        count + 1,
        found.len() as u64,
        "one that comes again is counted once"
    );
}

#[test]
fn one_that_comes_again_goes_to_a_receive_where_none_is_offered() {
    let (mut ends, taker) = pair_with_taker(&[Taking::Later]);
    let bytes = written(&ends[0], 5, LONG_BYTES);
    ends[1].receive(9, 0, LONG_BYTES);
    ends[0].send(1, 0, LONG_BYTES);
    assert!(look(&mut ends[1], Takers::NowOrLater).has_left);
    assert!(ends[1].progress());
    assert_eq!(ends[1].poll().map(|done| done.wr_id), Some(9));
    let mut found = vec![0; LONG_BYTES];
    ends[1].memory.read(0, &mut found);
    assert!(found == bytes);
    assert_eq!((taker.taken().len(), unacknowledged(&mut ends)), (0, 0));
}
