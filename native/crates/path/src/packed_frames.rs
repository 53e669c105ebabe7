//! Frames of RDS over RDMA that hold several whole messages, between urds nodes.
//!
//! One message behind the other, each with its header; the first header of a frame acknowledges and
//! grants for all. The specification is `urds.rds.transports.rdma.core`, docs/adr/0047.

use crate::constants::{FLAG_ACK_REQUIRED, HEADER_BYTES};
use crate::header::Header;

/// The payload of one frame between urds nodes.
pub const FRAGMENT_BYTES: usize = 65_536;
/// The bytes of a frame of several messages.
pub const PACKED_BYTES: usize = HEADER_BYTES + FRAGMENT_BYTES;

/// What may be sent before a message asks for an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub packets_left: usize,
    pub bytes_left: usize,
    pub packets_max: usize,
    pub bytes_max: usize,
}

impl Budget {
    /// Spend a message; false, and the whole budget again, if there is too little.
    pub fn take(&mut self, payload_bytes: usize) -> bool {
        if self.packets_left == 0 || self.bytes_left < payload_bytes {
            (self.packets_left, self.bytes_left) = (self.packets_max, self.bytes_max);
            return false;
        }
        self.packets_left -= 1;
        self.bytes_left -= payload_bytes;
        true
    }
}

/// A new message at the front of a frame's bytes that concerns nothing but its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainMessage<'a> {
    pub header: Header,
    pub payload: &'a [u8],
}

impl<'a> PlainMessage<'a> {
    /// Read it; `None`: it is something else, or something is wrong with it.
    ///
    /// No retransmit, map, ping, acknowledgement, grant or extension, whole, with its checksum.
    pub fn peek(bytes: &'a [u8], payload_bytes_max: usize) -> Option<Self> {
        let header = Header::peek(bytes)?;
        let is_plain = header.flags & !FLAG_ACK_REQUIRED == 0
            && header.target_port != 0
            && header.sequence != u64::MAX // the next one would be none
            && header.ack == 0
            && header.credit == 0
            && header.payload_bytes <= payload_bytes_max
            && !header.has_extension();
        if !is_plain || !header.verify() {
            return None;
        }
        let payload = bytes.get(HEADER_BYTES..HEADER_BYTES + header.payload_bytes)?;
        Some(Self { header, payload })
    }

    /// Return how many bytes of the frame it takes.
    pub fn frame_bytes(&self) -> usize {
        HEADER_BYTES + self.payload.len()
    }

    pub fn asks(&self) -> bool {
        self.header.flags & FLAG_ACK_REQUIRED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(header: Header, payload: &[u8]) -> Vec<u8> {
        [&header.emit(true)[..], payload].concat()
    }

    fn message() -> Header {
        Header {
            sequence: 7,
            payload_bytes: 3,
            source_port: 1,
            target_port: 2,
            ..Header::default()
        }
    }

    #[test]
    fn a_plain_message_ends_where_its_length_says() {
        let bytes = frame(message(), b"abcdef");
        let found = PlainMessage::peek(&bytes, 3).map(|one| (one.payload, one.frame_bytes()));
        assert_eq!(found, Some((&b"abc"[..], 51)));
    }

    #[test]
    fn what_concerns_the_connection_is_not_plain() {
        let ping = Header {
            target_port: 0,
            ..message()
        };
        let retransmitted = Header {
            flags: 4,
            ..message()
        };
        let map = Header {
            flags: 1,
            ..message()
        };
        let acknowledges = Header {
            ack: 1,
            ..message()
        };
        let grants = Header {
            credit: 1,
            ..message()
        };
        let mut with_key = message();
        with_key.extension[0] = 2;
        for header in [ping, retransmitted, map, acknowledges, grants, with_key] {
            assert_eq!(PlainMessage::peek(&frame(header, b"abc"), 3), None);
        }
        let bytes = frame(message(), b"abc");
        assert_eq!(PlainMessage::peek(&bytes[..50], 3), None, "cut off");
        assert_eq!(PlainMessage::peek(&bytes, 2), None, "too long");
        let mut wrong = bytes.clone();
        wrong[0] ^= 1;
        assert_eq!(PlainMessage::peek(&wrong, 3), None, "another checksum");
        let mut asking = message();
        asking.flags = FLAG_ACK_REQUIRED;
        let asks = PlainMessage::peek(&frame(asking, b"abc"), 3).map(|one| one.asks());
        assert_eq!(asks, Some(true));
    }

    #[test]
    fn a_budget_that_is_spent_asks_and_is_whole_again() {
        let mut budget = Budget {
            packets_left: 0,
            bytes_left: 0,
            packets_max: 2,
            bytes_max: 10,
        };
        let asked: Vec<bool> = [4, 4, 4, 4, 9, 1]
            .iter()
            .map(|bytes| !budget.take(*bytes))
            .collect();
        assert_eq!(asked, [true, false, false, true, false, false]);
        assert!(!budget.take(0), "no packet is left");
    }
}
