"""A device as both engines have it: each call goes to both, and what they answer is equal.

Objects are pairs: the reference's first, the compiled one's second. Memory is a pair of buffers as
well, which hold the same at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from typing import Any, Final

from urds.verbs.engine.attributes import LinkTraits, QPAttr, QPCap
from urds.verbs.engine.contract import EngineFactory
from urds.verbs.engine.engine import Engine
from urds.verbs.engine.keys import NestedDomain
from urds.verbs.engine.numbers import AccessFlag, QPAttrMask, QPState, QPType
from urds.verbs.engine.work import WC, AddressVector, Completed

Both = tuple[Any, Any]
Answer = tuple[str, Any]

MTU_BYTES: Final = 64
LINK: Final = LinkTraits(MTU_BYTES, lossless=True)
MEMORY_BYTES: Final = 2048
BASE: Final = 0x10000
ALL_ACCESS: Final = AccessFlag(31)
CAP: Final = QPCap(12, 8, 3, 2, 128)
FIRST_QPN: Final = 16
M = QPAttrMask
STEPS: Final = {
    QPType.RC: (
        (QPState.INIT, M.PKEY_INDEX | M.PORT | M.ACCESS_FLAGS),
        (
            QPState.RTR,
            M.AV | M.PATH_MTU | M.DEST_QPN | M.RQ_PSN | M.MAX_DEST_RD_ATOMIC | M.MIN_RNR_TIMER,
        ),
        (QPState.RTS, M.SQ_PSN | M.MAX_QP_RD_ATOMIC | M.RETRY_CNT | M.RNR_RETRY | M.TIMEOUT),
    ),
    QPType.UD: (
        (QPState.INIT, M.PKEY_INDEX | M.PORT | M.QKEY),
        (QPState.RTR, M(0)),
        (QPState.RTS, M.SQ_PSN),
    ),
}


class Difference(AssertionError):
    """The engines do not agree."""


@dataclass
class Registered:
    """One region of both, with its memory."""

    pair: Both
    memory: tuple[bytearray, bytearray]


@dataclass
class Pair:
    """One queue pair of both, and what it uses."""

    pair: Both
    qpn: int
    kind: QPType
    send_cq: Both
    recv_cq: Both
    srq: Both | None
    pd: object
    peer: Pair | None = None

    @property
    def state(self) -> QPState:
        state: QPState = self.pair[0].state
        return state


@dataclass
class Node:
    """One device."""

    native: EngineFactory
    gid: bytes
    checksum: bool = False
    cqs: list[Both] = field(default_factory=list)
    srqs: list[Both] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    regions: list[Registered] = field(default_factory=list)
    windows: list[Both] = field(default_factory=list)
    fed: tuple[list[WC], list[WC]] = field(default_factory=lambda: ([], []))
    seen: dict[str, int] = field(default_factory=dict)
    calls: int = 0
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        engines = (Engine, self.native)
        made = [make(LINK, gid=self.gid, checksum=self.checksum) for make in engines]
        self.engines: Both = (made[0], made[1])
        self.pd: object = object()
        self.inner = NestedDomain(self.pd)
        self.other_pd: object = object()
        self.vector = AddressVector(self.gid)
        self._next_qpn = FIRST_QPN
        self._numbers: dict[int, str] = {}

    # -- calls

    def both(self, what: str, call: Callable[[int], Any], *, plain: bool = True) -> Any:
        """Call on both sides; return the reference's answer, or its error as an `Answer`.

        With `plain` what is returned has to be equal.
        """
        self.calls += 1
        self.log.append(what)
        answers: list[Answer] = []
        for side in (0, 1):
            try:
                answers.append(("value", call(side)))
            except OSError as error:
                answers.append(("error", (error.errno, str(error))))
        (kind, value), (other_kind, other) = answers
        if kind != other_kind or ((kind == "error" or plain) and value != other):
            raise Difference(f"{what}: {value!r} here, {other!r} compiled")
        if kind == "error":
            self.note("refused")
            return answers[0]
        return value if plain else (value, other)

    def note(self, name: str) -> None:
        """Count that something happened."""
        self.seen[name] = self.seen.get(name, 0) + 1

    def make(self, what: str, call: Callable[[int], Any]) -> Both | None:
        """Make an object on both sides; `None` if both refuse."""
        made = self.both(what, call, plain=False)
        return None if made[0] == "error" else made

    # -- objects

    def completion_queue(self, capacity: int, *, has_sink: bool = False) -> Both | None:
        def call(side: int) -> Any:
            sink = self.fed[side].extend if has_sink else None
            return self.engines[side].completion_queue(capacity, sink=sink)

        made = self.make(f"completion_queue({capacity})", call)
        if made is not None:
            self._name(made, f"cq {len(self._numbers)}")
            self.cqs.append(made)
        return made

    def shared_queue(self, capacity: int, sge_max: int, pd: object) -> Both | None:
        def call(side: int) -> Any:
            return self.engines[side].shared_receive_queue(capacity, sge_max, pd=pd)

        made = self.make(f"shared_receive_queue({capacity})", call)
        if made is not None:
            self._name(made, f"srq {len(self._numbers)}")
            self.srqs.append(made)
        return made

    def queue_pair(
        self,
        kind: QPType,
        send_cq: Both,
        recv_cq: Both,
        srq: Both | None,
        *,
        pd: object,
        sq_sig_all: bool = False,
    ) -> Pair:
        qpn = self._next_qpn
        self._next_qpn += 1

        def call(side: int) -> Any:
            return self.engines[side].queue_pair(
                qpn=qpn,
                kind=kind,
                pd=pd,
                send_cq=send_cq[side],
                recv_cq=recv_cq[side],
                cap=QPCap(*astuple(CAP)),
                srq=None if srq is None else srq[side],
                sq_sig_all=sq_sig_all,
            )

        made = self.make(f"queue_pair({kind.name})", call)
        assert made is not None
        self._name(made, f"qp {qpn}")
        pair = Pair(made, qpn, kind, send_cq, recv_cq, srq, pd)
        self.pairs.append(pair)
        return pair

    def _name(self, made: Both, name: str) -> None:
        for one in made:
            self._numbers[id(one)] = name

    def close(self, pair: Pair) -> None:
        self.pairs.remove(pair)
        self.both(f"close {pair.qpn}", lambda side: pair.pair[side].discard_completions())
        self.both(f"close {pair.qpn}", lambda side: pair.pair[side].close())
        for one in pair.pair:
            del self._numbers[id(one)]

    # -- memory

    def register(
        self,
        length: int,
        access: int,
        *,
        address: int = BASE,
        pd: object | None = None,
        key: int | None = None,
        readonly: bool = False,
    ) -> Registered | None:
        memory = (bytearray(length), bytearray(length))

        def call(side: int) -> Any:
            view = memoryview(memory[side])
            view = view.toreadonly() if readonly else view
            domain = self.pd if pd is None else pd
            flags: Any = access
            return self.engines[side].register(domain, view, address, flags, key=key)

        made = self.make(f"register({length}, {access}, {address:#x}, {key})", call)
        if made is None:
            return None
        region = Registered(made, memory)
        self.compare_region(region)
        self.regions.append(region)
        return region

    def compare_region(self, region: Registered) -> None:
        """Compare what a region says of itself."""
        names = ("lkey", "rkey", "address", "length", "access", "windows")
        found = [tuple(getattr(one, name) for name in names) for one in region.pair]
        if found[0] != found[1]:
            raise Difference(f"region {found[0]} here, {found[1]} compiled")

    # -- what happened

    def compare(self) -> None:
        """Compare all that can be seen without a call that changes something."""
        for pair in self.pairs:
            self.both(f"look at {pair.qpn}", lambda side, pair=pair: look(pair.pair[side]))
        for cq in self.cqs:
            self.both("look at cq", lambda side, cq=cq: (len(cq[side]), cq[side].overrun))
        for srq in self.srqs:
            self.both("look at srq", lambda side, srq=srq: (len(srq[side]), srq[side].limit))
        for region in self.regions:
            self.compare_region(region)
            if region.memory[0] != region.memory[1]:
                raise Difference(f"memory of region {region.pair[0].lkey:#x}")
        for window in self.windows:
            self.both(
                "look at window",
                lambda side, window=window: (window[side].rkey, window[side].region is None),
            )
        self.both("snapshot", lambda side: tuple(self.engines[side].snapshot()))
        self.both("poll_timeout", lambda side: self.engines[side].poll_timeout())

    def events(self) -> list[Any]:
        """Take the events of both; they are about the same objects, in the same order."""
        self.both("fed", lambda side: self.engines[side].fed)
        self.both("feed_sinks", lambda side: self.engines[side].feed_sinks())
        if self.fed[0] != self.fed[1]:
            raise Difference(f"sinks: {self.fed[0]} here, {self.fed[1]} compiled")
        events: list[Any] = self.both(
            "take_events",
            lambda side: [self._event(event) for event in self.engines[side].take_events()],
        )
        for name, _ in events:
            self.note(name)
        return events

    def _event(self, event: Any) -> tuple[str, str]:
        about = self._numbers[id(event.element)]
        return ("COMPLETED" if isinstance(event, Completed) else event.event_type.name, about)

    def poll(self, cq: Both, count: int) -> list[WC]:
        """Poll a queue of both."""
        found: list[WC] = self.both(f"poll({count})", lambda side: cq[side].poll(count))
        for wc in found:
            self.note(wc.status.name)
        return found

    def transmit(self, now_ns: int) -> tuple[AddressVector, bytes] | None:
        """Take the next packet of both."""
        found: tuple[AddressVector, bytes] | None = self.both(
            "poll_transmit", lambda side: self.engines[side].poll_transmit(now_ns)
        )
        return found


def look(qp: Any) -> tuple[Any, ...]:
    """Return what can be read of a queue pair."""
    return (
        qp.state, qp.qpn, qp.qp_type, qp.peer, qp.mtu_bytes, qp.recv_query(), bool(qp.receives),
        qp.outstanding_requests, qp.hold_receives, qp.poll_timeout(), attributes(qp.attr),
    )  # fmt: skip


def attributes(attr: QPAttr) -> tuple[Any, ...]:
    """Return the fields of attributes, as plain values."""
    return astuple(attr)
