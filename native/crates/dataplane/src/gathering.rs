//! Messages that gather in the plane until a transport of messages makes a frame of them.
//!
//! While a frame of a connection is under way, what follows waits for others anyway. So the
//! transport tells how many bytes may gather, and sends of plain messages end here, without a call
//! of the transport, until it takes them or the room is used up. To the transport they are queued
//! behind everything that it has.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;

use urds_path::constants::{FLAG_ACK_REQUIRED, HEADER_BYTES};
use urds_path::packed_frames::{Budget, PACKED_BYTES, PlainMessage};
use urds_path::{ArrivingPayload, Header, NO_EXTENSION, Payload};

use crate::accounts::DestinationId;
use crate::errors::{ErrorReason, Rejected};
use crate::external::{ArrivalRun, Charge, ExternalId};
use crate::mailbox::{MESSAGE_BYTES_PLAIN, RunWay};
use crate::plane::Plane;
use crate::send_side::Message;
use crate::state::{MailboxId, State};

/// One message, charged to its mailbox.
#[derive(Clone, Debug)]
pub struct GatheredMessage {
    pub mailbox: MailboxId,
    pub source_port: u16,
    pub target_port: u16,
    pub payload: Payload,
    /// The account was half full with it.
    pub asks: bool,
}

/// Messages in the order of their sends.
#[derive(Debug, Default)]
pub struct Gathered {
    pub messages: Vec<GatheredMessage>,
    pub payload_bytes: usize,
}

/// Sends what gathers on one path, in compiled code.
pub trait Carrier: Debug + Send + Sync {
    /// Send what may leave now. No lock of the plane is held; any thread.
    fn push(&self);

    /// As `push`, since the local congestion map has changed: nothing that arrived is taken.
    fn push_map(&self);
}

/// What gathers on one path.
#[derive(Debug, Default)]
pub struct Gathering {
    room_bytes: usize,
    /// More messages than these go to the transport, which counts them.
    messages_max: usize,
    gathered: Gathered,
    /// `None`: the transport itself takes what has gathered.
    pub(crate) carrier: Option<Arc<dyn Carrier>>,
    /// The carrier has nothing under way: it is told of the next message.
    is_idle: bool,
}

/// What became of a message that may gather.
#[derive(Debug)]
pub(crate) enum Gather {
    /// It is kept.
    Kept,
    /// It is kept, and the carrier is to be told.
    Pushes(Arc<dyn Carrier>),
    /// There is no room for it now; its carrier makes some.
    Busy(ErrorReason),
    /// It is the transport's.
    Outside,
}

/// What was taken of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Bytes of the frame; where something else begins.
    pub bytes: usize,
    pub sequence_expected: u64,
    pub messages: usize,
    /// Of them, that ask for an acknowledgement.
    pub asked: usize,
    /// A mailbox is over its hard bound: the path pauses.
    pub pauses: bool,
}

impl Gathered {
    pub fn of(messages: Vec<GatheredMessage>) -> Self {
        let payload_bytes = messages.iter().map(|one| one.payload.len()).sum();
        Self {
            messages,
            payload_bytes,
        }
    }

    pub fn frame_bytes(&self) -> usize {
        self.messages.len() * HEADER_BYTES + self.payload_bytes
    }

    /// Return the bytes of a frame, and how many messages ask for an acknowledgement because the
    /// budget is spent. The first one has `sequence`, acknowledges and grants.
    pub fn emit(
        &self,
        sequence: u64,
        acknowledgement: u64,
        credit: u8,
        budget: &mut Budget,
    ) -> (Vec<u8>, usize) {
        let mut bytes = Vec::with_capacity(self.frame_bytes());
        let mut asked = 0;
        let numbered = (sequence..).zip(&self.messages).enumerate();
        for (place, (sequence, message)) in numbered {
            let mut flags = if message.asks { FLAG_ACK_REQUIRED } else { 0 };
            if !budget.take(message.payload.len()) {
                flags |= FLAG_ACK_REQUIRED;
                asked += 1;
            }
            let header = Header {
                sequence,
                ack: if place == 0 { acknowledgement } else { 0 },
                payload_bytes: message.payload.len(),
                source_port: message.source_port,
                target_port: message.target_port,
                flags,
                credit: if place == 0 { credit } else { 0 },
                ..Header::default()
            };
            bytes.extend_from_slice(&header.emit(true));
            bytes.extend_from_slice(message.payload.bytes());
        }
        (bytes, asked)
    }

