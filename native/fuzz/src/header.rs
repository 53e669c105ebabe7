//! The small parsers: a header is what it was read from, and its checksum is that of RFC 1071.

use urds_path::constants::{CONGESTION_MAP_BYTES, HEADER_BYTES};
use urds_path::extension::{emit_life, parse_handshake};
use urds_path::{CongestionMap, Header};

/// Read octets as a header, as an extension, and as changes to a congestion map.
///
/// # Panics
/// If a rule is broken.
pub fn run(octets: &[u8]) {
    let Some((octets, rest)) = octets.split_first_chunk::<HEADER_BYTES>() else {
        assert_eq!(Header::peek(octets), None);
        return;
    };
    let header = Header::parse(octets);
    assert_eq!(&header.emit(false), octets);
    assert_eq!(header.verify(), header.checksum == 0 || sum(octets) == 0);
    let sent = header.emit(true);
    assert!(Header::parse(&sent).verify());
    assert_ne!(Header::parse(&sent).checksum, 0);
    let handshake = parse_handshake(&header.extension);
    if let Some(generation) = handshake.generation {
        let generation = u32::try_from(generation).expect("32 bits on the wire");
        let told = parse_handshake(&emit_life(generation));
        assert_eq!(told.generation, handshake.generation);
        assert!(told.marked);
    }
    change_map(rest);
}

fn sum(octets: &[u8]) -> u64 {
    let words = octets
        .chunks(2)
        .map(|pair| u64::from(pair[0]) << 8 | u64::from(pair[1]));
    words.sum::<u64>() % 0xFFFF
}

/// Set and clear ports, and compare with plain octets.
fn change_map(octets: &[u8]) {
    let (mut map, mut model) = (CongestionMap::default(), [0_u8; CONGESTION_MAP_BYTES]);
    let before = map.clone();
    for three in octets.chunks_exact(3) {
        let port = u16::from_be_bytes([three[0], three[1]]);
        let (place, bit) = (usize::from(port / 8), 1 << (port % 8));
        let was = model[place] & bit != 0;
        if three[2] & 1 == 0 {
            model[place] |= bit;
            assert_eq!(map.set(port), !was);
        } else {
            model[place] &= !bit;
            assert_eq!(map.clear(port), was);
        }
        assert_eq!(map.test(port), model[place] & bit != 0);
    }
    assert_eq!(map.emit(), &model);
    assert_eq!(map.is_empty(), model.iter().all(|octet| *octet == 0));
    let mask = map.monitor_mask();
    assert_eq!(map.replace(before.emit()), mask);
    assert!(map.is_empty());
}
