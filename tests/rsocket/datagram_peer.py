"""The other process of a datagram test: answers every datagram, or only counts them.

Run as `python -m tests.rsocket.datagram_peer echo|count DEVICES PORT`; prints its port. To the
datagram `tell` it prints how many came by queue pair; `bye` ends it.
"""

from __future__ import annotations

import sys

from urds.rsocket.link.datagram_link import DatagramLink
from urds.rsocket.link.devices import DeviceContext
from urds.verbs.device import find_device

LIFE_S = 60.0


def main(kind: str, names: str, port: int) -> None:
    """Serve until a peer says goodbye."""
    adapters = [find_device(name).open_adapter() for name in names.split(",") if name]
    link = DatagramLink([DeviceContext(adapter) for adapter in adapters])
    link.bind(("127.0.0.1", port))
    assert link.local is not None
    print(link.local[1], flush=True)
    while link.wait(lambda: link.readiness().readable, LIFE_S):
        datagram = link.receive()
        if datagram is None:
            continue
        payload, source = datagram
        if payload == b"bye":
            break
        if payload == b"tell":
            print(link.stats.received_by_queue_pair, flush=True)
        elif kind == "echo":
            link.send(payload, source)
    link.close()
    for adapter in adapters:
        adapter.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
