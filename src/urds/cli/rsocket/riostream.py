"""`urds rsocket riostream`: rstream by writes into mapped buffers, after riostream.

Each side maps one buffer; a transfer is a write there, and the receiver looks at its last byte. No
completion reports such a write, so there is nothing to poll.
Source: docs/reference/rsocket.md 7, 15.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from urds.cli.parser import Command
from urds.cli.processes import serve_child
from urds.cli.rsocket.rstream import RstreamOptions, run, serve
from urds.cli.rsocket.sockets import tests_option
from urds.cli.rsocket.streams import MappedSide, Side, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class RiostreamOptions(RstreamOptions):
    """Options of `urds rsocket riostream`: rstream's, as far as mapped buffers know them."""

    TESTS: ClassVar[dict[str, str]] = {
        "b": "blocking", "n": "nonblocking", "r": "resolve", "v": "verify",
    }  # fmt: skip
    IOMAP_SLOTS: ClassVar[int] = 1

    tests: Sequence[str] = tests_option(
        "b wait for the device (the default), n spin, r resolve by verbs, v verify."
    )

    def side(self, stream: Stream, *, is_client: bool, size_bytes_max: int) -> Side:
        """Return a connected side that writes into the other's buffer."""
        return MappedSide(
            stream,
            is_client=is_client,
            is_verified=self.has("v"),
            is_kernel=False,
            size_bytes_max=size_bytes_max,
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
