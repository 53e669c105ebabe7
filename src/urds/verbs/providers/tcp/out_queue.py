"""Octets on their way into one TCP connection: gathered, and sent in large calls."""

import socket
from collections import deque
from itertools import islice
from typing import Final

from urds.verbs.providers.tcp.encoder import Octets

PIECES_MAX: Final = 512  # of one sendmsg; Linux takes 1,024


class OutQueue:
    """Pieces that wait for room in the connection. `sent_bytes` counts all that TCP has taken."""

    def __init__(self) -> None:
        self.pieces: list[Octets] = []  # the encoder appends here
        self._waiting: deque[Octets] = deque()
        self.sent_bytes = 0

    def __bool__(self) -> bool:
        return bool(self.pieces or self._waiting)

    def send(self, connection: socket.socket) -> bool:
        """Send what is here; return whether all of it is gone. Raises OSError from the socket."""
        waiting = self._waiting
        waiting += self.pieces
        self.pieces.clear()
        while waiting:
            pieces = waiting if len(waiting) <= PIECES_MAX else islice(waiting, PIECES_MAX)
            try:
                count = connection.sendmsg(pieces, (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            self.sent_bytes += count
            while count:
                piece = waiting[0]
                if count < len(piece):
                    waiting[0] = memoryview(piece)[count:]
                    break
                count -= len(piece)
                waiting.popleft()
        return True

    def copy(self) -> None:
        """Copy the views among what waits: their memory is about to be its owner's again."""
        self._waiting += self.pieces
        self.pieces.clear()
        self._waiting = deque(
            bytes(piece) if isinstance(piece, memoryview) else piece for piece in self._waiting
        )

    def clear(self) -> None:
        """Drop what waits."""
        self.pieces.clear()
        self._waiting.clear()
