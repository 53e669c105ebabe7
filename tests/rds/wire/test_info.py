"""Records of rds-info: sizes, both forms, refusals."""

import sys
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address

import pytest

from urds.common.errors import WireError
from urds.rds.constants import ConnectionFlag, InfoOpt
from urds.rds.wire import info

ONE, TWO = IPv4Address("10.0.0.1"), IPv4Address("10.0.0.2")
COUNTER = info.Counter(name="conn_reset", value=3)
CONNECTION = info.Connection(
    sequence_next=4,
    sequence_expected=3,
    local=ONE,
    peer=TWO,
    transport="tcp",
    flags=ConnectionFlag.CONNECTED | ConnectionFlag.SENDING,
)
MESSAGE = info.QueuedMessage(
    sequence=1, payload_bytes=7, local=ONE, peer=TWO, local_port=4000, peer_port=5000, tos=1
)
SOCKET = info.SocketEntry(
    send_buffer_bytes=106496,
    bound=ONE,
    connected=TWO,
    bound_port=4000,
    connected_port=5000,
    receive_buffer_bytes=106496,
    inode=77,
)
TCP_SOCKET = info.TcpSocket(
    local=ONE,
    local_port=49789,
    peer=TWO,
    peer_port=16385,
    header_bytes_remaining=48,
    payload_bytes_remaining=0,
    last_sent_next=1,
    last_expected_una=2,
    last_seen_una=3,
)
RDMA = info.RdmaConnection(
    source=ONE,
    target=TWO,
    source_gid=IPv6Address("fe80::1"),
    target_gid=IPv6Address("::ffff:10.0.0.2"),
    send_requests_max=256,
    receive_requests_max=1024,
    send_segments_max=8,
    regions_max=4096,
    region_pages_max=257,
    service_level=2,
    cache_allocations=9,
)
# Record, the option that lists it, its size, the option of the IPv6 form and its size.
FORMS = [
    (COUNTER, InfoOpt.COUNTERS, 40, None, 40),
    (CONNECTION, InfoOpt.CONNECTIONS, 42, InfoOpt.V6_CONNECTIONS, 65),
    (MESSAGE, InfoOpt.SEND_MESSAGES, 26, InfoOpt.V6_SEND_MESSAGES, 50),
    (MESSAGE, InfoOpt.RETRANS_MESSAGES, 26, InfoOpt.V6_RETRANS_MESSAGES, 50),
    (MESSAGE, InfoOpt.RECV_MESSAGES, 26, InfoOpt.V6_RECV_MESSAGES, 50),
    (SOCKET, InfoOpt.SOCKETS, 28, InfoOpt.V6_SOCKETS, 52),
    (TCP_SOCKET, InfoOpt.TCP_SOCKETS, 41, InfoOpt.V6_TCP_SOCKETS, 64),
    (RDMA, InfoOpt.IB_CONNECTIONS, 68, InfoOpt.V6_IB_CONNECTIONS, 92),
]


@pytest.mark.parametrize(("record", "option", "v4_bytes", "option6", "v6_bytes"), FORMS)
def test_both_forms_have_the_sizes_of_linux_and_say_the_same(
    record: info.Record, option: InfoOpt, v4_bytes: int, option6: InfoOpt | None, v6_bytes: int
) -> None:
    assert len(record.emit()) == info.ELEMENT_BYTES[option] == v4_bytes
    assert len(record.emit(ipv6=True)) == v6_bytes
    assert option6 is None or info.ELEMENT_BYTES[option6] == v6_bytes
    assert type(record).parse(record.emit()) == record
    # The IPv6 forms of a TCP socket and of a connection have no tos: here it is 0.
    assert type(record).parse(record.emit(ipv6=True)) == record


def test_every_list_that_linux_registers_has_its_element() -> None:
    never = {InfoOpt.CONNECTION_STATS, InfoOpt.IWARP_CONNECTIONS}
    assert info.ELEMENT_BYTES.keys() == set(InfoOpt) - never


@pytest.mark.parametrize("record", [form[0] for form in FORMS])
@pytest.mark.parametrize("count", [0, 25, 39, 43, 100])
def test_another_number_of_bytes_is_refused(record: info.Record, count: int) -> None:
    with pytest.raises(WireError, match=f"of {count} bytes, not"):
        type(record).parse(bytes(count))


def test_a_tcp_socket_without_tos_is_read() -> None:
    """Kernels before 5.0 have 40 bytes."""
    with_tos = replace(TCP_SOCKET, tos=4)
    assert info.TcpSocket.parse(with_tos.emit()[:-1]) == TCP_SOCKET
    assert info.TcpSocket.parse(with_tos.emit()) == with_tos


def test_integers_are_of_the_host_and_ports_are_big_endian() -> None:
    data = MESSAGE.emit()
    assert int.from_bytes(data[8:12], sys.byteorder) == 7
    assert data[12:24] == ONE.packed + TWO.packed + bytes.fromhex("0fa01388")


def test_an_ipv6_address_does_not_fit_the_ipv4_form() -> None:
    record = replace(SOCKET, bound=IPv6Address("fd00::1"))
    assert info.SocketEntry.parse(record.emit(ipv6=True)) == record
    with pytest.raises(WireError, match="fd00::1 in an IPv4 record"):
        record.emit()


def test_no_address_is_all_zeros_in_both_forms() -> None:
    """Linux lists an IPv4 socket that is not connected with `::` there, not v4-mapped."""
    record = replace(SOCKET, connected=IPv4Address("0.0.0.0"), connected_port=0)
    assert record.emit()[8:12] == bytes(4)
    assert record.emit(ipv6=True)[20:36] == bytes(16)


@pytest.mark.parametrize("port", [-1, 65536])
def test_what_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(WireError, match=f"port {port}"):
        replace(SOCKET, bound_port=port).emit()


def test_a_name_leaves_room_for_its_end() -> None:
    assert info.Counter.parse(replace(COUNTER, name="x" * 31).emit()).name == "x" * 31
    with pytest.raises(WireError, match="32 bytes, limit 31"):
        replace(COUNTER, name="x" * 32).emit()


def test_a_value_wider_than_its_field_is_refused() -> None:
    with pytest.raises(WireError, match=f"counter: {1 << 64} is not in 0 to"):
        replace(COUNTER, value=1 << 64).emit()


def test_a_list_is_its_elements_in_the_form_of_the_option() -> None:
    records = [SOCKET, replace(SOCKET, inode=78)]
    for option in (InfoOpt.SOCKETS, InfoOpt.V6_SOCKETS):
        data = info.emit_list(option, records)
        elements = info.split(data, element_bytes=info.ELEMENT_BYTES[option])
        assert [info.SocketEntry.parse(element) for element in elements] == records
    assert info.emit_list(InfoOpt.SOCKETS, []) == b""
    assert info.split(b"", element_bytes=28) == []


@pytest.mark.parametrize("element_bytes", [0, -28, 27])
def test_elements_fill_their_list(element_bytes: int) -> None:
    with pytest.raises(WireError, match=f"56 bytes in elements of {element_bytes}"):
        info.split(bytes(56), element_bytes=element_bytes)
