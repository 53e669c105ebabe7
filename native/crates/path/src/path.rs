//! One ordered stream to a peer, as a value machine: bytes and calls go in, bytes come out.
//!
//! `PathCore` joins the two directions: a received frame acknowledges sent messages, a sent frame
//! acknowledges received ones. It knows nothing of sockets, threads or clocks; the shell calls it:
//!
//! - `attach`, `detach`: a stream came, a stream went;
//! - `receive`, `resume_body`: bytes off the stream;
//! - `poll_transmit`, `transmitted`: bytes for the stream, and how many of them it took;
//! - `handle_stream_acknowledged`, `poll_timeout`, `handle_timeout`.
//!
//! Order on a fresh stream: local congestion map; hello, if any; then, once not held,
//! retransmissions and new messages. Acknowledgements and maps are not numbered and stand between
//! messages only.
//!
//! Numbers belong to a generation of the node that gave them. The header of a map has it, so that
//! the first bytes of a stream identify the numbers that follow; and nothing acknowledges before
//! the peer's first frame, which carries its generation. See
//! docs/adr/0008-the-map-tells-the-life.md.

use crate::congestion_map::CongestionMap;
use crate::constants::{
    CONGESTION_MAP_BYTES, FLAG_ACK_REQUIRED, FLAG_CONG_BITMAP, LONG_BYTES, PROBE_PORT,
};
use crate::counters::Counters;
use crate::extension::emit_generation;
use crate::fence::Fence;
use crate::freed::Freed;
use crate::header::Header;
use crate::kinds::{AckMode, DownReason, Extension, Hold, NO_EXTENSION, Owner};
use crate::limits::Limits;
use crate::payload::Payload;
use crate::receiver::{BodyReading, MessageSink, Receiver};
use crate::sender::Sender;
use crate::write_buffer::WriteBuffer;

/// Bytes of one write.
const WRITE_BYTES: usize = 65536;
/// The same of long messages: their number is the cost of a write, so more of them fit.
const LONG_WRITE_BYTES: usize = 524_288;
const NO_PORTS: (u16, u16) = (0, 0);

/// State of one path; no locks: the caller serialises the calls.
#[derive(Debug)]
pub struct PathCore {
    limits: Limits,
    pub sender: Sender,
    pub receiver: Receiver,
    map_generation: Extension,
    /// There is a stream.
    pub attached: bool,
    pub hold: Hold,
    /// The local congestion map is to be sent.
    pub map_due: bool,
    hellos: Vec<((u16, u16), Extension)>, // by their ports
    out: WriteBuffer,
    out_bytes: usize, // framed and not taken by the stream, also while a write buffer is out
    is_out: bool,
    stream: u64, // counts streams, to tell a write buffer of an earlier one
    /// Bytes handed to the current stream.
    pub bytes_written: u64,
    ack_pending_since_ns: Option<u64>,
}

impl PathCore {
    /// Return a path without a stream. The maps of this node carry `generation`.
    pub fn new(limits: Limits, sequence_first: u64, generation: Option<u32>) -> Self {
        Self {
            limits,
            sender: Sender::new(limits, sequence_first),
            receiver: Receiver::new(limits),
            map_generation: generation.map_or(NO_EXTENSION, emit_generation),
            attached: false,
            hold: Hold::Nothing,
            map_due: false,
            hellos: Vec::new(),
            out: WriteBuffer::default(),
            out_bytes: 0,
            is_out: false,
            stream: 0,
            bytes_written: 0,
            ack_pending_since_ns: None,
        }
    }

    // -- the stream comes and goes

    /// Send nothing new any more but, behind the retransmissions, a ping from `port`; return whether
    /// an answer can come. From now on only that answer frees what was sent.
    ///
    /// For a kernel, whose answer tells that it has handled all before it.
    pub fn ask(&mut self, port: u16) -> bool {
        if !self.attached || self.hold != Hold::Nothing || self.receiver.frames == 0 {
            return false; // it has nothing of this stream
        }
        self.sender.last = Some((port, None));
        self.receiver.answer_port = Some(port);
        true
    }

    /// Whether the last ping is answered.
    pub fn is_answered(&self) -> bool {
        self.receiver.is_answered
    }

    /// Begin a stream with the local congestion map; nothing else leaves while held.
    pub fn attach(&mut self, hold: Hold) {
        debug_assert!(!self.attached, "the shell detaches first");
        self.attached = true;
        self.hold = hold;
        self.map_due = true;
        self.hellos.clear();
        self.bytes_written = 0;
        self.receiver.begin_stream();
    }

