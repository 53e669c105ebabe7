"""Datagram sockets over each device: which way they go, their size, their peers, their bounds."""

import errno
import os
import socket
import threading

import pytest

from tests.rsocket.datagram_ends import (
    DEVICES,
    HASTY,
    Ends,
    address_of,
    ends,
    exchange,
    take,
    until,
    use_queue_pairs,
)
from urds.rsocket.core.datagram import DatagramSettings
from urds.rsocket.link.datagram_link import DatagramLink

SLOW = DatagramSettings()  # once a second over UDP again: not within these tests


@pytest.mark.rule(
    "rsocket-dgram-udp-first",
    "rsocket-dgram-lookup",
    "rsocket-dgram-service",
    "rsocket-dgram-header",
)
@pytest.mark.parametrize("device", DEVICES)
def test_the_first_goes_by_udp_and_later_ones_by_queue_pair(device: str) -> None:
    with ends() as made:
        here = made.link(device, settings=SLOW)
        there = made.link(device, host="127.0.0.3", settings=SLOW)
        here.send(b"first", address_of(there))
        assert take(there) == (b"first", address_of(here))
        assert (here.stats.sent_by_udp, there.stats.received_by_udp) == (1, 1)
        use_queue_pairs(here, there)
        by_udp = here.stats.sent_by_udp + there.stats.sent_by_udp
        for number in range(50):
            exchange(here, there, bytes([number]) * number)
        assert here.stats.sent_by_udp + there.stats.sent_by_udp == by_udp + (
            here.stats.sent_by_udp_again + there.stats.sent_by_udp_again
        )
        assert here.stats.received_by_queue_pair >= 49
        assert here.stats.look_ups == here.stats.queue_pairs_found == 1


@pytest.mark.parametrize("device", ["shm0", "tcp0", "udp0"])
def test_ipv6_goes_the_same_ways(device: str) -> None:
    with ends() as made:
        here, there = (made.link(device, host="::1") for _ in range(2))
        use_queue_pairs(here, there)
        exchange(here, there, bytes(here.payload_bytes_max))


@pytest.mark.parametrize("device", [*DEVICES, ""])
def test_a_datagram_has_as_many_bytes_as_fit_and_not_one_more(device: str) -> None:
    with ends() as made:
        here = made.link(*([device] if device else []))
        there = made.link(*([device] if device else []), host="127.0.0.3")
        limit = here.payload_bytes_max
        assert limit == (1392 if device == "tcp0" else 2040), "the slot's, or the path's"
        payload = os.urandom(limit)
        exchange(here, there, payload)
        exchange(here, there, b"")
        if device:
            use_queue_pairs(here, there)
        exchange(here, there, payload)
        exchange(here, there, b"")
        with pytest.raises(OSError, match=f"datagram of {limit + 1} bytes, limit {limit}") as info:
            here.send(bytes(limit + 1), address_of(there))
        assert info.value.errno == errno.EMSGSIZE


@pytest.mark.parametrize("names", [(), ("shm0",), ("tcp0",), ("udp0",), ("shm0", "tcp0")])
def test_who_waits_wakes_for_both_ways(names: tuple[str, ...]) -> None:
    """Widened: the sender sends only when the other thread sleeps for sure."""
    with ends() as made:
        here = made.link(*names)
        there = made.link(*names, host="127.0.0.3")
        for payload in (b"by UDP", b"again", b"by the way that is known now"):
            got: list[object] = []
            thread = threading.Thread(target=lambda got=got: got.append(take(there)))
            thread.start()
            thread.join(0.05)
            here.send(payload, address_of(there))
            thread.join(10)
            assert got == [(payload, address_of(here))]


@pytest.mark.parametrize("device", ["", "shm0", "tcp0", "udp0"])
def test_a_change_is_told_for_both_ways(device: str) -> None:
    names = [device] if device else []
    with ends() as made:
        here, there = made.link(*names), made.link(*names, host="127.0.0.3")
        told = threading.Event()
        there.on_change = told.set

        def is_told() -> bool:
            here.send(b"x", address_of(there))
            assert told.wait(10), "the device drives itself while no thread waits"
            told.clear()
            until(lambda: there.receive() is not None)
            return not device or there.stats.received_by_queue_pair > 3

        until(is_told)
        there.close()
        assert told.is_set()
        assert there.readiness().readable


