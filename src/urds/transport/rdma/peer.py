"""One peer at one type of service: who it is, and the search for a connection to it.

    DOWN        no connection, and nobody looks for one
    WAITING     no connection; the next attempt has its time
    CONNECTING  a `Connect` is out
    ACCEPTING   an `Accept` is out
    UP          a connection is established

Either side may connect. So two attempts may cross, and a request may meet a connection that is dead
at the other end. Linux rejects the request in both cases; in the second it drops the old connection
too. Chance in the back-off parts the two sides. Own nodes do better, for a request carries our
mark: of two attempts the lower address's wins at once, and a request that meets a connection takes
its place.

Attempts begin at once, then after random times, up to a bound that doubles. It begins anew once a
connection lasted: Linux resets it as soon as one is up, but then two nodes that do not understand
each other would connect as fast as they can. After a breach of the protocol comes a rest, in which
requests are rejected as well.

Source: rds.md 4.1 (linux v6.12 net/rds/ib_cm.c, net/rds/rdma_transport.c, net/rds/threads.c).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from urds.errors import LocalProtocolError, WireError
from urds.proto.backoff import Backoff
from urds.proto.paths import Address, address_octets
from urds.proto.timers import TimerKey, TimerKind, Timers
from urds.transport.rdma.events import (
    Abandon,
    Accept,
    Action,
    Attach,
    Connect,
    Detach,
    Failure,
    GiveUp,
    PeerKey,
    PeerKnown,
    Reason,
    Refused,
    Reject,
    RestartPeer,
)
from urds.transport.rdma.settings import PeerSettings
from urds.transport.rdma.stats import RdmaStats
from urds.wire.connect_data import REJECTED_INCOMPATIBLE, VERSION_OFFERED, ConnectData

if TYPE_CHECKING:
    from random import Random

# What a Linux peer has to ask again, after its request made us drop a connection.
_CALL_BACK_NS: Final = 20_000_000
_TOS_BITS: Final = 8
_TOS_MASK: Final = (1 << _TOS_BITS) - 1
_TIMERS: Final = (TimerKind.ATTEMPT, TimerKind.GIVE_UP, TimerKind.ANSWER)

# An int in the host order of the peer; where kernel RDS runs over RDMA, that is little-endian.
REJECTION: Final = REJECTED_INCOMPATIBLE.to_bytes(4, "little")


class State(Enum):
    """Where a peer stands."""

    DOWN = auto()
    WAITING = auto()
    CONNECTING = auto()
    ACCEPTING = auto()
    UP = auto()


class Input(Enum):
    """What moves a peer."""

    SEEK = auto()
    CONNECT = auto()
    ACCEPT = auto()
    FAIL = auto()  # the attempt or the answer ended without a connection
    ESTABLISH = auto()
    LOSE = auto()
    GIVE_UP = auto()


_RESTING: Final = (State.DOWN, State.WAITING)
_UNDER_WAY: Final = (State.CONNECTING, State.ACCEPTING)

TRANSITIONS: Final[dict[tuple[State, Input], State]] = {
    **{(state, Input.SEEK): State.WAITING for state in _RESTING},
    (State.WAITING, Input.CONNECT): State.CONNECTING,
    **{(state, Input.ACCEPT): State.ACCEPTING for state in _RESTING},
    **{(state, Input.FAIL): State.DOWN for state in _UNDER_WAY},
    **{(state, Input.ESTABLISH): State.UP for state in _UNDER_WAY},
    (State.UP, Input.LOSE): State.DOWN,
    **{(state, Input.GIVE_UP): State.DOWN for state in _RESTING},
    **{(state, Input.GIVE_UP): state for state in _UNDER_WAY},  # its end is still to come
}


def next_state(state: State, event: Input) -> State:
    """Return the state after `event`. Raises LocalProtocolError if it is not allowed."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise LocalProtocolError(f"{event.name} in state {state.name}") from None


def timer_key(key: PeerKey, kind: TimerKind) -> TimerKey:
    """Return the name of a peer's timer; `key_of` is the way back."""
    return TimerKey(key.peer, kind, key.tos | key.passive << _TOS_BITS)


def key_of(timer: TimerKey) -> PeerKey:
    """Return the peer that a timer concerns."""
    return PeerKey(timer.peer, timer.number & _TOS_MASK, bool(timer.number >> _TOS_BITS))


