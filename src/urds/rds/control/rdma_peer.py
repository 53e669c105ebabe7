"""One peer at one type of service: its identity, when to connect, which connection counts.

Either side may connect, so neither waits for the other: a lost connection is tried for at once. A
failed attempt is made again after random times, up to a bound that doubles; where no message waits
here, it grows further. It begins anew once a connection lasted, or carried a message: Linux resets
it as soon as one is up, but then two nodes that do not understand each other would connect as fast
as they can. A protocol error puts the whole host into `quarantine`.

Two attempts may cross, and a request may meet a connection that is dead at the other end. Linux
rejects the request in both cases; in the second it drops the old connection too. Randomness in the
back-off parts the two sides. Urds nodes do better, for a request carries the mark: of two attempts
the lower address's wins at once, and a request that meets a connection takes its place. Requests
overtake answers, though. So one of the same generation does not yet count against a young
connection: it may be an attempt that the peer ended for this very one.

The mark holds the generation of a urds node. It counts once a connection is established: a request
may have been on its way for long, and its sender be gone. Until then the peer's generation is in
doubt, and nothing is acknowledged: the peer may retransmit what has arrived, but acknowledging the
messages of another generation would be a protocol error.

Source: docs/reference/rds.md 4.1 (linux v6.12 net/rds/ib_cm.c, net/rds/threads.c,
net/rds/rdma_transport.c); docs/adr/0010.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from urds.common.errors import WireError
from urds.common.types import IPAddress
from urds.rds.control.events import Action, Reason, Refused
from urds.rds.control.paths import address_bytes
from urds.rds.control.rdma_events import (
    Abandon,
    Accept,
    Attach,
    Connect,
    Detach,
    Failure,
    GiveUp,
    PeerKey,
    PeerKnown,
    Reject,
    RestartPeer,
)
from urds.rds.control.reconnect import Quarantine, Reconnector
from urds.rds.control.settings import PeerSettings
from urds.rds.control.state import (
    UNDER_WAY,
    WITHOUT_CONNECTION,
    ConnectionReport,
    ConnectionState,
    PeerInput,
    PeerState,
    next_state,
)
from urds.rds.control.stats import RdmaStats
from urds.rds.control.timers import OwnTimers, TimerKey, TimerKind, Timers
from urds.rds.wire.frame_format import FrameFormat
from urds.rds.wire.private_data import REJECTED_INCOMPATIBLE, VERSION_OFFERED, ConnectData

if TYPE_CHECKING:
    from random import Random

# The time that a Linux peer has to ask again, after its request dropped a connection here.
_CALL_BACK_NS: Final = 20_000_000
_TOS_BITS: Final = 8
_TOS_MASK: Final = (1 << _TOS_BITS) - 1
# An int in the host order of the peer; where kernel RDS runs over RDMA, that is little-endian.
REJECTION: Final = REJECTED_INCOMPATIBLE.to_bytes(4, "little")


def read_offer(
    raw: bytes, *, local: IPAddress, peer: IPAddress
) -> tuple[ConnectData | None, Reason | None]:
    """Return the peer's private data, None if there are none; and why to refuse them, if so.

    Zeros alone are none: the connection manager pads with them.
    """
    try:
        data = ConnectData.parse(raw, ipv6=local.version == 6)
    except WireError:
        return None, None
    named = (address_bytes(data.source), address_bytes(data.target))
    if named == (address_bytes(peer), address_bytes(local)):
        return data, None
    return (data, Reason.WRONG_ADDRESS) if any(raw) else (None, None)


class RdmaPeer:
    """What a local address knows of one peer: its one connection, and the attempts for it."""

    def __init__(
        self,
        *,
        key: PeerKey,
        local: IPAddress,
        settings: PeerSettings,
        random: Random,
        stats: RdmaStats,
        quarantine: Quarantine,
        actions: deque[Action],
        timers: Timers,
        next_number: Callable[[], int],
    ) -> None:
        self.key = key
        self.state = PeerState.DOWN
        self.number: int | None = None  # of what is under way or up
        self._settings = settings
        self._stats = stats
        self._actions = actions
        self._timers = OwnTimers(timers, key.peer, key.tos | key.passive << _TOS_BITS)
        self._search = Reconnector(
            settings, key.peer, timers=self._timers, quarantine=quarantine, random=random
        )
        self._next_number = next_number
        self._since_ns = 0  # when what is under way began, or came up
        self.lower = address_bytes(local) < address_bytes(key.peer)
        self.version = VERSION_OFFERED  # spoken on the last connection
        self.generation: int | None = None  # of a urds node
        self.frame_format = FrameFormat.SHORT  # agreed on for the last connection
        self.used_ns = 0  # when something happened last, for eviction
        self._local = local
        self._is_known = False
        # This generation of the peer was never attached: it can acknowledge nothing sent here.
        self._is_fresh = True
        self._is_in_doubt = False  # another generation has asked since the last connection
        # What is being accepted, and in which version:
        self._request: ConnectData | None = None
        self._request_version = VERSION_OFFERED

    @property
    def is_urds_peer(self) -> bool:
        """Whether the peer is a urds node, by its last private data."""
        return self.generation is not None

    @property
    def is_idle(self) -> bool:
        """Whether no connection is here or on its way, and no message waits for one."""
        return self.state in WITHOUT_CONNECTION and not self._search.wanted

    def report(self) -> ConnectionReport:
        """Tell how the peer's connection is, for tables."""
        state = ConnectionState.DOWN
        if self.state is PeerState.UP:
            state = ConnectionState.UP
        elif self.state in UNDER_WAY:
            state = ConnectionState.CONNECTING
        return self._search.report(state, self._since_ns or None)

    def close(self) -> None:
        """Forget all timers: the peer is evicted."""
        self._timers.cancel(*TimerKind)

    def offer(self, *, acknowledged: int, credits: int) -> bytes:
        """Return the private data: of a request, or of the answer to the one being accepted.

        A peer that sent no mark gets none: towards Linux an answer is what Linux would send.
        """
        if self.state is PeerState.ACCEPTING:
            (major, minor), is_marked = self._request_version, _is_urds_peer(self._request)
        else:
            (major, minor), is_marked = VERSION_OFFERED, True
        return ConnectData(
            source=self._local,
            target=self.key.peer,
            major=major,
            minor=minor,
            tos=self.key.tos,
            ack_sequence=0 if self._is_in_doubt else acknowledged,
            credits=credits,
            generation=self._settings.generation if is_marked else None,
            frame_format=self._settings.frame_format if is_marked else FrameFormat.SHORT,
        ).emit()

    # -- reports of the shell

    def handle_wanted(self, now_ns: int) -> None:
        """Connect because messages wait."""
        if self.state is not PeerState.UP and self._search.want(now_ns):
            self.used_ns = now_ns
            if self.state in WITHOUT_CONNECTION:
                self._reconnect(self._search.retry_soon, now_ns)

    def handle_request(
        self, number: int, offer: ConnectData | None, version: tuple[int, int], now_ns: int
    ) -> None:
        """Accept or reject a request of a supported version."""
        self.used_ns = now_ns
        if self._give_way(offer, now_ns):
            self._stats.accepts += 1
            self._request, self._request_version = offer, version
            self._is_in_doubt |= self._has_other_generation(offer)
            self._begin(PeerInput.ACCEPT, number, now_ns)
            self._emit(Accept(self.key, number))
        else:
            self._emit(Reject(number, REJECTION))
            if self.state is PeerState.DOWN:
                self._search.yield_until(now_ns + _CALL_BACK_NS)
                self._reconnect_later(now_ns)

    def handle_established(self, number: int, raw: bytes, now_ns: int) -> None:
        """Take the connection; `data` is the reply's private data if this side asked for it."""
        if number != self.number or self.state not in UNDER_WAY:
            return
        self.used_ns = now_ns
        if self.state is PeerState.ACCEPTING:
            data, version = self._request, self._request_version
        else:
            data, reason = read_offer(raw, local=self._local, peer=self.key.peer)
            version = data.version if data is not None and data.major else VERSION_OFFERED
            if version < VERSION_OFFERED:
                reason = reason or Reason.VERSION
            if reason is not None:
                self._stats.count_refused(reason)
                self._fail(now_ns)
                self._emit(Refused(self.key.peer, reason))
                return
        self._learn(data, version)
        self._come_up(now_ns)
        acknowledged = 0 if data is None or self._is_fresh else data.ack_sequence
        credits = 0 if data is None else data.credits
        self._is_fresh = self._is_in_doubt = False
        self._emit(
            Attach(self.key, number, acknowledged, credits, self.is_urds_peer, self.frame_format)
        )

    def handle_failed(self, number: int, failure: Failure, now_ns: int) -> None:
        """Try again later: the attempt failed, or what was accepted was never established."""
        if number == self.number and self.state in UNDER_WAY:
            self.used_ns = now_ns
            self._stats.rejected_by_peer += failure is Failure.REJECTED
            self._fail(now_ns)

    def handle_ended(self, number: int, now_ns: int, *, useful: bool = False) -> None:
        """Reconnect: this connection is gone. A `useful` one has carried messages."""
        if number == self.number:
            self.used_ns = now_ns
            if useful:
                self._search.reset_backoff()
            self._start_over(now_ns)

    def handle_protocol_error(self, number: int, now_ns: int) -> None:
        """End the connection and quarantine the host: the next one will hardly be better."""
        if number == self.number:
            self._stats.protocol_errors += 1
            self._search.quarantine(now_ns)
            self.handle_ended(number, now_ns)

    def handle_fault(self, now_ns: int) -> None:
        """Start over after a quarantine, in any state: a fault of this node was met."""
        self._search.quarantine(now_ns)
        self._start_over(now_ns)

    def handle_timer(self, kind: TimerKind, now_ns: int) -> None:
        """Do what one timer asks for."""
        if kind is TimerKind.ATTEMPT:
            if self._search.is_due(now_ns):
                self._connect(now_ns)
        elif kind is TimerKind.GIVE_UP:
            self._give_up(now_ns)
        else:
            self._stats.silent += 1
            self._fail(now_ns)

    # -- requests of the peer

    def _give_way(self, offer: ConnectData | None, now_ns: int) -> bool:
        """Tell whether a request is accepted; end the connection that it replaces."""
        if self.state in WITHOUT_CONNECTION:
            return True
        is_urds_peer = _is_urds_peer(offer)
        if is_urds_peer and self._insists(offer, now_ns):
            self._stats.connect_raced += 1
            return False
        if self.state is PeerState.UP:
            self._stats.listen_closed_stale += 1
            self._lose(now_ns)
            return is_urds_peer
        self._stats.connect_raced += 1
        if is_urds_peer:
            self._abandon()
        return is_urds_peer

    def _insists(self, offer: ConnectData | None, now_ns: int) -> bool:
        """Tell whether the present connection wins against the request of a urds node."""
        if now_ns >= self._since_ns + self._settings.duel_wait_ns:
            return False
        if self.state is PeerState.CONNECTING:
            return self.lower
        generation = self.generation
        if self.state is PeerState.ACCEPTING:
            generation = _generation(self._request)
        return _generation(offer) == generation

    # -- identity of the peer

    def _has_other_generation(self, data: ConnectData | None) -> bool:
        """Tell whether the peer restarted; a change to or from Linux is a restart too."""
        return self._is_known and _generation(data) != self.generation

    def _learn(self, data: ConnectData | None, version: tuple[int, int]) -> None:
        """Note the contents of the private data."""
        before = (self._is_known, self.is_urds_peer, self.version)
        if self._has_other_generation(data):
            self._stats.peer_restarts += 1
            self._is_fresh = True
            self._emit(RestartPeer(self.key))
        self._is_known, self.version = True, version
        self.generation = _generation(data)
        offered = FrameFormat.SHORT if data is None else data.frame_format
        self.frame_format = min(self._settings.frame_format, offered)
        if before != (True, self.is_urds_peer, version):
            self._emit(PeerKnown(self.key, self.is_urds_peer, version))

    # -- attempts

    def _reconnect_later(self, now_ns: int) -> None:
        """Connect after the back-off's delay."""
        self._reconnect(self._search.retry_later, now_ns)

    def _reconnect(self, retry: Callable[[int], bool], now_ns: int) -> None:
        """Connect, now or later. The passive end waits for the other one."""
        self._move(PeerInput.RECONNECT)
        if self.key.passive:
            self._search.begin_outage(now_ns)
        elif retry(now_ns):
            self._connect(now_ns)

    def _connect(self, now_ns: int) -> None:
        self._stats.connects += 1
        self._search.begin_attempt(now_ns)
        number = self._next_number()
        self._begin(PeerInput.CONNECT, number, now_ns)
        self._emit(Connect(self.key, number))

    def _give_up(self, now_ns: int) -> None:
        """Stop the attempts; the next message starts anew."""
        self._stats.gave_up += 1
        self._emit(GiveUp(self.key, self._search.give_up(now_ns)))
        self._move(PeerInput.GIVE_UP)

    # -- the connection

    def _begin(self, event: PeerInput, number: int, now_ns: int) -> None:
        """Enter CONNECTING or ACCEPTING."""
        self._search.cancel()
        self._move(event)
        self.number, self._since_ns = number, now_ns
        self._timers.set(TimerKind.ANSWER, now_ns + self._settings.answer_wait_ns)

    def _abandon(self) -> None:
        """End what is under way."""
        assert self.number is not None, "what is under way has a number"
        self._timers.cancel(TimerKind.ANSWER)
        self._move(PeerInput.FAIL)
        self._emit(Abandon(self.key, self.number))
        self.number = None

    def _fail(self, now_ns: int) -> None:
        """Note that what was under way has failed, and try again if a message waits."""
        if self.state is PeerState.CONNECTING:
            self._stats.connect_failures += 1
        else:
            self._stats.accept_failures += 1
        self._abandon()
        if self._search.is_active:
            self._reconnect_later(now_ns)

    def _come_up(self, now_ns: int) -> None:
        """Note that what was under way is established."""
        self._stats.ups += 1
        self._timers.cancel(TimerKind.ANSWER)
        self._move(PeerInput.ESTABLISH)
        self._search.end_outage()
        self._since_ns = now_ns

    def _lose(self, now_ns: int) -> None:
        """End the connection that is up; another one is tried for, whatever comes between."""
        assert self.number is not None, "a connection that is up has a number"
        self._stats.downs += 1
        if now_ns >= self._since_ns + self._settings.reconnect_delay_max_ns:
            self._search.reset_backoff()
        self._move(PeerInput.LOSE)
        self._emit(Detach(self.key, self.number))
        self.number = None
        self._search.begin_outage(now_ns)

    def _start_over(self, now_ns: int) -> None:
        """End what there is, and reconnect if a connection was up or is wanted."""
        if self.state is PeerState.UP:
            self._lose(now_ns)
            self._reconnect_later(now_ns)
        elif self.state in UNDER_WAY:
            self._fail(now_ns)
        elif self._search.is_active:
            self._reconnect_later(now_ns)

    # -- small things

    def _move(self, event: PeerInput) -> None:
        self.state = next_state(self.state, event)

    def _emit(self, action: Action) -> None:
        self._actions.append(action)


def key_of(timer: TimerKey) -> PeerKey:
    """Return the peer over RDMA that a timer concerns."""
    return PeerKey(timer.peer, timer.number & _TOS_MASK, bool(timer.number >> _TOS_BITS))


def _generation(data: ConnectData | None) -> int | None:
    return None if data is None else data.generation


def _is_urds_peer(data: ConnectData | None) -> bool:
    return _generation(data) is not None
