//! Socket addresses of C, checked as Linux checks them in each call.
//!
//! Source: linux v6.12 net/rds/bind.c, `net/rds/af_rds.c` (connect), net/rds/send.c.

use urds_client::Name;

use crate::{Answer, Errno};

pub const IN_BYTES: usize = size_of::<libc::sockaddr_in>();
pub const IN6_BYTES: usize = size_of::<libc::sockaddr_in6>();

/// Which call an address was given to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Bind,
    Connect,
    Send,
}

/// Return the address that a program gave to a call.
///
/// # Errors
/// As Linux: EINVAL, for connect also EDESTADDRREQ, EPROTOTYPE and EAFNOSUPPORT.
pub fn parse(given: &[u8], call: Call) -> Answer<Name> {
    let family = family_of(given).ok_or(libc::EINVAL)?;
    let needed = match i32::from(family) {
        libc::AF_INET => IN_BYTES,
        libc::AF_INET6 => IN6_BYTES,
        _ if call == Call::Connect && given.len() >= IN_BYTES => return Err(libc::EAFNOSUPPORT),
        _ => return Err(libc::EINVAL),
    };
    if given.len() < needed {
        return Err(libc::EINVAL);
    }
    let name = unpack(&given[..needed]);
    check(&name, call)?;
    Ok(name)
}

/// Read 28 bytes or more as IPv6, else 16 as IPv4, whatever the family field holds.
///
/// That is how `RDS_CANCEL_SENT_TO` reads its value: kernel parity. Fewer than 16 are zeros.
pub fn unpack(given: &[u8]) -> Name {
    let mut name = Name {
        address: [0; 16],
        port: 0,
        scope: 0,
    };
    if given.len() >= IN6_BYTES {
        name.address.copy_from_slice(&given[8..24]);
        let mut scope = [0; 4];
        scope.copy_from_slice(&given[24..28]);
        if is_link_local(&name) {
            name.scope = u32::from_ne_bytes(scope);
        }
    } else if given.len() >= IN_BYTES {
        name = Name::v4([given[4], given[5], given[6], given[7]], 0);
    }
    if given.len() >= IN_BYTES {
        name.port = u16::from_be_bytes([given[2], given[3]]);
    }
    name
}

/// Return the socket address of a name, and its length.
pub fn emit(name: &Name) -> ([u8; IN6_BYTES], usize) {
    let mut bytes = [0; IN6_BYTES];
    let family = if name.is_v4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    bytes[..2].copy_from_slice(&u16::try_from(family).unwrap_or(0).to_ne_bytes());
    bytes[2..4].copy_from_slice(&name.port.to_be_bytes());
    if name.is_v4() {
        bytes[4..8].copy_from_slice(&name.address[12..]);
        return (bytes, IN_BYTES);
    }
    bytes[8..24].copy_from_slice(&name.address);
    bytes[24..].copy_from_slice(&name.scope.to_ne_bytes());
    (bytes, IN6_BYTES)
}

/// Return the name of a family with zeros.
pub fn zeros_like(name: &Name) -> Name {
    if name.is_v4() {
        Name::v4([0; 4], 0)
    } else {
        Name::default()
    }
}

fn family_of(given: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes([*given.first()?, *given.get(1)?]))
}

fn is_link_local(name: &Name) -> bool {
    name.address[0] == 0xfe && name.address[1] & 0xc0 == 0x80
}

fn check(name: &Name, call: Call) -> Result<(), Errno> {
    if name.is_v4() {
        let [a, b, c, d] = [12, 13, 14, 15].map(|at| name.address[at]);
        if [a, b, c, d] == [0; 4] {
            let is_connect = call == Call::Connect;
            return Err(if is_connect {
                libc::EDESTADDRREQ
            } else {
                libc::EINVAL
            });
        }
        if a & 0xf0 == 0xe0 || [a, b, c, d] == [0xff; 4] {
            return Err(libc::EINVAL);
        }
        return Ok(());
    }
    if name.address == [0; 16] || name.address[0] == 0xff {
        let is_connect = call == Call::Connect;
        return Err(if is_connect {
            libc::EPROTOTYPE
        } else {
            libc::EINVAL
        });
    }
    if is_link_local(name) && name.scope == 0 {
        return Err(libc::EINVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(address: [u8; 4], port: u16) -> [u8; IN_BYTES] {
        let mut bytes = [0; IN_BYTES];
        bytes[..2].copy_from_slice(&2u16.to_ne_bytes());
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        bytes[4..8].copy_from_slice(&address);
        bytes
    }

    #[test]
    fn an_address_comes_back_as_it_went() {
        let given = v4([10, 0, 0, 1], 4000);
        let name = parse(&given, Call::Bind).unwrap();
        let (bytes, length) = emit(&name);
        assert_eq!(&bytes[..length], &given);
    }

    #[test]
    fn each_call_refuses_as_linux_does() {
        for (address, call, errno) in [
            ([0, 0, 0, 0], Call::Bind, libc::EINVAL),
            ([0, 0, 0, 0], Call::Connect, libc::EDESTADDRREQ),
            ([0, 0, 0, 0], Call::Send, libc::EINVAL),
            ([224, 0, 0, 1], Call::Bind, libc::EINVAL),
            ([255, 255, 255, 255], Call::Connect, libc::EINVAL),
        ] {
            assert_eq!(parse(&v4(address, 1), call), Err(errno));
        }
        let mut other = v4([10, 0, 0, 1], 1);
        other[0] = 16;
        assert_eq!(parse(&other, Call::Connect), Err(libc::EAFNOSUPPORT));
        assert_eq!(parse(&other, Call::Bind), Err(libc::EINVAL));
        assert_eq!(parse(&other[..1], Call::Connect), Err(libc::EINVAL));
        assert_eq!(
            parse(&v4([10, 0, 0, 1], 1)[..15], Call::Connect),
            Err(libc::EINVAL)
        );
    }

    #[test]
    fn an_address_of_ipv6_keeps_its_scope_where_it_needs_one() {
        let mut given = [0; IN6_BYTES];
        given[..2].copy_from_slice(&10u16.to_ne_bytes());
        given[8] = 0xfe;
        given[9] = 0x80;
        assert_eq!(parse(&given, Call::Bind), Err(libc::EINVAL));
        given[24..].copy_from_slice(&3u32.to_ne_bytes());
        assert_eq!(parse(&given, Call::Bind).unwrap().scope, 3);
    }
}
