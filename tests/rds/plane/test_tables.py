"""What the tables of a plane say of paths that another transport carries."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.rds.plane.message_transport_world import (
    LOCAL,
    OTHER,
    PEER,
    PEER_PORT,
    FakePath,
    MessageTransportWorld,
)
from urds.rds.plane.contract import Carrier, PathRow


@pytest.fixture
def world() -> Iterator[MessageTransportWorld]:
    made = MessageTransportWorld()
    yield made
    made.close()


def test_a_waiting_message_has_the_tos_of_the_path_that_brought_it(
    world: MessageTransportWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two paths from one peer and port differ by nothing else."""
    world.mailbox()
    plain, urgent = world.path(), FakePath(world.plane, PEER)
    world.plane.add_message_transport(urgent)
    row = urgent.row

    def with_tos() -> PathRow:
        return replace(row(), tos=3)

    monkeypatch.setattr(urgent, "row", with_tos)
    for path in (urgent, plain, urgent):
        path.arrive(b"x")
    found = world.plane.snapshot().receive_queue
    assert [(one.peer, one.peer_port, one.tos) for one in found] == [
        (PEER, PEER_PORT, 3),
        (PEER, PEER_PORT, 0),
        (PEER, PEER_PORT, 3),
    ]


def test_a_path_with_a_stream_is_one_of_tcp(world: MessageTransportWorld) -> None:
    world.plane.path(local=LOCAL, peer=OTHER, index=0, sequence_first=1)
    (row,) = world.plane.snapshot().paths
    assert (row.transport, row.tos, row.rdma) == (Carrier.TCP, 0, None)
