//! Control messages of sendmsg and recvmsg, laid as Linux lays them.
//!
//! Source: linux v6.12 net/rds/send.c (`rds_rm_size`, `rds_cmsg_send`), net/core/scm.c (`put_cmsg`).

use crate::{Answer, Errno};

const HEADER_BYTES: usize = 16; // struct cmsghdr on a 64-bit machine
const ALIGNMENT: usize = 8;
const SOL_RDS: i32 = 276;

const RDMA_ARGS: i32 = 1;
const RDMA_DEST: i32 = 2;
const RDMA_MAP: i32 = 3;
const CONG_UPDATE: i32 = 5;
const RXPATH_LATENCY: i32 = 11;
const ZCOPY_COOKIE: i32 = 12;
const RDMA_BYTES_MAX: u64 = 1 << 20;
const PARTS_MAX: u64 = 1024;

/// What a sendmsg asks for besides its payload, each at most once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked(u8);

impl Asked {
    const OPERATION: u8 = 1;
    const REGION: u8 = 2;
    const DESTINATION: u8 = 4;
    const COOKIE: u8 = 8;

    fn has(self, kinds: u8) -> bool {
        self.0 & kinds != 0
    }
}

/// Read the control messages of a send. Levels other than `SOL_RDS` are ignored.
///
/// # Errors
/// EINVAL for one that is malformed, unknown, short, a second of its kind, or in a combination that
/// Linux refuses; EMSGSIZE for more than 1 MiB of a peer's memory.
pub fn read(mut control: &[u8]) -> Answer<Asked> {
    let mut asked = Asked::default();
    while control.len() >= HEADER_BYTES {
        let length = usize::try_from(number(control, 0)).unwrap_or(usize::MAX);
        if length < HEADER_BYTES || length > control.len() {
            return Err(libc::EINVAL);
        }
        let level = integer(control, 8);
        if level == SOL_RDS {
            asked.read_one(integer(control, 12), &control[HEADER_BYTES..length])?;
        }
        control = control
            .get(length.next_multiple_of(ALIGNMENT)..)
            .unwrap_or_default();
    }
    let is_odd = asked.has(Asked::OPERATION) && asked.0 != Asked::OPERATION;
    if is_odd || (asked.has(Asked::REGION) && asked.has(Asked::DESTINATION)) {
        return Err(libc::EINVAL);
    }
    Ok(asked)
}

impl Asked {
    fn read_one(&mut self, kind: i32, data: &[u8]) -> Result<(), Errno> {
        let (asks, bytes_min) = match kind {
            RDMA_ARGS => (Self::OPERATION, 56),
            RDMA_DEST => (Self::DESTINATION, 8),
            RDMA_MAP => (Self::REGION, 32),
            6..=9 => (Self::OPERATION, 72),
            ZCOPY_COOKIE => (Self::COOKIE, 4),
            _ => return Err(libc::EINVAL),
        };
        if data.len() < bytes_min || self.has(asks) {
            return Err(libc::EINVAL);
        }
        self.0 |= asks;
        if kind == RDMA_ARGS {
            match (number(data, 16), number(data, 32)) {
                (bytes, parts) if bytes > RDMA_BYTES_MAX || parts > PARTS_MAX => {
                    return Err(libc::EMSGSIZE);
                }
                (_, 0) => return Err(libc::EINVAL), // nothing of ours to move
                _ => {}
            }
        }
        Ok(())
    }

    /// Refuse what a socket over TCP has not: operations, regions, sending by reference.
    ///
    /// # Errors
    /// EOPNOTSUPP; EINVAL for a cookie of no region, and for half of what sending by reference needs.
    pub fn check(self, is_by_reference: bool) -> Result<(), Errno> {
        if self.has(Self::OPERATION) {
            return Err(libc::EOPNOTSUPP);
        }
        if self.has(Self::DESTINATION) {
            return Err(libc::EINVAL);
        }
        if self.has(Self::REGION) {
            return Err(libc::EOPNOTSUPP);
        }
        if is_by_reference || self.has(Self::COOKIE) {
            return Err(libc::EINVAL);
        }
        Ok(())
    }
}

