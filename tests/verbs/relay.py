"""A relay for UDP between two processes: it loses, holds back and reorders, and knows no protocol.

The first to speak to the front is the client; what comes back goes to it. A connection of the
`udp` provider needs no more, for all its packets take the way of the first one.
"""

import select
import socket
import threading
from collections.abc import Callable
from random import Random

from urds.common.errors import WireError
from urds.verbs.engine.packets import Packet, parse_packet

HOST = "127.0.0.1"
HELD_MAX = 8  # at random; a script may hold any number


class Relay:
    """Passes datagrams between one client and one port.

    loss, hold: chances of a datagram to be lost, or to be held until others have overtaken it.
    `hold_back` keeps the packets that a script wants; `release` lets them go.
    """

    def __init__(
        self, target_port: int, seed: int = 0, *, loss: float = 0.0, hold: float = 0.0
    ) -> None:
        self.passed = self.reordered = 0
        self._random = Random(seed)
        self._loss, self._hold = loss, hold
        self._front, self._back = (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)
        )
        self._front.bind((HOST, 0))
        self._back.connect((HOST, target_port))
        self.port: int = self._front.getsockname()[1]
        self._client: tuple[str, int] | None = None
        self._late: list[tuple[socket.socket, bytes]] = []
        self._lock = threading.Lock()
        self._wants: Callable[[Packet], bool] | None = None
        self._held: list[tuple[socket.socket, bytes]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def hold_back(self, wants: Callable[[Packet], bool]) -> None:
        """Keep back the packets, of either direction, for which `wants` is true."""
        with self._lock:
            self._wants = wants

    def held(self) -> list[Packet]:
        """Return what is kept back, repeats included, oldest first."""
        with self._lock:
            return [parse_packet(data, checksum=True) for _, data in self._held]

    def release(self, which: Callable[[Packet], bool] = lambda _packet: True) -> None:
        """Let the kept packets go for which `which` is true, and keep none like them any more."""
        with self._lock:
            wants, held = self._wants, self._held
            self._wants = wants and (lambda packet: wants(packet) and not which(packet))
            self._held = []
            for came_by, data in held:
                if which(parse_packet(data, checksum=True)):
                    self._send(came_by, data)
                else:
                    self._held.append((came_by, data))

    def close(self) -> None:
        """End the relay."""
        self._stop.set()
        self._thread.join()
        self._front.close()
        self._back.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            readable, _, _ = select.select([self._front, self._back], [], [], 0.002)
            with self._lock:
                for sock in readable:
                    try:
                        data, source = sock.recvfrom(65_535)
                    except ConnectionRefusedError:
                        continue  # the target is gone: so are its datagrams
                    if sock is self._front:
                        self._client = source
                    self._pass(sock, data)
                if not readable:
                    self._send_late()

    def _pass(self, came_by: socket.socket, data: bytes) -> None:
        if self._is_wanted(data):
            self._held.append((came_by, data))
        elif self._random.random() < self._loss:
            return
        elif self._random.random() < self._hold and len(self._late) < HELD_MAX:
            self._late.append((came_by, data))
        else:
            self._send(came_by, data)
            if self._random.random() < self._hold:
                self._send_late()

    def _is_wanted(self, data: bytes) -> bool:
        if self._wants is None:
            return False
        try:
            return self._wants(parse_packet(data, checksum=True))
        except WireError:
            return False

    def _send_late(self) -> None:
        late, self._late = self._late, []
        for came_by, data in reversed(late):
            self.reordered += 1
            self._send(came_by, data)

    def _send(self, came_by: socket.socket, data: bytes) -> None:
        self.passed += 1
        try:
            if came_by is self._front:
                self._back.send(data)
            elif self._client is not None:
                self._front.sendto(data, self._client)
        except ConnectionRefusedError:
            return
