//! Descriptors that the plane owns, and which of them a child of a fork must close.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// One bit per descriptor number; a system gives no higher ones by default (`fs.nr_open`).
/// Untouched pages of it take no memory.
static OWNED: [AtomicU64; 1 << 14] = [const { AtomicU64::new(0) }; 1 << 14];

fn bit_of(descriptor: i32) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(descriptor).ok()?;
    Some((OWNED.get(number / 64)?, 1 << (number % 64)))
}

/// A descriptor, closed once: by `close`, when it is dropped, or in the child of a fork.
#[derive(Debug)]
pub struct Descriptor(AtomicI32);

impl Descriptor {
    /// Own a descriptor from now on.
    pub fn new(descriptor: i32) -> Self {
        if let Some((word, bit)) = bit_of(descriptor) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Self(AtomicI32::new(descriptor))
    }

    /// Return the number, -1 once closed: every call with it then fails.
    pub fn get(&self) -> i32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Close it, once.
    pub fn close(&self) {
        let descriptor = self.0.swap(-1, Ordering::Relaxed);
        // First the bit, or the child of a fork in between would close a number twice. Without the
        // bit it was closed in this child of a fork, with those of another plane.
        let is_ours = bit_of(descriptor)
            .is_none_or(|(word, bit)| word.fetch_and(!bit, Ordering::Relaxed) & bit != 0);
        if descriptor >= 0 && is_ours {
            close(descriptor);
        }
    }

    /// Leave it open, or already closed: in the child of a fork.
    pub fn forget(&self) {
        self.0.store(-1, Ordering::Relaxed);
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.close();
    }
}

/// Close every descriptor of every plane: in the child of a fork, where no plane lives on.
///
/// Plain `close` only: poll sets and connections are the parent's.
pub fn close_all_in_child() {
    for (index, word) in OWNED.iter().enumerate() {
        if word.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let number = index * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            if let Ok(descriptor) = i32::try_from(number) {
                close(descriptor);
            }
        }
    }
}

fn close(descriptor: i32) {
    // SAFETY: the number is ours: `OWNED` and the swaps above ensure that it is closed once.
    unsafe { libc::close(descriptor) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(descriptor: i32) -> bool {
        bit_of(descriptor).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    #[test]
    fn a_descriptor_is_closed_once_and_not_after_the_child_closed_it() {
        // Numbers that no other test has.
        let ours = Descriptor::new(900_001);
        assert!(marked(900_001));
        ours.close();
        assert!(!marked(900_001) && ours.get() == -1);
        let theirs = Descriptor::new(900_002);
        let (word, bit) = bit_of(900_002).expect("it is low");
        word.fetch_and(!bit, Ordering::Relaxed); // as `close_all_in_child` does
        drop(theirs);
        assert!(bit_of(i32::MAX).is_none() && bit_of(-1).is_none());
    }
}
