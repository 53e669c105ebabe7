"""`urds rsocket riostream`: rstream by writes into mapped buffers, after riostream.

Each side maps one buffer; a transfer is a write there, and whoever waits for it looks at its last
octet. Nothing tells of such a write, so there is nothing to poll. Source: rsocket.md 7 and 15.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

from urds.cli.rsocket_processes import serve_child
from urds.cli.rsocket_rstream import RstreamOptions, run, serve
from urds.cli.rsocket_sides import MappedSide, Side
from urds.cli.rsocket_transfers import Stream

__all__ = ["RiostreamOptions", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RiostreamOptions(RstreamOptions):
    """Options of `urds rsocket riostream`: rstream's, as far as mapped buffers know them."""

    TESTS: ClassVar[dict[str, str]] = {
        "b": "blocking", "n": "nonblocking", "r": "resolve", "v": "verify",
    }  # fmt: skip
    IOMAP_SLOTS: ClassVar[int] = 1

    def side(self, stream: Stream, *, is_client: bool, size_bytes_max: int) -> Side:
        """Return a connected side that writes into the other's buffer."""
        return MappedSide(
            stream,
            is_client=is_client,
            is_verified=self.has("v"),
            is_kernel=False,
            size_bytes_max=size_bytes_max,
        )


if __name__ == "__main__":
    sys.exit(serve_child("rsocket riostream", RiostreamOptions, serve))
