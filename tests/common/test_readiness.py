"""The descriptor shows what its owner says, whatever interrupts the showing."""

import select
from collections.abc import Iterator
from itertools import count

import pytest

from tests.rds.sockets.interrupting import Interruption, raising
from urds.common.readiness import ReadinessDescriptor

READABLE, WRITABLE = select.POLLIN, select.POLLOUT
STATES = [(False, True), (True, True), (True, False), (False, False)]


class Owner:
    """Says what is to be shown, and looks at what is."""

    def __init__(self) -> None:
        self.state = (False, True)
        self.descriptor = ReadinessDescriptor(lambda: self.state)

    def show(self, state: tuple[bool, bool]) -> None:
        self.state = state
        self.descriptor.sync()

    def shown(self) -> tuple[bool, bool]:
        poll = select.poll()
        poll.register(self.descriptor.fileno(), READABLE | WRITABLE)
        ready = dict(poll.poll(0)).get(self.descriptor.fileno(), 0)
        return bool(ready & READABLE), bool(ready & WRITABLE)


@pytest.fixture
def owner() -> Iterator[Owner]:
    made = Owner()
    yield made
    made.descriptor.close()


@pytest.mark.parametrize("then", [0, 1, 3], ids=lambda then: f"then {then}")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("before", STATES)
def test_an_interrupted_change_is_shown_and_leaves_nothing_behind(
    owner: Owner, before: tuple[bool, bool], state: tuple[bool, bool], then: int
) -> None:
    """At once after one handler that raises; after two by the next change at the latest."""
    for at in count(1):
        owner.show(before)
        assert owner.shown() == before
        with Interruption(at, raising, then=then) as interruption:
            owner.show(state)
        if then or at == 1:  # the first look is before the call has begun
            owner.descriptor.sync()
        assert owner.shown() == state, interruption.positions
        for each in STATES:
            owner.show(each)
            assert owner.shown() == each, interruption.positions
        if not interruption.fired:
            break


@pytest.mark.parametrize("state", STATES)
def test_a_handler_changes_it_in_the_middle_of_a_change(
    owner: Owner, state: tuple[bool, bool]
) -> None:
    for at in count(1):
        owner.show((False, True))

        def handle(_: object) -> None:
            owner.show(state)

        with Interruption(at, handle) as interruption:
            owner.show((True, False))
        if interruption.fired:
            assert owner.shown() == owner.state, interruption.positions
        else:
            break


def test_a_handler_closes_it_in_the_middle_of_a_change() -> None:
    for at in count(1):
        owner = Owner()
        with Interruption(at, lambda _, owner=owner: owner.descriptor.close()) as interruption:
            owner.show((True, False))
        owner.descriptor.close()
        if not interruption.fired:
            break
    assert at > 3
