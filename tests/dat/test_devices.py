"""Endpoints over every device that opens by name, both ends in this process.

Source: docs/reference/dat.md 4.3, 9.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.dat.devices import DEVICES
from urds import dat
from urds.dat import (
    ConnectionEvent,
    ConnectionRequest,
    DtoCompletionEvent,
    DtoStatus,
    Endpoint,
    EpState,
    EvdFlag,
    EventDispatcher,
    EventNumber,
)
from urds.dat.ia import InterfaceAdapter
from urds.dat.memory import LocalMemory

WAIT_S = 20.0
WRITES_MAX = 1000
ESTABLISHED = EventNumber.CONNECTION_ESTABLISHED
DISCONNECTED = EventNumber.CONNECTION_DISCONNECTED

pytestmark = pytest.mark.parametrize("device", DEVICES, indirect=True)


@dataclass
class End:
    """One adapter with an endpoint."""

    ia: InterfaceAdapter
    ep: Endpoint
    transfers: EventDispatcher
    connection: EventDispatcher
    memory: LocalMemory

    @classmethod
    def of(cls, ia: InterfaceAdapter) -> "End":
        pz = ia.create_pz()
        transfers, connection = ia.create_evd(32, EvdFlag.DTO), ia.create_evd(8, EvdFlag.CONNECTION)
        ep = pz.create_ep(transfers, transfers, connection)
        return cls(ia, ep, transfers, connection, pz.register(bytearray(1024)))

    def next_connection_event(self) -> ConnectionEvent:
        event = self.connection.wait(WAIT_S)
        assert isinstance(event, ConnectionEvent)
        return event

    def next_completion(self) -> DtoCompletionEvent:
        event = self.transfers.wait(WAIT_S)
        assert isinstance(event, DtoCompletionEvent)
        return event


@dataclass
class Pair:
    """A client, a server, and what the server listens at."""

    client: End
    server: End
    requests: EventDispatcher
    conn_qual: int

    def ask(self, private_data: bytes = b"") -> ConnectionRequest:
        """Let the client connect and return the request."""
        address = self.server.ia.attr.ia_address_ptr
        self.client.ep.connect(address, self.conn_qual, timeout_s=WAIT_S, private_data=private_data)
        event = self.requests.wait(WAIT_S)
        assert isinstance(event, dat.ConnectionRequestEvent)
        return event.cr

    def events(self) -> list[EventNumber]:
        """Return the number of the next connection event of both ends."""
        return [end.next_connection_event().event_number for end in (self.client, self.server)]


@pytest.fixture
def pair(device: str) -> Iterator[Pair]:
    with dat.open(device) as near, dat.open(device) as far:
        requests = far.create_evd(4, EvdFlag.CR)
        psp = far.listen(evd=requests)
        yield Pair(End.of(near), End.of(far), requests, psp.conn_qual)


def test_a_reserved_service_point_takes_the_first_of_two_at_once(device: str) -> None:
    """Both have asked before it can close its listener."""
    with dat.open(device) as far, dat.open(device) as one, dat.open(device) as other:
        server, clients = End.of(far), [End.of(one), End.of(other)]
        requests = far.create_evd(4, EvdFlag.CR)
        with far.listen(evd=requests) as psp:
            conn_qual = psp.conn_qual
        far.reserve(conn_qual, server.ep, requests)
        with far.lock:
            for client in clients:
                client.ep.connect(far.address, conn_qual, timeout_s=WAIT_S)
        event = requests.wait(WAIT_S)
        assert isinstance(event, dat.ConnectionRequestEvent)
        event.cr.accept()
        ends = {client.next_connection_event().event_number for client in clients}
        assert ends == {ESTABLISHED, EventNumber.CONNECTION_NON_PEER_REJECTED}
        assert server.next_connection_event().event_number is ESTABLISHED


def test_private_data_of_every_size_travel_both_ways(pair: Pair) -> None:
    limit = pair.client.ia.provider_attr.max_private_data_size
    assert limit >= 64
    said = bytes(range(256)) * 4
    request = pair.ask(said[:limit])
    assert request.private_data == said[:limit]
    assert request.remote_address == pair.client.ia.attr.ia_address_ptr
    request.accept(pair.server.ep, said[1 : limit + 1])
    assert pair.client.next_connection_event().private_data == said[1 : limit + 1]
    assert pair.server.next_connection_event().private_data == b""


def test_both_ends_know_the_addresses_of_their_connection(pair: Pair) -> None:
    pair.ask().accept(pair.server.ep)
    assert pair.events() == [ESTABLISHED, ESTABLISHED]
    near, far = pair.client.ep.query(), pair.server.ep.query()
    for one, other in ((near, far), (far, near)):
        assert one.local_ia_address_ptr == other.remote_ia_address_ptr == pair.client.ia.address
        assert one.local_port_qual == other.remote_port_qual > 0
    assert far.local_port_qual == pair.conn_qual


def test_one_byte_more_than_the_limit_is_refused(pair: Pair) -> None:
    limit = pair.client.ia.provider_attr.max_private_data_size
    with pytest.raises(dat.DatInvalidParameter):
        pair.client.ep.connect("127.0.0.1", 1, private_data=bytes(limit + 1))
    request = pair.ask()
    with pytest.raises(dat.DatInvalidParameter):
        request.accept(pair.server.ep, bytes(limit + 1))
    request.accept(pair.server.ep)
    assert pair.events() == [ESTABLISHED, ESTABLISHED]


def test_no_listener_there(pair: Pair) -> None:
    """The event comes after the call: the state is what the transition table says."""
    ep = pair.client.ep
    ep.connect(pair.server.ia.attr.ia_address_ptr, 1, timeout_s=WAIT_S)
    event = pair.client.next_connection_event()
    assert event.event_number is EventNumber.CONNECTION_NON_PEER_REJECTED
    assert ep.state is EpState.DISCONNECTED
    ep.reset()
    pair.ask().accept(pair.server.ep)
    assert pair.events() == [ESTABLISHED, ESTABLISHED]


def test_a_request_that_is_rejected(pair: Pair) -> None:
    pair.ask(b"please").reject()
    event = pair.client.next_connection_event()
    assert event.event_number is EventNumber.CONNECTION_PEER_REJECTED
    assert pair.client.ep.state is EpState.DISCONNECTED


@pytest.mark.parametrize("graceful", [True, False])
def test_an_endpoint_connects_again_as_soon_as_it_is_reset(pair: Pair, graceful: bool) -> None:
    """The goodbye of the connection before may still be on its way."""
    client, server = pair.client, pair.server
    for number in range(5):
        server.ep.post_recv([server.memory.triplet()], number)
        pair.ask().accept(server.ep)
        assert pair.events() == [ESTABLISHED, ESTABLISHED]
        client.ep.post_send([client.memory.triplet(0, 10 + number)])
        received, sent = server.next_completion(), client.next_completion()
        assert (received.user_cookie, received.status) == (number, DtoStatus.SUCCESS)
        assert received.transfered_length == 10 + number
        assert sent.status is DtoStatus.SUCCESS
        client.ep.disconnect(graceful=graceful)
        assert pair.events() == [DISCONNECTED, DISCONNECTED]
        for end in (client, server):
            assert end.ep.recv_query() == (0, 0)
            end.ep.reset()


def test_what_was_put_off_before_a_reset_touches_no_later_connection(pair: Pair) -> None:
    """The lock is held as by an engine's call that broke the connection and is not over yet."""
    client, server = pair.client, pair.server
    pair.ask().accept(server.ep)
    assert pair.events() == [ESTABLISHED, ESTABLISHED]
    with client.ia.lock:
        client.ep.connection.break_soon()
        client.ep.disconnect()
        client.ep.reset()
        param = client.ep.query()
        assert (param.remote_ia_address_ptr, param.remote_port_qual) == (None, 0)
        assert param.local_port_qual == 0
        client.ep.connect(server.ia.address, pair.conn_qual, timeout_s=WAIT_S)
    assert pair.events() == [DISCONNECTED, DISCONNECTED]
    server.ep.reset()
    event = pair.requests.wait(WAIT_S)
    assert isinstance(event, dat.ConnectionRequestEvent)
    event.cr.accept(server.ep)
    assert pair.events() == [ESTABLISHED, ESTABLISHED]


