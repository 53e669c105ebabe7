"""Counters of the plane, named as rds-info prints them, and urds counters of every drop by reason.

Source of names and meanings: linux v6.12 net/rds/stats.c and net/rds/rds.h.
"""

from __future__ import annotations

from urds.common.records import fields, record


@record(frozen=False)
class Counters:
    """Plain integers; the shell adds under its lock. Never negative, never reset."""

    # Linux's names, in its order. Those of its pages, workers and RDMA stay 0, as does
    # recv_drop_dead_sock: a closing socket leaves its port at once.
    conn_reset: int = 0
    recv_drop_bad_checksum: int = 0
    recv_drop_old_seq: int = 0
    recv_drop_no_sock: int = 0
    recv_drop_dead_sock: int = 0
    recv_deliver_raced: int = 0
    recv_delivered: int = 0
    recv_queued: int = 0
    recv_immediate_retry: int = 0
    recv_delayed_retry: int = 0
    recv_ack_required: int = 0
    recv_rdma_bytes: int = 0
    recv_ping: int = 0
    send_queue_empty: int = 0
    send_queue_full: int = 0
    send_lock_contention: int = 0
    send_lock_queue_raced: int = 0
    send_immediate_retry: int = 0
    send_delayed_retry: int = 0
    send_drop_acked: int = 0
    send_ack_required: int = 0
    send_queued: int = 0
    send_rdma: int = 0
    send_rdma_bytes: int = 0
    send_pong: int = 0
    page_remainder_hit: int = 0
    page_remainder_miss: int = 0
    copy_to_user: int = 0
    copy_from_user: int = 0
    cong_update_queued: int = 0
    cong_update_received: int = 0
    cong_send_error: int = 0
    cong_send_blocked: int = 0
    recv_bytes_added_to_sock: int = 0
    recv_bytes_freed_fromsock: int = 0
    send_stuck_rm: int = 0
    mprds_catchup_tx0_retries: int = 0
    tcp_data_ready_calls: int = 0
    tcp_write_space_calls: int = 0
    tcp_sndbuf_full: int = 0
    tcp_connect_raced: int = 0
    tcp_listen_closed_stale: int = 0
    # Counters of urds alone.
    ack_sent: int = 0
    ack_received: int = 0
    send_retransmitted: int = 0
    send_cancelled: int = 0
    send_linger_over: int = 0  # of them, of sockets past their linger time
    send_given_up: int = 0
    recv_drop_control_full: int = 0
    recv_drop_too_long: int = 0
    recv_drop_bad_map: int = 0
    recv_drop_bad_ack: int = 0
    recv_drop_closed: int = 0
    recv_drop_notices_full: int = 0
    recv_paused: int = 0
    peer_restarted: int = 0
    progress_thread_passes: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return name and value of each, in the order of declaration."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
