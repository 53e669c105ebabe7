//! Which node to ask: that of `URDS_NODE`, else the host's, else the user's of a network namespace,
//! if the folder of that is of this user alone.

use urds_client::Socket;
use urds_client::places::{self, Path};

use crate::Errno;
use crate::sys::process;

/// The beginning of the name of a socket of ours: the number of its namespace follows, then its own.
const PREFIX: &[u8] = b"urds-fd/";

/// For calls on a socket: its memory names the node.
pub const OF_SOCKET: &[u8] = b"";

/// Make a socket, in the namespace of the calling thread.
///
/// # Errors
/// As the node answers; ENOENT or ECONNREFUSED without one.
pub fn open() -> Result<(i32, Socket), Errno> {
    ask(process::namespace, |place| Socket::open(place, 0))
}

/// Find the socket of a descriptor whose name has this namespace.
///
/// # Errors
/// ENOTSOCK if it is none of the node; as `open`.
pub fn find(namespace: u64, fd: i32) -> Result<Socket, Errno> {
    ask(|| namespace, |place| Socket::find(place, fd))
}

/// Ask the nodes in turn, until one is there and knows.
fn ask<T>(
    namespace: impl FnOnce() -> u64,
    mut call: impl FnMut(&[u8]) -> Result<T, Errno>,
) -> Result<T, Errno> {
    match process::variable(c"URDS_NODE") {
        Some(b"inprocess") => return Err(libc::ENOENT),
        Some(path) if path.starts_with(b"/") => {
            // A descriptor that another process sent may be of another namespace's node.
            return match call(path) {
                Err(libc::ENOTSOCK) => call(of_user(namespace())?.bytes()),
                answer => answer,
            };
        }
        _ => {}
    }
    match call(places::SYSTEM) {
        Err(libc::ENOENT | libc::ECONNREFUSED | libc::EACCES | libc::ENOTSOCK) => {
            call(of_user(namespace())?.bytes())
        }
        answer => answer,
    }
}

fn of_user(namespace: u64) -> Result<Path, Errno> {
    places::of_user(namespace).ok_or(libc::ENOENT)
}

/// Return what a call on a socket says for a failure: EIO where its node has ended.
pub fn after_node(errno: Errno) -> Errno {
    match errno {
        libc::ENOENT | libc::ECONNREFUSED => libc::EIO,
        other => other,
    }
}

/// Return the namespace in the name of a socket; None if it is none of ours.
pub fn namespace_of(name: &[u8]) -> Option<u64> {
    let rest = name.strip_prefix(PREFIX)?;
    let end = rest.iter().position(|&byte| byte == b'/')?;
    let digits = core::str::from_utf8(rest.get(..end)?).ok()?;
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_name_of_ours_has_a_namespace() {
        assert_eq!(namespace_of(b"urds-fd/1a/2b"), Some(0x1a));
        for other in [
            &b"urds-fd/"[..],
            b"urds-fd//2b",
            b"urds-fd/xy/2b",
            b"",
            b"urds-f",
            b"urds-fd/1",
            b"urds-fd/11112222333344445/1",
        ] {
            assert_eq!(namespace_of(other), None);
        }
    }
}
