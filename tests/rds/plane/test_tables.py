"""What the tables of a plane say of paths."""

from collections.abc import Iterator

import pytest

from tests.rds.plane.message_transport_world import (
    LOCAL,
    OTHER,
    MessageTransportWorld,
)
from urds.rds.plane.contract import Carrier


@pytest.fixture
def world() -> Iterator[MessageTransportWorld]:
    made = MessageTransportWorld()
    yield made
    made.close()


def test_a_path_with_a_stream_is_one_of_tcp(world: MessageTransportWorld) -> None:
    world.plane.path(local=LOCAL, peer=OTHER, index=0, sequence_first=1)
    (row,) = world.plane.snapshot().paths
    assert (row.transport, row.tos, row.rdma) == (Carrier.TCP, 0, None)