def test_a_wait_for_nothing_ends_in_time_and_a_close_ends_it_at_once() -> None:
    with ends() as made:
        for names in ((), ("shm0",), ("shm0", "tcp0")):
            link = made.link(*names)
            assert not link.wait(lambda: False, 0.01)
            thread = threading.Thread(target=link.wait, args=(lambda: False, None))
            thread.start()
            thread.join(0.02)
            link.close()
            thread.join(10)
            assert not thread.is_alive()
            link.close()
            with pytest.raises(OSError, match="closed") as info:
                link.receive()
            assert info.value.errno == errno.EBADF
            with pytest.raises(OSError, match="closed"):
                link.send(b"", ("127.0.0.1", 1))


# -- a peer that is started anew


def restarted(made: Ends, device: str, old: DatagramLink) -> DatagramLink:
    """Return a new socket at the address of one that died with its devices."""
    host, port = address_of(old)
    made.die(old)
    return made.link(device, host=host, port=port)


@pytest.mark.parametrize("device", DEVICES)
def test_a_new_peer_that_sends_is_answered_by_queue_pair_again(device: str) -> None:
    with ends() as made:
        here, there = made.link(device), made.link(device, host="127.0.0.3")
        use_queue_pairs(here, there)
        there = restarted(made, device, there)
        there.send(b"I am new", address_of(here))
        assert take(here) == (b"I am new", address_of(there))

        def is_answered() -> bool:
            here.send(b"who?", address_of(there))
            return there.wait(lambda: there.readiness().readable, 0.02)

        until(is_answered)
        while there.receive() is not None:
            pass
        here_before = here.stats.queue_pairs_found

        def is_by_queue_pair() -> bool:
            here.send(b"again", address_of(there))
            there.wait(lambda: there.readiness().readable, 0.02)
            while there.receive() is not None:
                pass
            return there.stats.received_by_queue_pair > 0

        until(is_by_queue_pair)
        assert here.stats.queue_pairs_found >= here_before >= 1
        assert here.stats.queue_pairs_lost >= 1


@pytest.mark.parametrize("device", DEVICES)
def test_a_new_peer_that_says_nothing_gets_datagrams_by_queue_pair_again(device: str) -> None:
    with ends() as made:
        here, there = made.link(device), made.link(device, host="127.0.0.3")
        use_queue_pairs(here, there)
        there = restarted(made, device, there)

        def is_by_queue_pair() -> bool:
            here.send(b"anybody?", address_of(there))
            there.wait(lambda: there.readiness().readable, 0.02)
            while (datagram := there.receive()) is not None:
                assert datagram == (b"anybody?", address_of(here))
            return there.stats.received_by_queue_pair >= 10

        until(is_by_queue_pair)
        assert there.stats.sent_by_udp == there.stats.sent_by_queue_pair == 0
        assert here.stats.queue_pairs_lost >= 1


# -- several devices, several peers


@pytest.mark.rule("rsocket-dgram-many-devices")
def test_each_peer_is_reached_over_a_device_that_both_have() -> None:
    with ends() as made:
        here = made.link("tcp0", "shm0", "udp0", host="127.0.0.1")
        peers = [
            made.link("shm0", host="127.0.0.3"),
            made.link("udp0", "tcp0", host="127.0.0.4"),
            made.link("udp0", host="127.0.0.5"),
        ]
        for peer in peers:
            use_queue_pairs(here, peer)
        by_udp_only = made.link(host="127.0.0.6")
        for _ in range(10):
            exchange(here, by_udp_only, b"x")
        assert by_udp_only.stats.received_by_queue_pair == 0
        for peer in peers:
            exchange(here, peer, b"still")
            assert peer.stats.received_by_queue_pair


@pytest.mark.parametrize("device", ["shm0", "tcp0"])
def test_sockets_of_one_process_share_its_devices(device: str) -> None:
    with ends() as made:
        context = made.context(device, "127.0.0.1")
        links = [DatagramLink([context], HASTY) for _ in range(4)]
        made.links += links
        for link in links:
            link.bind(("127.0.0.1", 0))
        for here in links:
            for there in links:
                if here is not there:
                    use_queue_pairs(here, there)
                    exchange(here, there, b"among ourselves")


def test_a_socket_can_send_to_itself() -> None:
    with ends() as made:
        link = made.link("shm0")

        def is_by_queue_pair() -> bool:
            link.send(b"me", address_of(link))
            assert take(link) == (b"me", address_of(link))
            return link.stats.received_by_queue_pair > 3

        until(is_by_queue_pair)


