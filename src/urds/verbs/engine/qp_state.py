"""States of a queue pair: what leads where, and which attributes each step needs.

A queue pair is born in RESET. INIT gives it rights (receives may be posted from here), RTR a peer
to receive from, RTS what sending needs. Every state leads to ERR, where all work ends flushed, and
to RESET, where it vanishes. A failed send of a datagram queue pair leads to SQE, which stops
sending only; SQD stops it for a change of attributes.

A modify names the fields it means in a mask. One bit missing or too many refuses it whole.
Source: verbs-and-roce.md section 10; the optional bits after the table of the InfiniBand
specification, 1.3, section 10.3.1.
"""

import errno
from typing import Final, NamedTuple

from urds.verbs.engine.numbers import QPAttrMask as Mask
from urds.verbs.engine.numbers import QPState as State
from urds.verbs.engine.numbers import QPType


class Step(NamedTuple):
    """What a transition needs and what it may have beside; STATE itself is understood."""

    required: Mask = Mask(0)
    optional: Mask = Mask(0)


_RIGHTS: Final = Mask.PKEY_INDEX | Mask.PORT | Mask.ACCESS_FLAGS
_DATAGRAM_RIGHTS: Final = Mask.PKEY_INDEX | Mask.PORT | Mask.QKEY
_RUNNING: Final = Step(optional=Mask.CUR_STATE | Mask.ACCESS_FLAGS | Mask.MIN_RNR_TIMER)
_DATAGRAM_RUNNING: Final = Step(optional=Mask.CUR_STATE | Mask.QKEY)

_CONNECTED: Final[dict[tuple[State, State], Step]] = {
    (State.RESET, State.INIT): Step(_RIGHTS),
    (State.INIT, State.INIT): Step(optional=_RIGHTS),
    (State.INIT, State.RTR): Step(
        Mask.AV | Mask.PATH_MTU | Mask.DEST_QPN | Mask.RQ_PSN
        | Mask.MAX_DEST_RD_ATOMIC | Mask.MIN_RNR_TIMER,
        Mask.ACCESS_FLAGS | Mask.PKEY_INDEX,
    ),
    (State.RTR, State.RTS): Step(
        Mask.SQ_PSN | Mask.MAX_QP_RD_ATOMIC | Mask.RETRY_CNT | Mask.RNR_RETRY | Mask.TIMEOUT,
        _RUNNING.optional,
    ),
    (State.RTS, State.RTS): _RUNNING,
    (State.RTS, State.SQD): Step(),
    (State.SQD, State.RTS): _RUNNING,
    (State.SQD, State.SQD): Step(
        optional=_RIGHTS | Mask.AV | Mask.MAX_QP_RD_ATOMIC | Mask.MAX_DEST_RD_ATOMIC
        | Mask.RETRY_CNT | Mask.RNR_RETRY | Mask.TIMEOUT | Mask.MIN_RNR_TIMER
    ),
}  # fmt: skip

_DATAGRAM: Final[dict[tuple[State, State], Step]] = {
    (State.RESET, State.INIT): Step(_DATAGRAM_RIGHTS),
    (State.INIT, State.INIT): Step(optional=_DATAGRAM_RIGHTS),
    (State.INIT, State.RTR): Step(optional=Mask.PKEY_INDEX | Mask.QKEY),
    (State.RTR, State.RTS): Step(Mask.SQ_PSN, _DATAGRAM_RUNNING.optional),
    (State.RTS, State.RTS): _DATAGRAM_RUNNING,
    (State.RTS, State.SQD): Step(),
    (State.SQD, State.RTS): _DATAGRAM_RUNNING,
    (State.SQD, State.SQD): Step(optional=Mask.PKEY_INDEX | Mask.QKEY),
    (State.SQE, State.RTS): _DATAGRAM_RUNNING,
}

TRANSITIONS: Final = {QPType.RC: _CONNECTED, QPType.UD: _DATAGRAM}


def step(qp_type: QPType, state: State, new_state: State) -> Step | None:
    """Return what a transition needs, `None` if there is no such transition."""
    if new_state in (State.RESET, State.ERR):
        return Step()
    return TRANSITIONS[qp_type].get((state, new_state))


def check_modify(qp_type: QPType, state: State, attr_mask: Mask, new_state: State) -> None:
    """Accept a modify or say what is wrong with it. `new_state` is `state` without STATE.

    Raises OSError (EINVAL): no such transition, or the bits that are missing or too many.
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
