//! Two paths and a stream between them that is cut anywhere, with the part of a control plane that
//! this needs: hellos, agreements, restarts.
//!
//! A stream is modelled exactly, as TCP has it: bytes that were written, bytes that the peer's TCP
//! has and acknowledged, bytes that the peer has read. A cut loses unread bytes, unless the reader
//! drains them first, which the shell promises to do.

use std::collections::BTreeSet;

use urds_path::extension::{emit_generation, parse_handshake};
use urds_path::{AckMode, Hold, Limits};

use super::{ME, MS, Side};

/// No limit.
pub const ALL: usize = usize::MAX;

/// The peer's kind, as both sides detect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    OwnNode,
    /// The first side waits for the other's first frame.
    LinuxLower,
    LinuxHigher,
}

/// A rule that is broken on purpose, to test that the test notices it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    Nothing,
    /// Messages sent on a stream are lost with it.
    Repeating,
    /// A duplicate is taken once more.
    Duplicates,
    /// A message is freed with its first bytes.
    Freeing,
    /// Bytes that the stream did not take are not written again.
    Offering,
}

/// Bytes from one side to the other on the current stream.
#[derive(Default)]
struct Way {
    written: usize,
    travelling: Vec<u8>, // not yet at the peer's TCP
    arrived: Vec<u8>,    // acknowledged by it, not read
}

/// One side and the test's record of it.
pub struct End {
    pub side: Side,
    /// The generation of this side.
    pub map_generation: u32,
    /// Messages of this generation, by number.
    pub sent: u64,
    /// Below it some were cancelled.
    pub sure_from: u64,
    /// Messages received by this generation: the sender's generation and the number.
    pub got: Vec<(u32, u64)>,
    /// Messages of the peer's present generation received by any generation here.
    pub received_ever: BTreeSet<u64>,
    agreed: bool,
    peer_generation: Option<u32>,
    hello: Option<u64>, // the highest number that the peer's hello acknowledged
    way: Way,
}

impl End {
    fn new(map_generation: u32, first: u64) -> Self {
        let limits = Limits {
            acknowledge_messages: 4,
            acknowledge_bytes: 20_000,
            ..Limits::default()
        };
        let mut side = Side::with(limits, first, Some(map_generation), AckMode::NotYet);
        side.by_body = map_generation.is_multiple_of(2);
        Self {
            side,
            map_generation,
            sent: 0,
            sure_from: 0,
            got: Vec::new(),
            received_ever: BTreeSet::new(),
            agreed: false,
            peer_generation: None,
            hello: None,
            way: Way::default(),
        }
    }

    /// Release the hold on the peer's hello, once it has arrived and been handled.
    fn release(&mut self) {
        if let Some(received) = self.hello.filter(|_| self.agreed) {
            self.side.core.end_hold((received > 0).then_some(received));
            self.side.release_accounts();
        }
    }
}

pub struct Link {
    pub kind: Kind,
    pub broken: Broken,
    pub ends: [End; 2],
    generations: u32,
}

impl Link {
    pub fn new(kind: Kind, broken: Broken) -> Self {
        let ends = [End::new(1, 1000), End::new(2, 1)];
        let mut link = Self {
            kind,
            broken,
            ends,
            generations: 2,
        };
        link.connect();
        link
    }

    fn connect(&mut self) {
        for (index, end) in self.ends.iter_mut().enumerate() {
            let hold = match self.kind {
                Kind::OwnNode if end.agreed => Hold::Hello,
                Kind::LinuxLower if index == 0 => Hold::FirstFrame,
                _ => Hold::Nothing,
            };
            end.way = Way::default();
            end.hello = None;
            end.side.core.attach(hold);
            if self.kind == Kind::OwnNode {
                let extension = emit_generation(end.map_generation);
                end.side
                    .core
                    .control(1, 0, extension, true, &mut end.side.counters);
            }
        }
    }

    pub fn send(&mut self, index: usize, payload_bytes: usize) {
        let end = &mut self.ends[index];
        let mut payload = end.map_generation.to_be_bytes().to_vec();
        payload.extend_from_slice(&end.sent.to_be_bytes());
        payload.resize(12 + payload_bytes, 7);
        end.side.send(&payload);
        end.sent += 1;
    }

    /// Have the stream take so many bytes of a side.
    pub fn write(&mut self, index: usize, bytes: usize) {
        let end = &mut self.ends[index];
        let mut written = end.side.write(bytes);
        if self.broken == Broken::Offering && written.len() > 60 {
            written.truncate(written.len() - 1);
        }
        end.way.written += written.len();
        end.way.travelling.extend_from_slice(&written);
    }

    /// Have them arrive at the peer's TCP.
    pub fn arrive(&mut self, index: usize, bytes: usize) {
        let way = &mut self.ends[index].way;
        let bytes = bytes.min(way.travelling.len());
        way.arrived.extend_from_slice(&way.travelling[..bytes]);
        way.travelling.drain(..bytes);
    }

