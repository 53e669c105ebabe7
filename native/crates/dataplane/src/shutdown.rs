//! How mailboxes and planes end: linger, drain, orderly ends of streams, no thread left inside.
//!
//! A close waits, for a bounded time, for messages that a peer may not have; then the streams end
//! (`stream_ends`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use urds_path::Owner;

use crate::errors::{ErrorReason, Rejected};
use crate::events::Event;
use crate::plane::Plane;
use crate::state::{HostId, Lingering, MailboxId, PathId, State};
use crate::sys::epoll::Epoll;
use crate::sys::{self, descriptor};
use crate::waiting::WaitFor;

pub(crate) const DRAIN_POLL_NS: u64 = 10_000_000;
/// How long a close waits for threads to leave their calls.
const LEAVING: Duration = Duration::from_millis(200);
const LEAVING_POLL: Duration = Duration::from_millis(1);

impl State {
    /// Return whether a message, even an empty one, may not be with its peer yet.
    pub(crate) fn has_queued(&self, host: HostId, mailbox: MailboxId) -> bool {
        !self.holders(host, mailbox).is_empty()
            || self.external_messages(host, mailbox) > 0
            || self.waits_for_path(mailbox)
    }

    /// Return the paths with a message of a mailbox, even an empty one, that its peer may lack.
    fn holders(&self, host: HostId, mailbox: MailboxId) -> Vec<PathId> {
        let owner = Some(Owner(mailbox.to_u64()));
        let holds = |path: &PathId| {
            let record = self.paths.get(*path);
            record.is_some_and(|record| record.core.sender.holds(owner))
        };
        let paths = self.hosts.get(host).map(|host| host.paths.iter());
        paths.into_iter().flatten().copied().filter(holds).collect()
    }

    /// Request acknowledgements on the paths: a call waits for them.
    fn request_acks(&mut self, paths: &[PathId]) {
        for &path in paths {
            if let Some(record) = self.paths.get_mut(path) {
                record.core.request_ack();
            }
        }
    }

    /// Remove a mailbox's messages on every path of its address, to one port or all; return how
    /// many.
    pub(crate) fn cancel_everywhere(
        &mut self,
        host: HostId,
        mailbox: MailboxId,
        port: Option<u16>,
    ) -> usize {
        let paths = self
            .hosts
            .get(host)
            .map(|host| host.paths.clone())
            .unwrap_or_default();
        paths
            .into_iter()
            .map(|path| self.cancel_path(path, mailbox, port))
            .sum()
    }

    /// Free the port; keep what is queued for its linger time, or cancel it.
    fn unbind(&mut self, mailbox: MailboxId, linger_ns: Option<u64>) {
        let Some(record) = self.mailboxes.get_mut(mailbox) else {
            return;
        };
        record.closed = true;
        let host = record.host;
        let default_ns = self.limits.linger_ns;
        let chosen_ns = record.attached.as_ref().and_then(|one| one.linger_ns());
        let lingers = linger_ns.is_none() && chosen_ns != Some(0);
        self.shut_mailbox(mailbox);
        if lingers && self.has_queued(host, mailbox) {
            let at_ns = self.now_ns() + chosen_ns.unwrap_or(default_ns);
            self.lingering.push(Lingering {
                mailbox,
                host,
                at_ns,
            });
            self.progress_thread.want();
        } else {
            self.cancel_everywhere(host, mailbox, None);
            self.cancel_waiting_for_path(mailbox, None, None);
        }
        self.touched.insert(mailbox);
    }

    pub(crate) fn all_paths(&self) -> Vec<PathId> {
        self.hosts
            .iter()
            .flat_map(|(_, host)| host.paths.iter().copied())
            .collect()
    }

    /// Return how many messages of the paths peers have not acknowledged.
    ///
    /// Also without a stream: an orderly end acknowledges first, so a retransmit may be lost.
    fn undelivered(&self, paths: &[PathId]) -> usize {
        let paths = paths.iter().filter_map(|&path| self.paths.get(path));
        let counts = paths.map(|path| path.core.sender.counts(None));
        let on_streams: usize = counts
            .map(|(unsent, unacknowledged)| unsent + unacknowledged)
            .sum();
        on_streams + self.all_external_messages()
    }

    fn is_any_left(&self, paths: &[PathId]) -> bool {
        let mut paths = paths.iter().filter_map(|&path| self.paths.get(path));
        paths.any(|path| path.core.sender.holds(None)) || self.all_external_messages() > 0
    }

    /// Count the messages of a mailbox on a path: never sent, and not acknowledged.
    fn counts(&self, path: PathId, mailbox: MailboxId) -> (usize, usize) {
        let owner = Some(Owner(mailbox.to_u64()));
        let record = self.paths.get(path);
        record.map_or((0, 0), |record| record.core.sender.counts(owner))
    }

    /// Return how many messages of a mailbox wait to be sent or acknowledged.
    pub(crate) fn unacknowledged(&self, mailbox: MailboxId) -> usize {
        let counts = self.paths_of(mailbox).into_iter();
        let counts = counts.map(|path| self.counts(path, mailbox));
        let on_streams: usize = counts
            .map(|(unsent, unacknowledged)| unsent + unacknowledged)
            .sum();
        let host = self.mailboxes.get(mailbox).map(|record| record.host);
        on_streams + host.map_or(0, |host| self.external_messages(host, mailbox))
    }

