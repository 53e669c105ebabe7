//! Addresses of hosts and of sockets, small enough to copy with each message.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address of a host; a link-local IPv6 address carries the number of its interface.
///
/// Kept in whole words: bytes that are written one by one and then copied with each message, as those
/// of an `IpAddr`, have the processor wait for each copy. No member is a `bool` or an `enum`: in its spare
/// values compilers keep whether an `Option` around it is one, a byte that is written alone. Ordered as
/// `IpAddr` is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// 4 or 6.
    version: u32,
    /// The upper half of an IPv6 address.
    high: u64,
    /// The lower one, or an IPv4 address.
    low: u64,
    /// Zero for none.
    pub scope: u32,
}

impl Address {
    /// Return an address without a scope.
    pub const fn new(ip: IpAddr) -> Self {
        Self::scoped(ip, 0)
    }

    /// Return an address with a scope, zero for none.
    #[allow(clippy::cast_possible_truncation)] // the lower half
    pub const fn scoped(ip: IpAddr, scope: u32) -> Self {
        let (version, bits) = match ip {
            IpAddr::V4(four) => (4, four.to_bits() as u128),
            IpAddr::V6(six) => (6, six.to_bits()),
        };
        Self {
            version,
            high: (bits >> 64) as u64,
            low: bits as u64,
            scope,
        }
    }

    /// Return it without the scope.
    #[allow(clippy::cast_possible_truncation)] // an IPv4 address
    pub const fn ip(&self) -> IpAddr {
        if self.version == 6 {
            let bits = (self.high as u128) << 64 | self.low as u128;
            IpAddr::V6(Ipv6Addr::from_bits(bits))
        } else {
            IpAddr::V4(Ipv4Addr::from_bits(self.low as u32))
        }
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
            0 => write!(formatter, "{}", self.ip()),
            scope => write!(formatter, "{}%{scope}", self.ip()),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
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
    use super::*;

    #[test]
    fn an_address_comes_back_and_is_ordered_as_it_was() {
        let texts = [
            "0.0.0.0",
            "127.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1:2",
            "ffff::",
        ];
        let ips = texts.map(|text| text.parse::<IpAddr>().expect("an address"));
        assert_eq!(ips.map(|ip| Address::scoped(ip, 7).ip()), ips);
        assert!(ips.map(Address::new).is_sorted() && ips.is_sorted());
    }

    #[test]
    fn a_scope_shows_and_tells_addresses_apart() {
        let plain = Address::from(IpAddr::V6(Ipv6Addr::LOCALHOST));
        let scoped = Address { scope: 2, ..plain };
        assert_eq!(
            (plain.to_string(), scoped.to_string()),
            ("::1".into(), "::1%2".into())
        );
        assert_ne!(SocketAddress::new(plain, 5), SocketAddress::new(scoped, 5));
        assert_eq!(size_of::<SocketAddress>(), 32);
        assert!(size_of::<Option<SocketAddress>>() > 32, "no spare values");
    }
}
