"""What the tunables mean for the parts of a driver: each part gets a record of its own."""

from __future__ import annotations

import resource
from typing import Any, Final

from urds.common.types import IPAddress
from urds.rds.constants import MAX_MESSAGE_BYTES
from urds.rds.control.connected import PEERS_MAX, Connected
from urds.rds.control.settings import ConnectionSettings, LocalAddressSettings
from urds.rds.plane.contract import Limits
from urds.rds.settings import Settings
from urds.rds.transports import subnets, tcp

_MS: Final = 1_000_000
_S: Final = 1_000 * _MS


def limits_of(settings: Settings) -> Limits:
    """Return the plane's bounds."""
    return Limits(
        message_bytes_max=settings.max_message_bytes,
        frame_bytes_max=max(settings.max_message_bytes, MAX_MESSAGE_BYTES),
        unacked_packets_max=settings.max_unacked_packets,
        unacked_bytes_max=settings.max_unacked_bytes,
        linger_ns=round(settings.linger_s * _S),
    )


def tcp_settings_of(settings: Settings) -> tcp.TcpSettings:
    """Return the options of TCP connections."""
    return tcp.TcpSettings(
        port=settings.tcp_port,
        send_buffer_bytes=settings.tcp_sndbuf,
        receive_buffer_bytes=settings.tcp_rcvbuf,
        keepalive_idle_s=settings.keepalive_idle_s,
        keepalive_interval_s=settings.keepalive_interval_s,
        keepalive_count=settings.keepalive_count,
    )


def connection_settings_of(settings: Settings, generation: int) -> ConnectionSettings:
    """Return what connections share."""
    return ConnectionSettings(
        generation=generation,
        npaths=settings.npaths,
        message_bytes_max=settings.max_message_bytes,
        **delays_of(settings),
    )


def connected_of(settings: Settings) -> Connected:
    """Return the table of connected peers; unless `peers_max` is set, it leaves descriptors."""
    if settings.peers_max:
        return Connected(settings.peers_max)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors_max = None if soft == resource.RLIM_INFINITY else soft
    return Connected(PEERS_MAX, descriptors_max, npaths=settings.npaths)


def local_address_settings_of(settings: Settings, address: IPAddress) -> LocalAddressSettings:
    """Return what an address allows: its own subnet, and what URDS_ALLOW adds."""
    subnet = subnets.subnet_of(address)
    own = () if subnet is None else (subnet,)
    return LocalAddressSettings(
        allowed=(*own, *settings.networks()),
        peers_max=settings.peers_max or PEERS_MAX,
        pending_max=settings.pending_max,
        pending_per_address_max=settings.pending_per_address_max,
        pending_wait_ns=round(settings.pending_wait_s * _S),
    )


def delays_of(settings: Settings) -> dict[str, Any]:
    """Return the settings of reconnecting that TCP and RDMA have in common."""
    return {
        "reconnect_delay_min_ns": settings.reconnect_min_delay_ms * _MS,
        "reconnect_delay_max_ns": settings.reconnect_max_delay_ms * _MS,
        "reconnect_delay_idle_max_ns": max(60 * _S, settings.reconnect_max_delay_ms * _MS),
        "reconnect_give_up_ns": round(settings.reconnect_give_up_s * _S),
    }
