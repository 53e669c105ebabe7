"""RDMA operations between sockets, by the rules of rds(7) and of the wire specification.

A client gives a region of its memory to a server, which reaches into it; both are sockets of this
process, on each device. What a peer of any kind may reach is in `test_hostile_memory`.
"""

import time
from collections.abc import Iterator

import pytest

import urds
from tests.rds.sockets.conftest import backend_with
from tests.rds.sockets.hosts import host
from urds.rds.constants import SOL_RDS, Cmsg, RdmaStatus, SockOpt, Transport

ARRIVAL_S = 10.0
ROUNDS = 50

Pair = tuple[urds.Socket, urds.Socket]


@pytest.fixture(params=["shm0", "tcp0"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Give a client and a server."""
    with backend_with(rdma_devices=[request.param], linger_s=0):
        made = []
        for number in (1, 2):
            sock = urds.Socket()
            sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, int(Transport.IB))
            sock.bind((host(number), 0))
            sock.settimeout(ARRIVAL_S)
            made.append(sock)
        yield made[0], made[1]
        for sock in made:
            sock.close()


def ask(pair: Pair, region: urds.MemoryRegion, payload: bytes = b"please fill") -> int:
    """Have the client send a request with its region; return the cookie that the server got."""
    client, server = pair
    client.send_region(payload, region, server.getsockname())
    got, source, cookie = server.recv_region(100)
    assert (got, source) == (payload, client.getsockname())
    assert cookie is not None
    return cookie


@pytest.mark.rule("wire-rdma-message", "wire-rdma-trailing", "wire-rdma-coherent")
def test_the_bytes_are_there_when_the_closing_message_is(pair: Pair) -> None:
    client, server = pair
    memory = bytearray(20_000)
    for number in range(ROUNDS):
        data = bytes([number + 1]) * len(memory)
        with client.get_mr(memory) as region:
            cookie = ask(pair, region)
            done = server.rdma_write(data, cookie, client.getsockname(), payload=b"filled")
            assert client.recv(100) == b"filled"
            assert memory == data
        assert done.wait(ARRIVAL_S) is RdmaStatus.SUCCESS


@pytest.mark.rule("wire-rdma-dest-cookie", "wire-rdma-key-in-header", "rds7-control-rdma")
def test_a_cookie_travels_beside_the_payload_and_is_all_that_the_peer_needs(pair: Pair) -> None:
    client, server = pair
    memory = bytearray(b"octets of the client")
    with client.get_mr(memory) as region:
        client.send_region(b"", region, server.getsockname())
        payload, control, _, _ = server.recvmsg(100, 100)
        assert payload == b""
        [(level, kind, data)] = control
        assert (level, kind) == (SOL_RDS, Cmsg.RDMA_DEST)
        cookie = int.from_bytes(data, "little")
        got = bytearray(len(memory))
        server.rdma_read(got, cookie, client.getsockname()).wait(ARRIVAL_S)
        assert got == memory


@pytest.mark.rule("wire-rdma-use-once")
def test_a_region_for_one_use_is_over_when_it_was_used(pair: Pair) -> None:
    client, server = pair
    there = client.getsockname()
    once, again = client.get_mr(bytearray(10), use_once=True), client.get_mr(bytearray(10))
    for region in (once, again):
        server.rdma_write(b"0123456789", ask(pair, region), there, payload=b"filled")
        assert client.recv(100) == b"filled"
    assert once.is_over
    assert not again.is_over
    deadline = time.monotonic() + ARRIVAL_S
    while server.rdma_read(bytearray(1), once.cookie, there).wait(ARRIVAL_S) is RdmaStatus.SUCCESS:
        assert time.monotonic() < deadline, "the device never forgot the key"
    again.free()


@pytest.mark.rule("wire-rdma-trailing")
def test_a_message_whose_operation_failed_does_not_come(pair: Pair) -> None:
    client, server = pair
    there = client.getsockname()
    region = client.get_mr(bytearray(10))
    cookie = ask(pair, region)
    region.free()
    failed = server.rdma_write(b"0123456789", cookie, there, payload=b"filled")
    assert failed.wait(ARRIVAL_S) is RdmaStatus.REMOTE_ERROR
    server.sendto(b"something else", there)
    assert client.recv(100) == b"something else"
