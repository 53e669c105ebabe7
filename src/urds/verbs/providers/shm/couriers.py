"""Couriers of RDS over RDMA on a compiled `shm` device: see `urds.rds.transports.rdma.courier`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import urds_native


def make_courier(
    adapter: Any,
    path: object,
    queues: tuple[Any, Any, Any],
    memory: tuple[memoryview, int],
    places: tuple[int, int, int],
    limits: tuple[int, int, int, int],
    handler: Callable[[], None],
) -> Any:
    """Make a courier of RDS over RDMA; None for a path of another plane. Lock held.

    `places` and `limits` are those of `urds_native.RdmaCourier`. `handler` is called with the lock
    held when the courier has something to tell.
    """
    if not isinstance(path, urds_native.ExternalPath):
        return None
    qpn = queues[0].qpn
    courier = urds_native.RdmaCourier(
        adapter.channel_engine,
        path,
        queues,
        *memory,
        places,
        limits,
        adapter.loop.serve_by_plane(),
    )
    adapter.on_stream[qpn] = handler
    return courier
