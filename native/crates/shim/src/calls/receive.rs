//! recv, recvfrom, recvmsg, recvmmsg, read, readv: one message or one notification.
//!
//! Source: linux v6.12 net/rds/recv.c (`rds_recvmsg`), net/socket.c.

use core::ffi::{c_int, c_uint, c_void};

use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};
use urds_client::sys::parts::Writable;
use urds_client::{Flags, Message, Name, ReceivedKind, Socket, Word};

use super::{either, narrow};
use crate::control::Room;
use crate::sys::{arguments, clock, originals};
use crate::table::Held;
use crate::{Answer, addresses};

/// What a receive gives back beside the bytes.
struct Incoming {
    value: usize, // what the call returns
    flags: c_int,
    source: Option<Name>,
    control_used: usize,
}

/// Take what is first, with its control messages into `room`.
fn get(fd: c_int, held: &Held, parts: &[iovec], room: &mut [u8], flags: c_int) -> Answer<Incoming> {
    let mut given = Incoming {
        value: 0,
        flags: flags & libc::MSG_CMSG_CLOEXEC,
        source: None,
        control_used: 0,
    };
    if flags & libc::MSG_OOB != 0 {
        return Ok(given); // nothing is ever out of band: kernel parity
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(libc::EAGAIN); // that queue is always empty
    }
    let how = Flags {
        dontwait: flags & libc::MSG_DONTWAIT != 0,
        peek: flags & libc::MSG_PEEK != 0,
        polls: false,
    };
    let socket = held.socket();
    // SAFETY: the parts can be written, by the promise of the call that brought them.
    let received = socket.receive(fd, unsafe { Writable::new(parts) }, how)?;
    let mut room = Room::new(room);
    match received.kind {
        ReceivedKind::CongestionUpdate(groups) => room.add_congestion(groups),
        ReceivedKind::Message => {
            given.source = Some(received.source);
            add_control(socket, &received, &mut room);
            let is_cut = received.bytes < received.length;
            given.flags |= if is_cut { libc::MSG_TRUNC } else { 0 };
            let is_whole = flags & libc::MSG_TRUNC != 0;
            given.value = if is_whole {
                received.length
            } else {
                received.bytes
            };
        }
    }
    given.flags |= if room.is_cut { libc::MSG_CTRUNC } else { 0 };
    given.control_used = room.used;
    Ok(given)
}

/// Add what the options of the socket and the message's headers ask for.
fn add_control(socket: &Socket, received: &Message, room: &mut Room<'_>) {
    room.add_destination(&received.extension);
    let asked = socket.options().get(Word::Timestamp);
    if received.wall_ns != 0 {
        room.add_time(asked, received.wall_ns);
    }
    let trace = &received.trace;
    if trace.count > 0 {
        room.add_latency(
            &trace.positions[..usize::from(trace.count.min(3))],
            trace.ns,
        );
    }
}

/// Take what is first into one buffer.
unsafe fn get_bytes(
    fd: c_int,
    held: &Held,
    (first, count): (*mut c_void, size_t),
    flags: c_int,
) -> Answer<Incoming> {
    // SAFETY: the caller's promise.
    unsafe { arguments::bytes(first, count) }?;
    let part = iovec {
        iov_base: first,
        iov_len: count,
    };
    get(fd, held, core::slice::from_ref(&part), &mut [], flags)
}

/// As recv(2).
///
/// # Safety
/// `count` bytes at `first` can be written.
pub unsafe fn recv(fd: c_int, first: *mut c_void, count: size_t, flags: c_int) -> ssize_t {
    either!(
        fd,
        // SAFETY: the caller's promise.
        held => unsafe { get_bytes(fd, &held, (first, count), flags) }.map(|given| given.value),
        // SAFETY: the caller's promise.
        unsafe { originals::recv(fd, first, count, flags) }
    )
}

/// As recvfrom(2).
///
/// # Safety
/// As `recv`; `length` is null or valid, and what it says can be written at `name`.
pub unsafe fn recvfrom(
    fd: c_int,
    first: *mut c_void,
    count: size_t,
    flags: c_int,
    name: *mut sockaddr,
    length: *mut socklen_t,
) -> ssize_t {
    either!(
        fd,
        held => {
            // SAFETY: the caller's promise.
            let given = unsafe { get_bytes(fd, &held, (first, count), flags) }?;
            if !name.is_null() {
                let (bytes, taken) = source_bytes(&given);
                // SAFETY: the caller's promise.
                unsafe { arguments::give(&bytes[..taken], name.cast(), length) }?;
            }
            Ok(given.value)
        },
        // SAFETY: the caller's promise.
        unsafe { originals::recvfrom(fd, first, count, flags, name, length) }
    )
}