def test_what_is_under_way_arrives_before_a_graceful_end(pair: Pair) -> None:
    client, server = pair.client, pair.server
    for number in range(8):
        server.ep.post_recv([server.memory.triplet(100 * number, 100)], number)
    pair.ask().accept(server.ep)
    assert pair.events() == [ESTABLISHED, ESTABLISHED]
    for number in range(8):
        client.ep.post_send([client.memory.triplet(0, 50)], number)
    client.ep.disconnect(graceful=True)
    assert pair.events() == [DISCONNECTED, DISCONNECTED]
    for end in (client, server):
        completions = [end.next_completion() for _ in range(8)]
        assert [each.user_cookie for each in completions] == list(range(8))
        assert [each.status for each in completions] == [DtoStatus.SUCCESS] * 8


def test_closing_an_adapter_breaks_its_connections(pair: Pair) -> None:
    """The other side learns of it and gets its receives back."""
    pair.client.ep.post_recv([pair.client.memory.triplet()], "never")
    pair.ask().accept(pair.server.ep)
    assert pair.events() == [ESTABLISHED, ESTABLISHED]
    pair.server.ia.close()
    event = pair.client.next_connection_event()
    assert event.event_number in (DISCONNECTED, EventNumber.CONNECTION_BROKEN)
    flushed = pair.client.next_completion()
    assert (flushed.user_cookie, flushed.status) == ("never", DtoStatus.ERR_FLUSHED)
    assert pair.client.ep.recv_query() == (0, 0)


def test_a_write_into_mapped_memory_completes_within_its_post(pair: Pair, device: str) -> None:
    """No call has to look for what the post itself has done."""
    if not device.startswith("shm"):
        pytest.skip("no memory of a peer is mapped")
    client, server = pair.client, pair.server
    memory = server.ia.adapter.allocate(4096)
    with server.ep.pz.register(memory) as target:
        pair.ask().accept(server.ep)
        assert pair.events() == [ESTABLISHED, ESTABLISHED]
        source, remote = [client.memory.triplet()], target.remote_triplet(0, 1024)
        for _ in range(WRITES_MAX):  # until the memory is mapped
            client.ep.post_rdma_write(source, remote)
            client.next_completion()
            if client.ia.adapter.writes_placed:
                break
        client.ep.post_rdma_write(source, remote, "placed")
        assert len(client.transfers) == 1
        assert client.next_completion().user_cookie == "placed"
        client.ep.disconnect()


def test_in_a_forked_child_the_handles_of_its_parent_are_freed(device: str) -> None:
    """The device below is closed there: a request would never end, and a wait neither."""
    with dat.open(device) as ia:
        end = End.of(ia)
        child = os.fork()
        if not child:
            code = 1
            try:
                for call in (end.ep.recv_query, end.ep.reset, end.transfers.wait, ia.create_pz):
                    with pytest.raises(dat.DatInvalidHandle):
                        call()
                with pytest.raises(dat.DatInvalidHandle):
                    ia.close()
                assert dat.dat_evd_dequeue(end.transfers)[0] == dat.DAT_INVALID_HANDLE
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        end.ep.reset()
