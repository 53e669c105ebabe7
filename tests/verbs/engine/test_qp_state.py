"""The states of a queue pair: what leads where, with which attributes."""

import errno
import itertools

import pytest

from urds.verbs.engine.attributes import TRANSITIONS, check_modify, step
from urds.verbs.engine.numbers import QPAttrMask as Mask
from urds.verbs.engine.numbers import QPState as State
from urds.verbs.engine.numbers import QPType

RC, UD = QPType.RC, QPType.UD
# Source: docs/reference/verbs-and-roce.md 10.
REQUIRED = [
    (RC, State.RESET, State.INIT, Mask.PKEY_INDEX | Mask.PORT | Mask.ACCESS_FLAGS),
    (
        RC,
        State.INIT,
        State.RTR,
        Mask.AV
        | Mask.PATH_MTU
        | Mask.DEST_QPN
        | Mask.RQ_PSN
        | Mask.MAX_DEST_RD_ATOMIC
        | Mask.MIN_RNR_TIMER,
    ),
    (
        RC,
        State.RTR,
        State.RTS,
        Mask.SQ_PSN | Mask.MAX_QP_RD_ATOMIC | Mask.RETRY_CNT | Mask.RNR_RETRY | Mask.TIMEOUT,
    ),
    (UD, State.RESET, State.INIT, Mask.PKEY_INDEX | Mask.PORT | Mask.QKEY),
    (UD, State.INIT, State.RTR, Mask(0)),
    (UD, State.RTR, State.RTS, Mask.SQ_PSN),
]


@pytest.mark.parametrize(("qp_type", "state", "new_state", "required"), REQUIRED)
def test_each_required_bit_is_missed(
    qp_type: QPType, state: State, new_state: State, required: Mask
) -> None:
    check_modify(qp_type, state, Mask.STATE | required, new_state)
    for bit in required:
        with pytest.raises(OSError, match=f"missing {bit.name}") as refused:
            check_modify(qp_type, state, Mask.STATE | required & ~bit, new_state)
        assert refused.value.errno == errno.EINVAL


@pytest.mark.parametrize(("qp_type", "state", "new_state", "required"), REQUIRED)
def test_each_bit_that_does_not_belong_is_refused(
    qp_type: QPType, state: State, new_state: State, required: Mask
) -> None:
    found = step(qp_type, state, new_state)
    assert found is not None and found.required == required
    for bit in set(Mask) - {Mask.STATE} - set(found.required) - set(found.optional):
        with pytest.raises(OSError, match=f"superfluous {bit.name}"):
            check_modify(qp_type, state, Mask.STATE | required | bit, new_state)


def test_an_unknown_bit_is_named() -> None:
    with pytest.raises(OSError, match="superfluous 0x40000000"):
        check_modify(UD, State.INIT, Mask.STATE | Mask(1 << 30), State.RTR)


def test_missing_and_superfluous_bits_are_told_together() -> None:
    with pytest.raises(OSError, match=r"RESET to INIT: missing .*PORT; superfluous .*SQ_PSN"):
        check_modify(RC, State.RESET, Mask.STATE | Mask.SQ_PSN, State.INIT)


@pytest.mark.parametrize("qp_type", [RC, UD])
@pytest.mark.parametrize("state", list(State))
def test_every_state_leads_to_error_and_to_reset(qp_type: QPType, state: State) -> None:
    check_modify(qp_type, state, Mask.STATE, State.ERR)
    check_modify(qp_type, state, Mask.STATE, State.RESET)


@pytest.mark.parametrize("qp_type", [RC, UD])
def test_all_other_ways_are_closed(qp_type: QPType) -> None:
    for state, new_state in itertools.product(State, State):
        open_way = (
            new_state in (State.ERR, State.RESET) or (state, new_state) in TRANSITIONS[qp_type]
        )
        if not open_way:
            with pytest.raises(OSError, match="no such transition"):
                check_modify(qp_type, state, Mask.STATE, new_state)


def test_only_a_datagram_queue_pair_recovers_from_a_send_error() -> None:
    check_modify(UD, State.SQE, Mask.STATE | Mask.CUR_STATE, State.RTS)
    with pytest.raises(OSError, match="no such transition"):
        check_modify(RC, State.SQE, Mask.STATE, State.RTS)


def test_attributes_of_a_running_queue_pair_change_without_the_state_bit() -> None:
    check_modify(RC, State.RTS, Mask.MIN_RNR_TIMER, State.RTS)
    with pytest.raises(OSError, match="superfluous TIMEOUT"):
        check_modify(RC, State.RTS, Mask.TIMEOUT, State.RTS)
    with pytest.raises(OSError, match="lacks STATE"):
        check_modify(RC, State.RTS, Mask(0), State.SQD)
