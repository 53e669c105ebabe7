"""Software verbs: the objects that RDMA programs stand on, without RDMA hardware.

Names and habits are pyverbs'. An opened device is a `Context`; `PD`, `MR`, `CQ`, `QP` and the rest
are made from it, are context managers, and may be closed in any order. All calls are safe from any
thread. Source: docs/reference/verbs-and-roce.md 18.
"""

from urds.verbs.cm_events import CMError, CMEvent, CMEventChannel, CMEventType
from urds.verbs.cm_parameters import RAI_PASSIVE, AddrInfo, ConnParam
from urds.verbs.cmid import CMID
from urds.verbs.context import AH, GID, PD, AHAttr, AsyncEvent, Context, GlobalRoute, PortAttr
from urds.verbs.cq import CQ, CompChannel
from urds.verbs.device import Device, get_device_list
from urds.verbs.engine.attributes import QPAttr, QPCap
from urds.verbs.engine.numbers import (
    MTU,
    AccessFlag,
    AsyncEventType,
    QPAttrMask,
    QPState,
    QPType,
    ReceiveOrder,
    SendFlag,
    SRQAttrMask,
    WCFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.work import AddressVector
from urds.verbs.errors import (
    VerbsArgumentError,
    VerbsClosedError,
    VerbsError,
    VerbsNotSupportedError,
    VerbsPostError,
    VerbsTimeoutError,
)
from urds.verbs.mr import MR, MW, MWBind, MWBindInfo, MWType
from urds.verbs.providers.base import DeviceAttributes, PortSpace
from urds.verbs.qp import QP, SRQ, QPInitAttr, SrqAttr, SrqInitAttr
from urds.verbs.records import SGE, WC, RecvWR, SendWR

__all__ = [
    "AH",
    "CMID",
    "CQ",
    "GID",
    "MR",
    "MTU",
    "MW",
    "PD",
    "QP",
    "RAI_PASSIVE",
    "SGE",
    "SRQ",
    "WC",
    "AHAttr",
    "AccessFlag",
    "AddrInfo",
    "AddressVector",
    "AsyncEvent",
    "AsyncEventType",
    "CMError",
    "CMEvent",
    "CMEventChannel",
    "CMEventType",
    "CompChannel",
    "ConnParam",
    "Context",
    "Device",
    "DeviceAttributes",
    "GlobalRoute",
    "MWBind",
    "MWBindInfo",
    "MWType",
    "PortAttr",
    "PortSpace",
    "QPAttr",
    "QPAttrMask",
    "QPCap",
    "QPInitAttr",
    "QPState",
    "QPType",
    "ReceiveOrder",
    "RecvWR",
    "SRQAttrMask",
    "SendFlag",
    "SendWR",
    "SrqAttr",
    "SrqInitAttr",
    "VerbsArgumentError",
    "VerbsClosedError",
    "VerbsError",
    "VerbsNotSupportedError",
    "VerbsPostError",
    "VerbsTimeoutError",
    "WCFlag",
    "WCOpcode",
    "WCStatus",
    "WROpcode",
    "get_device_list",
]
