"""Addresses and parameters of connections, with rdma_cm's names.

Source: docs/reference/verbs-and-roce.md 18 for the names; `RAI_*` are rdma_getaddrinfo's flags.
"""

import errno
import socket
from dataclasses import dataclass
from typing import Final

from urds.common.types import HostPort
from urds.verbs.errors import VerbsArgumentError, VerbsError
from urds.verbs.providers.base import ConnectParameters, PortSpace

RAI_PASSIVE: Final = 1
RAI_NUMERICHOST: Final = 2
UD_QKEY: Final = 0x0123_4567  # of datagram queue pairs that the connection manager makes
_PORT_MAX: Final = 0xFFFF


@dataclass(slots=True)
class ConnParam:
    """Parameters of one side when it connects or accepts.

    resources: reads and atomics of the peer that may be outstanding here.  depth: ours there.
    retry: 0 to 7 retries of what is lost.  rnr_retry: how often the peer retries a send for which
    this side has no receive, 7 is for ever.  flow_control, srq, qp_num and data_len are accepted
    for programs that set them and ignored: there is always flow control, the queue pair is known,
    private data have their length.
    """

    resources: int = 1
    depth: int = 1
    flow_control: int = 0
    retry: int = 5
    rnr_retry: int = 5
    srq: int = 0
    qp_num: int = 0
    data_len: int = 0
    private_data: bytes = b""
    qkey: int = 0  # of a datagram queue pair, in the answer to a look-up

    def set_private_data(self, data: bytes) -> None:
        """Set the private data of the peer's event."""
        self.private_data = bytes(data)

    def parameters(self, private_data_bytes_max: int) -> ConnectParameters:
        """Return the provider's form. Raises VerbsArgumentError for values out of range."""
        for name, value, limit in (
            ("resources", self.resources, 128),
            ("depth", self.depth, 128),
            ("retry", self.retry, 7),
            ("rnr_retry", self.rnr_retry, 7),
            ("private data in bytes:", len(self.private_data), private_data_bytes_max),
        ):
            if not 0 <= value <= limit:
                raise VerbsArgumentError(f"{name} {value}, limit {limit}")
        return ConnectParameters(
            private_data=bytes(self.private_data),
            responder_resources=self.resources,
            initiator_depth=self.depth,
            retry_count=self.retry,
            rnr_retry_count=self.rnr_retry,
            qkey=self.qkey,
        )

    @classmethod
    def of(cls, parameters: ConnectParameters) -> "ConnParam":
        """Return a peer's parameters."""
        return cls(
            resources=parameters.responder_resources,
            depth=parameters.initiator_depth,
            retry=parameters.retry_count,
            rnr_retry=parameters.rnr_retry_count,
            data_len=len(parameters.private_data),
            private_data=parameters.private_data,
            qkey=parameters.qkey,
        )


class AddrInfo:
    """Source and target of a connection, resolved: numeric hosts and ports.

    With RAI_PASSIVE, or without `dst`, it is an address to listen at.
    """

    def __init__(
        self,
        src: str | None = None,
        src_service: str | int | None = None,
        dst: str | None = None,
        dst_service: str | int | None = None,
        port_space: int = PortSpace.TCP,
        flags: int = 0,
    ) -> None:
        """Resolve names.

        Raises VerbsError: EADDRNOTAVAIL for names that cannot be resolved. VerbsArgumentError: a
        port that is none.
        """
        self.flags = flags
        self.port_space = PortSpace(port_space or PortSpace.TCP)
        self.src = _resolved(src, src_service, flags) if src or src_service else None
        self.dst = _resolved(dst, dst_service, flags) if dst or dst_service else None
        self.is_passive = bool(flags & RAI_PASSIVE) or self.dst is None
        if self.is_passive and self.src is None:
            # rdma_getaddrinfo takes the target for the address to listen at.
            self.src, self.dst = self.dst or ("0.0.0.0", 0), None

    def __repr__(self) -> str:
        return f"AddrInfo(src={self.src}, dst={self.dst}, port_space={self.port_space.name})"


def _resolved(host: str | None, service: str | int | None, flags: int) -> HostPort:
    known = socket.AI_NUMERICHOST if flags & RAI_NUMERICHOST else 0
    if flags & RAI_PASSIVE:
        known |= socket.AI_PASSIVE
    # The C library takes the lower 16 bits of a number and says nothing.
    number = int(str(service)) if str(service).isdecimal() else 0
    if number > _PORT_MAX:
        raise VerbsArgumentError(f"port {number}, from 0 to {_PORT_MAX}")
    try:
        found = socket.getaddrinfo(host, service, type=socket.SOCK_DGRAM, flags=known)
    except socket.gaierror as error:
        raise VerbsError(
            errno.EADDRNOTAVAIL, f"{host} service {service}: {error.strerror}"
        ) from error
    name = found[0][4]
    return str(name[0]), int(name[1])
