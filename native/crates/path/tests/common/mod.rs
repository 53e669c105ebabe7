//! A path core with a mailbox, an account and a map around it, in place of the shell.

#![allow(dead_code)] // each test file uses its part

pub mod link;

use std::io::IoSlice;

use urds_path::constants::{FLAG_CONG_BITMAP, HEADER_BYTES};
use urds_path::extension::emit_generation;
use urds_path::{
    AckMode, Arriving, Body, CongestionMap, Counters, DownReason, Freed, Header, Hold, Limits,
    MessageSink, NO_EXTENSION, Owner, PathCore, Payload, WriteBuffer,
};

pub const SOURCE: u16 = 4000;
pub const TARGET: u16 = 5000;
pub const ME: Owner = Owner(7);
pub const MS: u64 = 1_000_000;

/// A header and what follows it.
pub type Frame = (Header, Vec<u8>);

/// The mailbox at `TARGET`; no other port has one.
#[derive(Default)]
pub struct Mailbox {
    pub got: Vec<Vec<u8>>,
}

impl MessageSink for Mailbox {
    fn deliver(&mut self, target_port: u16, message: Arriving<'_>) -> bool {
        if target_port == TARGET {
            self.got.push(message.payload.bytes().to_vec());
        }
        target_port == TARGET
    }
}

/// One end of a path.
pub struct Side {
    pub core: PathCore,
    pub counters: Counters,
    pub mailbox: Mailbox,
    pub map: CongestionMap,
    /// Payload bytes queued or unacknowledged.
    pub account: usize,
    pub given_up: u64,
    pub now_ns: u64,
    /// Long payloads are read into memory of their own.
    pub by_body: bool,
}

impl Side {
    pub fn new(ack_mode: AckMode) -> Self {
        Self::with(Limits::default(), 1, None, ack_mode)
    }

    pub fn with(limits: Limits, first: u64, generation: Option<u32>, ack_mode: AckMode) -> Self {
        let mut core = PathCore::new(limits, first, generation);
        core.agree(ack_mode, false);
        Self {
            core,
            counters: Counters::default(),
            mailbox: Mailbox::default(),
            map: CongestionMap::default(),
            account: 0,
            given_up: 0,
            now_ns: 0,
            by_body: false,
        }
    }

    /// Return a side on its first stream, whose map has left.
    pub fn begun(ack_mode: AckMode) -> Self {
        let mut side = Self::new(ack_mode);
        side.begin(Hold::Nothing);
        side
    }

    pub fn attach(&mut self) {
        self.core.attach(Hold::Nothing);
    }

    pub fn detach(&mut self) {
        self.core.detach(&mut self.counters);
        self.release_accounts();
    }

    /// Attach and send the map.
    pub fn begin(&mut self, hold: Hold) {
        self.core.attach(hold);
        let frames = self.frames();
        assert_eq!(frames[0].0.flags, FLAG_CONG_BITMAP);
    }

    pub fn send(&mut self, payload: &[u8]) {
        self.account += payload.len();
        self.core
            .send(ME, SOURCE, TARGET, Payload::copy_of(payload), NO_EXTENSION);
    }

    pub fn send_all(&mut self, payloads: &[&[u8]]) {
        for payload in payloads {
            self.send(payload);
        }
    }

    pub fn control(&mut self, ports: (u16, u16), first_byte: u8, hello: bool) {
        let mut extension = NO_EXTENSION;
        extension[0] = first_byte;
        self.core
            .control(ports.0, ports.1, extension, hello, &mut self.counters);
    }

    pub fn poll(&mut self) -> Option<WriteBuffer> {
        self.core.poll_transmit(&self.map, &mut self.counters)
    }

    /// Have a stream take at most so many bytes.
    pub fn write(&mut self, bytes_max: usize) -> Vec<u8> {
        let mut written = Vec::new();
        while written.len() < bytes_max {
            let Some(write_buffer) = self.poll() else {
                break;
            };
            let bytes = bytes_of(&write_buffer);
            let taken = bytes.len().min(bytes_max - written.len());
            written.extend_from_slice(&bytes[..taken]);
            self.core.transmitted(write_buffer, taken);
        }
        written
    }

