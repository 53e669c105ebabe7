//! Detection of a peer's restart by its maps or its probes.
//!
//! A urds node sends its generation in each map; a kernel sends one in each probe from linux v7.0
//! on, and none before: then a second probe is a restart, unless it is the first one retransmitted.
//! See docs/adr/0008-the-map-tells-the-life.md and docs/protocol/rds-tcp.md.

use crate::constants::{FLAG_RETRANSMITTED, PROBE_PORT};
use crate::extension::parse_handshake;
use crate::header::Header;
use crate::kinds::Extension;

/// The known present generation of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerGenerations {
    /// Of the last probe.
    pub probe_sequence: Option<u64>,
    /// Of a kernel.
    pub generation: Option<u64>,
    /// In a urds node's maps.
    pub map_generation: Option<u64>,
}

impl PeerGenerations {
    /// Return whether a map carries another generation of a urds node; note it.
    ///
    /// The first one sent is no restart: towards a supposed kernel a node sends none.
    pub fn is_new_by_map(&mut self, extension: &Extension) -> bool {
        let handshake = parse_handshake(extension);
        if !handshake.marked || handshake.generation.is_none() {
            return false;
        }
        let known = std::mem::replace(&mut self.map_generation, handshake.generation);
        known.is_some() && known != handshake.generation
    }

    /// Return whether a message is a probe of a restarted kernel; note its generation.
    pub fn is_new_by_probe(&mut self, header: &Header) -> bool {
        if header.source_port != PROBE_PORT || header.target_port != 0 {
            return false;
        }
        let handshake = parse_handshake(&header.extension);
        if handshake.marked {
            return false; // a urds node sends it in its maps
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
    use crate::extension::emit_generation;

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
    fn a_map_with_another_generation_is_a_restart() {
        let mut generations = PeerGenerations::default();
        assert!(!generations.is_new_by_map(&emit_generation(1))); // the first one sent
        assert!(!generations.is_new_by_map(&emit_generation(1)));
        assert!(!generations.is_new_by_map(&[0; 16]));
        assert!(generations.is_new_by_map(&emit_generation(2)));
        assert_eq!(generations.map_generation, Some(2));
    }

    #[test]
    fn a_kernel_restart_shows_in_its_generation() {
        let mut generations = PeerGenerations::default();
        assert!(!generations.is_new_by_probe(&probe(1, 0, 5)));
        assert!(!generations.is_new_by_probe(&probe(9, 0, 5)));
        assert!(generations.is_new_by_probe(&probe(1, 0, 6)));
        assert!(!generations.is_new_by_probe(&Header {
            target_port: 3,
            ..probe(1, 0, 7)
        }));
    }

    #[test]
    fn an_older_kernel_by_a_second_probe() {
        let mut generations = PeerGenerations::default();
        assert!(!generations.is_new_by_probe(&probe(3, 0, 0)));
        generations.probe_sequence = Some(3);
        assert!(!generations.is_new_by_probe(&probe(3, FLAG_RETRANSMITTED, 0)));
        assert!(generations.is_new_by_probe(&probe(3, 0, 0)));
        assert!(generations.is_new_by_probe(&probe(4, FLAG_RETRANSMITTED, 0)));
    }

    #[test]
    fn a_urds_nodes_probe_tells_nothing() {
        let mut generations = PeerGenerations {
            generation: Some(1),
            ..PeerGenerations::default()
        };
        let header = Header {
            extension: emit_generation(2),
            ..probe(1, 0, 0)
        };
        assert!(!generations.is_new_by_probe(&header));
        assert_eq!(generations.generation, Some(1));
    }
}
