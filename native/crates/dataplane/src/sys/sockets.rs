//! Calls on sockets, by descriptor number; no call waits, whatever the socket is set to.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, IntoRawFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType};
use urds_path::{Address, SocketAddress};

use super::descriptor::Descriptor;
use super::{borrowed, check};

/// The most pieces of one `send`. Source: linux v6.12 include/uapi/linux/uio.h (`UIO_MAXIOV`).
pub const PIECES_MAX: usize = 1024;

fn bytes(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Read once into the pieces; 0 at the end.
///
/// # Errors
/// Of the system: `WouldBlock` when nothing is there.
pub fn receive(descriptor: i32, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    if let [piece] = pieces {
        return Ok(rustix::net::recv(borrowed(descriptor)?, &mut **piece, RecvFlags::DONTWAIT)?.0);
    }
    let mut message = empty_message();
    message.msg_iov = pieces.as_mut_ptr().cast();
    message.msg_iovlen = pieces.len().min(PIECES_MAX);
    // SAFETY: an `IoSliceMut` has the layout of an iovec; all pieces live through the call.
    bytes(unsafe { libc::recvmsg(descriptor, &raw mut message, libc::MSG_DONTWAIT) })
}

/// Write once, at most `PIECES_MAX` pieces; return the bytes taken.
///
/// # Errors
/// Of the system: `WouldBlock` when there is no room; no signal when the peer reads no more.
pub fn send(descriptor: i32, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    if let [piece] = pieces {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        return Ok(rustix::net::send(borrowed(descriptor)?, piece, flags)?);
    }
    let mut message = empty_message();
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    message.msg_iovlen = pieces.len().min(PIECES_MAX);
    // SAFETY: an `IoSlice` has the layout of an iovec, which the call only reads.
    bytes(unsafe { libc::sendmsg(descriptor, &raw const message, FLAGS) })
}

fn empty_message() -> libc::msghdr {
    // SAFETY: a record of integers and pointers, for all of which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// End our direction.
///
/// # Errors
/// Of the system.
pub fn shutdown_write(descriptor: i32) -> io::Result<()> {
    Ok(rustix::net::shutdown(
        borrowed(descriptor)?,
        Shutdown::Write,
    )?)
}

/// Return the bytes written that the peer's TCP has not acknowledged.
///
/// # Errors
/// Of the system.
pub fn unacknowledged(descriptor: i32) -> io::Result<u64> {
    let mut answer: libc::c_int = 0;
    // SAFETY: the request, which has the number of SIOCOUTQ, writes one int.
    check(unsafe { libc::ioctl(descriptor, libc::TIOCOUTQ, &raw mut answer) })?;
    Ok(u64::try_from(answer).unwrap_or(0))
}

/// Return the bytes that a read would give.
///
/// # Errors
/// Of the system.
pub fn waiting(descriptor: i32) -> io::Result<usize> {
    let bytes = rustix::io::ioctl_fionread(borrowed(descriptor)?)?; // the number of SIOCINQ
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Be readable only once this many bytes are here, or the end is; 1 undoes it.
///
/// # Errors
/// Of the system.
pub fn expect(descriptor: i32, bytes: usize) -> io::Result<()> {
    set_int(
        descriptor,
        libc::SO_RCVLOWAT,
        i32::try_from(bytes).unwrap_or(i32::MAX),
    )
}

/// Return both ends of a connection; `None` for one without Internet addresses.
pub fn addresses(descriptor: i32) -> Option<(SocketAddress, SocketAddress)> {
    if descriptor < 0 {
        return None;
    }
    // SAFETY: the number is not -1, and `ManuallyDrop` leaves it open.
    let socket = ManuallyDrop::new(unsafe { std::net::TcpStream::from_raw_fd(descriptor) });
    Some((
        named(socket.local_addr().ok()?),
        named(socket.peer_addr().ok()?),
    ))
}

fn named(address: SocketAddr) -> SocketAddress {
    let scope = match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(address) => address.scope_id(),
    };
    SocketAddress::new(Address::scoped(address.ip(), scope), address.port())
}

fn set_int(descriptor: i32, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    const SIZE: libc::socklen_t = 4; // of an int, on every Linux
    // SAFETY: `value` is readable and of the size given.
    check(unsafe {
        libc::setsockopt(
            descriptor,
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            SIZE,
        )
    })
    .map(drop)
}

/// Return what poll reports of a descriptor now, in the bits of poll, as `mask` is.
pub fn poll_now(descriptor: i32, mask: i16) -> i16 {
    poll_for(descriptor, mask, 0)
}

/// Wait for a descriptor for some milliseconds; return what poll reports.
pub fn poll_for(descriptor: i32, mask: i16, timeout_ms: i32) -> i16 {
    let mut entry = libc::pollfd {
        fd: descriptor,
        events: mask,
        revents: 0,
    };
    // SAFETY: one entry, which lives through the call.
    let ready = unsafe { libc::poll(&raw mut entry, 1, timeout_ms) };
    if ready > 0 { entry.revents } else { 0 }
}

/// Make a pair of connected `AF_UNIX` streams; the first has the smallest send buffer.
///
/// # Errors
/// Of the system, when no descriptors are left.
pub fn unix_pair() -> io::Result<(Descriptor, Descriptor)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (one, other) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let pair = (
        Descriptor::new(one.into_raw_fd()),
        Descriptor::new(other.into_raw_fd()),
    );
    set_int(pair.0.get(), libc::SO_SNDBUF, 1)?;
    Ok(pair)
}

/// Open a file of memory again, for reading alone; its mode forbids others to do more.
///
/// # Errors
/// Of the system; without `/proc`.
pub fn reopened_to_read(file: i32) -> io::Result<Descriptor> {
    rustix::fs::fchmod(borrowed(file)?, rustix::fs::Mode::from_raw_mode(0o444))?;
    let opened = std::fs::File::open(format!("/proc/self/fd/{file}"))?;
    Ok(Descriptor::new(opened.into_raw_fd()))
}

/// Return a descriptor's inode number, 0 if it is closed.
pub fn inode(descriptor: i32) -> u64 {
    let status = borrowed(descriptor).and_then(|own| Ok(rustix::fs::fstat(own)?));
    status.map_or(0, |status| status.st_ino)
}