def read_offer(
    octets: bytes, *, local: Address, peer: Address
) -> tuple[ConnectData | None, Reason | None]:
    """Return the peer's private data, None if there are none, and why they are refused, if so.

    The connection manager may pad nothing with zeros, so zeros alone are none.
    """
    try:
        data = ConnectData.parse(octets, ipv6=local.version == 6)
    except WireError:
        return None, None
    if not any(octets[: len(data.emit())]):
        return None, None
    named = (address_octets(data.source), address_octets(data.target))
    if named != (address_octets(peer), address_octets(local)):
        return data, Reason.WRONG_ADDRESS
    return data, None


class RdmaPeer:
    """What an endpoint knows of one peer, and what becomes of its connection."""

    def __init__(
        self,
        *,
        key: PeerKey,
        local: Address,
        settings: PeerSettings,
        random: Random,
        stats: RdmaStats,
        actions: deque[Action],
        timers: Timers,
        next_number: Callable[[], int],
    ) -> None:
        self.key = key
        self.lower = address_octets(local) < address_octets(key.peer)
        self.state = State.DOWN
        self.number: int | None = None  # of what is under way or up
        # Who the peer is. What it said last holds until it says something else.
        self.is_known = False
        self.version = VERSION_OFFERED
        self.generation: int | None = None  # None: no own node
        self.wanted = False  # messages of ours wait
        self.used_ns = 0  # when something happened last, for eviction
        self._local = local
        self._settings = settings
        self._random = random
        self._stats = stats
        self._actions = actions
        self._timers = timers
        self._next_number = next_number
        self._backoff = Backoff(min_ns=settings.reconnect_delay_min_ns, random=random)
        self._sought = False  # attempts go on until one succeeds, or we give up
        self._attempted_ns: int | None = None  # our last attempt
        self._up_ns = 0
        self._rest_until_ns = 0  # no connection before: the peer broke the protocol
        self._down_ns: int | None = None  # since when there is no connection, while it is sought
        self._request: ConnectData | None = None  # what is being accepted
        # The peer's life has not been attached yet: nothing it acknowledges can be ours.
        self._is_fresh = True

    @property
    def is_own(self) -> bool:
        """Whether the peer is an own node, by its last private data."""
        return self.generation is not None

    @property
    def is_idle(self) -> bool:
        """Whether no connection is here or on its way, and no message waits for one."""
        return self.state in _RESTING and not self.wanted

    def close(self) -> None:
        """Forget all timers: the peer is evicted."""
        self._cancel(*_TIMERS)

    def offer(self, *, acknowledged: int, credits: int) -> bytes:
        """Return our private data: of a request, or of the answer to the one being accepted.

        Whoever sends no mark gets none: towards Linux an answer is what Linux would send.
        """
        is_answer = self.state is State.ACCEPTING
        major, minor = self.version if is_answer else VERSION_OFFERED
        return ConnectData(
            source=self._local,
            target=self.key.peer,
            major=major,
            minor=minor,
            tos=self.key.tos,
            ack_sequence=acknowledged,
            credits=credits,
            generation=self._settings.generation if self.is_own or not is_answer else None,
        ).emit()

    # -- reports

    def handle_wanted(self, now_ns: int) -> None:
        """Look for a connection: messages wait."""
        if self.state is State.UP or self.wanted:
            return
        self.used_ns = now_ns
        self.wanted = self._sought = True
        self._start_outage(now_ns)
        if self.state in _RESTING:
            # No sooner after the last attempt than the back-off says, but without its idle delays.
            delay_ns = self._backoff.next_ns(max_ns=self._settings.reconnect_delay_max_ns)
            last_ns = now_ns if self._attempted_ns is None else self._attempted_ns
            self._seek(last_ns + delay_ns - now_ns, now_ns)

    def handle_request(
        self, number: int, offer: ConnectData | None, version: tuple[int, int], now_ns: int
    ) -> None:
        """Accept or reject a request; its version is one that we answer."""
        self.used_ns = now_ns
        if now_ns < self._rest_until_ns:
            self._stats.refused_resting += 1
            self._reject(number)
        elif self._give_way(offer, now_ns):
            self._accept(number, offer, version, now_ns)
        else:
            self._reject(number)
            if self.state is State.DOWN:
                self._seek_again(now_ns, after_ns=_CALL_BACK_NS)

    def handle_established(self, number: int, octets: bytes, now_ns: int) -> None:
        """Take the connection; of one that we asked for, `octets` are the reply's private data."""
        if number != self.number or self.state not in _UNDER_WAY:
            return
        self.used_ns = now_ns
        data = self._request
        if self.state is State.CONNECTING:
            data, reason = read_offer(octets, local=self._local, peer=self.key.peer)
            version = VERSION_OFFERED if data is None or not data.major else data.version
            if reason is None and version < VERSION_OFFERED:
                reason = Reason.VERSION
            if reason is not None:
                self._stats.note_refusal(reason)
                self._fail(now_ns)
                self._emit(Refused(self.key.peer, reason))
                return
            self._learn(data, version)
        self._come_up(number, data, now_ns)

    def handle_failed(self, number: int, failure: Failure, now_ns: int) -> None:
        """Try again later: the attempt failed, or what was accepted was never established."""
        if number == self.number and self.state in _UNDER_WAY:
            self.used_ns = now_ns
            self._stats.rejected_by_peer += failure is Failure.REJECTED
            self._fail(now_ns)

    def handle_ended(self, number: int, now_ns: int) -> None:
        """Look for another connection: this one is gone."""
        if number != self.number:
            return
        self.used_ns = now_ns
        if self.state is State.UP:
            self._lose(now_ns)
            self._seek_again(now_ns)
        else:
            self._fail(now_ns)

    def handle_breach(self, number: int, now_ns: int) -> None:
        """End the connection and let some time pass: the next one will hardly be better."""
        if number != self.number:
            return
        self._stats.breaches += 1
        rest_ns = self._random.randrange(self._settings.reconnect_delay_max_ns)
        self._rest_until_ns = now_ns + rest_ns
        self.handle_ended(number, now_ns)

    def handle_timer(self, kind: TimerKind, now_ns: int) -> None:
        """Do what one timer asks for."""
        if kind is TimerKind.ATTEMPT:
            self._connect(now_ns)
        elif kind is TimerKind.GIVE_UP:
            self._give_up(now_ns)
        else:
            self._stats.silent += 1
            self._fail(now_ns)

    # -- the peer's requests

    def _give_way(self, offer: ConnectData | None, now_ns: int) -> bool:
        """Tell whether a request is accepted, and end what is in its way."""
        is_own = offer is not None and offer.generation is not None
        if self.state is State.UP:
            self._stats.listen_closed_stale += 1
            self._lose(now_ns)
            return is_own
        if self.state in _RESTING:
            return True
        self._stats.connect_raced += 1
        if not is_own or self._insists(now_ns):
            return False
        self._abandon()
        return True

    def _insists(self, now_ns: int) -> bool:
        """Tell whether our attempt wins against one of an own node.

        While we accept one request, another shows that the first was given up.
        """
        if self.state is not State.CONNECTING or not self.lower:
            return False
        assert self._attempted_ns is not None, "an attempt is under way"
        return now_ns < self._attempted_ns + self._settings.duel_wait_ns

    def _accept(
        self, number: int, offer: ConnectData | None, version: tuple[int, int], now_ns: int
    ) -> None:
        self._cancel(TimerKind.ATTEMPT)
        self._stats.accepts += 1
        self.state = next_state(self.state, Input.ACCEPT)
        self.number, self._request = number, offer
        self._set(TimerKind.ANSWER, now_ns + self._settings.answer_wait_ns)
        # Before our answer is made: it must not acknowledge what an earlier life sent.
        self._learn(offer, version)
        self._emit(Accept(self.key, number))

    def _reject(self, number: int) -> None:
        self._emit(Reject(number, REJECTION))

    # -- the connection

    def _learn(self, data: ConnectData | None, version: tuple[int, int]) -> None:
        """Take in who the peer is. One that becomes Linux, or was it, began a new life as well."""
        generation = None if data is None else data.generation
        before = (self.is_known, self.is_own, self.version)
        if self.is_known and generation != self.generation:
            self._stats.peer_restarts += 1
            self._is_fresh = True
            self._emit(RestartPeer(self.key))
        self.is_known, self.generation, self.version = True, generation, version
        if before != (True, self.is_own, version):
            self._emit(PeerKnown(self.key, self.is_own, version))

    def _come_up(self, number: int, data: ConnectData | None, now_ns: int) -> None:
        self._cancel(TimerKind.ANSWER, TimerKind.GIVE_UP)
        self.state = next_state(self.state, Input.ESTABLISH)
        self.wanted = self._sought = False
        self._down_ns, self._up_ns, self._request = None, now_ns, None
        self._stats.ups += 1
        acknowledged = 0 if data is None or self._is_fresh else data.ack_sequence
        self._is_fresh = False
        credits = 0 if data is None else data.credits
        self._emit(Attach(self.key, number, acknowledged, credits, self.is_own))

    def _lose(self, now_ns: int) -> None:
        """End the connection that is up."""
        assert self.number is not None, "a connection that is up has a number"
        self._stats.downs += 1
        if now_ns >= self._up_ns + self._settings.reconnect_delay_max_ns:
            self._backoff.reset()
        self.state = next_state(self.state, Input.LOSE)
        self._emit(Detach(self.key, self.number))
        self.number = None

    def _abandon(self) -> None:
        """End what is under way."""
        assert self.number is not None, "what is under way has a number"
        self._cancel(TimerKind.ANSWER)
        self.state = next_state(self.state, Input.FAIL)
        self._emit(Abandon(self.key, self.number))
        self.number = self._request = None

    # -- the search for one

    def _start_outage(self, now_ns: int) -> None:
        if self._down_ns is not None:
            return
        self._down_ns = now_ns
        if self._settings.reconnect_give_up_ns:
            self._set(TimerKind.GIVE_UP, now_ns + self._settings.reconnect_give_up_ns)

    def _fail(self, now_ns: int) -> None:
        """Note that what was under way has failed, and try again if anybody wants it."""
        if self.state is State.CONNECTING:
            self._stats.connect_failures += 1
        else:
            self._stats.accept_failures += 1
        self._abandon()
        if self._sought:
            self._seek_again(now_ns)

    def _seek_again(self, now_ns: int, *, after_ns: int = 0) -> None:
        """Look for a connection after the back-off's delay."""
        settings = self._settings
        delay_ns = self._backoff.next_ns(
            max_ns=settings.reconnect_delay_max_ns
            if self.wanted
            else settings.reconnect_delay_idle_max_ns
        )
        self._seek(after_ns + delay_ns, now_ns)

    def _seek(self, delay_ns: int, now_ns: int) -> None:
        """Look for a connection, now or after a delay. The passive end waits for the other one."""
        delay_ns = max(delay_ns, self._rest_until_ns - now_ns)
        self.state = next_state(self.state, Input.SEEK)
        self._sought = True
        self._start_outage(now_ns)
        if self.key.passive:
            return
        if delay_ns > 0:
            self._set(TimerKind.ATTEMPT, now_ns + delay_ns)
        else:
            self._connect(now_ns)

    def _connect(self, now_ns: int) -> None:
        self._cancel(TimerKind.ATTEMPT)
        self._stats.connects += 1
        self.state = next_state(self.state, Input.CONNECT)
        self._attempted_ns = now_ns
        self.number = self._next_number()
        self._set(TimerKind.ANSWER, now_ns + self._settings.answer_wait_ns)
        self._emit(Connect(self.key, self.number))

    def _give_up(self, now_ns: int) -> None:
        """Stop looking; the next message starts anew."""
        assert self._down_ns is not None, "the timer runs during an outage only"
        self._stats.gave_up += 1
        self._emit(GiveUp(self.key, now_ns - self._down_ns))
        self.state = next_state(self.state, Input.GIVE_UP)
        self.wanted = self._sought = False
        self._down_ns = None
        self._cancel(TimerKind.ATTEMPT)

    # -- small things

    def _emit(self, action: Action) -> None:
        self._actions.append(action)

    def _set(self, kind: TimerKind, deadline_ns: int) -> None:
        self._timers.set(timer_key(self.key, kind), deadline_ns)

    def _cancel(self, *kinds: TimerKind) -> None:
        for kind in kinds:
            self._timers.cancel(timer_key(self.key, kind))
