//! One local address of the plane: its bound sockets, its congestion map, and those of its peers.

use std::collections::HashMap;

pub use urds_path::congestion_map::MapBytes;
use urds_path::{Address, CongestionMap};

use crate::external::ExternalId;
use crate::quick_hash::QuickHash;
use crate::state::{MailboxId, PathId};

/// The mailboxes of bound ports, listed in the order in which they were bound.
#[derive(Default)]
pub struct Inboxes {
    by_port: HashMap<u16, (MailboxId, u64), QuickHash>,
    bound: u64,
}

impl Inboxes {
    /// Bind a port; one that another has stays that one's.
    pub fn insert(&mut self, port: u16, mailbox: MailboxId) {
        self.bound += 1;
        self.by_port.entry(port).or_insert((mailbox, self.bound));
    }

    /// Return the mailbox of a port.
    #[inline]
    pub fn get(&self, port: &u16) -> Option<&MailboxId> {
        self.by_port.get(port).map(|bound| &bound.0)
    }

    /// Free a port, if it still belongs to that mailbox.
    pub fn remove(&mut self, port: u16, mailbox: MailboxId) {
        if self.get(&port) == Some(&mailbox) {
            self.by_port.remove(&port);
        }
    }

    /// Return all mailboxes, in no order.
    pub fn values(&self) -> impl Iterator<Item = &MailboxId> {
        self.by_port.values().map(|bound| &bound.0)
    }

    /// Return all mailboxes in the order in which they were bound.
    pub fn in_order(&self) -> Vec<MailboxId> {
        let mut bound: Vec<_> = self.by_port.values().copied().collect();
        bound.sort_unstable_by_key(|&(_, number)| number);
        bound.into_iter().map(|(mailbox, _)| mailbox).collect()
    }
}

/// Tables of one local address.
pub struct Host {
    pub address: Address,
    /// The mailbox of each bound port.
    pub inboxes: Inboxes,
    /// The paths with streams, in the order in which they were made.
    pub paths: Vec<PathId>,
    /// Those of transports of messages.
    pub externals: Vec<ExternalId>,
    /// Our map, as peers and as senders of this process see it.
    pub congested: CongestionMap,
    /// Maps of peers that mark at least one port.
    peer_maps: HashMap<Address, CongestionMap>,
}

impl Host {
    pub fn new(address: Address) -> Self {
        Self {
            address,
            inboxes: Inboxes::default(),
            paths: Vec::new(),
            externals: Vec::new(),
            congested: CongestionMap::default(),
            peer_maps: HashMap::new(),
        }
    }

    /// Return a peer's map in force, if it marks any port.
    pub fn peer_map(&self, peer: &Address) -> Option<&CongestionMap> {
        self.peer_maps.get(peer)
    }

    /// Return whether the peer's map in force marks a port.
    pub fn peer_is_congested(&self, peer: &Address, port: u16) -> bool {
        // As a rule no peer is congested: then there is nothing to look up for a message.
        !self.peer_maps.is_empty() && self.peer_maps.get(peer).is_some_and(|map| map.test(port))
    }

    /// Put the peer's new map in force; return the groups with a port that it cleared.
    pub fn replace_peer_map(&mut self, peer: Address, bytes: &MapBytes) -> u64 {
        if bytes.iter().any(|byte| *byte != 0) {
            return self.peer_maps.entry(peer).or_default().replace(bytes);
        }
        self.peer_maps
            .remove(&peer)
            .map_or(0, |mut map| map.replace(bytes))
    }

    /// Drop the map of a peer to which no path is left; no socket is routed to it any more.
    pub fn forget_peer_map(&mut self, peer: &Address) {
        self.peer_maps.remove(peer);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_map_is_in_force_until_another_comes_or_the_peer_is_forgotten() {
        let address = |last| Address::from(Ipv4Addr::new(127, 0, 0, last));
        let mut host = Host::new(address(1));
        let mut bytes = [0; 8192];
        bytes[500 / 8] = 1 << (500 % 8);
        assert_eq!(host.replace_peer_map(address(2), &bytes), 0);
        assert!(host.peer_is_congested(&address(2), 500));
        assert!(!host.peer_is_congested(&address(3), 500));
        assert_eq!(
            host.replace_peer_map(address(2), &[0; 8192]),
            1 << (500 % 64)
        );
        assert!(!host.peer_is_congested(&address(2), 500) && host.peer_maps.is_empty());
        host.replace_peer_map(address(2), &bytes);
        host.forget_peer_map(&address(2));
        assert!(!host.peer_is_congested(&address(2), 500));
    }
}
