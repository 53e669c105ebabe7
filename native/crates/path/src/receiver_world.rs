//! A receive direction with mailboxes around it, for tests.

use crate::constants::{FLAG_CONG_BITMAP, PROBE_PORT};
use crate::extension::emit_generation;
use crate::receiver::{Arriving, BodyReading, MessageSink, Receiver};
use crate::{Body, Counters, DownReason, Extension, Header, Limits};

pub(crate) const SOURCE: u16 = 4000;
pub(crate) const TARGET: u16 = 5000;

/// A message as its mailbox got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Got {
    pub target_port: u16,
    pub source_port: u16,
    pub extension: Extension,
    pub payload: Vec<u8>,
}

/// Mailboxes at `TARGET` and above; no socket has the ports below.
#[derive(Debug, Default)]
pub(crate) struct Mailboxes {
    pub got: Vec<Got>,
}

impl MessageSink for Mailboxes {
    fn deliver(&mut self, target_port: u16, message: Arriving<'_>) -> bool {
        if target_port < TARGET {
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

/// `Receiver` with its mailboxes and counters.
#[derive(Debug)]
pub(crate) struct Side {
    pub receiver: Receiver,
    pub mailboxes: Mailboxes,
    pub counters: Counters,
}

impl Side {
    /// Return a side on its first stream, towards a peer of unknown kind.
    pub fn new(limits: Limits) -> Self {
        let mut receiver = Receiver::new(limits);
        receiver.begin_stream();
        Self {
            receiver,
            mailboxes: Mailboxes::default(),
            counters: Counters::default(),
        }
    }

    /// Return the same towards a urds node.
    pub fn of_urds_node() -> Self {
        let mut side = Self::new(Limits::default());
        side.receiver.acknowledging = true;
        side.receiver.watch_restarts = false;
        side
    }

    pub fn receive(&mut self, data: &[u8]) -> Result<(), DownReason> {
        self.receiver
            .receive(data, &mut self.mailboxes, &mut self.counters)
    }

    pub fn resume(&mut self, body: BodyReading) -> Result<(), DownReason> {
        self.receiver
            .resume_body(body, &mut self.mailboxes, &mut self.counters)
    }

    /// Receive as a shell that reads long bodies into their memory.
    pub fn receive_by_body(&mut self, mut data: &[u8]) -> Result<(), DownReason> {
        if let Some(mut body) = self.receiver.take_body() {
            if body.memory.is_none() {
                body.carry_over(Body::zeroed(body.total))
                    .expect("memory of the right length");
            }
            let rest = body.rest_mut();
            let bytes = rest.len().min(data.len());
            rest[..bytes].copy_from_slice(&data[..bytes]);
            body.filled += bytes;
            data = &data[bytes..];
            self.resume(body)?;
        }
        if data.is_empty() {
            Ok(())
        } else {
            self.receive(data)
        }
    }

    /// Lose the stream and begin the next.
    pub fn reconnect(&mut self) {
        self.receiver.end_stream();
        self.receiver.begin_stream();
    }

    /// Take the messages of the mailboxes.
    pub fn got(&mut self) -> Vec<Vec<u8>> {
        self.mailboxes
            .got
            .drain(..)
            .map(|got| got.payload)
            .collect()
    }

    /// Take the same as numbers, which the payloads are.
    pub fn numbers(&mut self) -> Vec<u64> {
        let number = |payload: Vec<u8>| u64::from_be_bytes(payload.try_into().unwrap_or([0; 8]));
        self.got().into_iter().map(number).collect()
    }
}

/// A header from `SOURCE` to `TARGET`.
pub(crate) fn header(sequence: u64) -> Header {
    Header {
        sequence,
        source_port: SOURCE,
        target_port: TARGET,
        ..Header::default()
    }
}

/// The bytes of one message.
pub(crate) fn frame(header: Header, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        payload_bytes: payload.len(),
        ..header
    };
    [&header.emit(false)[..], payload].concat()
}

/// The same with a checksum.
pub(crate) fn checked_frame(header: Header, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        payload_bytes: payload.len(),
        ..header
    };
    [&header.emit(true)[..], payload].concat()
}

/// Messages whose payload is their number.
pub(crate) fn numbered(numbers: impl IntoIterator<Item = u64>, flags: u8) -> Vec<u8> {
    let one = |number: u64| {
        frame(
            Header {
                flags,
                ..header(number)
            },
            &number.to_be_bytes(),
        )
    };
    numbers.into_iter().flat_map(one).collect()
}

/// The map of a urds node's generation, or with `None` a kernel's.
pub(crate) fn map_frame(generation: Option<u32>, bytes: &[u8]) -> Vec<u8> {
    let extension = generation.map_or([0; 16], emit_generation);
    frame(
        Header {
            flags: FLAG_CONG_BITMAP,
            extension,
            ..Header::default()
        },
        bytes,
    )
}

/// A kernel's probe; up to linux v6.19 it has no generation.
pub(crate) fn probe(sequence: u64, generation: Option<u32>, flags: u8) -> Vec<u8> {
    let mut extension = [0; 16];
    extension[..3].copy_from_slice(&[5, 0, 8]);
    if let Some(generation) = generation {
        extension[3] = 6;
        extension[4..8].copy_from_slice(&generation.to_be_bytes());
    }
    let header = Header {
        sequence,
        flags,
        source_port: PROBE_PORT,
        extension,
        ..Header::default()
    };
    frame(header, &[])
}