/// The caller's buffer for control messages, as it fills.
#[derive(Debug)]
pub struct Room<'a> {
    left: &'a mut [u8],
    pub used: usize,
    pub is_cut: bool,
}

impl<'a> Room<'a> {
    pub fn new(left: &'a mut [u8]) -> Self {
        Self {
            left,
            used: 0,
            is_cut: false,
        }
    }

    /// Add one; what fits in part is cut, as Linux does.
    pub fn add(&mut self, level: i32, kind: i32, data: &[u8]) {
        if self.left.len() < HEADER_BYTES {
            self.is_cut = true;
            return;
        }
        let wanted = HEADER_BYTES + data.len();
        let length = wanted.min(self.left.len());
        self.is_cut |= length < wanted;
        self.left[..8].copy_from_slice(&(length as u64).to_ne_bytes());
        self.left[8..12].copy_from_slice(&level.to_ne_bytes());
        self.left[12..16].copy_from_slice(&kind.to_ne_bytes());
        self.left[HEADER_BYTES..length].copy_from_slice(&data[..length - HEADER_BYTES]);
        let space = length.next_multiple_of(ALIGNMENT).min(self.left.len());
        self.used += space;
        let left = core::mem::take(&mut self.left);
        self.left = &mut left[space..];
    }

    /// Add the port groups whose congestion changed.
    pub fn add_congestion(&mut self, groups: u64) {
        self.add(SOL_RDS, CONG_UPDATE, &groups.to_ne_bytes());
    }

    /// Add the arrival time as a timeval; `kind` is the option that asked for it.
    pub fn add_time(&mut self, kind: u32, wall_ns: u64) {
        let mut data = [0; 16];
        data[..8].copy_from_slice(&(wall_ns / 1_000_000_000).to_ne_bytes());
        data[8..].copy_from_slice(&(wall_ns % 1_000_000_000 / 1000).to_ne_bytes());
        // SO_TIMESTAMP_NEW and SO_TIMESTAMPNS_NEW come as 63, the others as 29: kernel parity.
        let kind = if kind == 63 || kind == 64 { 63 } else { 29 };
        self.add(libc::SOL_SOCKET, kind, &data);
    }

    /// Add the times on the way through the receive path: up to three positions.
    pub fn add_latency(&mut self, positions: &[u8], times_ns: [u64; 3]) {
        let mut data = [0; 32];
        let count = positions.len().min(3);
        data[0] = u8::try_from(count).unwrap_or(0);
        data[1..=count].copy_from_slice(&positions[..count]);
        for (place, time_ns) in data[8..].chunks_exact_mut(8).zip(times_ns).take(count) {
            place.copy_from_slice(&time_ns.to_ne_bytes());
        }
        self.add(SOL_RDS, RXPATH_LATENCY, &data);
    }

    /// Add the key of a peer's memory, if the extension headers of a message have one.
    pub fn add_destination(&mut self, extension: &[u8; 16]) {
        if let Some(cookie) = destination_cookie(extension) {
            self.add(SOL_RDS, RDMA_DEST, &cookie.to_ne_bytes());
        }
    }
}

/// Return the cookie in extension headers: offset above, key below.
///
/// Source: linux v7.0 net/rds/message.c (`rds_message_next_extension`).
fn destination_cookie(extension: &[u8; 16]) -> Option<u64> {
    const BYTES: [usize; 10] = [0, 4, 4, 8, 8, 2, 4, 4, 1, 8]; // by kind, UEK's 7 and 9 too
    let mut at = 0;
    while at < extension.len() {
        let kind = usize::from(extension[at]);
        if kind == 0 || kind >= 16 {
            return None;
        }
        let end = at + 1 + BYTES.get(kind).unwrap_or(&0);
        let data = extension.get(at + 1..end)?;
        if kind == 3 {
            let word = |at: usize| {
                u64::from(u32::from_be_bytes([
                    data[at],
                    data[at + 1],
                    data[at + 2],
                    data[at + 3],
                ]))
            };
            return Some(word(4) << 32 | word(0));
        }
        at = end;
    }
    None
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}

