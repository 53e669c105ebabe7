"""What one queue pair keeps, and does, for a peer that breaks the rules has a limit."""

import time

import pytest

from tests.sim.verbs_pair import MTU_BYTES
from tests.verbs.engine.verbs_sides import (
    LOSSLESS,
    LOSSY,
    add,
    answer,
    answers,
    done,
    make_answering,
    make_asking,
    psns,
    read,
    write,
)
from urds.dat.registry import ConfError, parse_conf
from urds.verbs.engine.numbers import PSN_MASK, QPState, ReceiveOrder, WCStatus
from urds.verbs.engine.packets import Syndrome
from urds.verbs.engine.queue_pair import LinkTraits
from urds.verbs.engine.responder import ANSWERS_MAX

OK, FLUSHED = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR


def test_ranges_of_any_width_cost_no_time() -> None:
    """Walks through what waits, not through the 4 million numbers that an answer names."""
    side = make_asking()
    first = 100 - (1 << 22) & PSN_MASK
    began_s = time.thread_time()
    answer(side, first, selective=((first, 99),) * 8)
    assert time.thread_time() - began_s < 0.1
    side.send(1)
    side.send(2)
    assert psns(side) == [100, 101]
    answer(side, 99, selective=((101, 99 + (1 << 22)),))
    answer(side, 100)
    assert done(side) == [(1, OK), (2, OK)]


def test_a_read_over_numbers_that_came_ahead_leaves_nothing_of_them() -> None:
    """Its answers take the numbers that two writes claim: they are never next."""
    side = make_answering(receive_order=ReceiveOrder.ARRIVAL_ORDER)
    ahead = [write(side, psn, 0, b"x") for psn in (101, 102, 103)]
    answers(side, *ahead, read(side, 100, 0, 3 * MTU_BYTES))
    (ack,) = answers(side, write(side, 106, 0, b"x"))
    assert (ack.psn, ack.selective) == (103, ((106, 106),))


def test_a_read_that_grows_when_repeated_leaves_nothing_of_them() -> None:
    side = make_answering(receive_order=ReceiveOrder.ARRIVAL_ORDER)
    answers(side, read(side, 100, 0, 10))
    answers(side, write(side, 102, 0, b"x"), read(side, 100, 0, 4 * MTU_BYTES))
    (ack,) = answers(side, write(side, 106, 0, b"x"))
    assert (ack.psn, ack.selective) == (103, ((106, 106),))


@pytest.mark.parametrize("link", [LOSSY, LOSSLESS])
def test_answers_that_are_not_read_are_bounded(link: LinkTraits) -> None:
    side = make_answering(link=link)
    said = answers(side, *[add(side, 100 + index, 0, 1) for index in range(ANSWERS_MAX + 50)])
    assert len(said) <= ANSWERS_MAX + 1
    assert int.from_bytes(side.memory[:8], "little") == ANSWERS_MAX
    # Without loss no side retransmits what was dropped: the peer hears that it broke the rules.
    if link.lossless:
        assert said[-1].syndrome == Syndrome.NAK_INVALID_REQUEST
        assert side.qp.state is QPState.ERR
    else:
        assert side.qp.state is QPState.RTS


def test_a_line_of_many_fields_costs_no_time() -> None:
    began_s = time.thread_time()
    with pytest.raises(ConfError, match="more than 8 fields"):
        parse_conf("a " * (1 << 18))
    assert time.thread_time() - began_s < 0.1