    /// Return mailboxes, and the messages and bytes that they have here.
    pub fn accounts(&self) -> Vec<(MailboxId, usize, usize)> {
        accounts_of(&self.messages)
    }
}

/// Return mailboxes, and how many of the messages, and bytes of payload, they have.
fn accounts_of<'a>(
    messages: impl IntoIterator<Item = &'a GatheredMessage>,
) -> Vec<(MailboxId, usize, usize)> {
    let mut accounts: Vec<(MailboxId, usize, usize)> = Vec::new();
    for message in messages {
        let bytes = message.payload.len();
        let known = accounts
            .iter_mut()
            .rev()
            .find(|known| known.0 == message.mailbox);
        match known {
            Some(known) => (known.1, known.2) = (known.1 + 1, known.2 + bytes),
            None => accounts.push((message.mailbox, 1, bytes)),
        }
    }
    accounts
}

impl Plane {
    /// Have plain messages of less than so many bytes in all, with their headers, gather from now
    /// on; 0: they go to the transport.
    pub fn set_gathering(&self, path: ExternalId, room_bytes: usize) {
        if let Some(external) = self.lock().externals.get_mut(path) {
            external.gathering.room_bytes = room_bytes;
            external.gathering.messages_max = usize::MAX;
        }
    }

    /// Have a carrier send all plain messages and maps from now on; `None`: the transport does again.
    ///
    /// Returns whether the carrier was told of a map that it has not taken.
    pub fn set_carrier(&self, path: ExternalId, carrier: Option<Arc<dyn Carrier>>) -> bool {
        let (before, is_map_due) = {
            let mut state = self.lock();
            let Some(external) = state.externals.get_mut(path) else {
                return false;
            };
            let is_map_due = std::mem::take(&mut external.map_due);
            let gathering = &mut external.gathering;
            gathering.is_idle = carrier.is_some();
            gathering.room_bytes = if carrier.is_some() { usize::MAX } else { 0 };
            gathering.messages_max = 0;
            let before = std::mem::replace(&mut gathering.carrier, carrier);
            (before, is_map_due)
        };
        drop(before);
        is_map_due
    }

    /// Append what has gathered to the queue of the carrier, which has room for so many messages more.
    ///
    /// `is_idle`: it has nothing under way. With nothing to take it is told of the next message.
    /// Returns the bytes of payload, and whether the local map is to be sent.
    pub fn take_for_carrier(
        &self,
        path: ExternalId,
        is_idle: bool,
        messages_max: usize,
        queue: &mut VecDeque<GatheredMessage>,
    ) -> (usize, bool) {
        let mut state = self.lock();
        let Some(external) = state.externals.get_mut(path) else {
            return (0, false);
        };
        let gathering = &mut external.gathering;
        gathering.messages_max = messages_max;
        gathering.is_idle = is_idle && gathering.gathered.messages.is_empty();
        queue.extend(gathering.gathered.messages.drain(..)); // its memory stays for the next ones
        let payload_bytes = std::mem::take(&mut gathering.gathered.payload_bytes);
        (payload_bytes, std::mem::take(&mut external.map_due))
    }

    /// End the charge of messages that the peer has acknowledged.
    pub fn refund_gathered<'a>(
        &self,
        path: ExternalId,
        messages: impl IntoIterator<Item = &'a GatheredMessage>,
    ) {
        let accounts = accounts_of(messages);
        let mut state = self.lock();
        for (mailbox, messages, bytes) in accounts {
            state.refund(path, mailbox, messages, bytes);
        }
    }

    /// Take what has gathered, and have nothing gather any more.
    pub fn take_gathered(&self, path: ExternalId) -> Gathered {
        let mut state = self.lock();
        let taken = state.externals.get_mut(path);
        taken.map_or_else(Gathered::default, |external| {
            external.gathering.room_bytes = 0;
            std::mem::take(&mut external.gathering.gathered)
        })
    }

    /// Put the plain messages at the front of a frame's bytes into their mailboxes.
    pub fn deliver_plain(
        &self,
        path: ExternalId,
        frame: &[u8],
        payload_bytes_max: usize,
        sequence_expected: u64,
    ) -> Delivered {
        let mut delivered = Delivered {
            sequence_expected,
            ..Delivered::default()
        };
        let mut run = ArrivalRun::default();
        let mut state = self.lock();
        while let Some(message) = PlainMessage::peek(&frame[delivered.bytes..], payload_bytes_max) {
            let ports = (message.header.source_port, message.header.target_port);
            let payload = ArrivingPayload::Borrowed(message.payload);
            state.deliver_next(path, &mut run, ports, payload, NO_EXTENSION);
            delivered.bytes += message.frame_bytes();
            delivered.sequence_expected = message.header.sequence.wrapping_add(1);
            delivered.messages += 1;
            delivered.asked += usize::from(message.asks());
        }
        delivered.pauses = !state.end_run(path, &mut run);
        delivered
    }
}

