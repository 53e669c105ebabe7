//! The clock of a plane.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::sys;

/// A clock of the caller's, in nanoseconds; it is called under the plane's lock.
pub type ClockFn = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The system's monotonic clock, or a virtual one of the caller's, with which nothing ever waits.
#[derive(Clone)]
pub enum Clock {
    Monotonic,
    Injected(ClockFn),
}

impl Clock {
    /// Return the time in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        match self {
            Self::Monotonic => sys::monotonic_ns(),
            Self::Injected(ask) => ask(),
        }
    }

    /// Return whether the clock is the caller's.
    pub fn is_virtual(&self) -> bool {
        matches!(self, Self::Injected(_))
    }
}

/// Return the wall clock in nanoseconds.
pub fn wall_ns() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
