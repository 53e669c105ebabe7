//! Extension headers: what the data plane needs of the 16 octets at the end of a header.
//!
//! A list of a type octet and its data, whose length the type implies. Read as Linux 7.0 does
//! (net/rds/message.c), with UEK's types 7 and 9 beside: at type 0, at a type of 16 or more, and
//! at data that would run past octet 16 the list ends; an unknown type has no data. Behind the
//! list, at fixed offsets, an own node puts its mark. The whole theory stands in
//! `src/urds/wire/exthdr.py`.

use crate::constants::EXTENSION_BYTES;
use crate::kinds::Extension;

const TYPE_LIMIT: u8 = 16;
const NPATHS: u8 = 5;
const GEN_NUM: u8 = 6;
const MARK_OFFSET: usize = 10;
const MARK_SIGN: [u8; 3] = *b"\0UR";
const MARK_VERSION: u8 = 1;

/// What a probe or a map tells of its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handshake {
    /// Of a repeated generation the last one counts; never 0.
    pub generation: Option<u64>,
    /// The sender is an own node.
    pub marked: bool,
}

/// Read the extension space of a probe or a map; other extensions are passed over.
pub fn parse_handshake(octets: &Extension) -> Handshake {
    let mut generation = None;
    let mut offset = 0;
    while offset < EXTENSION_BYTES {
        let number = octets[offset];
        if number == 0 || number >= TYPE_LIMIT {
            break;
        }
        let end = offset + 1 + data_bytes(number);
        if end > EXTENSION_BYTES {
            break;
        }
        if number == GEN_NUM {
            let told = octets[offset + 1..end]
                .iter()
                .fold(0, |sum, &octet| sum << 8 | u64::from(octet));
            generation = (told != 0).then_some(told); // Linux takes 0 for "none given"
        }
        offset = end;
    }
    let marked = octets[MARK_OFFSET..].starts_with(&MARK_SIGN) && octets[13] != 0;
    Handshake { generation, marked }
}

/// Write the extension of a map: the generation of this life, and the mark without capabilities.
pub fn emit_life(generation: u32) -> Extension {
    let mut octets = [0; EXTENSION_BYTES];
    octets[0] = GEN_NUM;
    octets[1..5].copy_from_slice(&generation.to_be_bytes());
    octets[MARK_OFFSET..MARK_OFFSET + 3].copy_from_slice(&MARK_SIGN);
    octets[13] = MARK_VERSION;
    octets
}

/// Return how many octets of data a type has.
fn data_bytes(number: u8) -> usize {
    match number {
        1 | 2 | GEN_NUM | 7 => 4, // VERSION, RDMA, GEN_NUM, CAP_BITS
        3 | 4 | 9 => 8,           // RDMA_DEST, RDMA_BYTES, CSUM
        NPATHS => 2,
        8 => 1, // SPORT_IDX
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(octets: &[u8]) -> Extension {
        let mut space = [0; EXTENSION_BYTES];
        space[..octets.len()].copy_from_slice(octets);
        space
    }

    #[test]
    fn a_life_comes_back() {
        let octets = emit_life(0x0102_0304);
        assert_eq!(octets, space(b"\x06\x01\x02\x03\x04\0\0\0\0\0\0UR\x01"));
        let told = Handshake {
            generation: Some(0x0102_0304),
            marked: true,
        };
        assert_eq!(parse_handshake(&octets), told);
    }

    #[test]
    fn reading_ends_where_linux_ends_it() {
        let generation = |octets: &[u8]| parse_handshake(&space(octets)).generation;
        assert_eq!(generation(b"\x05\0\x08\x06\0\0\0\x07"), Some(7)); // behind another
        assert_eq!(generation(b"\x0a\x06\0\0\0\x07"), Some(7)); // an unknown type has no data
        assert_eq!(generation(b"\0\x06\0\0\0\x07"), None); // behind the end
        assert_eq!(generation(b"\x10\x06\0\0\0\x07"), None); // a type of 16 is an end
        assert_eq!(generation(b"\x06\0\0\0\x07\x06\0\0\0\0"), None); // 0 is none, the last counts
        assert_eq!(generation(b"\x03........\x05..\x06\0\0\x07"), None); // cut off
    }

    #[test]
    fn a_mark_needs_its_sign_and_a_version() {
        let marked = |octets: &[u8]| parse_handshake(&space(octets)).marked;
        assert!(marked(b"\0\0\0\0\0\0\0\0\0\0\0UR\x01"));
        assert!(!marked(b"\0\0\0\0\0\0\0\0\0\0\0UR\0"));
        assert!(!marked(b"\0\0\0\0\0\0\0\0\0\0\x01UR\x01"));
    }
}
