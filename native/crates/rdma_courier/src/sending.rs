//! Frames that leave: messages of the queue, packed or in fragments, and acknowledgements.

use std::sync::Arc;

use urds_path::constants::{FLAG_ACK_REQUIRED, FLAG_CONG_BITMAP, HEADER_BYTES};
use urds_path::packed_frames::{FRAGMENT_BYTES, PACKED_BYTES};
use urds_path::{Header, Payload};
use urds_verbs::Engine;
use urds_verbs::memory::Memory;
use urds_verbs::numbers::{Opcode, SEND_SIGNALED, SEND_SOLICITED, Status};
use urds_verbs::work::{Completion, Doubts, Opcoded, Own, Pieces, SendWork};

use crate::courier::{Courier, State};

/// From this length on a payload is sent from where it lies.
const REFERENCE_BYTES: usize = 4096;

/// One header and a fragment of a payload, as the memory of one request.
struct FrameMemory {
    header: [u8; HEADER_BYTES],
    payload: Payload,
    at: usize,
}

impl Memory for FrameMemory {
    fn read(&self, at: usize, to: &mut [u8]) {
        let head = HEADER_BYTES.saturating_sub(at).min(to.len());
        to[..head].copy_from_slice(&self.header[at.min(HEADER_BYTES)..][..head]);
        let rest = &mut to[head..];
        let begin = self.at + (at + head).saturating_sub(HEADER_BYTES);
        rest.copy_from_slice(&self.payload.bytes()[begin..begin + rest.len()]);
    }

    fn give(&self, at: usize, length: usize, give: &mut dyn FnMut(&[u8])) {
        let head = HEADER_BYTES.saturating_sub(at).min(length);
        if head > 0 {
            give(&self.header[at..at + head]);
        }
        let begin = self.at + (at + head).saturating_sub(HEADER_BYTES);
        give(&self.payload.bytes()[begin..begin + length - head]);
    }

    fn write(&self, _at: usize, _from: &[u8]) {
        debug_assert!(false, "what is sent is only read");
    }
}

impl Courier {
    /// Post the next frame, if one may leave; return whether there was one.
    pub(crate) fn post_next(&self, state: &mut State, engine: &mut Engine) -> bool {
        let ring_left = self
            .setup
            .send_ring
            .saturating_sub(state.numbers.posted.len());
        let is_asked = state.numbers.acknowledgement_asked && !state.puts_ack_off;
        let may_acknowledge = is_asked && state.acks_under_way == 0;
        if state.is_map_due && ring_left > 0 {
            return self.post_map(state, engine);
        }
        let Some(first) = state.messages.get(state.unacked) else {
            if !may_acknowledge {
                state.counts.acks_delayed += u64::from(state.numbers.acknowledgement_asked);
                return false;
            }
            return ring_left > 0 && self.post_acknowledgement(state, engine);
        };
        let gathers = state.frames_under_way > 0 && state.unsent_bytes < PACKED_BYTES;
        if gathers && !may_acknowledge {
            return false;
        }
        let fragments = first.payload.len().div_ceil(FRAGMENT_BYTES).max(1);
        if fragments > ring_left {
            state.counts.ring_full += 1;
            return false;
        }
        if fragments > 1 || first.payload.len() >= REFERENCE_BYTES {
            self.post_fragments(state, engine)
        } else {
            self.post_packed(state, engine)
        }
    }

    fn post_acknowledgement(&self, state: &mut State, engine: &mut Engine) -> bool {
        let header = Header {
            ack: state.numbers.acknowledgement,
            ..Header::default()
        };
        state.counts.acks_sent += 1;
        state.acks_under_way += 1;
        state.note_ack_sent();
        let bytes = header.emit(true).to_vec();
        self.post(state, engine, Own::Copied(bytes.into()), true, true)
    }

    /// Post the local congestion map as it is now.
    fn post_map(&self, state: &mut State, engine: &mut Engine) -> bool {
        state.is_map_due = false;
        let map = self.plane.local_map(self.path);
        let header = Header {
            ack: state.begin_frame(),
            payload_bytes: map.len(),
            flags: FLAG_CONG_BITMAP,
            ..Header::default()
        };
        state.counts.maps_sent += 1;
        let bytes = [&header.emit(true)[..], &map].concat();
        self.post(state, engine, Own::Copied(bytes.into()), true, false)
    }

    /// Post the messages that come next, as far as they fit a frame whole.
    fn post_packed(&self, state: &mut State, engine: &mut Engine) -> bool {
        let mut bytes = Vec::with_capacity(state.unsent_bytes.min(PACKED_BYTES));
        let mut acknowledgement = state.begin_frame();
        while let Some(message) = state.messages.get(state.unacked)
            && bytes.len() + HEADER_BYTES + message.payload.len() <= PACKED_BYTES
            && let Some((header, payload)) = state.take_next(acknowledgement)
        {
            acknowledgement = 0;
            bytes.extend_from_slice(&header.emit(true));
            bytes.extend_from_slice(payload.bytes());
        }
        self.post(state, engine, Own::Copied(bytes.into()), true, false)
    }

