//! Socket options: what each takes and gives.
//!
//! Values are bytes in host order. An option without a row goes through to the descriptor at level
//! `SOL_SOCKET` and is unknown at others.
//! Source: linux v6.12 `net/rds/af_rds.c`, net/core/sock.c; docs/reference/rds.md 3.2.

use core::ffi::c_void;

use libc::socklen_t;
use urds_client::{Socket, Word};

use crate::calls::names::AF_RDS;
use crate::sys::arguments;
use crate::{Answer, Errno};

const SOL_RDS: i32 = 276;
const RECVERR: i32 = 5;
const CONG_MONITOR: i32 = 6;
const TRANSPORT: i32 = 8;
const RXPATH_LATENCY: i32 = 10;
const TIMESTAMP_OLD: i32 = 29;
const TIMESTAMP_NEW: i32 = 63;
const TRANSPORT_IB: i32 = 0;
const TRANSPORT_GAP: i32 = 1;
const TRANSPORT_TCP: i32 = 2;
const TRACES_MAX: usize = 3;

const SO_TIMESTAMPNS: i32 = 35;
const SO_TIMESTAMP_NEW: i32 = 63;
const SO_TIMESTAMPNS_NEW: i32 = 64;
const SO_BUSY_POLL: i32 = 46;
const SO_ZEROCOPY: i32 = 60;

// The kernel's figure is twice what the queue holds. Source: linux v6.12 include/net/sock.h.
const SEND_BYTES_MIN: u32 = 4608 / 2;
const RECEIVE_BYTES_MIN: u32 = 2304 / 2;
const BUFFER_BYTES_MAX: u32 = i32::MAX as u32 / 2;

/// Where an option was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    Here,
    /// The descriptor shall have it.
    Through,
}

/// The value of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    bytes: [u8; 8],
    count: usize,
    is_exact: bool, // too little room is EINVAL, where others are cut
}

impl Value {
    fn integer(value: i32) -> Self {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&value.to_ne_bytes());
        Self {
            bytes,
            count: 4,
            is_exact: false,
        }
    }

    fn whole(self) -> Self {
        Self {
            is_exact: true,
            ..self
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.count]
    }

    /// Write it for getsockopt.
    ///
    /// # Errors
    /// EINVAL without room where that is needed; EFAULT for null.
    ///
    /// # Safety
    /// `length` is null or valid, and what it says can be written at `value`.
    pub unsafe fn give(&self, value: *mut c_void, length: *mut socklen_t) -> Answer {
        // SAFETY: the caller's promise.
        let room = unsafe { length.as_ref() }.ok_or(libc::EFAULT)?;
        let room = arguments::count(i32::try_from(*room).map_err(|_| libc::EINVAL)?);
        if self.is_exact && room < self.count {
            return Err(libc::EINVAL);
        }
        let taken = &self.bytes()[..room.min(self.count)];
        // SAFETY: the caller's promise.
        unsafe { arguments::give(taken, value, length) }
    }
}

/// Return the value of an option; None if the descriptor has it.
///
/// # Errors
/// ENOPROTOOPT for an unknown one.
pub fn get(socket: &Socket, level: i32, name: i32) -> Answer<Option<Value>> {
    let options = socket.options();
    let number = |word| Value::integer(options.get(word).cast_signed());
    let value = match (level, name) {
        (SOL_RDS, RECVERR) => number(Word::ReportErrors).whole(),
        (SOL_RDS, CONG_MONITOR) if options.get(Word::HasMask) != 0 => Value {
            bytes: options.mask().to_ne_bytes(),
            count: 8,
            is_exact: true,
        },
        // Kept plus one, so that 0 is none: -1 to a program.
        (SOL_RDS, TRANSPORT) => {
            Value::integer(options.get(Word::Transport).wrapping_sub(1).cast_signed()).whole()
        }
        (libc::SOL_SOCKET, libc::SO_TYPE) => Value::integer(libc::SOCK_SEQPACKET),
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => Value::integer(AF_RDS),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL | libc::SO_ERROR | libc::SO_ACCEPTCONN) => {
            Value::integer(0)
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => doubled(options.get(Word::SendBytes)),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => doubled(options.get(Word::ReceiveBytes)),
        (
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMP | SO_TIMESTAMPNS | SO_TIMESTAMP_NEW | SO_TIMESTAMPNS_NEW,
        ) => {
            let asked = options.get(Word::Timestamp).cast_signed();
            Value::integer(i32::from(asked == name))
        }
        (libc::SOL_SOCKET, libc::SO_LINGER) => lingering(options.get(Word::Linger)),
        (libc::SOL_SOCKET, _) => match switch(name) {
            Some(word) => number(word),
            None => return Ok(None),
        },
        _ => return Err(libc::ENOPROTOOPT),
    };
    Ok(Some(value))
}

