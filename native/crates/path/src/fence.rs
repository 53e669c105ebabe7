//! A place in a path's queue that another path waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Closed until the peer has every message queued before it on its path.
///
/// Fan-out moves a socket from path 0 to another; later messages there must not overtake those left
/// behind. Clones are the same fence. One that is on several paths opens when it has passed on all.
/// Read and opened under the plane's lock only, which orders it; the atomic makes it `Send` and
/// nothing more. Source: linux v7.0 (mprds catch-up, see docs/protocol/rds-tcp.md).
#[derive(Clone, Debug)]
pub struct Fence(Arc<AtomicU32>); // on how many paths it is closed

impl Default for Fence {
    fn default() -> Self {
        Self(Arc::new(AtomicU32::new(1)))
    }
}

impl Fence {
    /// Return a closed fence.
    pub fn new() -> Self {
        Self::default()
    }

    /// Return a fence for so many paths.
    pub fn on_paths(count: u32) -> Self {
        Self(Arc::new(AtomicU32::new(count)))
    }

    /// Whether messages that wait for it may leave.
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Note that it has passed on one path; once for each.
    pub(crate) fn open(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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

    #[test]
    fn a_fence_on_two_paths_opens_with_the_second() {
        let one = Fence::on_paths(2);
        one.open();
        assert!(!one.is_open());
        one.open();
        assert!(one.is_open());
    }
}