    /// Post one message, in as many frames as it takes.
    fn post_fragments(&self, state: &mut State, engine: &mut Engine) -> bool {
        let acknowledgement = state.begin_frame();
        let Some((header, payload)) = state.take_next(acknowledgement) else {
            return false;
        };
        let header = header.emit(true);
        let (payload, mut at) = (payload.clone(), 0);
        loop {
            let length = FRAGMENT_BYTES.min(payload.len() - at);
            let is_last = at + length == payload.len();
            let memory = FrameMemory {
                header,
                payload: payload.clone(),
                at,
            };
            let own = Own::Kept(Arc::new(memory), HEADER_BYTES + length);
            if !self.post(state, engine, own, is_last, false) {
                return false;
            }
            if is_last {
                return true;
            }
            at += length;
        }
    }

    /// Post one frame; false if the engine takes none any more, which its state tells too.
    fn post(
        &self,
        state: &mut State,
        engine: &mut Engine,
        own: Own,
        is_solicited: bool,
        is_ack: bool,
    ) -> bool {
        let number = state.numbers.wr_id_next;
        state.numbers.wr_id_next += 1;
        state.numbers.posted.push_back((number, is_ack));
        state.frames_under_way += usize::from(!is_ack);
        let wr_id = self.setup.receive_ring + number;
        let mut work = SendWork::boxed(wr_id, Opcode::Send, Pieces::None);
        work.flags = SEND_SIGNALED | if is_solicited { SEND_SOLICITED } else { 0 };
        work.own = own;
        let work = Opcoded::Known(work);
        let posted = engine.post_send(self.setup.number, work, &Doubts::default());
        if posted.is_err() {
            // The core meets the same, and ends the connection.
            state.is_stopped = true;
        }
        posted.is_ok()
    }
}

impl State {
    /// Begin a frame that acknowledges; return the number that it names.
    fn begin_frame(&mut self) -> u64 {
        self.counts.acks_piggybacked += u64::from(self.numbers.acknowledgement_asked);
        self.note_ack_sent();
        self.numbers.acknowledgement
    }

    fn note_ack_sent(&mut self) {
        self.numbers.ack_sent = self.numbers.acknowledgement;
        self.numbers.acknowledgement_asked = false;
        self.unacked_bytes = 0;
    }

    /// Give the message that is next its number; return its header and payload.
    fn take_next(&mut self, acknowledgement: u64) -> Option<(Header, &Payload)> {
        let message = self.messages.get(self.unacked)?;
        self.unacked += 1;
        let length = message.payload.len();
        self.unsent_bytes -= HEADER_BYTES + length;
        let mut flags = if message.asks { FLAG_ACK_REQUIRED } else { 0 };
        if !self.numbers.budget.take(length) {
            flags |= FLAG_ACK_REQUIRED;
            self.counts.ack_required_sent += 1;
        }
        let header = Header {
            sequence: self.numbers.sequence_next,
            ack: acknowledgement,
            payload_bytes: length,
            source_port: message.source_port,
            target_port: message.target_port,
            flags,
            ..Header::default()
        };
        self.numbers.sequence_next += 1;
        Some((header, &message.payload))
    }

    /// Note that frames up to this one are at the peer; false if one has failed.
    pub(crate) fn take_sent(&mut self, completion: &Completion, first: u64) -> bool {
        if completion.status != Status::Success {
            return false;
        }
        let number = completion.wr_id - first;
        while let Some(&(posted, is_ack)) = self.numbers.posted.front()
            && posted <= number
        {
            self.numbers.posted.pop_front();
            if is_ack {
                self.acks_under_way -= 1;
            } else {
                self.frames_under_way -= 1;
            }
        }
        true
    }

    /// Return how many messages the peer has acknowledged, the first ones; `None`: it names one that was
    /// never sent.
    pub(crate) fn note_acknowledged(&mut self, sequence: u64) -> Option<usize> {
        let numbers = &mut self.numbers;
        if sequence >= numbers.sequence_next {
            return None;
        }
        numbers.acknowledged = numbers.acknowledged.max(sequence);
        let first = numbers.sequence_next - self.unacked as u64;
        let count = (sequence + 1).saturating_sub(first);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        Some(count.min(self.unacked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_its_header_and_a_part_of_its_payload_in_any_pieces() {
        let payload: Vec<u8> = (0..200).collect();
        let frame = FrameMemory {
            header: [255; HEADER_BYTES],
            payload: Payload::Owned(payload.clone().into()),
            at: 50,
        };
        let whole = [&[255; HEADER_BYTES][..], &payload[50..150]].concat();
        for begin in [0, 1, 47, 48, 49, 100, 148] {
            for end in [begin, 47, 48, 60, 148] {
                if begin <= end {
                    let mut read = vec![0; end - begin];
                    frame.read(begin, &mut read);
                    assert_eq!(read, whole[begin..end], "{begin} to {end}");
                    let mut given = Vec::new();
                    let mut give = |piece: &[u8]| given.extend_from_slice(piece);
                    frame.give(begin, end - begin, &mut give);
                    assert_eq!(given, read, "{begin} to {end}");
                }
            }
        }
    }
}
