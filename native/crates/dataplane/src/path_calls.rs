//! Calls of the control plane on a path. On a closed path they do nothing and return nothing.

use urds_path::{Extension, Received, Release};

use crate::plane::Plane;
use crate::state::{MailboxId, PathId};

const PROBE_PORT: u16 = 1;

/// What the handshake with a peer agreed on, for all of its paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    pub release: Release,
    /// Every header carries a checksum.
    pub checksum: bool,
    /// The longest message that both sides take, in bytes.
    pub message_bytes_max: usize,
}

impl Plane {
    /// End `Hold::Release`; the peer has everything up to `received_by_peer` (`None`: unknown).
    pub fn release_hold(&self, path: PathId, received_by_peer: Option<u64>) {
        {
            let mut state = self.lock();
            let Some(record) = state.paths.get_mut(path) else {
                return;
            };
            record.core.release(received_by_peer);
            state.finish_freed(path);
        }
        self.flush(path);
    }

    /// Put in force what the handshake with the peer agreed on.
    pub fn agree(&self, path: PathId, agreement: Agreement) {
        {
            let mut state = self.lock();
            let Some(record) = state.paths.get_mut(path) else {
                return;
            };
            record.plain = false;
            record.core.agree(agreement.release, agreement.checksum);
            record.message_bytes_max = agreement.message_bytes_max;
            state.finish_freed(path);
            state.tell_room_wanted(path); // some message may be too long now
            state.mark_dirty(path);
        }
        self.flush(path);
    }

    /// Begin a new generation of the peer: drop what it received from the old one; return how many.
    pub fn restart_peer(&self, path: PathId) -> usize {
        let mut state = self.lock();
        let Some(record) = state.paths.get_mut(path) else {
            return 0;
        };
        let count = record.core.restart_peer();
        state.counters.peer_restarted += 1;
        state.counters.send_given_up += count as u64;
        state.finish_freed(path);
        count
    }

    /// Note the peer's generation: a later probe of a kernel with another one means a restart.
    pub fn remember_handshake(&self, path: PathId, generation: Option<u64>) {
        if let Some(record) = self.lock().paths.get_mut(path) {
            record.core.incoming.remember_generation(generation);
        }
    }

    /// Queue a ping, pong or probe; without a stream it is dropped, for it answers a stream.
    ///
    /// A pong is dropped too when the queue is full: then the peer that asks does not read.
    pub fn control(&self, path: PathId, ports: (u16, u16), extension: Extension, hello: bool) {
        {
            let mut state = self.lock();
            let state = &mut *state;
            let Some(record) = state.paths.get_mut(path) else {
                return;
            };
            let (source_port, target_port) = ports;
            let is_pong = source_port == 0 && target_port > PROBE_PORT;
            let count = record.core.outgoing.message_count();
            if !record.core.attached || (is_pong && count >= state.limits.path_messages_max) {
                return;
            }
            record.core.control(
                source_port,
                target_port,
                extension,
                hello,
                &mut state.counters,
            );
        }
        self.flush(path);
    }

    /// Queue a map: a dead connection answers it with a reset, a live one ignores it.
    pub fn probe_dead_stream(&self, path: PathId) {
        if let Some(record) = self.lock().paths.get_mut(path) {
            record.core.map_due = record.core.attached;
        }
        self.flush(path);
    }

    /// Return whether the peer's map in force marks a port as congested.
    pub fn peer_is_congested(&self, path: PathId, port: u16) -> bool {
        let state = self.lock();
        let Some(record) = state.paths.get(path) else {
            return false;
        };
        let host = state.hosts.get(record.host);
        host.is_some_and(|host| host.peer_is_congested(&record.peer, port))
    }

    /// Hold new messages until `other` has delivered its queue; `None`: until released.
    pub fn hold_behind(&self, path: PathId, other: Option<PathId>) {
        {
            let mut state = self.lock();
            let fence = other
                .and_then(|other| state.paths.get_mut(other))
                .map(|other| {
                    other.dependents.push(path);
                    other.plain = false;
                    let fence = other.core.outgoing.fence();
                    other.core.ask();
                    fence
                });
            let Some(record) = state.paths.get_mut(path) else {
                return;
            };
            record.plain = false;
            record.core.hold_behind(fence.unwrap_or_default());
        }
        if let Some(other) = other {
            self.flush(other);
        }
        self.flush(path);
    }

    /// Return whether messages of sockets are queued or unacknowledged.
    pub fn holds_messages(&self, path: PathId) -> bool {
        self.lock()
            .paths
            .get(path)
            .is_some_and(|record| record.core.outgoing.holds(None))
    }

    /// Return whether a message of the peer ever reached a socket here.
    pub fn has_delivered(&self, path: PathId) -> bool {
        self.lock()
            .paths
            .get(path)
            .is_some_and(|record| record.core.incoming.has_delivered)
    }

    /// Return how far a path is: the frames received on its stream, the number of the oldest
    /// message that was sent and is not acknowledged, and the number that the next one gets.
    pub fn activity(&self, path: PathId) -> (u64, Option<u64>, u64) {
        let state = self.lock();
        let Some(record) = state.paths.get(path) else {
            return (0, None, 0);
        };
        let outgoing = &record.core.outgoing;
        let oldest = outgoing.unacked.front().or(outgoing.retransmits.front());
        (
            record.core.incoming.frames,
            oldest.map(|message| message.sequence),
            outgoing.sequence_next,
        )
    }

    /// Return how many streams a path has had so far.
    pub fn attachment(&self, path: PathId) -> u64 {
        self.lock()
            .paths
            .get(path)
            .map_or(0, |record| record.attachment)
    }

    /// Drop every message; each sender gets EHOSTUNREACH once. Return how many.
    pub fn drop_queue(&self, path: PathId) -> usize {
        let mut state = self.lock();
        let Some(record) = state.paths.get_mut(path) else {
            return 0;
        };
        let count = record.core.outgoing.drop_all();
        let peer = record.peer;
        record.wanted = false;
        record.is_batching = false;
        state.counters.send_given_up += count as u64;
        state.account_freed(path, |state, mailbox: MailboxId| {
            if let Some(record) = state.mailboxes.get_mut(mailbox) {
                record.fail(peer);
            }
            state.note_freed(mailbox);
        });
        state.finish_room(path);
        count
    }

    /// Remove a path; its stream is closed.
    pub fn close_path(&self, path: PathId) {
        drop(self.detach(path));
        self.lock().remove_path(path);
    }

    /// Return the receive state of a path: its peer's sequence numbers.
    pub fn received(&self, path: PathId) -> Option<Received> {
        Some(self.lock().paths.get(path)?.core.incoming.received())
    }

    /// Have a path that had no stream yet continue where an earlier one to the peer ended.
    pub fn expect(&self, path: PathId, received: Received) {
        if let Some(record) = self.lock().paths.get_mut(path) {
            record.core.incoming.expect(received);
        }
    }
}
