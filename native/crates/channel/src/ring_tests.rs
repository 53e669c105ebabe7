use std::cell::Cell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::atomic::AtomicU8;
use std::thread;

use proptest::prelude::*;

use super::*;

/// A ring in private memory.
struct Own {
    control: Control,
    bytes: Box<[AtomicU8]>,
}

impl Own {
    fn new(ring_bytes: usize) -> Self {
        Self {
            control: Control::default(),
            bytes: (0..ring_bytes).map(|_| AtomicU8::new(0)).collect(),
        }
    }
}

impl RingMemory for Own {
    fn control(&self) -> &Control {
        &self.control
    }

    fn ring_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) {
        for (place, &byte) in self.bytes[at..at + bytes.len()].iter().zip(bytes) {
            place.store(byte, Ordering::Relaxed);
        }
    }

    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        let places = &self.bytes[at..at + bytes.len()];
        for (place, byte) in places.iter().zip(bytes) {
            *byte = place.load(Ordering::Relaxed);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<u8>, usize),
    Read(usize, usize),
    ReaderSleeps(usize),
    WriterSleeps,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (proptest::collection::vec(any::<u8>(), 0..300), 0usize..300)
            .prop_map(|(bytes, cut)| Step::Write(bytes, cut)),
        (0usize..200, 0usize..200).prop_map(|(first, second)| Step::Read(first, second)),
        (0usize..400).prop_map(Step::ReaderSleeps),
        Just(Step::WriterSleeps),
    ]
}

proptest! {
    /// A ring is a queue of bounded length; a sleeping side gets one doorbell, when it matters.
    #[test]
    fn a_ring_is_a_queue(steps in proptest::collection::vec(step(), 0..200), bits in 1u32..9) {
        let ring = Own::new(1 << bits);
        let length = ring.ring_bytes();
        let (mut writer, mut reader) = (Writer::default(), Reader::default());
        let mut model = VecDeque::new();
        let (mut wanted, mut waits) = (None, false);
        for step in steps {
            let rung = Cell::new(0);
            let mut doorbell = || rung.set(rung.get() + 1);
            match step {
                Step::Write(bytes, cut) => {
                    let (first, second) = bytes.split_at(cut.min(bytes.len()));
                    let pieces = [IoSlice::new(first), IoSlice::new(second)];
                    let taken = writer.write(&ring, &pieces, &mut doorbell).unwrap();
                    prop_assert_eq!(taken, bytes.len().min(length - model.len()));
                    model.extend(&bytes[..taken]);
                    let is_due = taken > 0 && wanted.is_some_and(|wanted| model.len() >= wanted);
                    prop_assert_eq!(rung.get(), usize::from(is_due));
                    if is_due {
                        wanted = None;
                    }
                }
                Step::Read(first, second) => {
                    let (mut one, mut other) = (vec![0; first], vec![0; second]);
                    let taken = reader.read(&ring, &mut one, &mut other, &mut doorbell).unwrap();
                    prop_assert_eq!(taken, model.len().min(first + second));
                    if !model.is_empty() {
                        wanted = None;
                        let is_due = waits && 2 * (model.len() - taken) <= length;
                        prop_assert_eq!(rung.get(), usize::from(is_due));
                        waits &= !is_due;
                    }
                    one.extend(other);
                    let expected: Vec<u8> = model.drain(..taken).collect();
                    let (kept, second_kept) = (taken.min(first), taken.saturating_sub(first));
                    prop_assert_eq!(&one[..kept], &expected[..kept]);
                    prop_assert_eq!(&one[first..first + second_kept], &expected[kept..]);
                }
                Step::ReaderSleeps(bytes) => {
                    let bound = bytes.clamp(1, (length / 2).max(1));
                    let asleep = reader.sleep(&ring, bytes).unwrap();
                    prop_assert_eq!(asleep, model.len() < bound);
                    wanted = asleep.then_some(bound);
                }
                Step::WriterSleeps => {
                    waits = writer.sleep(&ring).unwrap();
                    prop_assert_eq!(waits, model.len() == length);
                }
            }
            prop_assert_eq!(writer.pending(&ring).unwrap(), model.len());
            prop_assert_eq!(reader.available(&ring).unwrap(), model.len());
        }
    }

    /// Whatever position the other side writes: a protocol error or a count within the ring.
    #[test]
    fn hostile_positions_are_refused(
        honest in 0usize..100, position in any::<u64>(), near in -300i64..300, is_near in any::<bool>(),
    ) {
        let ring = Own::new(128);
        let (mut writer, mut reader) = (Writer::default(), Reader::default());
        let bytes = [7u8; 100];
        writer.write(&ring, &[IoSlice::new(&bytes[..honest])], &mut || {}).unwrap();
        let mut taken = [0u8; 50];
        let read = reader.read(&ring, &mut taken, &mut [], &mut || {}).unwrap();
        writer.pending(&ring).unwrap();
        let position = if is_near { 100u64.wrapping_add_signed(near) } else { position };
        ring.control.tail.0.store(position, Ordering::Relaxed);
        match writer.pending(&ring) {
            Ok(pending) => {
                prop_assert!((read as u64..=honest as u64).contains(&position));
                prop_assert_eq!(pending as u64, honest as u64 - position);
                let free = 128 - pending;
                let written = writer.write(&ring, &[IoSlice::new(&[1u8; 200])], &mut || {});
                prop_assert_eq!(written, Ok(free));
            }
            Err(ProtocolError) => prop_assert!(!(read as u64..=honest as u64).contains(&position)),
        }
        ring.control.tail.0.store(read as u64, Ordering::Relaxed);
        ring.control.head.0.store(position, Ordering::Relaxed);
        match reader.available(&ring) {
            Ok(here) => {
                prop_assert!(here <= 128);
                let mut all = [0u8; 200];
                prop_assert_eq!(reader.read(&ring, &mut all, &mut [], &mut || {}), Ok(here));
            }
            Err(ProtocolError) => prop_assert!(
                position < honest as u64 || position > read as u64 + 128
            ),
        }
    }
}

