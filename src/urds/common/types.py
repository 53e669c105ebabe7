"""Types that all systems share."""

from ipaddress import IPv4Address, IPv6Address

IPAddress = IPv4Address | IPv6Address
HostPort = tuple[str, int]  # a numeric address, IPv6 with %scope if it needs one, and a port
BytesLike = bytes | bytearray | memoryview
