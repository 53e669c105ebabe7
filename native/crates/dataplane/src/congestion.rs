//! When a local port is congested in our map, and when a path is not read at all.
//!
//! The bit is set and cleared at the end of a pass or a tick, not per message: with Linux's rule,
//! at once, eight fast senders to a small buffer cost more bytes of maps than of messages. A
//! mailbox far over its buffer pauses the paths that fill it, because its peer ignores the map.

use urds_path::Address;

use crate::host::MapBytes;
use crate::mailbox::{ALL_GROUPS, Mailbox};
use crate::plane::Plane;
use crate::state::{HostId, MailboxId, PathId, State};

/// Results of the end of a pass, to be acted on without the lock.
#[derive(Default)]
struct Finishing {
    /// Paths to which a changed map of ours goes.
    flushed: Vec<PathId>,
    /// Paths released by a mailbox at half of its hard bound.
    resumed: Vec<PathId>,
    /// Mailboxes whose descriptors are compared with their state.
    shown: Vec<MailboxId>,
}

impl Plane {
    /// End a pass: check touched mailboxes, send changed maps, sync descriptors. No lock held.
    pub fn finish_pass(&self) {
        let finishing = {
            let mut state = self.lock();
            if state.touched.is_empty() {
                return;
            }
            state.finish_touched()
        };
        for path in finishing.flushed {
            self.flush(path);
        }
        for path in finishing.resumed {
            self.resume(path);
        }
        for mailbox in finishing.shown {
            self.sync(mailbox);
        }
    }

    /// Have the descriptor of a mailbox, if it has one, show its state. No lock held.
    pub fn sync(&self, mailbox: MailboxId) {
        let descriptor = self
            .lock()
            .mailboxes
            .get(mailbox)
            .and_then(|one| one.descriptor.clone());
        if let Some(descriptor) = descriptor {
            descriptor.sync(|| self.lock().wanted_readiness(mailbox));
        }
    }
}

impl State {
    fn finish_touched(&mut self) -> Finishing {
        let mut finishing = Finishing::default();
        self.touched.drain_into(&mut finishing.shown);
        let now_ns = self.clock.now_ns();
        for &mailbox in &finishing.shown {
            if self.update_congestion(mailbox, now_ns)
                && let Some(host) = self.host_of(mailbox)
                && let Some(host) = self.hosts.get(host)
            {
                finishing.flushed.extend(&host.paths);
            }
        }
        for &mailbox in &finishing.shown {
            self.let_go(mailbox, &mut finishing.resumed);
        }
        // Our changed map concerns senders of this process too: sync their descriptors as well.
        self.touched.drain_into(&mut finishing.shown);
        finishing
    }

    fn host_of(&self, mailbox: MailboxId) -> Option<HostId> {
        self.mailboxes.get(mailbox).map(|record| record.host)
    }

    /// Check whether a mailbox is congested; return whether our map changed.
    fn update_congestion(&mut self, id: MailboxId, now_ns: u64) -> bool {
        let Some(mailbox) = self.mailboxes.get_mut(id) else {
            return false;
        };
        let change = if mailbox.closed {
            None
        } else {
            mailbox.inbox.check_congestion(now_ns)
        };
        mailbox.finish_special();
        if mailbox.inbox.look_again_ns().is_some() {
            self.looks.insert(id);
            self.progress_thread.want();
        }
        if let Some(on) = change {
            self.show_congestion(id, on);
        }
        change.is_some()
    }

    /// Set or clear a port's bit in our map; maps go out with the next flush.
    pub(crate) fn show_congestion(&mut self, id: MailboxId, on: bool) {
        let Some(mailbox) = self.mailboxes.get(id) else {
            return;
        };
        let (host_id, local, port) = (mailbox.host, mailbox.local, mailbox.port);
        let Some(host) = self.hosts.get_mut(host_id) else {
            return;
        };
        if on {
            host.congested.set(port);
        } else {
            host.congested.clear(port);
        }
        for path in host.paths.clone() {
            if let Some(path) = self.paths.get_mut(path) {
                path.core.map_due = path.core.attached;
            }
            self.flush_soon(path);
        }
        let groups = if on { 0 } else { Mailbox::group_of(port) };
        for sender in self.senders_by_loop(&local) {
            self.note_map(sender, groups);
            self.touched.insert(sender);
        }
    }

