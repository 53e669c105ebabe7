//! Other calls on a mailbox: settings, routes, cancelling, its descriptor.

use std::sync::Arc;

use urds_path::{Address, Owner};

use crate::errors::Rejected;
use crate::mailbox::{MailboxSettings, Place, Route};
use crate::plane::Plane;
use crate::readiness::ReadinessDescriptor;
use crate::state::{MailboxId, PathId, State};
use crate::waits::WaitFor;

/// A callback that is listed for a message or for room; see [`Plane::subscribe`].
pub type Callback = Arc<dyn Fn() + Send + Sync>;

impl Plane {
    /// Set the route to `peer`; `None` forgets it, so that the next send resolves again.
    pub fn route(&self, mailbox: MailboxId, peer: Address, route: Option<Route>) {
        if let Some(record) = self.lock().mailboxes.get_mut(mailbox) {
            record.set_route(peer, route);
        }
    }

    /// Return whether a mailbox has a route to any peer.
    pub fn has_route(&self, mailbox: MailboxId) -> bool {
        self.lock()
            .mailboxes
            .get(mailbox)
            .is_some_and(|record| !record.routes.is_empty())
    }

    /// Have `callback` called once, from any thread and without the lock; return its list's place.
    ///
    /// For a message that is there already it is called at once; for room subscribe first, then
    /// look. With a `peer` that had no room it waits for room for that peer alone.
    pub fn subscribe(
        &self,
        mailbox: MailboxId,
        what: WaitFor,
        peer: Option<Address>,
        callback: Callback,
    ) -> Place {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(record) = state.mailboxes.get_mut(mailbox) else {
            state.wait_queue.call_soon(callback);
            return Place::Room;
        };
        if what == WaitFor::Arrival {
            if record.closed || record.has_something() {
                state.wait_queue.call_soon(callback);
            } else {
                record.receive_waiters.add_callback(callback);
            }
            return Place::Arrival;
        }
        let place = peer.map_or(Place::Room, |peer| record.room_place_of(&peer));
        record.waiters_at(place).add_callback(callback);
        place
    }

    /// Remove a callback; one that was called already passes its notification to the next waiter.
    pub fn unsubscribe(&self, mailbox: MailboxId, place: Place, callback: &Callback) {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(record) = state.mailboxes.get_mut(mailbox) else {
            return;
        };
        let waiters = record.waiters_at(place);
        if !waiters.remove_callback(callback) {
            waiters.tell(1, &mut state.wait_queue); // notified, and leaves without using it
        }
    }

    /// Replace the settings; waiters and the descriptor see the change.
    pub fn configure(&self, mailbox: MailboxId, settings: MailboxSettings) {
        {
            let mut state = self.lock();
            let state = &mut *state;
            let Some(record) = state.mailboxes.get_mut(mailbox) else {
                return;
            };
            if settings.tos != record.settings.tos {
                record.forget_routes(); // routes may use other connections now
            }
            record.apply(settings, &state.limits);
            record.receive_waiters.tell_all(&mut state.wait_queue);
            state.touched.insert(mailbox);
            state.tell_room(mailbox);
        }
        self.finish_pass();
    }

    /// Remove unacknowledged messages to that address and port, or all; return how many.
    pub fn cancel(&self, mailbox: MailboxId, peer: Option<Address>, port: Option<u16>) -> usize {
        let mut count = 0;
        {
            let mut state = self.lock();
            for path in state.paths_of(mailbox) {
                let leads = state
                    .paths
                    .get(path)
                    .is_some_and(|record| peer.is_none_or(|peer| record.peer == peer));
                if leads {
                    count += state.cancel_path(path, mailbox, port);
                }
            }
            state.note_room(mailbox);
        }
        self.finish_pass();
        count
    }

    /// Return how many messages of the socket wait to be sent or acknowledged.
    #[must_use]
    pub fn unacknowledged(&self, mailbox: MailboxId) -> usize {
        self.lock().unacknowledged(mailbox)
    }

    /// Return a descriptor whose readiness is that of the socket; made on the first call.
    ///
    /// # Errors
    /// `Closed` and the like; of the system, when no descriptors are left.
    pub fn fileno(&self, mailbox: MailboxId) -> Result<i32, Rejected> {
        let descriptor = {
            let mut state = self.lock();
            let record = state.open_mailbox(mailbox)?;
            if let Some(descriptor) = &record.descriptor {
                return Ok(descriptor.descriptor());
            }
            let descriptor = Arc::new(ReadinessDescriptor::new()?);
            record.descriptor = Some(Arc::clone(&descriptor));
            record.special = true;
            state.progress_thread.want();
            descriptor
        };
        self.sync(mailbox);
        Ok(descriptor.descriptor())
    }
}

impl State {
    /// Return the paths of a mailbox's address.
    pub(crate) fn paths_of(&self, mailbox: MailboxId) -> Vec<PathId> {
        let record = self.mailboxes.get(mailbox);
        let host = record.and_then(|record| self.hosts.get(record.host));
        host.map_or_else(Vec::new, |host| host.paths.clone())
    }

    /// Remove a mailbox's messages from a path, to one port or all; return how many.
    pub(crate) fn cancel_path(
        &mut self,
        path: PathId,
        mailbox: MailboxId,
        port: Option<u16>,
    ) -> usize {
        let Some(record) = self.paths.get_mut(path) else {
            return 0;
        };
        let count = record.core.outgoing.cancel(Owner(mailbox.to_u64()), port);
        self.counters.send_cancelled += count as u64;
        self.account_freed(path, |_, _| {});
        self.finish_room(path);
        count
    }

    /// Free the port, drop what no socket will read, wake all waiters; `closed` is set.
    pub(crate) fn shut_mailbox(&mut self, id: MailboxId) {
        let Some(mailbox) = self.mailboxes.get_mut(id) else {
            return;
        };
        if let Some(host) = self.hosts.get_mut(mailbox.host) {
            host.inboxes.remove(mailbox.port, id);
        }
        self.counters.recv_drop_closed += mailbox.inbox.len() as u64;
        mailbox.inbox.clear();
        mailbox.inbox.over_since_ns = None; // a second look would never end
        mailbox.closed = true;
        mailbox.special = true;
        mailbox.forget_flows();
        if mailbox.send_queued_bytes > 0 {
            self.closed_accounts.insert(id, mailbox.send_queued_bytes);
        }
        if std::mem::take(&mut mailbox.inbox.congested) {
            self.show_congestion(id, false);
        }
        if let Some(mailbox) = self.mailboxes.get_mut(id) {
            mailbox.receive_waiters.tell_all(&mut self.wait_queue);
            mailbox.room_waiters.tell_all(&mut self.wait_queue);
            mailbox.accounts.tell_refused(&mut self.wait_queue);
        }
    }
}
