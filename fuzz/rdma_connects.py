"""Connecting over RDMA, with peers that ask for anything, and a device that reports anything.

The shell here keeps the contract of `rds.control.rdma_events`: a connection that `Connect` or
`Accept` names is ended once, a request is answered once, and peers stay within their limit. Parsers
of what peers and programs send are here as well.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from ipaddress import ip_address

from fuzz.script import Script, actions, step
from urds.rds.cmsg import destination_cookie, destination_extension
from urds.rds.constants import SockOpt
from urds.rds.control import rdma_events as events
from urds.rds.control.events import Action, Reason
from urds.rds.control.rdma_events import Failure, PeerKey
from urds.rds.control.rdma_local_address import RdmaLocalAddress
from urds.rds.control.rdma_peer import REJECTION, read_offer
from urds.rds.control.settings import LocalAddressSettings, PeerSettings
from urds.rds.control.state import PeerState
from urds.rds.control.stats import RdmaStats
from urds.rds.rdma import read_free, read_region
from urds.rds.wire.private_data import ConnectData, accepted_version

STEPS_MAX = 300
PEERS_MAX = 4
LOCAL = ip_address("127.0.0.5")
OTHERS = tuple(ip_address(f"127.0.0.{host}") for host in (2, 5, 9, 10, 11, 12, 13))
ALIEN = ip_address("192.0.2.1")  # not allowed
GENERATION = 77
_MS = 1_000_000
_ACTIONS_MAX = 200  # that one step can cause


class Shell:
    """A local address, and the work of its shell for it."""

    def __init__(self, choices: int) -> None:
        self.now_ns = 0
        self._number = 0
        self._requests: dict[int, object] = {}  # not answered
        self._links: dict[int, PeerKey] = {}  # named by Connect or Accept, not ended
        self._attached: dict[PeerKey, int] = {}
        self.endpoint = RdmaLocalAddress(
            local=LOCAL,
            settings=LocalAddressSettings(allowed=(), peers_max=PEERS_MAX),
            peer_settings=PeerSettings(
                generation=GENERATION, reconnect_give_up_ns=50 * _MS if choices & 1 else 0
            ),
            random=random.Random(choices),
            stats=RdmaStats(),
            next_number=self._next_number,
            may_evict=lambda key: bool(choices & 2) or not key.tos,
        )

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    # -- reports

    def request(self, choice: int, data: bytes) -> None:
        """Let a peer ask, with any private data."""
        number = self._next_number()
        self._requests[number] = None
        peer = ALIEN if choice % 16 == 15 else OTHERS[choice % len(OTHERS)]
        self.endpoint.handle_request(number, peer, data, self.now_ns)

    def wanted(self, choice: int, tos: int) -> None:
        """Let a program send."""
        with suppress(OSError):
            key = self.endpoint.key_for(OTHERS[choice % len(OTHERS)], tos, self.now_ns)
            self.endpoint.handle_wanted(key, self.now_ns)

    def report(self, kind: int, place: int, data: bytes) -> None:
        """Report on a connection under way, up, or long gone."""
        numbers = sorted(self._links)
        if not numbers or kind & 8:  # one that never was, or that has ended
            key, number = PeerKey(OTHERS[place % len(OTHERS)], 0), place
        else:
            number = numbers[place % len(numbers)]
            key = self._links[number]
        now_ns, endpoint = self.now_ns, self.endpoint
        match kind & 7:
            case 0 | 1 | 2:
                endpoint.handle_established(key, number, data, now_ns)
            case 3 | 4:
                endpoint.handle_failed(key, number, Failure(1 + place % 4), now_ns)
            case 5:
                endpoint.handle_ended(key, number, now_ns)
            case 6:
                endpoint.handle_protocol_error(key, number, now_ns)
            case _:
                endpoint.handle_fault(key, now_ns)

    def pass_time(self, amount: int) -> None:
        """Let time pass, and run what is due."""
        self.now_ns += amount * amount * _MS
        self.endpoint.handle_timeout(self.now_ns)

    # -- decisions of the core

    def carry_out(self) -> None:
        """Take all actions; check each."""
        decided: Iterator[Action] = actions(self.endpoint.poll_event, actions_max=_ACTIONS_MAX)
        for action in decided:
            self._do(action)
        self.check()

    def _do(self, action: Action) -> None:
        match action:
            case events.Connect(key, number):
                self._begin(key, number)
            case events.Accept(key, number):
                del self._requests[number]
                self._begin(key, number)
            case events.Reject(number, data):
                del self._requests[number]
                assert data == REJECTION
            case events.Attach(key, number, acknowledged, credits, _):
                assert self._links[number] == key and key not in self._attached
                assert 0 <= acknowledged < 1 << 64 and 0 <= credits < 1 << 32
                self._attached[key] = number
            case events.Detach(key, number):
                assert self._attached.pop(key) == number and self._links.pop(number) == key
            case events.Abandon(key, number):
                assert self._attached.get(key) != number and self._links.pop(number) == key
            case events.RestartPeer(key) | events.Forget(key):
                assert key not in self._attached

    def _begin(self, key: PeerKey, number: int) -> None:
        assert number not in self._links, "a number that is in use"
        self._links[number] = key
        if self.endpoint.find(key) is None:
            return  # forgotten by a later action, which is still to come
        raw = self.endpoint.offer(key, acknowledged=5, credits=3)
        data = ConnectData.parse(raw, ipv6=False)
        assert (data.source, data.target, data.tos) == (LOCAL, key.peer, key.tos)
        assert data.generation in (GENERATION, None)

    def check(self) -> None:
        """Check what is kept, and that each connection has a peer."""
        peers = self.endpoint.peers
        assert len(peers) <= PEERS_MAX
        assert not self._requests, "a request without an answer"
        up = {peer.key: peer.number for peer in peers if peer.state is PeerState.UP}
        assert up == self._attached
        assert set(self._links) == {peer.number for peer in peers if peer.number is not None}
        due_ns = self.endpoint.poll_timeout()
        assert due_ns is None or due_ns > self.now_ns or self.endpoint.timed_key is None


def rdma_endpoint(data: bytes) -> None:
    """Let a script be the peers, the device, the programs and the time of a local address."""
    script = Script(data)
    shell = Shell(script.number())
    for _ in range(STEPS_MAX):
        if not script:
            break
        action, choice = script.number(), script.number()
        if action & 3 == 0:
            shell.request(choice, script.piece())
        elif action & 3 == 1:
            bytes_said = _offer(choice, script.number()) if action & 4 else script.piece()
            shell.report(action >> 3, choice, bytes_said)
        elif action & 3 == 2:
            shell.wanted(choice, action >> 6)
        elif action & 4:
            shell.request(choice, _offer(choice, script.number()))
        else:
            shell.pass_time(choice)
        shell.carry_out()


def _offer(choice: int, kind: int) -> bytes:
    """Return private data that are nearly in order."""
    return ConnectData(
        source=OTHERS[choice % len(OTHERS)],
        target=LOCAL,
        major=4 if kind & 64 else 3,
        minor=0 if kind & 128 else 1,
        tos=kind >> 4 & 3,
        ack_sequence=kind * 1000,
        credits=kind & 3,
        generation=(kind & 3) or None,
    ).emit()


def rdma_offer(data: bytes) -> None:
    """Read private data of a request as a local address does, of both families."""
    v6 = bool(data[:1] > b"\x7f")
    local, peer = (ip_address("fd00::1"), ip_address("fd00::2")) if v6 else (LOCAL, OTHERS[0])
    offer, reason = read_offer(data[1:], local=local, peer=peer)
    assert reason in (None, Reason.WRONG_ADDRESS)
    if offer is not None and reason is None:
        assert (offer.source, offer.target) == (peer, local)
        assert ConnectData.parse(offer.emit(), ipv6=v6) == offer
    accepted_version(offer)


def rdma_cookie(data: bytes) -> None:
    """Read the cookie that a peer's message brings; it comes out again."""
    cookie = destination_cookie(data[:16].ljust(16, b"\0"))
    if cookie is not None:
        assert destination_cookie(destination_extension(cookie)) == cookie


