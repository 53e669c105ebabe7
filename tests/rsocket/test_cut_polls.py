"""A poll, or a pass of a device, that a signal handler's exception cuts short at each step.

Nothing that is ready may be forgotten: no member of a Repoll, nothing that the engine tells once.
"""

import select
from socket import MSG_PEEK

import pytest

from tests.rsocket.socket_pairs import WAIT_S, Pair, pair_over
from tests.support.cuts import Raised, through_all_steps
from urds.rsocket.repoll import Repoll

OVER = ("shm0", "tcp0")
IN, OUT = select.EPOLLIN, select.EPOLLOUT
_POLLS_MAX = 4  # until each of two members was reported
_POLLS = ("rsocket/repoll.py", "rsocket/poll.py")
_NEWS = ("verbs/providers/shm/native_adapter.py",)


@pytest.mark.parametrize("how", [0, select.EPOLLET, select.EPOLLONESHOT])
def test_a_poll_that_is_cut_keeps_each_member(pair: Pair, how: int) -> None:
    def assert_whole(place: str) -> None:
        seen: set[str] = set()
        for _ in range(_POLLS_MAX):
            seen.update(label for label, _ in poll.poll(WAIT_S))
            if seen == {"client", "server"}:
                break
        else:
            pytest.fail(f"only {seen} reported after an exception in {place}")
        prepare()

    def prepare() -> None:
        pair.server.recv(100)
        poll.modify(pair.client, OUT | how, "client")
        poll.modify(pair.server, IN | how, "server")
        pair.client.send(b"x")
        assert pair.server.recv(1, MSG_PEEK)

    with Repoll() as poll:
        poll.register(pair.client, OUT | how, "client")
        poll.register(pair.server, IN | how, "server")
        pair.client.send(b"x")
        prepare()
        assert through_all_steps(lambda: poll.poll(WAIT_S), assert_whole, within=_POLLS) > 10


def test_an_exception_while_a_poll_mends_is_mended_by_the_next(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise Raised

    with Repoll() as poll:
        poll.register(pair.client, OUT | select.EPOLLONESHOT, "client")
        with monkeypatch.context() as patch:
            patch.setattr(poll._list, "_count", stop)  # behind the claim
            patch.setattr(poll._list, "note", stop)
            with pytest.raises(Raised):
                poll.poll(WAIT_S)
        assert poll.poll(WAIT_S) == [("client", OUT)]


def test_a_pass_that_is_cut_tells_of_each_stream(pair: Pair, device: str) -> None:
    told: set[str] = set()
    with pair_over(device) as other:
        servers = {"first": pair.server, "second": other.server}
        for name, server in servers.items():
            server.watchers.add(lambda name=name: told.add(name))
        adapter = pair.server._transfer.link.context.adapter

        def prepare() -> None:
            for server in servers.values():
                server.recv(100)
            told.clear()
            adapter._is_taking_news = True  # the sends' own passes leave it to the one that is cut
            pair.client.send(b"x")
            other.client.send(b"x")
            adapter._is_taking_news = False

        def assert_whole(place: str) -> None:
            adapter.progress()
            if told != set(servers):
                pytest.fail(f"only {told} told after an exception in {place}")
            prepare()

        pair.client.send(b"x")
        other.client.send(b"x")
        prepare()
        through_all_steps(adapter.progress, assert_whole, within=_NEWS)
