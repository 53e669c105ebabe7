"""Attributes and states of a queue pair, the traits of its link, and what a modify checks and sets.

A queue pair starts in RESET. INIT gives it rights (receives may be posted from here), RTR a peer
to receive from, RTS what sending needs. Every state leads to ERR, where all work is flushed, and
to RESET, where it is dropped. A failed send of a datagram queue pair leads to SQE, which stops
sending only; SQD stops it for a change of attributes.

A modify names the fields it sets in a mask. One bit missing or too many rejects it whole.
Source: docs/reference/verbs-and-roce.md 10; the optional bits after the table of the InfiniBand
specification, 1.3, section 10.3.1.
"""

import errno
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, NamedTuple

from urds.verbs.engine.numbers import MTU, PSN_MASK, AccessFlag, QPType
from urds.verbs.engine.numbers import QPAttrMask as Mask
from urds.verbs.engine.numbers import QPState as State

_NO_ACCESS = AccessFlag(0)


@dataclass(frozen=True, slots=True)
class LinkTraits:
    """What a provider guarantees about the path between two queue pairs.

    mtu_bytes: payload of a packet at most.  lossless: packets arrive once and in order, so that
    loss is not detected, and a read takes one PSN whatever its length.  retries: a packet to a
    queue pair that does not exist is dropped, so unanswered ones are retried; false for a stream,
    which ends with the queue pair.  names_places: each packet names its message, its offset in it
    and, of a write, its target. False as in InfiniBand and RoCE, where a write names target and
    length in its first packet alone: the responder derives the rest, in order only, and packets
    before the last of a message hold exactly the path's MTU.  acks_wait: acknowledgements ride on
    packets that go to the peer anyway, and the provider says when one has to go alone
    (`QueuePair.hurry_ack`).
    """

    mtu_bytes: int
    lossless: bool
    retries: bool = True
    names_places: bool = True
    acks_wait: bool = False


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

    qp_state: State = State.INIT
    cur_qp_state: State = State.RESET
    _: KW_ONLY
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
_NAMED: Final[dict[Mask, tuple[str, int | None]]] = {
    Mask.ACCESS_FLAGS: ("qp_access_flags", None),
    Mask.PKEY_INDEX: ("pkey_index", 0xFFFF),
    Mask.PORT: ("port_num", 0xFF),
    Mask.QKEY: ("qkey", 0xFFFF_FFFF),
    Mask.AV: ("ah_attr", None),
    Mask.PATH_MTU: ("path_mtu", None),
    Mask.TIMEOUT: ("timeout", 31),
    Mask.RETRY_CNT: ("retry_cnt", 7),
    Mask.RNR_RETRY: ("rnr_retry", 7),
    Mask.RQ_PSN: ("rq_psn", PSN_MASK),
    Mask.MAX_QP_RD_ATOMIC: ("max_rd_atomic", READS_MAX),
    Mask.MIN_RNR_TIMER: ("min_rnr_timer", 31),
    Mask.SQ_PSN: ("sq_psn", PSN_MASK),
    Mask.MAX_DEST_RD_ATOMIC: ("max_dest_rd_atomic", READS_MAX),
    Mask.DEST_QPN: ("dest_qp_num", PSN_MASK),
}


# As plain numbers: each connection asks for all of them three times.
_FIELDS: Final = [(int(bit), name, most) for bit, (name, most) in _NAMED.items()]


def check_values(attr: QPAttr, mask: Mask, state: State) -> None:
    """Check the values that a mask names. Raises OSError: EINVAL."""
    if Mask.CUR_STATE in mask and attr.cur_qp_state is not state:
        raise OSError(
            errno.EINVAL, f"cur_qp_state {attr.cur_qp_state.name}, the state is {state.name}"
        )
    bits = int(mask)
    for bit, name, most in _FIELDS:
        if bit & bits and most is not None and not 0 <= getattr(attr, name) <= most:
            raise OSError(errno.EINVAL, f"{name} {getattr(attr, name)}, from 0 to {most}")
    if Mask.PATH_MTU in mask and attr.path_mtu is not None and attr.path_mtu not in _MTUS:
        raise OSError(errno.EINVAL, f"path_mtu {attr.path_mtu}, a code from 1 to 5")


def adopt(own: QPAttr, given: QPAttr, mask: Mask) -> None:
    """Copy the values that a mask names."""
    bits = int(mask)
    for bit, name, _ in _FIELDS:
        if bit & bits:
            setattr(own, name, getattr(given, name))


_MTUS: Final = {int(code) for code in MTU}


class Transition(NamedTuple):
    """The attributes that a transition requires and allows; STATE itself is implied."""

    required: Mask = Mask(0)
    optional: Mask = Mask(0)