def rdma_options(data: bytes) -> None:
    """Read the values of the options about regions, which a program wrote."""
    for option in (SockOpt.GET_MR, SockOpt.GET_MR_FOR_DEST):
        with suppress(OSError):
            assert read_region(option, data).region_bytes >= 0
    with suppress(OSError):
        assert 0 <= read_free(data) < 1 << 64


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (rdma_endpoint, rdma_offer, rdma_cookie, rdma_options)
}

_ASK = bytes([7, 0, 1, 7, 2, 1, 7, 3, 0x41])
_UP = bytes([5, 0, 1, 5, 1, 2, 5, 2, 0x41])
_WANT = bytes([2, 0, 2, 2, 0x42, 3])
_END = bytes([5 + 0x28, 0, 0, 5 + 0x30, 1, 0, 5 + 0x18, 2, 0])
_LATER = bytes([3, 4, 3, 40, 3, 200])
SEEDS: dict[str, tuple[bytes, ...]] = {
    "rdma_endpoint": (
        b"\0" + _ASK + _UP + _WANT + _LATER + _UP + _END + _LATER,
        b"\3" + _WANT * 3 + _UP + _ASK * 2 + _LATER + _END + _ASK,
        b"\2" + b"".join(bytes([7, host, tos << 4]) for host in range(7) for tos in range(3)),
        b"\1" + step(0, 2, data=_offer(2, 0)) + _UP + step(0, 2, data=b"") + _LATER * 9,
    ),
    "rdma_offer": (
        b"\0" + ConnectData(source=OTHERS[0], target=LOCAL, generation=5).emit(),
        b"\xff" + ConnectData(source=ip_address("fd00::2"), target=ip_address("fd00::1")).emit(),
        bytes(33),
    ),
    "rdma_cookie": (destination_extension(12 << 32 | 77),),
    "rdma_options": (bytes(range(32)), bytes(160), bytes(16)),
}
