//! Absent peers: messages to them have waited long for a connection.
//!
//! What is queued to an absent peer moves to the third account of each socket (`accounts`).

use std::collections::VecDeque;

use urds_path::{Address, Owner};

use crate::accounts::{ABSENT_NS, DestinationId};
use crate::state::{MailboxId, PathId, State};

/// When the peers of paths become absent; all wait equally long, so the first is due first.
#[derive(Default)]
pub struct Missing {
    /// An entry that differs from the path's time is stale.
    queue: VecDeque<(u64, PathId)>,
}

impl Missing {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl State {
    /// Note that messages wait for a connection from now on, if none do already.
    pub(crate) fn note_wanted(&mut self, id: PathId) {
        let at_ns = self.now_ns().saturating_add(ABSENT_NS);
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        if path.missing_at_ns.is_none() && !path.absent {
            path.missing_at_ns = Some(at_ns);
            self.missing.queue.push_back((at_ns, id));
            self.progress_thread.want();
        }
    }

    /// Note that a path has a connection again.
    pub(crate) fn note_attached(&mut self, id: PathId) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        path.missing_at_ns = None;
        path.absent = false;
        for (mailbox, destination) in self.known_at(id) {
            let Some(record) = self.mailboxes.get_mut(mailbox) else {
                continue;
            };
            if record.accounts.at(destination).absent {
                record.accounts.note_present(destination);
                self.tell_room(mailbox);
            }
        }
    }

    /// Return when the next peer becomes absent.
    pub(crate) fn next_missing_ns(&mut self) -> Option<u64> {
        while let Some(&(at_ns, id)) = self.missing.queue.front() {
            let path = self.paths.get(id);
            if path.is_some_and(|path| path.missing_at_ns == Some(at_ns)) {
                return Some(at_ns);
            }
            self.missing.queue.pop_front();
        }
        None
    }

    /// Mark peers as absent for which messages have waited too long.
    pub(crate) fn note_absent(&mut self, now_ns: u64) {
        while self.next_missing_ns().is_some_and(|at_ns| at_ns <= now_ns)
            && let Some((_, id)) = self.missing.queue.pop_front()
        {
            self.note_path_absent(id);
        }
    }

    fn note_path_absent(&mut self, id: PathId) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        path.missing_at_ns = None;
        path.absent = true;
        if self.has_other_stream(id) {
            return;
        }
        for (mailbox, destination) in self.known_at(id) {
            let record = self.mailboxes.get_mut(mailbox);
            let given_up = record.map(|record| record.accounts.note_absent(destination));
            for peer in given_up.unwrap_or_default() {
                self.give_up(mailbox, peer);
            }
            self.tell_room(mailbox);
        }
    }

    /// Return whether another path leads to the same peer.
    fn has_other_stream(&self, id: PathId) -> bool {
        let Some(path) = self.paths.get(id) else {
            return false;
        };
        let host = self.hosts.get(path.host);
        let mut paths = host.iter().flat_map(|host| &host.paths);
        paths.any(|&other| {
            self.paths
                .get(other)
                .is_some_and(|other| other.peer == path.peer && other.stream.is_some())
        })
    }

    /// Return the sockets that have sent to the peer of a path, with its destination at each.
    fn known_at(&mut self, id: PathId) -> Vec<(MailboxId, DestinationId)> {
        let Some(path) = self.paths.get(id) else {
            return Vec::new();
        };
        let (host, peer) = (self.hosts.get(path.host), path.peer);
        let inboxes = host.iter().flat_map(|host| host.inboxes.values());
        let mailboxes: Vec<MailboxId> = inboxes.copied().collect();
        let known = mailboxes.into_iter().filter_map(|mailbox| {
            let record = self.mailboxes.get_mut(mailbox)?;
            Some((mailbox, record.accounts.known(&peer)?))
        });
        known.collect()
    }

    /// Drop what a socket has queued to the peer that is absent longest; it is reported once.
    fn give_up(&mut self, mailbox: MailboxId, peer: Address) {
        for id in self.paths_of(mailbox) {
            let Some(path) = self.paths.get_mut(id) else {
                continue;
            };
            if path.peer != peer {
                continue;
            }
            let owner = Owner(mailbox.to_u64());
            let count = path.core.outgoing.cancel(owner, None) as u64;
            self.counters.send_given_up += count;
            self.account_freed(id, |_, _| {});
            self.finish_room(id);
            if let Some(record) = self.mailboxes.get_mut(mailbox) {
                record.given_up += count;
            }
        }
        if let Some(record) = self.mailboxes.get_mut(mailbox) {
            record.fail(peer);
        }
    }
}
