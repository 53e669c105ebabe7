//! Extension headers: the part of the last 16 bytes of a header that the data plane needs.
//!
//! A list of a type byte and its data, whose length the type implies. Read as Linux 7.0 does
//! (net/rds/message.c), with UEK's types 7 and 9 as well: at type 0, at a type of 16 or more, and
//! at data that would run past byte 16 the list ends; an unknown type has no data. Behind the list,
//! at fixed offsets, a urds node puts its mark. The whole theory stands in
//! `src/urds/rds/wire/extensions.py`.

use crate::constants::EXTENSION_BYTES;
use crate::kinds::Extension;

const TYPE_LIMIT: u8 = 16;
const NPATHS: u8 = 5;
const GEN_NUM: u8 = 6;
const MARK_OFFSET: usize = 10;
const MARK_SIGN: [u8; 3] = *b"\0UR";
const MARK_VERSION: u8 = 1;

/// The handshake data of a probe or a map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handshake {
    /// If the generation repeats, the last one counts; never 0.
    pub generation: Option<u64>,
    /// The sender is a urds node.
    pub marked: bool,
}

/// Read the extension space of a probe or a map; other extensions are skipped.
pub fn parse_handshake(bytes: &Extension) -> Handshake {
    let mut generation = None;
    let mut offset = 0;
    while offset < EXTENSION_BYTES {
        let number = bytes[offset];
        if number == 0 || number >= TYPE_LIMIT {
            break;
        }
        let end = offset + 1 + data_bytes(number);
        if end > EXTENSION_BYTES {
            break;
        }
        if number == GEN_NUM {
            let told = bytes[offset + 1..end]
                .iter()
                .fold(0, |sum, &byte| sum << 8 | u64::from(byte));
            generation = (told != 0).then_some(told); // Linux takes 0 for "none given"
        }
        offset = end;
    }
    let marked = bytes[MARK_OFFSET..].starts_with(&MARK_SIGN) && bytes[13] != 0;
    Handshake { generation, marked }
}

/// Return the extension of a map: this node's generation, and the mark without capabilities.
pub fn emit_generation(generation: u32) -> Extension {
    let mut bytes = [0; EXTENSION_BYTES];
    bytes[0] = GEN_NUM;
    bytes[1..5].copy_from_slice(&generation.to_be_bytes());
    bytes[MARK_OFFSET..MARK_OFFSET + 3].copy_from_slice(&MARK_SIGN);
    bytes[13] = MARK_VERSION;
    bytes
}

/// Return how many bytes of data a type has.
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

    fn space(bytes: &[u8]) -> Extension {
        let mut space = [0; EXTENSION_BYTES];
        space[..bytes.len()].copy_from_slice(bytes);
        space
    }

    #[test]
    fn a_generation_comes_back() {
        let bytes = emit_generation(0x0102_0304);
        assert_eq!(bytes, space(b"\x06\x01\x02\x03\x04\0\0\0\0\0\0UR\x01"));
        let told = Handshake {
            generation: Some(0x0102_0304),
            marked: true,
        };
        assert_eq!(parse_handshake(&bytes), told);
    }

    #[test]
    fn reading_ends_where_linux_ends_it() {
        let generation = |bytes: &[u8]| parse_handshake(&space(bytes)).generation;
        assert_eq!(generation(b"\x05\0\x08\x06\0\0\0\x07"), Some(7)); // behind another
        assert_eq!(generation(b"\x0a\x06\0\0\0\x07"), Some(7)); // an unknown type has no data
        assert_eq!(generation(b"\0\x06\0\0\0\x07"), None); // behind the end
        assert_eq!(generation(b"\x10\x06\0\0\0\x07"), None); // a type of 16 is an end
        assert_eq!(generation(b"\x06\0\0\0\x07\x06\0\0\0\0"), None); // 0 is none, the last counts
        assert_eq!(generation(b"\x03........\x05..\x06\0\0\x07"), None); // cut off
    }

    #[test]
    fn a_mark_needs_its_sign_and_a_version() {
        let marked = |bytes: &[u8]| parse_handshake(&space(bytes)).marked;
        assert!(marked(b"\0\0\0\0\0\0\0\0\0\0\0UR\x01"));
        assert!(!marked(b"\0\0\0\0\0\0\0\0\0\0\0UR\0"));
        assert!(!marked(b"\0\0\0\0\0\0\0\0\0\0\x01UR\x01"));
    }
}
