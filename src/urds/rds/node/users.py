"""Users of a node: whose request it is, what each user has, and what is refused.

A user is the uid that SO_PEERCRED tells of a connection. Time comes in as `now_s`.
"""

from __future__ import annotations

import errno
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Final

from urds.common.records import field, record
from urds.common.types import IPAddress
from urds.rds.node.settings import OVERFLOW_UID, ROOT_FACTOR, NodeSettings

_CREDENTIALS: Final = Struct("3i")  # pid, uid, gid
_ENDPOINTS_MAX: Final = 65_536  # ports that wait for the end of their grace

Endpoint = tuple[IPAddress, int]


@record
class Credentials:
    """The other end of a connection, when it connected."""

    pid: int
    uid: int

    @classmethod
    def of(cls, connection: socket.socket) -> Credentials:
        """Ask the kernel. Raises OSError."""
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(data)
        return cls(pid, uid)


@record(frozen=False, eq=False)
class User:
    """What one user has."""

    uid: int
    sockets: int = 0
    memory_bytes: int = 0  # at the last look
    peers: Counter[IPAddress] = field(default_factory=Counter)  # routes of its sockets to each
    is_over_quota: bool = False  # of memory
    refused: int = 0  # requests beyond a quota
    tokens: float = 0.0  # requests that may come now
    filled_s: float = 0.0


class Users:
    """All users, with their quotas; root has twice as much."""

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._users: dict[int, User] = {}

    def __iter__(self) -> Iterator[User]:
        return iter(list(self._users.values()))

    def of(self, uid: int) -> User:
        """Return a user."""
        user = self._users.get(uid)
        if user is None:
            user = self._users[uid] = User(uid, tokens=float(self.limit(uid, "requests_per_s")))
        return user

    def rows(self) -> list[dict[str, int]]:
        """Return each user and what it has, for STATUS."""
        return [
            {
                "uid": one.uid,
                "sockets": one.sockets,
                "memory_bytes": one.memory_bytes,
                "peers": len(one.peers),
                "refused": one.refused,
            }
            for one in self
        ]

    def check(self, uid: int) -> None:
        """Raise OSError (EACCES) for a user that its namespace does not map: it may be any."""
        if uid == OVERFLOW_UID:
            raise OSError(errno.EACCES, f"uid {uid} is of an unmapped user")

    def limit(self, uid: int, name: str) -> int:
        """Return a quota of a user."""
        quota: int = getattr(self._settings, name)
        return quota if uid else ROOT_FACTOR * quota

    def take_socket(self, user: User) -> None:
        """Count a new socket. Raises OSError: EMFILE, ENOBUFS."""
        limit = self.limit(user.uid, "sockets")
        if user.sockets >= limit:
            text = f"user {user.uid} has {limit} sockets (quota.sockets)"
            raise OSError(errno.EMFILE, text)
        if user.is_over_quota:
            limit = self.limit(user.uid, "memory")
            text = f"sockets of user {user.uid} hold more than {limit} bytes (quota.memory)"
            raise OSError(errno.ENOBUFS, text)
        user.sockets += 1

    def take_route(self, user: User, routes: Counter[IPAddress], peer: IPAddress) -> None:
        """Count a route of a socket to a peer, once. Raises OSError: EUSERS."""
        if peer in routes:
            return
        of_socket, of_user = self._settings.routes, self.limit(user.uid, "peers")
        if len(routes) >= of_socket:
            text = f"a socket has {of_socket} routes (quota.routes)"
            raise OSError(errno.EUSERS, text)
        if peer not in user.peers and len(user.peers) >= of_user:
            text = f"user {user.uid} has {of_user} peers (quota.peers)"
            raise OSError(errno.EUSERS, text)
        routes[peer] += 1
        user.peers[peer] += 1

    @contextmanager
    def taking_route(
        self, user: User, routes: Counter[IPAddress], peer: IPAddress
    ) -> Iterator[None]:
        """Count a route as `take_route` does, unless the block that makes it fails."""
        is_new = peer not in routes
        self.take_route(user, routes, peer)
        try:
            yield
        except BaseException:
            if is_new:
                self._give_back_route(user, routes, peer)
            raise

    def give_back(self, user: User, routes: Counter[IPAddress]) -> None:
        """Take a socket that ended off the accounts."""
        user.sockets -= 1
        for peer in list(routes):
            self._give_back_route(user, routes, peer)

    @staticmethod
    def _give_back_route(user: User, routes: Counter[IPAddress], peer: IPAddress) -> None:
        del routes[peer]
        user.peers[peer] -= 1
        if not user.peers[peer]:
            del user.peers[peer]

    def check_quota(self, user: User) -> bool:
        """Tell whether what the sockets of a user hold went over the quota or back."""
        is_over = user.memory_bytes > self.limit(user.uid, "memory")
        has_changed = is_over != user.is_over_quota
        user.is_over_quota = is_over
        return has_changed

    def may_ask(self, user: User, now_s: float) -> bool:
        """Take one request off the rate; false where it has to wait."""
        rate = self.limit(user.uid, "requests_per_s")
        passed_s = max(0.0, now_s - user.filled_s)
        user.tokens = min(float(rate), user.tokens + passed_s * rate)
        user.filled_s = now_s
        if user.tokens < 1:
            return False
        user.tokens -= 1
        return True


class Ports:
    """Whose each port is: of the user that bound it, while it is open and a while longer."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._open: dict[Endpoint, int] = {}
        self._closed: dict[Endpoint, tuple[int, float]] = {}  # by end; the first ends first

    def check(self, uid: int, endpoint: Endpoint, now_s: float) -> None:
        """Raise OSError (EADDRINUSE) for a port that is another user's."""
        self._forget(now_s)
        owner = self._open.get(endpoint)
        if owner is None and endpoint in self._closed:
            owner = self._closed[endpoint][0]
        if owner is not None and owner != uid:
            raise OSError(
                errno.EADDRINUSE,
                f"{endpoint[0]} port {endpoint[1]} is another user's, or was within the last"
                f" {self._grace_s:g} s (node.port_grace_s)",
            )

    def take(self, uid: int, endpoint: Endpoint) -> None:
        """Note that a user has bound a port."""
        self._closed.pop(endpoint, None)
        self._open[endpoint] = uid

    def give_back(self, endpoint: Endpoint, now_s: float) -> None:
        """Note that a port was closed."""
        uid = self._open.pop(endpoint, None)
        if uid is not None:
            self.note_closed(uid, endpoint, now_s)

    def note_closed(self, uid: int, endpoint: Endpoint, now_s: float) -> None:
        """Note that a user had a port; one that is open again is its owner's."""
        if endpoint not in self._open:
            self._closed.pop(endpoint, None)
            self._closed[endpoint] = uid, now_s + self._grace_s
            if len(self._closed) > _ENDPOINTS_MAX:
                del self._closed[next(iter(self._closed))]

    def closed(self, now_s: float) -> list[tuple[str, int, int, float]]:
        """Return the ports within their grace: address, port, uid, seconds left."""
        self._forget(now_s)
        return [
            (str(address), port, uid, until_s - now_s)
            for (address, port), (uid, until_s) in self._closed.items()
        ]

    def _forget(self, now_s: float) -> None:
        while self._closed:
            endpoint = next(iter(self._closed))
            if self._closed[endpoint][1] > now_s:
                return
            del self._closed[endpoint]
