"""Unexpected exceptions where the control thread does RDMA: they cost a connection.

As `test_control_faults`, with the reports of devices and the actions of the endpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.rds.sockets.test_control_faults import (
    HIGHER,
    LOWER,
    Fault,
    exchange_until_raised,
    pair,
)
from urds.rds.control import rdma_events as events
from urds.rds.control.rdma_local_address import RdmaLocalAddress
from urds.rds.runtime.inprocess import InProcess
from urds.rds.transports.rdma.node import RdmaNode

pytestmark = pytest.mark.parametrize("carrier", ["shm0"], indirect=True)

REPORTS = ["handle_wanted", "handle_request", "handle_established", "handle_ended"]
ACTIONS = [events.Connect, events.Accept, events.Attach, events.Detach, events.PeerKnown]
each_side = pytest.mark.parametrize("sides", [LOWER, HIGHER], ids=["lower", "higher"])
each_time = pytest.mark.parametrize("when", ["before", "after"])


def node_of(ours: InProcess) -> RdmaNode:
    """Return what carries out the actions of a backend."""
    node = ours._driver.rdma.node
    assert node is not None
    return node


@each_time
@each_side
@pytest.mark.parametrize("report", REPORTS)
def test_a_fault_in_a_report_costs_the_peer_its_connection_alone(
    monkeypatch: pytest.MonkeyPatch, sides: tuple[int, int], report: str, when: str
) -> None:
    fault = Fault()
    original = getattr(RdmaLocalAddress, report)
    faulty = getattr(fault, when)(original)
    with pair(*sides) as (ours, source, target):

        def chosen(self: RdmaLocalAddress, *arguments: Any, **named: Any) -> Any:
            is_ours = self is next(iter(node_of(ours).hosts.values())).endpoint
            return (faulty if is_ours else original)(self, *arguments, **named)

        monkeypatch.setattr(RdmaLocalAddress, report, chosen)
        exchange_until_raised(fault, ours, source, target)
        assert ours.counters()["control_faults"] == fault.raised == 1
        assert ours._driver._thread.is_alive()


@each_time
@each_side
@pytest.mark.parametrize("action", ACTIONS)
def test_a_fault_in_an_action_costs_the_peer_its_connection_alone(
    monkeypatch: pytest.MonkeyPatch, sides: tuple[int, int], action: type, when: str
) -> None:
    fault = Fault()
    with pair(*sides) as (ours, source, target):
        node = node_of(ours)
        do: Callable[..., None] = node._do
        faulty = getattr(fault, when)(do)

        def chosen(host: Any, given: events.Action) -> None:
            (faulty if isinstance(given, action) else do)(host, given)

        monkeypatch.setattr(node, "_do", chosen)
        if action is events.Accept:  # who sends first asks for the connection
            target.sendto(b"first", source.getsockname())
            assert source.recv(10) == b"first"
        exchange_until_raised(fault, ours, source, target)
        assert ours.counters()["control_faults"] == fault.raised == 1
        assert ours._driver._thread.is_alive()
