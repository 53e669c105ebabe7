"""`urds.rsocket.install`: what it makes rsockets of, and what it leaves to the kernel."""

import ast
import http.client
import http.server
import socket
import socketserver
import ssl
import threading
import xmlrpc.client
import xmlrpc.server
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import urds
from tests.rsocket.socket_pairs import HOST, WAIT_S, using
from urds import rsocket
from urds.rsocket.tls import TlsSocket

ROOT = Path(__file__).resolve().parents[2]
CERTIFICATE = ROOT / "tests" / "support" / "localhost.pem"
BODY = bytes(range(256)) * 100


@contextmanager
def installed() -> Iterator[None]:
    rsocket.install()
    try:
        yield
    finally:
        rsocket.uninstall()


@pytest.fixture(params=("shm0", "tcp0", "shm0,tcp0"))
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with using(request.param), installed():
        yield request.param


def is_ours(*arguments: object, **named: object) -> bool:
    with socket.socket(*arguments, **named) as made:  # type: ignore[arg-type]  # any arguments
        return isinstance(made, rsocket.StreamSocket)


STREAM, INET6 = socket.SOCK_STREAM, socket.AF_INET6


def test_tcp_sockets_are_rsockets_and_others_the_kernels() -> None:
    with installed():
        assert is_ours()
        assert is_ours(socket.AF_INET, STREAM)
        assert is_ours(INET6, STREAM | socket.SOCK_CLOEXEC, socket.IPPROTO_TCP)
        assert is_ours(family=INET6)
        assert not is_ours(socket.AF_INET, socket.SOCK_DGRAM)
        assert not is_ours(type=socket.SOCK_DGRAM)
        assert not is_ours(socket.AF_UNIX, STREAM)
        for end in socket.socketpair():
            with end:
                assert type(end) is socket.socket
                assert not is_ours(fileno=socket.dup(end.fileno()))


def test_derived_classes_stay_the_kernels() -> None:
    class Own(socket.socket):
        pass

    with installed(), Own() as own:
        assert not isinstance(own, rsocket.Socket)


def test_functions_of_the_socket_module_are_served(device: str) -> None:
    """The devices' own TCP sockets and reserved ports go on being the kernel's."""
    with (
        socket.create_server((HOST, 0)) as listener,
        socket.create_connection(listener.getsockname(), WAIT_S) as client,
    ):
        assert isinstance(client, rsocket.StreamSocket)
        accepted, _ = listener.accept()
        with accepted:
            client.sendall(BODY)
            assert accepted.recv(len(BODY), socket.MSG_WAITALL) == BODY
    with (
        socket.create_server(("::", 0), family=INET6, dualstack_ipv6=True) as listener,
        socket.create_connection((HOST, listener.getsockname()[1]), WAIT_S),
    ):
        listener.accept()[0].close()


def test_no_stream_of_the_library_itself_is_asked_of_the_hooked_class() -> None:
    """Those of the command line are the user's choice, and no local one is served."""
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in (ROOT / "src" / "urds").rglob("*.py")
        if "cli" not in path.parts
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("socket.socket", "socket")
        if "SOCK_STREAM" in ast.unparse(call) and "AF_UNIX" not in ast.unparse(call)
    ]
    assert found == []


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers a POST with its body."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(server: socketserver.TCPServer) -> Iterator[int]:
    """Serve in a thread; yield the port."""
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_http_server_and_client_need_no_change(device: str) -> None:
    server = http.server.ThreadingHTTPServer((HOST, 0), Echo)
    assert isinstance(server.socket, rsocket.StreamSocket)
    with serving(server) as port:
        client = http.client.HTTPConnection(HOST, port, timeout=WAIT_S)
        for _ in range(2):  # the second over the same connection
            client.request("POST", "/", BODY)
            assert client.getresponse().read() == BODY
        assert isinstance(client.sock, rsocket.StreamSocket)
        client.close()


def test_https_needs_none_either(device: str) -> None:
    serving_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving_context.load_cert_chain(CERTIFICATE)
    server = http.server.ThreadingHTTPServer((HOST, 0), Echo)
    server.socket = serving_context.wrap_socket(server.socket, server_side=True)
    with serving(server) as port:
        context = ssl.create_default_context(cafile=CERTIFICATE)
        client = http.client.HTTPSConnection(HOST, port, context=context, timeout=WAIT_S)
        client.request("POST", "/", BODY)
        assert isinstance(client.sock, TlsSocket)
        assert client.getresponse().read() == BODY
        client.close()


def test_xmlrpc_needs_none() -> None:
    with using("shm0"), installed():
        server = xmlrpc.server.SimpleXMLRPCServer((HOST, 0), logRequests=False)
        server.register_function(pow)
        with (
            serving(server) as port,
            xmlrpc.client.ServerProxy(f"http://{HOST}:{port}") as proxy,
        ):
            assert proxy.pow(2, 10) == 1024


def test_kernel_sockets_are_wrapped_as_before() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    with installed():
        kernel, far = socket.socketpair()
        with far, context.wrap_socket(kernel, do_handshake_on_connect=False) as wrapped:
            assert type(wrapped) is ssl.SSLSocket


def test_uninstall_restores() -> None:
    before = ssl.SSLContext.wrap_socket
    rsocket.install()
    rsocket.install()
    assert ssl.SSLContext.wrap_socket is not before
    rsocket.uninstall()
    rsocket.uninstall()
    assert "__new__" not in socket.socket.__dict__
    assert ssl.SSLContext.wrap_socket is before
    assert not is_ours()


def test_rds_and_rsockets_are_installed_apart() -> None:
    with installed():
        urds.install()
        with socket.socket(socket.AF_RDS, socket.SOCK_SEQPACKET) as rds:
            assert isinstance(rds, urds.Socket)
        assert is_ours()
        urds.uninstall()
        assert is_ours()
