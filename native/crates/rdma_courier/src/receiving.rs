//! Frames that arrive: plain messages, whole or in fragments, and acknowledgements.

use urds_dataplane::external::ArrivalRun;
use urds_dataplane::plane::Locked;
use urds_path::constants::{
    CONGESTION_MAP_BYTES, FLAG_ACK_REQUIRED, FLAG_CONG_BITMAP, HEADER_BYTES, LONG_BYTES,
};
use urds_path::packed_frames::FRAGMENT_BYTES;
use urds_path::{ArrivingPayload, Body, Header, NO_EXTENSION};
use urds_verbs::Engine;
use urds_verbs::memory::Content;
use urds_verbs::numbers::{Status, WcOpcode};
use urds_verbs::work::{Completion, Piece, Pieces, RecvWork};

use crate::courier::{Courier, Partial, State};

/// A header that a courier understands.
enum Kind {
    AckOnly,
    /// The whole message is in this frame.
    Whole,
    Fragment,
    /// The peer's congestion map.
    Map,
}

impl Courier {
    /// Take what a receive brought; false: from `done_bytes` on it is the core's.
    pub(crate) fn take_frame(
        &self,
        state: &mut State,
        completion: &Completion,
        engine: &mut Engine,
    ) -> bool {
        let Some(frame) = self.frame_of(completion) else {
            return false;
        };
        if self.take_bytes(state, frame).is_none() {
            return false;
        }
        let slot = completion.wr_id;
        if state.pauses {
            state.paused_slot = Some(slot);
            return true;
        }
        self.post_receive(slot, engine);
        if state.numbers.slots < state.numbers.slots_max {
            self.post_receive(state.numbers.slots, engine);
            state.numbers.slots += 1;
        }
        true
    }