    fn senders_by_loop(&self, local: &Address) -> Vec<MailboxId> {
        let senders = self.mailboxes.iter();
        senders
            .filter(|(_, mailbox)| !mailbox.closed && mailbox.sends_by_loop_to(local))
            .map(|(id, _)| id)
            .collect()
    }

    /// Put the map of a path's peer in force and notify the sockets of the address.
    pub(crate) fn note_peer_map(&mut self, path: PathId, bytes: &MapBytes) {
        let Some(path) = self.paths.get(path) else {
            return;
        };
        let peer = path.peer;
        let Some(host) = self.hosts.get_mut(path.host) else {
            return;
        };
        self.counters.cong_update_received += 1;
        let groups = host.replace_peer_map(peer, bytes);
        for mailbox in host.inboxes.values().copied().collect::<Vec<_>>() {
            self.note_map(mailbox, groups);
            self.touched.insert(mailbox);
        }
    }

    /// Drop the map of a peer to which the local address has no path left.
    pub(crate) fn forget_peer_map(&mut self, host: HostId, peer: &Address) {
        let Some(host) = self.hosts.get_mut(host) else {
            return;
        };
        let leads = |path: &PathId| self.paths.get(*path).is_some_and(|path| path.peer == *peer);
        if !host.paths.iter().any(leads) {
            host.forget_peer_map(peer);
        }
    }

    /// React to a peer's new map: monitor, senders, descriptor.
    ///
    /// Linux's own monitor takes every update for a change of all groups; an installed mask is
    /// reported exactly. Source: linux v6.12 net/rds/cong.c; rds(7).
    fn note_map(&mut self, id: MailboxId, cleared_groups: u64) {
        let Some(mailbox) = self.mailboxes.get_mut(id) else {
            return;
        };
        let saw_congestion = std::mem::take(&mut mailbox.saw_congestion);
        if mailbox.settings.monitor {
            if mailbox.settings.monitor_mask == ALL_GROUPS {
                mailbox.notice_groups |= std::mem::take(&mut mailbox.wait_groups);
            } else {
                mailbox.notice_groups |= mailbox.settings.monitor_mask & cleared_groups;
            }
            if mailbox.has_notice() {
                mailbox.special = true;
                self.note_arrival(id, 1);
            }
        } else if saw_congestion {
            mailbox.map_news = true;
        }
        if let Some(mailbox) = self.mailboxes.get_mut(id) {
            mailbox.accounts.tell_refused(&mut self.wait_queue); // its waiters met the map
        }
        self.note_room(id);
    }

    /// Add the paths that a mailbox at half of its hard bound releases.
    fn let_go(&mut self, id: MailboxId, resumed: &mut Vec<PathId>) {
        let Some(mailbox) = self.mailboxes.get(id) else {
            return;
        };
        if mailbox.pausing.is_empty() {
            return;
        }
        let bound = self.hard_bound_of(mailbox.inbox.buffer_bytes);
        if mailbox.inbox.hard_bytes() > bound / 2 && !mailbox.closed {
            return;
        }
        if let Some(mailbox) = self.mailboxes.get_mut(id) {
            resumed.append(&mut mailbox.pausing);
        }
    }

    /// Return whether a mailbox's descriptor is to be readable, and writable.
    pub(crate) fn wanted_readiness(&self, id: MailboxId) -> (bool, bool) {
        let Some(mailbox) = self.mailboxes.get(id) else {
            return (true, true);
        };
        let readable =
            !mailbox.inbox.is_empty() || mailbox.has_notice() || mailbox.map_news || mailbox.closed;
        let is_held_up = || {
            mailbox
                .stream_paths()
                .any(|path| self.full_paths.contains(path))
        };
        let has_room = mailbox.accounts.is_writable(mailbox.send_queued_bytes);
        let writable =
            has_room && (self.full_paths.is_empty() || !mailbox.has_one_way() || !is_held_up());
        (readable, writable)
    }
}
