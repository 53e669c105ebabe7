//! One ordered stream to a peer, as a value machine: octets and calls go in, octets come out.
//!
//! `PathCore` joins the two directions: what is received acknowledges what was sent, what is sent
//! carries the acknowledgement of what was received. It knows nothing of sockets, threads or
//! clocks; the shell drives it:
//!
//! - `attach`, `detach`: a stream came, a stream went;
//! - `receive`, `resume_body`: octets off the stream;
//! - `poll_transmit`, `transmitted`: octets for the stream, and how many of them it took;
//! - `handle_stream_acknowledged`, `poll_timeout`, `handle_timeout`.
//!
//! Order on a fresh stream: our congestion map; the hello, if any; then, once not held, repeats and
//! new messages. Acknowledgements and maps are not numbered and stand between whole messages only.
//!
//! Numbers belong to a life of the node that gave them. The header of a map tells the life, so that
//! the first octets of a stream say whose numbers follow; and nothing acknowledges before the
//! peer's first frame, which says whose numbers it would be about. See
//! docs/adr/0008-the-map-tells-the-life.md.

use crate::congestion_map::CongestionMap;
use crate::constants::{FLAG_ACK_REQUIRED, LONG_BYTES, PROBE_PORT};
use crate::counters::Counters;
use crate::extension::emit_life;
use crate::fence::Fence;
use crate::framing::{frame_map, frame_word};
use crate::incoming::{BodyReading, Ground, Incoming};
use crate::kinds::{DownReason, Extension, Hold, NO_EXTENSION, Owner, Release};
use crate::limits::Limits;
use crate::offer::Offer;
use crate::outgoing::{Freed, Outgoing};
use crate::payload::Payload;

/// Octets of one write.
const WRITE_BYTES: usize = 65536;
/// The same of long messages: a write of them costs by their number, so more of them fit.
const LONG_WRITE_BYTES: usize = 524_288;
const NO_PORTS: (u16, u16) = (0, 0);

/// State of one path; no locks, whoever drives it serialises the calls.
#[derive(Debug)]
pub struct PathCore {
    limits: Limits,
    pub outgoing: Outgoing,
    pub incoming: Incoming,
    life: Extension,
    /// There is a stream.
    pub attached: bool,
    pub hold: Hold,
    /// Our congestion map is to be sent.
    pub map_due: bool,
    hellos: Vec<((u16, u16), Extension)>, // by their ports
    out: Offer,
    out_octets: usize, // framed and not taken by the stream, also while an offer is out
    is_out: bool,
    stream: u64, // counts streams, so that an offer of an earlier one is known
    /// Octets handed to the current stream.
    pub octets_written: u64,
    owed_since_ns: Option<u64>,
}

impl PathCore {
    /// A path without a stream. `generation` names the life of this node in its maps.
    pub fn new(limits: Limits, sequence_first: u64, generation: Option<u32>) -> Self {
        Self {
            limits,
            outgoing: Outgoing::new(limits, sequence_first),
            incoming: Incoming::new(limits),
            life: generation.map_or(NO_EXTENSION, emit_life),
            attached: false,
            hold: Hold::Nothing,
            map_due: false,
            hellos: Vec::new(),
            out: Offer::default(),
            out_octets: 0,
            is_out: false,
            stream: 0,
            octets_written: 0,
            owed_since_ns: None,
        }
    }

    // -- the stream comes and goes

    /// Begin a stream with our congestion map; nothing else leaves while held.
    pub fn attach(&mut self, hold: Hold) {
        debug_assert!(!self.attached, "the shell detaches first");
        self.attached = true;
        self.hold = hold;
        self.map_due = true;
        self.hellos.clear();
        self.octets_written = 0;
        self.incoming.begin_stream();
    }

    /// End the stream: what is unacknowledged will be repeated, what is partial is forgotten.
    pub fn detach(&mut self, counters: &mut Counters) {
        self.attached = false;
        self.hold = Hold::Nothing;
        self.map_due = false;
        self.hellos.clear();
        self.out.clear();
        self.out.rest();
        self.out_octets = 0;
        self.is_out = false;
        self.stream += 1;
        self.owed_since_ns = None;
        self.outgoing.end_stream();
        self.incoming.end_stream();
        counters.conn_reset += 1;
    }

