"""The C names of the numbers, as pyverbs' `enums` and `cm_enums` have them: `IBV_WR_SEND`.

    import urds.verbs.enums as e

Each is the member of our enum (`e.IBV_WR_SEND is WROpcode.SEND`). Type checkers read `enums.pyi`,
which `tools.stubs` writes. Numbers that libibverbs does not have, have no such name;
a few that no device supports are here, so that a program can ask and be refused with EOPNOTSUPP.
"""

from typing import Final

from urds.common.flat_names import FlatNames
from urds.verbs.cm_events import CMEventType
from urds.verbs.cm_parameters import RAI_NUMERICHOST, RAI_PASSIVE
from urds.verbs.engine.numbers import (
    MTU,
    AccessFlag,
    AsyncEventType,
    QPAttrMask,
    QPState,
    QPType,
    SendFlag,
    SRQAttrMask,
    UnsupportedAccessFlag,
    UnsupportedQPType,
    WCFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from urds.verbs.mr import MWType
from urds.verbs.providers.base import PortSpace

FLAT: Final = FlatNames()

FLAT.of("IBV_ACCESS_*")(AccessFlag)
FLAT.of("IBV_ACCESS_*")(UnsupportedAccessFlag)
FLAT.of("IBV_EVENT_*", QP_RECV_="")(AsyncEventType)
FLAT.of("IBV_*")(MTU)
FLAT.of("IBV_MW_*")(MWType)
FLAT.of("IBV_QPS_*")(QPState)
FLAT.of("IBV_QPT_*")(QPType)
FLAT.of("IBV_QPT_*")(UnsupportedQPType)
FLAT.of("IBV_QP_*")(QPAttrMask)
FLAT.of("IBV_SEND_*")(SendFlag)
FLAT.of("IBV_SRQ_*")(SRQAttrMask)
FLAT.of("IBV_WC_*")(WCFlag)
FLAT.of("IBV_WC_*")(WCOpcode)
FLAT.of("IBV_WC_*")(WCStatus)
FLAT.of("IBV_WR_*", MASKED_="")(WROpcode)
FLAT.of("RDMA_CM_EVENT_*")(CMEventType)
FLAT.of("RDMA_PS_*")(PortSpace)
FLAT.update(RAI_PASSIVE=RAI_PASSIVE, RAI_NUMERICHOST=RAI_NUMERICHOST)
globals().update(FLAT)

__all__ = [name for name in globals() if name in FLAT]
