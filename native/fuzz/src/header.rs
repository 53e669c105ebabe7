//! The small parsers: a header is what it was read from, and its checksum is that of RFC 1071.

use urds_path::Header;
use urds_path::constants::HEADER_BYTES;
use urds_path::extension::{emit_generation, parse_handshake};

/// Read bytes as a header, and what the extensions in it tell.
///
/// # Panics
/// If a rule is broken.
pub fn run(bytes: &[u8]) {
    let Some((bytes, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        assert_eq!(Header::peek(bytes), None);
        return;
    };
    let header = Header::parse(bytes);
    assert_eq!(&header.emit(false), bytes);
    assert_eq!(header.verify(), header.checksum == 0 || sum(bytes) == 0);
    let sent = header.emit(true);
    assert!(Header::parse(&sent).verify());
    assert_ne!(Header::parse(&sent).checksum, 0);
    let handshake = parse_handshake(&header.extension);
    if let Some(generation) = handshake.generation {
        let generation = u32::try_from(generation).expect("32 bits on the wire");
        let told = parse_handshake(&emit_generation(generation));
        assert_eq!(told.generation, handshake.generation);
        assert!(told.marked);
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let words = bytes
        .chunks(2)
        .map(|pair| u64::from(pair[0]) << 8 | u64::from(pair[1]));
    words.sum::<u64>() % 0xFFFF
}
