//! Where the node socket of a network namespace is.

use core::ffi::CStr;

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

    /// Return its bytes: one more than a socket's path has if it is too long for one.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Return it as a string of C; None if it is too long.
    fn text(&self) -> Option<&CStr> {
        CStr::from_bytes_until_nul(&self.bytes)
            .ok()
            .filter(|_| self.length < PATH_BYTES)
    }
}

/// Return the path of the calling user's node for a network namespace, by its cookie
/// (`SO_NETNS_COOKIE`, else the inode of `/proc/thread-self/ns/net`).
///
/// None where its folder is not of that user alone: in /tmp any user could have made it.
pub fn of_user(namespace: u64) -> Option<Path> {
    let folder = folder_of(environment(c"XDG_RUNTIME_DIR"));
    let is_ours = folder.text().is_some_and(sys::is_private_folder);
    is_ours.then(|| {
        let path = folder.with(b"/node-").with_digits(namespace, 16);
        path.with(b".sock")
    })
}

fn folder_of(runtime: &[u8]) -> Path {
    if runtime.starts_with(b"/") {
        return Path::new().with(runtime).with(b"/urds");
    }
    let user = u64::from(sys::user());
    Path::new().with(b"/tmp/urds-").with_digits(user, 10)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::vec::Vec;
    use std::{env, ffi::CString, fs, process};

    use super::*;

    #[test]
    fn a_path_that_is_too_long_connects_to_nothing() {
        let long = Path::new().with(b"/tmp").with(&[b'x'; PATH_BYTES]);
        let connected = sys::connect(long.with(b".sock").bytes());
        assert_eq!(connected.map(|_| ()), Err(libc::ENAMETOOLONG));
        assert!(long.text().is_none());
    }

    #[test]
    fn a_relative_runtime_directory_counts_as_none() {
        assert_eq!(folder_of(b"/run/user/7").bytes(), b"/run/user/7/urds");
        assert!(folder_of(b"run").bytes().starts_with(b"/tmp/urds-"));
    }

    #[test]
    fn a_folder_that_others_may_enter_is_none_of_ours() {
        let folder = env::temp_dir().join(format!("urds-places-{}", process::id()));
        fs::create_dir(&folder).unwrap();
        let is_private = |name: &str| {
            let bytes: Vec<u8> = folder.join(name).into_os_string().into_encoded_bytes();
            sys::is_private_folder(&CString::new(bytes).unwrap())
        };
        let modes = [(0o700, true), (0o755, false), (0o710, false)];
        let found = modes.map(|(mode, _)| {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            (mode, is_private(""))
        });
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        symlink(&folder, folder.join("link")).unwrap();
        let others = [is_private("link"), is_private("absent")];
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!((found, others), (modes, [false; 2]));
    }
}