fn integer(bytes: &[u8], at: usize) -> i32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    i32::from_ne_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let mut room = [0; 256];
        let mut laid = Room::new(&mut room);
        laid.add(level, kind, data);
        let used = laid.used;
        room[..used].to_vec()
    }

    #[test]
    fn what_linux_refuses_is_refused() {
        for (control, errno) in [
            (message(SOL_RDS, 99, b""), libc::EINVAL),
            (message(SOL_RDS, RDMA_ARGS, &[0; 55]), libc::EINVAL),
            (message(SOL_RDS, RDMA_DEST, &[0; 7]), libc::EINVAL),
            (message(SOL_RDS, RDMA_ARGS, &[0xff; 56]), libc::EMSGSIZE),
            (
                message(SOL_RDS, ZCOPY_COOKIE, &[0; 4]).repeat(2),
                libc::EINVAL,
            ),
            ([9u64.to_ne_bytes(), [0; 8]].concat(), libc::EINVAL),
            ([32u64.to_ne_bytes(), [0; 8]].concat(), libc::EINVAL),
        ] {
            assert_eq!(read(&control), Err(errno), "{control:?}");
        }
        assert_eq!(read(&message(1, 99, b"abc")), Ok(Asked::default()));
        assert_eq!(read(&[0; 15]), Ok(Asked::default()));
    }

    #[test]
    fn a_socket_over_tcp_has_no_operations() {
        let checked = |control: &[u8]| read(control).unwrap().check(false);
        let mut arguments = [0; 56];
        assert_eq!(
            read(&message(SOL_RDS, RDMA_ARGS, &arguments)),
            Err(libc::EINVAL)
        );
        arguments[32] = 1;
        assert_eq!(
            checked(&message(SOL_RDS, RDMA_ARGS, &arguments)),
            Err(libc::EOPNOTSUPP)
        );
        assert_eq!(
            checked(&message(SOL_RDS, 7, &[0; 72])),
            Err(libc::EOPNOTSUPP)
        );
        assert_eq!(
            checked(&message(SOL_RDS, RDMA_MAP, &[0; 32])),
            Err(libc::EOPNOTSUPP)
        );
        assert_eq!(
            checked(&message(SOL_RDS, RDMA_DEST, &[0; 8])),
            Err(libc::EINVAL)
        );
        assert_eq!(checked(&message(1, 1, &[0; 8])), Ok(()));
        assert_eq!(Asked::default().check(true), Err(libc::EINVAL));
    }

    #[test]
    fn a_buffer_that_is_short_gets_what_fits() {
        let mut room = [0; 40];
        let mut laid = Room::new(&mut room);
        laid.add_congestion(5);
        assert_eq!((laid.used, laid.is_cut), (24, false));
        laid.add(SOL_RDS, 9, &[7; 4]);
        assert_eq!((laid.used, laid.is_cut), (40, true));
        laid.add(SOL_RDS, 9, &[]);
        assert_eq!((laid.used, laid.is_cut), (40, true));
        let mut none = Room::new(&mut []);
        none.add_congestion(1);
        assert_eq!((none.used, none.is_cut), (0, true));
    }

    #[test]
    fn the_key_of_a_region_is_found_among_extension_headers() {
        let mut extension = [0; 16];
        extension[0] = 5; // NPATHS, two bytes
        extension[3] = 3;
        extension[4..8].copy_from_slice(&0x1122_3344u32.to_be_bytes());
        extension[8..12].copy_from_slice(&0x55u32.to_be_bytes());
        assert_eq!(destination_cookie(&extension), Some(0x55_1122_3344));
        assert_eq!(destination_cookie(&[0; 16]), None);
        assert_eq!(destination_cookie(&[4; 16]), None);
    }
}
