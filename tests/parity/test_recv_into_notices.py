"""`recv_into` of the compiled mailbox takes a notice as no bytes, as `Socket.recv_into` does.

What else it does is in `tests/rds/sockets/test_recv_into.py`.
"""

from typing import Any

import pytest

from tests.parity.planes import PEER_PORT, World
from tests.parity.test_congestion import EMPTY_MAP, FULL_MAP
from tests.support.planes import NATIVE, name_of
from urds.rds.constants import MSG_PEEK, MSG_TRUNC, RdmaStatus
from urds.rds.plane.contract import AtomicOperation, OperationNotice, Plane


@pytest.fixture
def watching(world: World, make_plane: type[Plane]) -> Any:
    """Give a compiled mailbox that watches the peer's port."""
    if name_of(make_plane) != NATIVE:
        pytest.skip("the Python plane's is the socket's own")
    return world.mailbox(monitor=True, monitor_mask=1 << PEER_PORT % 64)


@pytest.mark.parametrize("flags", [0, MSG_PEEK, MSG_TRUNC])
def test_a_congestion_notice(world: World, watching: Any, flags: int) -> None:
    """A peek takes it as well: kernel parity."""
    remote = world.attach()
    remote.say(1, b"message")
    for data in (FULL_MAP, EMPTY_MAP):
        remote.say_map(data)
        world.turn()
    into = bytearray(10)
    assert watching.recv_into(into, 0, flags) == 0
    assert not any(into)
    assert (watching.recv_into(into), into[:7]) == (7, b"message")


def test_notices_of_operations_are_lost_one_by_one(world: World, watching: Any) -> None:
    for token in (5, 6):
        operation = AtomicOperation(
            key=7,
            remote_address=0,
            token=token,
            notify=True,
            is_compare=False,
            operand=1,
            result=memoryview(bytearray(8)),
            status=RdmaStatus.SUCCESS,
        )
        watching.note_operation(operation)
    assert watching.recv_into(bytearray(1)) == 0
    assert watching.receive(wait_ns=0) == (OperationNotice(6, RdmaStatus.SUCCESS),)
