"""Round trips of every other codec, and no bytes that crash one."""

from ipaddress import IPv4Address, IPv6Address

from hypothesis import given
from hypothesis import strategies as st

from urds.common.errors import WireError
from urds.rds.constants import Capability, ConnectionFlag, ExtensionType
from urds.rds.wire import extensions as exthdr
from urds.rds.wire import info
from urds.rds.wire.congestion_map import CongestionMap
from urds.rds.wire.frame_format import FrameFormat
from urds.rds.wire.private_data import ConnectData


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


spaces = st.binary(min_size=16, max_size=16)
# Bytes that look like lists: types, small numbers and the mark's letters are frequent.
likely_spaces = st.lists(
    st.sampled_from([*range(17), 0x55, 0x52, 0xFF]), min_size=16, max_size=16
).map(bytes)
# The bytes of each value, as the reference has them: apart from the code under test.
VALUE_BYTES: dict[int, list[int]] = {
    ExtensionType.VERSION: [4],
    ExtensionType.RDMA: [4],
    ExtensionType.RDMA_DEST: [4, 4],
    ExtensionType.RDMA_BYTES: [4, 1],  # and 3 of padding
    ExtensionType.NPATHS: [2],
    ExtensionType.GEN_NUM: [4],
    ExtensionType.CAP_BITS: [4],
    ExtensionType.SPORT_IDX: [1],
    ExtensionType.CSUM: [4, 1],  # and 3 of padding
}
extensions = st.integers(1, 15).flatmap(
    lambda number: st.builds(
        exthdr.Extension,
        st.just(number),
        st.tuples(*(unsigned(8 * count) for count in VALUE_BYTES.get(number, []))),
    )
)
handshakes = st.builds(
    exthdr.Handshake,
    npaths=st.none() | unsigned(16),
    generation=st.none() | st.integers(1, 0xFFFFFFFF),
    sport_index=st.booleans(),
    mark=st.none()
    | st.builds(exthdr.Mark, unsigned(16).map(Capability), version=st.integers(1, 255)),
)


@given(spaces | likely_spaces)
def test_the_extension_parser_ends_on_all_bytes(data: bytes) -> None:
    assert len(exthdr.parse(data)) <= 16
    exthdr.parse_handshake(data)


@given(spaces | likely_spaces)
def test_what_was_read_is_read_again(data: bytes) -> None:
    found = exthdr.parse(data)
    assert exthdr.parse(exthdr.emit(found)) == found


@given(st.lists(extensions, max_size=6))
def test_what_fits_survives_in_order(wanted: list[exthdr.Extension]) -> None:
    found = exthdr.parse(exthdr.emit(wanted))
    assert len(exthdr.emit(wanted)) == 16
    assert list(found) == _fitting(wanted)


@given(handshakes)
def test_a_handshake_survives_the_wire(handshake: exthdr.Handshake) -> None:
    assert exthdr.parse_handshake(exthdr.emit_handshake(handshake)) == handshake


@given(handshakes)
def test_the_mark_hides_nothing_from_linux(handshake: exthdr.Handshake) -> None:
    plain = exthdr.Handshake(
        npaths=handshake.npaths,
        generation=handshake.generation,
        sport_index=handshake.sport_index,
    )
    marked = exthdr.emit_handshake(handshake)
    assert exthdr.parse(marked) == exthdr.parse(exthdr.emit_handshake(plain))


@given(st.sets(unsigned(16), max_size=20))
def test_a_congestion_map_survives_the_wire(ports: set[int]) -> None:
    sent = CongestionMap(ports)
    received = CongestionMap.parse(sent.emit())
    assert received == sent
    assert list(received) == sorted(ports)
    assert len(received) == len(ports)
    assert all(port in received for port in ports)
    assert bool(received) == bool(ports)


@given(st.sets(unsigned(16), max_size=20))
def test_a_mask_has_the_groups_of_the_ports(ports: set[int]) -> None:
    groups = {port % 64 for port in ports}
    assert CongestionMap(ports).monitor_mask() == sum(1 << group for group in groups)


