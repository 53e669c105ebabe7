"""Whose the memory of an operation is, and from when on."""

import gc
from collections.abc import Callable

import pytest

from tests.rds.transports.rdma_core.rdma_core_world import Side, ack_only
from tests.rds.transports.rdma_core.test_operations import complete
from urds.rds.constants import RdmaStatus
from urds.rds.plane.contract import RdmaTransfer


def _acknowledge(side: Side) -> None:
    assert side.receive(ack_only(1)) is None


def _break(side: Side) -> None:
    side.core.detach()
    side.core.drop_all()


def _cancel(side: Side) -> None:
    side.core.cancel(side.account, None)


@pytest.mark.parametrize("end", [_acknowledge, _break, _cancel])
@pytest.mark.parametrize("is_silent", [False, True])
def test_a_buffer_is_its_owners_again_when_the_operation_has_ended(
    end: Callable[[Side], None], *, is_silent: bool
) -> None:
    """At once, not when the collector comes by: here it does not."""
    side = Side()
    side.begin()
    buffer = bytearray(100)
    gc.disable()
    try:
        operation = RdmaTransfer(
            key=7, remote_address=0, pieces=(memoryview(buffer),), is_write=True, silent=is_silent
        )
        side.send(b"" if is_silent else b"done", operations=[operation])
        complete(side, side.post())
        if not (is_silent and end is _acknowledge):
            end(side)
        assert operation.status is RdmaStatus.SUCCESS
        side.ended.clear()
        del operation
        buffer.append(0)  # BufferError while a view of it exists
    finally:
        gc.enable()
