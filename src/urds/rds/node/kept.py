"""The descriptors and records of sockets, as the supervisor keeps them for the next worker.

Where a manager has a store, they lie there as well, and outlive the supervisor.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Final

from urds.common.event_log import EventLog
from urds.common.records import record
from urds.rds.node.channel import SHARED, close_all
from urds.rds.node.events import NodeEvent, tell
from urds.rds.node.notify import Notifier

STORE_PREFIX: Final = "urds-socket-"


@record(frozen=False, eq=False)
class Kept:
    """The descriptors of one socket, and its record, which is the worker's."""

    descriptors: list[int]
    record: str
    memory: int = -1  # of the record, in the manager's store


class KeptSockets:
    """What is kept, by the cookie of the socket."""

    def __init__(self, notifier: Notifier, log: EventLog) -> None:
        self._notifier, self._log = notifier, log
        self._formats: tuple[str, ...] = ()  # of the memory of what is kept
        self._kept: dict[int, Kept] = {}

    def __iter__(self) -> Iterator[tuple[int, Kept]]:
        """Yield cookies and what is kept, SHARED first."""
        return iter(sorted(self._kept.items(), key=lambda one: one[0]))

    def take_stored(self, found: Sequence[tuple[str, int]]) -> None:
        """Take back what the manager kept over a restart of the service."""
        parts: dict[str, dict[int, int]] = {}
        for name, descriptor in found:
            group, _, index = name.rpartition("-")
            parts.setdefault(group, {})[int(index)] = descriptor
        for group, numbered in parts.items():
            descriptors = [numbered[index] for index in sorted(numbered)]
            try:
                cookie = int(group.removeprefix(STORE_PREFIX), 16)
                # One that was cut, as a manager's store has a limit, is of no use.
                memory, control, *rest = descriptors
                text = os.pread(memory, os.fstat(memory).st_size, 0).decode()
                json.loads(text)
            except (ValueError, OSError):
                close_all(descriptors)
                continue
            self._kept[cookie] = Kept([control, *rest], text, memory)

    def keep(self, cookie: int, descriptors: list[int], text: str) -> None:
        """Keep a new socket."""
        kept = self._kept[cookie] = Kept(descriptors, text)
        if self._notifier.is_there:
            kept.memory = os.memfd_create("urds-record", os.MFD_CLOEXEC)
            _write_record(kept)
            self._notifier.store(f"{STORE_PREFIX}{cookie:x}", [kept.memory, *kept.descriptors])

    def note(self, cookie: int, text: str) -> None:
        """Keep another record of a socket; of one that is not kept, nothing."""
        kept = self._kept.get(cookie)
        if kept is not None:
            kept.record = text
            _write_record(kept)

    def forget(self, cookie: int) -> None:
        """Close the copies of a socket, if they are kept."""
        kept = self._kept.pop(cookie, None)
        if kept is None:
            return
        close_all(kept.descriptors)
        if kept.memory >= 0:
            os.close(kept.memory)
            self._notifier.remove(f"{STORE_PREFIX}{cookie:x}", 1 + len(kept.descriptors))

    def obstacle(self, formats: Sequence[str]) -> str:
        """Return why a worker could not take over the sockets that are kept; "" if it can."""
        if not self._kept.keys() - {SHARED} or _are_equal(self._formats, formats):
            return ""
        return f"sockets have {_listed(self._formats)}, the new worker has {_listed(formats)}"

    def begin_worker(self, formats: Sequence[str]) -> None:
        """Let go of what a worker that begins cannot take over: it is of another release."""
        if not _are_equal(self._formats, formats):
            reason = f"the next worker has {_listed(formats)}, it is {_listed(self._formats)}"
            for cookie in list(self._kept):
                if cookie != SHARED:
                    tell(self._log, NodeEvent.SOCKET_LOST, f"{cookie:x}", reason)
                self.forget(cookie)
        self._formats = tuple(formats)

    def close(self) -> None:
        """Close all copies; a manager has its own."""
        for kept in self._kept.values():
            close_all(kept.descriptors)
        self._kept.clear()


def _are_equal(formats: Sequence[str], others: Sequence[str]) -> bool:
    """Tell whether formats of memory are the same, as far as both are told."""
    return not formats or not others or tuple(formats) == tuple(others)


def _listed(formats: Sequence[str]) -> str:
    return f"memory of format {', '.join(formats)}"


def _write_record(kept: Kept) -> None:
    if kept.memory >= 0:
        data = kept.record.encode()
        os.pwrite(kept.memory, data, 0)
        os.ftruncate(kept.memory, len(data))
