//! Acknowledgements that wait for a packet to their queue pair: at most one slot for many.

use urds_verbs::numbers::PSN_MASK;

/// From so many packets on an acknowledgement waits no longer.
const UNACKED_MAX: i64 = 32;

/// One that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The peer's queue pair, whose requests it acknowledges.
    pub target: u32,
    pub psn: u32,
    pub msn: u32,
    /// When it began to wait.
    first_psn: u32,
}

/// All of one channel: few, since each waits for the answer of a program or for two empty looks.
#[derive(Debug, Default)]
pub struct Acknowledgements(Vec<Waiting>);

impl Acknowledgements {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Keep one, instead of an earlier one of the same queue pair; return whether it is overdue.
    pub fn keep(&mut self, target: u32, psn: u32, msn: u32) -> bool {
        if let Some(found) = self.0.iter_mut().find(|waiting| waiting.target == target) {
            (found.psn, found.msn) = (psn, msn);
            return (i64::from(psn) - i64::from(found.first_psn)) & PSN_MASK >= UNACKED_MAX - 1;
        }
        self.0.push(Waiting {
            target,
            psn,
            msn,
            first_psn: psn,
        });
        false
    }

    /// Take the one for a queue pair, to which a packet leaves.
    #[inline]
    pub fn take(&mut self, target: u32) -> Option<Waiting> {
        let place = self.0.iter().position(|waiting| waiting.target == target)?;
        Some(self.0.swap_remove(place))
    }

    /// Take any.
    pub fn pop(&mut self) -> Option<Waiting> {
        self.0.pop()
    }

    /// Put one back that found no room.
    pub fn restore(&mut self, waiting: Waiting) {
        self.0.push(waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_waits_for_its_own_queue_pair() {
        let mut acks = Acknowledgements::default();
        assert!(!acks.keep(1, 5, 1) && !acks.keep(2, 9, 1) && !acks.keep(1, 6, 2));
        let found = acks.take(1).map(|waiting| (waiting.psn, waiting.msn));
        assert_eq!(found, Some((6, 2)));
        assert_eq!(acks.take(1), None);
        assert_eq!(acks.pop().map(|waiting| waiting.target), Some(2));
        assert!(acks.is_empty());
    }

    #[test]
    fn one_for_many_packets_is_overdue_also_where_numbers_come_round() {
        let mut acks = Acknowledgements::default();
        let first = u32::try_from(PSN_MASK).unwrap() - 3;
        assert!(!acks.keep(1, first, 0));
        assert!(!acks.keep(1, 26, 0), "31 packets");
        assert!(acks.keep(1, 27, 0), "32 packets");
    }
}
