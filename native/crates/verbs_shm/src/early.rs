//! What waits for channels to peers that have none yet, in order and within bounds: packets, and which
//! of their memory is to be mapped.

use std::collections::{HashMap, VecDeque};

use urds_verbs::packets::Packet;

use crate::channels::Gid;

/// Packets that wait for one peer.
const PACKETS_MAX: usize = 256;
/// Their bytes, unless it is the first one; a new channel has room for more than both bounds.
const BYTES_MAX: usize = 256 << 10;

/// Keys of all peers together; without a place the next write asks.
const WANTED_MAX: usize = 64;

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is the first for its peer: a channel is to be requested.
    First,
    Behind,
    /// There are too many.
    Dropped,
}

/// A packet and its payload.
type Whole = (Packet, Vec<u8>);

#[derive(Debug, Default)]
struct Waiting {
    packets: VecDeque<Whole>,
    bytes: usize,
}

/// The packets of each peer that has no channel, and the memory of such peers to be mapped.
#[derive(Debug, Default)]
pub struct Early {
    packets: HashMap<Gid, Waiting>,
    /// Queue pairs of peers, and keys.
    wanted: Vec<(Gid, u32, u32)>,
}

impl Early {
    /// Return whether packets wait for a peer.
    pub fn holds(&self, gid: &Gid) -> bool {
        self.packets.contains_key(gid)
    }

    /// Keep a packet of so many bytes; `content` copies them.
    pub fn keep(
        &mut self,
        gid: Gid,
        packet: &Packet,
        bytes: usize,
        content: impl FnOnce() -> Vec<u8>,
    ) -> Kept {
        let waiting = self.packets.entry(gid).or_default();
        let is_first = waiting.packets.is_empty();
        let is_over = waiting.packets.len() >= PACKETS_MAX || waiting.bytes + bytes > BYTES_MAX;
        if is_over && !is_first {
            return Kept::Dropped;
        }
        waiting.bytes += bytes;
        waiting.packets.push_back((*packet, content()));
        if is_first { Kept::First } else { Kept::Behind }
    }

    /// Take what waits for a peer, oldest first.
    pub fn take(&mut self, gid: &Gid) -> impl Iterator<Item = Whole> + use<> {
        let waiting = self.packets.remove(gid).unwrap_or_default();
        waiting.packets.into_iter()
    }

    /// Remember memory to be mapped once there is a channel.
    pub fn want(&mut self, gid: Gid, qpn: u32, key: u32) {
        let wanted = (gid, qpn, key);
        if self.wanted.len() < WANTED_MAX && !self.wanted.contains(&wanted) {
            self.wanted.push(wanted);
        }
    }

    /// Take what memory of a peer is to be mapped.
    pub fn take_wanted(&mut self, gid: &Gid) -> Vec<(u32, u32)> {
        let (own, others) = self.wanted.iter().partition(|(of, ..)| of == gid);
        self.wanted = others;
        let own: Vec<(Gid, u32, u32)> = own;
        own.into_iter().map(|(_, qpn, key)| (qpn, key)).collect()
    }

    pub fn clear(&mut self) {
        self.packets.clear();
        self.wanted.clear();
    }
}

#[cfg(test)]
mod tests {
    use urds_verbs::numbers::Kind;

    use super::*;

    fn keep(early: &mut Early, peer: u8, number: i64, bytes: usize) -> Kept {
        let packet = Packet::new(Kind::Datagram, 2, number, 0);
        early.keep([peer; 16], &packet, bytes, || vec![0; bytes])
    }

    #[test]
    fn packets_wait_in_order_for_their_own_peer() {
        let mut early = Early::default();
        assert_eq!(keep(&mut early, 1, 0, 8), Kept::First);
        assert_eq!(keep(&mut early, 1, 1, 8), Kept::Behind);
        assert_eq!(keep(&mut early, 2, 2, 8), Kept::First);
        let taken = |early: &mut Early, peer: u8| -> Vec<u32> {
            early
                .take(&[peer; 16])
                .map(|(packet, _)| packet.psn)
                .collect()
        };
        assert_eq!(taken(&mut early, 1), [0, 1]);
        assert!(!early.holds(&[1; 16]) && early.holds(&[2; 16]));
        assert_eq!(taken(&mut early, 1), []);
        assert_eq!(taken(&mut early, 2), [2]);
    }

    #[test]
    fn memory_is_wanted_once_and_of_its_own_peer() {
        let mut early = Early::default();
        for (peer, key) in [(1, 5), (1, 5), (2, 6), (1, 7)] {
            early.want([peer; 16], 9, key);
        }
        assert_eq!(early.take_wanted(&[1; 16]), [(9, 5), (9, 7)]);
        assert_eq!(early.take_wanted(&[1; 16]), []);
        assert_eq!(early.take_wanted(&[2; 16]), [(9, 6)]);
        (0..100).for_each(|key| early.want([1; 16], 9, key));
        assert_eq!(early.take_wanted(&[1; 16]).len(), WANTED_MAX);
    }

    #[test]
    fn count_and_bytes_are_bounded_but_for_the_first() {
        let mut early = Early::default();
        for number in 0..256 {
            assert_ne!(keep(&mut early, 1, number, 8), Kept::Dropped);
        }
        assert_eq!(keep(&mut early, 1, 256, 8), Kept::Dropped);
        assert_eq!(early.take(&[1; 16]).count(), 256);
        assert_eq!(keep(&mut early, 1, 0, BYTES_MAX + 1), Kept::First);
        assert_eq!(keep(&mut early, 1, 1, 0), Kept::Dropped);
        assert_eq!(keep(&mut early, 2, 0, BYTES_MAX), Kept::First);
        assert_eq!(keep(&mut early, 2, 1, 1), Kept::Dropped);
    }
}
