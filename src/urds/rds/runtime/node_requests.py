"""One request to a node and its answer, each time over a connection of its own.

So a program keeps no descriptor for its node, and a fork, a thread or a signal handler may ask.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from urds.common.errors import WireError
from urds.common.passed_files import receive_with_files, send_with_files
from urds.common.socket_class import KernelSocket
from urds.rds.wire import node
from urds.rds.wire.node import Answer, Request

ANSWER_S: Final = 30.0  # a node that is upgraded or restarted answers late
_LIST_BYTES_MAX: Final = 256 << 20


def ask(
    place: str,
    request: Request,
    descriptors: Sequence[int] = (),
    *,
    answer_wait_s: float = ANSWER_S,
) -> tuple[Answer, list[int]]:
    """Return the answer and the descriptors that came with it, which the caller closes.

    Raises OSError: that of the answer, or of the way to the node (ENOENT, ECONNREFUSED, EPROTO,
    ETIMEDOUT).
    """
    with KernelSocket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(answer_wait_s)
        connection.connect(place)
        send_with_files(connection, node.emit_request(request), descriptors)
        try:
            data, found, told = receive_with_files(
                connection, node.RECORD_BYTES + 1, node.DESCRIPTORS_MAX
            )
        except TimeoutError as late:
            text = f"{os.strerror(errno.ETIMEDOUT)}: the node at {place}"
            raise TimeoutError(errno.ETIMEDOUT, text) from late
    try:
        if told & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        answer = _parsed(data, request, place)
        if answer.status:
            raise OSError(answer.status, os.strerror(answer.status))
    except BaseException:
        for descriptor in found:
            os.close(descriptor)
        raise
    return answer, found


def fetch(place: str, request: Request, descriptors: Sequence[int] = ()) -> tuple[Answer, bytes]:
    """Return the answer to a request whose answer is a sealed memory, and what is in that.

    Raises OSError as `ask`.
    """
    answer, found = ask(place, request, descriptors)
    try:
        total_bytes = answer.total_bytes or 0
        if len(found) != 1 or total_bytes > _LIST_BYTES_MAX:
            raise OSError(errno.EPROTO, f"{os.strerror(errno.EPROTO)}: no memory with the answer")
        return answer, os.pread(found[0], total_bytes, 0)
    finally:
        for descriptor in found:
            with suppress(OSError):
                os.close(descriptor)


def _parsed(data: bytes, request: Request, place: str) -> Answer:
    if not data:
        text = f"{os.strerror(errno.ECONNRESET)}: the node at {place} ended"
        raise ConnectionResetError(errno.ECONNRESET, text)
    try:
        answer = node.parse_answer(data)
        if answer.operation != request.operation:
            raise WireError(f"an answer to {answer.operation}")
    except WireError as wrong:
        raise OSError(errno.EPROTO, f"{os.strerror(errno.EPROTO)}: {wrong}") from wrong
    return answer
