//! When a port of ours counts as congested in our map, and when a path is not read at all.
//!
//! The bit is judged at the end of a pass or a tick, not per message: with Linux's rule, at once,
//! eight fast senders to a small buffer cost more octets of maps than of messages. Far over its
//! buffer a mailbox pauses the paths that fill it, because its peer ignores the map.

use urds_path::Address;

use crate::host::MapOctets;
use crate::mailbox::{ALL_GROUPS, Mailbox};
use crate::plane::Plane;
use crate::state::{HostId, MailboxId, PathId, State};

/// What the end of a pass found, to be done without the lock.
#[derive(Default)]
struct Settling {
    /// With a changed map of ours.
    flushed: Vec<PathId>,
    /// Let go by a mailbox at half of its hard bound.
    resumed: Vec<PathId>,
    /// Mailboxes whose descriptors are compared with their state.
    shown: Vec<MailboxId>,
}

impl Plane {
    /// End a pass: judge the mailboxes it touched, send changed maps, show states. No lock held.
    pub fn settle(&self) {
        let settling = {
            let mut state = self.lock();
            if state.touched.is_empty() {
                return;
            }
            state.settle_touched()
        };
        for path in settling.flushed {
            self.flush(path);
        }
        for path in settling.resumed {
            self.resume(path);
        }
        for mailbox in settling.shown {
            self.sync(mailbox);
        }
    }

    /// Have the descriptor of a mailbox, if there is one, show its state. No lock held.
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
    fn settle_touched(&mut self) -> Settling {
        let mut settling = Settling::default();
        self.touched.drain_into(&mut settling.shown);
        let now_ns = self.clock.now_ns();
        for &mailbox in &settling.shown {
            if self.judge(mailbox, now_ns)
                && let Some(host) = self.host_of(mailbox)
                && let Some(host) = self.hosts.get(host)
            {
                settling.flushed.extend(&host.paths);
            }
        }
        for &mailbox in &settling.shown {
            self.let_go(mailbox, &mut settling.resumed);
        }
        // A changed map of ours concerned senders of this process: show theirs as well.
        self.touched.drain_into(&mut settling.shown);
        settling
    }

    fn host_of(&self, mailbox: MailboxId) -> Option<HostId> {
        self.mailboxes.get(mailbox).map(|record| record.host)
    }

    /// Judge a mailbox's congestion; return whether our map changed.
    fn judge(&mut self, id: MailboxId, now_ns: u64) -> bool {
        let Some(mailbox) = self.mailboxes.get_mut(id) else {
            return false;
        };
        let change = if mailbox.closed {
            None
        } else {
            mailbox.inbox.judge_congestion(now_ns)
        };
        mailbox.settle_special();
        if mailbox.inbox.look_again_ns().is_some() {
            self.looks.insert(id);
            self.helper.want();
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

    /// Put the map of a path's peer in force and tell the sockets of the address.
    pub(crate) fn note_peer_map(&mut self, path: PathId, octets: &MapOctets) {
        let Some(path) = self.paths.get(path) else {
            return;
        };
        let peer = path.peer;
        let Some(host) = self.hosts.get_mut(path.host) else {
            return;
        };
        self.counters.cong_update_received += 1;
        let groups = host.replace_peer_map(peer, octets);
        for mailbox in host.inboxes.values().copied().collect::<Vec<_>>() {
            self.note_map(mailbox, groups);
            self.touched.insert(mailbox);
        }
    }

    /// Drop the map of a peer to which no path of the host is left.
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
    /// told exactly. Source: linux v6.12 net/rds/cong.c; rds(7).
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
            mailbox.accounts.tell_refused(&mut self.desk); // who met the map may be listed there
        }
        self.note_room(id);
    }

    /// Add the paths that a mailbox at half of its hard bound lets go.
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

    /// Return whether a mailbox's descriptor shows that it can be read, and written to.
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
