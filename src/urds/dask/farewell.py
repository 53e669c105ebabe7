"""The end of a socket: it closes when its last words are acknowledged, or after a moment.

What it still has then is for a peer that is gone; to wait for that would hold up the end of the
process. A thread looks, for a loop may end in the very moment in which its last comm was closed.
"""

from __future__ import annotations

import atexit
import threading
import time
from contextlib import suppress
from typing import Final, TypeAlias

from urds import aio
from urds.dask.hub import Address
from urds.rds.socket import Socket

_PATIENCE_S: Final = 0.5
_LOOK_S: Final = 0.01
_Waiting: TypeAlias = tuple[aio.Socket, Socket, Address, float]  # until when, the last


class Farewells:
    """The sockets of this process that are about to close. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._thread: threading.Thread | None = None

    def add(self, sock: aio.Socket, raw: Socket) -> None:
        """Close a socket, soon."""
        if _is_heard(raw):
            sock.close()
            return
        until_s = time.monotonic() + _PATIENCE_S
        with self._lock:
            self._waiting.append((sock, raw, raw.getsockname()[:2], until_s))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="urds-dask", daemon=True)
                self._thread.start()

    def close_at(self, address: Address) -> None:
        """Close the sockets with an address now: another one takes it."""
        self._look(address=address)

    def close_all(self) -> None:
        """Close all, soon: the process ends."""
        while self._look():
            time.sleep(_LOOK_S)

    def _run(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            self._look()
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return

    def _look(self, address: Address | None = None) -> int:
        """Close what may be closed, and what has an address; return how many are left."""
        now_s = time.monotonic()
        closing: list[_Waiting] = []
        left: list[_Waiting] = []
        with self._lock:
            for one in self._waiting:
                due = _is_heard(one[1]) or one[3] <= now_s or one[2] == address
                (closing if due else left).append(one)
            self._waiting = left
        for sock, raw, _, until_s in closing:
            with suppress(OSError):
                if until_s <= now_s:
                    raw.cancel()
                sock.close()
        return len(left)


def _is_heard(raw: Socket) -> bool:
    try:
        return not raw.unacknowledged
    except OSError:  # closed
        return True


farewells = Farewells()
atexit.register(farewells.close_all)
