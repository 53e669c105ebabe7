//! Addresses of hosts and of sockets, small enough to copy with each message.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

/// The address of a host; a link-local IPv6 address carries the number of its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    pub ip: IpAddr,
    /// Zero for none.
    pub scope: u32,
}

impl Address {
    /// Return an address without a scope.
    pub const fn new(ip: IpAddr) -> Self {
        Self { ip, scope: 0 }
    }
}

impl From<Ipv4Addr> for Address {
    fn from(ip: Ipv4Addr) -> Self {
        Self::new(IpAddr::V4(ip))
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        Self::new(ip)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scope {
            0 => write!(formatter, "{}", self.ip),
            scope => write!(formatter, "{}%{scope}", self.ip),
        }
    }
}

/// The address of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketAddress {
    pub address: Address,
    pub port: u16,
}

impl SocketAddress {
    pub const fn new(address: Address, port: u16) -> Self {
        Self { address, port }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn a_scope_shows_and_tells_addresses_apart() {
        let plain = Address::from(IpAddr::V6(Ipv6Addr::LOCALHOST));
        let scoped = Address { scope: 2, ..plain };
        assert_eq!(
            (plain.to_string(), scoped.to_string()),
            ("::1".into(), "::1%2".into())
        );
        assert_ne!(SocketAddress::new(plain, 5), SocketAddress::new(scoped, 5));
        assert!(size_of::<SocketAddress>() <= 28);
    }
}