    /// End the stream: queue unacknowledged messages to retransmit, drop partial ones.
    pub fn detach(&mut self, counters: &mut Counters) {
        self.attached = false;
        self.hold = Hold::Nothing;
        self.map_due = false;
        self.hellos.clear();
        self.out.clear();
        self.out.rest();
        self.out_bytes = 0;
        self.is_out = false;
        self.stream += 1;
        self.ack_pending_since_ns = None;
        self.sender.end_stream();
        self.receiver.end_stream();
        counters.conn_reset += 1;
    }

    /// End `Hold::Hello`; messages that the peer reports received are not retransmitted.
    pub fn end_hold(&mut self, received_by_peer: Option<u64>) {
        if let Some(sequence) = received_by_peer {
            self.sender.forget_retransmits(sequence);
        }
        if self.hold == Hold::Hello {
            self.hold = Hold::Nothing;
        }
    }

    /// Set what the handshake agreed with the peer.
    pub fn agree(&mut self, ack_mode: AckMode, checksum: bool) {
        let urds_node = ack_mode == AckMode::PeerAcknowledged;
        self.sender.ack_mode = ack_mode;
        self.sender.checksum = checksum;
        self.receiver.checksum = checksum;
        self.receiver.acknowledging = urds_node;
        self.receiver.watch_restarts = !urds_node;
        // Messages that arrived before the agreement did not count as pending acknowledgement; send
        // it at once. The peer may have done so already, and ended the stream since.
        self.receiver.acknowledgement_due = urds_node && self.receiver.frames > 0;
        let acknowledged = self.receiver.acknowledged;
        if urds_node && acknowledged > 0 {
            self.sender.handle_peer_acknowledged(acknowledged);
            self.sender.forget_retransmits(acknowledged);
        }
    }

    /// Note the peer's restart; return how many sent messages are lost with it.
    pub fn restart_peer(&mut self) -> usize {
        self.receiver.restart_peer();
        self.sender.drop_handed_over()
    }

    // -- sending

    /// Queue a message of a socket; the caller has checked every limit and adds to the account.
    #[inline]
    pub fn send(
        &mut self,
        owner: Owner,
        source_port: u16,
        target_port: u16,
        payload: Payload,
        extension: Extension,
    ) {
        self.sender
            .queue(Some(owner), source_port, target_port, payload, extension);
    }

    /// The same for a short payload without an extension, which is copied.
    #[inline]
    pub fn send_copy(&mut self, owner: Owner, source_port: u16, target_port: u16, payload: &[u8]) {
        self.sender
            .queue_copy(owner, source_port, target_port, payload);
    }