# A tcp device that listens at any address answers from the kernel's choice: look it up there.
@pytest.mark.rule("rsocket-dgram-no-bind")
@pytest.mark.parametrize(
    ("device", "asked"),
    [("", "127.0.0.9"), ("shm0", "127.0.0.9"), ("udp0", "127.0.0.9"), ("tcp0", "127.0.0.1")],
)
def test_a_socket_at_any_address_answers_from_where_it_was_asked(device: str, asked: str) -> None:
    names = [device] if device else []
    with ends() as made:
        anywhere = made.link(*names, host="0.0.0.0")
        here = made.link(*names, host="127.0.0.5")
        target = (asked, address_of(anywhere)[1])

        def is_enough() -> bool:
            here.send(b"hello", target)
            assert take(anywhere) == (b"hello", address_of(here))
            return bool(
                here.stats.sent_by_queue_pair > 2 if device else here.stats.controls_received
            )

        until(is_enough)
        assert here.stats.controls_stray == 0


def test_more_destinations_than_the_table_holds() -> None:
    settings = DatagramSettings(destinations_max=3, udp_again_ns=10**18)
    with ends() as made:
        here = made.link("shm0", settings=settings)
        peers = [made.link("shm0", host="127.0.0.3") for _ in range(5)]
        for _ in range(3):
            for peer in peers:
                exchange(here, peer, b"round")
        assert here.stats.destinations_evicted >= 2 + 10
        use_queue_pairs(here, peers[0])


# -- addresses, connected sockets, options


def test_a_connected_socket_hears_no_unknown_peer_in_either_way() -> None:
    with ends() as made:
        here, there = made.link("shm0"), made.link("shm0", host="127.0.0.3")
        known, unknown = (made.link("shm0", host=f"127.0.0.{number}") for number in (4, 5))
        use_queue_pairs(here, known)
        here.connect(address_of(there))
        unknown.send(b"by UDP", address_of(here))
        known.send(b"by queue pair", address_of(here))
        until(lambda: here.wait(lambda: here.stats.dropped_not_from_peer == 1, 0.01))
        there.send(b"from the peer", address_of(here))
        assert take(here) == (b"from the peer", address_of(there))
        assert here.receive() is None


def test_a_connected_socket_hears_that_no_peer_is_there() -> None:
    with ends() as made:
        here, there = made.link(), made.link(host="127.0.0.3")
        here.connect(address_of(there))
        there.close()
        here.send(b"anybody?")
        assert here.wait(lambda: here.readiness().failed, 10)
        assert here.readiness().readable
        with pytest.raises(ConnectionRefusedError):
            here.receive()
        assert here.receive() is None
        assert here.take_error() == 0


@pytest.mark.rule("rsocket-dgram-no-bind")
def test_an_unbound_socket_gets_a_port_when_it_sends() -> None:
    with ends() as made:
        here, there = made.link("shm0", bound=False), made.link("shm0", host="127.0.0.3")
        assert (here.receive(), here.receive(peek=True), here.local) == (None, None, None)
        here.send(b"x", address_of(there))
        host, port = address_of(here)
        assert (host, take(there)) == ("0.0.0.0", (b"x", ("127.0.0.1", port)))
        with pytest.raises(OSError, match="bound to") as info:
            here.bind(("127.0.0.1", 0))
        assert info.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("target", "number"),
    [
        (("nowhere", 1), errno.EINVAL),
        (("127.0.0.1", 0), errno.EINVAL),
        (("127.0.0.1", 65536), errno.EINVAL),
        (("::1", 1), errno.EAFNOSUPPORT),
    ],
)
def test_an_address_that_cannot_be_is_refused(target: tuple[str, int], number: int) -> None:
    with ends() as made:
        link = made.link()
        with pytest.raises(OSError, match=r"\w") as info:
            link.send(b"x", target)
        assert info.value.errno == number


def test_broadcasts_go_by_udp_once_they_are_allowed() -> None:
    with ends() as made:
        here, there = made.link("shm0", host="127.0.0.1"), made.link("shm0", host="0.0.0.0")
        broadcast = ("127.255.255.255", address_of(there)[1])
        with pytest.raises(PermissionError):
            here.send(b"to all", broadcast)
        here.udp.set_option(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        assert here.udp.get_option(socket.SOL_SOCKET, socket.SO_BROADCAST) == 1
        for _ in range(3):
            here.send(b"to all", broadcast)
            assert take(there) == (b"to all", address_of(here))
        assert here.stats.sent_by_queue_pair == 0
