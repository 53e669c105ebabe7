"""The worked example of dat_ep_recv_query between two processes, over UDP and a reordering relay.

The relay passes the datagrams between them. It reads the packets, keeps back those of messages
after the 18th, and lets them go in the order of the example. Source: dat.md section 13.2.
"""

import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from urds import dat
from urds.errors import WireError
from urds.verbs.engine.packet_codec import parse_packet
from urds.verbs.engine.packets import PacketKind
from urds.verbs.providers.udp import UdpAdapter, UdpSettings

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 30.0
BUFFERS = 40
PACKET_BYTES = 1024  # the smaller packets of the two sides count
MESSAGE_BYTES = 2 * PACKET_BYTES
COMPLETED, LAST = 18, 23


class Peer:
    """The other process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.conn_qual = int(self._line())

    def ask(self, question: str) -> list[int]:
        """Return the answer to a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        return json.loads(self._line())

    def wait_for(self, *expected: int) -> None:
        """Ask for count, span and available buffers until they are so."""
        end = time.monotonic() + WAIT_S
        while (found := self.ask("query")) != [dat.DAT_SUCCESS, *expected]:
            assert time.monotonic() < end, (found, expected)
            assert found[1] <= found[2], found

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the other process has ended"
        return line


@contextmanager
def peer_process(strategy: str) -> Iterator[Peer]:
    """Start the receiving process."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    arguments = [strategy, str(BUFFERS), str(MESSAGE_BYTES)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.dat.query_peer", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT,
    ) as process:  # fmt: skip
        try:
            yield Peer(process)
        finally:
            process.kill()


class Relay:
    """Passes datagrams between whoever comes and one port; late messages only when told."""

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
            for octets in self._held.values():
                self.back.send(octets)

    def _run(self) -> None:
        while not self._stop.is_set():
            readable, _, _ = select.select([self.front, self.back], [], [], 0.01)
            for sock in readable:
                octets, source = sock.recvfrom(65_535)
                if sock is self.back:
                    assert self._client is not None
                    self.front.sendto(octets, self._client)
                else:
                    self._client = source
                    self._pass(octets)

    def _pass(self, octets: bytes) -> None:
        try:
            packet = parse_packet(octets, checksum=UdpAdapter.has_checksum)
        except WireError:
            self.back.send(octets)
            return
        key = packet.msn, packet.offset
        with self._changed:
            late = packet.kind is PacketKind.SEND and packet.msn > COMPLETED
            if late and not self._is_open and key not in self._released:
                self._held.setdefault(key, octets)
                self._changed.notify_all()
            else:
                self.back.send(octets)


# Messages of which the first packet comes, in this order, and what the counts are then.
EXAMPLE = {
    "BY_ARRIVAL": {19: (1, 1), 22: (2, 4), 23: (3, 5)},
    "FILL_GAPS": {19: (1, 1), 22: (4, 4), 23: (5, 5)},
}


@pytest.mark.rule("dat-example", "dat-gaps", "dat-fill-gaps-allowed", "dat-deliver-in-order")
@pytest.mark.parametrize("strategy", EXAMPLE)
def test_the_worked_example_between_two_processes(strategy: str) -> None:
    with (
        peer_process(strategy) as peer,
        closing(Relay(peer.conn_qual)) as relay,
        opened_sender() as ia,
    ):
        sender, memory, octets = sending_endpoint(ia)
        sender.connect(HOST, relay.port, timeout_s=WAIT_S)
        event = sender.connect_evd.wait(WAIT_S)
        assert event.event_number is dat.EventNumber.CONNECTION_ESTABLISHED
        for number in range(1, COMPLETED + 1):
            octets[0] = number
            sender.post_send([memory.triplet(0, 1)])
            assert sender.request_evd.wait(WAIT_S).status is dat.DtoStatus.SUCCESS
        left = BUFFERS - COMPLETED
        peer.wait_for(0, 0, left)
        assert peer.ask("taken") == list(range(1, COMPLETED + 1))
        for number in range(COMPLETED + 1, LAST + 1):
            place = (number - COMPLETED - 1) * MESSAGE_BYTES
            octets[place] = number
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


def sending_endpoint(
    ia: dat.InterfaceAdapter,
) -> tuple[dat.Endpoint, dat.LocalMemory, bytearray]:
    """Make the sender's endpoint and memory."""
    pz = ia.create_pz()
    octets = bytearray(5 * MESSAGE_BYTES)
    ep = pz.create_ep(
        None,
        ia.create_evd(32, dat.EvdFlag.DTO),
        ia.create_evd(8, dat.EvdFlag.CONNECTION),
        dat.EpAttr(max_recv_dtos=0),
    )
    return ep, pz.register(octets), octets
