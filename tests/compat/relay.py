"""What stands between programs and a node, and changes records or memories on their way."""

import mmap
import os
import socket
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Self

_RECORD_BYTES: Final = 256
_DESCRIPTORS_MAX: Final = 3
_OPERATION: Final = slice(6, 8)
_STOP_S: Final = 0.05


def _same(record: bytes) -> bytes:
    return record


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to requests, to answers, and to a memory that comes with one."""

    operations: Collection[int] = ()  # those concerned; none: all
    request: Callable[[bytes], bytes] = _same
    answer: Callable[[bytes], bytes] = _same
    # Which descriptor of the answer is replaced by a copy of its memory, with one byte changed.
    memory: tuple[int, int, int] | None = None


class Relay:
    """Listens at a place and asks the node at another one; a context manager."""

    def __init__(self, place: str, node: str, change: Change) -> None:
        self._node, self._change = node, change
        self._place = place
        self.changed = 0  # records or memories
        self._is_over = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(place)
        self._listener.listen(16)
        self._listener.settimeout(_STOP_S)
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._is_over = True
        self._thread.join()
        self._listener.close()
        os.unlink(self._place)

    def _serve(self) -> None:
        while not self._is_over:
            try:
                end, _ = self._listener.accept()
            except TimeoutError:
                continue
            with end:
                self._pass_on(end)

    def _pass_on(self, end: socket.socket) -> None:
        request, descriptors, _, _ = socket.recv_fds(end, _RECORD_BYTES, _DESCRIPTORS_MAX)
        if not request:
            return
        operation = int.from_bytes(request[_OPERATION], "little")
        is_meant = not self._change.operations or operation in self._change.operations
        asked = self._changed(self._change.request, request) if is_meant else request
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as node:
            node.connect(self._node)
            _send(node, asked, descriptors)
            _close_all(descriptors)
            answer, descriptors, _, _ = socket.recv_fds(node, _RECORD_BYTES, _DESCRIPTORS_MAX)
        if is_meant and answer:
            answer = self._changed(self._change.answer, answer)
            if self._change.memory is not None:
                self._replace(descriptors, *self._change.memory)
        if answer:
            _send(end, answer, descriptors)
        _close_all(descriptors)

    def _changed(self, change: Callable[[bytes], bytes], record: bytes) -> bytes:
        after = change(record)
        self.changed += after != record
        return after

    def _replace(self, descriptors: list[int], which: int, at: int, value: int) -> None:
        size_bytes = os.fstat(descriptors[which]).st_size
        copy = os.memfd_create("copy")
        os.ftruncate(copy, size_bytes)
        head = bytearray(os.pread(descriptors[which], mmap.PAGESIZE, 0))
        head[at] = value
        os.pwrite(copy, head, 0)
        os.close(descriptors[which])
        descriptors[which] = copy
        self.changed += 1


def _send(end: socket.socket, record: bytes, descriptors: list[int]) -> None:
    if descriptors:
        socket.send_fds(end, [record], descriptors)
    else:
        end.send(record)


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