    /// Queue a message of the control plane.
    ///
    /// A hello waits for the peer's first frame; it replaces an unsent one of its ports.
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
                self.sender.forget_probes();
            }
            self.sender.queue_ahead(source_port, target_port, extension);
            counters.send_pong += 1;
        } else if let Some(waiting) = self.hellos.iter_mut().find(|waiting| waiting.0 == ports) {
            waiting.1 = extension;
        } else {
            self.hellos.push((ports, extension));
        }
    }

    /// Hold new messages back until another path's fence is open.
    pub fn hold_behind(&mut self, fence: Fence) {
        self.sender.fence = Some(fence);
    }

    /// Put a fence behind every message with a number, those that are still to be taken over too.
    ///
    /// It opens no sooner than after `end_take_over`.
    pub fn fence_behind_sent(&mut self, fence: Fence) {
        let last = self.sender.sequence_next.wrapping_sub(1);
        self.sender.fences.push((fence, Some(last)));
    }

    /// Every message of before is taken over.
    pub fn end_take_over(&mut self) {
        self.sender.open_fences();
    }

    /// Whether `poll_transmit` would return bytes, or a write buffer is out.
    pub fn wants_to_write(&self) -> bool {
        if !self.attached {
            return false;
        }
        if self.out_bytes > 0 || self.map_due || self.receiver.acknowledgement_due {
            return true;
        }
        if self.sender.wants_ack() {
            return true;
        }
        if !self.hellos.is_empty() && self.receiver.frames > 0 {
            return true;
        }
        if self.hold != Hold::Nothing {
            return false;
        }
        let sender = &self.sender;
        if sender.last.is_some() {
            return sender.retransmits_len() > 0 || sender.is_last_due();
        }
        sender.retransmits_len() > 0 || (sender.unsent_len() > 0 && !sender.is_gated())
    }

    /// Whether a message may leave at once if no message is queued or unacknowledged.
    pub fn is_plain(&self) -> bool {
        let sender = &self.sender;
        self.attached
            && self.hold == Hold::Nothing
            && sender.ack_mode == AckMode::PeerAcknowledged
            && self.out_bytes == 0
            && !self.map_due
            && self.hellos.is_empty()
            && sender.retransmits_len() == 0
            && sender.fence.is_none()
            && !sender.has_fences()
            && !sender.acknowledgement_wanted
            && !sender.ack_request_due
            && self.limits.path_messages_max > 1 // else one more fills it
            && self.limits.unacked_packets_max > 1 // else each requests an acknowledgement
            && self.limits.unacked_bytes_max > LONG_BYTES
    }

    /// Whether new messages wait for another path's fence.
    pub fn is_gated(&self) -> bool {
        self.sender.is_gated()
    }

    /// Take bytes for the stream, 64 KiB or some long messages; `None` if there are none.
    ///
    /// The caller has the write buffer until it is returned with `transmitted`; meanwhile there is
    /// no other. Bytes not taken come first in the next one.
    pub fn poll_transmit(
        &mut self,
        map: &CongestionMap,
        counters: &mut Counters,
    ) -> Option<WriteBuffer> {
        debug_assert!(!self.is_out, "one write buffer at a time");
        if self.attached && !self.is_out && self.out_bytes < WRITE_BYTES {
            self.frame(map, counters);
        }
        if self.is_out || self.out_bytes == 0 {
            return None;
        }
        self.is_out = true;
        self.out.stream = self.stream;
        Some(std::mem::take(&mut self.out))
    }

    /// Take the memory of `spare` for the next write, if there is none here.
    pub fn borrow_memory(&mut self, spare: &mut WriteBuffer) {
        self.out.take_memory(spare);
    }

    /// Give `spare` the memory of a write of which no byte is left, if it has none.
    ///
    /// Paths that share memory write where the last one did: it is still in the caches.
    pub fn return_memory(&mut self, spare: &mut WriteBuffer) {
        if self.out_bytes == 0 {
            spare.take_memory(&mut self.out);
        }
    }

    fn frame(&mut self, map: &CongestionMap, counters: &mut Counters) {
        if self.map_due {
            self.frame_map(map, counters);
        }
        if !self.hellos.is_empty() && self.receiver.frames > 0 {
            self.frame_hellos();
        }
        let sender = &self.sender;
        let waits = sender.message_count() > sender.unacked_len() || sender.last.is_some();
        if waits && self.hold == Hold::Nothing {
            self.frame_messages(counters);
        }
        if self.receiver.acknowledgement_due || self.sender.wants_ack() {
            self.frame_acknowledgement(counters);
        }
        self.out_bytes = self.out.len();
    }

    /// Frame the local map, with the generation unless the peer is known to be a kernel.
    fn frame_map(&mut self, map: &CongestionMap, counters: &mut Counters) {
        self.map_due = false;
        let to_kernel = self.sender.ack_mode == AckMode::StreamAcknowledged;
        let extension = if to_kernel {
            NO_EXTENSION
        } else {
            self.map_generation
        };
        // Frames without a number count as stream bytes: Linux frees by the stream's count.
        self.sender.position += frame_map(&mut self.out, map, extension, self.sender.checksum);
        counters.cong_update_queued += 1;
    }

    fn frame_hellos(&mut self) {
        let ack = self.newest_received();
        for (ports, extension) in self.hellos.drain(..) {
            self.sender.position += frame_word(
                &mut self.out,
                ack,
                0,
                ports,
                extension,
                self.sender.checksum,
            );
        }
    }

    fn frame_messages(&mut self, counters: &mut Counters) {
        let acknowledging = self.receiver.acknowledging;
        let acknowledgement = if acknowledging {
            self.newest_received()
        } else {
            0
        };
        let bytes_max = if self.sender.is_long() {
            LONG_WRITE_BYTES
        } else {
            WRITE_BYTES
        };
        let bytes_max = bytes_max.saturating_sub(self.out.len());
        let made = self
            .sender
            .frame(&mut self.out, bytes_max, acknowledgement, counters);
        if made > 0 && acknowledging {
            self.forget_ack_pending(); // every data header carries it
        }
    }

    /// Frame one acknowledgement at most: the newest number, sent once it is bytes. It requests the
    /// peer's if a thread waits for that.
    fn frame_acknowledgement(&mut self, counters: &mut Counters) {
        if self.receiver.acknowledging {
            let mut flags = 0;
            if self.sender.wants_ack() {
                self.sender.ack_request_due = false;
                flags = FLAG_ACK_REQUIRED;
                counters.send_ack_required += 1;
            }
            let (ack, checksum) = (self.newest_received(), self.sender.checksum);
            self.sender.position +=
                frame_word(&mut self.out, ack, flags, NO_PORTS, NO_EXTENSION, checksum);
            counters.ack_sent += 1;
        }
        self.forget_ack_pending();
    }

    fn newest_received(&self) -> u64 {
        self.receiver.sequence_expected.saturating_sub(1)
    }

    fn forget_ack_pending(&mut self) {
        self.receiver.reset_ack_pending();
        self.ack_pending_since_ns = None;
    }

    /// Return a write buffer of which the stream took the first `taken` bytes.
    ///
    /// One of an earlier stream is dropped: this stream retransmits its messages.
    pub fn transmitted(&mut self, write_buffer: WriteBuffer, taken: usize) {
        if write_buffer.stream != self.stream || !self.is_out {
            return;
        }
        self.is_out = false;
        self.bytes_written += taken as u64;
        self.out = write_buffer;
        self.out.advance(taken);
        self.out_bytes = self.out.len();
    }

    // -- receiving

    /// Take bytes off the stream, any number.
    ///
    /// # Errors
    /// Why the stream must end; messages before the protocol error are delivered.
    pub fn receive<G: MessageSink>(
        &mut self,
        data: &[u8],
        now_ns: u64,
        sink: &mut G,
        counters: &mut Counters,
    ) -> Result<(), DownReason> {
        self.receiver.now_ns = now_ns;
        let result = self.receiver.receive(data, sink, counters);
        self.finish_received(now_ns, result)
    }

    /// Continue with a long body that the reader had; see `Receiver::take_body`.
    ///
    /// # Errors
    /// As `receive`.
    pub fn resume_body<G: MessageSink>(
        &mut self,
        body: BodyReading,
        now_ns: u64,
        sink: &mut G,
        counters: &mut Counters,
    ) -> Result<(), DownReason> {
        self.receiver.now_ns = now_ns;
        let result = self.receiver.resume_body(body, sink, counters);
        self.finish_received(now_ns, result)
    }

    fn finish_received(
        &mut self,
        now_ns: u64,
        result: Result<(), DownReason>,
    ) -> Result<(), DownReason> {
        let receiver = &self.receiver;
        if receiver.is_answered {
            self.sender.handle_last_answered();
        }
        if receiver.frames > 0 && self.hold == Hold::FirstFrame {
            self.hold = Hold::Nothing;
        }
        if receiver.acknowledging {
            if receiver.ack_pending_messages > 0 && self.ack_pending_since_ns.is_none() {
                self.ack_pending_since_ns = Some(now_ns);
            }
            let acknowledged = receiver.acknowledged;
            if acknowledged > 0 && !self.sender.handle_peer_acknowledged(acknowledged) {
                return result.and(Err(DownReason::BadAcknowledgement));
            }
        }
        result
    }

    /// Free messages within the first `bytes`, which the peer's TCP has.
    ///
    /// Nothing is freed before the peer's first frame: TCP also acknowledges bytes that a peer
    /// which then rejects the connection never reads.
    pub fn handle_stream_acknowledged(&mut self, bytes: u64) {
        let is_asked = self.sender.last.is_some();
        let counts = self.sender.ack_mode == AckMode::StreamAcknowledged && !is_asked;
        if self.receiver.frames > 0 && counts {
            self.sender.handle_stream_acknowledged(bytes);
        }
    }

    /// Make a pending acknowledgement due at once: later there may be no stream.
    pub fn acknowledge(&mut self) {
        self.receiver.acknowledgement_due |=
            self.attached && self.receiver.ack_pending_messages > 0;
    }

    /// Request acknowledgement of every message here as soon as the peer has it.
    pub fn request_ack(&mut self) {
        self.sender.ack_request_due = self.sender.message_count() > 0;
    }

    /// Exchange the freed messages since the last call for `spare`, which is emptied first.
    pub fn take_freed(&mut self, spare: &mut Vec<Freed>) {
        self.sender.take_freed(spare);
    }

    // -- time

    /// Whether messages wait for the peer's first frame or hello.
    pub fn is_held(&self) -> bool {
        self.hold != Hold::Nothing
    }

    /// When `handle_timeout` has something to do.
    pub fn poll_timeout(&self) -> Option<u64> {
        Some(
            self.ack_pending_since_ns?
                .saturating_add(self.limits.acknowledge_delay_ns),
        )
    }

    /// Make an acknowledgement due that no message carried.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self
            .poll_timeout()
            .is_some_and(|deadline_ns| now_ns >= deadline_ns)
        {
            self.receiver.acknowledgement_due = true;
        }
    }

    /// Free memory that a path does not need after it was idle for a while.
    pub fn rest(&mut self) {
        self.out.rest();
        self.sender.rest();
    }
}

