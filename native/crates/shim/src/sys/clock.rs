//! A clock that is cheap and coarse: it tells whether a look at a descriptor is recent.

/// Return the time in units of 4.2 ms, from any beginning. Never enters the kernel.
pub fn ticks() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid place.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    ((now.tv_sec.cast_unsigned() << 30).wrapping_add(now.tv_nsec.cast_unsigned())) >> 22
}

/// Return the time in nanoseconds, from any beginning.
pub fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid place.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    span_ns(&now).unwrap_or(0)
}

/// Return a span in nanoseconds, 584 years at most; None if it is none.
pub fn span_ns(span: &libc::timespec) -> Option<u64> {
    let seconds = u64::try_from(span.tv_sec).ok()?;
    let rest_ns = u64::try_from(span.tv_nsec)
        .ok()
        .filter(|&rest_ns| rest_ns < NS)?;
    Some(seconds.saturating_mul(NS).saturating_add(rest_ns))
}

/// Write a span.
pub fn set_span(span: &mut libc::timespec, time_ns: u64) {
    if let (Ok(seconds), Ok(rest_ns)) = ((time_ns / NS).try_into(), (time_ns % NS).try_into()) {
        span.tv_sec = seconds;
        span.tv_nsec = rest_ns;
    }
}

const NS: u64 = 1_000_000_000;
