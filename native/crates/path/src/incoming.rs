//! The receiving half of a path: octets to messages, repeats dropped, restarts noticed.
//!
//! A value machine: no I/O, no clock, no lock. Whole messages go straight to the mailbox of their
//! target port, by [`Ground::deliver`]; what is for the control plane is kept for the shell to
//! fetch. A message dies with its stream unless it is complete. How a number is judged stands in
//! `judging`, what is begun and not whole in `partial`.
//!
//! Nothing here trusts an octet: a length is checked before memory is taken for it, and every drop
//! has a counter. The counters of a breach of the protocol are the shell's, which ends the stream.

use std::collections::VecDeque;

use crate::constants::{
    CONGESTION_MAP_BYTES, FLAG_ACK_REQUIRED, HEADER_BYTES, LONG_BYTES, PORT_FIRST,
};
use crate::control_budget::ControlBudget;
use crate::counters::Counters;
use crate::header::Header;
use crate::kinds::{DownReason, Extension};
use crate::limits::Limits;
use crate::partial::Partial;
use crate::payload::ArrivingPayload;
use crate::peer_lives::PeerLives;

pub use crate::judging::Received;
pub use crate::partial::BodyReading;

/// What lies around a path: the mailboxes of its address.
pub trait Ground {
    /// Put a message into the mailbox of a port; false if no socket has it.
    fn deliver(&mut self, target_port: u16, message: Arriving<'_>) -> bool;
}

/// A message on its way into a mailbox.
#[derive(Debug)]
pub struct Arriving<'a> {
    pub source_port: u16,
    /// All zero if it has none.
    pub extension: Extension,
    pub payload: ArrivingPayload<'a>,
}

/// A message for the control plane: ping, pong or probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlMessage {
    pub sequence: u64,
    pub acknowledgement: u64,
    pub source_port: u16,
    pub target_port: u16,
    pub extension: Extension,
    /// Cut at 64 octets.
    pub payload: Vec<u8>,
}

/// State of one receiving direction; whoever drives it serialises the calls.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, not a state"
)]
pub struct Incoming {
    pub(crate) limits: Limits,
    // What the handshake agreed.
    /// Checksums of headers are checked.
    pub checksum: bool,
    /// An own node: it wants to know what lies in our inboxes.
    pub acknowledging: bool,
    /// A new life of the peer must be found out by its numbers: a kernel does not tell.
    pub watch_restarts: bool,
    // Numbers; see `judging`.
    /// The number behind the highest one received.
    pub sequence_expected: u64,
    pub(crate) lowest: Option<u64>,
    pub(crate) accepted: bool,
    pub(crate) floor: Option<u64>,
    pub(crate) lives: PeerLives,
    // The stream.
    /// Whole frames of this stream.
    pub frames: u64,
    partial: Partial,
    stream: u64,
    // What we owe.
    /// Messages that no acknowledgement covered yet, of an own node.
    pub messages_owed: usize,
    /// Their octets.
    pub bytes_owed: usize,
    /// An acknowledgement is to be sent with the next write.
    pub acknowledgement_due: bool,
    // For the shell to fetch.
    /// Highest number of ours that the peer acknowledged on this stream.
    pub acknowledged: u64,
    /// Pings, pongs and probes that were within the budget.
    pub controls: VecDeque<ControlMessage>,
    pub(crate) control_budget: ControlBudget,
    /// At the last read.
    pub now_ns: u64,
    /// The newest congestion map of the peer.
    pub peer_map: Option<Box<[u8; CONGESTION_MAP_BYTES]>>,
    /// A kernel began a new life.
    pub restarted: bool,
    /// A message of the peer reached a socket, on any stream.
    pub has_delivered: bool,
}

