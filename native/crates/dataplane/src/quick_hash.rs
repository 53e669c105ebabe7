//! A hash for small keys that are looked up once per message: addresses and ports of this host.
//!
//! One multiplication for each eight bytes, with a seed of each table: programs of this host choose
//! the keys, but cannot tell which of them collide. The hash of the standard library takes five
//! times as long for a key of this size.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Odd, with as many ones as zeros: digits of the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Makes hashes for one table.
#[derive(Clone, Debug)]
pub struct QuickHash {
    seed: u64,
}

impl Default for QuickHash {
    fn default() -> Self {
        Self {
            seed: RandomState::new().hash_one(FACTOR),
        }
    }
}

impl BuildHasher for QuickHash {
    type Hasher = QuickHasher;

    #[inline]
    fn build_hasher(&self) -> QuickHasher {
        QuickHasher(self.seed)
    }
}

/// The hash of one key so far.
#[derive(Debug)]
pub struct QuickHasher(u64);

impl QuickHasher {
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // both halves are used
    fn add(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value) * u128::from(FACTOR);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

impl Hasher for QuickHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut eight = [0; 8];
            eight[..part.len()].copy_from_slice(part);
            self.add(u64::from_ne_bytes(eight));
        }
    }

    #[inline]
    fn write_u16(&mut self, value: u16) {
        self.add(u64::from(value));
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.add(u64::from(value));
    }

    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.add(u64::from(value));
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.add(value);
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.add(value as u64);
    }

    #[inline]
    #[allow(clippy::cast_sign_loss)] // any number does
    fn write_isize(&mut self, value: isize) {
        self.add(value as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use urds_path::Address;

    #[test]
    fn addresses_of_one_network_and_ports_are_spread() {
        let table = QuickHash::default();
        let mut low = [0u32; 256];
        for last in 0..4096u32 {
            let [.., third, fourth] = last.to_be_bytes();
            let address = Address::new(std::net::Ipv4Addr::new(127, 0, third, fourth).into());
            low[(table.hash_one(address) & 255) as usize] += 1;
        }
        assert!(low.iter().all(|&count| count < 48), "{low:?}"); // 16 each, if even
        let ports: HashSet<u64> = (0..=u16::MAX).map(|port| table.hash_one(port)).collect();
        assert!(ports.len() > 65_500);
        let other = QuickHash::default();
        assert_ne!(table.hash_one(7u16), other.hash_one(7u16));
    }
}
