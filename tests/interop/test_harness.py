"""Does the lab itself do what the other tests build on? Shown without `urds`, bytes by hand."""

import errno

import pytest

from .lab.guest import GUEST, LOWER, Lab
from .lab.remote import Remote, RemoteFailure
from .lab.wire import Orders

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

OPEN_GUEST_SOCKET = """
s = socket.socket(AF_RDS, socket.SOCK_SEQPACKET)
s.bind((guest, 4000))
"""
CONNECT_BY_HAND = """
stream = socket.create_connection((guest, 16385), source_address=(local, 0))
"""
# sequence, ack, length, source port, target port, flags, credit, padding, checksum, extensions
SEND_BY_HAND = """
header = struct.pack(">QQIHHBB4xH16x", sequence, 0, len(payload), 5000, 4000, 0, 0, 0)
stream.sendall(header + payload)
"""
MAP_FRAME_BYTES = 48 + 8192


def test_remote_python_returns_values_errnos_and_failures(guest: Remote) -> None:
    """Bytes and tuples come back as they are, an OSError with its errno, others with a trace."""
    assert guest("(b'\\x00\\xff', [1, 'two'], None)") == (b"\x00\xff", [1, "two"], None)
    assert guest("given + 1", given=41) == 42
    with pytest.raises(OSError) as refused:
        guest("socket.socket(AF_RDS, socket.SOCK_STREAM)")
    assert refused.value.errno == errno.ESOCKTNOSUPPORT
    with pytest.raises(RemoteFailure, match="ZeroDivisionError"):
        guest("1 / 0")


def test_two_guest_processes_are_independent(guest: Remote, lab: Lab) -> None:
    """One blocks in a receive while the other sends to it."""
    guest(OPEN_GUEST_SOCKET, guest=GUEST)
    guest.start("s.recvfrom(100)")
    with lab.open_guest() as other:
        other("t = socket.socket(AF_RDS, socket.SOCK_SEQPACKET)")
        other("t.bind((guest, 4001)); t.sendto(b'wake up', (guest, 4000))", guest=GUEST)
        assert guest.finish() == (b"wake up", (GUEST, 4001))


def test_a_message_made_by_hand_reaches_the_kernel(guest: Remote, lab: Lab) -> None:
    """From the lower address: connect, take the kernel's map, send one message."""
    guest(OPEN_GUEST_SOCKET, guest=GUEST)
    with lab.open_ours() as ours:
        ours(CONNECT_BY_HAND, guest=GUEST, local=LOWER)
        assert len(ours("stream.recv(size, socket.MSG_WAITALL)", size=MAP_FRAME_BYTES)) == (
            MAP_FRAME_BYTES
        )
        ours(SEND_BY_HAND, sequence=1, payload=b"by hand")
        assert guest("s.recvfrom(100)") == (b"by hand", (LOWER, 5000))


def test_the_wire_cuts_at_the_byte(guest: Remote, lab: Lab) -> None:
    """The first message passes whole; the second, cut one byte before its end, does not."""
    guest(OPEN_GUEST_SOCKET + "s.settimeout(1)", guest=GUEST)
    cuts_before = lab.counts()["cuts"]
    with lab.open_ours() as ours:
        ours(CONNECT_BY_HAND, guest=GUEST, local=LOWER)
        ours("stream.recv(size, socket.MSG_WAITALL)", size=MAP_FRAME_BYTES)
        message_bytes = 48 + 1000
        cut_at = 2 * message_bytes - 1
        lab.order(Orders(cut_bytes_min=cut_at, cut_bytes_max=cut_at))
        for sequence in (1, 2):
            ours(SEND_BY_HAND, sequence=sequence, payload=bytes(1000))
        assert guest("len(s.recv(2000))") == 1000
        with pytest.raises(TimeoutError):
            guest("s.recv(2000)")
        with pytest.raises(ConnectionResetError):
            ours("while stream.recv(100): pass")
    assert lab.counts()["cuts"] == cuts_before + 1
    assert guest("run('ss -Htn state established sport = 16385')") == ""


def test_the_wire_goes_silent_and_comes_back(guest: Remote, lab: Lab) -> None:
    """While the wire is blocked nothing arrives and nothing breaks; afterwards TCP goes on."""
    guest(OPEN_GUEST_SOCKET + "s.settimeout(1)", guest=GUEST)
    with lab.open_ours() as ours:
        ours(CONNECT_BY_HAND, guest=GUEST, local=LOWER)
        ours("stream.recv(size, socket.MSG_WAITALL)", size=MAP_FRAME_BYTES)
        lab.order(Orders(block=("to_guest", "to_host")))
        ours(SEND_BY_HAND, sequence=1, payload=b"late")
        with pytest.raises(TimeoutError):
            guest("s.recv(100)")
        lab.order(Orders())
        assert guest("s.settimeout(10); s.recv(100)") == b"late"
