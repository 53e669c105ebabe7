"""One peer of one local address: who connects and when, who the peer is, how many paths there are.

Sides. The lower address connects for data. The higher one *knocks*: it opens a connection that
carries nothing, which the lower side refuses and takes as a request to connect. Reconnecting is the
lower side's duty; a higher one that has something to send, or lost a path, knocks again and again.

Acquaintance. A handshake (probe, hello, and their answers) tells who the peer is; see `peer`. Until
then path 0 alone is used and nothing sent is forgotten. Towards an own node that is known already,
every new stream is held until both have exchanged *hellos*: generation and highest received number.

Many paths. Which path a stream belongs to is known to both sides only after the handshake, and a
stream on the wrong path mixes numbers: messages are lost or doubled. Therefore

- the lower side opens paths 1 and up only while path 0 is up and the peer showed there that it knows
  our handshake; so a restarted peer meets path 0 first;
- the higher side parks streams that come before it knows how many paths there are, and does not send
  to a stranger before the handshake (with one path it does: there is nothing to mix up);
- a stream that turns out to be on the wrong path is dropped without an answer.

A value machine: no I/O, no clock, no chance of its own. Calls for a path or a stream that is gone
meanwhile are ignored, since reports cross with actions. Rules and numbers: docs/protocol/rds-tcp.md.
Sources: rds.md 1.8, 2.1, 2.4, 2.5 (linux v6.12, v7.0) and linux-peer-notes.md section 3 (observed
with linux v6.1, v6.12, v7.2).
"""

from collections import deque
from random import Random
from typing import Final

from urds.constants import PATHS_MAX, PING_PORT, PORT_FIRST, PROBE_PORT
from urds.errors import WireError
from urds.proto.backoff import Backoff
from urds.proto.events import (
    Action,
    Agree,
    Attach,
    Connect,
    Detach,
    FanIn,
    FanOut,
    GiveUp,
    Hold,
    Knock,
    PeerKind,
    PeerKnown,
    PeerStartedAnew,
    Poke,
    Reason,
    Refuse,
    Refused,
    Release,
    ReleaseRule,
    RememberHandshake,
    RestartPeer,
    SendControl,
)
from urds.proto.paths import Address, SourcePortRule, address_octets
from urds.proto.peer import Peer, is_new_life, learn, restarted, taken_for_linux
from urds.proto.settings import ConnectionSettings, EndpointSettings
from urds.proto.state import Input, PathLife, State
from urds.proto.stats import Stats
from urds.proto.strangers import Strangers
from urds.proto.timers import TimerKey, TimerKind, Timers
from urds.wire.exthdr import Handshake, Mark, emit_handshake, parse_handshake

_KNOCKED_ATTEMPT_GAP_NS: Final = 10_000_000  # knocks bring at most one attempt in this time
_CALL_BACK_NS: Final = 20_000_000  # what the lower side has at least, before we knock again
_NO_EXTENSION: Final = bytes(16)


class Connection:
    """The control state of one (local, peer) pair.

    An endpoint hands in what its connections share; alone, a connection has its own of each. The
    local and peer address differ: traffic to oneself is the loop's.
    """

    def __init__(
        self,
        *,
        local: Address,
        peer: Address,
        settings: ConnectionSettings,
        random: Random,
        stats: Stats | None = None,
        actions: deque[Action] | None = None,
        timers: Timers | None = None,
        strangers: Strangers | None = None,
    ) -> None:
        assert address_octets(local) != address_octets(peer), f"{local} to itself"
        self.local = local
        self.peer_address = peer
        self.lower = address_octets(local) < address_octets(peer)
        self.settings = settings
        self.peer = Peer()
        self.stats = stats if stats is not None else Stats()
        self.used_ns = 0  # the last time anything happened, for eviction
        self._random = random
        self._actions = actions if actions is not None else deque()
        self._timers = timers if timers is not None else Timers()
        self._strangers = strangers or Strangers(EndpointSettings(), self._timers)
        self._paths = [self._new_path(0)]
        self._parked: dict[int, int] = {}  # stream to source port
        self._agreed: tuple[ReleaseRule, bool] = (ReleaseRule.NOT_YET, False)

    # -- what happened

    def handle_wanted(self, index: int, now_ns: int) -> None:
        """The first message was queued for a path without a stream."""

    def handle_connected(self, index: int, stream: int, now_ns: int) -> None:
        """A `Connect` succeeded."""

    def handle_connect_failed(self, index: int, errno: int, now_ns: int) -> None:
        """A `Connect`, or for path 0 a `Knock`, failed."""

    def handle_knocked(self, now_ns: int) -> None:
        """A `Knock` stands; now the peer should call back."""

    def handle_accepted(self, stream: int, source_port: int, now_ns: int) -> None:
        """A TCP connection came in from the peer. Source port: the peer's."""

    def handle_first_frame(self, index: int, now_ns: int) -> None:
        """The peer's first whole header arrived on the path's stream."""

    def handle_down(self, index: int, frames: int, now_ns: int) -> None:
        """The path's stream ended; `frames` arrived on it. Not after `Detach` or a supersession."""

    def handle_control(
        self,
        index: int,
        *,
        sequence: int,
        acknowledgement: int,
        source_port: int,
        target_port: int,
        extension: bytes,
        now_ns: int,
    ) -> None:
        """A ping, pong or probe arrived."""

    def handle_peer_restarted(self, index: int, now_ns: int) -> None:
        """The plane saw that a kernel began a new life."""

    def handle_timeout(self, now_ns: int) -> None:
        """Do what is due. With shared timers the endpoint does it."""

    def poll_timeout(self) -> int | None:
        """Return when `handle_timeout` is due next."""

    def poll_event(self) -> Action | None:
        """Return the next action or notice."""
