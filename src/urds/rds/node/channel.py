"""Messages between processes of a node: JSON with descriptors, over a SEQPACKET socket pair.

    fork server to           ready                     it waits for `fork`
    supervisor               failed {reason}           it cannot start, and ends
                             forked {worker}           with the worker's pidfd
                             unforked {reason}         it could not
                             ended {worker, status}    its exit code, or the negative signal
    supervisor to            fork                      with the other end of the worker's channel
    fork server
    worker to supervisor     ready {formats}           it waits for `begin`
                             serving {sockets}
                             keep {socket, record}     with the descriptors of a new socket
                             note {socket, record}     the record of a kept socket has changed
                             forget {socket}
                             alive
                             upgrade, stop, idle       what a client, or having nothing to do, asks
    supervisor to worker     kept {socket, record}     with its descriptors, one for each
                             begin {facts}             these were all
                             facts {facts}             for `urds node status`
                             end {is_last}             in order; another worker comes, or none

The supervisor parses nothing of a record. All sides trust each other: they are one program, but
after an upgrade the others may be of a later release, or an earlier one. So a message or a field
may be added, which the other side does not read, and none may change its meaning.
"""

from __future__ import annotations

import json
import os
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from urds.common.passed_files import receive_with_files, send_with_files
from urds.common.socket_class import KernelSocket

DESCRIPTORS_MAX: Final = 8
SHARED: Final = 0  # in place of a socket: the memories that all sockets share; it comes first
_MESSAGE_BYTES_MAX: Final = 64 << 10
_SEND_WAIT_S: Final = 10.0

Message = dict[str, Any]


class Channel:
    """One end. Not for several threads."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._waiting: deque[tuple[bytes, Sequence[int]]] = deque()

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Return this process's end and the one for another process."""
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(own), other

    @classmethod
    def of_descriptor(cls, descriptor: int) -> Channel:
        """Take over an inherited end."""
        return cls(KernelSocket(fileno=descriptor))

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._end.fileno()

    @property
    def has_waiting(self) -> bool:
        """Whether messages wait until the channel is writable."""
        return bool(self._waiting)

    def send(self, what: str, descriptors: Sequence[int] = (), **fields: Any) -> None:
        """Send a message, or wait up to ten seconds. Raises OSError."""
        data = json.dumps({"what": what, **fields}).encode()
        self._set_wait(0)
        try:
            self._put(data, descriptors)
        except BlockingIOError:
            self._set_wait(_SEND_WAIT_S)
            self._put(data, descriptors)

    def send_soon(self, what: str, descriptors: Sequence[int] = (), **fields: Any) -> None:
        """Send a message now, or with `flush`; its descriptors stay open until then."""
        self._waiting.append((json.dumps({"what": what, **fields}).encode(), descriptors))
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the other end takes it; an end that is gone takes all."""
        while self._waiting:
            self._set_wait(0)
            try:
                self._put(*self._waiting[0])
            except BlockingIOError:
                return
            except OSError:  # it has ended; its end is seen elsewhere
                self._waiting.clear()
                return
            self._waiting.popleft()

    def receive(self, wait_s: float = 0.0) -> tuple[Message, list[int]] | None:
        """Return the next message and its descriptors; None without one in that time.

        Raises EOFError once the other end is closed.
        """
        self._set_wait(wait_s)
        try:
            data, descriptors, told = receive_with_files(
                self._end, _MESSAGE_BYTES_MAX, DESCRIPTORS_MAX
            )
        except (BlockingIOError, TimeoutError):
            return None
        except ConnectionResetError as gone:
            raise EOFError from gone
        if not data:
            raise EOFError
        message: Message = json.loads(data)
        message["is_cut"] = bool(told & socket.MSG_CTRUNC)
        return message, descriptors

    def close(self) -> None:
        """Close this end."""
        self._end.close()

    def _put(self, data: bytes, descriptors: Sequence[int]) -> None:
        send_with_files(self._end, data, descriptors)

    def _set_wait(self, wait_s: float) -> None:
        if self._end.gettimeout() != wait_s:  # to set it is a system call, and mostly it is 0
            self._end.settimeout(wait_s)


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)
