//! Where the node socket of a network namespace is.

use crate::sys::{self, environment};

/// The node of the host.
pub const SYSTEM: &[u8] = b"/run/urds/node.sock";
/// The longest path, with the zero that ends it.
pub const PATH_BYTES: usize = 108;

/// A path that is being put together.
#[derive(Clone, Copy)]
pub struct Path {
    bytes: [u8; PATH_BYTES],
    length: usize,
}

impl Path {
    fn new() -> Self {
        Self {
            bytes: [0; PATH_BYTES],
            length: 0,
        }
    }

    fn with(mut self, bytes: &[u8]) -> Self {
        let end = self.length + bytes.len();
        if end < PATH_BYTES {
            self.bytes[self.length..end].copy_from_slice(bytes);
            self.length = end;
        } else {
            self.length = PATH_BYTES; // too long for a socket: connect says so
        }
        self
    }

    fn with_digits(self, mut value: u64, base: u64) -> Self {
        let mut digits = [0u8; 20];
        let mut first = digits.len();
        loop {
            first -= 1;
            let digit = usize::try_from(value % base).unwrap_or(0);
            digits[first] = b"0123456789abcdef"[digit];
            value /= base;
            if value == 0 {
                return self.with(&digits[first..]);
            }
        }
    }

    /// Return its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length.min(PATH_BYTES - 1)]
    }
}

/// Return the path in the variable `URDS_NODE`, if it is one.
pub fn named() -> Option<Path> {
    let value = environment(c"URDS_NODE");
    value.starts_with(b"/").then(|| Path::new().with(value))
}

/// Return the path of the calling user's node for a network namespace, by its cookie
/// (`SO_NETNS_COOKIE`, else the inode of `/proc/thread-self/ns/net`).
pub fn of_user(namespace: u64) -> Path {
    let folder = environment(c"XDG_RUNTIME_DIR");
    let path = if folder.starts_with(b"/") {
        Path::new().with(folder).with(b"/urds")
    } else {
        let user = sys::user();
        Path::new()
            .with(b"/tmp/urds-")
            .with_digits(u64::from(user), 10)
    };
    path.with(b"/node-")
        .with_digits(namespace, 16)
        .with(b".sock")
}
