"""Writing to a stream, and the end of the local direction."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from socket import MSG_NOSIGNAL
from typing import TYPE_CHECKING

from urds.rds.plane.contract import Buffer, Stream

if TYPE_CHECKING:
    from urds.rds.plane.python.stream_path import StreamPath


def write(stream: Stream, buffers: Sequence[Buffer]) -> tuple[int, OSError | None]:
    """Write once; return the bytes taken and why the stream takes no more. No lock held."""
    try:
        return stream.sendmsg(buffers, (), MSG_NOSIGNAL), None
    except BlockingIOError as failure:
        return 0, failure
    except OSError as failure:
        end_direction(stream)  # after any failure the stream comes to its end and is read to it
        return 0, failure


def write_all(path: StreamPath, stream: Stream | None, buffers: list[Buffer]) -> None:
    """Write, as the only writer, until nothing is left or the stream takes no more."""
    while buffers:
        assert stream is not None, "nothing is left to write without a stream"
        taken, failure = write(stream, buffers)
        with path.plane.lock:
            buffers = path.advance(stream, taken, failure)
            stream = path.stream
    if path.blocked:
        path.plane.poll_set.update(path)
    path.plane.deliver()


def write_on(
    path: StreamPath, stream: Stream, data: bytes, taken: int, failure: OSError | None
) -> None:
    """Continue after the first write of a message that was lone and no longer is."""
    with path.plane.lock:
        if path.stream is stream:
            path.core.resume_with(data)
        buffers = path.advance(stream, taken, failure)
        now = path.stream
    write_all(path, now, buffers)


def end_direction(stream: Stream) -> None:
    """End the local direction; data that the peer sent before is still read."""
    with suppress(OSError):
        stream.shutdown(socket.SHUT_WR)
