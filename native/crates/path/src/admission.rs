//! Admission of a message that is not plainly the next one, and detection of a peer's restart.
//!
//! Numbers. A sequence may skip forward (a cancelled message leaves a hole). It falls back only in
//! two cases: a new stream retransmits messages of the old one, flagged RETRANSMITTED, and those
//! below the expected number are dropped; or the peer restarted. A urds node sends its generation
//! in the header of each map, and a map opens each stream: its numbers count afresh, whatever its
//! clock says. A Linux kernel's restart must be detected *before* the duplicate rule, else its
//! first messages look like old duplicates (Source: observed with linux v6.1, v6.12, v7.2, see
//! docs/protocol/rds-tcp.md):
//!
//! ```text
//! a  a number below the expected one without the flag: taken, the expected number follows
//! b  a probe with another generation, or without one although a probe was seen before
//! c  a retransmission below every number on the last stream with traffic
//! ```

use crate::constants::{CONGESTION_MAP_BYTES, FLAG_CONG_BITMAP, FLAG_RETRANSMITTED, PROBE_PORT};
use crate::counters::Counters;
use crate::header::Header;
use crate::kinds::DownReason;
use crate::receiver::{ControlMessage, Incoming};

const CONTROL_PAYLOAD_BYTES: usize = 64;

/// The peer's numbers on a path: they tell a retransmission from a new message.
///
/// They outlive a path: taken out of a closed one and put into the next one to the same peer, which
/// then decides as if it had existed all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    pub sequence_expected: u64,
    /// Lowest of the last stream with traffic.
    pub floor: Option<u64>,
    /// Of a kernel's probe.
    pub probe_sequence: Option<u64>,
    /// The kernel's generation.
    pub generation: Option<u64>,
    /// The generation in a urds node's maps.
    pub map_generation: Option<u64>,
    /// By its numbers, since a kernel does not always send its generation.
    pub watch_restarts: bool,
}

impl Incoming {
    /// The numbers, for a later path to the same peer.
    pub fn received(&self) -> Received {
        Received {
            sequence_expected: self.sequence_expected,
            floor: self.lowest.or(self.floor),
            probe_sequence: self.generations.probe_sequence,
            generation: self.generations.generation,
            map_generation: self.generations.map_generation,
            watch_restarts: self.watch_restarts,
        }
    }

    /// Continue with these numbers; before the first stream.
    pub fn expect(&mut self, received: Received) {
        self.sequence_expected = received.sequence_expected;
        self.floor = received.floor;
        self.generations.probe_sequence = received.probe_sequence;
        self.generations.generation = received.generation;
        self.generations.map_generation = received.map_generation;
        self.watch_restarts = received.watch_restarts;
    }

    /// Note the restart of a urds node.
    ///
    /// The expected number stays: it counts the new generation since its first map, and its
    /// messages may have been arriving for several streams before its hello.
    pub fn restart_peer(&mut self) {
        self.floor = None;
    }

    /// Note a kernel's generation; `None` if it sends none (up to linux v6.19).
    pub fn remember_generation(&mut self, generation: Option<u64>) {
        self.generations.generation = generation;
    }

    /// Check a message that is not plainly next: true if it is for a mailbox.
    ///
    /// The caller counts its number as received once it is in the mailbox, and handles the
    /// acknowledgement and the request in its header.
    ///
    /// # Errors
    /// A congestion map of a wrong length.
    pub(crate) fn accept_or_drop(
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
        let is_retransmit = header.flags & FLAG_RETRANSMITTED != 0;
        let is_control = header.target_port == 0
            || (header.source_port == 0 && header.target_port == PROBE_PORT);
        // First, since it may announce a restart.
        if is_control && from_or_to_socket && !self.admits_control(header, counters) {
            return Ok(false);
        }
        if sequence == 0 && !is_retransmit && is_control {
            // A hello, its answer, or an acknowledgement of a urds node: outside the numbers.
            if from_or_to_socket {
                self.keep_control(header, payload);
            } else {
                counters.ack_received += 1;
            }
            return Ok(false);
        }
        if self.watch_restarts && self.is_restart(header) {
            self.sequence_expected = 0;
            self.floor = None;
            self.restarted = true;
        }
        // Dropped duplicates count: a stream may be cut before it retransmits the next ones.
        self.lowest = Some(self.lowest.map_or(sequence, |lowest| lowest.min(sequence)));
        if header.source_port == PROBE_PORT && header.target_port == 0 {
            self.generations.probe_sequence = Some(sequence);
        }
        if is_retransmit && sequence < self.sequence_expected {
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

    /// Keep the peer's map. A urds node's map with another generation counts its numbers afresh.
    fn keep_map(&mut self, header: &Header, payload: &[u8]) -> Result<(), DownReason> {
        let Ok(bytes) = <&[u8; CONGESTION_MAP_BYTES]>::try_from(payload) else {
            return Err(DownReason::BadMap);
        };
        match &mut self.peer_map {
            Some(kept) => kept.copy_from_slice(bytes),
            none => *none = Some(Box::new(*bytes)),
        }
        if self.generations.is_new_by_map(&header.extension) {
            self.sequence_expected = 0;
            self.floor = None;
        }
        Ok(())
    }

    /// Return whether a kernel restarted (rules b and c); checked before the duplicates.
    fn is_restart(&mut self, header: &Header) -> bool {
        let is_retransmit = header.flags & FLAG_RETRANSMITTED != 0;
        let is_old = is_retransmit && header.sequence < self.sequence_expected;
        let is_below = self.floor.is_some_and(|floor| header.sequence < floor);
        (is_old && is_below) || self.generations.is_new_by_probe(header)
    }

    /// Count a ping, pong or probe; return whether it is within the budget.
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
