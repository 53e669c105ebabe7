"""Octets on their way into one TCP connection: gathered, and sent in large calls."""

import socket
from typing import Final

from urds.verbs.providers.tcp.encoder import Octets

PIECES_MAX: Final = 512  # of one sendmsg; Linux takes 1,024


class OutQueue:
    """Pieces that wait for room in the connection. `sent_bytes` counts all that TCP has taken."""

    __slots__ = ("pieces", "sent_bytes")

    def __init__(self) -> None:
        self.pieces: list[Octets] = []  # the encoder appends here
        self.sent_bytes = 0

    def __bool__(self) -> bool:
        return bool(self.pieces)

    def send(self, connection: socket.socket) -> bool:
        """Send what is here; return whether all of it is gone. Raises OSError from the socket."""
        pieces, gone = self.pieces, 0
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        try:
            while gone < len(pieces):
                count = connection.sendmsg(pieces[gone : gone + PIECES_MAX], (), flags)
                self.sent_bytes += count
                while count:
                    piece = pieces[gone]
                    if count < len(piece):
                        pieces[gone] = memoryview(piece)[count:]
                        break
                    count -= len(piece)
                    gone += 1
        except BlockingIOError:
            return False
        finally:
            del pieces[:gone]
        return True

    def copy(self) -> None:
        """Copy the views among what waits: their memory is about to be its owner's again."""
        self.pieces[:] = [
            bytes(piece) if isinstance(piece, memoryview) else piece for piece in self.pieces
        ]

    def clear(self) -> None:
        """Drop what waits."""
        self.pieces.clear()