impl State {
    /// Charge a message and keep it, if it may gather.
    ///
    /// # Errors
    /// As `Plane::charge`.
    pub(crate) fn gather(
        &mut self,
        path: ExternalId,
        message: &Message,
    ) -> Result<Gather, Rejected> {
        let bytes = message.payload.len();
        let has_room = self.externals.get(path).is_some_and(|external| {
            let gathering = &external.gathering;
            let frame_bytes = gathering.gathered.frame_bytes() + HEADER_BYTES + bytes;
            frame_bytes < gathering.room_bytes
                && gathering.gathered.messages.len() < gathering.messages_max
        });
        if !has_room || message.extension != NO_EXTENSION {
            return Ok(Gather::Outside);
        }
        let charged = self.charge(path, message.mailbox, message.target.port, bytes, true)?;
        let (Some(external), Some(mailbox)) = (
            self.externals.get_mut(path),
            self.mailboxes.get_mut(message.mailbox),
        ) else {
            return Ok(Gather::Outside);
        };
        if let Some(destination) = mailbox.accounts.known(&external.peer) {
            mailbox.begin_run(message.target, RunWay::External(path), destination);
        }
        let source_port = mailbox.port;
        let gathering = &mut external.gathering;
        let asks = match charged {
            Charge::Queued { asks } => asks,
            Charge::Busy(reason) if gathering.carrier.is_some() => {
                self.count_refused(reason);
                return Ok(Gather::Busy(reason));
            }
            Charge::Busy(_) | Charge::NoRoute => return Ok(Gather::Outside),
        };
        let gathered = &mut gathering.gathered;
        gathered.payload_bytes += bytes;
        gathered.messages.push(GatheredMessage {
            mailbox: message.mailbox,
            source_port,
            target_port: message.target.port,
            payload: message.payload.clone(),
            asks,
        });
        let leaves = gathered.frame_bytes() >= PACKED_BYTES;
        Ok(match &gathering.carrier {
            Some(carrier) if leaves || std::mem::take(&mut gathering.is_idle) => {
                Gather::Pushes(Arc::clone(carrier))
            }
            _ => Gather::Kept,
        })
    }

    /// Charge and keep a short message that follows another of its mailbox to the same destination, for
    /// which all checks but those of what changes were made.
    ///
    /// False, and nothing is done, if it has no room, or if anything is left to do after it.
    pub(crate) fn gather_again(
        &mut self,
        path: ExternalId,
        id: MailboxId,
        port: u16,
        destination: DestinationId,
        bytes: &[u8],
    ) -> bool {
        let (Some(external), Some(mailbox)) =
            (self.externals.get_mut(path), self.mailboxes.get_mut(id))
        else {
            return false;
        };
        let length = bytes.len();
        let gathering = &external.gathering;
        let frame_bytes = gathering.gathered.frame_bytes() + HEADER_BYTES + length;
        let gathers = gathering.carrier.is_some()
            && !gathering.is_idle
            && frame_bytes < gathering.room_bytes.min(PACKED_BYTES)
            && gathering.gathered.messages.len() < gathering.messages_max;
        let may_queue = gathers
            && !external.full
            && !mailbox.closed
            && mailbox.descriptor.is_none()
            && self.touched.is_empty()
            && length
                <= MESSAGE_BYTES_PLAIN
                    .min(mailbox.payload_bytes_max)
                    .min(external.message_bytes_max)
            && mailbox
                .accounts
                .has_room(destination, length, mailbox.send_queued_bytes)
            && self
                .hosts
                .get(external.host)
                .is_none_or(|host| !host.peer_is_congested(&external.peer, port));
        if !may_queue {
            return false;
        }
        mailbox.refused_at = None;
        mailbox.map_news = false;
        let asks = mailbox.count_queued(destination, length);
        external.hold(id, length);
        let gathered = &mut external.gathering.gathered;
        gathered.payload_bytes += length;
        gathered.messages.push(GatheredMessage {
            mailbox: id,
            source_port: mailbox.port,
            target_port: port,
            payload: Payload::copy_of(bytes),
            asks,
        });
        true
    }
}
