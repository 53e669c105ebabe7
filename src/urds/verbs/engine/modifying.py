"""Values of attributes: which ones a modify may carry, and how it takes them over."""

import errno
from typing import Final

from urds.verbs.engine.attributes import QPAttr
from urds.verbs.engine.numbers import MTU, PSN_MASK, QPAttrMask, QPState

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
    """Accept the values that a mask names. Raises OSError: EINVAL."""
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
    """Take over the values that a mask names."""
    bits = int(mask)
    for bit, name, _ in _FIELDS:
        if bit & bits:
            setattr(own, name, getattr(given, name))


_MTUS: Final = {int(code) for code in MTU}