    /// Have the peer of a side read.
    ///
    /// # Errors
    /// Messages that it did not understand or should not have got.
    pub fn read(&mut self, index: usize, bytes: usize) -> Result<(), String> {
        let way = &mut self.ends[index].way;
        let bytes = bytes.min(way.arrived.len());
        let rest = way.arrived.split_off(bytes);
        let data = std::mem::replace(&mut way.arrived, rest);
        let sender_generation = self.ends[index].map_generation;
        let reader = &mut self.ends[1 - index];
        if self.broken == Broken::Duplicates {
            reader.side.core.receiver.sequence_expected = 0;
        }
        reader
            .side
            .receive(&data)
            .map_err(|reason| format!("{reason:?}"))?;
        for payload in reader.side.mailbox.got.drain(..) {
            let (map_generation, rest) = payload
                .split_first_chunk()
                .ok_or("a message without its life")?;
            let number = rest.first_chunk().ok_or("a message without its number")?;
            let name = (
                u32::from_be_bytes(*map_generation),
                u64::from_be_bytes(*number),
            );
            if name.0 == sender_generation {
                reader.received_ever.insert(name.1);
            }
            if reader.got.last().is_some_and(|last| *last >= name) {
                return Err(format!("{name:?} after {:?}", reader.got.last()));
            }
            reader.got.push(name);
        }
        self.control(1 - index);
        Ok(())
    }

    /// Do the control plane's work of a side after a read.
    fn control(&mut self, index: usize) {
        let end = &mut self.ends[index];
        end.side.core.receiver.peer_map = None;
        while let Some(message) = end.side.core.receiver.controls.pop_front() {
            let told = parse_handshake(&message.extension);
            let Some(map_generation) = told
                .generation
                .and_then(|map_generation| u32::try_from(map_generation).ok())
            else {
                continue;
            };
            if end
                .peer_generation
                .replace(map_generation)
                .is_some_and(|known| known != map_generation)
            {
                end.side.core.restart_peer();
                end.side.release_accounts();
            }
            end.hello = Some(message.acknowledgement);
            end.release();
        }
    }

    /// Have a side detect the kind of its peer, if it can.
    pub fn agree(&mut self, index: usize) {
        let end = &mut self.ends[index];
        if self.kind != Kind::OwnNode {
            end.side.core.agree(AckMode::StreamAcknowledged, false);
        } else if end.hello.is_some() {
            end.agreed = true;
            end.side.core.agree(AckMode::PeerAcknowledged, true);
            end.release();
        }
        end.side.release_accounts();
    }

    /// Query a side's TCP for its peer's acknowledgements.
    pub fn ask(&mut self, index: usize) {
        let end = &mut self.ends[index];
        let mut bytes = (end.way.written - end.way.travelling.len()) as u64;
        if self.broken == Broken::Freeing {
            bytes += 60;
        }
        end.side.core.handle_stream_acknowledged(bytes);
        end.side.release_accounts();
    }

    pub fn tick(&mut self) {
        for end in &mut self.ends {
            end.side.now_ns += MS;
            end.side.core.handle_timeout(end.side.now_ns);
        }
    }

    /// Cancel messages of a side that its peer may not have.
    pub fn cancel(&mut self, index: usize) {
        let end = &mut self.ends[index];
        end.side.core.sender.cancel(ME, None);
        end.sure_from = end.sent;
    }

    fn end_stream(&mut self, orderly: bool) -> Result<(), String> {
        for index in 0..2 {
            if orderly {
                self.arrive(index, ALL);
            }
            self.read(index, ALL)?;
            self.ask(index);
        }
        for end in &mut self.ends {
            if self.broken == Broken::Repeating {
                end.side.core.sender.drop_handed_over();
            }
            end.side.detach();
        }
        Ok(())
    }

    /// Break the stream; bytes that TCP acknowledged are read first.
    ///
    /// # Errors
    /// As `read`.
    pub fn cut(&mut self, orderly: bool) -> Result<(), String> {
        self.end_stream(orderly)?;
        self.connect();
        Ok(())
    }

    /// Restart a side; it keeps no state.
    ///
    /// # Errors
    /// As `read`.
    pub fn restart(&mut self, index: usize, first: u64) -> Result<(), String> {
        self.end_stream(false)?;
        self.generations += 1;
        let end = End::new(self.generations, first);
        let old = std::mem::replace(&mut self.ends[index], end);
        self.ends[index].received_ever = old.received_ever;
        self.ends[1 - index].received_ever.clear();
        self.connect();
        Ok(())
    }

    /// Let everything through until nothing moves.
    ///
    /// # Errors
    /// As `read`.
    pub fn heal(&mut self) -> Result<(), String> {
        for _ in 0..8 {
            for index in 0..2 {
                self.write(index, ALL);
                self.arrive(index, ALL);
                self.read(index, ALL)?;
                self.ask(index);
                self.agree(1 - index);
            }
            self.tick();
        }
        Ok(())
    }
}
