//! Limit on a path's control messages that become events: a burst, then a rate.
//!
//! Each ping, pong or handshake costs the control thread a wake-up, a pass under the control lock
//! and an answer. A peer's messages beyond its budget are dropped and counted before any of that.
//!
//! Two kinds are never dropped. The first handshake messages of a stream: without them a urds node
//! is taken for a kernel, and what a reset then interrupts is lost; a new stream costs far more
//! than they do, and streams have limits of their own. Congestion maps: the plane itself puts the
//! newest one of a read into force, and without it a sender could wait for good.

use crate::limits::Limits;

/// The peer's own and its answer to the local one, each once more.
const HANDSHAKES_OF_STREAM: u8 = 4;

/// A leaky bucket. It outlives streams, so that a reconnect gains no pings.
///
/// Source: the generic cell rate algorithm, ITU-T I.371 annex A.
#[derive(Clone, Copy, Debug)]
pub struct ControlBudget {
    interval_ns: u64,
    burst_max: u64,
    /// When the next one is due at the steady rate.
    due_ns: u64,
    handshakes_left: u8,
}

impl ControlBudget {
    /// Return a budget with its whole burst.
    pub fn new(limits: &Limits) -> Self {
        Self {
            interval_ns: limits.control_interval_ns,
            burst_max: limits.control_events_max as u64,
            due_ns: 0,
            handshakes_left: HANDSHAKES_OF_STREAM,
        }
    }

    /// Admit the handshake of a new stream.
    pub fn begin_stream(&mut self) {
        self.handshakes_left = HANDSHAKES_OF_STREAM;
    }

    /// Return whether one more control message is within the budget; charge it if so.
    pub fn admits(&mut self, now_ns: u64, is_handshake: bool) -> bool {
        if is_handshake && self.handshakes_left > 0 {
            self.handshakes_left -= 1;
            return true;
        }
        let ahead_max_ns = self
            .burst_max
            .saturating_sub(1)
            .saturating_mul(self.interval_ns);
        if self.due_ns.saturating_sub(now_ns) > ahead_max_ns {
            return false;
        }
        self.due_ns = self.due_ns.max(now_ns).saturating_add(self.interval_ns);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget() -> ControlBudget {
        ControlBudget::new(&Limits {
            control_events_max: 3,
            control_interval_ns: 10,
            ..Limits::default()
        })
    }

    #[test]
    fn a_burst_then_the_steady_rate() {
        let mut budget = budget();
        let admitted = |budget: &mut ControlBudget, now_ns| {
            (0..9).filter(|_| budget.admits(now_ns, false)).count()
        };
        assert_eq!(admitted(&mut budget, 1000), 3);
        assert_eq!(admitted(&mut budget, 1009), 0);
        assert_eq!(admitted(&mut budget, 1010), 1);
        assert_eq!(admitted(&mut budget, 1035), 2);
        assert_eq!(admitted(&mut budget, 9999), 3);
    }

    #[test]
    fn each_stream_has_its_handshake() {
        let mut budget = budget();
        let admitted =
            |budget: &mut ControlBudget| (0..99).filter(|_| budget.admits(7, true)).count();
        assert_eq!(admitted(&mut budget), 4 + 3);
        budget.begin_stream();
        assert_eq!(admitted(&mut budget), 4);
    }
}
