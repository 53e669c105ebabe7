//! Copies into memory of the other side, which it may withdraw at any time.
//!
//! | writer | owner of the memory |
//! |---|---|
//! | placing := 1 | generation := another one |
//! | fence | fence |
//! | compares the generation, copies | waits until placing was seen 0 once |
//! | placing := 0 (release) | (acquire) |
//!
//! Both fences are in one total order: the writer sees the new generation, or the owner sees it
//! placing and waits for its copy.

use super::{Rule, SlotMemory, Word};
use crate::atomics::{AtomicU64, Ordering, fence};
use crate::rules::holds;

/// Copy into memory whose generation is still that of its mapping; return whether it was.
#[inline]
pub fn place<M: SlotMemory>(
    memory: &M,
    generation: &AtomicU64,
    expected: u64,
    copy: impl FnOnce(),
) -> bool {
    let word = memory.word(Word::Placing);
    let is_early = !holds(Rule::CompareAfterPlacing);
    let before = is_early && generation.load(Ordering::Relaxed) == expected;
    word.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    let is_valid = before || (!is_early && generation.load(Ordering::Relaxed) == expected);
    if is_valid {
        copy();
    }
    word.store(0, Ordering::Release);
    is_valid
}

/// Return whether the writer says that it is copying.
#[inline]
pub fn is_placing<M: SlotMemory>(memory: &M) -> bool {
    memory.word(Word::Placing).load(Ordering::Acquire) != 0
}
