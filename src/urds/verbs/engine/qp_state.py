"""States of a queue pair: the transitions, and which attributes each one needs.

A queue pair starts in RESET. INIT gives it rights (receives may be posted from here), RTR a peer
to receive from, RTS what sending needs. Every state leads to ERR, where all work is flushed, and
to RESET, where it is dropped. A failed send of a datagram queue pair leads to SQE, which stops
sending only; SQD stops it for a change of attributes.

A modify names the fields it sets in a mask. One bit missing or too many rejects it whole.
Source: docs/reference/verbs-and-roce.md 10; the optional bits after the table of the InfiniBand
specification, 1.3, section 10.3.1.
"""

import errno
from typing import Final, NamedTuple

from urds.verbs.engine.numbers import QPAttrMask as Mask
from urds.verbs.engine.numbers import QPState as State
from urds.verbs.engine.numbers import QPType


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