    pub fn write_all(&mut self) -> Vec<u8> {
        self.write(usize::MAX)
    }

    pub fn frames(&mut self) -> Vec<Frame> {
        frames_of(&self.write_all())
    }

    /// Write everything; return the payloads of messages between sockets.
    pub fn payloads(&mut self) -> Vec<Vec<u8>> {
        self.frames()
            .into_iter()
            .filter(|one| one.0.target_port > 1)
            .map(|one| one.1)
            .collect()
    }

    /// Write everything; return the numbers of messages between sockets.
    pub fn numbers(&mut self) -> Vec<u64> {
        self.frames()
            .iter()
            .filter(|one| one.0.target_port > 1)
            .map(|one| one.0.sequence)
            .collect()
    }

    /// # Errors
    /// Why the stream must end.
    pub fn receive(&mut self, mut data: &[u8]) -> Result<(), DownReason> {
        if self.by_body
            && let Some(mut body) = self.core.receiver.take_body()
        {
            if body.memory.is_none() {
                body.carry_over(Body::zeroed(body.total))
                    .expect("of the right length");
            }
            let rest = body.rest_mut();
            let bytes = rest.len().min(data.len());
            rest[..bytes].copy_from_slice(&data[..bytes]);
            body.filled += bytes;
            data = &data[bytes..];
            let (mailbox, counters) = (&mut self.mailbox, &mut self.counters);
            let result = self.core.resume_body(body, self.now_ns, mailbox, counters);
            self.release_accounts();
            result?;
        }
        let (mailbox, counters) = (&mut self.mailbox, &mut self.counters);
        let result = self.core.receive(data, self.now_ns, mailbox, counters);
        self.release_accounts();
        result
    }

    /// Receive bytes without a protocol error.
    pub fn take(&mut self, data: &[u8]) {
        assert_eq!(self.receive(data), Ok(()));
    }

    /// Update the account.
    pub fn release_accounts(&mut self) {
        let mut freed: Vec<Freed> = Vec::new();
        self.core.take_freed(&mut freed);
        for one in freed {
            assert_eq!(one.owner, ME);
            self.account -= one.bytes;
            self.given_up += one.given_up;
        }
    }

    pub fn account(&mut self) -> usize {
        self.release_accounts();
        self.account
    }
}

pub fn bytes_of(write_buffer: &WriteBuffer) -> Vec<u8> {
    let mut slices = [IoSlice::new(&[]); 1024];
    let used = write_buffer.fill(0, &mut slices);
    let mut bytes = Vec::with_capacity(write_buffer.len());
    for slice in &slices[..used] {
        bytes.extend_from_slice(slice);
    }
    assert_eq!(bytes.len(), write_buffer.len());
    bytes
}

/// Read whole frames and nothing else.
pub fn frames_of(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let header = Header::peek(bytes).expect("a whole header");
        assert!(header.verify());
        let end = HEADER_BYTES + header.payload_bytes;
        frames.push((header, bytes[HEADER_BYTES..end].to_vec()));
        bytes = &bytes[end..];
    }
    frames
}

/// The bytes of one message from `SOURCE` to `TARGET`.
pub fn message(sequence: u64, ack: u64, flags: u8, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        sequence,
        ack,
        flags,
        payload_bytes: payload.len(),
        source_port: SOURCE,
        target_port: TARGET,
        ..Header::default()
    };
    [&header.emit(false)[..], payload].concat()
}

/// An acknowledgement of a urds node.
pub fn acknowledgement(ack: u64) -> Vec<u8> {
    Header {
        ack,
        ..Header::default()
    }
    .emit(false)
    .to_vec()
}

/// The map of a urds node's generation, or with `None` a kernel's.
pub fn map_message(generation: Option<u32>) -> Vec<u8> {
    let header = Header {
        flags: FLAG_CONG_BITMAP,
        payload_bytes: 8192,
        extension: generation.map_or(NO_EXTENSION, emit_generation),
        ..Header::default()
    };
    [&header.emit(false)[..], &[0; 8192]].concat()
}
