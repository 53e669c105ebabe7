"""How octets go to a stream, and how our direction of it ends."""

from __future__ import annotations

import socket
from contextlib import suppress

from urds.dataplane.base import Buffer, Stream


def write(stream: Stream, buffers: list[Buffer]) -> tuple[int, OSError | None]:
    """Write once; return the octets taken and why the stream takes no more. No lock held."""
    try:
        return stream.sendmsg(buffers), None
    except BlockingIOError as failure:
        return 0, failure
    except OSError as failure:
        end_direction(stream)  # whatever failed, the stream comes to its end and is read to it
        return 0, failure


def end_direction(stream: Stream) -> None:
    """End our direction; what the peer sent before is still read."""
    with suppress(OSError):
        stream.shutdown(socket.SHUT_WR)