@given(st.lists(st.sets(unsigned(16), max_size=20), max_size=6))
def test_a_replaced_map_tells_the_groups_it_cleared(rounds: list[set[int]]) -> None:
    ports, before = CongestionMap(), set[int]()
    data = ports.data
    for after in rounds:
        groups = {port % 64 for port in before - after}
        assert ports.replace(CongestionMap(after).emit()) == sum(1 << group for group in groups)
        assert list(ports) == sorted(after)
        assert ports.data is data
        before = after


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=60))
def test_a_map_follows_a_set(steps: list[tuple[bool, int]]) -> None:
    ports, model = CongestionMap(), set[int]()
    for congested, port in steps:
        news = ports.set(port) if congested else ports.clear(port)
        assert news == (congested != (port in model))
        (model.add if congested else model.discard)(port)
        assert list(ports) == sorted(model)
        assert bool(ports) == bool(model)


addresses = st.builds(IPv4Address, unsigned(32)) | st.builds(IPv6Address, unsigned(128))
# In a record an IPv6 address that is v4-mapped comes back as the IPv4 address, and no address
# as `::`, so neither is drawn here.
listed = addresses.filter(
    lambda one: not one.is_unspecified and (one.version == 4 or one.ipv4_mapped is None)
)


@given(st.data(), st.sampled_from([IPv4Address, IPv6Address]))
def test_connect_data_survive_the_wire(
    data: st.DataObject, family: type[IPv4Address] | type[IPv6Address]
) -> None:
    address = st.builds(family, unsigned(32 if family is IPv4Address else 128))
    record = data.draw(
        st.builds(
            ConnectData,
            source=address,
            target=address,
            major=unsigned(8),
            minor=unsigned(8),
            minor_mask=unsigned(16),
            tos=unsigned(8),
            ack_sequence=unsigned(64),
            credits=unsigned(32),
            generation=st.none() | st.integers(1, (1 << 32) - 1),
            frame_format=st.sampled_from(FrameFormat),
        ).filter(lambda one: one.generation is not None or one.frame_format is FrameFormat.SHORT)
    )
    assert ConnectData.parse(record.emit(), ipv6=family is IPv6Address) == record


names = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=16)
records = st.one_of(
    st.builds(info.Counter, name=names, value=unsigned(64)),
    st.builds(
        info.Connection,
        sequence_next=unsigned(64),
        sequence_expected=unsigned(64),
        local=listed,
        peer=listed,
        transport=names,
        flags=unsigned(8).map(ConnectionFlag),
    ),
    st.builds(
        info.QueuedMessage,
        sequence=unsigned(64),
        payload_bytes=unsigned(32),
        local=listed,
        peer=listed,
        local_port=unsigned(16),
        peer_port=unsigned(16),
        flags=unsigned(8),
        tos=unsigned(8),
    ),
    st.builds(
        info.SocketEntry,
        send_buffer_bytes=unsigned(32),
        bound=listed,
        connected=listed,
        bound_port=unsigned(16),
        connected_port=unsigned(16),
        receive_buffer_bytes=unsigned(32),
        inode=unsigned(64),
    ),
    st.builds(
        info.TcpSocket,
        local=listed,
        local_port=unsigned(16),
        peer=listed,
        peer_port=unsigned(16),
        header_bytes_remaining=unsigned(64),
        payload_bytes_remaining=unsigned(64),
        last_sent_next=unsigned(32),
        last_expected_una=unsigned(32),
        last_seen_una=unsigned(32),
    ),
)


@given(records)
def test_an_info_record_survives_its_ipv6_form(record: info.Record) -> None:
    assert type(record).parse(record.emit(ipv6=True)) == record


@given(records)
def test_an_info_record_survives_its_ipv4_form_or_is_refused(record: info.Record) -> None:
    """Refused for an IPv6 address, and for nothing else."""
    values = [getattr(record, name) for name in type(record).__slots__]
    try:
        data = record.emit()
    except WireError:
        assert any(isinstance(value, IPv6Address) for value in values)
    else:
        assert not any(isinstance(value, IPv6Address) for value in values)
        assert type(record).parse(data) == record


def _fitting(wanted: list[exthdr.Extension]) -> list[exthdr.Extension]:
    kept: list[exthdr.Extension] = []
    room_bytes = 16
    for extension in wanted:
        data_bytes = sum(VALUE_BYTES.get(extension.type, []))
        if extension.type in (ExtensionType.RDMA_BYTES, ExtensionType.CSUM):
            data_bytes += 3
        if 1 + data_bytes <= room_bytes:
            kept.append(extension)
            room_bytes -= 1 + data_bytes
    return kept
