//! Limits of a plane, with the defaults of `src/urds/rds/plane/contract.py`.

/// Limits of a plane, in bytes unless named otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// That sockets of this node may send.
    pub message_bytes_max: usize,
    /// That a peer may announce; checked before memory is allocated.
    pub frame_bytes_max: usize,
    /// Queued and unacknowledged messages of one path.
    pub path_messages_max: usize,
    /// Messages for the control plane that a path may bring at once.
    pub control_events_max: usize,
    /// After those, one per interval; the rest are dropped.
    pub control_interval_ns: u64,
    /// With `receive_hard_bytes`: a mailbox holds at most this times its buffer, plus those.
    pub receive_hard_factor: usize,
    pub receive_hard_bytes: usize,
    /// Unsent bytes that are written without waiting for more.
    pub flush_bytes: usize,
    /// Messages for which the acknowledgement of a urds node may wait.
    pub acknowledge_messages: usize,
    pub acknowledge_bytes: usize,
    /// The maximum that Linux's TCP waits for data to carry its acknowledgement. Source: linux
    /// v6.12 include/net/tcp.h (`TCP_DELACK_MAX`).
    pub acknowledge_delay_ns: u64,
    /// Then `ACK_REQUIRED`; as `net.rds.max_unacked_packets`.
    pub unacked_packets_max: usize,
    pub unacked_bytes_max: usize,
    /// How long a closed mailbox's queued messages are kept.
    pub linger_ns: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes_max: 1 << 20,
            frame_bytes_max: 1 << 20,
            path_messages_max: 65536,
            control_events_max: 64,
            control_interval_ns: 10_000_000,
            receive_hard_factor: 4,
            receive_hard_bytes: 16 << 20,
            flush_bytes: 32768,
            acknowledge_messages: 256,
            acknowledge_bytes: 256 << 10,
            acknowledge_delay_ns: 200_000_000,
            unacked_packets_max: 8,
            unacked_bytes_max: 16 << 20,
            linger_ns: 1_000_000_000,
        }
    }
}

impl Limits {
    /// Return how much a mailbox with such a buffer may hold before its peers are not read.
    pub fn receive_hard_bound(&self, buffer_bytes: usize) -> usize {
        self.receive_hard_factor
            .saturating_mul(buffer_bytes)
            .saturating_add(self.receive_hard_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hard_bound_cannot_overflow() {
        let limits = Limits::default();
        assert_eq!(limits.receive_hard_bound(1000), 4000 + (16 << 20));
        assert_eq!(limits.receive_hard_bound(usize::MAX), usize::MAX);
    }
}
