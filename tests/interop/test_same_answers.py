"""The same calls to the kernel's RDS and to ours: the same values, the same errnos.

Each row is Python that runs on both sides with fresh sockets: `s` and `t`, bound to ports 4000 and
4001 of `local` where the table says so. A row that we answer otherwise on purpose says how: those
are the lines of `docs/differences.md`. Nothing here crosses the wire: both sockets are of one host.
"""

import errno
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from .conftest import OpenOurs
from .lab.guest import GUEST, LOWER
from .lab.remote import Remote, RemoteFailure, RemoteHang

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

CALL_TIMEOUT_S = 10.0
FRESH = "s, t = new_socket(), new_socket()"
# The kernel connects even to itself, later than the first send returns, and its first poll may
# tell of congestion maps that came before: both are done with here.
BIND = """
s.bind((local, 4000)); t.bind((local, 4001))
t.sendto(b'connect', (local, 4000)); s.recv(100)
poll_bits(s), poll_bits(t)
"""
CLOSE = "s.close(); t.close()"


@dataclass(frozen=True, slots=True)
class Row:
    """One call; `ours` is our own outcome where it is another than the kernel's."""

    source: str
    ours: str | None = None


UNBOUND_ROWS = (
    Row("new_socket(socket.SOCK_STREAM)"),
    Row("new_socket(socket.SOCK_DGRAM)"),
    Row("new_socket(socket.SOCK_RDM)"),
    Row("new_socket(protocol=1)"),
    Row("s.family, s.type, s.proto"),
    Row("s.getpeername()"),
    Row("s.send(b'x')"),
    Row("s.sendto(b'x', (local, 4000))"),
    Row("s.recv(10, socket.MSG_DONTWAIT)"),
    Row("s.listen(1)"),
    Row("s.accept()"),
    Row("s.shutdown(socket.SHUT_RD)"),
    Row("s.shutdown(socket.SHUT_RDWR)"),
    Row("poll_bits(s)"),
)
BIND_ROWS = (
    Row("s.bind((local, 4000)); s.getsockname() == (local, 4000)"),
    Row("s.bind((local, 0)); s.getsockname()[1] > 1"),
    Row("s.bind((local, 1))"),
    Row("s.bind((local, 16385))"),
    Row("s.bind((local, 65535))"),
    Row("s.bind(('0.0.0.0', 0))"),
    Row("s.bind(('0.0.0.0', 4000))"),
    Row("s.bind(('255.255.255.255', 4000))"),
    Row("s.bind(('224.0.0.1', 4000))"),
    Row("s.bind(('192.0.2.1', 4000))"),
    Row("s.bind(('127.0.0.1', 4000)); s.getsockname()"),
    Row("s.bind(('127.0.0.5', 4000)); s.getsockname()"),
    Row("s.bind((local, 4000)); t.bind((local, 4000))"),
    Row("s.bind((local, 4000)); s.bind((local, 4000))"),
    Row("s.bind((local, 4000)); s.bind((local, 4001))"),
    Row("s.bind((local, 4000)); t.bind(('127.0.0.1', 4000))"),
    Row("s.bind((local, 4000)); s.close(); t.bind((local, 4000))"),
    Row("s.connect((local, 4000)); s.getpeername() == (local, 4000)"),
    Row("s.connect((local, 4000)); s.send(b'x')"),
    Row("s.connect((local, 0)); s.getpeername()[1]"),
    Row("s.connect((local, 4000)); s.connect((local, 4001)); s.getpeername()[1]"),
    Row("s.connect(('0.0.0.0', 4000))"),
    Row("s.connect(('255.255.255.255', 4000))"),
    Row("s.connect(('224.0.0.1', 4000))"),
    Row("s.connect(('192.0.2.1', 4000))"),
    Row("s.connect((local, 4001)); s.bind((local, 4000)); s.send(b'xy')"),
)
OPTION_ROWS = (
    *(
        Row(f"s.getsockopt(socket.SOL_SOCKET, socket.{name})")
        for name in ("SO_TYPE", "SO_DOMAIN", "SO_PROTOCOL", "SO_ERROR", "SO_ACCEPTCONN")
    ),
    *(
        Row(
            f"s.setsockopt(socket.SOL_SOCKET, socket.{name}, {data}); "
            f"s.getsockopt(socket.SOL_SOCKET, socket.{name})"
        )
        for name in ("SO_SNDBUF", "SO_RCVBUF")
        for data in (1, 4096, 65536, 1048576)
    ),
    Row("s.getsockopt(SOL_RDS, RECVERR)"),
    *(
        Row(f"s.setsockopt(SOL_RDS, RECVERR, {value}); s.getsockopt(SOL_RDS, RECVERR)")
        for value in (0, 1, 2, -1)
    ),
    Row("s.setsockopt(SOL_RDS, RECVERR, b'\\1')"),
    Row("s.setsockopt(SOL_RDS, RECVERR, bytes(8))"),
    Row("s.getsockopt(SOL_RDS, RECVERR, 2)"),
    Row("s.getsockopt(SOL_RDS, RECVERR, 16)"),
    *(Row(f"s.setsockopt(SOL_RDS, CONG_MONITOR, {value})") for value in (0, 1, 2, -1)),
    Row("s.setsockopt(SOL_RDS, CONG_MONITOR, b'\\1')"),
    Row("s.setsockopt(SOL_RDS, CONG_MONITOR, bytes(8))"),
    *(Row(f"s.setsockopt(SOL_RDS, {option}, 1)") for option in (0, 4, 99)),
    *(Row(f"s.getsockopt(SOL_RDS, {option})") for option in (0, 1, 2, 3, 4, 7, 10, 99)),
    Row("s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)"),
    Row("s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)"),
    Row("s.getsockopt(SOL_RDS, TRANSPORT)"),
    Row("s.setsockopt(SOL_RDS, TRANSPORT, 2); s.getsockopt(SOL_RDS, TRANSPORT)"),
    Row("s.setsockopt(SOL_RDS, TRANSPORT, 2); s.setsockopt(SOL_RDS, TRANSPORT, 2)"),
    Row("s.setsockopt(SOL_RDS, TRANSPORT, 3)"),
    Row("s.setsockopt(SOL_RDS, TRANSPORT, 77)"),
    Row("s.setsockopt(SOL_RDS, TRANSPORT, b'\\2')"),
    Row("s.setsockopt(SOL_RDS, RXPATH_LATENCY, b'\\1\\0\\0')"),
    Row("s.setsockopt(SOL_RDS, CANCEL_SENT_TO, socket_address(local, 4000))"),
)
BOUND_OPTION_ROWS = (
    Row("s.getsockopt(SOL_RDS, TRANSPORT)"),
    Row("s.setsockopt(SOL_RDS, TRANSPORT, 2)"),
    # rds(7) says that an empty address cancels everything; Linux v6.1 refuses it.
    Row("s.setsockopt(SOL_RDS, CANCEL_SENT_TO, b'')", ours="None"),
    Row("s.setsockopt(SOL_RDS, CANCEL_SENT_TO, bytes(4))"),
    Row("s.setsockopt(SOL_RDS, CANCEL_SENT_TO, socket_address(local, 4001)[:15])"),
    Row("s.setsockopt(SOL_RDS, CANCEL_SENT_TO, socket_address(local, 4001))"),
    Row("s.setsockopt(SOL_RDS, CANCEL_SENT_TO, socket_address(local, 4001) + b'x')"),
    Row("s.setsockopt(SOL_RDS, CANCEL_SENT_TO, socket_address(local, 0))"),
    Row("s.setsockopt(SOL_RDS, CANCEL_SENT_TO, bytes(16))"),
    Row("s.setsockopt(SOL_RDS, GET_MR, bytes(32))"),
    Row("s.setsockopt(SOL_RDS, GET_MR, bytes(31))"),
    Row("s.setsockopt(SOL_RDS, FREE_MR, bytes(16))"),
)
SEND_ROWS = (
    Row("s.sendto(b'x', ('0.0.0.0', 4000))"),
    Row("s.sendto(b'x', ('255.255.255.255', 4000))"),
    Row("s.sendto(b'x', ('224.0.0.1', 4000))"),
    Row("s.sendto(b'x', (local, 4999))"),
    Row("s.sendto(b'', (local, 4001)), received(t)"),
    Row("s.sendto(b'self', (local, 4000)), received(s)"),
    Row("s.send(b'x')"),
    *(
        Row(f"s.sendto(b'x', socket.{flag}, (local, 4001))")
        for flag in ("MSG_OOB", "MSG_PEEK", "MSG_DONTROUTE", "MSG_EOR", "MSG_CONFIRM", "MSG_MORE")
    ),
    # POSIX promises no signal, and RDS never sends one; Linux v6.1 refuses the flag.
    Row("s.sendto(b'x', socket.MSG_NOSIGNAL, (local, 4001))", ours="1"),
    Row("s.sendto(b'x', socket.MSG_DONTWAIT, (local, 4001))"),
    Row("s.sendmsg([b'a', b'bb', b'ccc'], [], 0, (local, 4001)), received(t)"),
    Row("s.sendmsg([], [], 0, (local, 4001)), received(t)"),
    Row("s.sendmsg([b'x'], [(SOL_RDS, 99, b'')], 0, (local, 4001))"),
    Row("s.sendmsg([b'x'], [(SOL_RDS, 1, bytes(56))], 0, (local, 4001))"),
    Row("s.sendmsg([b'x'], [(SOL_RDS, 2, bytes(7))], 0, (local, 4001))"),
    Row("s.sendmsg([b'x'], [(SOL_RDS, 3, bytes(32))], 0, (local, 4001))"),
    Row("s.sendto(bytes(106496), (local, 4001))"),
    Row("s.sendto(bytes(106497), (local, 4001))"),
    Row(
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES); "
        "s.sendto(bytes(1 << 20), (local, 4001))"
    ),
    Row(
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES); "
        "s.sendto(bytes((1 << 20) + 1), (local, 4001))"
    ),
)
TEN = "t.sendto(b'0123456789', (local, 4000)); t.sendto(b'next', (local, 4000)); "
RECEIVE_ROWS = (
    Row("s.recv(10, socket.MSG_DONTWAIT)"),
    Row(TEN + "received(s), received(s)"),
    Row(TEN + "received(s, 100, socket.MSG_PEEK), received(s)"),
    Row(TEN + "received(s, 4, socket.MSG_PEEK), received(s)"),
    Row(TEN + "received(s, 4), received(s)"),
    Row(TEN + "s.recv_into(bytearray(4), 4, socket.MSG_TRUNC), received(s)"),
    Row(TEN + "received(s, 0), received(s)"),
    Row(TEN + "received(s, 0, socket.MSG_PEEK), received(s)"),
    Row("t.sendto(b'', (local, 4000)); received(s)"),
    *(
        Row(TEN + f"received(s, 100, socket.{flag})")
        for flag in ("MSG_OOB", "MSG_WAITALL", "MSG_DONTROUTE", "MSG_EOR", "MSG_CMSG_CLOEXEC")
    ),
    Row("s.recv(10, socket.MSG_ERRQUEUE)"),
    Row("s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1); " + TEN + "received(s)"),
    Row("t.connect((local, 4000)); t.send(b'x'); received(s)"),
    Row("t.sendto(b'', (local, 0)); received(t)"),
    Row(
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 0, 100000)); "
        "s.recv(10)"
    ),
)
POLL_ROWS = (
    Row("poll_bits(s)"),
    Row(TEN + "poll_bits(s), poll_bits(t)"),
    Row(TEN + "s.recv(100); poll_bits(s)"),
    Row(TEN + "s.recv(100); s.recv(100); poll_bits(s)"),
    Row(TEN + "s.recv(100, socket.MSG_PEEK); poll_bits(s)"),
    Row("t.sendto(b'', (local, 4000)); poll_bits(s)"),
    Row(TEN + "[len(ready) for ready in select.select([s], [s], [s], 0)]"),
)


