"""Parsers of the command line's tools: the input of `urds info`, `stress` and the rsocket tools.

The other end may be another program: rds-info's lists are the kernel's as well, the peer of a
stress run may be rds-stress, and any client that reaches a server's port may send anything.
"""

import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

from fuzz.script import Script, step
from urds.cli.rds.stress.wire import Pair, Parameters, RdmaPart, StressError
from urds.cli.rsocket import rcopy as rsocket_rcopy
from urds.cli.rsocket import udpong as rsocket_udpong
from urds.cli.rsocket.rcopy import NAME_BYTES_MAX, Request, read_reply, reply
from urds.rds.constants import ConnectionFlag
from urds.rds.plane.contract import Snapshot
from urds.rds.runtime import processes
from urds.rds.wire import info

STEPS_MAX = 300
DEPTH = 4
CLIENTS = 3
# A record tells its form by its size: IPv4, IPv6, and what older kernels had.
_SIZES: dict[int, tuple[int, ...]] = {
    0: (40,),
    1: (42, 65),
    2: (26, 50),
    3: (28, 52),
    4: (41, 40, 64),
    5: (68, 92),
}
_RECORDS: tuple[type[info.Record], ...] = (
    info.Counter, info.Connection, info.QueuedMessage, info.SocketEntry, info.TcpSocket,
    info.RdmaConnection,
)  # fmt: skip


def info_record(data: bytes) -> None:
    """Read a record of any list of RDS_INFO_*; all but odd letters must come out again."""
    kind = _RECORDS[data[0] % len(_RECORDS)] if data else info.Counter
    record = kind.parse(data[1:])
    is_long = len(data) - 1 == max(_SIZES[_RECORDS.index(kind)])
    again = kind.parse(record.emit(ipv6=is_long))
    assert kind.parse(again.emit(ipv6=is_long)) == again


def process_report(data: bytes) -> None:
    """Read the report of a process, which only the same user can write."""
    with suppress(ValueError):
        processes.parse(data)


def stress_options(data: bytes) -> None:
    """Read the options of an active side; they must come out again, and cost no memory."""
    record = Parameters.parse(data)
    assert Parameters.parse(record.emit()) == record
    assert record.tasks * record.buffer_bytes <= 4 << 30


def stress_messages(data: bytes) -> None:
    """Let a peer send anything to a task; bytes that are not due end the run with a reason."""
    script = Script(data)
    parameters = Parameters(
        depth=DEPTH, request_bytes=100, ack_bytes=80, verify=bool(script.number() & 1)
    )
    ends = ((IPv4Address("127.0.0.1"), 4001), (IPv4Address("127.0.0.2"), 4002))
    ours = Pair(parameters, ours=ends[0], peer=ends[1])
    theirs = Pair(parameters, ours=ends[1], peer=ends[0])  # knows what is due
    for _ in range(STEPS_MAX):
        if not script:
            return
        action = script.number()
        if action & 3 == 0 and ours.may_request:
            theirs.receive(_sent(ours, is_ack=False))
        elif action & 3 == 1 and ours.unacked:
            theirs.receive(_sent(ours, is_ack=True))
        elif action & 3 == 2:
            if theirs.may_request or theirs.unacked:
                payload = _sent(theirs, is_ack=not theirs.may_request or bool(theirs.unacked))
                assert ours.receive(payload)[1] in range(DEPTH)
                RdmaPart.parse(payload)
        else:
            with suppress(StressError):
                ours.receive(script.piece())
            return
        assert 0 <= ours.pending <= DEPTH and 0 <= ours.unacked <= DEPTH


def _sent(pair: Pair, *, is_ack: bool) -> bytes:
    """Send the next message of a pair, and note it in its state."""
    payload = b"".join(pair.ack() if is_ack else pair.request())
    if is_ack:
        pair.acked()
    else:
        pair.requested(0)
    return payload


def rcopy_request(data: bytes) -> None:
    """Read what a client of rcopy wants; a file never lies outside of the folder that is served."""
    stream = _BytesLike(data)
    with suppress(ConnectionError):
        request = Request.receive(stream)  # type: ignore[arg-type]  # it reads, and no more
        assert 0 < len(request.name.encode()) <= NAME_BYTES_MAX
        again = Request.receive(_BytesLike(request.emit()))  # type: ignore[arg-type]  # as above
        assert again == request
        root = _served()
        with suppress(OSError):
            found = rsocket_rcopy.placed(request.name, root)
            assert found.parent.resolve().is_relative_to(root) and found.name not in ("", "..")
    with suppress(OSError):
        read_reply(_BytesLike(data), Request("file", 1))  # type: ignore[arg-type]  # as above


