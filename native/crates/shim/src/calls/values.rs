//! getsockopt, setsockopt, ioctl.
//!
//! Waiting times and flags of the descriptor (`SO_RCVTIMEO`, `SO_SNDTIMEO`, `FIONBIO`) go through to
//! the descriptor, which obeys them by itself. What the row of an option says is in `options`.

use core::ffi::{c_int, c_ulong, c_void};

use libc::socklen_t;
use urds_channel::socket_memory::layout::PLACE_BYTES_MAX;
use urds_client::information::Information;
use urds_client::{Socket, Word};

use super::{either, narrow};
use crate::sys::{arguments, errno, originals};
use crate::{Answer, addresses, options, place};

const SOL_RDS: c_int = 276;
const CANCEL_SENT_TO: c_int = 1;
const GET_MR: c_int = 2;
const FREE_MR: c_int = 3;
const GET_MR_FOR_DEST: c_int = 7;
const INFO_FIRST: c_int = 10000;
const INFO_LAST: c_int = 10017;

const FIONREAD: u32 = 0x541B; // SIOCINQ too
const SIOCOUTQ: u32 = 0x5411;
const SIOCRDSSETTOS: u32 = 0x89E0;
const SIOCRDSGETTOS: u32 = 0x89E1;

/// As getsockopt(2). `RDS_INFO_*` returns the size of an element, which is positive.
///
/// # Safety
/// `length` is valid, and what it says can be written at `value`.
pub unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let through = || unsafe { originals::getsockopt(fd, level, name, value, length) };
    narrow(either!(
        fd,
        held => {
            if level == SOL_RDS && (INFO_FIRST..=INFO_LAST).contains(&name) {
                // SAFETY: the caller's promise.
                unsafe { info(fd, held.socket(), name, value, length) }
            } else {
                match options::get(held.socket(), level, name) {
                    // SAFETY: the caller's promise.
                    Ok(Some(found)) => unsafe { found.give(value, length) },
                    Ok(None) => errno::checked(through() as isize),
                    Err(errno) => Err(errno),
                }
            }
        },
        through() as isize
    ))
}

/// Give a list of `RDS_INFO_*` whole, or ENOSPC and its length.
///
/// # Safety
/// As `getsockopt`.
unsafe fn info(
    fd: c_int,
    socket: &Socket,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> Answer {
    // SAFETY: the caller's promise.
    let length = unsafe { length.as_mut() }.ok_or(libc::EFAULT)?;
    let room = i32::try_from(*length).map_err(|_| libc::EINVAL)?;
    // SAFETY: the caller's promise.
    let place = unsafe { arguments::bytes_mut(value, arguments::count(room)) };
    let mut node = [0; PLACE_BYTES_MAX];
    let end = socket.side().place(&mut node);
    let list = Information::ask(&node[..end], name.cast_unsigned(), Some(fd))
        .map_err(place::after_node)?;
    *length = u32::try_from(list.bytes).unwrap_or(u32::MAX);
    if list.bytes > place.len() {
        return Err(libc::ENOSPC);
    }
    list.copy(place, 0)?;
    usize::try_from(list.element_bytes).map_err(|_| libc::EIO)
}

/// As setsockopt(2).
///
/// # Safety
/// `length` bytes at `value` can be read.
pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let through = || unsafe { originals::setsockopt(fd, level, name, value, length) };
    narrow(either!(
        fd,
        held => {
            let count = arguments::count(i32::try_from(length).map_err(|_| libc::EINVAL)?);
            // SAFETY: the caller's promise.
            let given = unsafe { arguments::bytes(value, count) }?;
            match (level, name) {
                (SOL_RDS, CANCEL_SENT_TO) => cancel(fd, held.socket(), given),
                (SOL_RDS, GET_MR) => region(held.socket(), given, 32),
                (SOL_RDS, FREE_MR) => Err(libc::EINVAL), // there is none
                (SOL_RDS, GET_MR_FOR_DEST) => region(held.socket(), given, 160),
                _ => match options::set(held.socket(), level, name, given)? {
                    options::Done::Here => Ok(0),
                    options::Done::Through => errno::checked(through() as isize),
                },
            }
        },
        through() as isize
    ))
}

/// Cancel what is not acknowledged to a destination; to all for an empty value, as rds(7) promises.
fn cancel(fd: c_int, socket: &Socket, given: &[u8]) -> Answer {
    if socket.local().is_none() {
        return Err(libc::ENOTCONN);
    }
    let is_short = given.len() < addresses::IN_BYTES;
    if is_short && (!given.is_empty() || socket.side().is_strict()) {
        return Err(libc::EINVAL);
    }
    let target = (!given.is_empty()).then(|| addresses::unpack(given));
    socket
        .cancel(fd, place::OF_SOCKET, target.as_ref())
        .map(|_| 0)
        .map_err(place::after_node)
}

/// A socket over TCP has no regions.
fn region(socket: &Socket, given: &[u8], bytes: usize) -> Answer {
    if socket.local().is_none() {
        return Err(libc::ENOTCONN);
    }
    Err(if given.len() == bytes {
        libc::EOPNOTSUPP
    } else {
        libc::EINVAL
    })
}

/// As ioctl(2): the third argument is an integer or a pointer.
///
/// # Safety
/// As the request asks.
pub unsafe fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let through = || unsafe { originals::ioctl(fd, request, argument) };
    #[allow(clippy::cast_possible_truncation)] // the kernel looks at 32 bits
    let number = request as u32;
    narrow(either!(
        fd,
        held => match number {
            FIONREAD | SIOCOUTQ => Err(libc::ENOTTY),
            SIOCRDSSETTOS => {
                if held.socket().options().get(Word::Transport) == 0 {
                    Err(libc::ENOTTY)
                } else {
                    // SAFETY: the caller's promise: this request points to a byte.
                    let tos = unsafe { arguments::bytes(argument, 1) }?[0];
                    options::set_tos(held.socket(), tos)
                }
            }
            SIOCRDSGETTOS => {
                let tos = held.socket().options().get(Word::Tos).to_le_bytes();
                // SAFETY: the caller's promise: this request points to a byte.
                let place = unsafe { arguments::bytes_mut(argument, 1) };
                if place.is_empty() {
                    Err(libc::EFAULT)
                } else {
                    place.copy_from_slice(&tos[..1]); // the least byte of a small number
                    Ok(0)
                }
            }
            _ => errno::checked(through() as isize),
        },
        through() as isize
    ))
}
