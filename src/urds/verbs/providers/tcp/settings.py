"""Times, limits and counters of the `tcp` provider."""

import resource
from dataclasses import dataclass, field
from typing import Final

_MS = 1_000_000
_DESCRIPTORS_MAX: Final = 16_384  # that a bound is made of


def _descriptors_max() -> int:
    """Return how many descriptors the process may have, or a number that is enough."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else min(soft, _DESCRIPTORS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpProviderSettings:
    """Settings of the device."""

    address: str = (
        "127.0.0.1"  # whose GID the device context has, and where its datagrams leave from
    )
    pending_ns: int = 5_000 * _MS  # for a whole MPA frame
    # Connections without one, and those of one host. A client that opens thousands of them looks
    # like a flood at first, so the bounds are high where there are descriptors for it.
    pending_max: int = field(default_factory=lambda: _descriptors_max() // 4)
    pending_per_host_max: int = field(default_factory=lambda: _descriptors_max() // 8)
    connect_ns: int = 10_000 * _MS  # to be connected and answered, where no one says otherwise
    farewell_ns: int = 2_000 * _MS  # for our last bytes to leave and the peer to close
    crc: bool = False  # insist on CRC32C: slow without the `crc32c` distribution
    urds_extensions: bool = True  # use the extensions of docs/adr/0007 with peers that offer them
    send_buffer_bytes: int = 0  # of a TCP connection; 0 leaves it to the kernel's own tuning
    receive_buffer_bytes: int = 0
    datagram_bytes_max: int = 1_400  # payload; up to 65,000 where the path allows it
    rnr_timer_code: int = 12  # what we answer where no receive waits: 0.64 ms


@dataclass(slots=True)
class TcpStats:
    """Counts since the start, one per rare event and one per reason of a drop."""

    pending_dropped: int = 0  # over the bounds
    pending_failed: int = 0  # no whole or no valid MPA frame
    requests_refused: int = 0  # backlog full
    streams_broken_by_peer: int = 0  # frames that break the rules
    terminates_sent: int = 0
    terminates_received: int = 0
    streams_lost: int = 0  # ended without a word
    datagrams_dropped_unsent: int = 0  # the socket did not take them
