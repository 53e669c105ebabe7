//! Removal of messages from a path before their peer has them, and their table rows.

use std::collections::VecDeque;

use crate::constants::{HEADER_BYTES, PROBE_PORT};
use crate::kinds::Owner;
use crate::sender::{Message, Outgoing, Queued};

/// A message as the tables of rds-info show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// 0 while it has no number.
    pub sequence: u64,
    pub payload_bytes: usize,
    pub source_port: u16,
    pub target_port: u16,
}

impl Outgoing {
    /// Retransmit no handshake any more, drop any that waits: a newer one follows.
    ///
    /// A pending connection that is closed at once acknowledges none of them. Kept, they would grow
    /// with each such connection, and all would go out again on the next.
    pub(crate) fn forget_probes(&mut self) {
        self.retransmits.retain(|message| !is_probe(message));
        self.unacked.retain(|message| !is_probe(message));
        let pending_bytes = &mut self.pending_bytes;
        self.unsent.retain(|queued| match queued {
            Queued::Message(message) if is_probe(message) => {
                *pending_bytes -= HEADER_BYTES;
                false
            }
            _ => true,
        });
    }

    /// Remove the owner's messages, to one port or to all; return how many.
    ///
    /// Framed bytes go out to the end, to keep the framing; only retransmission ends. Source: linux
    /// v6.12 net/rds/send.c (`rds_send_drop_to`).
    pub fn cancel(&mut self, owner: Owner, target_port: Option<u16>) -> usize {
        let (mut count, mut bytes) = (0, 0);
        let is_other = |message: &Message| {
            message.owner != Some(owner)
                || target_port.is_some_and(|port| port != message.target_port)
        };
        let mut keeps = |message: &Message| {
            let keeps = is_other(message);
            if !keeps {
                count += 1;
                bytes += message.payload.len();
            }
            keeps
        };
        let pending_bytes = &mut self.pending_bytes;
        self.unsent.retain(|queued| match queued {
            Queued::Message(message) if !keeps(message) => {
                *pending_bytes -= HEADER_BYTES + message.payload.len();
                false
            }
            _ => true,
        });
        self.retransmits.retain(&mut keeps);
        self.unacked.retain(&mut keeps);
        if count > 0 {
            self.note_freed(owner, bytes, 0);
        }
        self.open_fences();
        count
    }

    /// Return how many messages of the owner, or of all, are unsent and unacknowledged.
    #[must_use]
    pub fn counts(&self, owner: Option<Owner>) -> (usize, usize) {
        let is_wanted = |message: &&Message| {
            message
                .owner
                .is_some_and(|one| owner.is_none_or(|owner| one == owner))
        };
        let unsent = self.unsent.iter().filter_map(|queued| match queued {
            Queued::Message(message) => Some(message),
            Queued::Fence(_) => None,
        });
        let sent = self.retransmits.iter().chain(&self.unacked);
        (
            unsent.filter(is_wanted).count(),
            sent.filter(is_wanted).count(),
        )
    }

    /// Whether a message of the owner, or of any socket, is queued or unacknowledged.
    #[must_use]
    pub fn holds(&self, owner: Option<Owner>) -> bool {
        let unsent = self.unsent.iter().filter_map(|queued| match queued {
            Queued::Message(message) => Some(message),
            Queued::Fence(_) => None,
        });
        let mut owners = self
            .retransmits
            .iter()
            .chain(&self.unacked)
            .chain(unsent)
            .filter_map(|one| one.owner);
        match owner {
            None => owners.next().is_some(),
            Some(owner) => owners.any(|one| one == owner),
        }
    }

    /// Drop messages sent to an earlier generation of the peer and not acknowledged; return how
    /// many were of sockets.
    pub fn drop_handed_over(&mut self) -> usize {
        let retransmits = std::mem::take(&mut self.retransmits);
        let unacked = std::mem::take(&mut self.unacked);
        let dropped = self.give_up(retransmits) + self.give_up(unacked);
        self.open_fences();
        dropped
    }

    /// Drop every message; return how many were of sockets. Every fence opens.
    pub fn drop_all(&mut self) -> usize {
        let dropped = self.drop_handed_over();
        let mut messages = VecDeque::new();
        for queued in std::mem::take(&mut self.unsent) {
            match queued {
                Queued::Fence(fence) => self.pass(&fence),
                Queued::Message(message) => messages.push_back(message),
            }
        }
        self.pending_bytes = 0;
        let dropped = dropped + self.give_up(messages);
        self.open_fences();
        dropped
    }

    fn give_up(&mut self, messages: VecDeque<Message>) -> usize {
        let mut count = 0;
        for message in messages {
            // A ping or pong has no owner.
            if let Some(owner) = message.owner {
                count += 1;
                self.note_freed(owner, message.payload.len(), 1);
            }
        }
        count
    }

    /// Messages without a number, in their order.
    pub fn unsent_rows(&self) -> impl Iterator<Item = Row> {
        self.unsent.iter().filter_map(|queued| match queued {
            Queued::Message(message) => Some(row(message)),
            Queued::Fence(_) => None,
        })
    }

    /// Messages that the peer may have: of the current stream, then of earlier ones.
    pub fn sent_rows(&self) -> impl Iterator<Item = Row> {
        self.unacked.iter().chain(&self.retransmits).map(row)
    }
}

fn row(message: &Message) -> Row {
    Row {
        sequence: message.sequence,
        payload_bytes: message.payload.len(),
        source_port: message.source_port,
        target_port: message.target_port,
    }
}

fn is_probe(message: &Message) -> bool {
    message.owner.is_none() && [message.source_port, message.target_port].contains(&PROBE_PORT)
}
