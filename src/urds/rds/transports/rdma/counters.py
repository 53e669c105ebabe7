"""Counters of RDS over RDMA since the start.

What a message transport counts under the plane's names is in a `Counters` of its own; a snapshot
has the sums. The lock of the connections' cores guards them.

Source of names and meanings of `RdmaCounters`: linux v6.12 net/rds/ib_stats.c and net/rds/ib.h.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RdmaCounters:
    """Plain integers of one host, as rds-info prints them, in Linux's order.

    The shell adds under the lock of the connections' cores.
    Those of regions (ib_rdma_mr_*) belong to the region table and its lock. What concerns the
    kernel's pools, reused regions and workers never counts here.
    """

    ib_connect_raced: int = 0
    ib_listen_closed_stale: int = 0
    ib_evt_handler_call: int = 0
    ib_tasklet_call: int = 0
    ib_tx_cq_event: int = 0
    ib_tx_ring_full: int = 0
    ib_tx_throttle: int = 0  # a frame waited for a credit
    ib_tx_sg_mapping_failure: int = 0
    ib_tx_stalled: int = 0
    ib_tx_credit_updates: int = 0  # frames that granted credits
    ib_rx_cq_event: int = 0
    ib_rx_ring_empty: int = 0
    ib_rx_refill_from_cq: int = 0
    ib_rx_refill_from_thread: int = 0
    ib_rx_alloc_limit: int = 0
    ib_rx_total_frags: int = 0
    ib_rx_total_incs: int = 0
    ib_rx_credit_updates: int = 0  # frames that brought credits
    ib_ack_sent: int = 0
    ib_ack_send_failure: int = 0
    ib_ack_send_delayed: int = 0  # due while another one was on its way
    ib_ack_send_piggybacked: int = 0  # asked for, and carried by a message's header
    ib_ack_received: int = 0
    ib_rdma_mr_8k_alloc: int = 0
    ib_rdma_mr_8k_free: int = 0
    ib_rdma_mr_8k_used: int = 0
    ib_rdma_mr_8k_pool_flush: int = 0
    ib_rdma_mr_8k_pool_wait: int = 0
    ib_rdma_mr_8k_pool_depleted: int = 0
    ib_rdma_mr_1m_alloc: int = 0
    ib_rdma_mr_1m_free: int = 0
    ib_rdma_mr_1m_used: int = 0
    ib_rdma_mr_1m_pool_flush: int = 0
    ib_rdma_mr_1m_pool_wait: int = 0
    ib_rdma_mr_1m_pool_depleted: int = 0
    ib_rdma_mr_8k_reused: int = 0
    ib_rdma_mr_1m_reused: int = 0
    ib_atomic_cswp: int = 0
    ib_atomic_fadd: int = 0
