//! The child of a fork: every call on the plane fails, and nothing shared is touched.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::errors::ErrorReason;
use crate::plane::Plane;
use crate::state::State;
use crate::sys::descriptor;
use crate::sys::epoll::Epoll;

impl Plane {
    /// In the child of a fork: have every call fail with `AfterFork`, and close copies of the
    /// descriptors that planes own.
    ///
    /// Takes no lock, for its holder may not exist here: an empty state replaces the old one; every
    /// handle is stale in it, and the old one is never touched again. Makes no `epoll_ctl` and no
    /// `shutdown`: the poll set and the connections are the parent's. Streams that are the caller's
    /// own objects are closed by the caller.
    pub fn abandon_in_child(self: &Arc<Self>) {
        self.poll_set.close();
        self.kick.close();
        self.progress_thread.close();
        descriptor::close_all_in_child();
        let (limits, generation) = (urds_path::Limits::default(), None);
        let mut empty = State::new(limits, self.clock.clone(), generation, Epoll::closed());
        empty.closed = true;
        empty.closed_reason = ErrorReason::AfterFork;
        drop(self.after_fork.set(Mutex::new(empty)));
        // Never freed: that would close descriptor numbers again, which may be reused by then.
        std::mem::forget(Arc::clone(self));
    }
}
