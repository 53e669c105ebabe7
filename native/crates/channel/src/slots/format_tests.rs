//! Where everything lies, and what a reader does not take.

use std::sync::atomic::Ordering;

use super::tests::{real, send, write};
use super::*;
use crate::channel_memory::{ChannelMemory, Direction, FILE_BYTES};
use crate::sys::{area, raw};
use crate::test_memory::Own;

const WHOLE: u8 = flags::FIRST | flags::LAST;

fn of(kind: u8, flags: u8) -> Fields {
    Fields {
        kind,
        flags,
        ..Fields::default()
    }
}

fn stamp(ordinal: u64, bytes: u64) -> u64 {
    ordinal << 32 | bytes
}

/// The places of docs/protocol/verbs-channel.md.
#[test]
fn the_file_is_laid_out_as_its_page_says() {
    assert_eq!(FILE_BYTES, 2_625_536);
    let (_, memory) = real();
    for (number, slots) in [(0, 4096), (1, 1_314_816)] {
        let direction = memory.direction(number);
        let words = number * 2048;
        assert_eq!(direction.place(0).1, slots);
        let (area, _) = direction.place(0);
        let words = [
            (Word::ReaderAsleep, words + 256),
            (Word::WriterAsleep, words + 384),
            (Word::Placing, words + 512),
            (Word::Ended, words + 640),
            (Word::Processor, words + 768),
        ];
        for (word, at) in words {
            direction.word(word).store(9, Ordering::Relaxed);
            assert_eq!(area.word(at).load(Ordering::Relaxed), 9);
        }
        for (freed, at) in [(Freed::Slots, 128), (Freed::Ring, 136)] {
            direction.freed(freed).store(11, Ordering::Relaxed);
            assert_eq!(area.long(number * 2048 + at).load(Ordering::Relaxed), 11);
        }
        direction.freed(Freed::Slots).store(0, Ordering::Relaxed);
        direction.freed(Freed::Ring).store(0, Ordering::Relaxed);
        check_slots(&direction);
    }
}

fn check_slots(direction: &Direction<'_>) {
    let (area, slots) = direction.place(0);
    let mut writer = Writer::default();
    let fields = write(0x0012_3456);
    assert_eq!(
        writer.put(direction, &fields, 3, |at| direction.copy_in(at, b"abc")),
        Ok(true)
    );
    let mut slot = [0; SLOT_BYTES];
    area.copy_out(slots, &mut slot);
    assert_eq!(slot[..8], stamp(1, 3).to_ne_bytes());
    assert_eq!(slot[8..12], [1, 0x83, 0, 0]);
    assert_eq!(slot[12..16], 7u32.to_ne_bytes());
    assert_eq!(slot[16..20], 0x0012_3456u32.to_ne_bytes());
    assert_eq!(slot[20..24], 0x0012_3456u32.to_ne_bytes());
    assert_eq!(slot[24..28], 0u32.to_ne_bytes());
    assert_eq!(slot[28..32], 0x00FF_FFFEu32.to_ne_bytes());
    assert_eq!(slot[32..40], (u64::MAX - 5).to_ne_bytes());
    assert_eq!(slot[40..44], 0xDEAD_BEEFu32.to_ne_bytes());
    assert_eq!(slot[48..51], *b"abc");
    assert_eq!(
        writer.put(direction, &fields, 81, |at| assert_eq!(
            at,
            SLOTS * SLOT_BYTES
        )),
        Ok(true)
    );
}

/// Return what a reader says to a slot that a writer without checks has published.
fn verdict(
    fields: &Fields,
    bytes: usize,
    spoil: impl Fn(&Own),
) -> Result<Option<Taken>, ChannelError> {
    let own = Own::new(Own::RING_BYTES);
    let mut writer = Writer::default();
    assert_eq!(writer.put(&own, fields, bytes, |_| ()), Ok(true));
    spoil(&own);
    Reader::default().take(&own, &mut || ())
}

#[test]
fn slots_of_each_kind_are_taken() {
    let good = [
        (of(kinds::SEND, WHOLE | flags::INVALIDATE), 4096),
        (
            of(kinds::WRITE, WHOLE | flags::PLACED | flags::IMMEDIATE),
            0,
        ),
        (of(kinds::READ_REQUEST, WHOLE), 0),
        (of(kinds::ATOMIC_ADD, WHOLE), 40),
        (of(kinds::READ_RESPONSE, flags::LAST), 17),
        (of(kinds::ATOMIC_RESPONSE, WHOLE), 0),
        (of(kinds::ACK, 0), 0),
        (of(kinds::DATAGRAM, WHOLE), 4096),
    ];
    for (fields, bytes) in good {
        let found = verdict(&fields, bytes, |_| ()).map(|taken| taken.map(|taken| taken.fields));
        assert_eq!(found, Ok(Some(fields)));
    }
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    let numbers = [
        (
            Fields {
                target: 1 << 24,
                ..send(1)
            },
            ChannelError::Fields,
        ),
        (
            Fields {
                psn: 1 << 24,
                ..send(1)
            },
            ChannelError::Fields,
        ),
        (
            Fields {
                acknowledged: 1,
                ..send(1)
            },
            ChannelError::Fields,
        ),
        (
            Fields {
                acknowledged: 1 << 24,
                ..write(1)
            },
            ChannelError::Fields,
        ),
    ];
    for (fields, error) in numbers {
        assert_eq!(verdict(&fields, 0, |_| ()), Err(error), "{fields:?}");
    }
}

#[test]
fn slots_that_no_writer_publishes_are_refused() {
    let wrong = [
        (7, WHOLE, 0, ChannelError::Kind),
        (32, WHOLE, 0, ChannelError::Kind),
        (255, WHOLE, 0, ChannelError::Kind),
        (
            kinds::WRITE,
            WHOLE | flags::INVALIDATE,
            0,
            ChannelError::Flags,
        ),
        (
            kinds::WRITE,
            flags::FIRST | flags::PLACED,
            0,
            ChannelError::Flags,
        ),
        (kinds::SEND, WHOLE | flags::PLACED, 0, ChannelError::Flags),
        (
            kinds::WRITE,
            WHOLE | flags::PLACED,
            1,
            ChannelError::Payload,
        ),
        (kinds::ATOMIC_SWAP, WHOLE, 39, ChannelError::Payload),
        (kinds::ACK, 0, 1, ChannelError::Payload),
        (kinds::READ_REQUEST, WHOLE, 300, ChannelError::Payload),
    ];
    for (kind, flags, bytes, error) in wrong {
        assert_eq!(
            verdict(&of(kind, flags), bytes, |_| ()),
            Err(error),
            "{kind}"
        );
    }
    let zero = |own: &Own| own.copy_in(10, &[1]);
    assert_eq!(verdict(&send(1), 0, zero), Err(ChannelError::Fields));
    let long = |own: &Own| own.stamps[0].store(stamp(1, 10_241), Ordering::Relaxed);
    assert_eq!(verdict(&send(1), 0, long), Err(ChannelError::Payload));
}

#[test]
fn memory_of_another_length_is_refused() {
    let (file, _area) = area::make(FILE_BYTES + 4096).expect("memory");
    assert_eq!(
        ChannelMemory::map(file).err().map(|error| error.0),
        Some(libc::EINVAL)
    );
    raw::close(file);
}