impl Incoming {
    /// Begin without numbers, towards a peer of unknown kind.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            checksum: false,
            acknowledging: false,
            watch_restarts: true,
            sequence_expected: 0,
            lowest: None,
            accepted: false,
            floor: None,
            lives: PeerLives::default(),
            frames: 0,
            partial: Partial::Nothing,
            stream: 0,
            messages_owed: 0,
            bytes_owed: 0,
            acknowledgement_due: false,
            acknowledged: 0,
            controls: VecDeque::new(),
            control_budget: ControlBudget::new(&limits),
            now_ns: 0,
            peer_map: None,
            restarted: false,
            has_delivered: false,
        }
    }

    /// Octets still missing of a begun header and of a begun payload.
    pub fn remaining(&self) -> (usize, usize) {
        match &self.partial {
            Partial::Nothing => (0, 0),
            Partial::Short(octets) => match octets.first_chunk() {
                None => (HEADER_BYTES - octets.len(), 0),
                Some(header) => (0, HEADER_BYTES + payload_bytes(header) - octets.len()),
            },
            Partial::Long(body) => (0, body.missing()),
            Partial::Lent { missing } => (0, *missing),
        }
    }

    /// Begin anew what is known of a stream; it outlives the stream until the next one.
    pub fn begin_stream(&mut self) {
        if let Some(lowest) = self.lowest.take() {
            self.floor = Some(lowest);
        }
        self.accepted = false;
        self.control_budget.begin_stream();
    }

    /// Forget the partial message and what was owed on the stream; the numbers stay.
    ///
    /// A body that the reader has is no longer wanted: `resume_body` drops it.
    pub fn end_stream(&mut self) {
        self.partial = Partial::Nothing;
        self.stream += 1;
        self.frames = 0;
        self.acknowledged = 0;
        self.reset_owed();
    }

    /// Owe nothing any more: an acknowledgement left.
    pub fn reset_owed(&mut self) {
        self.messages_owed = 0;
        self.bytes_owed = 0;
        self.acknowledgement_due = false;
    }

    /// Take octets off the stream, any number.
    ///
    /// # Errors
    /// Why the stream must end; what came before the fault is delivered.
    pub fn receive<G: Ground>(
        &mut self,
        data: &[u8],
        ground: &mut G,
        counters: &mut Counters,
    ) -> Result<(), DownReason> {
        let mut rest = match self.partial {
            Partial::Nothing => data,
            _ => self.complete(data, ground, counters)?,
        };
        while let Some((octets, behind)) = rest.split_first_chunk::<HEADER_BYTES>() {
            let header = self.checked(octets)?;
            let Some((payload, next)) = behind.split_at_checked(payload_bytes(octets)) else {
                break;
            };
            rest = next;
            self.take(
                &header,
                ArrivingPayload::Borrowed(payload),
                ground,
                counters,
            )?;
        }
        self.keep(rest);
        Ok(())
    }

    /// Take a long body under way, to be read into without the lock. `None` if none is begun or
    /// fewer than 8 KiB of it are here. Give it back with `resume_body`, and give no octets to
    /// `receive` meanwhile.
    pub fn take_body(&mut self) -> Option<BodyReading> {
        match std::mem::take(&mut self.partial) {
            Partial::Long(body) if body.filled >= LONG_BYTES => {
                self.partial = Partial::Lent {
                    missing: body.missing(),
                };
                Some(body)
            }
            partial => {
                self.partial = partial;
                None
            }
        }
    }

    /// Go on with a body that the reader had: judged and delivered if it is whole.
    ///
    /// # Errors
    /// As `receive`; `DownReason::Error` for memory of another length than the payload's.
    pub fn resume_body<G: Ground>(
        &mut self,
        mut body: BodyReading,
        ground: &mut G,
        counters: &mut Counters,
    ) -> Result<(), DownReason> {
        if body.stream != self.stream || !matches!(self.partial, Partial::Lent { .. }) {
            return Ok(()); // it died with its stream
        }
        self.partial = Partial::Nothing;
        if !body.settle() {
            return Err(DownReason::Error);
        }
        if body.missing() > 0 {
            self.partial = Partial::Long(body);
            return Ok(());
        }
        let header = body.header;
        self.take(
            &header,
            ArrivingPayload::Whole(body.into_body()),
            ground,
            counters,
        )
    }

    /// Complete what was begun; return the octets behind it, none if it is not whole yet.
    #[cold]
    fn complete<'a, G: Ground>(
        &mut self,
        data: &'a [u8],
        ground: &mut G,
        counters: &mut Counters,
    ) -> Result<&'a [u8], DownReason> {
        match std::mem::take(&mut self.partial) {
            Partial::Nothing => Ok(data),
            Partial::Short(octets) => self.complete_short(octets, data, ground, counters),
            Partial::Long(mut body) => {
                let (_, rest) = data.split_at(body.append(data));
                if body.missing() > 0 {
                    self.partial = Partial::Long(body);
                    return Ok(rest);
                }
                let header = body.header;
                let payload = ArrivingPayload::Whole(body.into_body());
                self.take(&header, payload, ground, counters)?;
                Ok(rest)
            }
            Partial::Lent { .. } => Err(DownReason::Error), // the reader's mistake
        }
    }

    /// The same for a header or a short message. Only what belongs to it is copied.
    fn complete_short<'a, G: Ground>(
        &mut self,
        mut octets: Vec<u8>,
        data: &'a [u8],
        ground: &mut G,
        counters: &mut Counters,
    ) -> Result<&'a [u8], DownReason> {
        let missing = HEADER_BYTES.saturating_sub(octets.len()).min(data.len());
        let (head, data) = data.split_at(missing);
        octets.extend_from_slice(head);
        let Some(header_octets) = octets.first_chunk() else {
            self.partial = Partial::Short(octets);
            return Ok(data);
        };
        let header = self.checked(header_octets)?;
        let total = payload_bytes(header_octets);
        let here = octets.len() - HEADER_BYTES;
        if here == 0
            && let Some((payload, rest)) = data.split_at_checked(total)
        {
            self.take(
                &header,
                ArrivingPayload::Borrowed(payload),
                ground,
                counters,
            )?;
            return Ok(rest);
        }
        let (body, rest) = data.split_at((total - here).min(data.len()));
        if total >= LONG_BYTES {
            // Only a header was kept of a long message.
            self.partial = Partial::Long(BodyReading::new(header, total, body, self.stream));
            return Ok(rest);
        }
        octets.extend_from_slice(body);
        match octets.get(HEADER_BYTES..HEADER_BYTES + total) {
            None => self.partial = Partial::Short(octets),
            Some(payload) => {
                self.take(
                    &header,
                    ArrivingPayload::Borrowed(payload),
                    ground,
                    counters,
                )?;
            }
        }
        Ok(rest)
    }

    /// Keep an incomplete message whose header, if it is whole, was checked.
    fn keep(&mut self, rest: &[u8]) {
        if rest.is_empty() {
            return;
        }
        if let Some((octets, head)) = rest.split_first_chunk()
            && payload_bytes(octets) >= LONG_BYTES
        {
            let header = Header::parse(octets);
            let body = BodyReading::new(header, payload_bytes(octets), head, self.stream);
            self.partial = Partial::Long(body);
            return;
        }
        self.partial = Partial::Short(rest.to_vec());
    }

    /// Read a header that may be taken further: of a bounded length and not damaged.
    #[inline]
    fn checked(&self, octets: &[u8; HEADER_BYTES]) -> Result<Header, DownReason> {
        if payload_bytes(octets) > self.limits.frame_bytes_max {
            return Err(DownReason::TooLong);
        }
        if self.checksum && !is_intact(octets) {
            return Err(DownReason::BadChecksum);
        }
        Ok(Header::parse(octets))
    }

    /// Take one whole message; every message comes through here.
    #[inline]
    fn take<G: Ground>(
        &mut self,
        header: &Header,
        payload: ArrivingPayload<'_>,
        ground: &mut G,
        counters: &mut Counters,
    ) -> Result<(), DownReason> {
        self.frames += 1;
        self.acknowledged = self.acknowledged.max(header.ack);
        if header.flags & FLAG_ACK_REQUIRED != 0 {
            self.acknowledgement_due = true;
            counters.recv_ack_required += 1;
        }
        let is_plain = header.flags & !FLAG_ACK_REQUIRED == 0
            && header.source_port >= PORT_FIRST
            && header.target_port != 0
            && self.accepted
            && header.sequence >= self.sequence_expected;
        if !is_plain && !self.judge(header, payload.octets(), counters)? {
            return Ok(());
        }
        // No number is above the last one: it is expected for ever, and a repeat of it not dropped.
        self.sequence_expected = header.sequence.saturating_add(1);
        let octets = payload.octets().len();
        let message = Arriving {
            source_port: header.source_port,
            extension: header.extension,
            payload,
        };
        if ground.deliver(header.target_port, message) {
            self.has_delivered = true;
            counters.recv_queued += 1;
            counters.recv_bytes_added_to_sock += octets as u64;
        } else {
            counters.recv_drop_no_sock += 1;
        }
        if self.acknowledging {
            self.owe(octets);
        }
        Ok(())
    }

    /// Count what an own node's acknowledgement will cover; make it due at the bounds.
    #[inline]
    fn owe(&mut self, octets: usize) {
        self.messages_owed += 1;
        self.bytes_owed += octets;
        if self.messages_owed >= self.limits.acknowledge_messages
            || self.bytes_owed >= self.limits.acknowledge_bytes
        {
            self.acknowledgement_due = true;
        }
    }
}

/// The announced length, which may be anything up to 4 GiB.
#[inline]
fn payload_bytes(header: &[u8; HEADER_BYTES]) -> usize {
    let [.., a, b, c, d] = header.first_chunk::<20>().expect("20 of 48 octets");
    u32::from_be_bytes([*a, *b, *c, *d]) as usize
}

/// Tell whether the checksum agrees; one of 0 agrees with everything.
///
/// The sum is taken modulo 65535 over native words: the order of octets only turns the sum round,
/// and zero stays zero. `Header::verify` says the same field by field.
#[inline]
fn is_intact(octets: &[u8; HEADER_BYTES]) -> bool {
    if octets[30] == 0 && octets[31] == 0 {
        return true;
    }
    let (words, _) = octets.as_chunks::<4>();
    let sum: u64 = words
        .iter()
        .map(|word| u64::from(u32::from_ne_bytes(*word)))
        .sum();
    sum.is_multiple_of(0xFFFF)
}
