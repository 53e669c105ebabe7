//! The child of a fork: the plane refuses everything there and touches nothing that is shared.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::plane::Plane;
use crate::refusal::Refusal;
use crate::state::State;
use crate::sys::descriptor;
use crate::sys::epoll::Epoll;

impl Plane {
    /// After a fork, in the child: refuse everything with `AfterFork` and close copies of the
    /// descriptors that planes own.
    ///
    /// Takes no lock, for its holder may not be here: an empty state takes the place of the old
    /// one, in which every handle is stale, and the old one is never touched again. No `epoll_ctl`
    /// and no `shutdown` is made: the poll set and the connections are the parent's. Streams that
    /// are objects of the caller's are closed by the caller.
    pub fn abandon_in_child(self: &Arc<Self>) {
        self.poll_set.close();
        self.kick.close();
        self.helper.close();
        descriptor::close_all_in_child();
        let (limits, generation) = (urds_path::Limits::default(), None);
        let mut empty = State::new(limits, self.clock.clone(), generation, Epoll::closed());
        empty.closed = true;
        empty.closed_refusal = Refusal::AfterFork;
        drop(self.after_fork.set(Mutex::new(empty)));
        // Never freed: that would close numbers a second time, which mean others by then.
        std::mem::forget(Arc::clone(self));
    }
}
