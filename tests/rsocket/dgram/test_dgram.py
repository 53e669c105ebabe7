"""The datagram core: which way a datagram goes, what changes it, and what is dropped."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rsocket.dgram.datagram_core import (
    HERE,
    MALFORMED_UDP,
    OPENING,
    PEER_OPENING,
    QKEY,
    THERE,
    S,
    by_queue_pair,
    control,
    data,
    datagrams,
    learn,
    send,
)
from urds.rsocket.core.datagram import (
    ByQueuePair,
    ByUdp,
    CancelLookUp,
    DatagramCore,
    DatagramSettings,
    DestinationState,
    LookUp,
    QueuePairAddress,
)
from urds.rsocket.wire.datagram import (
    DatagramDevicePort,
    DatagramDevices,
    DatagramOp,
    QpHeader,
    UdpHeader,
)


@pytest.mark.rule("rsocket-dgram-lookup", "rsocket-dgram-udp-first")
def test_the_first_goes_by_udp_and_later_ones_by_queue_pair() -> None:
    core = datagrams()
    first = send(core, b"one")
    assert isinstance(first, ByUdp)
    header, rest = UdpHeader.parse(first.data)
    assert (header.op, header.qpn, bytes(rest)) == (DatagramOp.DATA, 0x100, b"one")
    assert first.target == THERE

    core.receive_udp(control(), THERE, 10 * S)
    asked = core.poll_event()
    assert asked == LookUp(1, 0, (THERE[0], 9000), PEER_OPENING), (
        "the port that the peer named, at its host"
    )
    assert isinstance(send(core, b"two"), ByUdp), "until a queue pair is found"
    qp_address = QueuePairAddress(0, "vector", 0x99, QKEY)
    core.handle_found(1, qp_address)

    third = send(core, b"three")
    assert isinstance(third, ByQueuePair)
    assert third.qp_address is qp_address
    header_there, rest = QpHeader.parse(third.data)
    assert (str(header_there.address), header_there.port) == HERE
    assert bytes(rest) == b"three"
    assert (core.stats.sent_by_udp, core.stats.sent_by_queue_pair) == (2, 1)


@pytest.mark.rule("rsocket-udp-operation", "rsocket-dgram-service")
def test_a_datagram_by_udp_is_delivered_and_answered() -> None:
    core = datagrams("shm", "tcp")
    answer = core.receive_udp(data(b"hello"), THERE, 0)
    assert core.receive() == (b"hello", THERE)
    assert isinstance(answer, ByUdp)
    header, rest = UdpHeader.parse(answer.data)
    assert (answer.target, header.op, header.qpn) == (THERE, DatagramOp.CONTROL, 0x100)
    assert DatagramDevices.parse(rest) == DatagramDevices(
        OPENING, (DatagramDevicePort("shm", 7000), DatagramDevicePort("tcp", 7001))
    )
    assert not core.knows(THERE), "an unknown peer costs no entry"


def test_the_answer_leaves_from_where_the_question_went() -> None:
    core = datagrams()
    answer = core.receive_udp(data(b""), THERE, 0, local_host="127.0.0.9")
    assert isinstance(answer, ByUdp)
    assert answer.local_host == "127.0.0.9"


def test_a_known_sender_is_not_told_twice_in_a_row() -> None:
    core = datagrams()
    send(core, b"x", now_ns=0)
    core.receive_udp(data(b"1"), THERE, 0)
    core.receive_udp(data(b"2"), THERE, 49_999_999)
    assert core.stats.controls_sent == 1
    core.receive_udp(data(b"3"), THERE, 50_000_000)
    assert core.stats.controls_sent == 2
    core.receive_udp(data(b"4", qpn=0x56), THERE, 50_000_001)
    assert core.stats.controls_sent == 3, "it was started anew: it knows nothing"


@pytest.mark.rule("rsocket-dgram-header")
def test_a_datagram_by_queue_pair_names_its_sender() -> None:
    core = datagrams()
    core.receive_queue_pair(by_queue_pair(b"hello"))
    core.receive_queue_pair(by_queue_pair(b"again"))
    core.receive_queue_pair(by_queue_pair(b"", ("127.0.0.3", 1)))
    assert [core.receive() for _ in range(4)] == [
        (b"hello", THERE), (b"again", THERE), (b"", ("127.0.0.3", 1)), None,
    ]  # fmt: skip


def test_of_senders_only_so_many_are_remembered() -> None:
    core = datagrams(settings=DatagramSettings(receive_slots=1000))
    sources = [("127.0.0.2", port) for port in range(1, 600)]
    for source in sources:
        core.receive_queue_pair(by_queue_pair(b"x", source))
    assert [core.receive() for _ in sources] == [(b"x", source) for source in sources]
    assert len(core._sources) <= 256  # private: it shows nowhere but in memory


def test_peek_leaves_the_datagram() -> None:
    core = datagrams()
    assert (core.peek(), core.is_readable) == (None, False)
    core.receive_queue_pair(by_queue_pair(b"hello"))
    assert core.peek() == core.receive() == (b"hello", THERE)
    assert core.peek() is None


@pytest.mark.parametrize(("mtu_bytes", "limit"), [(256 * 1024, 2040), (2048, 2040), (1400, 1392)])
def test_what_the_slot_or_the_path_does_not_take_is_refused(mtu_bytes: int, limit: int) -> None:
    core = datagrams("shm", "udp", mtu_bytes=mtu_bytes)
    assert core.payload_bytes_max == limit
    assert isinstance(send(core, bytes(limit)), ByUdp)
    with pytest.raises(OSError, match=f"datagram of {limit + 1} bytes, limit {limit}") as caught:
        core.send(bytes(limit + 1), THERE, 0)
    assert caught.value.errno == errno.EMSGSIZE


def test_the_limit_of_ipv6_is_that_of_its_header() -> None:
    core = DatagramCore(DatagramSettings(), local=("::1", 5000), devices=[], bind_id=OPENING)
    assert core.payload_bytes_max == 2024


def test_a_longer_one_than_a_slot_takes_is_dropped() -> None:
    core = datagrams()
    core.receive_udp(data(bytes(2040)), THERE, 0)
    core.receive_udp(data(bytes(2041)), THERE, 0)
    core.receive_queue_pair(by_queue_pair(bytes(2041)))
    assert core.stats.dropped_too_long == 2
    assert core.receive() == (bytes(2040), THERE)


def test_the_receive_queue_has_a_bound() -> None:
    core = datagrams(settings=DatagramSettings(receive_slots=2))
    for number in range(3):
        core.receive_queue_pair(by_queue_pair(bytes([number])))
    assert core.stats.dropped_queue_full == 1
    assert [core.receive(), core.receive(), core.receive()] == [
        (b"\0", THERE), (b"\1", THERE), None,
    ]  # fmt: skip


def test_a_connected_socket_hears_its_peer_alone() -> None:
    core = datagrams()
    core.peer = THERE
    core.receive_queue_pair(by_queue_pair(b"unknown!", ("127.0.0.2", 6001)))
    core.receive_udp(data(b"unknown!"), ("127.0.0.3", 6000), 0)
    core.receive_queue_pair(by_queue_pair(b"friend"))
    assert core.stats.dropped_not_from_peer == 2
    assert (core.receive(), core.receive()) == ((b"friend", THERE), None)


@pytest.mark.parametrize("data", MALFORMED_UDP)
def test_malformed_bytes_by_udp_are_dropped_and_counted(data: bytes) -> None:
    core = datagrams()
    send(core, b"x")
    assert core.receive_udp(data, THERE, 0) is None
    assert core.stats.dropped_malformed == 1
    assert (core.receive(), core.poll_event()) == (None, None)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        by_queue_pair(b"")[:7],
        b"\x05" + by_queue_pair(b"x")[1:],
        by_queue_pair(b"x", ("::1", 6000)),
        by_queue_pair(b"x", ("127.0.0.1", 0)),
    ],
)
def test_malformed_bytes_by_queue_pair_are_dropped_and_counted(data: bytes) -> None:
    core = datagrams()
    core.receive_queue_pair(data)
    assert core.stats.dropped_malformed == 1
    assert core.receive() is None


@given(
    st.one_of(
        st.binary(max_size=100),
        st.binary(max_size=40).map(lambda rest: control(bind_id=None) + rest),
        st.binary(max_size=40).map(lambda rest: data(b"") + rest),
        st.tuples(st.just(control()), st.integers(0, 43), st.integers(0, 255)).map(
            lambda it: it[0][: it[1]] + bytes([it[2]]) + it[0][it[1] + 1 :]
        ),
    )
)
def test_whatever_comes_is_taken_or_counted(raw: bytes) -> None:
    core = datagrams()
    send(core, b"x")
    core.receive_udp(raw, THERE, 10 * S)
    core.receive_queue_pair(raw)
    stats, taken = core.stats, core.peek()
    counts = stats.received_by_udp + stats.controls_received + stats.dropped_malformed
    assert counts + stats.received_by_queue_pair == 2
    assert taken is None or taken[0] in raw


def test_a_control_message_of_who_was_not_sent_to_starts_nothing() -> None:
    core = datagrams()
    assert core.receive_udp(control(), THERE, 0) is None
    assert core.stats.controls_stray == 1
    assert core.poll_event() is None


def test_an_original_stays_with_udp() -> None:
    core = datagrams("shm", "tcp")
    send(core, b"x")
    core.receive_udp(control(bind_id=None), THERE, 10 * S)
    assert core.stats.controls_received == 1
    assert core.poll_event() is None
    assert isinstance(send(core, b"y"), ByUdp)


def test_only_devices_of_both_are_asked_in_our_order() -> None:
    core = datagrams("shm", "tcp", "udp")
    send(core, b"x")
    device_ports = (
        DatagramDevicePort("udp", 1),
        DatagramDevicePort("roce", 2),
        DatagramDevicePort("shm", 3),
    )
    core.receive_udp(control(device_ports=device_ports), THERE, 10 * S)
    assert core.poll_event() == LookUp(1, 0, (THERE[0], 3), PEER_OPENING)
    core.handle_not_found(1, 10 * S)
    assert core.poll_event() == LookUp(2, 2, (THERE[0], 1), PEER_OPENING)
    core.handle_not_found(2, 10 * S)
    assert core.poll_event() is None
    assert core.stats.look_ups_failed == 1


def test_after_a_failed_look_up_the_next_one_waits_longer_each_time() -> None:
    core = datagrams()
    send(core, b"x", now_ns=0)
    now_ns, waits = 0, []
    for _ in range(8):
        began_ns = now_ns
        while True:
            core.receive_udp(control(), THERE, now_ns)
            asked = core.poll_event()
            if asked is not None:
                break
            now_ns += S // 4
        assert isinstance(asked, LookUp)
        core.handle_not_found(asked.token, now_ns)
        waits.append((now_ns - began_ns) / S)
    assert waits == [0, 1, 2, 4, 8, 16, 32, 60]


def test_a_peer_that_has_changed_is_looked_up_at_once() -> None:
    core = datagrams()
    send(core, b"x")
    for number in range(3):
        core.receive_udp(control(bind_id=b"peer-%03d" % number), THERE, 10 * S)
        asked = core.poll_event()
        assert isinstance(asked, LookUp)
        core.handle_not_found(asked.token, 10 * S)


def test_a_peer_without_a_queue_pair_stays_with_udp() -> None:
    core = datagrams()
    send(core, b"x")
    core.receive_udp(control(0, device_ports=()), THERE, 10 * S)
    assert core.poll_event() is None
    assert isinstance(send(core, b"y"), ByUdp)


def test_without_a_device_all_goes_by_udp() -> None:
    core = DatagramCore(DatagramSettings(), local=HERE, devices=[], bind_id=OPENING)
    sent = send(core, b"x")
    assert isinstance(sent, ByUdp)
    assert UdpHeader.parse(sent.data)[0].qpn == 0
    core.receive_udp(control(), THERE, 10 * S)
    assert core.poll_event() is None


# -- the peer was started anew


def test_another_queue_pair_in_data_of_the_peer_costs_the_way() -> None:
    core = datagrams()
    send(core, b"x")
    learn(core, control())
    assert isinstance(send(core, b"y"), ByQueuePair)
    core.receive_udp(data(b"I am new", qpn=0x56), THERE, 10 * S)
    assert core.stats.queue_pairs_lost == 1
    assert isinstance(send(core, b"z"), ByUdp)
    learn(core, control(0x56, bind_id=b"peer-two"))
    assert isinstance(send(core, b"z"), ByQueuePair)


@pytest.mark.parametrize("changed", [control(0x56), control(bind_id=b"peer-two")])
def test_another_queue_pair_or_opening_in_a_control_message_looks_up_anew(changed: bytes) -> None:
    core = datagrams()
    send(core, b"x")
    learn(core, control())
    core.receive_udp(changed, THERE, 10 * S)
    assert core.stats.queue_pairs_lost == 1
    asked = core.poll_event()
    assert isinstance(asked, LookUp)
    assert asked.bind_id == DatagramDevices.parse(changed[16:]).bind_id


def test_an_original_in_the_place_of_our_own_costs_the_way() -> None:
    core = datagrams()
    send(core, b"x")
    learn(core, control())
    core.receive_udp(control(bind_id=None), THERE, 10 * S)
    assert core.state_of(THERE) is DestinationState.BY_UDP


def test_the_same_words_again_change_nothing() -> None:
    core = datagrams()
    send(core, b"x")
    learn(core, control())
    core.receive_udp(control(), THERE, 10 * S)
    core.receive_udp(data(b""), THERE, 10 * S)
    assert core.poll_event() is None
    assert isinstance(send(core, b"y"), ByQueuePair)


def test_a_change_ends_the_look_up_of_what_was_before() -> None:
    core = datagrams()
    send(core, b"x")
    core.receive_udp(control(), THERE, 10 * S)
    core.receive_udp(control(0x56, bind_id=b"peer-two"), THERE, 10 * S)
    events = [core.poll_event(), core.poll_event(), core.poll_event()]
    assert events == [
        LookUp(1, 0, (THERE[0], 9000), PEER_OPENING),
        CancelLookUp(1),
        LookUp(2, 0, (THERE[0], 9000), b"peer-two"),
    ]
    core.handle_found(1, QueuePairAddress(0, "old", 1, QKEY))
    assert core.state_of(THERE) is DestinationState.LOOKING_UP, "no look-up waits for that answer"


def test_who_only_sends_asks_by_udp_once_a_second() -> None:
    core = datagrams()
    send(core, b"x", now_ns=10 * S)
    learn(core, control())
    device_ports = [
        type(send(core, b"y", now_ns=10 * S + part * S // 4)) is ByUdp for part in range(13)
    ]
    assert device_ports == [False] * 4 + [True] + [False] * 3 + [True] + [False] * 3 + [True]
    assert core.stats.sent_by_udp_again == 3
