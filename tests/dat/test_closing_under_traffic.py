"""Endpoints and adapters that go away while messages run both ways, over every device.

Nothing hangs, no call gets another error than one of DAT, and what is left can be closed in order.
"""

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.dat.devices import DEVICES
from urds import dat

WAIT_S = 20.0
DEPTH = 16
BYTES = 4000


class End:
    """One adapter with an endpoint; a thread of its own sends, receives and posts again."""

    def __init__(self, device: str, *, shared: bool) -> None:
        self.ia = dat.open(device)
        pz = self.ia.create_pz()
        memory = pz.register(bytearray(BYTES))
        self.piece = [memory.triplet()]
        self.transfers = self.ia.create_evd(8 * DEPTH, dat.EvdFlag.DTO)
        self.connection = self.ia.create_evd(8, dat.EvdFlag.CONNECTION)
        self.srq = pz.create_srq(4 * DEPTH) if shared else None
        depth = dat.DAT_HW_DEFAULT if shared else 2 * DEPTH
        self.ep = pz.create_ep(
            self.transfers,
            self.transfers,
            self.connection,
            dat.EpAttr(max_recv_dtos=depth),
            self.srq,
        )
        for _ in range(2 * DEPTH):
            self.post()
        self.received = 0
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run)

    def post(self) -> None:
        """Post a receive."""
        if self.srq is None:
            self.ep.post_recv(self.piece, "receive")
        else:
            self.srq.post_recv(self.piece, "receive")

    def _run(self) -> None:
        try:
            for _ in range(DEPTH):
                self.ep.post_send(self.piece, "send")
            while True:
                event = self.transfers.wait(WAIT_S)
                count, span = self.ep.recv_query()
                assert count is not None and span is not None and 0 <= count <= span
                if event.status is not dat.DtoStatus.SUCCESS:
                    return
                if event.user_cookie == "send":
                    self.ep.post_send(self.piece, "send")
                else:
                    self.received += 1
                    self.post()
        except dat.DatError as error:
            self.error = error


@pytest.fixture
def ends(device: str, shared: bool) -> Iterator[tuple[End, End]]:
    made = End(device, shared=shared), End(device, shared=shared)
    yield made
    for end in made:
        if end.ia.live:
            end.ia.close()


def connect(active: End, passive: End) -> None:
    requests = passive.ia.create_evd(1, dat.EvdFlag.CR)
    with passive.ia.listen(evd=requests) as psp:
        active.ep.connect(passive.ia.address, psp.conn_qual, timeout_s=WAIT_S)
        requests.wait(WAIT_S).cr.accept(passive.ep)
        for end in (active, passive):
            event = end.connection.wait(WAIT_S)
            assert event.event_number is dat.EventNumber.CONNECTION_ESTABLISHED
    requests.free()


WAYS: dict[str, Callable[[End], None]] = {
    "disconnect": lambda end: end.ep.disconnect(),
    "graceful": lambda end: end.ep.disconnect(graceful=True),
    "free": lambda end: end.ep.free(),
    "close": lambda end: end.ia.close(),
}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_the_other_side_learns_of_it_and_nothing_hangs(ends: tuple[End, End], way: str) -> None:
    left, right = ends
    connect(left, right)
    for end in ends:
        end.thread.start()
    assert right.ia.adapter.wait(lambda: right.received > 50, int(WAIT_S * 1e9))
    WAYS[way](left)
    assert right.connection.wait(WAIT_S).event_number in (
        dat.EventNumber.CONNECTION_DISCONNECTED,
        dat.EventNumber.CONNECTION_BROKEN,
    )
    for end in ends:
        end.thread.join(2 * WAIT_S)
        assert not end.thread.is_alive()
        assert not isinstance(end.error, dat.DatTimeoutExpired | dat.DatInternalError), end.error
    assert tuple(right.ep.recv_query()) == (0, 0)
    assert right.ep.get_status().request_idle
    for end in ends:
        if end.ia.live and end.ep.live:
            assert end.connection.dequeue() is None or end is left
            end.ep.free()
            if end.srq is not None:
                end.srq.free()
