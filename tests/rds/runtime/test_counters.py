"""Which counters a process has, under which names, and in which order."""

from types import SimpleNamespace
from typing import Any

from urds.rds.control.stats import RdmaStats
from urds.rds.plane.python.counters import Counters
from urds.rds.runtime.inprocess import with_rdma
from urds.rds.runtime.rdma import Rdma
from urds.rds.transports.rdma.counters import RdmaCounters

# Source: linux v6.12 net/rds/ib_stats.c; docs/reference/rds.md 5.3.
_TEXT = """
    ib_connect_raced ib_listen_closed_stale ib_evt_handler_call ib_tasklet_call ib_tx_cq_event
    ib_tx_ring_full ib_tx_throttle ib_tx_sg_mapping_failure ib_tx_stalled ib_tx_credit_updates
    ib_rx_cq_event ib_rx_ring_empty ib_rx_refill_from_cq ib_rx_refill_from_thread
    ib_rx_alloc_limit ib_rx_total_frags ib_rx_total_incs ib_rx_credit_updates
    ib_ack_sent ib_ack_send_failure ib_ack_send_delayed ib_ack_send_piggybacked ib_ack_received
    ib_rdma_mr_8k_alloc ib_rdma_mr_8k_free ib_rdma_mr_8k_used
    ib_rdma_mr_8k_pool_flush ib_rdma_mr_8k_pool_wait ib_rdma_mr_8k_pool_depleted
    ib_rdma_mr_1m_alloc ib_rdma_mr_1m_free ib_rdma_mr_1m_used
    ib_rdma_mr_1m_pool_flush ib_rdma_mr_1m_pool_wait ib_rdma_mr_1m_pool_depleted
    ib_rdma_mr_8k_reused ib_rdma_mr_1m_reused ib_atomic_cswp ib_atomic_fadd
"""
LINUX = _TEXT.split()


def rdma(counters: RdmaCounters, stats: RdmaStats) -> Rdma:
    """Return the RDMA of a process that counted so far."""
    made = Rdma(None)  # type: ignore[arg-type]  # its counters need no driver
    node: Any = SimpleNamespace(counters=counters, stats=stats, count_up=lambda: None)
    made.node = node
    return made


def test_all_counters_of_linux_are_there_in_its_order() -> None:
    counters = rdma(RdmaCounters(), RdmaStats()).counters()
    assert len(LINUX) == 39
    assert list(counters) == LINUX


def test_they_stand_behind_the_generic_ones_and_before_those_of_tcp() -> None:
    names = list(with_rdma(Counters().as_dict(), rdma(RdmaCounters(), RdmaStats()).counters()))
    first = names.index("ib_connect_raced")
    assert names[first - 1] == "mprds_catchup_tx0_retries"
    assert names[first : first + 39] == LINUX
    assert names[first + 39] == "tcp_data_ready_calls"
    assert len(names) == len(set(names)) == 39 + len(Counters().as_dict())


def test_without_rdma_there_are_none() -> None:
    unused = Rdma(None)  # type: ignore[arg-type]  # as above
    assert unused.node is None
    assert (unused.counters(), unused.own_counters()) == ({}, {})
    assert with_rdma({"conn_reset": 1, "tcp_x": 2}, {}) == {"conn_reset": 1, "tcp_x": 2}


def test_who_connects_counts_under_the_names_of_linux_or_ours() -> None:
    stats = RdmaStats(connects=5, connect_raced=2, listen_closed_stale=3, refused_version=4)
    made = rdma(RdmaCounters(ib_ack_sent=7), stats)
    counters, own = made.counters(), made.own_counters()
    assert (counters["ib_connect_raced"], counters["ib_listen_closed_stale"]) == (2, 3)
    assert counters["ib_ack_sent"] == 7
    assert (own["rdma_connects"], own["rdma_refused_version"]) == (5, 4)
    assert all(name.startswith("rdma_") for name in own)
    assert not {"rdma_connect_raced", "rdma_listen_closed_stale"} & set(own)