_RIGHTS: Final = Mask.PKEY_INDEX | Mask.PORT | Mask.ACCESS_FLAGS
_DATAGRAM_RIGHTS: Final = Mask.PKEY_INDEX | Mask.PORT | Mask.QKEY
_RUNNING: Final = Transition(optional=Mask.CUR_STATE | Mask.ACCESS_FLAGS | Mask.MIN_RNR_TIMER)
_DATAGRAM_RUNNING: Final = Transition(optional=Mask.CUR_STATE | Mask.QKEY)

_CONNECTED: Final[dict[tuple[State, State], Transition]] = {
    (State.RESET, State.INIT): Transition(_RIGHTS),
    (State.INIT, State.INIT): Transition(optional=_RIGHTS),
    (State.INIT, State.RTR): Transition(
        Mask.AV | Mask.PATH_MTU | Mask.DEST_QPN | Mask.RQ_PSN
        | Mask.MAX_DEST_RD_ATOMIC | Mask.MIN_RNR_TIMER,
        Mask.ACCESS_FLAGS | Mask.PKEY_INDEX,
    ),
    (State.RTR, State.RTS): Transition(
        Mask.SQ_PSN | Mask.MAX_QP_RD_ATOMIC | Mask.RETRY_CNT | Mask.RNR_RETRY | Mask.TIMEOUT,
        _RUNNING.optional,
    ),
    (State.RTS, State.RTS): _RUNNING,
    (State.RTS, State.SQD): Transition(),
    (State.SQD, State.RTS): _RUNNING,
    (State.SQD, State.SQD): Transition(
        optional=_RIGHTS | Mask.AV | Mask.MAX_QP_RD_ATOMIC | Mask.MAX_DEST_RD_ATOMIC
        | Mask.RETRY_CNT | Mask.RNR_RETRY | Mask.TIMEOUT | Mask.MIN_RNR_TIMER
    ),
}  # fmt: skip

_DATAGRAM: Final[dict[tuple[State, State], Transition]] = {
    (State.RESET, State.INIT): Transition(_DATAGRAM_RIGHTS),
    (State.INIT, State.INIT): Transition(optional=_DATAGRAM_RIGHTS),
    (State.INIT, State.RTR): Transition(optional=Mask.PKEY_INDEX | Mask.QKEY),
    (State.RTR, State.RTS): Transition(Mask.SQ_PSN, _DATAGRAM_RUNNING.optional),
    (State.RTS, State.RTS): _DATAGRAM_RUNNING,
    (State.RTS, State.SQD): Transition(),
    (State.SQD, State.RTS): _DATAGRAM_RUNNING,
    (State.SQD, State.SQD): Transition(optional=Mask.PKEY_INDEX | Mask.QKEY),
    (State.SQE, State.RTS): _DATAGRAM_RUNNING,
}

TRANSITIONS: Final = {QPType.RC: _CONNECTED, QPType.UD: _DATAGRAM}


def step(qp_type: QPType, state: State, new_state: State) -> Transition | None:
    """Return what a transition needs, `None` if there is no such transition."""
    if new_state in (State.RESET, State.ERR):
        return Transition()
    return TRANSITIONS[qp_type].get((state, new_state))


def check_modify(qp_type: QPType, state: State, attr_mask: Mask, new_state: State) -> None:
    """Raise OSError (EINVAL) for a modify that is not allowed: no such transition, or wrong bits.

    `new_state` is `state` without STATE. The message names the bits that are missing or
    superfluous.
    """
    move = f"{qp_type.name} queue pair from {state.name} to {new_state.name}"
    found = step(qp_type, state, new_state)
    if found is None:
        raise OSError(errno.EINVAL, f"{move}: no such transition")
    if new_state is not state and Mask.STATE not in attr_mask:
        raise OSError(errno.EINVAL, f"{move}: the mask lacks STATE")
    # As plain numbers: the complement of a flag has no bits that the enum does not know.
    bits, required = int(attr_mask), int(found.required)
    missing = required & ~bits
    superfluous = bits & ~(required | int(found.optional) | int(Mask.STATE))
    if missing or superfluous:
        faults = [
            f"{what} {_names(Mask(mask))}"
            for what, mask in (("missing", missing), ("superfluous", superfluous))
            if mask
        ]
        raise OSError(errno.EINVAL, f"{move}: {'; '.join(faults)}")


def _names(mask: Mask) -> str:
    known = [bit.name or "" for bit in Mask if bit in mask]
    unknown = int(mask) & ~sum(Mask)
    return ", ".join([*known, *([f"{unknown:#x}"] if unknown else [])])
