//! The time that a plane goes by.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::sys;

/// A clock of the caller's, in nanoseconds; it is asked under the plane's lock.
pub type ClockFn = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The system's monotonic clock, or one of the caller's: with that nothing ever waits.
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

    /// Tell whether the clock is the caller's.
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
