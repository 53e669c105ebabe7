"""The control core of RDS over TCP, with peers that do anything and reports that come late.

The shell here keeps the contract of `control.events`: a stream is named in one `Attach` or
`Refuse`, `Connect` and `RequestCallBack` are answered once, reports of the plane may be about
streams that are gone. Whatever the peers do, their number stays within its limit, silent and parked
streams too, and the core and its shell agree on the path of each stream.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from ipaddress import IPv4Address, ip_address

from fuzz.script import Script, actions, step
from urds.rds.constants import PATHS_MAX, Capability
from urds.rds.control import events
from urds.rds.control.local_address import LocalAddress
from urds.rds.control.settings import ConnectionSettings, LocalAddressSettings
from urds.rds.control.state import PathState
from urds.rds.wire.extensions import Handshake, Mark, emit_handshake

STEPS_MAX = 300
PEERS_MAX = 4
PENDING_MAX = 5
PENDING_PER_ADDRESS_MAX = 3
PENDING_WIDE = 12  # of both: so that more come than may be parked
LOCAL = IPv4Address("127.0.0.5")
OTHERS = tuple(ip_address(f"127.0.0.{host}") for host in (2, 3, 9, 10, 11, 12))
ALIEN = ip_address("192.0.2.1")  # not allowed
GENERATION = 77
_ACTIONS_MAX = 400  # that one step can cause
_TIMERS_PER_PATH = 5
_MS = 1_000_000
_MARK = Mark(Capability.ACKNOWLEDGEMENTS | Capability.CHECKSUM | Capability.GENERATION_HELLO)

_Place = tuple[object, int]  # a peer and the index of one of its paths


class Shell:
    """A local address, and the work of its driver and plane for it."""

    def __init__(self, choices: int) -> None:
        self.now_ns = 0
        self._streams = 0  # numbers given
        self._unplaced: dict[int, object] = {}  # streams that wait for `Attach` or `Refuse`
        self._attached: dict[_Place, int] = {}
        self._attachments: Counter[_Place] = Counter()
        self._connects: list[_Place] = []  # not answered
        self._call_back_requests: list[object] = []
        self.pending_max = PENDING_WIDE if choices & 16 else PENDING_MAX
        self.pending_per_address_max = PENDING_WIDE if choices & 16 else PENDING_PER_ADDRESS_MAX
        self.endpoint = LocalAddress(
            local=LOCAL,
            settings=LocalAddressSettings(
                peers_max=PEERS_MAX,
                pending_max=self.pending_max,
                pending_per_address_max=self.pending_per_address_max,
            ),
            connection_settings=ConnectionSettings(
                generation=GENERATION,
                npaths=1 << (choices & 3),
                reconnect_give_up_ns=50 * _MS if choices & 4 else 0,
            ),
            random=random.Random(choices),
            may_evict=lambda peer: not choices & 8 or int(peer) % 2 > 0,
        )

    # -- what the peers do

    def accept(self, choice: int, source_port: int) -> None:
        """Let a connection come in."""
        peer = ALIEN if choice % 16 == 15 else OTHERS[choice % len(OTHERS)]
        self._streams += 1
        self._unplaced[self._streams] = peer
        self.endpoint.handle_accepted(self._streams, peer, source_port, self.now_ns)

    def answer(self, choice: int, kind: int) -> None:
        """Answer a connect or a call-back request that is under way."""
        if self._connects and not kind & 1:
            peer, index = self._connects.pop(choice % len(self._connects))
            connection = self.endpoint.find(peer)  # type: ignore[arg-type]  # an address it is
            if connection is None:
                return
            if kind & 2:
                connection.handle_connect_failed(index, self.now_ns)
            else:
                self._streams += 1
                self._unplaced[self._streams] = peer
                connection.handle_connected(index, self._streams, self.now_ns)
        elif self._call_back_requests:
            peer = self._call_back_requests.pop(choice % len(self._call_back_requests))
            connection = self.endpoint.find(peer)  # type: ignore[arg-type]  # as above
            if connection is not None and kind & 2:
                connection.handle_connect_failed(0, self.now_ns)
            elif connection is not None:
                connection.handle_call_back_requested(self.now_ns)

    # -- what the plane reports

    def report(self, kind: int, choice: int, data: bytes) -> None:
        """Report on a stream, or on one that is gone."""
        place = self._place(choice, is_late=bool(kind & 16))
        connection = self.endpoint.find(place[0])  # type: ignore[arg-type]  # as above
        if connection is None:
            return
        index, attachment = place[1], self._attachments[place] - (kind >> 4 & 1)
        match kind & 15:
            case 0 | 1 | 2 | 3:
                connection.handle_first_frame(index, attachment, self.now_ns)
            case 4 | 5 if kind & 16 or place not in self._attached:
                pass
            case 4 | 5:
                # the plane ended it by itself; the core must not name it again
                del self._attached[place]
                connection.handle_down(
                    index, attachment, choice & 1, self.now_ns, protocol_error=kind & 1 > 0
                )
            case 6:
                connection.handle_peer_restarted(self.now_ns)
            case 7:
                self._fault(place[0])
            case _:
                self._control(connection, index, attachment, kind, data)

    def _control(
        self, connection: object, index: int, attachment: int, kind: int, data: bytes
    ) -> None:
        pair = ((1, 0), (0, 1), (1, 0), (2000, 0))[kind & 3]
        connection.handle_control(  # type: ignore[attr-defined]  # a Connection
            index,
            attachment,
            acknowledgement=data[0] if data else 0,
            source_port=pair[0],
            target_port=pair[1],
            extension=data[:16].ljust(16, b"\0"),
            now_ns=self.now_ns,
        )

    def _place(self, choice: int, *, is_late: bool) -> _Place:
        attached = sorted(self._attached, key=str)
        if is_late or not attached:
            return OTHERS[choice % len(OTHERS)], choice % PATHS_MAX
        return attached[choice % len(attached)]

    def _fault(self, peer: object) -> None:
        """Have a fault of this node start the connections to a peer over."""
        connection = self.endpoint.find(peer)  # type: ignore[arg-type]  # as above
        assert connection is not None
        for stream in [one for one, of in self._unplaced.items() if of == peer]:
            del self._unplaced[stream]  # the driver closes what no path has
        attachments = [self._attachments[peer, index] for index in range(PATHS_MAX)]
        connection.handle_fault(attachments, self.now_ns)

    def wanted(self, choice: int) -> None:
        """Let a program send."""
        with suppress(OSError):
            connection = self.endpoint.connection(OTHERS[choice % len(OTHERS)], self.now_ns)
            connection.handle_wanted(choice >> 4 & PATHS_MAX - 1, self.now_ns)

    def pass_time(self, amount: int) -> None:
        """Let time pass, and run what is due."""
        self.now_ns += amount * amount * _MS
        self.endpoint.handle_timeout(self.now_ns)
        due_ns = self.endpoint.poll_timeout()
        assert due_ns is None or due_ns > self.now_ns, "a timer would fire again at once"

    # -- decisions of the core

    def carry_out(self) -> None:
        """Take all actions; check each."""
        decided: Iterator[events.Action] = actions(
            self.endpoint.poll_event, actions_max=_ACTIONS_MAX
        )
        for action in decided:
            self._do(action)
        self.check()

    def _do(self, action: events.Action) -> None:
        match action:
            case events.Connect(peer, index):
                assert int(peer) > int(LOCAL), "only the lower side connects"
                self._connects.append((peer, index))
            case events.RequestCallBack(peer):
                assert int(peer) < int(LOCAL), "only the higher side requests a call-back"
                self._call_back_requests.append(peer)
            case events.Attach(peer, index, stream):
                assert self._unplaced.pop(stream) == peer, "a stream of another peer"
                self._attached[peer, index] = stream
                self._attachments[peer, index] += 1
            case events.Refuse(peer, stream):
                assert self._unplaced.pop(stream) == peer
            case events.Detach(peer, index):
                del self._attached[peer, index]
            case events.SendControl(_, _, _, _, extension):
                assert len(extension) == 16
            case events.FanIn(peer, count):
                self._close(peer, count)
            case events.Forget(peer):
                self._close(peer, 0)

    def _close(self, peer: object, count: int) -> None:
        for index in range(count, PATHS_MAX):
            self._attached.pop((peer, index), None)
            self._attachments.pop((peer, index), None)

    # -- what must hold

    def check(self) -> None:
        """Check what is kept, and that both sides know the same streams."""
        connections = self.endpoint.connections
        assert len(connections) <= PEERS_MAX
        # No public access to paths, waiting streams, silent ones, timers.
        attached = {
            (connection.peer, path.index): path.stream
            for connection in connections
            for path in connection._paths
            if path.stream is not None
        }
        assert attached == self._attached
        waiting = []
        for one in connections:
            up = {path.index for path in one._paths if path.state is PathState.UP}
            held = one._streams.waiting
            assert set(held.seconds) <= up, "a stream waits for an answer on a path without one"
            assert len(held.parked) < PATHS_MAX
            waiting += [*held.parked, *(second.number for second in held.seconds.values())]
        assert sorted(waiting) == sorted(self._unplaced), "a stream that nothing has"
        pending = self.endpoint._pending
        assert len(pending._peers) <= self.pending_max
        assert max(pending._per_address.values(), default=0) <= self.pending_per_address_max
        assert set(pending._peers) <= set(attached.values()) | set(waiting)
        paths = sum(connection.npaths for connection in connections)
        assert len(self.endpoint._timers._live) <= paths * _TIMERS_PER_PATH + self.pending_max
        for connection in connections:
            for path in connection._paths:
                is_here = path.state in (PathState.ATTACHED, PathState.UP)
                assert is_here == (path.stream is not None)


def rds_endpoint(data: bytes) -> None:
    """Let a script be the peers, the plane, the programs and the time of a local address."""
    script = Script(data)
    shell = Shell(script.number())
    for _ in range(STEPS_MAX):
        if not script:
            break
        action, choice = script.number(), script.number()
        match action & 7:
            case 0 | 1:
                shell.accept(choice, script.number(2))
            case 2:
                shell.answer(choice, action >> 3)
            case 3 | 4:
                shell.report(action >> 3, choice, _handshake(script.number()))
            case 5:
                shell.report(action >> 3, choice, script.piece())
            case 6:
                shell.wanted(choice)
            case _:
                shell.pass_time(choice)
        shell.carry_out()


def _handshake(kind: int) -> bytes:
    """Return the extension of a probe, or of an answer to one."""
    return emit_handshake(
        Handshake(
            npaths=(None, 1, 2, 8)[kind & 3],
            generation=(None, 1, 2, 3)[kind >> 2 & 3],
            sport_index=bool(kind & 16),
            mark=_MARK if kind & 32 else None,
        )
    )


TARGETS: dict[str, Callable[[bytes], None]] = {"rds_endpoint": rds_endpoint}

_OWN, _OWN_STRANGE, _KERNEL, _KERNEL_7 = 0x2B, 0x23, 0x03, 0x17
_ACCEPT = bytes([0, 0, 0x80, 0])
_CONNECTED = bytes([6, 3, 2, 0])
_FRAME = bytes([3, 0, 0])
_DOWN = bytes([3 + 0x20, 0, 0])
_LATER = bytes([7, 4, 7, 40, 7, 100])


def _says(kind: int) -> bytes:
    """Return the steps in which a peer introduces itself: first frame, probe, answer."""
    return _FRAME + bytes([3 + 0x40, 0, kind, 3 + 0x48, 0, kind])


SEEDS: dict[str, tuple[bytes, ...]] = {
    "rds_endpoint": (
        b"\0" + _ACCEPT + _says(_OWN) + _DOWN + _LATER + _ACCEPT + _says(_OWN + 4) + _LATER,
        b"\3" + _ACCEPT * 4 + _says(_OWN) + b"".join(bytes([0, 0, 0x80, at]) for at in range(8)),
        b"\3" + _CONNECTED + _says(_OWN) + bytes([2, 0]) * 7 + _FRAME * 8 + _DOWN + _LATER,
        b"\3"
        + _CONNECTED
        + _says(_KERNEL_7)
        + bytes([2, 0]) * 7
        + bytes([3 + 0x30, 0, 0])
        + _LATER,
        b"\4" + _CONNECTED + _says(_KERNEL) + _DOWN + bytes([2 + 0x10, 0]) + _LATER * 3,
        b"\0" + _ACCEPT + _says(_OWN) + _ACCEPT + _says(_OWN) + _ACCEPT * 2 + _LATER + _DOWN,
        b"\0" + _ACCEPT + _says(_OWN) + _ACCEPT + _DOWN + _ACCEPT + _LATER,
        b"\1" + b"".join(bytes([0, host, 0x80, host]) for host in range(16)) + _LATER * 2,
        b"\x13" + _ACCEPT * 12 + _LATER + _says(_OWN) + _FRAME * 8,
        b"\2" + _CONNECTED + _says(_OWN_STRANGE) + bytes([3 + 0x38, 0, 0]) + _LATER + _FRAME,
        b"\1" + _ACCEPT + _FRAME + _LATER + step(5 + 0x40, 0, data=bytes(range(16))) + _LATER,
    )
}