/// Return the source as a socket address: none for a notification.
fn source_bytes(given: &Incoming) -> ([u8; addresses::IN6_BYTES], usize) {
    given
        .source
        .as_ref()
        .map_or(([0; addresses::IN6_BYTES], 0), addresses::emit)
}

/// As recvmsg(2).
///
/// # Safety
/// `message` is valid, and what it points to can be written.
pub unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    either!(
        fd,
        // SAFETY: the caller's promise.
        held => unsafe { get_message(fd, &held, message, flags) },
        // SAFETY: the caller's promise.
        unsafe { originals::recvmsg(fd, message, flags) }
    )
}

unsafe fn get_message(fd: c_int, held: &Held, message: *mut msghdr, flags: c_int) -> Answer {
    // SAFETY: the caller's promise.
    let message = unsafe { arguments::message(message) }?;
    let count = arguments::count(message.msg_iovlen);
    // SAFETY: the caller's promise.
    let (parts, _) = unsafe { arguments::parts(message.msg_iov, count, libc::EMSGSIZE) }?;
    let room = arguments::count(message.msg_controllen);
    // SAFETY: the caller's promise.
    let room = unsafe { arguments::bytes_mut(message.msg_control, room) };
    let given = get(fd, held, parts, room, flags)?;
    if !message.msg_name.is_null() {
        let (bytes, taken) = source_bytes(&given);
        let length = &raw mut message.msg_namelen;
        // SAFETY: the caller's promise.
        unsafe { arguments::give(&bytes[..taken], message.msg_name, length) }?;
    }
    arguments::set_count(&mut message.msg_controllen, given.control_used);
    message.msg_flags = given.flags;
    Ok(given.value)
}

/// As recvmmsg(2): the number of messages taken, or the error of the first.
///
/// # Safety
/// `count` records at `messages`, each as for `recvmsg`; `patience` is null or valid.
pub unsafe fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    patience: *mut timespec,
) -> c_int {
    narrow(either!(
        fd,
        held => {
            // SAFETY: the caller's promise.
            let patience = unsafe { patience.as_mut() };
            // SAFETY: the caller's promise.
            unsafe { get_messages(fd, &held, (messages, count as usize), flags, patience) }
        },
        // SAFETY: the caller's promise.
        unsafe { originals::recvmmsg(fd, messages, count, flags, patience) as isize }
    ))
}

unsafe fn get_messages(
    fd: c_int,
    held: &Held,
    (messages, count): (*mut mmsghdr, usize),
    flags: c_int,
    patience: Option<&mut timespec>,
) -> Answer {
    let until_ns = match &patience {
        Some(span) => Some(clock::now_ns() + clock::span_ns(span).ok_or(libc::EINVAL)?),
        None => None,
    };
    let mut flags = flags;
    let mut taken = 0;
    while taken < count.min(arguments::PARTS_MAX) {
        // SAFETY: the caller's promise.
        let message = unsafe { messages.add(taken).as_mut() }.ok_or(libc::EFAULT)?;
        let header = &raw mut message.msg_hdr;
        // SAFETY: the caller's promise.
        let done = unsafe { get_message(fd, held, header, flags & !libc::MSG_WAITFORONE) };
        match done {
            Ok(bytes) => message.msg_len = u32::try_from(bytes).unwrap_or(u32::MAX),
            Err(_) if taken > 0 => break,
            Err(_) => return done,
        }
        taken += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        // The time is looked at after each message only: kernel parity.
        if until_ns.is_some_and(|until_ns| clock::now_ns() >= until_ns) {
            break;
        }
    }
    if let (Some(span), Some(until_ns)) = (patience, until_ns) {
        clock::set_span(span, until_ns.saturating_sub(clock::now_ns()));
    }
    Ok(taken)
}

/// As read(2). Room for no bytes takes no message, as on any socket.
///
/// # Safety
/// `count` bytes at `first` can be written.
pub unsafe fn read(fd: c_int, first: *mut c_void, count: size_t) -> ssize_t {
    either!(
        fd,
        held => {
            if count == 0 {
                return Ok(0);
            }
            // SAFETY: the caller's promise.
            unsafe { get_bytes(fd, &held, (first, count), 0) }.map(|given| given.value)
        },
        // SAFETY: the caller's promise.
        unsafe { originals::read(fd, first, count) }
    )
}

/// As readv(2), like `read`.
///
/// # Safety
/// `count` records at `parts`, whose bytes can be written.
pub unsafe fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    either!(
        fd,
        held => {
            let count = usize::try_from(count).map_err(|_| libc::EINVAL)?;
            // SAFETY: the caller's promise.
            let (parts, whole) = unsafe { arguments::parts(parts, count, libc::EINVAL) }?;
            if whole == 0 {
                return Ok(0);
            }
            get(fd, &held, parts, &mut [], 0).map(|given| given.value)
        },
        // SAFETY: the caller's promise.
        unsafe { originals::readv(fd, parts, count) }
    )
}
