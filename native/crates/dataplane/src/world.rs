//! A plane with a virtual clock, one address, and peers that the test plays.

use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use urds_path::constants::HEADER_BYTES;
use urds_path::{AckMode, Address, Header, Hold, Limits, NO_EXTENSION, Payload, SocketAddress};

use crate::errors::{ErrorReason, Rejected};
use crate::events::Event;
use crate::mailbox::{MailboxSettings, Route};
use crate::path::Agreement;
use crate::plane::Plane;
use crate::receive_side::Taken;
use crate::send_side::{Message, Sent};
use crate::snapshots::Snapshot;
use crate::state::{MailboxId, PathId};
use crate::stream::TcpStream;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const PORT: u16 = 5000;
pub(crate) const PEER_PORT: u16 = 4000;

/// Our address is 1, the peer's 2.
pub(crate) fn address(last: u8) -> Address {
    Address::from(Ipv4Addr::new(127, 0, 83, last))
}

pub(crate) fn peer(port: u16) -> SocketAddress {
    SocketAddress::new(address(2), port)
}

/// The peer's end of a stream.
pub(crate) struct Remote {
    pub(crate) socket: UnixStream,
    bytes: Vec<u8>,
}

impl Remote {
    pub(crate) fn say(&mut self, header: Header, payload: &[u8]) {
        let header = Header {
            payload_bytes: payload.len(),
            ..header
        };
        self.write(&[&header.emit(false)[..], payload].concat());
    }

    /// Write one message to our port from the peer's.
    pub(crate) fn say_message(&mut self, sequence: u64, payload: &[u8]) {
        self.say(message(sequence), payload);
    }

