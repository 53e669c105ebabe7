"""The harness itself: which places it finds, and what the interpreter never interrupts."""

from itertools import count

from tests.rds.sockets.interrupting import Interruption


class Account:
    def __init__(self) -> None:
        self.messages = 0
        self.queue: list[int] = []


def put(account: Account) -> None:
    for number in range(2):
        account.messages += 1
        account.queue.append(number)


def put_late(account: Account) -> None:
    account.queue.append(1)
    account.messages += 1


def states(call, **options: int) -> list[tuple[int, int]]:
    """Return what each interrupt left behind, and last what the whole call does."""
    found = []
    for at in count(1):
        account = Account()
        with Interruption(at, where=__file__, **options) as interruption:
            call(account)
        found.append((account.messages, len(account.queue)))
        if not interruption.fired:
            break
    return found


def test_a_store_and_the_call_behind_it_are_one_step() -> None:
    assert set(states(put)) == {(0, 0), (1, 1), (2, 2)}


def test_a_store_behind_a_call_is_not() -> None:
    assert (0, 1) in states(put_late)


def test_a_handler_that_returns_leaves_the_call_as_it_is() -> None:
    seen: list[object] = []
    account = Account()
    with Interruption(1, seen.append, where=__file__) as interruption:
        put(account)
    assert (account.messages, len(seen)) == (2, 1)
    assert [place.rpartition(" ")[2] for place in interruption.positions] == ["put"]


def test_a_second_signal_comes_in_what_cleans_up() -> None:
    account = Account()
    with Interruption(1, where=__file__, then=2) as interruption:
        try:
            put(account)
        finally:
            put(account)
    assert len(interruption.positions) == 2
    assert account.messages < 2