    /// End `Hold::Release`; what the peer says it has is not repeated.
    pub fn release(&mut self, received_by_peer: Option<u64>) {
        if let Some(sequence) = received_by_peer {
            self.outgoing.forget_repeats(sequence);
        }
        if self.hold == Hold::Release {
            self.hold = Hold::Nothing;
        }
    }

    /// Set what the handshake found out about the peer.
    pub fn agree(&mut self, release: Release, checksum: bool) {
        let own_node = release == Release::PeerAcknowledged;
        self.outgoing.release = release;
        self.outgoing.checksum = checksum;
        self.incoming.checksum = checksum;
        self.incoming.acknowledging = own_node;
        self.incoming.watch_restarts = !own_node;
        // What arrived before the agreement was not counted as owed; tell it at once. The peer may
        // have done so already.
        self.incoming.acknowledgement_due = own_node && self.incoming.frames > 0;
        if own_node && self.incoming.acknowledged > 0 {
            self.outgoing
                .handle_peer_acknowledged(self.incoming.acknowledged);
        }
    }

    /// Begin a new life of the peer; return how many messages its old life took with it.
    pub fn restart_peer(&mut self) -> usize {
        self.incoming.restart_peer();
        self.outgoing.drop_handed_over()
    }

    // -- what goes out

    /// Queue a message of a socket; the caller has checked every bound and adds to the account.
    #[inline]
    pub fn send(
        &mut self,
        owner: Owner,
        source_port: u16,
        target_port: u16,
        payload: Payload,
        extension: Extension,
    ) {
        self.outgoing
            .queue(Some(owner), source_port, target_port, payload, extension);
    }

    /// Queue a message of the control plane.
    ///
    /// A hello waits for the peer's first frame; it replaces one of its ports that has not left.
    pub fn control(
        &mut self,
        source_port: u16,
        target_port: u16,
        extension: Extension,
        hello: bool,
        counters: &mut Counters,
    ) {
        let ports = (source_port, target_port);
        if !hello {
            if source_port == PROBE_PORT || target_port == PROBE_PORT {
                self.outgoing.forget_probes();
            }
            self.outgoing
                .queue_ahead(source_port, target_port, extension);
            counters.send_pong += 1;
        } else if let Some(waiting) = self.hellos.iter_mut().find(|waiting| waiting.0 == ports) {
            waiting.1 = extension;
        } else {
            self.hellos.push((ports, extension));
        }
    }

    /// Hold new messages back until another path's fence is open.
    pub fn hold_behind(&mut self, fence: Fence) {
        self.outgoing.gate = Some(fence);
    }

    /// Whether `poll_transmit` would return octets, or an offer is out.
    pub fn wants_to_write(&self) -> bool {
        if !self.attached {
            return false;
        }
        if self.out_octets > 0 || self.map_due || self.incoming.acknowledgement_due {
            return true;
        }
        if self.outgoing.asks() {
            return true;
        }
        if !self.hellos.is_empty() && self.incoming.frames > 0 {
            return true;
        }
        if self.hold != Hold::Nothing {
            return false;
        }
        let outgoing = &self.outgoing;
        !outgoing.repeats.is_empty() || (!outgoing.unsent.is_empty() && !outgoing.is_gated())
    }

    /// Whether a message may leave at once if it finds nothing queued and nothing unacknowledged.
    pub fn is_plain(&self) -> bool {
        let outgoing = &self.outgoing;
        self.attached
            && self.hold == Hold::Nothing
            && outgoing.release == Release::PeerAcknowledged
            && self.out_octets == 0
            && !self.map_due
            && self.hellos.is_empty()
            && outgoing.repeats.is_empty()
            && outgoing.gate.is_none()
            && !outgoing.has_fences()
            && !outgoing.acknowledgement_wanted
            && !outgoing.question_due
            && self.limits.path_messages_max > 1 // else one more fills it
            && self.limits.unacked_packets_max > 1 // else each asks for an acknowledgement
            && self.limits.unacked_bytes_max > LONG_BYTES
    }

