"""TLS over rsockets: `urds.rsocket.tls.wrap_socket`."""

import errno
import gc
import os
import select
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.rsocket.socket_pairs import HOST, WAIT_S, Pair, Task, error_of, pair_over, using
from urds.rsocket import Socket, create_connection, create_server
from urds.rsocket.link import devices
from urds.rsocket.tls import TlsSocket, wrap_socket

CERTIFICATE = Path(__file__).resolve().parents[1] / "support" / "localhost.pem"
DATA = bytes(range(256)) * 8192  # 2 MiB: more than both sides hold


def server_context() -> ssl.SSLContext:
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.load_cert_chain(CERTIFICATE)
    return made


def client_context() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=CERTIFICATE)


@pytest.fixture(params=("shm0", "tcp0"))
def plain(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with pair_over(request.param) as made:
        yield made


class Tls:
    """Both ends of one connection."""

    def __init__(self, plain: Pair, **named: Any) -> None:
        accepting = Task(lambda: wrap_socket(server_context(), plain.server, server_side=True))
        self.client = wrap_socket(
            client_context(), plain.client, server_hostname="localhost", **named
        )
        self.server: TlsSocket = accepting.result()

    def close(self) -> None:
        self.client.close()
        self.server.close()


@pytest.fixture
def pair(plain: Pair) -> Iterator[Tls]:
    with closing(Tls(plain)) as made:
        yield made


def received(one: TlsSocket, byte_count: int) -> bytes:
    got = bytearray()
    while len(got) < byte_count and (data := one.recv(1 << 16)):
        got += data
    return bytes(got)


class Stopped(BaseException):
    """What a signal handler raises."""


def sent_until(one: TlsSocket, end: type[BaseException]) -> int:
    sent = 0
    while True:
        try:
            sent += one.send(DATA)
        except end:
            return sent


def test_bytes_go_both_ways_at_once(pair: Tls) -> None:
    assert pair.client.version() == pair.server.version() == "TLSv1.3"
    assert pair.client.getpeercert()["subject"] == ((("commonName", "localhost"),),)
    tasks = [Task(lambda one=one: one.sendall(DATA)) for one in (pair.client, pair.server)]
    answer = Task(lambda: received(pair.server, len(DATA)))
    assert received(pair.client, len(DATA)) == DATA
    assert answer.result() == DATA
    for task in tasks:
        task.result()


def test_what_a_receiver_leaves_to_a_sender_is_sent(pair: Tls) -> None:
    """Such as the answer to a change of keys, at the moment at which the sender is through."""

    class Sending:
        """The lock of senders: a receiver meets it held, as the holder gives it back."""

        held = False
        met = False

        def acquire(self, *, blocking: bool) -> bool:
            assert blocking or self.held
            if not self.held:
                self.held = True
                return True
            return False

        def release(self) -> None:
            if not self.met:
                self.met = True
                pair.client.ssl_object.write(b"left")
                pair.client._flush(waits=False)
            self.held = False

    own, pair.client._sending = pair.client._sending, Sending()
    pair.client.send(b"sent ")
    pair.client._sending = own
    pair.server.settimeout(WAIT_S)
    assert received(pair.server, 9) == b"sent left"


def test_nothing_of_it_goes_in_the_clear(plain: Pair) -> None:
    """Reads what the peer's rsocket gets before its TLS does."""
    with closing(Tls(plain)) as pair:
        pair.client.sendall(b"a word that is secret")
        raw = super(TlsSocket, pair.server).recv(1000)
        assert raw
        assert b"secret" not in raw


def test_buffers_files_and_the_end(pair: Tls) -> None:
    pair.client.sendall(b"line\nabcdef")
    with pair.server.makefile("rb") as file:
        assert file.readline() == b"line\n"
        assert file.read(2) == b"ab"
    with pair.client.makefile("wb") as file:
        file.write(b"more")
    pair.client.close()
    buffer = bytearray(10)
    count = pair.server.recv_into(buffer)
    assert bytes(buffer[:count]).endswith(b"more")
    assert pair.server.recv(1) == b""
    assert pair.server.recv_into(buffer) == 0


@pytest.mark.parametrize("is_quiet", [True, False])
def test_an_end_without_farewell(plain: Pair, is_quiet: bool) -> None:
    with closing(Tls(plain, suppress_ragged_eofs=is_quiet)) as pair:
        super(TlsSocket, pair.server).shutdown(socket.SHUT_WR)
        if is_quiet or sys.version_info < (3, 11, 3):
            assert pair.client.recv(1) == b""
        else:
            with pytest.raises(ssl.SSLEOFError):
                pair.client.recv(1)


def test_a_half_closed_stream_still_receives(pair: Tls) -> None:
    pair.client.sendall(b"question")
    pair.client.shutdown(socket.SHUT_WR)
    assert received(pair.server, 100) == b"question"
    pair.server.sendall(b"answer")
    assert pair.client.recv(100) == b"answer"


def test_a_certificate_of_an_unknown_authority_is_refused(plain: Pair) -> None:
    accepting = Task(lambda: wrap_socket(server_context(), plain.server, server_side=True))
    with pytest.raises(ssl.SSLCertVerificationError):
        wrap_socket(ssl.create_default_context(), plain.client, server_hostname="localhost")
    with pytest.raises(ssl.SSLError, match=r"UNKNOWN_CA|unknown ca"):
        accepting.result()


def test_another_name_is_refused(plain: Pair) -> None:
    accepting = Task(lambda: wrap_socket(server_context(), plain.server, server_side=True))
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        wrap_socket(client_context(), plain.client, server_hostname="another.example")
    with pytest.raises(ssl.SSLError):
        accepting.result()


def test_names_are_demanded_as_by_ssl(plain: Pair) -> None:
    with pytest.raises(ValueError, match="requires server_hostname"):
        wrap_socket(client_context(), plain.client)
    with pytest.raises(ValueError, match="client mode"):
        wrap_socket(server_context(), plain.server, True, server_hostname="localhost")
    assert not plain.client.closed


def test_a_listener_accepts_tls_and_a_socket_connects_with_it() -> None:
    with (
        wrap_socket(server_context(), create_server((HOST, 0)), True) as listener,
        wrap_socket(client_context(), Socket(), server_hostname="localhost") as client,
    ):
        accepting = Task(listener.accept)
        client.settimeout(WAIT_S)
        client.connect(listener.getsockname())
        accepted, peer = accepting.result()
        with accepted:
            assert peer == client.getsockname()
            accepted.sendall(b"hello")
            assert client.recv(5) == b"hello"


def test_a_failed_handshake_leaves_the_listener(plain: Pair) -> None:
    with wrap_socket(server_context(), create_server((HOST, 0)), True) as listener:
        with create_connection(listener.getsockname(), WAIT_S) as client:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            with pytest.raises(ssl.SSLError):
                listener.accept()
        assert not listener.closed


def test_a_socket_that_never_waits_says_what_it_wants(pair: Tls) -> None:
    pair.client.setblocking(False)
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.recv(1)
    sent = sent_until(pair.client, ssl.SSLWantWriteError)
    got = Task(lambda: received(pair.server, sent + 4))
    pair.client.settimeout(WAIT_S)
    pair.client.sendall(b"last")
    assert got.result() == (DATA[: 1 << 16] * (sent // (1 << 16) + 1))[:sent] + b"last"


def test_a_send_that_a_handler_cuts_short_goes_on_behind_what_was_taken(
    pair: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: object, is_ready: Callable[[], bool], timeout_s: float | None) -> bool:
        if timeout_s is None:  # nothing more can be taken before the peer reads
            raise Stopped
        return is_ready()

    pair.client.settimeout(None)  # else a send ends before it waits a second time
    with monkeypatch.context() as patch:
        patch.setattr(devices, "wait", stop)
        sent = sent_until(pair.client, Stopped) + (1 << 16)  # the last one was encrypted
    got = Task(lambda: received(pair.server, sent + 4))
    pair.client.sendall(b"last")
    assert got.result() == DATA[: 1 << 16] * (sent >> 16) + b"last"


def test_a_timeout_is_one(pair: Tls) -> None:
    pair.client.settimeout(0.01)
    with pytest.raises(TimeoutError):
        pair.client.recv(1)
    assert sent_until(pair.client, TimeoutError)
    with pytest.raises(TimeoutError):
        pair.client.sendall(b"more")


def test_unwrap_goes_on_in_the_clear(pair: Tls) -> None:
    def serve() -> bytes:
        one = pair.server.unwrap()
        one.sendall(b"clear")
        return one.recv(100)

    served = Task(serve)
    one = pair.client.unwrap()
    one.sendall(b"as well")
    assert received(one, 5) == b"clear"
    assert served.result() == b"as well"


def test_calls_that_would_go_past_tls_are_refused(pair: Tls) -> None:
    one = pair.client
    for call in (
        lambda: one.sendmsg([b"x"]),
        lambda: one.sendto(b"x", None),
        lambda: one.recvmsg(1),
        lambda: one.recvfrom(1),
        lambda: one.map_buffer(bytearray(10)),
        lambda: one.write_mapped(b"x", 0),
    ):
        assert error_of(call) == errno.EOPNOTSUPP
    for refused in (lambda: one.send(b"x", 1), lambda: one.recv(1, socket.MSG_PEEK)):
        with pytest.raises(ValueError, match="flags"):
            refused()


def test_ssl_itself_refuses_and_takes_nothing_but_the_number(plain: Pair) -> None:
    """It has made a socket of the number by then, and closes that."""
    number = plain.client.fileno()
    with pytest.raises(OSError, match=r"urds\.rsocket\.tls") as refused:
        client_context().wrap_socket(plain.client, server_hostname="localhost")
    assert refused.value.errno == errno.EOPNOTSUPP
    os.fstat(number)  # the frames of the traceback hold ssl's socket
    del refused
    gc.collect()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(number)
    plain.server.sendall(b"still here")
    assert plain.client.recv(100) == b"still here"
    again = plain.client.fileno()
    os.fstat(again)
    plain.client.close()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(again)


def test_the_plain_socket_is_closed_and_its_readiness_goes_along(plain: Pair) -> None:
    with closing(Tls(plain)) as pair:
        assert plain.client.closed
        told = threading.Event()
        pair.server.watchers.add(told.set)
        pair.client.sendall(b"x")
        assert pair.server.recv(1) == b"x"
        assert told.wait(WAIT_S)


def test_what_tls_has_read_ahead_shows_as_readable(pair: Tls) -> None:
    """Several records come at once; each of them can be waited for."""
    number = pair.server.fileno()
    for data in (b"first", b"second", b"third"):
        pair.client.ssl_object.write(data)
    pair.client.sendall(b"")  # sends the three records as one piece
    for data in (b"first", b"second"):
        assert pair.server.recv(100) == data
        assert pair.server.readiness().readable
        assert select.select([number], [], [], WAIT_S)[0] == [number]
    assert pair.server.recv(3) == b"thi"
    assert pair.server.pending() == 2
    assert select.select([number], [], [], WAIT_S)[0] == [number]
    assert pair.server.recv(100) == b"rd"
    assert not pair.server.readiness().readable
    assert select.select([number], [], [], 0)[0] == []


def test_what_a_peer_sent_before_it_went_is_received(plain: Pair) -> None:
    """The handshake ends when the peer cannot be written to any more."""
    plain.server.setblocking(False)
    server = wrap_socket(server_context(), plain.server, True, do_handshake_on_connect=False)
    context = client_context()
    shaking = Task(lambda: wrap_socket(context, plain.client, server_hostname="localhost"))
    select.select([server], [], [], WAIT_S)
    with suppress(ssl.SSLWantReadError):
        server.do_handshake()
    with shaking.result() as client:
        client.sendall(b"all of it")
    server.settimeout(WAIT_S)
    while not server.readiness().hung_up:  # the end of the client, behind its bytes
        select.select([], [], [], 0.001)
    server.do_handshake()
    assert received(server, 100) == b"all of it"
    server.close()


@pytest.mark.parametrize("end", ["close", "shutdown"])
def test_an_end_in_order_is_told_from_a_cut(plain: Pair, end: str) -> None:
    with closing(Tls(plain, suppress_ragged_eofs=False)) as pair:
        pair.server.close() if end == "close" else pair.server.shutdown(socket.SHUT_RDWR)
        assert pair.client.recv(1) == b""


def test_nothing_leaves_in_the_clear_before_the_handshake() -> None:
    """A connect without waiting goes on; a send meanwhile begins the handshake."""
    with using("shm0"), create_server((HOST, 0)) as listener:
        client = wrap_socket(
            client_context(), Socket(), server_hostname="localhost", do_handshake_on_connect=False
        )
        assert error_of(client.send, b"secret") == errno.ENOTCONN
        client.setblocking(False)
        assert client.connect_ex(listener.getsockname()) in {0, errno.EINPROGRESS}
        accepted, _ = listener.accept()
        select.select([], [client], [], WAIT_S)
        with pytest.raises(ssl.SSLWantReadError):
            client.send(b"secret")
        hello = accepted.recv(1 << 14)
        assert hello[:1] == b"\x16"  # a handshake record
        assert b"secret" not in hello
        accepted.close()
        client.close()
