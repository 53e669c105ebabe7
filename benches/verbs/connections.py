"""Connections of `benches.verbs`: how fast they are made, and what a queue pair costs."""

from __future__ import annotations

import gc
import time
import tracemalloc
from dataclasses import dataclass
from functools import partial
from typing import Final

from urds import verbs
from urds.verbs.providers.base import (
    ConnectionEventKind,
    ConnectParameters,
    PortSpace,
    VerbsConnectionEvent,
)

_WAIT_NS: Final = 30_000_000_000
_LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ConnectionFigures:
    """Figures of one device. Bytes are Python's, by tracemalloc, of one connected queue pair."""

    device: str
    count: int
    per_s: float
    bytes_per_qp: int


class _Side:
    """One context with its domain and completion queue, and the queue pairs made so far."""

    def __init__(self, device: str, count: int) -> None:
        self.context = verbs.Context(device)
        self.adapter = self.context.adapter
        self.pd = verbs.PD(self.context)
        self.cq = verbs.CQ(self.context, 2 * count)
        self.qps: list[verbs.QP] = []
        self.established = 0

    def new_qp(self) -> verbs.QP:
        """Make one more queue pair."""
        self.qps.append(verbs.QP(self.pd, verbs.QPInitAttr(scq=self.cq, rcq=self.cq)))
        return self.qps[-1]

    def has(self, established: int) -> bool:
        """Tell whether so many connections have been established."""
        return self.established >= established

    def handle_event(self, event: VerbsConnectionEvent) -> None:
        """Accept requests, and count what is established."""
        if event.kind is ConnectionEventKind.REQUEST:
            event.connection.on_event = self.handle_event
            event.connection.accept(self.new_qp().engine, ConnectParameters())
        elif event.kind is ConnectionEventKind.ESTABLISHED:
            self.established += 1


def measure_connections(device: str, count: int) -> ConnectionFigures:
    """Make so many connections one after another, and keep them. Raises OSError: one failed."""
    per_s = _connect(device, count)
    gc.collect()
    tracemalloc.start()
    try:
        bytes_per_qp = _connected_bytes(device, count)
    finally:
        tracemalloc.stop()
    return ConnectionFigures(device, count, per_s, bytes_per_qp)


def _connect(device: str, count: int) -> float:
    passive, active = _Side(device, count), _Side(device, count)
    with passive.context, active.context:
        start_s = time.perf_counter()
        _make_connections(passive, active, count)
        return count / (time.perf_counter() - start_s)


def _connected_bytes(device: str, count: int) -> int:
    passive, active = _Side(device, count), _Side(device, count)
    with passive.context, active.context:
        _make_connections(passive, active, 1)  # what both contexts share is paid by the first
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        _make_connections(passive, active, count)
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) // (2 * count)


def _make_connections(passive: _Side, active: _Side, count: int) -> None:
    adapter = active.adapter
    with passive.adapter.lock:
        listener = passive.adapter.listen(
            (_LOOPBACK, 0), PortSpace.TCP, backlog=count, on_event=passive.handle_event
        )
    wanted = active.established
    for _ in range(count):
        wanted += 1
        with adapter.lock:
            qp = active.new_qp()
            adapter.connect(
                qp.engine,
                (_LOOPBACK, listener.local[1]),
                PortSpace.TCP,
                ConnectParameters(),
                on_event=active.handle_event,
            )
        if not adapter.wait(partial(active.has, wanted), _WAIT_NS):
            raise TimeoutError(f"connection {active.established + 1} of {count} was not made")
    with passive.adapter.lock:
        listener.close()
