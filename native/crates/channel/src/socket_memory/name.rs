//! An address with a port, as both sides write it.

use core::sync::atomic::Ordering;

use crate::sys::area::Area;

/// An address of RDS: 16 bytes, IPv4 mapped into IPv6; port and scope in host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Name {
    /// IPv6, or IPv4 as `::ffff:a.b.c.d`.
    pub address: [u8; 16],
    /// 0 to 65,535.
    pub port: u16,
    /// Interface of a link-local address, else 0.
    pub scope: u32,
}

const PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

impl Name {
    /// Return the name of an IPv4 address.
    pub fn v4(address: [u8; 4], port: u16) -> Self {
        let mut name = Self {
            port,
            ..Self::default()
        };
        name.address[..12].copy_from_slice(&PREFIX);
        name.address[12..].copy_from_slice(&address);
        name
    }

    /// Return whether it is IPv4.
    pub fn is_v4(&self) -> bool {
        self.address[..12] == PREFIX
    }

    /// Return it as the records of the node socket have it.
    pub fn bytes(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.address);
        bytes[16..18].copy_from_slice(&self.port.to_le_bytes());
        bytes[20..].copy_from_slice(&self.scope.to_le_bytes());
        bytes
    }

    /// Return what such bytes say.
    pub fn from_bytes(bytes: &[u8; 24]) -> Self {
        let mut name = Self::default();
        name.address.copy_from_slice(&bytes[..16]);
        name.port = u16::from_le_bytes([bytes[16], bytes[17]]);
        name.scope = u32::from_le_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]);
        name
    }
}

/// Bytes of a name in memory: whether there is one, then itself.
const AT_BYTES: usize = 8;

/// Read a name that is kept at a place of the memory; None if there is none.
///
/// A name that changes meanwhile is read in parts: a writer holds the lock of senders, and so does
/// a reader that must not see that.
pub fn load(area: &Area, at: usize) -> Option<Name> {
    if area.word(at).load(Ordering::Acquire) == 0 {
        return None;
    }
    let mut bytes = [0; 24];
    area.copy_out(at + AT_BYTES, &mut bytes);
    Some(Name::from_bytes(&bytes))
}

/// Keep a name there, or none. Killed in between there is none.
pub fn store(area: &Area, at: usize, name: Option<Name>) {
    area.word(at).store(0, Ordering::Release);
    if let Some(name) = name {
        area.copy_in(at + AT_BYTES, &name.bytes());
        area.word(at).store(1, Ordering::Release);
    }
}
