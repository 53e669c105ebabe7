"""The subnet of a local address: the peers that a node admits without being told.

Read from the kernel's own text tables, which every user may read; nothing is asked by netlink.
Source: proc(5), /proc/net/route and /proc/net/if_inet6.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

from urds.common.types import IPAddress

Network = IPv4Network | IPv6Network
_LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


def subnet_of(local: IPAddress) -> Network | None:
    """Return the smallest subnet that an interface shares with `local`; None if unknown.

    Every address of 127/8 is a host of its own, all of them neighbours.
    """
    for network in _LOOPBACK:
        if local in network:
            return network
    candidates = _routes() if isinstance(local, IPv4Address) else _prefixes()
    containing = [network for network in candidates if local in network]
    return max(containing, key=lambda network: network.prefixlen, default=None)


def _routes() -> list[Network]:
    """Return the IPv4 networks that are reached without a gateway."""
    networks: list[Network] = []
    for line in _lines("/proc/net/route")[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[2] == "00000000" and fields[7] != "00000000":
            data, mask = (bytes.fromhex(fields[at])[::-1] for at in (1, 7))
            networks.append(ip_network(f"{IPv4Address(data)}/{IPv4Address(mask)}", strict=False))
    return networks


def _prefixes() -> list[Network]:
    """Return the IPv6 prefixes of all interfaces."""
    networks: list[Network] = []
    for line in _lines("/proc/net/if_inet6"):
        fields = line.split()
        if len(fields) > 3:
            address = IPv6Address(bytes.fromhex(fields[0]))
            networks.append(ip_network(f"{address}/{int(fields[2], 16)}", strict=False))
    return networks


def _lines(place: str) -> list[str]:
    try:
        with open(place) as text:  # noqa: PTH123 - pathlib is not worth its import here
            return text.read().splitlines()
    except OSError:
        return []
