//! The results of a read, reported to receivers, senders and the control plane.

use urds_path::DownReason;

use crate::events::{Control, Event};
use crate::state::{MailboxId, PathId, State};

impl State {
    /// Report the results of a read: arrivals, room, control messages, maps.
    pub(crate) fn finish_read(&mut self, id: PathId) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let has_freed = path.core.outgoing.has_freed();
        let looks =
            has_freed || path.full || !path.room_wanted.is_empty() || !path.dependents.is_empty();
        path.last_read_was_empty =
            path.arrivals.is_empty() && !has_freed && path.core.incoming.remaining().1 == 0;
        if !path.arrivals.is_empty() {
            self.finish_arrivals(id);
        }
        if looks {
            self.finish_freed(id);
        }
        self.finish_rare(id);
        let Some(path) = self.paths.get(id) else {
            return;
        };
        if let Some(ack_pending_ns) = path.core.poll_timeout() {
            self.note_ack_pending(id, ack_pending_ns);
        }
    }

    fn finish_arrivals(&mut self, id: PathId) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let mut arrivals = std::mem::take(&mut path.arrivals);
        for &(mailbox, messages) in &arrivals {
            self.note_arrival(mailbox, messages);
            let may_be = self.mailboxes.get(mailbox);
            if may_be.is_some_and(|one| one.inbox.may_be_too_full())
                && self.is_over_hard_bound(mailbox)
            {
                self.pause(id, mailbox);
            }
        }
        arrivals.clear();
        if let Some(path) = self.paths.get_mut(id) {
            path.arrivals = arrivals;
        }
    }

    /// Report a first frame, control messages, a restart of the peer, its map.
    fn finish_rare(&mut self, id: PathId) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let incoming = &mut path.core.incoming;
        if incoming.frames > 0 && !path.first_frame_told {
            path.first_frame_told = true;
            let attachment = path.attachment;
            self.emit(Event::FirstFrame {
                path: id,
                attachment,
            });
        }
        self.finish_controls(id);
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let incoming = &mut path.core.incoming;
        let peer_map = incoming.peer_map.take();
        if std::mem::take(&mut incoming.restarted) {
            self.counters.peer_restarted += 1;
            self.emit(Event::PeerRestarted { path: id });
        }
        if let Some(bytes) = peer_map {
            self.note_peer_map(id, &bytes);
        }
    }

    /// Report pings, pongs and probes.
    fn finish_controls(&mut self, id: PathId) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let attachment = path.attachment;
        for message in std::mem::take(&mut path.core.incoming.controls) {
            self.emit(Event::Control(Control {
                path: id,
                sequence: message.sequence,
                acknowledgement: message.acknowledgement,
                source_port: message.source_port,
                target_port: message.target_port,
                extension: message.extension,
                payload: message.payload,
                attachment,
            }));
        }
    }

    /// Pause the path until the mailbox is at half of its hard bound.
    fn pause(&mut self, id: PathId, mailbox: MailboxId) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let Some(record) = self.mailboxes.get_mut(mailbox) else {
            return;
        };
        let is_known = record.pausing.contains(&id);
        if path.paused && is_known {
            return;
        }
        path.paused = true;
        if !is_known {
            record.pausing.push(id);
        }
        record.special = true;
        self.counters.recv_paused += 1;
    }

    /// Count the protocol error for which a peer's stream is closed.
    pub(crate) fn count_protocol_error(&mut self, reason: DownReason) {
        match reason {
            DownReason::TooLong => self.counters.recv_drop_too_long += 1,
            DownReason::BadMap => self.counters.recv_drop_bad_map += 1,
            DownReason::BadChecksum => self.counters.recv_drop_bad_checksum += 1,
            DownReason::BadAcknowledgement => self.counters.recv_drop_bad_ack += 1,
            DownReason::EndOfStream | DownReason::Error => {}
        }
    }
}
