//! What becomes of a message that is not plainly the next one, and whose life its number is of.
//!
//! Numbers. A sequence may skip forward (a cancelled message leaves a hole). It falls back only in
//! two cases: a new stream repeats what the old one carried, flagged RETRANSMITTED, and such
//! repeats below the expected number are dropped; or the peer began a new life. A new life of an
//! own node says so in the header of each map, and a map opens each stream: its numbers count
//! afresh, whatever its clock says. A new life of a Linux kernel must be recognised *before* the
//! duplicate rule, else its first messages look like old repeats (Source: observed with linux
//! v6.1, v6.12, v7.2, see docs/protocol/rds-tcp.md):
//!
//! ```text
//! a  a number below the expected one without the flag: taken, the expected number follows
//! b  a probe with another generation, or without one although a probe was seen before
//! c  a repeat below everything that the last stream with traffic carried
//! ```

use crate::constants::{CONGESTION_MAP_BYTES, FLAG_CONG_BITMAP, FLAG_RETRANSMITTED, PROBE_PORT};
use crate::counters::Counters;
use crate::header::Header;
use crate::incoming::{ControlMessage, Incoming};
use crate::kinds::DownReason;

const CONTROL_PAYLOAD_BYTES: usize = 64;

/// What a path knows of its peer's numbers: it tells a repeat from a new message.
///
/// It outlives a path: taken out of one that is closed and put into the next one to the same peer,
/// which then judges as if it had been there all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    pub sequence_expected: u64,
    /// Lowest of the last stream with traffic.
    pub floor: Option<u64>,
    /// Of a kernel's probe.
    pub probe_sequence: Option<u64>,
    /// That a kernel told.
    pub generation: Option<u64>,
    /// That an own node told in its maps.
    pub life: Option<u64>,
    /// By its numbers, for a kernel does not always tell.
    pub watch_restarts: bool,
}

impl Incoming {
    /// The numbers, for a later path to the same peer.
    pub fn received(&self) -> Received {
        Received {
            sequence_expected: self.sequence_expected,
            floor: self.lowest.or(self.floor),
            probe_sequence: self.lives.probe_sequence,
            generation: self.lives.generation,
            life: self.lives.life,
            watch_restarts: self.watch_restarts,
        }
    }

    /// Go on with these numbers; before the first stream.
    pub fn expect(&mut self, received: Received) {
        self.sequence_expected = received.sequence_expected;
        self.floor = received.floor;
        self.lives.probe_sequence = received.probe_sequence;
        self.lives.generation = received.generation;
        self.lives.life = received.life;
        self.watch_restarts = received.watch_restarts;
    }

    /// Begin a new life of an own node.
    ///
    /// The expected number stays: it is the new life's since its first map, and its messages may
    /// have been arriving for several streams before it could say hello.
    pub fn restart_peer(&mut self) {
        self.floor = None;
    }

    /// Note a kernel's generation; `None` if it sends none (up to linux v6.19).
    pub fn remember_generation(&mut self, generation: Option<u64>) {
        self.lives.generation = generation;
    }

    /// Decide on a message that is not plainly next: true if it is for a mailbox.
    ///
    /// Its number then counts as received once it lies there, which the caller sees to, as to
    /// what the header acknowledges and asks for.
    ///
    /// # Errors
    /// A map that is none.
    pub(crate) fn judge(
        &mut self,
        header: &Header,
        payload: &[u8],
        counters: &mut Counters,
    ) -> Result<bool, DownReason> {
        // Exactly this flag: kernel parity.
        if header.flags == FLAG_CONG_BITMAP {
            return self.keep_map(header, payload).map(|()| false);
        }
        let sequence = header.sequence;
        let from_or_to_socket = header.source_port != 0 || header.target_port != 0;
        let is_repeat = header.flags & FLAG_RETRANSMITTED != 0;
        let is_control = header.target_port == 0
            || (header.source_port == 0 && header.target_port == PROBE_PORT);
        // Before anything else, for it may tell of another life.
        if is_control && from_or_to_socket && !self.admits_control(header, counters) {
            return Ok(false);
        }
        if sequence == 0 && !is_repeat && is_control {
            // A hello, its answer, or an acknowledgement of an own node: outside the numbers.
            if from_or_to_socket {
                self.keep_control(header, payload);
            } else {
                counters.ack_received += 1;
            }
            return Ok(false);
        }
        if self.watch_restarts && self.is_new_life(header) {
            self.sequence_expected = 0;
            self.floor = None;
            self.restarted = true;
        }
        // Dropped repeats count: a stream may be cut before it repeats what the next one repeats.
        self.lowest = Some(self.lowest.map_or(sequence, |lowest| lowest.min(sequence)));
        if header.source_port == PROBE_PORT && header.target_port == 0 {
            self.lives.probe_sequence = Some(sequence);
        }
        if is_repeat && sequence < self.sequence_expected {
            counters.recv_drop_old_seq += 1;
            return Ok(false);
        }
        self.accepted = true;
        if !is_control {
            return Ok(true);
        }
        self.sequence_expected = sequence.saturating_add(1);
        if from_or_to_socket {
            self.keep_control(header, payload);
        }
        Ok(false)
    }

    /// Keep the peer's map. Of an own node it may tell another life, whose numbers count afresh.
    fn keep_map(&mut self, header: &Header, payload: &[u8]) -> Result<(), DownReason> {
        let Ok(octets) = <&[u8; CONGESTION_MAP_BYTES]>::try_from(payload) else {
            return Err(DownReason::BadMap);
        };
        match &mut self.peer_map {
            Some(kept) => kept.copy_from_slice(octets),
            none => *none = Some(Box::new(*octets)),
        }
        if self.lives.is_new_by_map(&header.extension) {
            self.sequence_expected = 0;
            self.floor = None;
        }
        Ok(())
    }

    /// Tell whether a kernel began anew (rules b and c); looked at before the duplicates.
    fn is_new_life(&mut self, header: &Header) -> bool {
        let is_repeat = header.flags & FLAG_RETRANSMITTED != 0;
        let is_old = is_repeat && header.sequence < self.sequence_expected;
        let is_below = self.floor.is_some_and(|floor| header.sequence < floor);
        (is_old && is_below) || self.lives.is_new_by_probe(header)
    }

    /// Count a ping, pong or probe; tell whether it is within the budget.
    fn admits_control(&mut self, header: &Header, counters: &mut Counters) -> bool {
        counters.recv_ping += u64::from(header.target_port == 0);
        let is_handshake = [header.source_port, header.target_port].contains(&PROBE_PORT);
        let is_admitted = self.control_budget.admits(self.now_ns, is_handshake);
        counters.recv_drop_control_full += u64::from(!is_admitted);
        is_admitted
    }

    fn keep_control(&mut self, header: &Header, payload: &[u8]) {
        self.controls.push_back(ControlMessage {
            sequence: header.sequence,
            acknowledgement: header.ack,
            source_port: header.source_port,
            target_port: header.target_port,
            extension: header.extension,
            payload: payload[..payload.len().min(CONTROL_PAYLOAD_BYTES)].to_vec(),
        });
    }
}
