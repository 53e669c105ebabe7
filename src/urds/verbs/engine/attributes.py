"""Attributes of a queue pair: what its link is like, what it holds, what a modify sets."""

from dataclasses import dataclass, field
from typing import Any

from urds.verbs.engine.numbers import AccessFlag, QPState

_NO_ACCESS = AccessFlag(0)


@dataclass(frozen=True, slots=True)
class LinkTraits:
    """What a provider promises about the way between two queue pairs.

    mtu_bytes: payload of a packet at most.  lossless: packets arrive once and in order, so that
    loss is not looked for, and a read takes one PSN whatever its length.  repeats: a packet to a
    queue pair that is not there is dropped, so what is not answered in time is sent again; false
    for a stream, which ends with the queue pair.
    """

    mtu_bytes: int
    lossless: bool
    repeats: bool = True


@dataclass(slots=True)
class QPCap:
    """Capacities of a queue pair: work requests, pieces of one, octets of inline data."""

    max_send_wr: int = 16
    max_recv_wr: int = 16
    max_send_sge: int = 4
    max_recv_sge: int = 4
    max_inline_data: int = 236


@dataclass(slots=True)
class QPAttr:
    """Attributes of a queue pair; a modify means those that its mask names.

    path_mtu: a code of `MTU`, `None` for the link's own; the engine takes the smaller of both.
    min_rnr_timer: code of `RNR_TIMER_NS` that this side answers when it has no receive.
    timeout: exponent, 4.096 us << timeout is the longest wait for an answer; 0 waits for ever.
    ah_attr: the peer's `AddressVector`; `urds.verbs.QP` also takes an `AHAttr` or `AH`.
    retry_cnt: 0 to 7.  rnr_retry: 0 to 6, 7 is forever.
    """

    qp_state: QPState = QPState.RESET
    cur_qp_state: QPState = QPState.RESET
    qp_access_flags: AccessFlag = _NO_ACCESS
    path_mtu: int | None = None
    dest_qp_num: int = 0
    rq_psn: int = 0
    sq_psn: int = 0
    max_rd_atomic: int = 0
    max_dest_rd_atomic: int = 0
    min_rnr_timer: int = 0
    timeout: int = 0
    retry_cnt: int = 0
    rnr_retry: int = 0
    qkey: int = 0
    ah_attr: Any = None
    pkey_index: int = 0
    port_num: int = 1
    cap: QPCap = field(default_factory=QPCap)
