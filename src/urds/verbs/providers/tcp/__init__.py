"""The `tcp` provider: verbs as iWARP over TCP connections, datagrams over UDP.

`fpdu` knows the bytes of FPDUs, `codec` turns the engine's packets into them and back; `stream`
moves one TCP connection; `connections`, `datagrams` and `adapter` implement `providers.base`.
docs/adr/0007 lists what is standard on the wire and what is private to `urds`.
"""

import select

if not hasattr(select, "epoll"):
    raise ImportError("the tcp provider stands on epoll, which this system does not have")

from urds.verbs.providers.tcp.adapter import TcpAdapter
from urds.verbs.providers.tcp.settings import TcpProviderSettings, TcpStats

open_adapter = TcpAdapter

__all__ = ["TcpAdapter", "TcpProviderSettings", "TcpStats", "open_adapter"]
