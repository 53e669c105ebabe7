//! One direction of a verbs channel: slots with stamps and a ring for longer payload, between two
//! processes without mutual trust. The layout is that of docs/protocol/verbs-channel.md.
//!
//! A slot is published by its *stamp*, the last store into it, which names the slot's ordinal; so a
//! reader looks at one word, in the cache line of the packet itself. Both sides count slots and bytes of
//! the ring in private memory: no place is told, so a writer that lies can only send wrong packets. What
//! a reader has freed it tells in eighths; the writer checks it. Fields are copied out once and then
//! checked, payload is copied once to its place by the caller.
//!
//! Sleepers use the words of [`crate::sleep`]. `native/loom` tests these files in every
//! interleaving of a writer and a reader, with its own `atomics`.

// By path: tests compile these files with other words.
#[path = "slots/fields.rs"]
mod fields;
#[path = "slots/placing.rs"]
mod placing;
#[path = "slots/reader.rs"]
mod reader;
#[path = "slots/writer.rs"]
mod writer;

pub use fields::{Fields, OPERANDS_BYTES, flags, kinds};
pub use placing::{is_placing, place};
pub use reader::{Reader, Taken};
pub use writer::Writer;

use crate::atomics::{AtomicU32, AtomicU64};

/// Slots of a direction.
pub const SLOTS: usize = 2048;
/// Bytes of a slot.
pub const SLOT_BYTES: usize = 128;
/// Bytes of a direction's ring.
pub const RING_BYTES: usize = 1 << 20;
/// The longest payload of a packet.
pub const PAYLOAD_BYTES_MAX: usize = 256 << 10;
/// The longest payload that lies in its slot.
pub const INLINE_BYTES: usize = SLOT_BYTES - AT_PAYLOAD;

const AT_FIELDS: usize = 8;
const AT_PAYLOAD: usize = 48;
pub(crate) const RING_STEP_BYTES: usize = 64;
pub(crate) const EIGHTHS: usize = 8;

/// What the other side wrote that breaks the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelError {
    /// Count of freed slots or bytes that went back, or is beyond what was published.
    Freed,
    /// Zeros that are none, or a number of more than 24 bits.
    Fields,
    Kind,
    Flags,
    /// Payload that is longer than its kind may have, or not as long as it must be.
    Payload,
}

/// A rule that a test may break, see `crate::rules`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The stamp is stored after the payload.
    StampLast,
    /// Who tells what was freed looks whether the writer sleeps.
    LookAfterTelling,
    /// A side that has set its word looks again.
    LookAgain,
    /// The generation is compared after *placing* was set.
    CompareAfterPlacing,
}

/// A word of a direction that is 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Set by the reader, cleared by both.
    ReaderAsleep,
    /// Set by the writer, cleared by both.
    WriterAsleep,
    /// The writer copies into mapped memory of the reader's side.
    Placing,
    /// The writer publishes no more.
    Ended,
    /// Number of the writer's processor plus 1; a hint.
    Processor,
}

/// Counts that the reader tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    Slots,
    Ring,
    /// Bytes that were taken of a stream.
    Bytes,
}

/// Memory of a direction: its words, and its slots with the ring behind them.
pub trait SlotMemory {
    /// Power of two; the product's is the default.
    const SLOTS: usize = SLOTS;
    /// Power of two and multiple of 64; the product's is the default.
    const RING_BYTES: usize = RING_BYTES;
    /// As `RING_BYTES`, for a payload.
    const PAYLOAD_BYTES_MAX: usize = PAYLOAD_BYTES_MAX;

    /// Return a word.
    fn word(&self, word: Word) -> &AtomicU32;

    /// Return a count that the reader tells.
    fn freed(&self, which: Freed) -> &AtomicU64;

    /// Return the stamp of the slot at a place.
    fn stamp(&self, place: usize) -> &AtomicU64;

    /// Copy bytes in; `at` counts from the first slot.
    fn copy_in(&self, at: usize, bytes: &[u8]);

    /// Copy bytes out, whatever is there at the moment; `at` counts from the first slot.
    fn copy_out(&self, at: usize, bytes: &mut [u8]);

    /// Have the processor fetch the cache line of a place; `at` counts from the first slot. A hint.
    fn prefetch(&self, _at: usize) {}
}

/// Return what the upper half of the stamp of slot `number` is.
#[inline]
pub(crate) fn ordinal(number: u64) -> u32 {
    // Below 2^32 - 1: it fits, and is not 0 with one more.
    u32::try_from(number % u64::from(u32::MAX)).map_or(0, |rest| rest + 1)
}

/// Return where slot `number` begins, from the first slot on, and its place among the slots.
#[inline]
pub(crate) fn slot_place<M: SlotMemory>(number: u64) -> (usize, usize) {
    let place = low(number) & (M::SLOTS - 1);
    (place * SLOT_BYTES, place)
}

/// Return a count's low bits, of which masks take what they need.
#[inline]
#[allow(clippy::cast_possible_truncation)] // on purpose
pub(crate) fn low(number: u64) -> usize {
    number as usize
}

/// Where payload goes in the ring of a direction, for both sides alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RingRange {
    /// From the first slot on.
    at: usize,
    /// Position after it.
    end: u64,
}

/// Return where `bytes` go that come after `position`: in one piece, so some bytes may be skipped.
#[inline]
fn ring_range<M: SlotMemory>(position: u64, bytes: usize) -> RingRange {
    let length = bytes.next_multiple_of(RING_STEP_BYTES);
    let offset = low(position) & (M::RING_BYTES - 1);
    let is_split = offset + length > M::RING_BYTES;
    let skipped = if is_split { M::RING_BYTES - offset } else { 0 };
    RingRange {
        at: M::SLOTS * SLOT_BYTES + if is_split { 0 } else { offset },
        end: position.wrapping_add((skipped + length) as u64),
    }
}

#[cfg(test)]
#[path = "slots/format_tests.rs"]
mod format_tests;
#[cfg(test)]
#[path = "slots/kill_tests.rs"]
mod kill_tests;
#[cfg(test)]
#[path = "slots/tests.rs"]
mod tests;
