"""The connections of clients: one request each, within a time, so many at once for each user.

A connection that is above its user's share of requests under way, or above its rate, waits and is
not read. One that says nothing for `request_wait_s` is closed. Each is served without waiting, so
one client never holds up another. A descriptor is kept spare: without another one it makes room for
one connection after the other, so that each request is answered, most of them with EMFILE.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from urds.common.event_log import EventLog
from urds.common.passed_files import receive_with_files, send_with_files
from urds.common.records import record
from urds.rds.node.events import NodeEvent, tell
from urds.rds.node.service import Service
from urds.rds.node.settings import NodeSettings
from urds.rds.node.users import Credentials, User
from urds.rds.wire import node
from urds.rds.wire.node import Answer, RequestError

_WAITING_MAX: Final = 1024  # connections of one user beyond its requests under way


@record(frozen=False, eq=False)
class Connection:
    """One connection, until it is answered."""

    end: socket.socket
    who: Credentials
    user: User
    until_s: float = 0.0  # when it is closed if it says nothing
    is_watched: bool = False  # by epoll


class Connections:
    """Accepts, reads, answers and closes; the worker's main thread alone calls."""

    def __init__(
        self,
        listener: socket.socket,
        service: Service,
        settings: NodeSettings,
        log: EventLog,
        epoll: select.epoll,
        *,
        connections_max: int,
    ) -> None:
        self._listener, self._service = listener, service
        self._settings, self._log, self._epoll = settings, log, epoll
        self._connections_max = connections_max
        self._active: dict[int, Connection] = {}  # that are read
        self._waiting: dict[int, deque[Connection]] = {}  # by uid
        self._under_way: Counter[int] = Counter()
        self._is_accepting = False
        self._spare = -1
        listener.setblocking(False)
        self._accept_if_room()

    def __contains__(self, descriptor: int) -> bool:
        """Tell whether `handle_ready` is to be called for a descriptor."""
        return descriptor in self._active or descriptor == self._listener.fileno()

    def handle_ready(self, descriptor: int) -> None:
        """Serve a readable descriptor."""
        if descriptor == self._listener.fileno():
            self._accept()
        elif (connection := self._active.get(descriptor)) is not None:
            self._serve(connection)

    def handle_timeout(self, now_s: float) -> float | None:
        """Close what said nothing, read what waited; return when to call again, None: no need."""
        for connection in [one for one in self._active.values() if one.until_s <= now_s]:
            wait_s = self._settings.request_wait_s
            values = connection.who.uid, connection.who.pid, wait_s
            tell(self._log, NodeEvent.CLIENT_SILENT, *values, about=connection.who.uid)
            self._end(connection)
        for uid in list(self._waiting):
            self._read_next(uid, now_s)
        self._accept_if_room()
        deadlines = [one.until_s for one in self._active.values()]
        if any(self._waiting.values()):
            deadlines.append(now_s + 0.01)  # for its rate
        return min(deadlines, default=None)

    def close(self) -> None:
        """Accept no more; what waits is closed without an answer."""
        if self._is_accepting:
            self._epoll.unregister(self._listener.fileno())
            self._is_accepting = False
        for connection in list(self._active.values()):
            self._end(connection)
        for waiting in self._waiting.values():
            for connection in waiting:
                connection.end.close()
        self._waiting.clear()
        self._give_spare()

    # -- accepting

    def _count(self) -> int:
        return len(self._active) + sum(map(len, self._waiting.values()))

    def _accept_if_room(self) -> None:
        if self._spare < 0:
            with suppress(OSError):
                self._spare = os.dup(self._listener.fileno())
        # Without it an accept may fail, and the listener would tell of its connection for ever.
        has_room = self._spare >= 0 and self._count() < self._connections_max
        if has_room and not self._is_accepting:
            self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        elif not has_room and self._is_accepting:
            self._epoll.unregister(self._listener.fileno())
        self._is_accepting = has_room

    def _accept(self) -> None:
        """Accept one; the listener tells of the next, and others are served in between."""
        try:
            end, _ = self._listener.accept()
        except OSError as failure:  # it has gone again, or there is no descriptor
            if failure.errno not in (errno.EMFILE, errno.ENFILE) or self._spare < 0:
                return
            self._give_spare()
            with suppress(OSError):
                self._admit(self._listener.accept()[0])
        else:
            self._admit(end)
        self._accept_if_room()

    def _give_spare(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
        self._spare = -1

    def _admit(self, end: socket.socket) -> None:
        try:
            who = Credentials.of(end)
        except OSError:
            end.close()
            return
        user = self._service.users.of(who.uid)
        waiting = self._waiting.setdefault(who.uid, deque())
        if len(waiting) >= _WAITING_MAX:
            end.close()
            return
        fresh = Connection(end, who, user)
        waiting.append(fresh)
        if self._read_next(who.uid, time.monotonic(), fresh):
            self._serve(fresh)  # most have sent their request by now

    def _read_next(self, uid: int, now_s: float, fresh: Connection | None = None) -> bool:
        """Watch connections of a user, as far as its share and rate allow.

        `fresh` is not watched but left to the caller; tell whether it is the next one.
        """
        is_next = False
        waiting = self._waiting[uid]
        limit = self._service.users.limit(uid, "requests")
        while waiting and self._under_way[uid] < limit:
            if not self._service.users.may_ask(waiting[0].user, now_s):
                return is_next
            connection = waiting.popleft()
            connection.until_s = now_s + self._settings.request_wait_s
            self._active[connection.end.fileno()] = connection
            self._under_way[uid] += 1
            if connection is fresh:
                is_next = True
            else:
                self._watch(connection)
        if not waiting:
            del self._waiting[uid]
        return is_next

    def _watch(self, connection: Connection) -> None:
        if not connection.is_watched:
            connection.is_watched = True
            self._epoll.register(connection.end.fileno(), select.EPOLLIN)

    # -- serving

    def _serve(self, connection: Connection) -> None:
        try:
            data, descriptors, told = receive_with_files(
                connection.end, node.RECORD_BYTES + 1, node.DESCRIPTORS_MAX, socket.MSG_DONTWAIT
            )
        except BlockingIOError:
            self._watch(connection)
            return
        except OSError:  # it is gone
            self._end(connection)
            return
        try:
            self._respond(connection, data, descriptors, is_cut=bool(told & socket.MSG_CTRUNC))
        finally:
            self._service.close_unknown(descriptors)
            self._end(connection)

    def _respond(
        self, connection: Connection, data: bytes, descriptors: list[int], *, is_cut: bool
    ) -> None:
        who = connection.who
        try:
            request = node.parse_request(data)
        except RequestError as wrong:
            if not wrong.code:  # nothing, or no record of a node at all
                if data:
                    self._tell_rejected(who, "none", str(wrong))
                return
            self._tell_rejected(who, str(wrong.operation), str(wrong))
            answer = Answer(operation=wrong.operation, status=wrong.code, socket=wrong.socket)
            self._answer(connection.end, node.emit_answer(answer), ())
            return
        if is_cut:  # more than three, or the node has no descriptor left for it
            answer = Answer(operation=request.operation, status=errno.EMFILE)
            self._answer(connection.end, node.emit_answer(answer), ())
            return
        after: Callable[[], None] = lambda: None  # noqa: E731 - a default
        try:
            data, passed, after = self._service.handle(request, who, descriptors)
        except Exception:  # noqa: BLE001 - a fault here must not end the sockets of all users
            text = traceback.format_exc()
            asked = request.operation.name
            tell(self._log, NodeEvent.REQUEST_FAULT, who.uid, asked, text, about=asked)
            data = node.emit_answer(Answer(operation=request.operation, status=errno.EIO))
            passed = ()
        try:
            self._answer(connection.end, data, passed)
        finally:
            after()

    def _answer(self, end: socket.socket, data: bytes, passed: Sequence[int]) -> None:
        try:
            send_with_files(end, data, passed, socket.MSG_DONTWAIT)
        except OSError as failure:
            if failure.errno == errno.ETOOMANYREFS:  # its user passes too many at once. unix(7)
                operation = int.from_bytes(data[6:8], "little")
                answer = Answer(operation=operation, status=errno.EMFILE)
                with suppress(OSError):
                    end.send(node.emit_answer(answer), socket.MSG_DONTWAIT)

    def _tell_rejected(self, who: Credentials, operation: str, reason: str) -> None:
        values = who.uid, who.pid, operation, reason
        tell(self._log, NodeEvent.REQUEST_REJECTED, *values, about=who.uid)

    def _end(self, connection: Connection) -> None:
        descriptor = connection.end.fileno()
        if self._active.pop(descriptor, None) is not None:
            if connection.is_watched:
                self._epoll.unregister(descriptor)
            self._under_way[connection.who.uid] -= 1
            if not self._under_way[connection.who.uid]:
                del self._under_way[connection.who.uid]
        connection.end.close()
        if connection.who.uid in self._waiting:
            self._read_next(connection.who.uid, time.monotonic())