#[test]
fn positions_run_past_the_end_of_their_counts() {
    let ring = Own::new(64);
    let start = u64::MAX - 100;
    ring.control.head.0.store(start, Ordering::Relaxed);
    ring.control.tail.0.store(start, Ordering::Relaxed);
    let mut writer = Writer {
        head: start,
        tail: start,
    };
    let mut reader = Reader {
        head: start,
        tail: start,
    };
    for round in 0..20u8 {
        let bytes = [round; 17];
        let taken = writer.write(&ring, &[IoSlice::new(&bytes)], &mut || {});
        assert_eq!(taken, Ok(17));
        let mut read = [0; 32];
        assert_eq!(reader.read(&ring, &mut read, &mut [], &mut || {}), Ok(17));
        assert_eq!(read[..17], bytes);
    }
}

#[test]
fn an_end_wakes_a_reader_that_goes_to_sleep() {
    let ring = Own::new(64);
    let (writer, mut reader) = (Writer::default(), Reader::default());
    assert_eq!(reader.sleep(&ring, 1), Ok(true));
    writer.end(&ring.control);
    assert!(Reader::has_ended(&ring.control));
    assert_eq!(reader.sleep(&ring, 1), Ok(false));
}

/// A doorbell that threads can wait for.
#[derive(Default)]
struct Doorbell(parking_lot::Mutex<u32>, parking_lot::Condvar);

impl Doorbell {
    fn ring(&self) {
        *self.0.lock() += 1;
        self.1.notify_all();
    }

    fn wait(&self) {
        let mut rung = self.0.lock();
        while *rung == 0 {
            let late = self
                .1
                .wait_for(&mut rung, std::time::Duration::from_secs(20));
            assert!(!late.timed_out(), "a wake-up was lost");
        }
        *rung -= 1;
    }
}

fn byte_at(at: usize) -> u8 {
    at.to_le_bytes()[0]
}

/// Two threads, a tiny ring, and both asleep as often as possible: a lost doorbell hangs it.
#[test]
fn no_doorbell_is_lost() {
    const BYTES: usize = 200_000;
    for wanted in [1, 7] {
        let ring = Own::new(16);
        let (to_reader, to_writer) = (Doorbell::default(), Doorbell::default());
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut writer = Writer::default();
                let mut at = 0;
                while at < BYTES {
                    let bytes: Vec<u8> = (at..BYTES.min(at + 5)).map(byte_at).collect();
                    let taken = writer
                        .write(&ring, &[IoSlice::new(&bytes)], &mut || to_reader.ring())
                        .unwrap();
                    at += taken;
                    if taken == 0 && writer.sleep(&ring).unwrap() {
                        to_writer.wait();
                    }
                }
                writer.end(&ring.control);
                to_reader.ring();
            });
            let mut reader = Reader::default();
            let mut at = 0;
            loop {
                let has_ended = Reader::has_ended(&ring.control);
                let mut bytes = [0; 11];
                let taken = reader
                    .read(&ring, &mut bytes, &mut [], &mut || to_writer.ring())
                    .unwrap();
                for byte in &bytes[..taken] {
                    assert_eq!(*byte, byte_at(at));
                    at += 1;
                }
                if taken == 0 && has_ended {
                    break;
                }
                if reader.sleep(&ring, wanted).unwrap() {
                    to_reader.wait();
                }
            }
            assert_eq!(at, BYTES);
        });
    }
}
