//! What is done with sockets, by their numbers; no call waits, whatever the socket is set to.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::FromRawFd;

use urds_path::{Address, SocketAddress};

use super::check;
use super::descriptor::Descriptor;

/// The most pieces of one `send`. Source: linux v6.12 include/uapi/linux/uio.h (`UIO_MAXIOV`).
pub const PIECES_MAX: usize = 1024;

fn octets(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Read once into the pieces; 0 at the end.
///
/// # Errors
/// Of the system: `WouldBlock` when nothing is there.
pub fn receive(descriptor: i32, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    if let [piece] = pieces {
        // SAFETY: the piece is writable memory of that length.
        let taken = unsafe {
            libc::recv(
                descriptor,
                piece.as_mut_ptr().cast(),
                piece.len(),
                libc::MSG_DONTWAIT,
            )
        };
        return octets(taken);
    }
    let mut message = empty_message();
    message.msg_iov = pieces.as_mut_ptr().cast();
    message.msg_iovlen = pieces.len().min(PIECES_MAX);
    // SAFETY: an `IoSliceMut` has the layout of an iovec; all pieces live through the call.
    octets(unsafe { libc::recvmsg(descriptor, &raw mut message, libc::MSG_DONTWAIT) })
}

/// Write once, at most `PIECES_MAX` pieces; return the octets taken.
///
/// # Errors
/// Of the system: `WouldBlock` when there is no room, no signal when nobody reads any more.
pub fn send(descriptor: i32, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    if let [piece] = pieces {
        // SAFETY: the piece is readable memory of that length.
        return octets(unsafe {
            libc::send(descriptor, piece.as_ptr().cast(), piece.len(), FLAGS)
        });
    }
    let mut message = empty_message();
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    message.msg_iovlen = pieces.len().min(PIECES_MAX);
    // SAFETY: an `IoSlice` has the layout of an iovec, which the call only reads.
    octets(unsafe { libc::sendmsg(descriptor, &raw const message, FLAGS) })
}

fn empty_message() -> libc::msghdr {
    // SAFETY: a record of integers and pointers, for all of which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// Read once, into `first` and then into `second`; 0 at the end.
///
/// # Errors
/// Of the system: `WouldBlock` when nothing is there.
pub fn read_into(descriptor: i32, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
    if second.is_empty() {
        return receive(descriptor, &mut [IoSliceMut::new(first)]);
    }
    receive(
        descriptor,
        &mut [IoSliceMut::new(first), IoSliceMut::new(second)],
    )
}

/// End our direction.
///
/// # Errors
/// Of the system.
pub fn shutdown_write(descriptor: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::shutdown(descriptor, libc::SHUT_WR) }).map(drop)
}

/// Return the octets written that the peer's TCP has not acknowledged.
///
/// # Errors
/// Of the system.
pub fn unacknowledged(descriptor: i32) -> io::Result<u64> {
    ask(descriptor, libc::TIOCOUTQ) // the number of SIOCOUTQ
}

/// Return the octets that a read would give.
///
/// # Errors
/// Of the system.
pub fn waiting(descriptor: i32) -> io::Result<usize> {
    let octets = ask(descriptor, libc::FIONREAD)?; // the number of SIOCINQ
    Ok(usize::try_from(octets).unwrap_or(usize::MAX))
}

fn ask(descriptor: i32, request: libc::Ioctl) -> io::Result<u64> {
    let mut answer: libc::c_int = 0;
    // SAFETY: both requests write one int.
    check(unsafe { libc::ioctl(descriptor, request, &raw mut answer) })?;
    Ok(u64::try_from(answer).unwrap_or(0))
}

/// Be readable only once so many octets are here, or the end is; 1 ends it.
///
/// # Errors
/// Of the system.
pub fn expect(descriptor: i32, octets: usize) -> io::Result<()> {
    set_int(
        descriptor,
        libc::SO_RCVLOWAT,
        i32::try_from(octets).unwrap_or(i32::MAX),
    )
}

/// Return both ends of a connection; `None` for one without addresses of the Internet.
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
    SocketAddress {
        address: Address {
            ip: address.ip(),
            scope,
        },
        port: address.port(),
    }
}

fn set_int(descriptor: i32, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    const SIZE: libc::socklen_t = 4; // of an int, on every Linux
    // SAFETY: `value` is readable and of the size told.
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

/// Return what poll says of a descriptor now; `mask` has poll's bits, so has the answer.
pub fn poll_now(descriptor: i32, mask: i16) -> i16 {
    poll_for(descriptor, mask, 0)
}

/// Wait for a descriptor for some milliseconds; return what poll says.
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
    let mut ends = [0; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
    let pair = (Descriptor::new(ends[0]), Descriptor::new(ends[1]));
    set_int(pair.0.get(), libc::SO_SNDBUF, 1)?;
    Ok(pair)
}

/// Return a descriptor's inode number, 0 if it is closed.
pub fn inode(descriptor: i32) -> u64 {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the call fills `status` when it succeeds, and only then it is read.
    unsafe {
        if libc::fstat(descriptor, status.as_mut_ptr()) < 0 {
            0
        } else {
            status.assume_init().st_ino
        }
    }
}
