//! The congestion map: one bit per port of one address, set while that port's socket is full.
//!
//! On the wire 8192 bytes, port p in byte p / 8, bit p % 8 from the low end; as 64-bit
//! little-endian words, port p is bit p % 64 of word p / 64. A map is sent whole and replaces the
//! one before it. Nearly every map is empty, and an empty one holds no bytes here.
//! Source: linux v6.12 `net/rds/cong.c`, `net/rds/tcp_recv.c`.

use crate::constants::CONGESTION_MAP_BYTES;

/// The bytes of a map.
pub type MapBytes = [u8; CONGESTION_MAP_BYTES];

static EMPTY: MapBytes = [0; CONGESTION_MAP_BYTES];

/// A set of ports, mutable, at most 8 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CongestionMap {
    bytes: Option<Box<MapBytes>>, // never all zero
}

impl CongestionMap {
    /// Return the 8192 bytes; those of an empty map cost no memory.
    pub fn emit(&self) -> &MapBytes {
        self.bytes.as_deref().unwrap_or(&EMPTY)
    }

    /// Mark `port` congested; return whether that is new.
    pub fn set(&mut self, port: u16) -> bool {
        let (index, bit) = place(port);
        let bytes = self.bytes.get_or_insert_with(|| Box::new(EMPTY));
        let news = bytes[index] & bit == 0;
        bytes[index] |= bit;
        news
    }

    /// Mark `port` free; return whether that is new.
    pub fn clear(&mut self, port: u16) -> bool {
        let (index, bit) = place(port);
        let Some(bytes) = self
            .bytes
            .as_deref_mut()
            .filter(|bytes| bytes[index] & bit != 0)
        else {
            return false;
        };
        bytes[index] ^= bit;
        if *bytes == EMPTY {
            self.bytes = None;
        }
        true
    }

    /// Return whether `port` is congested.
    pub fn test(&self, port: u16) -> bool {
        let (index, bit) = place(port);
        self.bytes
            .as_deref()
            .is_some_and(|bytes| bytes[index] & bit != 0)
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_none()
    }

    /// Replace the content by the payload of the next map message.
    ///
    /// Return the monitor mask of the ports that were congested and no longer are.
    pub fn replace(&mut self, bytes: &MapBytes) -> u64 {
        let cleared = fold(
            self.words()
                .zip(words(bytes))
                .map(|(before, now)| before & !now),
        );
        if *bytes == EMPTY {
            self.bytes = None;
        } else {
            self.bytes
                .get_or_insert_with(|| Box::new(EMPTY))
                .copy_from_slice(bytes);
        }
        cleared
    }

    /// Return the 64-bit mask of a congestion monitor: bit p % 64 for each port p.
    pub fn monitor_mask(&self) -> u64 {
        fold(self.words())
    }

    fn words(&self) -> impl Iterator<Item = u64> {
        words(self.emit())
    }
}

fn place(port: u16) -> (usize, u8) {
    (usize::from(port >> 3), 1 << (port & 7))
}

fn words(bytes: &MapBytes) -> impl Iterator<Item = u64> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|&word| u64::from_le_bytes(word))
}

/// Return the groups, of 64, in which one of the 65,536 bits is set.
fn fold(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0, |groups, word| groups | word)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn of(ports: &[u16]) -> CongestionMap {
        let mut map = CongestionMap::default();
        for &port in ports {
            map.set(port);
        }
        map
    }

    #[test]
    fn a_port_has_its_byte_and_bit() {
        let map = of(&[0, 9, 65535]);
        assert_eq!(
            (map.emit()[0], map.emit()[1], map.emit()[8191]),
            (1, 2, 128)
        );
        assert_eq!(map.monitor_mask(), 1 | 1 << 9 | 1 << 63);
    }

    #[test]
    fn an_empty_map_holds_no_bytes() {
        let mut map = of(&[7]);
        assert!(map.clear(7) && map.is_empty());
        assert!(!map.clear(7) && !map.test(7));
        assert_eq!(map.emit(), &EMPTY);
    }

    #[test]
    fn only_cleared_ports_count_at_a_replacement() {
        let mut map = of(&[3, 64 + 5]);
        assert_eq!(map.replace(of(&[3, 8]).emit()), 1 << 5);
        assert_eq!(map, of(&[3, 8]));
        assert_eq!(map.replace(&EMPTY), 1 << 3 | 1 << 8);
        assert!(map.is_empty());
    }

    proptest! {
        #[test]
        fn it_is_a_set(steps in vec((0_u16..40, any::<bool>()), 0..60)) {
            let (mut map, mut model) = (CongestionMap::default(), BTreeSet::new());
            for (port, on) in steps {
                let port = port * 1639;
                let news = if on { map.set(port) } else { map.clear(port) };
                prop_assert_eq!(news, if on { model.insert(port) } else { model.remove(&port) });
                prop_assert_eq!(map.is_empty(), model.is_empty());
            }
            for port in 0..=u16::MAX {
                prop_assert_eq!(map.test(port), model.contains(&port));
            }
        }
    }
}
