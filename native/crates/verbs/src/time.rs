//! The time of a call.

/// The time, or what tells it: most calls run no timer, and a clock costs as much as a look at a queue.
#[derive(Clone, Copy, Debug)]
pub enum Now {
    At(i64),
    /// Asked where a timer needs it; of several times in one call none goes back.
    Told(fn() -> i64),
}

impl Now {
    /// Return the time in nanoseconds.
    #[inline]
    pub fn ns(self) -> i64 {
        match self {
            Self::At(now_ns) => now_ns,
            Self::Told(clock) => clock(),
        }
    }
}

impl From<i64> for Now {
    fn from(now_ns: i64) -> Self {
        Self::At(now_ns)
    }
}
