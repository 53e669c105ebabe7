"""The numbers against Python's own socket module, and the helpers of rds.h."""

import socket
import sys

import pytest

from urds.rds import constants

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the numbers are Linux's")
SHARED = [
    name
    for name in vars(constants)
    if name.isupper() and isinstance(getattr(socket, name, None), int)
]


@linux_only
@pytest.mark.parametrize("name", SHARED)
def test_a_name_of_the_socket_module_has_its_number(name: str) -> None:
    assert getattr(constants, name) == getattr(socket, name)


@linux_only
def test_the_socket_module_knows_the_family() -> None:
    assert {"AF_RDS", "PF_RDS", "SOL_RDS", "SOCK_SEQPACKET", "MSG_DONTWAIT"} <= set(SHARED)


@pytest.mark.rule("rds7-monitor-macros")
@pytest.mark.parametrize(
    ("port", "bit"), [(0, 0), (1, 1), (63, 63), (64, 0), (4000, 32), (65535, 63)]
)
def test_the_monitor_groups_ports_by_64(port: int, bit: int) -> None:
    assert constants.RDS_CONG_MONITOR_BIT(port) == bit
    assert constants.RDS_CONG_MONITOR_MASK(port) == 1 << bit


@pytest.mark.parametrize(
    ("flat", "number"),
    [
        ("RDS_CANCEL_SENT_TO", 1),
        ("RDS_RECVERR", 5),
        ("RDS_CONG_MONITOR", 6),
        ("SO_RDS_TRANSPORT", 8),
        ("RDS_INFO_COUNTERS", 10000),
        ("RDS_INFO_LAST", 10017),
        ("RDS_CMSG_CONG_UPDATE", 5),
        ("RDS_CMSG_ZCOPY_COMPLETION", 13),
        ("RDS_TRANS_TCP", 2),
        ("RDS_TRANS_NONE", 0xFFFFFFFF),
        ("RDS_FLAG_RETRANSMITTED", 4),
        ("RDS_EXTHDR_SPORT_IDX", 8),
        ("RDS_RDMA_SILENT", 0x40),
        ("RDS_RDMA_DROPPED", 3),
        ("SIOCRDSSETTOS", 0x89E0),
        ("RDS_TCP_PORT", 16385),
    ],
)
def test_a_flat_name_has_the_number_of_rds_h(flat: str, number: int) -> None:
    assert getattr(constants, flat) == number