/// Set an option.
///
/// # Errors
/// As Linux: ENOPROTOOPT for an unknown one, EINVAL or EFAULT for a value of another size.
pub fn set(socket: &Socket, level: i32, name: i32, given: &[u8]) -> Answer<Done> {
    let options = socket.options();
    let timestamp = |is_on: bool| {
        options.set(
            Word::Timestamp,
            if is_on { name.cast_unsigned() } else { 0 },
        );
    };
    match (level, name) {
        (SOL_RDS, RECVERR) => options.set(Word::ReportErrors, u32::from(integer(given)? != 0)),
        (SOL_RDS, CONG_MONITOR) => set_monitor(socket, given)?,
        (SOL_RDS, TRANSPORT) => options.set(Word::Transport, transport(socket, given)? + 1),
        (SOL_RDS, RXPATH_LATENCY) => options.set(Word::Traces, traces(given)?),
        (SOL_RDS, TIMESTAMP_OLD | TIMESTAMP_NEW) => timestamp(exact(given, libc::EFAULT)? != 0),
        (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => {
            let most = socket.side().limits().0;
            options.set(Word::SendBytes, buffer(given, name, SEND_BYTES_MIN, most)?);
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => {
            let most = socket.side().limits().1;
            options.set(
                Word::ReceiveBytes,
                buffer(given, name, RECEIVE_BYTES_MIN, most)?,
            );
        }
        (
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMP | SO_TIMESTAMPNS | SO_TIMESTAMP_NEW | SO_TIMESTAMPNS_NEW,
        ) => timestamp(integer(given)? != 0),
        (libc::SOL_SOCKET, libc::SO_LINGER) => options.set(Word::Linger, linger(given)?),
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => return Ok(Done::Through),
        (libc::SOL_SOCKET, _) => match switch(name) {
            Some(word) => options.set(word, switched(word, integer(given)?)?),
            None => return Ok(Done::Through),
        },
        _ => return Err(libc::ENOPROTOOPT),
    }
    Ok(Done::Here)
}

/// Set the type of service: once, before the first send. Over TCP it stays 0: kernel parity.
///
/// # Errors
/// EINVAL for a second choice, or after a send.
pub fn set_tos(socket: &Socket, _tos: u8) -> Answer {
    let options = socket.options();
    let is_final = options.get(Word::Tos) != 0 || options.get(Word::HasRoute) != 0;
    if is_final { Err(libc::EINVAL) } else { Ok(0) }
}

/// Return the word of an option that is a plain number.
fn switch(name: i32) -> Option<Word> {
    match name {
        libc::SO_REUSEADDR => Some(Word::ReuseAddress),
        libc::SO_BROADCAST => Some(Word::Broadcast),
        libc::SO_KEEPALIVE => Some(Word::KeepAlive),
        SO_ZEROCOPY => Some(Word::ZeroCopy),
        SO_BUSY_POLL => Some(Word::BusyPoll),
        _ => None,
    }
}

fn switched(word: Word, value: i32) -> Answer<u32> {
    match word {
        Word::BusyPoll => u32::try_from(value).map_err(|_| libc::EINVAL),
        Word::ZeroCopy if !(0..=1).contains(&value) => Err(libc::EINVAL),
        _ => Ok(u32::from(value != 0)),
    }
}

fn doubled(bytes: u32) -> Value {
    Value::integer(i32::try_from(u64::from(bytes) * 2).unwrap_or(i32::MAX))
}

fn integer(given: &[u8]) -> Answer<i32> {
    let bytes = given.first_chunk::<4>().ok_or(libc::EINVAL)?;
    Ok(i32::from_ne_bytes(*bytes))
}

fn exact(given: &[u8], errno: Errno) -> Answer<i32> {
    if given.len() == 4 {
        integer(given)
    } else {
        Err(errno)
    }
}

/// A negative size is a huge one: kernel parity. With `..FORCE` it is a small one.
fn buffer(given: &[u8], name: i32, bytes_min: u32, bytes_max: u32) -> Answer<u32> {
    let value = integer(given)?;
    let is_forced = name == libc::SO_SNDBUFFORCE || name == libc::SO_RCVBUFFORCE;
    let value = if is_forced { value.max(0) } else { value };
    let bytes_max = if bytes_max == 0 {
        BUFFER_BYTES_MAX
    } else {
        bytes_max
    };
    Ok(value.cast_unsigned().min(bytes_max).max(bytes_min))
}

fn transport(socket: &Socket, given: &[u8]) -> Answer<u32> {
    if socket.options().get(Word::Transport) != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    match exact(given, libc::EINVAL)? {
        TRANSPORT_TCP => Ok(TRANSPORT_TCP.cast_unsigned()),
        TRANSPORT_IB => Err(libc::ENOPROTOOPT), // sockets of a node go over TCP
        TRANSPORT_GAP => Err(libc::EPROTOTYPE),
        _ => Err(libc::EINVAL),
    }
}

/// Four bytes are a switch as in Linux, eight a mask as in rds(7).
fn set_monitor(socket: &Socket, given: &[u8]) -> Result<(), Errno> {
    let options = socket.options();
    let mask = <[u8; 8]>::try_from(given)
        .ok()
        .filter(|_| !socket.side().is_strict());
    let is_on = if let Some(mask) = mask.map(u64::from_ne_bytes) {
        let half = |shift: u32| u32::try_from(mask >> shift & u64::from(u32::MAX)).unwrap_or(0);
        options.set(Word::MaskLow, half(0));
        options.set(Word::MaskHigh, half(32));
        mask != 0
    } else {
        integer(given)? != 0
    };
    options.set(Word::HasMask, u32::from(mask.is_some()));
    options.set(Word::Monitor, u32::from(is_on));
    if !is_on {
        socket.side().forget_groups();
    }
    Ok(())
}

/// Read struct `rds_rx_trace_so`: a count, then three positions; return it as the memory keeps it.
fn traces(given: &[u8]) -> Answer<u32> {
    let bytes = <[u8; 1 + TRACES_MAX]>::try_from(given).map_err(|_| libc::EFAULT)?;
    let chosen = bytes[1..]
        .get(..usize::from(bytes[0]))
        .ok_or(libc::EFAULT)?;
    if chosen
        .iter()
        .any(|&position| usize::from(position) >= TRACES_MAX)
    {
        return Err(libc::EFAULT);
    }
    Ok(u32::from_le_bytes(bytes))
}

/// Return `SO_LINGER` as the memory keeps it: seconds plus one, 0 is off.
fn linger(given: &[u8]) -> Answer<u32> {
    let is_on = integer(given)? != 0;
    let seconds = integer(given.get(4..).ok_or(libc::EINVAL)?)?;
    Ok(if is_on {
        seconds.max(0).cast_unsigned() + 1
    } else {
        0
    })
}

fn lingering(kept: u32) -> Value {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&i32::from(kept != 0).to_ne_bytes());
    bytes[4..].copy_from_slice(&kept.saturating_sub(1).to_ne_bytes());
    Value {
        bytes,
        count: 8,
        is_exact: false,
    }
}
