"""The bytes of Linux, read and written again byte for byte."""

import sys
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address

import pytest

from tests.vectors import file_names, load
from urds.rds.constants import Capability, ConnectionFlag, ExtensionType, HeaderFlag, InfoOpt
from urds.rds.wire import info
from urds.rds.wire.checksum import header_checksum, header_intact
from urds.rds.wire.congestion_map import CongestionMap
from urds.rds.wire.extensions import (
    Extension,
    Handshake,
    Mark,
    emit,
    emit_handshake,
    parse,
    parse_handshake,
)
from urds.rds.wire.header import HEADER, HEADER_BYTES, Header
from urds.rds.wire.private_data import ConnectData, accepted_version

TCP = ["linux_6_1_tcp", "linux_6_1_tcp_ipv6", "linux_6_12_tcp", "linux_7_2_tcp"]
RDMA = "linux_6_1_rdma"
MESSAGES = [
    pytest.param(data, id=f"{file_name}-{name}")
    for file_name in [*TCP, RDMA]
    for name, data in load(file_name).items()
]
INFO = load("linux_6_1_info")


def test_every_file_is_used() -> None:
    here = {*TCP, RDMA, "linux_6_1_rdma_connect", "linux_6_1_info"}
    elsewhere = {"linux_6_1_rsocket", "linux_6_1_rdma_conversation"}
    assert set(file_names()) == here | elsewhere


@pytest.mark.rule("wire-header-fields", "wire-header-size")
@pytest.mark.parametrize("data", MESSAGES)
def test_a_header_of_linux_is_written_again_byte_for_byte(data: bytes) -> None:
    header = Header.parse(data[:HEADER_BYTES])
    assert header.emit() == data[:HEADER_BYTES]
    assert len(data) in (HEADER_BYTES, HEADER_BYTES + header.payload_bytes)
    assert emit(parse(header.extension)) == header.extension


@pytest.mark.rule("wire-checksum")
@pytest.mark.parametrize("data", load(RDMA).values(), ids=load(RDMA))
def test_our_checksum_is_the_one_that_linux_computed(data: bytes) -> None:
    fields = HEADER.unpack_from(data)
    assert fields[8] == header_checksum(*fields[:8], *fields[9:]) != 0
    assert header_intact(fields)
    assert Header.parse(data[:HEADER_BYTES]).emit(checksum=True) == data[:HEADER_BYTES]


@pytest.mark.parametrize("file_name", TCP)
def test_over_tcp_linux_leaves_ack_credit_and_checksum_zero(file_name: str) -> None:
    for data in load(file_name).values():
        header = Header.parse(data[:HEADER_BYTES])
        assert (header.ack, header.credit, header.padding, header.checksum) == (0, 0, 0, 0)
        assert header.flags in (HeaderFlag(0), HeaderFlag.CONG_BITMAP, HeaderFlag.RETRANSMITTED)


@pytest.mark.rule("wire-exthdr-npaths", "wire-exthdr-gen-num")
@pytest.mark.parametrize(
    ("file_name", "handshake"),
    [
        ("linux_6_1_tcp", Handshake(npaths=8)),
        ("linux_6_1_tcp_ipv6", Handshake(npaths=8)),
        ("linux_6_12_tcp", Handshake(npaths=8)),
        ("linux_7_2_tcp", Handshake(npaths=8, generation=0x9BCE0FD8, sport_index=True)),
    ],
)
@pytest.mark.parametrize(("name", "ports"), [("probe_ping", (1, 0)), ("probe_pong", (0, 1))])
def test_the_probe_of_each_release(
    file_name: str, handshake: Handshake, name: str, ports: tuple[int, int]
) -> None:
    header = Header.parse(load(file_name)[name])
    assert (header.source_port, header.target_port) == ports
    assert header.payload_bytes == 0
    assert parse_handshake(header.extension) == handshake
    assert emit_handshake(handshake) == header.extension


def test_a_mark_of_ours_changes_only_bytes_that_7_2_leaves_zero() -> None:
    extension = Header.parse(load("linux_7_2_tcp")["probe_ping"]).extension
    assert parse(extension) == (
        Extension(ExtensionType.NPATHS, (8,)),
        Extension(ExtensionType.GEN_NUM, (0x9BCE0FD8,)),
        Extension(ExtensionType.SPORT_IDX, (0,)),
    )
    marked = emit_handshake(
        Handshake(
            npaths=8,
            generation=0x9BCE0FD8,
            sport_index=True,
            mark=Mark(Capability.ACKNOWLEDGEMENTS),
        )
    )
    assert marked[:11] == extension[:11]
    assert not any(extension[10:])


@pytest.mark.rule("wire-flags", "wire-len")
def test_messages_of_linux() -> None:
    vectors = load("linux_6_1_tcp")
    data = Header.parse(vectors["data"][:HEADER_BYTES])
    assert data == Header(sequence=1, payload_bytes=12, source_port=4000, target_port=5000)
    assert vectors["data"][HEADER_BYTES:] == b"hello from A"
    repeated = Header.parse(vectors["repeated"][:HEADER_BYTES])
    assert (repeated.sequence, repeated.flags) == (2, HeaderFlag.RETRANSMITTED)
    assert Header.parse(vectors["empty_message"]).payload_bytes == 0
    assert Header.parse(vectors["ping"]).target_port == 0
    assert Header.parse(vectors["pong"]).source_port == 0


