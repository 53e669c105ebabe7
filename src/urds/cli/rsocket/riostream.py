"""`urds rsocket riostream`: rstream by writes into mapped buffers, after riostream.

Each side maps one buffer; a transfer is a write there, and the receiver looks at its last byte. No
completion reports such a write, so there is nothing to poll.
Source: docs/reference/rsocket.md 7, 15.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from urds.cli.parser import Command
from urds.cli.processes import serve_child
from urds.cli.rsocket.measure import tests_option
from urds.cli.rsocket.rstream import (
    STALLED_S,
    Manner,
    Plan,
    RstreamOptions,
    Side,
    Stream,
    run,
    serve,
)

_MARKS: Final = 250  # of a last byte, from 1


class MappedSide(Side):
    """A side that writes into the other's mapped buffer, and waits for the last byte of its own.

    Of a burst the last write alone carries a new mark there. No completion reports a mapped write,
    so the receiver looks at the memory after each progress of the device.
    """

    def __init__(self, stream: Stream, options: RstreamOptions, **details: Any) -> None:
        super().__init__(stream, options, **details)
        self._marks = 0
        socket: Any = stream.sock  # an rsocket: the kernel's map nothing
        self._context = socket.link.context
        self._write = socket.write_mapped
        socket.map_buffer(self._got, 0)

    def _begin(self, plan: Plan) -> None:
        self._got[plan.size_bytes - 1] = 0

    def _mark(self) -> int:
        """Return the mark of the next transfer: both sides count them alike."""
        self._marks += 1
        return 1 + self._marks % _MARKS

    def _send(self, size_bytes: int, count: int) -> None:
        data = self._sent[:size_bytes]
        data[-1] = 0
        for _ in range(count - 1):
            self._write_all(data)
        data[-1] = self._mark()
        self._write_all(data)

    def _write_all(self, data: memoryview) -> None:
        written = 0
        while written < len(data):
            try:
                count = self._write(data[written:], written)
            except BlockingIOError:
                self._context.adapter.progress()
                continue
            if not count:
                raise OSError("the other side has mapped no buffer")
            written += count

    def _receive(self, size_bytes: int, count: int) -> None:
        place, mark = self._got[:size_bytes], self._mark()
        if self._stream.manner is Manner.SPIN:
            progress = self._context.adapter.progress
            while place[-1] != mark:
                progress()
        else:
            self._wait(lambda: place[-1] == mark)
        if self._is_verified:
            place[-1] = self._pattern[size_bytes - 1]
            self._verify(place)

    def _wait(self, is_ready: Any) -> None:
        from urds.rsocket.link import devices

        if not devices.wait((self._context,), is_ready, STALLED_S):
            raise TimeoutError(f"nothing was written for {STALLED_S:g} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class RiostreamOptions(RstreamOptions):
    """Options of `urds rsocket riostream`: rstream's, as far as mapped buffers know them."""

    TESTS: ClassVar[dict[str, str]] = {
        "b": "blocking", "n": "nonblocking", "r": "resolve", "v": "verify",
    }  # fmt: skip
    SIDE: ClassVar[type[Side]] = MappedSide
    IOMAP_SLOTS: ClassVar[int] = 1

    tests: Sequence[str] = tests_option(
        "b wait for the device (the default), n spin, r resolve by verbs, v verify."
    )


COMMAND: Final = Command(
    about="""
    As rstream, by riomap and riowrite: the bytes go straight into the buffer that the other side
    has mapped, and a side that waits looks at its last byte, for nothing tells of a mapped write.
    Kernel sockets have nothing like it.
    """,
    examples=(
        ("urds rsocket riostream", "mapped writes over shared memory"),
        ("urds rsocket riostream --device tcp -S 65536 -C 100 -T v", "one size over TCP, verified"),
    ),
    options=RiostreamOptions,
    run=run,
)

if __name__ == "__main__":
    sys.exit(serve_child("urds rsocket riostream", RiostreamOptions, serve))
