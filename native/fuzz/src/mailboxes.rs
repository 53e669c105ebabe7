//! Mailboxes that keep what they get.

use urds_path::{Arriving, Extension, MessageSink};

/// The lowest port that has a mailbox.
pub const FIRST_PORT: u16 = 5000;

/// A message as its mailbox got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    pub target_port: u16,
    pub source_port: u16,
    pub extension: Extension,
    pub payload: Vec<u8>,
}

/// All mailboxes of one address.
#[derive(Debug, Default)]
pub struct Mailboxes {
    pub got: Vec<Got>,
}

impl MessageSink for Mailboxes {
    fn deliver(&mut self, target_port: u16, message: Arriving<'_>) -> bool {
        if target_port < FIRST_PORT {
            return false;
        }
        self.got.push(Got {
            target_port,
            source_port: message.source_port,
            extension: message.extension,
            payload: message.payload.bytes().to_vec(),
        });
        true
    }
}
