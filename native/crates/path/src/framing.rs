//! Frames outside the numbers: congestion maps, hellos, acknowledgements.

use crate::congestion_map::CongestionMap;
use crate::constants::{CONGESTION_MAP_BYTES, FLAG_CONG_BITMAP};
use crate::header::Header;
use crate::kinds::Extension;
use crate::write_buffer::WriteBuffer;

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
