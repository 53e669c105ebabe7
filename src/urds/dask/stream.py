"""Messages of Dask as a stream of bytes: cut without a copy, filled into the buffers they stay in.

A message is a preamble and its frames. The preamble: count of frames (4 bytes), then 8 bytes each,
big endian, whose highest bit says that the frame lies in the buffer of the frame before it, as the
parts of one long array do. All other frames get a buffer of their own, so that none keeps another
alive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct, pack
from typing import Final, TypeAlias

from urds.common.errors import RemoteProtocolError

_COUNT: Final = Struct(">I")
_JOINED: Final = 1 << 63
FRAMES_MAX: Final = 1 << 20  # of a message

Buffer: TypeAlias = "bytearray | memoryview"
Allocate: TypeAlias = Callable[[int], Buffer]


class Cutter:
    """One message on its way out. Holds views of the caller's buffers until all is taken."""

    def __init__(self, frames: Sequence[memoryview]) -> None:
        """Take the frames of a message, views of bytes. Raises ValueError for too many."""
        if len(frames) > FRAMES_MAX:
            raise ValueError(f"message of {len(frames)} frames, limit {FRAMES_MAX}")
        sizes = [
            len(frame) | (_JOINED if number and _is_joined(frames[number - 1], frame) else 0)
            for number, frame in enumerate(frames)
        ]
        preamble = pack(f">I{len(sizes)}Q", len(sizes), *sizes)
        self._left = deque(view for view in (memoryview(preamble), *frames) if len(view))
        self.bytes_left = sum(map(len, self._left))

    def take(self, payload_bytes_max: int) -> list[memoryview]:
        """Return the next bytes, at most so many."""
        taken: list[memoryview] = []
        left = self._left
        while left and payload_bytes_max:
            view = left.popleft()
            if len(view) > payload_bytes_max:
                left.appendleft(view[payload_bytes_max:])
                view = view[:payload_bytes_max]
            taken.append(view)
            payload_bytes_max -= len(view)
            self.bytes_left -= len(view)
        return taken


def _is_joined(before: memoryview, frame: memoryview) -> bool:
    return not isinstance(frame.obj, bytes) and before.obj is frame.obj


@lru_cache(maxsize=64)
def _sizes(count: int) -> Struct:
    """Return what reads so many lengths."""
    return Struct(f">{count}Q")


class Filler:
    """The way in: bytes of the stream go in, whole messages come out."""

    def __init__(self, allocate: Allocate = bytearray, *, message_bytes_max: int) -> None:
        self._allocate, self._bytes_max = allocate, message_bytes_max
        self._start()

    def _start(self) -> None:
        self._preamble = bytearray()
        self._preamble_bytes = _COUNT.size
        self._frames: list[memoryview] | None = None
        self._buffers: deque[memoryview] = deque()  # what is still to be filled

    @property
    def is_between(self) -> bool:
        """Tell whether no message is half here."""
        return self._frames is None and not self._preamble

    def feed(self, payload: memoryview) -> list[list[memoryview]]:
        """Take the next bytes of the stream; return the messages that they complete.

        Raises RemoteProtocolError for a message above the limits, MemoryError as `allocate` does.
        """
        done: list[list[memoryview]] = []
        while payload:
            payload = self._fill(payload) if self._frames is not None else self._begin(payload)
            if self._frames is not None and not self._buffers:
                done.append(self._frames)
                self._start()
        return done

    def _begin(self, payload: memoryview) -> memoryview:
        """Take bytes of the preamble; return the rest."""
        if not self._preamble and len(payload) >= _COUNT.size:  # as a rule it comes whole
            count = _COUNT.unpack_from(payload)[0]
            whole = _COUNT.size + 8 * count
            if count <= FRAMES_MAX and len(payload) >= whole:
                self._open(_sizes(count).unpack_from(payload, _COUNT.size))
                return payload[whole:]
        taken = payload[: self._preamble_bytes - len(self._preamble)]
        self._preamble += taken
        payload = payload[len(taken) :]
        if len(self._preamble) == self._preamble_bytes:
            count = _COUNT.unpack_from(self._preamble)[0]
            if count > FRAMES_MAX:
                raise RemoteProtocolError(f"message of {count} frames")
            whole = _COUNT.size + 8 * count
            if whole > self._preamble_bytes:
                self._preamble_bytes = whole
            else:
                self._open(_sizes(count).unpack_from(self._preamble, _COUNT.size))
        return payload

    def _open(self, sizes: Sequence[int]) -> None:
        """Make the buffers of a message."""
        groups: list[list[int]] = []
        for number, size in enumerate(sizes):
            if size & _JOINED and number:
                groups[-1].append(size & ~_JOINED)
            else:
                groups.append([size & ~_JOINED])
        total = sum(map(sum, groups))
        if total > self._bytes_max:
            raise RemoteProtocolError(f"message of {total} bytes, limit {self._bytes_max}")
        frames: list[memoryview] = []
        for group in groups:
            buffer = memoryview(self._allocate(sum(group)))
            at = 0
            for size in group:
                frames.append(buffer[at : at + size])
                at += size
            if buffer.nbytes:
                self._buffers.append(buffer)
        self._frames = frames

    def _fill(self, payload: memoryview) -> memoryview:
        """Copy into the first buffer; return the rest."""
        buffer = self._buffers[0]
        length = min(len(buffer), len(payload))
        buffer[:length] = payload[:length]
        if length == len(buffer):
            self._buffers.popleft()
        else:
            self._buffers[0] = buffer[length:]
        return payload[length:]