@pytest.mark.parametrize(
    ("rows", "prepare"),
    [
        pytest.param(UNBOUND_ROWS, FRESH, id="unbound"),
        pytest.param(BIND_ROWS, FRESH, id="bind", marks=pytest.mark.last),  # see _renew_rds
        pytest.param(OPTION_ROWS, FRESH, id="options"),
        pytest.param(BOUND_OPTION_ROWS, FRESH + BIND, id="options-of-bound"),
        pytest.param(SEND_ROWS, FRESH + BIND, id="send"),
        pytest.param(RECEIVE_ROWS, FRESH + BIND, id="receive"),
        pytest.param(POLL_ROWS, FRESH + BIND, id="poll"),
    ],
)
def test_same_answers(
    guest: Remote, open_ours: OpenOurs, rows: tuple[Row, ...], prepare: str
) -> None:
    """Both sides answer each row alike, or we answer as the row says."""
    wrong: list[str] = []
    with ExitStack() as stack:
        ours = stack.enter_context(open_ours())
        for row in rows:
            kernel_says = _outcome(guest, row, prepare, local=GUEST)
            try:
                we_say = _our_outcome(ours, row, prepare)
            except RemoteHang:
                we_say = "no answer"
                stack.close()
                ours = stack.enter_context(open_ours())
            expected = row.ours or kernel_says
            if we_say != expected:
                wrong.append(f"{row.source}\n    wanted {expected}\n    got    {we_say}")
            elif row.ours == kernel_says:
                wrong.append(f"{row.source}\n    is no difference any more: {kernel_says}")
    assert not wrong, f"{len(wrong)} of {len(rows)} answers differ:\n" + "\n".join(wrong)


def _our_outcome(ours: Remote, row: Row, prepare: str) -> str:
    """Run one row on our side; a failure that is no OSError is an outcome too, always wrong."""
    try:
        return _outcome(ours, row, prepare, local=LOWER)
    except RemoteFailure as failure:
        ours(CLOSE)
        return str(failure).strip().splitlines()[-1]


def _outcome(side: Remote, row: Row, prepare: str, *, local: str) -> str:
    """Run one row with fresh sockets; return its value as text, or the name of its errno."""
    side(prepare, local=local)
    try:
        outcome = repr(side(row.source, timeout_s=CALL_TIMEOUT_S))
    except OSError as error:
        outcome = errno.errorcode.get(error.errno or 0, repr(error))
    side(CLOSE)
    return outcome
