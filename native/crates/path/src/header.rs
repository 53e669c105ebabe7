//! The 48 bytes before each message, and their checksum.
//!
//! Nothing here limits the payload length: the code that allocates memory for a payload checks it
//! first. The checksum is that of RFC 1071: a sum modulo 65535, in which an integer of any width
//! counts as much as its 16-bit words. A zero in its field means "not checked", so a sum that comes
//! out as zero goes out as 65535, the other zero of ones-complement arithmetic. Source: linux v6.12
//! net/rds/rds.h (struct `rds_header`), net/rds/message.c (checksum).

use crate::constants::{EXTENSION_BYTES, HEADER_BYTES};
use crate::kinds::{Extension, NO_EXTENSION};

const MODULUS: u64 = 0xFFFF;

/// One message header as a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Number on its path; 0 in congestion maps and ack-only messages.
    pub sequence: u64,
    /// Highest sequence received; always 0 from Linux over TCP.
    pub ack: u64,
    /// Of the payload; 32 bits on the wire.
    pub payload_bytes: usize,
    pub source_port: u16,
    pub target_port: u16,
    pub flags: u8,
    /// Receive buffers granted; RDMA with flow control only.
    pub credit: u8,
    pub padding: u32,
    /// As on the wire; 0 is "not checked".
    pub checksum: u16,
    pub extension: Extension,
}

impl Header {
    /// Read one header. Every combination of bytes is valid; `verify` checks the checksum.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Self {
        Self {
            sequence: u64::from_be_bytes(part(bytes, 0)),
            ack: u64::from_be_bytes(part(bytes, 8)),
            payload_bytes: u32::from_be_bytes(part(bytes, 16)) as usize,
            source_port: u16::from_be_bytes(part(bytes, 20)),
            target_port: u16::from_be_bytes(part(bytes, 22)),
            flags: bytes[24],
            credit: bytes[25],
            padding: u32::from_be_bytes(part(bytes, 26)),
            checksum: u16::from_be_bytes(part(bytes, 30)),
            extension: part(bytes, 32),
        }
    }

    /// Read the header at the front of `bytes`; `None` if not all 48 are there.
    pub fn peek(bytes: &[u8]) -> Option<Self> {
        bytes.first_chunk().map(Self::parse)
    }

    /// Write the 48 bytes; with `checksum` the field is computed, else it goes out as it is.
    ///
    /// No payload has 4 GiB or more: the limits on messages are below it.
    pub fn emit(&self, checksum: bool) -> [u8; HEADER_BYTES] {
        let payload_bytes = u32::try_from(self.payload_bytes).unwrap_or(u32::MAX);
        debug_assert_eq!(payload_bytes as usize, self.payload_bytes);
        let field = if checksum {
            self.computed_checksum()
        } else {
            self.checksum
        };
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.ack.to_be_bytes());
        bytes[16..20].copy_from_slice(&payload_bytes.to_be_bytes());
        bytes[20..22].copy_from_slice(&self.source_port.to_be_bytes());
        bytes[22..24].copy_from_slice(&self.target_port.to_be_bytes());
        bytes[24] = self.flags;
        bytes[25] = self.credit;
        bytes[26..30].copy_from_slice(&self.padding.to_be_bytes());
        bytes[30..32].copy_from_slice(&field.to_be_bytes());
        bytes[32..48].copy_from_slice(&self.extension);
        bytes
    }

    /// Return whether the checksum agrees with the rest; one of 0 agrees with everything.
    pub fn verify(&self) -> bool {
        self.checksum == 0
            || (self.sum_without_checksum() + u64::from(self.checksum)).is_multiple_of(MODULUS)
    }

    /// Return the value for the checksum field, 1 to 65535, never 0.
    pub fn computed_checksum(&self) -> u16 {
        let field = MODULUS - self.sum_without_checksum() % MODULUS;
        u16::try_from(field).unwrap_or(u16::MAX) // never: at most 65535
    }

    /// Return whether the message carries an extension header.
    pub fn has_extension(&self) -> bool {
        self.extension != NO_EXTENSION
    }

    /// Sum the fields in halves of 32 bits, so that nothing runs over 64.
    fn sum_without_checksum(&self) -> u64 {
        let (high, low) = self.extension.split_at(EXTENSION_BYTES / 2);
        halves(self.sequence)
            + halves(self.ack)
            + halves(self.payload_bytes as u64)
            + u64::from(self.source_port)
            + u64::from(self.target_port)
            + (u64::from(self.flags) << 8)
            + u64::from(self.credit)
            + u64::from(self.padding)
            + halves(u64::from_be_bytes(part(high, 0)))
            + halves(u64::from_be_bytes(part(low, 0)))
    }
}

/// Return `N` bytes from `offset` on; the caller knows that they exist.
fn part<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut found = [0; N];
    found.copy_from_slice(&bytes[offset..offset + N]);
    found
}

/// Return a number's two halves added: the same modulo 65535.
fn halves(value: u64) -> u64 {
    (value >> 32) + (value & 0xFFFF_FFFF)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ones_complement(bytes: &[u8]) -> u64 {
        let words = bytes
            .chunks(2)
            .map(|pair| u64::from(pair[0]) << 8 | u64::from(pair[1]));
        words.sum::<u64>() % MODULUS
    }

    #[test]
    fn each_field_has_its_place() {
        let mut bytes = [0; HEADER_BYTES];
        for (place, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::try_from(place).unwrap_or(0);
        }
        let header = Header::parse(&bytes);
        assert_eq!(header.sequence, 0x0001_0203_0405_0607);
        assert_eq!(header.ack, 0x0809_0A0B_0C0D_0E0F);
        assert_eq!(header.payload_bytes, 0x1011_1213);
        assert_eq!((header.source_port, header.target_port), (0x1415, 0x1617));
        assert_eq!(
            (header.flags, header.credit, header.padding),
            (24, 25, 0x1A1B_1C1D)
        );
        assert_eq!((header.checksum, header.extension[0]), (0x1E1F, 32));
    }

    #[test]
    fn a_sum_of_zero_goes_out_as_the_other_zero() {
        let header = Header {
            sequence: MODULUS,
            ..Header::default()
        };
        assert_eq!(header.computed_checksum(), 0xFFFF);
        assert!(
            Header {
                checksum: 0xFFFF,
                ..header
            }
            .verify()
        );
    }

    #[test]
    fn a_part_of_a_header_is_none() {
        assert_eq!(Header::peek(&[0; HEADER_BYTES - 1]), None);
        assert_eq!(
            Header::peek(&[0; HEADER_BYTES + 1]),
            Some(Header::default())
        );
    }

    proptest! {
        #[test]
        fn bytes_come_back(bytes: [[u8; 16]; 3]) {
            let bytes: [u8; HEADER_BYTES] = bytes.concat().try_into().unwrap_or([0; 48]);
            prop_assert_eq!(Header::parse(&bytes).emit(false), bytes);
        }

        #[test]
        fn the_checksum_is_that_of_rfc_1071(bytes: [[u8; 16]; 3], bit in 0_usize..384) {
            let bytes: [u8; HEADER_BYTES] = bytes.concat().try_into().unwrap_or([0; 48]);
            let mut sent = Header::parse(&bytes).emit(true);
            prop_assert_eq!(ones_complement(&sent), 0);
            prop_assert!(sent[30..32] != [0, 0]);
            prop_assert!(Header::parse(&sent).verify());
            sent[bit / 8] ^= 1 << (bit % 8);
            let parsed = Header::parse(&sent);
            prop_assert_eq!(parsed.verify(), parsed.checksum == 0);
        }
    }
}
