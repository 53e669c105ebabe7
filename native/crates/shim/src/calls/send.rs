//! send, sendto, sendmsg, sendmmsg, write, writev: one message, or Linux's refusal.
//!
//! Source: linux v6.12 net/rds/send.c (`rds_sendmsg`), for the order of its checks.

use core::ffi::{c_int, c_uint, c_void};

use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use urds_client::Outgoing;
use urds_client::sys::parts::Readable;

use super::{either, narrow};
use crate::addresses::{self, Call};
use crate::sys::{arguments, originals};
use crate::table::Held;
use crate::{Answer, control, place};

/// What a send may be told. `MSG_NOSIGNAL` is no part of Linux's RDS and harmless: no send raises
/// SIGPIPE. See `docs/differences.md`.
const FLAGS: c_int = STRICT_FLAGS | libc::MSG_NOSIGNAL;
const STRICT_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_ZEROCOPY;

/// One message as a call describes it.
struct Given<'a> {
    parts: &'a [iovec],
    whole: usize,
    name: Option<&'a [u8]>,
    control: &'a [u8],
    flags: c_int,
}

fn put(fd: c_int, held: &Held, message: &Given<'_>) -> Answer {
    let socket = held.socket();
    let known = if socket.side().is_strict() {
        STRICT_FLAGS
    } else {
        FLAGS
    };
    if message.flags & !known != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let named = message
        .name
        .map(|name| addresses::parse(name, Call::Send))
        .transpose()?;
    let local = socket.local().ok_or(libc::ENOTCONN)?;
    let to = named.or_else(|| socket.peer()).ok_or(libc::ENOTCONN)?;
    if to.is_v4() != local.is_v4() {
        return Err(libc::EOPNOTSUPP);
    }
    let by_reference = message.flags & libc::MSG_ZEROCOPY != 0;
    if by_reference || !message.control.is_empty() {
        if socket.side().check_length(message.whole).is_err() {
            return Err(libc::EMSGSIZE);
        }
        control::read(message.control)?.check(by_reference)?;
    }
    let outgoing = Outgoing {
        to,
        ..Outgoing::default()
    };
    let dontwait = message.flags & libc::MSG_DONTWAIT != 0;
    // SAFETY: the parts can be read, by the promise of the call that brought them.
    let parts = unsafe { Readable::new(message.parts) };
    socket
        .send(fd, place::OF_SOCKET, &outgoing, parts, dontwait)
        .map_err(place::after_node)
}

/// Send what one buffer has.
unsafe fn put_bytes(
    fd: c_int,
    held: &Held,
    (first, count): (*const c_void, size_t),
    name: Option<&[u8]>,
    flags: c_int,
) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { arguments::bytes(first, count) }?;
    let part = iovec {
        iov_base: first.cast_mut(),
        iov_len: count,
    };
    let parts = core::slice::from_ref(&part);
    put(
        fd,
        held,
        &Given {
            parts,
            whole: count,
            name,
            control: &[],
            flags,
        },
    )
}

/// As send(2).
///
/// # Safety
/// `count` bytes at `first` can be read.
pub unsafe fn send(fd: c_int, first: *const c_void, count: size_t, flags: c_int) -> ssize_t {
    either!(
        fd,
        // SAFETY: the caller's promise.
        held => unsafe { put_bytes(fd, &held, (first, count), None, flags) },
        // SAFETY: the caller's promise.
        unsafe { originals::send(fd, first, count, flags) }
    )
}

/// As sendto(2).
///
/// # Safety
/// As `send`; `length` bytes at `name` can be read.
pub unsafe fn sendto(
    fd: c_int,
    first: *const c_void,
    count: size_t,
    flags: c_int,
    name: *const sockaddr,
    length: socklen_t,
) -> ssize_t {
    either!(
        fd,
        held => {
            // SAFETY: the caller's promise. A length of 0 is no name.
            let name = unsafe { arguments::name(name, length) }?.filter(|name| !name.is_empty());
            // SAFETY: the caller's promise.
            unsafe { put_bytes(fd, &held, (first, count), name, flags) }
        },
        // SAFETY: the caller's promise.
        unsafe { originals::sendto(fd, first, count, flags, name, length) }
    )
}

/// As sendmsg(2).
///
/// # Safety
/// `message` is valid, and what it points to can be read.
pub unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    either!(
        fd,
        // SAFETY: the caller's promise.
        held => unsafe { put_message(fd, &held, message, flags) },
        // SAFETY: the caller's promise.
        unsafe { originals::sendmsg(fd, message, flags) }
    )
}

unsafe fn put_message(fd: c_int, held: &Held, message: *const msghdr, flags: c_int) -> Answer {
    // SAFETY: the caller's promise.
    let message = unsafe { message.as_ref() }.ok_or(libc::EFAULT)?;
    // SAFETY: the caller's promise.
    let (parts, whole) = unsafe {
        arguments::parts(
            message.msg_iov,
            arguments::count(message.msg_iovlen),
            libc::EMSGSIZE,
        )
    }?;
    // SAFETY: the caller's promise.
    let name = unsafe { arguments::name(message.msg_name.cast(), message.msg_namelen) }?;
    let name = name.filter(|name| !name.is_empty());
    // SAFETY: the caller's promise.
    let control = unsafe {
        arguments::bytes(
            message.msg_control,
            arguments::count(message.msg_controllen),
        )
    }?;
    put(
        fd,
        held,
        &Given {
            parts,
            whole,
            name,
            control,
            flags,
        },
    )
}

/// As sendmmsg(2): the number of messages sent, or the error of the first.
///
/// # Safety
/// `count` records at `messages`, each as for `sendmsg`.
pub unsafe fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    narrow(either!(
        fd,
        held => {
            let mut sent = 0;
            for number in 0..(count as usize).min(arguments::PARTS_MAX) {
                // SAFETY: the caller's promise.
                let message = unsafe { messages.add(number).as_mut() }.ok_or(libc::EFAULT)?;
                // SAFETY: the caller's promise.
                let done = unsafe { put_message(fd, &held, &raw const message.msg_hdr, flags) };
                match done {
                    Ok(bytes) => message.msg_len = u32::try_from(bytes).unwrap_or(u32::MAX),
                    Err(_) if sent > 0 => break,
                    Err(_) => return done,
                }
                sent += 1;
            }
            Ok(sent)
        },
        // SAFETY: the caller's promise.
        unsafe { originals::sendmmsg(fd, messages, count, flags) as isize }
    ))
}

/// As write(2). No bytes are a message without payload, as on any socket.
///
/// # Safety
/// `count` bytes at `first` can be read.
pub unsafe fn write(fd: c_int, first: *const c_void, count: size_t) -> ssize_t {
    either!(
        fd,
        // SAFETY: the caller's promise.
        held => unsafe { put_bytes(fd, &held, (first, count), None, 0) },
        // SAFETY: the caller's promise.
        unsafe { originals::write(fd, first, count) }
    )
}

/// As writev(2).
///
/// # Safety
/// `count` records at `parts`, whose bytes can be read.
pub unsafe fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    either!(
        fd,
        held => {
            let count = usize::try_from(count).map_err(|_| libc::EINVAL)?;
            // SAFETY: the caller's promise.
            let (parts, whole) = unsafe { arguments::parts(parts, count, libc::EINVAL) }?;
            put(fd, &held, &Given { parts, whole, name: None, control: &[], flags: 0 })
        },
        // SAFETY: the caller's promise.
        unsafe { originals::writev(fd, parts, count) }
    )
}
