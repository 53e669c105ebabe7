"""Devices that a handler's exception cuts short, at each step of engine and provider in turn.

What is on its way between a socket or slot and the end of what it does cannot be taken up again:
then the connection ends, on both sides. What may not be is that it goes on with other bytes, or
with none. On the compiled engine handlers run only where it lets the interpreter in.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cuts import through_all_steps
from tests.verbs.pair import ENDS, SECOND_NS, End, connect
from urds.verbs import Context, RecvWR, WCStatus
from urds.verbs.providers.base import ConnectionEventKind, LoopAdapter
from urds.verbs.providers.shm.adapter import ShmAdapter
from urds.verbs.providers.tcp import TcpAdapter
from urds.verbs.providers.udp import UdpAdapter

WITHIN = ["verbs/engine/", "verbs/providers/"]
COUNT = 1  # messages of one act
BYTES = 200
WAIT_NS = 5 * SECOND_NS


class Scene:
    """Two ends, connected anew after each cut."""

    def __init__(self, make: Callable[[], LoopAdapter]) -> None:
        self.make = make
        self.ends: list[End] = []
        self.broken = 0
        self.begin()

    def begin(self) -> None:
        self.close()
        self.ends = [End(Context(adapter=self.make())) for _ in range(2)]
        connect(self.left, self.right, ("127.0.0.1", 0))
        self.right.post_receives(64, BYTES)
        self.sent, self.taken = 0, list[int]()

    @property
    def left(self) -> End:
        return self.ends[0]

    @property
    def right(self) -> End:
        return self.ends[1]

    def send(self) -> None:
        """Send the next messages; each holds nothing but its number."""
        for _ in range(COUNT):
            self.sent += 1
            self.left.send(self.sent % 64, self.sent.to_bytes(4, "big") * (BYTES // 4))

    def take(self) -> None:
        """Take what has arrived; each message has to be whole."""
        for wc in self.right.cq.engine.poll(64):
            if wc.status is WCStatus.SUCCESS:
                offset = wc.wr_id * BYTES
                data = self.right.mr.read(BYTES, offset)
                assert data == data[:4] * (BYTES // 4)
                self.taken.append(int.from_bytes(data[:4], "big"))
                self.right.qp.post_recv(RecvWR(wc.wr_id, [self.right.mr.sge(offset, BYTES)]))

    def is_over(self, end: End) -> bool:
        return bool(ENDS & set(end.kinds))

    def check(self, place: str) -> None:
        """See that it goes on with what comes next, or has ended for both."""
        last = 0
        if not self.is_over(self.left):
            self.send()
            last = self.sent

        def is_settled() -> bool:
            self.take()
            return self.is_over(self.right) or (last > 0 and last in self.taken)

        assert self.right.adapter.wait(is_settled, WAIT_NS), f"it stands still after one in {place}"
        assert self.taken == sorted(self.taken), place
        if self.is_over(self.right) or self.is_over(self.left):
            assert self.left.wait_for_end(WAIT_NS) is ConnectionEventKind.BROKEN, place
            assert self.right.wait_for_end(WAIT_NS) is ConnectionEventKind.BROKEN, place
            self.broken += 1
        self.begin()  # what this thread had polled when it was cut was lost with its receives

    def close(self) -> None:
        for end in self.ends:
            end.context.close()


@pytest.fixture(params=["shm", "tcp", "udp"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    makers: dict[str, Callable[[], LoopAdapter]] = {
        "shm": lambda: ShmAdapter(directory=tmp_path / "meet"),
        "tcp": TcpAdapter,
        "udp": UdpAdapter,
    }
    made = Scene(makers[request.param])
    yield made
    made.close()


def receive(scene: Scene) -> None:
    """Wait for messages that another thread sends as soon as this one waits."""
    left = [threading.Thread(target=scene.send)]

    def is_ready() -> bool:
        if left:
            sender = left.pop()
            sender.start()
            sender.join()
        scene.take()
        return scene.sent in scene.taken or scene.is_over(scene.right)

    scene.right.adapter.wait(is_ready, WAIT_NS)


@pytest.mark.slow
@pytest.mark.parametrize("act", [receive, Scene.send])
def test_a_cut_connection_goes_on_or_ends(scene: Scene, act: Callable[[Scene], None]) -> None:
    steps = through_all_steps(lambda: act(scene), scene.check, within=WITHIN)
    assert 0 < scene.broken < steps
