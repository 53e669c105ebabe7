"""Counters of the control core: one per rare event, one per error reason."""

from urds.common.records import record


@record(frozen=False)
class Stats:
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
