"""The C names of the numbers, for programs written for pyverbs' `enums`."""

from enum import Enum, IntEnum, IntFlag

import pytest

import urds.verbs.enums as e
from urds import verbs
from urds.verbs.engine import numbers

# Numbers that libibverbs does not have.
OURS = {
    "MASKED_ATOMIC_CMP_AND_SWP",
    "MASKED_ATOMIC_FETCH_AND_ADD",
    "QP_RECV_SOFT_WATERMARK",
    "QP_RECV_HARD_WATERMARK",
}


@pytest.mark.parametrize(
    ("name", "member", "number"),
    [
        ("IBV_WR_SEND", verbs.WROpcode.SEND, 2),
        ("IBV_ACCESS_LOCAL_WRITE", verbs.AccessFlag.LOCAL_WRITE, 1),
        ("IBV_QPT_UD", verbs.QPType.UD, 4),
        ("IBV_QPS_RTS", verbs.QPState.RTS, 3),
        ("IBV_QP_DEST_QPN", verbs.QPAttrMask.DEST_QPN, 1 << 20),
        ("IBV_SEND_SIGNALED", verbs.SendFlag.SIGNALED, 2),
        ("IBV_WC_SUCCESS", verbs.WCStatus.SUCCESS, 0),
        ("IBV_WC_RECV", verbs.WCOpcode.RECV, 128),
        ("IBV_WC_GRH", verbs.WCFlag.GRH, 1),
        ("IBV_MTU_1024", verbs.MTU.MTU_1024, 3),
        ("IBV_MW_TYPE_2", verbs.MWType.TYPE_2, 2),
        ("IBV_SRQ_LIMIT", verbs.SRQAttrMask.LIMIT, 2),
        ("IBV_EVENT_SQ_DRAINED", verbs.AsyncEventType.SQ_DRAINED, 5),
        ("RDMA_CM_EVENT_ESTABLISHED", verbs.CMEventType.ESTABLISHED, 9),
        ("RDMA_PS_TCP", verbs.PortSpace.TCP, 0x106),
    ],
)
def test_a_c_name_is_the_member_of_our_enum(name: str, member: Enum, number: int) -> None:
    assert getattr(e, name) is member
    assert member.value == number


def test_each_number_of_the_interface_has_its_c_name() -> None:
    """Two families share a prefix (`IBV_WC_`): no name may stand for two numbers."""
    families = [
        family
        for family in vars(numbers).values()
        if isinstance(family, type)
        and issubclass(family, (IntEnum, IntFlag))
        and family not in {IntEnum, IntFlag, verbs.ReceiveOrder}
    ]
    members = [member for family in families for member in family if member.name not in OURS]
    named = {id(member) for member in e.FLAT.values()}
    assert [member for member in members if id(member) not in named] == []


def test_a_star_brings_c_names_only() -> None:
    brought: dict[str, object] = {}
    exec("from urds.verbs.enums import *", brought)
    del brought["__builtins__"]
    assert brought == e.FLAT
    assert all(name.startswith(("IBV_", "RDMA_", "RAI_")) for name in brought)
