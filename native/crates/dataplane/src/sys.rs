//! All system calls of the plane, and all of its `unsafe`.

pub mod descriptor;
pub mod epoll;
pub mod eventfd;
pub mod futex;
pub mod line;
pub mod shared_memory;
pub mod signals;
pub mod sockets;

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
    let time = timespec(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    // SAFETY: `time` lives through the call, and what is left is not asked for.
    unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
}

/// Turn the result of a system call into its value, or into the error that `errno` tells.
///
/// # Errors
/// Of the system, when the result is negative.
pub(crate) fn check(result: libc::c_int) -> std::io::Result<libc::c_int> {
    if result < 0 {
        Err(std::io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

pub(crate) fn timespec(ns: u64) -> libc::timespec {
    // Both fit: 2^64 ns are less than 2^35 seconds.
    libc::timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    }
}
