"""Datagram sockets over devices: what is dropped, what fails, what an end leaves behind."""

import contextlib
import os
import socket
import threading
from array import array

import pytest

from tests.rsocket.datagram_ends import (
    HASTY,
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


@pytest.mark.parametrize("device", ["", "shm0", "udp0"])
def test_what_is_not_taken_is_dropped_and_counted(device: str) -> None:
    names = [device] if device else []
    settings = DatagramSettings(receive_slots=4)
    with ends() as made:
        here = made.link(*names)
        there = made.link(*names, host="127.0.0.3", settings=settings)
        if device:
            use_queue_pairs(here, there)
        for number in range(20):
            here.send(bytes([number]), address_of(there))

        def are_dropped() -> bool:
            return there.wait(lambda: there.stats.dropped_queue_full == 16, 0.01)

        until(are_dropped)
        assert [take(there)[0][0] for _ in range(4)] == [0, 1, 2, 3]
        exchange(here, there, b"and on")


def test_a_device_that_fails_leaves_its_peers_to_udp() -> None:
    """A closed device takes what its send queue has room for, and refuses the next one."""
    settings = DatagramSettings(send_slots=1, udp_again_ns=10**18)
    with ends() as made:
        here, there = made.link("shm0", settings=settings), made.link("shm0", host="127.0.0.3")
        use_queue_pairs(here, there)
        here.contexts[0].adapter.close()
        here.send(b"lost", address_of(there))
        for payload in (b"refused by the queue pair", b"by UDP from the start"):
            here.send(payload, address_of(there))
            assert take(there) == (payload, address_of(here))


def test_a_closed_socket_leaves_nothing_behind() -> None:
    with ends() as made:
        contexts = [made.context(name, "127.0.0.1") for name in ("shm0", "tcp0", "udp0")]

        def one_life() -> None:
            here, there = (DatagramLink(contexts, HASTY) for _ in range(2))
            for link in (here, there):
                link.bind(("127.0.0.1", 0))
            use_queue_pairs(here, there)
            there.send(b"unread", address_of(here))
            here.close()
            there.close()

        def left() -> tuple[int, ...]:
            regions = [each.adapter.region_count for each in contexts]
            return len(os.listdir("/proc/self/fd")), *regions

        one_life()
        before = left()
        for _ in range(5):
            one_life()
        # What tests before this one have closed may go meanwhile: then less is left.
        until(lambda: all(now <= then for now, then in zip(left(), before, strict=True)))


def test_threads_that_share_sockets_and_devices_get_nothing_wrong() -> None:
    """Each of four sockets is used by two threads; all share two devices, and all close at once."""
    with ends() as made:
        contexts = [made.context(name, "127.0.0.1") for name in ("shm0", "tcp0")]
        links = [DatagramLink(contexts, HASTY) for _ in range(4)]
        made.links += links
        for link in links:
            link.bind(("127.0.0.1", 0))
        addresses = [address_of(link) for link in links]
        wrong: list[object] = []
        counts = [0, 0, 0, 0]

        def work(index: int) -> None:
            link = links[index]
            with contextlib.suppress(OSError):  # the close
                for number in range(1_000_000):
                    link.send(b"from %d" % index, addresses[number % 4])
                    link.wait(lambda: link.readiness().readable, 0.001)
                    while (datagram := link.receive()) is not None:
                        payload, source = datagram
                        if payload != b"from %d" % addresses.index(source):
                            wrong.append(datagram)
                        counts[index] += 1

        threads = [threading.Thread(target=work, args=(index % 4,)) for index in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: min(counts) >= 100 or bool(wrong))
        for link in links:
            link.close()
        for thread in threads:
            thread.join(20)
        assert not wrong
        assert not any(thread.is_alive() for thread in threads)
        assert all(link.stats.received_by_queue_pair for link in links)


def test_a_close_may_be_asked_for_with_the_lock_of_a_device() -> None:
    with ends() as made:
        link = made.link("shm0", "tcp0")
        closed = threading.Event()
        link.on_change = closed.set
        with link.contexts[0].adapter.lock:
            link.close_soon()
            assert not closed.wait(0.02)
        assert closed.wait(10)
        assert link.is_closed


def test_the_child_of_a_fork_lets_go_of_the_port() -> None:
    with ends() as made:
        link = made.link("shm0")
        host, port = address_of(link)
        ours, childs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            childs.send(b"forked")
            childs.recv(1)  # lives until the parent is done
            os._exit(0)
        with ours, childs:
            assert ours.recv(6) == b"forked"
            link.close()
            made.link("shm0", host=host, port=port)
        os.waitpid(pid, 0)


def test_items_of_any_size_are_sent_as_bytes() -> None:
    with ends() as made:
        here, there = made.link(), made.link(host="127.0.0.3")
        for data in (bytearray(b"octets"), array("H", [1, 2, 3]), memoryview(b"view")[1:]):
            assert here.send(data, address_of(there)) == len(bytes(data))
            assert take(there)[0] == bytes(data)


def test_what_the_kernel_has_no_room_for_is_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ends() as made:
        here, there = made.link(), made.link(host="127.0.0.3")

        def send(what: object) -> None:
            raise BlockingIOError

        with monkeypatch.context() as full:
            full.setattr(here.udp, "send", send)
            here.send(b"lost", address_of(there))
        assert here.stats.dropped_unsent == 1
        exchange(here, there, b"and on")
