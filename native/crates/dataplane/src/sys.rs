//! All system calls of the plane, and all of its `unsafe`.
//!
//! They go through rustix where it has them; through libc where it lacks something. Those of shared
//! memory are in `urds-channel`.

pub mod descriptor;
pub mod epoll;
pub mod eventfd;
pub mod futex;
pub mod sent_record;
pub mod signals;
pub mod socket_pair;
pub mod sockets;

use std::io;
use std::os::fd::{BorrowedFd, RawFd};

/// Return the system's monotonic clock in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is writable and as large as the call expects.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    // A monotonic clock is never negative.
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Sleep once, at most `time`: a signal ends it.
///
/// `std::thread::sleep` goes on with what the system says is left, and that has the timer's slack
/// added: under signals that come faster than the slack, 50 us, it grows and never ends.
/// Source: linux v6.12 kernel/time/hrtimer.c (`do_nanosleep`).
pub fn pause(time: std::time::Duration) {
    let _ = rustix::thread::nanosleep(&exactly(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)));
}

/// Turn the result of a system call into its value, or into the error in `errno`.
///
/// # Errors
/// Of the system, when the result is negative.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Borrow a descriptor for one call.
///
/// # Errors
/// `EBADF` for -1, as the system has it.
#[inline]
pub(crate) fn borrowed(descriptor: RawFd) -> io::Result<BorrowedFd<'static>> {
    if descriptor < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the number is not -1, and the caller keeps it open for one system call, which fails
    // on a number that is not open.
    Ok(unsafe { BorrowedFd::borrow_raw(descriptor) })
}

pub(crate) fn exactly(ns: u64) -> rustix::fs::Timespec {
    let libc::timespec { tv_sec, tv_nsec } = timespec(ns);
    rustix::fs::Timespec { tv_sec, tv_nsec }
}

pub(crate) fn timespec(ns: u64) -> libc::timespec {
    // Both fit: 2^64 ns are less than 2^35 seconds.
    libc::timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    }
}
