//! A place in a path's queue that another path waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Closed until the peer has every message queued before it on its path.
///
/// Fan-out moves a socket from path 0 to another; later messages there must not overtake those left
/// behind. Clones are the same fence. Read and opened under the plane's lock only, which orders it;
/// the atomic makes it `Send` and nothing more. Source: linux v7.0 (mprds catch-up, see
/// docs/protocol/rds-tcp.md).
#[derive(Clone, Debug, Default)]
pub struct Fence(Arc<AtomicBool>);

impl Fence {
    /// Return a closed fence.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether messages that wait for it may leave.
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn open(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Fence;

    #[test]
    fn a_clone_opens_with_its_fence_and_no_other() {
        let (one, other) = (Fence::new(), Fence::new());
        let same = one.clone();
        one.open();
        assert!(same.is_open() && same.is(&one));
        assert!(!other.is_open() && !other.is(&one));
    }
}