    /// Return the frame that a receive brought, where it lies; `None`: it brought none.
    pub(crate) fn frame_of(&self, completion: &Completion) -> Option<Content<'_>> {
        if completion.wr_id >= self.setup.receive_ring
            || completion.status != Status::Success
            || completion.opcode != WcOpcode::Recv
        {
            return None;
        }
        let (start, room) = self.setup.place_of(completion.wr_id);
        let length = usize::try_from(completion.byte_len).ok()?;
        (length <= room).then_some(Content::Range {
            memory: &*self.setup.memory,
            at: usize::try_from(start).ok()?,
            length,
        })
    }

    /// Return the length of the long message that a frame begins, if there is no memory for it.
    pub(crate) fn needed_body(&self, state: &State, frame: Content<'_>) -> Option<usize> {
        if state.partial.is_some() || frame.len() < HEADER_BYTES + LONG_BYTES {
            return None;
        }
        let bytes = header_of(frame).payload_bytes;
        let payload_bytes = frame.len() - HEADER_BYTES;
        let is_long = (LONG_BYTES..=self.setup.message_bytes_max).contains(&bytes)
            && (bytes == payload_bytes || payload_bytes == FRAGMENT_BYTES);
        let is_there = state
            .spare
            .as_ref()
            .is_some_and(|spare| spare.len() == bytes);
        (is_long && !is_there).then_some(bytes)
    }

    fn post_receive(&self, slot: u64, engine: &mut Engine) {
        let (start, bytes) = self.setup.place_of(slot);
        let piece = Piece {
            address: i128::from(start),
            length: i64::try_from(bytes).unwrap_or(i64::MAX),
            lkey: self.setup.lkey,
        };
        let work = RecvWork {
            wr_id: slot,
            pieces: Pieces::One(piece),
            num_sge: None,
        };
        if let Some(queue) = engine.shared.receives.get_mut(self.setup.receives) {
            let _ = queue.post(work); // it has just had this one
        }
    }

    /// Take one frame; `None`: from `done_bytes` on it is the core's.
    pub(crate) fn take_bytes(&self, state: &mut State, frame: Content<'_>) -> Option<()> {
        let payload_bytes = frame.len().checked_sub(HEADER_BYTES)?;
        let header = header_of(frame);
        match self.understand(state, &header, payload_bytes)? {
            Kind::AckOnly => self.take_ack_only(state, &header),
            Kind::Fragment => self.take_fragment(state, &header, frame),
            Kind::Whole if header.payload_bytes == payload_bytes && payload_bytes >= LONG_BYTES => {
                let mut body = state.body(payload_bytes);
                frame.copy_out(HEADER_BYTES, body.bytes_mut());
                self.acknowledge_for(state, &header)?;
                self.deliver(state, &header, body, 1);
                Some(())
            }
            Kind::Whole | Kind::Map => self.take_packed(state, frame),
        }
    }

    /// Return what a header begins; `None`: it is the core's.
    fn understand(&self, state: &State, header: &Header, payload_bytes: usize) -> Option<Kind> {
        let is_map = header.flags == FLAG_CONG_BITMAP;
        let is_plain = (is_map || header.flags & !FLAG_ACK_REQUIRED == 0)
            && header.credit == 0
            && header.ack < state.numbers.sequence_next
            && header.sequence != u64::MAX
            && header.payload_bytes <= self.setup.message_bytes_max
            && !header.has_extension();
        if !is_plain || !header.verify() {
            return None;
        }
        if is_map {
            let is_whole = header.payload_bytes == CONGESTION_MAP_BYTES
                && payload_bytes >= CONGESTION_MAP_BYTES
                && state.partial.is_none();
            return is_whole.then_some(Kind::Map);
        }
        if header.source_port == 0 && header.target_port == 0 && header.payload_bytes == 0 {
            return (payload_bytes == 0).then_some(Kind::AckOnly);
        }
        if header.target_port == 0 {
            return None; // a ping
        }
        if let Some(partial) = &state.partial {
            let identity = |one: &Header| {
                let ports = (one.source_port, one.target_port);
                (one.sequence, one.payload_bytes, ports)
            };
            let due = FRAGMENT_BYTES.min(partial.body.len() - partial.filled);
            let is_next = identity(&partial.header) == identity(header) && due == payload_bytes;
            return is_next.then_some(Kind::Fragment);
        }
        if header.payload_bytes <= payload_bytes {
            return Some(Kind::Whole);
        }
        (payload_bytes == FRAGMENT_BYTES).then_some(Kind::Fragment)
    }

    /// Free what a header acknowledges.
    fn acknowledge_for(&self, state: &mut State, header: &Header) -> Option<()> {
        if header.ack == 0 {
            return Some(());
        }
        let count = state.note_acknowledged(header.ack)?;
        if count > 0 {
            let done = state.messages.range(..count);
            self.plane.refund_gathered(self.path, done);
            state.messages.drain(..count);
            state.unacked -= count;
        }
        Some(())
    }

    fn take_ack_only(&self, state: &mut State, header: &Header) -> Option<()> {
        self.acknowledge_for(state, header)?;
        state.counts.acks_received += 1;
        Some(())
    }

    fn take_fragment(&self, state: &mut State, header: &Header, frame: Content<'_>) -> Option<()> {
        self.acknowledge_for(state, header)?;
        let payload_bytes = frame.len() - HEADER_BYTES;
        let mut partial = match state.partial.take() {
            Some(partial) => partial,
            None => Partial {
                header: *header,
                body: state.body(header.payload_bytes),
                filled: 0,
            },
        };
        let end = partial.filled + payload_bytes;
        let room = &mut partial.body.bytes_mut()[partial.filled..end];
        frame.copy_out(HEADER_BYTES, room);
        partial.filled = end;
        if end < partial.header.payload_bytes {
            state.counts.fragments += 1;
            state.counts.messages += u64::from(end == payload_bytes);
            state.partial = Some(partial);
            return Some(());
        }
        state.counts.fragments += 1;
        self.deliver(state, &partial.header, partial.body, 0);
        Some(())
    }

    /// Take a frame of whole messages.
    fn take_packed(&self, state: &mut State, frame: Content<'_>) -> Option<()> {
        let mut scratch = std::mem::take(&mut *self.scratch.lock());
        scratch.resize(frame.len(), 0);
        frame.copy_to(&mut scratch);
        let taken = self.take_messages(state, &scratch);
        *self.scratch.lock() = scratch;
        taken
    }

    /// Take them one by one, with one section of the plane's lock for those without anything else.
    fn take_messages(&self, state: &mut State, bytes: &[u8]) -> Option<()> {
        let mut delivering = None;
        let mut at = 0;
        while at < bytes.len() {
            let whole = Header::peek(&bytes[at..]).and_then(|header| {
                let rest = bytes.len() - at - HEADER_BYTES;
                match self.understand(state, &header, rest)? {
                    Kind::Whole | Kind::Map => Some(header),
                    Kind::AckOnly | Kind::Fragment => None,
                }
            });
            let Some(header) = whole else {
                self.end(state, delivering);
                state.done_bytes = at;
                return None;
            };
            if header.ack != 0 || header.flags == FLAG_CONG_BITMAP {
                self.end(state, delivering.take()); // both take the lock themselves
            }
            self.acknowledge_for(state, &header)?;
            let begin = at + HEADER_BYTES;
            at = begin + header.payload_bytes;
            let payload = &bytes[begin..at];
            if header.flags != FLAG_CONG_BITMAP {
                let payload = ArrivingPayload::Borrowed(payload);
                let (plane, run) =
                    delivering.get_or_insert_with(|| (self.plane.lock(), ArrivalRun::default()));
                let ports = (header.source_port, header.target_port);
                plane.deliver_next(self.path, run, ports, payload, NO_EXTENSION);
                state.note_delivered(&header, 1);
            } else if let Ok(map) = payload.try_into() {
                state.counts.messages += 1;
                state.counts.fragments += 1;
                self.plane.take_peer_map(self.path, map);
            }
        }
        self.end(state, delivering);
        Some(())
    }

    /// End the section of the plane's lock in which messages were delivered.
    fn end(&self, state: &mut State, delivering: Option<(Locked<'_>, ArrivalRun)>) {
        if let Some((mut plane, mut run)) = delivering {
            state.pauses |= !plane.end_run(self.path, &mut run);
        }
    }

    /// Put a long message into its mailbox; `counted` is 0 if its fragments were.
    fn deliver(&self, state: &mut State, header: &Header, body: Body, counted: u64) {
        let (source, target) = (header.source_port, header.target_port);
        let payload = ArrivingPayload::Whole(body);
        let plane = &self.plane;
        let goes_on = plane.deliver(self.path, source, target, payload, NO_EXTENSION);
        state.pauses |= !goes_on;
        state.note_delivered(header, counted);
    }
}

/// Return the header at the front of a frame, which has so many bytes; nothing of it is checked.
fn header_of(frame: Content<'_>) -> Header {
    let mut header = [0; HEADER_BYTES];
    frame.copy_out(0, &mut header);
    Header::parse(&header)
}

impl State {
    /// Note that a message is in its mailbox; `counted` is 0 if its fragments were.
    fn note_delivered(&mut self, header: &Header, counted: u64) {
        self.unacked_bytes += header.payload_bytes;
        let numbers = &mut self.numbers;
        numbers.sequence_expected = header.sequence + 1;
        numbers.acknowledgement = header.sequence;
        self.counts.messages += counted;
        self.counts.fragments += counted;
        if header.flags & FLAG_ACK_REQUIRED != 0 {
            numbers.acknowledgement_asked = true;
            self.counts.ack_required_received += 1;
        }
    }

    /// Return memory of this length: that which was given, if it has it.
    fn body(&mut self, bytes: usize) -> Body {
        let spare = self.spare.take().filter(|spare| spare.len() == bytes);
        spare.unwrap_or_else(|| Body::zeroed(bytes))
    }
}
