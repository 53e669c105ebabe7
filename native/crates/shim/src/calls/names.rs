//! socket, bind, connect, getsockname, getpeername, and what RDS refuses: listen, accept, shutdown.

use core::ffi::c_int;

use libc::{sockaddr, socklen_t};
use urds_client::socket::TRANSPORT_NONE;
use urds_client::{Name, Word};

use super::{either, narrow};
use crate::addresses::{self, Call};
use crate::sys::{arguments, errno, originals, sockets};
use crate::table::{self, Held};
use crate::{Answer, Errno, place};

const TRANSPORT_TCP: u32 = 2;

/// The family of RDS.
pub const AF_RDS: c_int = 21;

/// As socket(2). A socket of `AF_RDS` is of a node, never of the kernel: EAFNOSUPPORT without one.
///
/// # Safety
/// None is needed: it takes integers.
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain != AF_RDS {
        // SAFETY: integers.
        return unsafe { originals::socket(domain, kind, protocol) };
    }
    narrow(errno::kept(|| new_socket(kind, protocol)))
}

fn new_socket(kind: c_int, protocol: c_int) -> Answer {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    if kind & !flags != libc::SOCK_SEQPACKET || protocol != 0 {
        return Err(libc::ESOCKTNOSUPPORT);
    }
    let (fd, socket) = place::open().map_err(without_node)?;
    let fd = sockets::lowest(fd); // the connection to the node had it
    let made = sockets::set_flags(
        fd,
        kind & libc::SOCK_CLOEXEC != 0,
        kind & libc::SOCK_NONBLOCK != 0,
    )
    .and_then(|()| table::add(fd, socket));
    if let Err(errno) = made {
        // SAFETY: no other thread has seen the descriptor.
        unsafe { originals::close(fd) };
        return Err(errno);
    }
    usize::try_from(fd).map_err(|_| libc::EMFILE)
}

/// Return what socket(2) says for a failure: without a node as without the module. A node of
/// another version is EPROTO: there is one, so its absence is not what to look for.
fn without_node(errno: Errno) -> Errno {
    match errno {
        libc::ENOENT
        | libc::ECONNREFUSED
        | libc::EACCES
        | libc::ENOTDIR
        | libc::ENAMETOOLONG
        | libc::EINVAL => libc::EAFNOSUPPORT,
        other => other,
    }
}

/// As bind(2).
///
/// # Safety
/// `length` bytes at `name` can be read.
pub unsafe fn bind(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int {
    narrow(either!(
        fd,
        held => {
            // SAFETY: the caller's promise.
            let given = unsafe { arguments::name(name, length) }?.ok_or(libc::EFAULT)?;
            bind_ours(fd, &held, given)
        },
        // SAFETY: the caller's promise.
        unsafe { originals::bind(fd, name, length) as isize }
    ))
}

fn bind_ours(fd: c_int, held: &Held, given: &[u8]) -> Answer {
    let socket = held.socket();
    let name = addresses::parse(given, Call::Bind)?;
    if name.port == 1 || socket.local().is_some() {
        return Err(libc::EINVAL);
    }
    if let Some(peer) = socket.peer()
        && peer.scope != 0
        && name.scope != 0
        && peer.scope != name.scope
    {
        return Err(libc::EINVAL);
    }
    let options = socket.options();
    let transport = options.get(Word::Transport).wrapping_sub(1);
    let bound = socket.bind(fd, place::OF_SOCKET, &name, transport);
    match bound {
        Ok(_) if transport == TRANSPORT_NONE => options.set(Word::Transport, TRANSPORT_TCP + 1),
        Err(libc::EADDRINUSE) => options.set(Word::Transport, 0), // kernel parity: it is lost
        _ => {}
    }
    bound.map(|_| 0).map_err(place::after_node)
}

/// As connect(2): it sets the default destination, sends nothing, and may be repeated.
///
/// # Safety
/// As `bind`.
pub unsafe fn connect(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int {
    narrow(either!(
        fd,
        held => {
            // SAFETY: the caller's promise.
            let given = unsafe { arguments::name(name, length) }?.ok_or(libc::EFAULT)?;
            let peer = addresses::parse(given, Call::Connect)?;
            held.socket().set_peer(Some(peer)).map(|()| 0)
        },
        // SAFETY: the caller's promise.
        unsafe { originals::connect(fd, name, length) as isize }
    ))
}

/// As getsockname(2). Before bind: zeros, of the peer's family or of none.
///
/// # Safety
/// `length` is valid, and what it says can be written at `name`.
pub unsafe fn getsockname(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int {
    narrow(either!(
        fd,
        held => {
            let socket = held.socket();
            let found = socket.local().or_else(|| Some(addresses::zeros_like(&socket.peer()?)));
            // SAFETY: the caller's promise.
            unsafe { give(found, name, length) }
        },
        // SAFETY: the caller's promise.
        unsafe { originals::getsockname(fd, name, length) as isize }
    ))
}

/// As getpeername(2): ENOTCONN before connect.
///
/// # Safety
/// As `getsockname`.
pub unsafe fn getpeername(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int {
    narrow(either!(
        fd,
        held => {
            let peer = held.socket().peer().ok_or(libc::ENOTCONN)?;
            // SAFETY: the caller's promise.
            unsafe { give(Some(peer), name, length) }
        },
        // SAFETY: the caller's promise.
        unsafe { originals::getpeername(fd, name, length) as isize }
    ))
}

/// Write a name, or sixteen zeros for none.
unsafe fn give(found: Option<Name>, name: *mut sockaddr, length: *mut socklen_t) -> Answer {
    let (bytes, count) = match &found {
        Some(found) => addresses::emit(found),
        None => ([0; addresses::IN6_BYTES], addresses::IN_BYTES),
    };
    // SAFETY: the caller's promise.
    unsafe { arguments::give(&bytes[..count], name.cast(), length) }
}

/// As listen(2): EOPNOTSUPP, as RDS has it.
pub fn listen(fd: c_int, count: c_int) -> c_int {
    narrow(either!(
        fd,
        _held => Err(libc::EOPNOTSUPP),
        // SAFETY: integers.
        unsafe { originals::listen(fd, count) as isize }
    ))
}

/// As shutdown(2): EOPNOTSUPP, as RDS has it.
pub fn shutdown(fd: c_int, how: c_int) -> c_int {
    narrow(either!(
        fd,
        _held => Err(libc::EOPNOTSUPP),
        // SAFETY: integers.
        unsafe { originals::shutdown(fd, how) as isize }
    ))
}

/// As accept(2): EOPNOTSUPP for ours; the number of another's result is new.
///
/// # Safety
/// As `getsockname`; both pointers may be null.
pub unsafe fn accept(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int {
    // SAFETY: the caller's promise.
    accepted(fd, || unsafe { originals::accept(fd, name, length) })
}

/// As accept4(2), like `accept`.
///
/// # Safety
/// As `accept`.
pub unsafe fn accept4(
    fd: c_int,
    name: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    accepted(fd, || unsafe {
        originals::accept4(fd, name, length, flags)
    })
}

fn accepted(fd: c_int, theirs: impl FnOnce() -> c_int) -> c_int {
    let accepted = narrow(either!(fd, _held => Err(libc::EOPNOTSUPP), theirs() as isize));
    table::forget(accepted);
    accepted
}