    /// Whether new messages wait for another path's fence.
    pub fn is_gated(&self) -> bool {
        self.outgoing.is_gated()
    }

    /// Take octets for the stream, 64 KiB or some long messages; `None` if there are none.
    ///
    /// The offer is the caller's until it is given back with `transmitted`; meanwhile there is no
    /// other. What it did not take comes first in the next one.
    pub fn poll_transmit(&mut self, map: &CongestionMap, counters: &mut Counters) -> Option<Offer> {
        debug_assert!(!self.is_out, "one offer at a time");
        if self.attached && !self.is_out && self.out_octets < WRITE_BYTES {
            self.frame(map, counters);
        }
        if self.is_out || self.out_octets == 0 {
            return None;
        }
        self.is_out = true;
        self.out.stream = self.stream;
        Some(std::mem::take(&mut self.out))
    }

    fn frame(&mut self, map: &CongestionMap, counters: &mut Counters) {
        if self.map_due {
            self.frame_map(map, counters);
        }
        if !self.hellos.is_empty() && self.incoming.frames > 0 {
            self.frame_hellos();
        }
        let outgoing = &self.outgoing;
        let waits = !(outgoing.unsent.is_empty() && outgoing.repeats.is_empty());
        if waits && self.hold == Hold::Nothing {
            self.frame_messages(counters);
        }
        if self.incoming.acknowledgement_due || self.outgoing.asks() {
            self.frame_acknowledgement(counters);
        }
        self.out_octets = self.out.len();
    }

    /// Frame our map; it tells our life unless the peer is known to be a kernel.
    fn frame_map(&mut self, map: &CongestionMap, counters: &mut Counters) {
        self.map_due = false;
        let to_kernel = self.outgoing.release == Release::StreamAcknowledged;
        let extension = if to_kernel { NO_EXTENSION } else { self.life };
        // Frames without a number count as stream octets: Linux frees by the stream's count.
        self.outgoing.position += frame_map(&mut self.out, map, extension, self.outgoing.checksum);
        counters.cong_update_queued += 1;
    }

    fn frame_hellos(&mut self) {
        let ack = self.newest_received();
        for (ports, extension) in self.hellos.drain(..) {
            self.outgoing.position += frame_word(
                &mut self.out,
                ack,
                0,
                ports,
                extension,
                self.outgoing.checksum,
            );
        }
    }

    fn frame_messages(&mut self, counters: &mut Counters) {
        let acknowledging = self.incoming.acknowledging;
        let acknowledgement = if acknowledging {
            self.newest_received()
        } else {
            0
        };
        let octets_max = if self.outgoing.is_long() {
            LONG_WRITE_BYTES
        } else {
            WRITE_BYTES
        };
        let octets_max = octets_max.saturating_sub(self.out.len());
        let made = self
            .outgoing
            .frame(&mut self.out, octets_max, acknowledgement, counters);
        if made > 0 && acknowledging {
            self.forget_owed(); // every data header carries it
        }
    }

    /// At most one: it tells the newest number, and counts as sent once it is octets. It asks for
    /// the peer's if somebody waits for that.
    fn frame_acknowledgement(&mut self, counters: &mut Counters) {
        if self.incoming.acknowledging {
            let mut flags = 0;
            if self.outgoing.asks() {
                self.outgoing.question_due = false;
                flags = FLAG_ACK_REQUIRED;
                counters.send_ack_required += 1;
            }
            let (ack, checksum) = (self.newest_received(), self.outgoing.checksum);
            self.outgoing.position +=
                frame_word(&mut self.out, ack, flags, NO_PORTS, NO_EXTENSION, checksum);
            counters.ack_sent += 1;
        }
        self.forget_owed();
    }

    fn newest_received(&self) -> u64 {
        self.incoming.sequence_expected.saturating_sub(1)
    }

    fn forget_owed(&mut self) {
        self.incoming.reset_owed();
        self.owed_since_ns = None;
    }

