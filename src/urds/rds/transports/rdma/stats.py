"""Counters of RDMA connections: one per rare event, one per error reason."""

from dataclasses import dataclass

from urds.rds.transports.rdma.events import Reason


@dataclass(slots=True)
class RdmaStats:
    """Counts since the start; shared by all local addresses of a node."""

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

    def count_rejection(self, reason: Reason) -> None:
        """Count a connection that was refused for good."""
        if reason is Reason.NOT_ALLOWED:
            self.refused_not_allowed += 1
        elif reason is Reason.TOO_MANY_PEERS:
            self.refused_peers += 1
        elif reason is Reason.VERSION:
            self.refused_version += 1
        else:
            self.refused_address += 1