    /// Cancel the messages of a closed mailbox whose linger time is over, and notify it.
    pub(crate) fn end_linger(&mut self, host: HostId, mailbox: MailboxId) {
        for path in self.external_holders(host, mailbox) {
            self.emit(Event::LingerEnded { path, mailbox });
        }
        let paths = self.hosts.get(host).map(|host| host.paths.clone());
        self.cancel_waiting_for_path(mailbox, None, None);
        for path in paths.unwrap_or_default() {
            let (unsent, unacknowledged) = self.counts(path, mailbox);
            let count = self.cancel_path(path, mailbox, None);
            self.counters.send_linger_over += count as u64;
            if count > 0 {
                self.emit(Event::LingerOver {
                    path,
                    unsent: unsent as u64,
                    unacknowledged: unacknowledged as u64,
                });
            }
        }
    }
}

impl Plane {
    /// Unbind; queued messages have `linger_ns` to be acknowledged (0 cancels at once), `None`
    /// gives them `Limits::linger_ns` in the background. No effect on a closed mailbox.
    ///
    /// # Errors
    /// `Interrupted`; then the mailbox is still open.
    pub fn close_mailbox(
        &self,
        mailbox: MailboxId,
        linger_ns: Option<u64>,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<(), Rejected> {
        if linger_ns.is_some_and(|linger_ns| linger_ns > 0) && !self.is_virtual() {
            self.request_acks_of(mailbox);
            self.wait(mailbox, WaitFor::Room, linger_ns, interrupted, |state| {
                let Some(record) = state.mailboxes.get(mailbox) else {
                    return Ok(Some(()));
                };
                let (host, closed) = (record.host, record.closed);
                Ok(if closed || !state.has_queued(host, mailbox) {
                    Some(())
                } else {
                    None
                })
            })?;
        }
        {
            let mut state = self.lock();
            if state
                .mailboxes
                .get(mailbox)
                .is_some_and(|record| !record.closed)
            {
                state.unbind(mailbox, linger_ns);
            }
        }
        self.flush_batches();
        self.finish_pass();
        let record = self.lock().mailboxes.remove(mailbox);
        if let Some(readiness) = record.and_then(|record| record.descriptor) {
            readiness.close();
        }
        Ok(())
    }

    /// Request acknowledgements of the messages of a mailbox, without waiting for them.
    pub fn request_acks_of(&self, mailbox: MailboxId) {
        let paths = {
            let mut state = self.lock();
            let Some(host) = state.mailboxes.get(mailbox).map(|record| record.host) else {
                return;
            };
            let paths = state.holders(host, mailbox);
            state.request_acks(&paths);
            paths
        };
        for path in paths {
            self.flush(path);
        }
    }

    /// Send what is queued, while the control plane works; return the messages left.
    pub fn drain(&self, drain_ns: u64) -> usize {
        let paths = {
            let mut state = self.lock();
            if state.closed {
                return 0;
            }
            let paths = state.all_paths();
            state.request_acks(&paths);
            paths
        };
        let deadline_ns = self.now_ns().saturating_add(drain_ns);
        loop {
            let is_over = self.is_virtual() || self.now_ns() >= deadline_ns;
            {
                let state = self.lock();
                if is_over || !state.is_any_left(&paths) {
                    return state.undelivered(&paths);
                }
            }
            for &path in &paths {
                self.flush(path);
            }
            self.arm_devices();
            self.serve_ready(Some(DRAIN_POLL_NS));
            self.serve_due();
        }
    }

    /// Drain, end the streams in order, wake all threads; return the messages left.
    pub fn close(&self, drain_ns: u64) -> usize {
        if self.lock().closed {
            return 0;
        }
        let left = self.drain(drain_ns);
        self.end_streams(0);
        self.shut_all();
        self.wait_until_empty();
        left
    }

    /// Fail every call with EIO from now on and wake all threads: the control plane failed.
    pub fn fail(&self) {
        self.lock().closed_reason = ErrorReason::NodeFailed;
        self.shut_all();
        self.end_streams(0);
    }

    /// Close the plane's own descriptors; after `close`, with no thread in `help`. They are not
    /// closed while a call is still inside.
    pub fn release(&self) {
        if self.lock().wait_queue.is_empty() {
            self.progress_thread.close();
            self.poll_set.close();
            self.kick.close();
        }
    }

    fn shut_all(&self) {
        {
            let mut state = self.lock();
            state.closed = true;
            for mailbox in state.mailboxes.ids() {
                if let Some(record) = state.mailboxes.get_mut(mailbox)
                    && !record.closed
                {
                    record.closed = true;
                    state.shut_mailbox(mailbox);
                    state.touched.insert(mailbox); // pollers of its descriptor must wake as well
                }
            }
            state.progress_thread.want_now();
        }
        self.finish_pass();
    }

    /// Wait, for a while, until every waiter has left: none may find our descriptors closed.
    fn wait_until_empty(&self) {
        let deadline = Instant::now() + LEAVING;
        while Instant::now() < deadline && !self.lock().wait_queue.is_empty() {
            sys::pause(LEAVING_POLL);
        }
    }
}

// -- forks
//
// The child of a fork: every call on the plane fails, and nothing shared is touched.

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