    /// Give an offer back of which the stream took the first `taken` octets.
    ///
    /// One of an earlier stream is dropped: its messages are repeated on this one.
    pub fn transmitted(&mut self, offer: Offer, taken: usize) {
        if offer.stream != self.stream || !self.is_out {
            return;
        }
        self.is_out = false;
        self.octets_written += taken as u64;
        self.out = offer;
        self.out.advance(taken);
        self.out_octets = self.out.len();
    }

    // -- what comes in

    /// Take octets off the stream, any number.
    ///
    /// # Errors
    /// Why the stream must end; what came before the fault is delivered.
    pub fn receive<G: Ground>(
        &mut self,
        data: &[u8],
        now_ns: u64,
        ground: &mut G,
        counters: &mut Counters,
    ) -> Result<(), DownReason> {
        self.incoming.now_ns = now_ns;
        let result = self.incoming.receive(data, ground, counters);
        self.settle_received(now_ns, result)
    }

    /// Go on with a long body that the reader had; see `Incoming::take_body`.
    ///
    /// # Errors
    /// As `receive`.
    pub fn resume_body<G: Ground>(
        &mut self,
        body: BodyReading,
        now_ns: u64,
        ground: &mut G,
        counters: &mut Counters,
    ) -> Result<(), DownReason> {
        self.incoming.now_ns = now_ns;
        let result = self.incoming.resume_body(body, ground, counters);
        self.settle_received(now_ns, result)
    }

    fn settle_received(
        &mut self,
        now_ns: u64,
        result: Result<(), DownReason>,
    ) -> Result<(), DownReason> {
        let incoming = &self.incoming;
        if incoming.frames > 0 && self.hold == Hold::FirstFrame {
            self.hold = Hold::Nothing;
        }
        if incoming.acknowledging {
            if incoming.messages_owed > 0 && self.owed_since_ns.is_none() {
                self.owed_since_ns = Some(now_ns);
            }
            let acknowledged = incoming.acknowledged;
            if acknowledged > 0 && !self.outgoing.handle_peer_acknowledged(acknowledged) {
                return result.and(Err(DownReason::BadAcknowledgement));
            }
        }
        result
    }

    /// Free what lies in the first `octets`, which the peer's TCP has.
    ///
    /// Nothing is freed before the peer's first frame: TCP acknowledges also what a peer that then
    /// refuses the connection never reads.
    pub fn handle_stream_acknowledged(&mut self, octets: u64) {
        if self.incoming.frames > 0 && self.outgoing.release == Release::StreamAcknowledged {
            self.outgoing.handle_stream_acknowledged(octets);
        }
    }

    /// Make an acknowledgement due at once if one is owed: later there may be no stream.
    pub fn acknowledge(&mut self) {
        self.incoming.acknowledgement_due |= self.attached && self.incoming.messages_owed > 0;
    }

    /// Have the peer acknowledge what is queued or sent as soon as it has it: somebody waits.
    pub fn ask(&mut self) {
        self.outgoing.question_due = self.outgoing.message_count() > 0;
    }

    /// Exchange what messages freed since the last call for `spare`, which is emptied first.
    pub fn take_freed(&mut self, spare: &mut Vec<Freed>) {
        self.outgoing.take_freed(spare);
    }

    // -- time

    /// Whether messages wait for the peer's first frame or hello.
    pub fn is_held(&self) -> bool {
        self.hold != Hold::Nothing
    }

    /// When `handle_timeout` has something to do.
    pub fn poll_timeout(&self) -> Option<u64> {
        Some(
            self.owed_since_ns?
                .saturating_add(self.limits.acknowledge_delay_ns),
        )
    }

    /// Make an acknowledgement due that found no message to ride on.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self
            .poll_timeout()
            .is_some_and(|deadline_ns| now_ns >= deadline_ns)
        {
            self.incoming.acknowledgement_due = true;
        }
    }

    /// Give back memory that a path which was idle for a while does not need.
    pub fn rest(&mut self) {
        self.out.rest();
        self.outgoing.rest();
    }
}
