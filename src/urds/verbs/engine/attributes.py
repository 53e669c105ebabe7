"""Attributes of a queue pair, the traits of its link, and what a modify checks and sets."""

import errno
from dataclasses import dataclass, field
from typing import Any, Final

from urds.verbs.engine.numbers import MTU, PSN_MASK, AccessFlag, QPAttrMask, QPState

_NO_ACCESS = AccessFlag(0)


@dataclass(frozen=True, slots=True)
class LinkTraits:
    """What a provider guarantees about the path between two queue pairs.

    mtu_bytes: payload of a packet at most.  lossless: packets arrive once and in order, so that
    loss is not detected, and a read takes one PSN whatever its length.  retries: a packet to a
    queue pair that does not exist is dropped, so unanswered ones are retried; false for a stream,
    which ends with the queue pair.
    """

    mtu_bytes: int
    lossless: bool
    retries: bool = True


@dataclass(slots=True)
class QPCap:
    """Capacities of a queue pair: work requests, pieces of one, bytes of inline data."""

    max_send_wr: int = 16
    max_recv_wr: int = 16
    max_send_sge: int = 4
    max_recv_sge: int = 4
    max_inline_data: int = 236


@dataclass(slots=True)
class QPAttr:
    """Attributes of a queue pair; a modify sets those that its mask names.

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


READS_MAX: Final = 128  # outstanding reads and atomics, in either direction

# Attribute of each mask bit, and the highest value of those that are plain numbers.
_NAMED: Final[dict[QPAttrMask, tuple[str, int | None]]] = {
    QPAttrMask.ACCESS_FLAGS: ("qp_access_flags", None),
    QPAttrMask.PKEY_INDEX: ("pkey_index", 0xFFFF),
    QPAttrMask.PORT: ("port_num", 0xFF),
    QPAttrMask.QKEY: ("qkey", 0xFFFF_FFFF),
    QPAttrMask.AV: ("ah_attr", None),
    QPAttrMask.PATH_MTU: ("path_mtu", None),
    QPAttrMask.TIMEOUT: ("timeout", 31),
    QPAttrMask.RETRY_CNT: ("retry_cnt", 7),
    QPAttrMask.RNR_RETRY: ("rnr_retry", 7),
    QPAttrMask.RQ_PSN: ("rq_psn", PSN_MASK),
    QPAttrMask.MAX_QP_RD_ATOMIC: ("max_rd_atomic", READS_MAX),
    QPAttrMask.MIN_RNR_TIMER: ("min_rnr_timer", 31),
    QPAttrMask.SQ_PSN: ("sq_psn", PSN_MASK),
    QPAttrMask.MAX_DEST_RD_ATOMIC: ("max_dest_rd_atomic", READS_MAX),
    QPAttrMask.DEST_QPN: ("dest_qp_num", PSN_MASK),
}


# As plain numbers: each connection asks for all of them three times.
_FIELDS: Final = [(int(bit), name, most) for bit, (name, most) in _NAMED.items()]


def check_values(attr: QPAttr, mask: QPAttrMask, state: QPState) -> None:
    """Check the values that a mask names. Raises OSError: EINVAL."""
    if QPAttrMask.CUR_STATE in mask and attr.cur_qp_state is not state:
        raise OSError(
            errno.EINVAL, f"cur_qp_state {attr.cur_qp_state.name}, the state is {state.name}"
        )
    bits = int(mask)
    for bit, name, most in _FIELDS:
        if bit & bits and most is not None and not 0 <= getattr(attr, name) <= most:
            raise OSError(errno.EINVAL, f"{name} {getattr(attr, name)}, from 0 to {most}")
    if QPAttrMask.PATH_MTU in mask and attr.path_mtu is not None and attr.path_mtu not in _MTUS:
        raise OSError(errno.EINVAL, f"path_mtu {attr.path_mtu}, a code from 1 to 5")


def adopt(own: QPAttr, given: QPAttr, mask: QPAttrMask) -> None:
    """Copy the values that a mask names."""
    bits = int(mask)
    for bit, name, _ in _FIELDS:
        if bit & bits:
            setattr(own, name, getattr(given, name))


_MTUS: Final = {int(code) for code in MTU}
