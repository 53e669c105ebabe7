//! The control socket of an attached socket: a pair whose one end is the client's descriptor.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::check;

/// Send buffer of the user end as the kernel counts it twice: some doorbells leave it writable, four
/// pieces of 4 KiB fill it.
const SEND_BYTES: libc::c_int = 8192;

/// A pair of connected sockets, and what identifies the first.
#[derive(Debug)]
pub struct SocketPair {
    pub user_end: OwnedFd,
    pub node_end: OwnedFd,
    /// `SO_COOKIE` of the user end.
    pub cookie: u64,
}

/// Make the pair; the user end has the abstract name `urds-fd/NAMESPACE/COOKIE`, a hint for clients.
///
/// # Errors
/// Of the system.
pub fn make(nonblocking: bool) -> io::Result<SocketPair> {
    let mut ends = [-1; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: room for two numbers.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
    // SAFETY: both are new, and no other has them.
    let (user_end, node_end) =
        unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    let user = user_end.as_raw_fd();
    let bytes = SEND_BYTES;
    // SAFETY: the value lives through the call and has the size given.
    check(unsafe {
        libc::setsockopt(
            user,
            libc::SOL_SOCKET,
            libc::SO_SNDBUF,
            (&raw const bytes).cast(),
            size_of_socklen::<libc::c_int>(),
        )
    })?;
    if nonblocking {
        // SAFETY: no memory is passed.
        check(unsafe { libc::fcntl(user, libc::F_SETFL, libc::O_NONBLOCK) })?;
    }
    let cookie = number_of(user, libc::SO_COOKIE)?;
    bind(user, &format!("urds-fd/{:x}/{cookie:x}", namespace(user)))?;
    Ok(SocketPair {
        user_end,
        node_end,
        cookie,
    })
}

fn size_of_socklen<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0)
}

/// Return the cookie of the network namespace, or its inode where the kernel has no cookies.
fn namespace(socket: i32) -> u64 {
    number_of(socket, SO_NETNS_COOKIE).unwrap_or_else(|_| {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |about| about.ino())
    })
}

/// Since Linux 5.14.
const SO_NETNS_COOKIE: libc::c_int = 71;

fn number_of(socket: i32, option: libc::c_int) -> io::Result<u64> {
    let (mut value, mut length) = (0u64, size_of_socklen::<u64>());
    // SAFETY: the value is writable and has the size given.
    check(unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    })?;
    Ok(value)
}

/// Give a socket an abstract name.
fn bind(socket: i32, name: &str) -> io::Result<()> {
    // SAFETY: all zero is an address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap_or(0);
    for (place, byte) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
        *place = byte.cast_signed();
    }
    let length = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    let length = libc::socklen_t::try_from(length).unwrap_or(0);
    // SAFETY: the address lives through the call; its length is within it.
    check(unsafe { libc::bind(socket, (&raw const address).cast(), length) })?;
    Ok(())
}
