//! How a new life of the peer shows in what it sends: by its maps or by its probes.
//!
//! An own node says its life in each map; a kernel says a generation in each probe from linux
//! v7.0 on, and before that nothing: then a second probe means a new life, unless it is the first
//! one repeated. See docs/adr/0008-the-map-tells-the-life.md and docs/protocol/rds-tcp.md.

use crate::constants::{FLAG_RETRANSMITTED, PROBE_PORT};
use crate::extension::parse_handshake;
use crate::header::Header;
use crate::kinds::Extension;

/// What is known of the peer's present life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerLives {
    /// Of the last probe.
    pub probe_sequence: Option<u64>,
    /// A kernel's.
    pub generation: Option<u64>,
    /// The generation in an own node's maps.
    pub life: Option<u64>,
}

impl PeerLives {
    /// Tell whether a map tells another life of an own node; note the one it tells.
    ///
    /// A first word on it begins no life: a node that took us for a kernel kept it to itself.
    pub fn is_new_by_map(&mut self, extension: &Extension) -> bool {
        let handshake = parse_handshake(extension);
        if !handshake.marked || handshake.generation.is_none() {
            return false;
        }
        let known = std::mem::replace(&mut self.life, handshake.generation);
        known.is_some() && known != handshake.generation
    }

    /// Tell whether a message is a probe of a kernel that began anew; note its generation.
    pub fn is_new_by_probe(&mut self, header: &Header) -> bool {
        if header.source_port != PROBE_PORT || header.target_port != 0 {
            return false;
        }
        let handshake = parse_handshake(&header.extension);
        if handshake.marked {
            return false; // an own node tells in its maps
        }
        if handshake.generation.is_some() {
            // Noted here too: the next probe may come before the control plane has read this one.
            let known = std::mem::replace(&mut self.generation, handshake.generation);
            return known.is_some() && known != handshake.generation;
        }
        let repeated = header.flags & FLAG_RETRANSMITTED != 0;
        self.probe_sequence
            .is_some_and(|before| !(repeated && header.sequence == before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extension::emit_life;

    fn probe(sequence: u64, flags: u8, generation: u8) -> Header {
        let mut header = Header {
            sequence,
            flags,
            source_port: PROBE_PORT,
            ..Header::default()
        };
        header.extension[..5].copy_from_slice(&[6, 0, 0, 0, generation]);
        header
    }

    #[test]
    fn a_map_with_another_generation_is_a_new_life() {
        let mut lives = PeerLives::default();
        assert!(!lives.is_new_by_map(&emit_life(1))); // the first word
        assert!(!lives.is_new_by_map(&emit_life(1)));
        assert!(!lives.is_new_by_map(&[0; 16]));
        assert!(lives.is_new_by_map(&emit_life(2)));
        assert_eq!(lives.life, Some(2));
    }

    #[test]
    fn a_kernel_tells_its_life_by_generation() {
        let mut lives = PeerLives::default();
        assert!(!lives.is_new_by_probe(&probe(1, 0, 5)));
        assert!(!lives.is_new_by_probe(&probe(9, 0, 5)));
        assert!(lives.is_new_by_probe(&probe(1, 0, 6)));
        assert!(!lives.is_new_by_probe(&Header {
            target_port: 3,
            ..probe(1, 0, 7)
        }));
    }

    #[test]
    fn an_older_kernel_by_a_second_probe() {
        let mut lives = PeerLives::default();
        assert!(!lives.is_new_by_probe(&probe(3, 0, 0)));
        lives.probe_sequence = Some(3);
        assert!(!lives.is_new_by_probe(&probe(3, FLAG_RETRANSMITTED, 0)));
        assert!(lives.is_new_by_probe(&probe(3, 0, 0)));
        assert!(lives.is_new_by_probe(&probe(4, FLAG_RETRANSMITTED, 0)));
    }

    #[test]
    fn an_own_nodes_probe_tells_nothing() {
        let mut lives = PeerLives {
            generation: Some(1),
            ..PeerLives::default()
        };
        let header = Header {
            extension: emit_life(2),
            ..probe(1, 0, 0)
        };
        assert!(!lives.is_new_by_probe(&header));
        assert_eq!(lives.generation, Some(1));
    }
}
