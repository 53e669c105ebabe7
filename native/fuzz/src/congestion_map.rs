//! The peer's congestion map: whole maps and single ports in any order, beside plain bytes.

use urds_path::CongestionMap;
use urds_path::constants::CONGESTION_MAP_BYTES;

const STEPS_MAX: usize = 64;

/// Read bytes as changes of a map, four bytes each.
///
/// # Panics
/// If a rule is broken.
pub fn run(bytes: &[u8]) {
    let (mut map, mut model) = (CongestionMap::default(), [0_u8; CONGESTION_MAP_BYTES]);
    for four in bytes.as_chunks().0.iter().take(STEPS_MAX) {
        let [kind, high, low, fill] = *four;
        let port = u16::from_be_bytes([high, low]);
        match kind % 4 {
            0 => replace(&mut map, &mut model, port, fill),
            1 => {
                let (place, bit) = place(port);
                assert_eq!(map.clear(port), model[place] & bit != 0);
                model[place] &= !bit;
            }
            _ => {
                let (place, bit) = place(port);
                assert_eq!(map.set(port), model[place] & bit == 0);
                model[place] |= bit;
            }
        }
        assert_eq!(map.test(port), model[place(port).0] & place(port).1 != 0);
    }
    assert_eq!(map.emit(), &model);
    assert_eq!(map.is_empty(), model.iter().all(|byte| *byte == 0));
    let mask = map.monitor_mask();
    assert_eq!(map.replace(CongestionMap::default().emit()), mask);
    assert!(map.is_empty());
}

/// Take a map that a peer sent, of which eight bytes may be set.
fn replace(map: &mut CongestionMap, model: &mut [u8], port: u16, fill: u8) {
    let mut sent = [0; CONGESTION_MAP_BYTES];
    sent[place(port).0 & !7..][..8].fill(fill);
    let words = model.as_chunks().0.iter().zip(sent.as_chunks().0);
    let gone = words.fold(0, |gone, (before, after)| {
        gone | u64::from_le_bytes(*before) & !u64::from_le_bytes(*after)
    });
    assert_eq!(map.replace(&sent), gone);
    model.copy_from_slice(&sent);
}

fn place(port: u16) -> (usize, u8) {
    (usize::from(port / 8), 1 << (port % 8))
}