def udpong_server(data: bytes) -> None:
    """Let clients, also too many of them, send anything to the server of udpong."""
    script, sent = Script(data), _Sent()
    datagrams: Any = sent  # of the server's socket it has what is needed
    known: dict[Any, Any] = {}
    for _ in range(STEPS_MAX):
        if not script:
            break
        client = script.number() % CLIENTS
        sent.count_before = len(sent.messages)
        # The step of the server's loop, for it has no public one.
        rsocket_udpong._answer(datagrams, known, memoryview(script.piece()), ("127.0.0.1", client))
        assert len(sent.messages) <= sent.count_before + 1, "one answer at most"
    assert len(known) <= CLIENTS


class _BytesLike:
    """A stream that ends after some bytes; short reads are what streams do."""

    def __init__(self, data: bytes) -> None:
        self._left = memoryview(data)

    def recv_into(self, place: memoryview) -> int:
        taken = self._left[: min(len(place), 7)]
        place[: len(taken)] = taken
        self._left = self._left[len(taken) :]
        return len(taken)


class _Sent:
    """Where the answers of a server go."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.count_before = 0

    def send(self, data: memoryview, target: object) -> None:
        self.messages.append(bytes(data))


@cache
def _served() -> Path:
    """Return a folder with a file, a folder, a way out, and a way in circles."""
    root = Path(tempfile.mkdtemp(prefix="urds-fuzz-"))
    (root / "folder").mkdir()
    (root / "file").touch()
    for name, target in (("out", "/"), ("circle", "circle"), ("up", "..")):
        (root / name).symlink_to(target)
    return root.resolve()


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        info_record, process_report, stress_options, stress_messages, rcopy_request, udpong_server,
    )
}  # fmt: skip

_V4, _V6 = IPv4Address("127.0.0.1"), IPv6Address("fd00::1")
_RECORDS_MADE: tuple[info.Record, ...] = (
    info.Counter(name="conn_reset", value=7),
    info.Connection(
        sequence_next=1, sequence_expected=2, local=_V4, peer=_V4, transport="tcp",
        flags=ConnectionFlag.CONNECTED,
    ),
)  # fmt: skip


def _report() -> bytes:
    snapshot = Snapshot(
        counters={}, mailboxes=[], paths=[], send_queue=[], retransmit_queue=[], receive_queue=[],
        rdma_in_use=False,
    )  # fmt: skip
    ends: dict[Any, Any] = {(_V4, 4000): (_V4, 4001)}
    counters = {"conn_reset": 1}
    return processes.emit(processes.Report(7, "a program", "native", snapshot, counters, ends))


def _request(name: str) -> bytes:
    return Request(name, 100).emit()


SEEDS: dict[str, tuple[bytes, ...]] = {
    "info_record": (
        *(
            bytes([index]) + record.emit(ipv6=ipv6)
            for index, record in enumerate(_RECORDS_MADE)
            for ipv6 in (False, True)
        ),
        *(bytes([kind]) + bytes(size) for kind, sizes in _SIZES.items() for size in sizes),
    ),
    "process_report": (_report(), _report().replace(b"[]", b"[{}]", 1), b"[]"),
    "stress_options": (
        Parameters().emit(),
        Parameters(type_of_service=3, depth=4, tasks=2, verify=True).emit(),
        Parameters(rdma_bytes=4096, rdma_use_get_mr=True, rdma_mode=1).emit(),
    ),
    "stress_messages": (
        b"\1" + bytes([0, 2, 1, 2, 0, 0, 2, 2, 1]) * 3 + step(3, data=bytes(100)),
        b"\0" + bytes([2, 2, 2, 2, 1, 1]) + step(3, data=bytes.fromhex(
            "00000004 7f000002 7f000001 0fa20fa1 000001".replace(" ", "")
        ) + bytes(81)),
    ),
    "rcopy_request": (
        _request("file"), _request("folder/new"), _request("out/tmp/new"), _request("circle/new"),
        _request("up/new"), _request("../new"), reply(2),
    ),
    "udpong_server": (
        step(0, data=bytes(8)) + step(0, data=bytes.fromhex("0100010000000005"))
        + step(0, data=bytes.fromhex("0200010000000000") + bytes(56))
        + step(0, data=bytes.fromhex("0300010000000001"))
        + step(0, data=bytes.fromhex("0400010000000005")) + step(1, data=bytes(64)),
    ),
}  # fmt: skip
