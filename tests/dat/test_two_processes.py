"""The worked example of dat_ep_recv_query between two processes, over UDP and a reordering relay.

The relay passes the datagrams between them. It reads the packets, keeps back those of messages
after the 18th, and lets them go in the order of the example. Source: docs/reference/dat.md 13.2.
"""

import select
import socket
import threading
from contextlib import closing

import pytest

from tests.dat.query_process import HOST, WAIT_S, peer_process, sending_endpoint
from urds import dat
from urds.common.errors import WireError
from urds.verbs.engine.packets import PacketKind, parse_packet
from urds.verbs.providers.udp import UdpAdapter, UdpSettings

BUFFERS = 40
PACKET_BYTES = 1024  # the smaller packets of the two sides count
MESSAGE_BYTES = 2 * PACKET_BYTES
COMPLETED, LAST = 18, 23


class Relay:
    """Passes datagrams between any sender and one port; late messages only when told."""

    def __init__(self, target_port: int) -> None:
        self.front, self.back = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        self.front.bind((HOST, 0))
        self.back.connect((HOST, target_port))
        self.port = self.front.getsockname()[1]
        self._held: dict[tuple[int, int], bytes] = {}
        self._released: set[tuple[int, int]] = set()
        self._is_open = False
        self._changed = threading.Condition()
        self._client: tuple[str, int] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """End the relay."""
        self._stop.set()
        self._thread.join()
        self.front.close()
        self.back.close()

    def release(self, message: int, half: int) -> None:
        """Let a half of a message go when it is here."""
        key = message, half * PACKET_BYTES
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._held, WAIT_S), self._held.keys()
            self._released.add(key)
            self.back.send(self._held.pop(key))

    def open(self) -> None:
        """Keep nothing back any more."""
        with self._changed:
            self._is_open = True
            for data in self._held.values():
                self.back.send(data)

    def _run(self) -> None:
        while not self._stop.is_set():
            readable, _, _ = select.select([self.front, self.back], [], [], 0.01)
            for sock in readable:
                data, source = sock.recvfrom(65_535)
                if sock is self.back:
                    assert self._client is not None
                    self.front.sendto(data, self._client)
                else:
                    self._client = source
                    self._pass(data)

    def _pass(self, data: bytes) -> None:
        try:
            packet = parse_packet(data, checksum=UdpAdapter.has_checksum)
        except WireError:
            self.back.send(data)
            return
        key = packet.msn, packet.offset
        with self._changed:
            late = packet.kind is PacketKind.SEND and packet.msn > COMPLETED
            if late and not self._is_open and key not in self._released:
                self._held.setdefault(key, data)
                self._changed.notify_all()
            else:
                self.back.send(data)


# Messages of which the first packet comes, in this order, and what the counts are then.
EXAMPLE = {
    "ARRIVAL_ORDER": {19: (1, 1), 22: (2, 4), 23: (3, 5)},
    "FILL_GAPS": {19: (1, 1), 22: (4, 4), 23: (5, 5)},
}


@pytest.mark.rule("dat-example", "dat-gaps", "dat-fill-gaps-allowed", "dat-deliver-in-order")
@pytest.mark.parametrize("strategy", EXAMPLE)
def test_the_worked_example_between_two_processes(strategy: str) -> None:
    with (
        peer_process("udp0", strategy, BUFFERS, MESSAGE_BYTES) as peer,
        closing(Relay(peer.conn_qual)) as relay,
        opened_sender() as ia,
    ):
        sender, memory, data = sending_endpoint(ia, 5 * MESSAGE_BYTES)
        sender.connect(HOST, relay.port, timeout_s=WAIT_S)
        event = sender.connect_evd.wait(WAIT_S)
        assert event.event_number is dat.EventNumber.CONNECTION_ESTABLISHED
        for number in range(1, COMPLETED + 1):
            data[0] = number
            sender.post_send([memory.triplet(0, 1)])
            assert sender.request_evd.wait(WAIT_S).status is dat.DtoStatus.SUCCESS
        left = BUFFERS - COMPLETED
        peer.wait_for(0, 0, left)
        assert peer.ask("taken") == list(range(1, COMPLETED + 1))
        for number in range(COMPLETED + 1, LAST + 1):
            place = (number - COMPLETED - 1) * MESSAGE_BYTES
            data[place] = number
            sender.post_send([memory.triplet(place, MESSAGE_BYTES)])
        for message, (count, span) in EXAMPLE[strategy].items():
            relay.release(message, 0)
            peer.wait_for(count, span, left - count)
        relay.release(22, 1)
        relay.release(23, 1)
        relay.release(19, 1)  # behind them, and the only one that completes
        held = EXAMPLE[strategy][23][0]
        peer.wait_for(held - 1, 4, left - held)
        assert peer.ask("taken") == [19]
        relay.open()
        for _ in range(COMPLETED, LAST):
            assert sender.request_evd.wait(WAIT_S).status is dat.DtoStatus.SUCCESS
        peer.wait_for(0, 0, left - 5)
        assert peer.ask("taken") == [20, 21, 22, 23]


def opened_sender() -> dat.InterfaceAdapter:
    """Open the sender's adapter, with small packets."""
    adapter = UdpAdapter(settings=UdpSettings(mtu_bytes=PACKET_BYTES))
    return dat.InterfaceAdapter("udp-sender", adapter, address=HOST, support=dat.Support())