// -- frames outside the numbers
//
// Frames outside the numbers: congestion maps, hellos, acknowledgements.

/// Append a congestion map: number 0, ports 0, exactly the flag `CONG_BITMAP`; return its bytes.
pub(crate) fn frame_map(
    out: &mut WriteBuffer,
    map: &CongestionMap,
    extension: Extension,
    checksum: bool,
) -> u64 {
    let header = Header {
        payload_bytes: CONGESTION_MAP_BYTES,
        flags: FLAG_CONG_BITMAP,
        extension,
        ..Header::default()
    };
    append(out, &header.emit(checksum)) + append(out, map.emit())
}

/// Append an empty message without a number; return its bytes.
///
/// With ports 0 and 0 it carries the acknowledgement only, and may request one.
pub(crate) fn frame_word(
    out: &mut WriteBuffer,
    ack: u64,
    flags: u8,
    (source_port, target_port): (u16, u16),
    extension: Extension,
    checksum: bool,
) -> u64 {
    let header = Header {
        ack,
        source_port,
        target_port,
        flags,
        extension,
        ..Header::default()
    };
    append(out, &header.emit(checksum))
}

fn append(out: &mut WriteBuffer, bytes: &[u8]) -> u64 {
    out.join(bytes);
    bytes.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::NO_EXTENSION;

    #[test]
    fn a_map_has_no_number_no_ports_and_one_flag() {
        let (mut out, mut map) = (WriteBuffer::default(), CongestionMap::default());
        map.set(9);
        assert_eq!(frame_map(&mut out, &map, [5; 16], true), 8240);
        let bytes = out.single().expect("nothing long");
        let header = Header::peek(bytes).expect("whole");
        assert!(header.verify() && header.checksum != 0);
        assert_eq!(
            (header.sequence, header.ack, header.flags),
            (0, 0, FLAG_CONG_BITMAP)
        );
        assert_eq!((header.source_port, header.target_port), (0, 0));
        assert_eq!((header.payload_bytes, header.extension), (8192, [5; 16]));
        assert_eq!(&bytes[48..], map.emit());
    }

    #[test]
    fn a_write_of_which_nothing_is_left_gives_its_memory_to_the_next_path() {
        let (map, mut counters) = (CongestionMap::default(), Counters::default());
        let mut spare = WriteBuffer::default();
        let mut begin = |spare: &mut WriteBuffer| {
            let mut core = PathCore::new(Limits::default(), 1, None);
            core.attach(Hold::Nothing);
            core.borrow_memory(spare);
            let write = core.poll_transmit(&map, &mut counters).expect("a map");
            let place = write.single().expect("nothing long").as_ptr();
            (core, write, place)
        };
        let (mut first, write, place) = begin(&mut spare);
        let bytes = write.len();
        first.transmitted(write, bytes - 1);
        first.return_memory(&mut spare);
        let (.., other_place) = begin(&mut spare);
        assert_ne!(place, other_place, "its last byte is still to be written");
        let mut counters = Counters::default();
        let rest = first.poll_transmit(&map, &mut counters).expect("a byte");
        first.transmitted(rest, 1);
        first.return_memory(&mut spare);
        let (.., next_place) = begin(&mut spare);
        assert_eq!(place, next_place);
    }

    #[test]
    fn a_word_is_a_header_alone() {
        let mut out = WriteBuffer::default();
        assert_eq!(frame_word(&mut out, 77, 2, (1, 0), NO_EXTENSION, false), 48);
        let header = Header::peek(out.single().expect("nothing long")).expect("whole");
        assert_eq!(
            header,
            Header {
                ack: 77,
                flags: 2,
                source_port: 1,
                ..Header::default()
            }
        );
    }
}
