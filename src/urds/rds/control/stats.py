"""Counters of the control cores: one per rare event, one per error reason."""

from typing import Final

from urds.common.records import record
from urds.rds.control.events import Reason

_REFUSED: Final = {
    Reason.NOT_ALLOWED: "refused_not_allowed",
    Reason.TOO_MANY_PENDING: "refused_pending",
    Reason.TOO_MANY_PEERS: "refused_peers",
    Reason.NO_DESCRIPTORS_LEFT_TO_SHARE: "refused_descriptors",
    Reason.NETWORK_HAS_ITS_SHARE: "refused_networks",
    Reason.NO_FREE_PATH: "refused_no_path",
    Reason.SILENT: "pending_silent",
    Reason.STILL_CONNECTED: "takeovers_refused",
    Reason.VERSION: "refused_version",
    Reason.WRONG_ADDRESS: "refused_address",
}


class _Rejections:
    __slots__ = ()

    def count_refused(self, reason: Reason) -> None:
        """Count a connection that was refused for good."""
        setattr(self, _REFUSED[reason], getattr(self, _REFUSED[reason]) + 1)


@record(frozen=False)
class Stats(_Rejections):
    """Counts since the start; shared by all connections of a local address or a node."""

    connects: int = 0
    connect_failures: int = 0
    call_back_requests: int = 0
    call_back_requests_received: int = 0
    accepts: int = 0
    first_frames: int = 0
    downs: int = 0
    refused_by_peer: int = 0  # the stream ended before the peer's first frame
    dead: int = 0  # streams on which the peer did not answer
    superseded: int = 0
    takeovers_refused: int = 0  # a second stream of a peer that still answered on its first
    misplaced: int = 0  # streams dropped because they belong on another path
    parked: int = 0  # accepted before it was known how many paths there are
    dead_stream_probes: int = 0
    probes: int = 0
    hellos: int = 0
    handshakes: int = 0  # probes, hellos and their answers received
    handshake_timeouts: int = 0
    pings: int = 0  # received
    pongs: int = 0  # asked for; the driver counts those it keeps back
    peer_restarts: int = 0
    fan_outs: int = 0
    fan_ins: int = 0
    gave_up: int = 0  # times; the plane counts the messages
    evicted: int = 0
    evicted_connected: int = 0  # of them, those that had a stream
    refused_not_allowed: int = 0
    refused_pending: int = 0
    refused_peers: int = 0
    refused_descriptors: int = 0  # the program's share of the descriptors begins there
    refused_networks: int = 0  # a /64 of IPv6 had its share
    refused_no_path: int = 0
    pending_silent: int = 0
    control_faults: int = 0  # unexpected exceptions in the control thread


@record(frozen=False)
class RdmaStats(_Rejections):
    """Rare events and error reasons; shared by all local addresses of a node."""

    connects: int = 0
    connect_failures: int = 0  # rejections and silence included
    rejected_by_peer: int = 0
    silent: int = 0  # attempts and answers whose end the device never reported
    accepts: int = 0
    accept_failures: int = 0
    ups: int = 0
    downs: int = 0
    protocol_errors: int = 0
    wrong_keys: int = 0  # of them: a key that no region has any more, or bytes outside of it
    connect_raced: int = 0  # a request met an attempt or an answer under way
    listen_closed_stale: int = 0  # a request met a connection that seemed up
    peer_restarts: int = 0
    gave_up: int = 0  # times; the path counts the messages
    evicted: int = 0
    refused_not_allowed: int = 0
    refused_peers: int = 0
    refused_version: int = 0  # of requests and of replies
    refused_address: int = 0  # the private data names other addresses than the connection
    refused_quarantined: int = 0  # shortly after the peer broke the protocol
