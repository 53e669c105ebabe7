//! What the queue of a path holds: messages, whose they are, and fences between them.

use crate::constants::PROBE_PORT;
use crate::fence::Fence;
use crate::kinds::{Extension, NO_EXTENSION, Owner};
use crate::payload::Payload;

/// One message that is sent or retransmitted.
#[derive(Debug)]
pub struct Message {
    /// Its number; 0 while it is unsent.
    pub sequence: u64,
    /// Stream position behind its last byte.
    pub end: u64,
    /// The socket that sent it; `None`: the control plane's own.
    pub owner: Option<Owner>,
    pub source_port: u16,
    pub target_port: u16,
    pub payload: Payload,
    pub extension: Extension,
}

/// What a message is written over.
pub(crate) const NO_MESSAGE: Message = Message::unsent(None, 0, 0, Payload::empty(), NO_EXTENSION);

impl Message {
    /// Return a message without a number.
    pub(crate) const fn unsent(
        owner: Option<Owner>,
        source_port: u16,
        target_port: u16,
        payload: Payload,
        extension: Extension,
    ) -> Self {
        Self {
            sequence: 0,
            end: 0,
            owner,
            source_port,
            target_port,
            payload,
            extension,
        }
    }
}

const _: () = assert!(size_of::<Message>() <= 128 && size_of::<Queued>() <= 128);

/// An item of the queue; a fence has none but unsent messages behind it.
#[derive(Debug)]
pub(crate) enum Queued {
    Message(Message),
    Fence(Fence),
}

impl Queued {
    #[inline]
    pub(crate) fn message(&self) -> Option<&Message> {
        match self {
            Self::Message(message) => Some(message),
            Self::Fence(_) => None,
        }
    }
}

/// A message as the tables of rds-info show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// 0 while it has no number.
    pub sequence: u64,
    pub payload_bytes: usize,
    pub source_port: u16,
    pub target_port: u16,
}

pub(crate) fn row(message: &Message) -> Row {
    Row {
        sequence: message.sequence,
        payload_bytes: message.payload.len(),
        source_port: message.source_port,
        target_port: message.target_port,
    }
}

pub(crate) fn is_probe(message: &Message) -> bool {
    message.owner.is_none() && [message.source_port, message.target_port].contains(&PROBE_PORT)
}
