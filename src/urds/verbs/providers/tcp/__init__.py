"""The `tcp` provider: verbs as iWARP over TCP connections, datagrams over UDP.

`frames` and `payloads` know the octets of FPDUs; `encoder` and `decoder` turn the engine's
packets into them and back and share an `exchange`; `stream` moves one TCP connection, the
`reactor` waits for all of them; `connections`, `listeners`, `datagrams` and `adapter` are what
`providers.base` asks for.
docs/adr/0007 says what is standard on the wire and what is spoken between our own nodes only.
"""

import select

if not hasattr(select, "epoll"):
    raise ImportError("the tcp provider stands on epoll, which this system does not have")

from urds.verbs.providers.tcp.adapter import TcpAdapter
from urds.verbs.providers.tcp.settings import TcpProviderSettings, TcpStats


def open_adapter(name: str) -> TcpAdapter:
    """Open the device."""
    return TcpAdapter(name)


__all__ = ["TcpAdapter", "TcpProviderSettings", "TcpStats", "open_adapter"]