@pytest.mark.rule("wire-congestion-format", "wire-congestion-bits", "wire-flags")
@pytest.mark.parametrize(
    ("name", "ports"), [("empty_map", []), ("map_port_5000", [5000]), ("map_port_5100", [5100])]
)
def test_a_congestion_map_of_linux(name: str, ports: list[int]) -> None:
    data = load("linux_6_1_tcp")[name]
    header, payload = Header.parse(data[:HEADER_BYTES]), data[HEADER_BYTES:]
    assert header == Header(flags=HeaderFlag.CONG_BITMAP, payload_bytes=8192)
    assert list(CongestionMap.parse(payload)) == ports
    assert CongestionMap(ports).emit() == payload


@pytest.mark.rule("wire-flags")
def test_acknowledgements_over_rdma() -> None:
    vectors = {name: Header.parse(data[:48]) for name, data in load(RDMA).items()}
    assert vectors["data"].flags == HeaderFlag.ACK_REQUIRED
    only = vectors["ack_only"]
    assert (only.sequence, only.ack, only.source_port, only.target_port) == (0, 1, 0, 0)
    assert vectors["ack_only_later"].ack == 10
    assert vectors["map_with_ack"].ack == 13
    assert vectors["fragment"].payload_bytes == 10240


@pytest.mark.rule("wire-exthdr-rdma", "wire-exthdr-rdma-dest")
def test_rdma_extensions_of_linux() -> None:
    vectors = {name: Header.parse(data[:48]) for name, data in load(RDMA).items()}
    assert parse(vectors["rdma_target"].extension) == (
        Extension(ExtensionType.RDMA_DEST, (0x1300, 0)),
    )
    assert parse(vectors["rdma_key"].extension) == (Extension(ExtensionType.RDMA, (0x1300,)),)


@pytest.mark.rule("wire-ib-connect-fields")
@pytest.mark.parametrize(
    ("name", "offset", "source", "target"),
    [("request", 36, "10.78.0.10", "10.78.0.20"), ("reply", 0, "10.78.0.20", "10.78.0.10")],
)
def test_the_connect_data_of_linux(name: str, offset: int, source: str, target: str) -> None:
    data = load("linux_6_1_rdma_connect")[name][offset:]
    record = ConnectData.parse(data, ipv6=False)
    assert record == ConnectData(source=IPv4Address(source), target=IPv4Address(target))
    assert record.emit() == data[:32]
    assert not any(data[32:])
    assert accepted_version(record) == (3, 1)


LISTS: dict[str, tuple[InfoOpt, type[info.Record]]] = {
    "counters": (InfoOpt.COUNTERS, info.Counter),
    "connections": (InfoOpt.CONNECTIONS, info.Connection),
    "retrans_messages": (InfoOpt.RETRANS_MESSAGES, info.QueuedMessage),
    "recv_messages": (InfoOpt.RECV_MESSAGES, info.QueuedMessage),
    "sockets": (InfoOpt.SOCKETS, info.SocketEntry),
    "tcp_sockets": (InfoOpt.TCP_SOCKETS, info.TcpSocket),
    "v6_connections": (InfoOpt.V6_CONNECTIONS, info.Connection),
    "v6_retrans_messages": (InfoOpt.V6_RETRANS_MESSAGES, info.QueuedMessage),
    "v6_recv_messages": (InfoOpt.V6_RECV_MESSAGES, info.QueuedMessage),
    "v6_sockets": (InfoOpt.V6_SOCKETS, info.SocketEntry),
    "v6_tcp_sockets": (InfoOpt.V6_TCP_SOCKETS, info.TcpSocket),
}
little_endian = pytest.mark.skipif(
    sys.byteorder != "little", reason="recorded on x86-64: info records are in host order"
)


def records(name: str) -> list[info.Record]:
    option, record = LISTS[name.partition("_")[2]]
    elements = info.split(INFO[name], element_bytes=info.ELEMENT_BYTES[option])
    return [record.parse(element) for element in elements]


@little_endian
@pytest.mark.parametrize("name", INFO)
def test_an_info_list_of_linux_is_written_again_byte_for_byte(name: str) -> None:
    option, _ = LISTS[name.partition("_")[2]]
    assert records(name)
    assert info.emit_list(option, records(name)) == INFO[name]


@little_endian
def test_what_the_info_lists_say() -> None:
    """The link was cut: one message of each socket of A waits to be sent again."""
    here, there = IPv4Address("10.77.1.1"), IPv4Address("10.77.1.2")
    here6, there6 = IPv6Address("fd77::1"), IPv6Address("fd77::2")
    assert records("a_connections") == [
        info.Connection(
            sequence_next=4,
            sequence_expected=3,
            local=here,
            peer=there,
            transport="tcp",
            flags=ConnectionFlag.CONNECTED,
        )
    ]
    waiting = info.QueuedMessage(
        sequence=1, payload_bytes=7, local=here, peer=there, local_port=4000, peer_port=5000
    )
    waiting6 = info.QueuedMessage(
        sequence=1, payload_bytes=11, local=here6, peer=there6, local_port=4001, peer_port=5001
    )
    # 6.1 leaves both addresses zero in its IPv4 lists of what is still to be sent or acknowledged.
    nowhere = IPv4Address("0.0.0.0")
    assert records("a_retrans_messages") == [replace(waiting, local=nowhere, peer=nowhere)]
    assert records("a_v6_retrans_messages") == [waiting6, waiting]
    unread = info.QueuedMessage(
        sequence=2, payload_bytes=12, local=there, peer=here, local_port=5000, peer_port=4000
    )
    assert records("b_recv_messages") == [unread]
    first = records("b_sockets")[0]
    assert isinstance(first, info.SocketEntry)
    assert (first.bound, first.bound_port, first.receive_buffer_bytes) == (there, 5000, 106496)
    assert first.connected == nowhere


@little_endian
def test_the_counters_begin_as_linux_has_them() -> None:
    counters = records("a_counters")
    assert len(counters) == 41
    assert counters[0] == info.Counter(name="conn_reset", value=0)