    pub(crate) fn say_map(&mut self, bytes: &[u8]) {
        let header = Header {
            flags: 1,
            ..Header::default()
        };
        self.say(header, bytes);
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    /// Read what is there; take the whole frames of it.
    pub(crate) fn frames(&mut self) -> Vec<(Header, Vec<u8>)> {
        let mut piece = vec![0; 65536];
        while let Ok(bytes @ 1..) = self.socket.read(&mut piece) {
            self.bytes.extend_from_slice(&piece[..bytes]);
        }
        let mut found = Vec::new();
        while let Some(header) = Header::peek(&self.bytes) {
            let end = HEADER_BYTES + header.payload_bytes;
            if self.bytes.len() < end {
                break;
            }
            let payload = self.bytes[HEADER_BYTES..end].to_vec();
            self.bytes.drain(..end);
            found.push((header, payload));
        }
        found
    }

    /// Take the payloads of sockets.
    pub(crate) fn payloads(&mut self) -> Vec<Vec<u8>> {
        let frames = self.frames().into_iter();
        frames
            .filter(|(header, _)| header.target_port > 1)
            .map(|(_, payload)| payload)
            .collect()
    }
}

pub(crate) fn message(sequence: u64) -> Header {
    Header {
        sequence,
        source_port: PEER_PORT,
        target_port: PORT,
        ..Header::default()
    }
}

pub(crate) fn acknowledgement(sequence: u64) -> Header {
    Header {
        ack: sequence,
        ..Header::default()
    }
}

pub(crate) struct World {
    pub(crate) plane: Arc<Plane>,
    pub(crate) path: PathId,
    clock: Arc<AtomicU64>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Limits::default())
    }

    pub(crate) fn with(limits: Limits) -> Self {
        let clock = Arc::new(AtomicU64::new(1000 * MS));
        let ask = Arc::clone(&clock);
        let plane = Plane::new(
            limits,
            Some(Arc::new(move || ask.load(Ordering::Relaxed))),
            None,
            None,
        )
        .unwrap();
        let path = plane.path(address(1), address(2), 0, 1);
        Self { plane, path, clock }
    }

    /// Make a plane with the clock of the system, which `pass` does not move.
    pub(crate) fn of_real_time() -> Self {
        let clock = Arc::new(AtomicU64::new(0));
        let plane = Plane::new(Limits::default(), None, None, None).unwrap();
        let path = plane.path(address(1), address(2), 0, 1);
        Self { plane, path, clock }
    }

    /// Make a plane without a path; `path` names none.
    pub(crate) fn bare() -> Self {
        let world = Self::new();
        world.plane.close_path(world.path);
        world
    }

    /// Make the path to the peer now.
    pub(crate) fn with_own_path(self) -> Self {
        let path = self.plane.path(address(1), address(2), 0, 1);
        self.with_path(path)
    }

    pub(crate) fn with_path(mut self, path: PathId) -> Self {
        self.path = path;
        self
    }

    pub(crate) fn pass(&self, ns: u64) {
        self.clock.fetch_add(ns, Ordering::Relaxed);
    }

    /// Advance the clock, then make one pass of the plane; return its events.
    pub(crate) fn progress(&self, ns: u64) -> Vec<Event> {
        self.pass(ns);
        self.plane.progress();
        self.plane.help(Some(0))
    }

    /// Bind our port, with a route to the peer.
    pub(crate) fn mailbox(&self, settings: MailboxSettings) -> MailboxId {
        self.mailbox_at(PORT, settings)
    }

    pub(crate) fn mailbox_at(&self, port: u16, settings: MailboxSettings) -> MailboxId {
        let mailbox = self.plane.mailbox(address(1), port, settings);
        let route = Some(Route::Stream(self.path));
        self.plane.route(mailbox, address(2), route);
        mailbox
    }

    pub(crate) fn attach(&self, hold: Hold, ack_mode: AckMode) -> Remote {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        if ack_mode != AckMode::NotYet {
            let agreement = Agreement {
                ack_mode,
                checksum: false,
                message_bytes_max: 1 << 20,
            };
            self.plane.agree(self.path, agreement);
        }
        let stream = TcpStream::new(OwnedFd::from(ours));
        self.plane.attach(self.path, Arc::new(stream), hold, None);
        self.pass(MS); // a pause: the next two sends leave at once
        Remote {
            socket: theirs,
            bytes: Vec::new(),
        }
    }

    /// Send without waiting.
    pub(crate) fn send(&self, mailbox: MailboxId, payload: &[u8]) -> Result<(), ErrorReason> {
        self.send_to(mailbox, peer(PEER_PORT), payload)
    }

    pub(crate) fn send_to(
        &self,
        mailbox: MailboxId,
        target: SocketAddress,
        payload: &[u8],
    ) -> Result<(), ErrorReason> {
        let message = Message::new(mailbox, target, Payload::copy_of(payload), NO_EXTENSION);
        self.finish(self.plane.send_now(message, Some(0)))
    }

    /// Send the same message at most so many times in one call; return how many were queued.
    pub(crate) fn send_burst(
        &self,
        mailbox: MailboxId,
        payload: &[u8],
        times_max: usize,
    ) -> (usize, Result<(), ErrorReason>) {
        let mut burst = self.plane.burst(mailbox, Some(0));
        for _ in 0..times_max {
            if !burst.add(&peer(PEER_PORT), payload) {
                break;
            }
        }
        let (count, last) = burst.end();
        (count, self.finish(last))
    }

    fn finish(&self, sent: Result<Sent, Rejected>) -> Result<(), ErrorReason> {
        match sent {
            Ok(Sent::Done) => Ok(()),
            Ok(Sent::Leaves(leaving)) => {
                self.plane.finish_send(*leaving);
                Ok(())
            }
            Ok(Sent::NoRoute(_)) => Err(ErrorReason::NoRoute),
            Ok(Sent::Waits(_)) => Err(ErrorReason::TimedOut),
            Ok(Sent::External) => unreachable!("no such route here"),
            Err(Rejected { reason, .. }) => Err(reason),
        }
    }

    /// Take every message that is there.
    pub(crate) fn take(&self, mailbox: MailboxId) -> Vec<Vec<u8>> {
        let mut payloads = Vec::new();
        while let Taken::Message(payload) = self
            .plane
            .take(mailbox, false, |message| message.payload.bytes().to_vec())
            .unwrap()
        {
            payloads.push(payload);
        }
        payloads
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.plane.snapshot()
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        let counters = self.snapshot().counters;
        counters.iter().find(|counter| counter.0 == name).unwrap().1
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.plane.close(0);
        self.plane.release();
    }
}
