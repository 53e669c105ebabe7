//! Counters of the plane, named as rds-info prints them, and urds counters of every drop by reason.
//!
//! Source of names and meanings: linux v6.12 net/rds/stats.c and net/rds/rds.h.

/// Declare the record and the order of its counters.
macro_rules! counters {
    ($($(#[$note:meta])* $name:ident,)+) => {
        /// Plain integers under the plane's lock; never negative, never reset.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$note])* pub $name: u64,)+
        }

        impl Counters {
            /// Yield name and value of each, in the order of declaration.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }
        }
    };
}

counters! {
    // Linux's names, in its order. Those of its pages, workers and RDMA stay 0, as does
    // recv_drop_dead_sock: a closing socket leaves its port at once.
    conn_reset,
    recv_drop_bad_checksum,
    recv_drop_old_seq,
    recv_drop_no_sock,
    recv_drop_dead_sock,
    recv_deliver_raced,
    recv_delivered,
    recv_queued,
    recv_immediate_retry,
    recv_delayed_retry,
    recv_ack_required,
    recv_rdma_bytes,
    recv_ping,
    send_queue_empty,
    send_queue_full,
    send_lock_contention,
    send_lock_queue_raced,
    send_immediate_retry,
    send_delayed_retry,
    send_drop_acked,
    send_ack_required,
    send_queued,
    send_rdma,
    send_rdma_bytes,
    send_pong,
    page_remainder_hit,
    page_remainder_miss,
    copy_to_user,
    copy_from_user,
    cong_update_queued,
    cong_update_received,
    cong_send_error,
    cong_send_blocked,
    recv_bytes_added_to_sock,
    recv_bytes_freed_fromsock,
    send_stuck_rm,
    mprds_catchup_tx0_retries,
    tcp_data_ready_calls,
    tcp_write_space_calls,
    tcp_sndbuf_full,
    tcp_connect_raced,
    tcp_listen_closed_stale,
    // Counters of urds alone.
    ack_sent,
    ack_received,
    send_retransmitted,
    send_cancelled,
    /// Of them, of sockets past their linger time.
    send_linger_over,
    send_given_up,
    recv_drop_control_full,
    recv_drop_too_long,
    recv_drop_bad_map,
    recv_drop_bad_ack,
    recv_drop_closed,
    recv_drop_notices_full,
    recv_paused,
    peer_restarted,
    progress_thread_passes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_in_the_order_of_linux() {
        let counters = Counters {
            conn_reset: 3,
            progress_thread_passes: 4,
            ..Counters::default()
        };
        let named: Vec<_> = counters.named().collect();
        assert_eq!(named.first(), Some(&("conn_reset", 3)));
        assert_eq!(named.last(), Some(&("progress_thread_passes", 4)));
        assert_eq!(named.iter().map(|&(_, value)| value).sum::<u64>(), 7);
    }
}
