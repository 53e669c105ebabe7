"""One socket and up to a thousand peers: each peer is a host with a socket of its own.

One process holds all the hosts, for a process may bind any number of addresses. It knows the order
in which messages come and waits on that very socket, so that no search among a thousand sockets is
in the figures. `peers_max` is 4,096 by default and need not be raised; the limit of open
descriptors is. The one socket has the lowest address, so that it connects: a thousand call-back
requests at once would be pending connections, and of those an address admits 64.
"""

import resource
import select
import socket
from typing import Any, ClassVar

from .base import RUN_MESSAGES, Address, Kind, Peer
from .ours import Urds
from .rds import PORT

_HOSTS_PER_BYTE = 250
_SENDER_HOST = 1  # in the class's first row; its peers have the following ones
_ROWS_PER_COUNT = 8  # third bytes that one class may take: enough for a thousand hosts
_SPARE_DESCRIPTORS = 256
_DESCRIPTORS_PER_PEER = 4


def _raise_limit(peers_count: int) -> None:
    """Ask for the descriptors that this needs. Raises OSError if the system gives fewer."""
    needed = _SPARE_DESCRIPTORS + _DESCRIPTORS_PER_PEER * peers_count
    current, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    if current == resource.RLIM_INFINITY or current >= needed:
        return
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        raise OSError(f"{needed} descriptors are needed, ulimit -Hn allows {allowed}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, allowed))


class UrdsTurns(Urds):
    """urds with as many peers as the class defines; the measured side is the sender."""

    kinds = frozenset({Kind.PEERS_RUNS, Kind.PEERS_ASKED})
    peers_count: ClassVar[int]

    def __init__(self, payload_bytes: int) -> None:
        super().__init__(payload_bytes)
        self._sockets: list[Any] = []
        self._targets: list[tuple[str, int]] = []
        self._next = 0  # index of the next peer

    @classmethod
    def turn_messages(cls, kind: Kind) -> int:
        """Return the messages of one pass over all peers."""
        return cls.peers_count * (RUN_MESSAGES if kind is Kind.PEERS_RUNS else 1)

    def hosts(self) -> list[tuple[str, int]]:
        """Return the addresses of all peers."""
        prefix = self.network().rpartition(".")[0]
        places = (divmod(index, _HOSTS_PER_BYTE) for index in range(self.peers_count))
        return [(f"{prefix}.{self.row + 1 + row}.{host + 1}", PORT) for row, host in places]

    def open_receiver(self, senders: int) -> Address:
        """Bind a socket at each host."""
        _raise_limit(self.peers_count)
        for local in self.hosts():
            self.bind(local)
            self._sockets.append(self.socket)
        return self.hosts()[0]

    def open_sender(self, address: Address, index: int) -> None:
        """Bind the one socket; each peer is connected by the first message to it."""
        _raise_limit(self.peers_count)
        self._targets = self.hosts()
        self.bind((f"{self.network()}.{_SENDER_HOST}", PORT))

    def put(self, count: int) -> None:
        """Send whole passes: a run of messages to each peer."""
        sendto, payload = self.socket.sendto, self.payload
        for _ in range(count // (RUN_MESSAGES * self.peers_count)):
            for target in self._targets:
                for _ in range(RUN_MESSAGES):
                    sendto(payload, target)

    def take(self, count: int) -> int:
        """Receive whole runs, on one socket after the other."""
        payload_bytes, taken_bytes = self.payload_bytes, 0
        for _ in range(count // RUN_MESSAGES):
            recvfrom = self._sockets[self._take_turn()].recvfrom
            for _ in range(RUN_MESSAGES):
                body, _ = recvfrom(payload_bytes)
                taken_bytes += len(body)
        return taken_bytes

    def ask_one(self) -> None:
        """Send one message to the next peer and wait for its reply."""
        self.socket.sendto(self.payload, self._targets[self._take_turn()])
        self.socket.recvfrom(self.payload_bytes)

    def echo_one(self) -> None:
        """Receive one message on the next socket and send it back."""
        answering = self._sockets[self._take_turn()]
        body, source = answering.recvfrom(self.payload_bytes)
        answering.sendto(body, source)

    def _take_turn(self) -> int:
        """Return the index of this peer, and advance to the next one."""
        turn, self._next = self._next, (self._next + 1) % self.peers_count
        return turn


class TcpTurns(Peer):
    """A raw TCP connection to each peer: what the system takes for as many.

    Both sides wait with epoll and read the connection that is ready; lengths need no header, for
    there is one message at a time.
    """

    kinds = frozenset({Kind.PEERS_ASKED})
    peers_count: ClassVar[int]

    def __init__(self, payload_bytes: int) -> None:
        super().__init__(payload_bytes)
        self._listener: socket.socket | None = None
        self._epoll = select.epoll()
        self._streams: dict[int, socket.socket] = {}
        self._turns: list[socket.socket] = []
        self._next = 0  # index of the next peer

    @classmethod
    def turn_messages(cls, kind: Kind) -> int:
        """Return the messages of one pass over all peers."""
        return cls.peers_count

    def open_receiver(self, senders: int) -> Address:
        """Listen at a free port; the connections are accepted at the first message."""
        _raise_limit(self.peers_count)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=self.peers_count)
        return int(self._listener.getsockname()[1])

    def open_sender(self, address: Address, index: int) -> None:
        """Connect as often as there are peers."""
        _raise_limit(self.peers_count)
        for _ in range(self.peers_count):
            self._add(socket.create_connection(("127.0.0.1", int(str(address)))))

    def _add(self, stream: socket.socket) -> None:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._epoll.register(stream.fileno(), select.EPOLLIN)
        self._streams[stream.fileno()] = stream
        self._turns.append(stream)

    def _receive(self) -> tuple[socket.socket, bytes]:
        """Wait for a message of any connection."""
        ((descriptor, _),) = self._epoll.poll(-1, 1)
        stream = self._streams[descriptor]
        body = stream.recv(self.payload_bytes)
        if len(body) != self.payload_bytes:
            raise ConnectionResetError("the other side closed a connection")
        return stream, body

    def put(self, count: int) -> None:
        """Refuse: only round trips are measured."""
        raise NotImplementedError("only round trips are measured")

    def take(self, count: int) -> int:
        """Refuse, as `put` does."""
        raise NotImplementedError("only round trips are measured")

    def ask_one(self) -> None:
        """Send one message to the next peer and wait for its reply."""
        self._turns[self._next].send(self.payload)
        self._next = (self._next + 1) % self.peers_count
        self._receive()

    def echo_one(self) -> None:
        """Receive one message and send it back."""
        while self._listener is not None and len(self._turns) < self.peers_count:
            self._add(self._listener.accept()[0])
        stream, body = self._receive()
        stream.send(body)


def _with_peers(count: int, rows_before: int) -> type[UrdsTurns]:
    """Return the class of one number of peers, at addresses of its own."""
    return type(
        f"Urds{count}",
        (UrdsTurns,),
        {
            "__doc__": f"urds with {count:,} peers.",
            "name": f"urds_{count}",
            "label": f"urds, {count:,} peer{'s' * (count > 1)}",
            "peers_count": count,
            "row": 16 + _ROWS_PER_COUNT * rows_before,
        },
    )


def _over_tcp(count: int) -> type[TcpTurns]:
    """Return the class of one number of connections."""
    return type(
        f"Tcp{count}",
        (TcpTurns,),
        {
            "__doc__": f"Raw TCP with {count:,} peers.",
            "name": f"tcp_{count}",
            "label": f"raw TCP, epoll, {count:,} peer{'s' * (count > 1)}",
            "peers_count": count,
        },
    )


PEER_COUNTS = (1, 10, 100, 1000)
TURNS: tuple[type[UrdsTurns], ...] = tuple(
    _with_peers(count, index) for index, count in enumerate(PEER_COUNTS)
)
TCP_TURNS: tuple[type[TcpTurns], ...] = tuple(_over_tcp(count) for count in PEER_COUNTS)
