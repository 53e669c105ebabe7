"""What a node does for each request. No connection here: `connections` has those.

A request that concerns a socket brings the socket's descriptor, and that alone tells which socket
it is: by SO_COOKIE, which no program can choose. A socket belongs to the user that opened it, for
its quotas; a program that got the descriptor may use it, as with any socket.

The worker's main thread alone calls. Source of checks: linux v6.12 net/rds/bind.c,
net/rds/af_rds.c; docs/reference/rds.md 3.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any, Final, Protocol

from urds.common.deferred import DeferredCalls
from urds.common.errors import ErrorReason, os_error
from urds.common.event_log import EventLog
from urds.common.types import IPAddress
from urds.common.version import VERSION
from urds.rds import addresses, options
from urds.rds.addresses import Call
from urds.rds.constants import SOL_RDS, SockOpt, Transport
from urds.rds.node.channel import close_all
from urds.rds.node.events import NodeEvent, tell
from urds.rds.node.plane_calls import Opened, PlaneCalls
from urds.rds.node.settings import NodeSettings
from urds.rds.node.sockets import (
    Cookies,
    Made,
    MemoryLooks,
    NodeSocket,
    Record,
    cookie_of,
    hung_up,
    settings_of,
    shut,
)
from urds.rds.node.users import Credentials, Ports, User, Users
from urds.rds.wire import node
from urds.rds.wire.node import NO_NAME, Answer, Name, Request, RequestOp

_DESCRIPTORS_SPARE: Final = 64  # below the limit: for connections and for what is passed
_LIST_KEPT_S: Final = 0.1  # RDS_INFO_* is asked twice: for its length, then for the list
_PORT_TRIES: Final = 8  # a random port may be within another user's grace
_CLOSES_MAX: Final = 1024  # a burst of requests is served faster than another thread closes


class SupervisorCalls(Protocol):
    """The supervisor, as the worker sees it."""

    def keep(self, cookie: int, text: str, descriptors: Sequence[int]) -> None:
        """Keep the descriptors and the record of a new socket. Raises OSError."""

    def note(self, cookie: int, text: str) -> None:
        """Keep another record of a socket."""

    def forget(self, cookie: int) -> None:
        """Close the copies of a socket that is over."""

    def ask(self, what: str) -> None:
        """Ask for an upgrade or for the end."""


Reply = tuple[Answer, Sequence[int]]  # with the descriptors to pass; those made for it are closed


class Service:
    """Sockets, users and ports of a node."""

    def __init__(
        self,
        *,
        place: str,
        settings: NodeSettings,
        calls: PlaneCalls,
        supervisor: SupervisorCalls,
        log: EventLog,
        watch: Callable[[NodeSocket], None],
        unwatch: Callable[[NodeSocket], None],
        descriptors_max: int,
    ) -> None:
        """Begin without sockets; `watch` has `leave` called when an unbound one is left."""
        self.facts: dict[str, Any] = {}  # of the supervisor, for STATUS
        self.users = Users(settings)
        self.ports = Ports(settings.port_grace_s)
        self.sockets: dict[int, NodeSocket] = {}
        self._place, self._settings, self._calls = place, settings, calls
        self._supervisor, self._log = supervisor, log
        self._watch, self._unwatch = watch, unwatch
        self._descriptors_max = descriptors_max
        self._tunables = settings.settings()
        self._owner = os.getuid()
        self._by_attached: dict[Any, NodeSocket] = {}
        self._closing: list[NodeSocket] = []  # left, with messages that are still sent
        self._looks = MemoryLooks()
        self._lists: dict[tuple[int, int], tuple[float, int, bytes]] = {}
        self._closes = DeferredCalls("urds-node-close", calls_max=_CLOSES_MAX)
        self._made = Made()  # of the present answer alone
        self._cookies = Cookies()  # of the present request
        self._defaults = options.defaults(self._tunables)
        self._methods: Mapping[RequestOp, Callable[..., Reply]] = {
            RequestOp.OPEN: self._open,
            RequestOp.FIND: self._find,
            RequestOp.BIND: self._bind,
            RequestOp.ROUTE: self._route,
            RequestOp.SET_OPTION: self._set_option,
            RequestOp.CANCEL: self._cancel,
            RequestOp.INFO: self._info,
            RequestOp.STATUS: self._status,
            RequestOp.UPGRADE: self._upgrade,
            RequestOp.STOP: self._stop,
            RequestOp.OPEN_AND_BIND: self._open,
        }

    @property
    def is_idle(self) -> bool:
        """Whether there is no socket, nor a message of one."""
        return not self.sockets and not self._closing

    def handle(
        self, request: Request, who: Credentials, descriptors: Sequence[int]
    ) -> tuple[bytes, Sequence[int], Callable[[], None]]:
        """Do a request; return the answer, the descriptors with it, and what to call afterwards.

        `descriptors` came with the request and stay the caller's.
        """
        try:
            self.users.check(who.uid)
            answer, passed = self._methods[request.operation](request, who, descriptors)
        except OSError as failure:
            self._made.take()()
            code = failure.errno or errno.EIO
            reason = failure.strerror or str(failure)
            if code in (errno.EMFILE, errno.ENOBUFS, errno.EUSERS):
                self.users.of(who.uid).refused += 1
                tell(self._log, NodeEvent.QUOTA_REACHED, who.uid, reason, about=(who.uid, code))
            elif code in (errno.EPERM, errno.EACCES):
                asked = request.operation.name
                values = who.uid, who.pid, asked, reason
                tell(self._log, NodeEvent.REQUEST_REJECTED, *values, about=who.uid)
            answer, passed = Answer(operation=request.operation, status=code), ()
        return node.emit_answer(answer), passed, self._made.take()

    def close_unknown(self, descriptors: Sequence[int]) -> None:
        """Close what came with a request.

        A socket of this node closes at once. Anything else might wait: a file of FUSE for its
        server, a TCP socket for its peer (SO_LINGER). So another thread closes that. Where too many
        wait, it stays open until the process ends, which the limit of descriptors bounds.
        """
        for descriptor in descriptors:
            if self._cookies.of(descriptor) in self.sockets:
                os.close(descriptor)
            else:
                self._closes.put(partial(os.close, descriptor))
        self._cookies.forget()

    # -- sockets that were there before this worker

    def restore(self, cookie: int, text: str, kept: Sequence[int]) -> None:
        """Make a socket again, bound as it was. Raises OSError, ValueError.

        One that was left is there for what it sent: `leave` comes again for it.
        """
        was = Record.of(text)
        sock = NodeSocket(
            cookie=cookie,
            user=self.users.of(was.uid),
            pid=was.pid,
            opened=Opened(-1, tuple(kept)),
            options=was.options,
            is_left=was.is_left and was.name is not None,
        )
        if was.name is not None:
            sock.attached = self._attach(sock, *was.name)
            self._by_attached[sock.attached] = sock
            endpoint = sock.attached.local, sock.attached.port
            if sock.is_left:
                self.ports.note_closed(sock.user.uid, endpoint, time.monotonic())
            else:
                self.ports.take(sock.user.uid, endpoint)
        sock.user.sockets += 1
        if sock.is_left:
            self._closing.append(sock)
            return
        self.sockets[cookie] = sock
        if sock.attached is None:
            self._watch(sock)

    # -- what happens beside requests

    def of_attached(self, attached: object) -> NodeSocket | None:
        """Return the socket that the plane means."""
        return self._by_attached.get(attached)

    def leave(self, sock: NodeSocket) -> None:
        """Note that the last descriptor of a socket was closed: its messages linger."""
        if sock.is_left:
            self._close_restored(sock)
            return
        sock.is_left = True
        tell(self._log, NodeEvent.SOCKET_LEFT, f"{sock.cookie:x}", sock.user.uid)
        if sock.attached is None:
            self._unwatch(sock)
            self._forget(sock)
            return
        self._supervisor.note(sock.cookie, sock.text())
        self._give_name_back(sock)
        self._closing.append(sock)
        self.sockets.pop(sock.cookie, None)

    def _close_restored(self, sock: NodeSocket) -> None:
        """Close a socket that was left before this worker began, whose port is given back."""
        if self._by_attached.pop(sock.attached, None) is not None:
            self._calls.close(sock.attached)

    def end_broken(self, sock: NodeSocket, what: str) -> None:
        """End a socket whose program broke the protocol; no other socket is concerned."""
        values = f"{sock.cookie:x}", sock.user.uid, what
        tell(self._log, NodeEvent.SOCKET_BROKEN, *values, about=sock.user.uid)
        shut(sock.opened.node_end)
        self.leave(sock)

    def tend(self) -> None:
        """Forget closed sockets that are done; look what sockets hold. Call it now and then."""
        for sock in [one for one in self._closing if self._calls.is_over(one.attached)]:
            self._closing.remove(sock)
            self._forget(sock)
        self._looks.look(chain(self._closing, self.sockets.values()))
        for user in self.users:
            if self.users.check_quota(user):
                self._restrict(user)
        now_s = time.monotonic()
        self._calls.release_unused(now_s)
        self._lists = {key: one for key, one in self._lists.items() if one[0] > now_s}

    def _restrict(self, user: User) -> None:
        if user.is_over_quota:
            reason = f"{user.memory_bytes} bytes in sockets (quota.memory)"
            tell(self._log, NodeEvent.QUOTA_REACHED, user.uid, reason, about=user.uid)
        for sock in self.sockets.values():
            if sock.user is user and sock.attached is not None:
                self._calls.restrict(sock.attached, is_over_quota=user.is_over_quota)

    def _forget(self, sock: NodeSocket) -> None:
        self.sockets.pop(sock.cookie, None)
        self._looks.forget(sock)
        self.users.give_back(sock.user, sock.routes)
        close_all(sock.opened.kept)
        self._supervisor.forget(sock.cookie)

    # -- requests

    def _open(self, request: Request, who: Credentials, _: Sequence[int]) -> Reply:
        """Make a socket, and bind it where the request has a name."""
        if request.flags not in (0, node.NONBLOCK):
            raise OSError(errno.EINVAL, f"flags {request.flags:#x}")
        user = self.users.of(who.uid)
        self.users.take_socket(user)
        with ExitStack() as undo:
            undo.callback(self.users.give_back, user, Counter())
            nonblock, words = bool(request.flags), request.data or b""
            opened = self._calls.open(self._place, nonblock=nonblock, words=words)
            self._made.add(opened.user_end)
            undo.callback(close_all, opened.kept)
            if max(opened.user_end, *opened.kept) >= self._descriptors_max - _DESCRIPTORS_SPARE:
                text = f"the node has few of its {self._descriptors_max} descriptors left"
                raise OSError(errno.EMFILE, text)
            cookie, chosen = cookie_of(opened.user_end), self._defaults
            assert cookie is not None, "it is a socket"
            sock = NodeSocket(cookie=cookie, user=user, pid=who.pid, opened=opened, options=chosen)
            if request.name is not None:
                self._take_name(sock, request, who)
                undo.callback(self._give_name_back, sock)
            # Once, with its name: of a worker that is killed before, nothing is left to restore.
            self._supervisor.keep(cookie, sock.text(), opened.kept)
            undo.pop_all()
        self.sockets[cookie] = sock
        if sock.attached is None:
            self._watch(sock)
        tell(self._log, NodeEvent.SOCKET_OPENED, f"{cookie:x}", who.uid, who.pid)
        return self._opened(request.operation, sock, [sock.opened.user_end])

    def _find(self, _: Request, __: Credentials, descriptors: Sequence[int]) -> Reply:
        return self._opened(RequestOp.FIND, self._socket_of(descriptors), [])

    def _opened(self, operation: RequestOp, sock: NodeSocket, first: list[int]) -> Reply:
        congestion, congestion_bytes = self._calls.congestion()
        answer = Answer(
            operation=operation,
            socket=sock.cookie,
            memory_bytes=self._calls.memory_bytes(sock.opened.kept),
            congestion_bytes=congestion_bytes,
        )
        return answer, [*first, sock.opened.memory, congestion]

    def _bind(self, request: Request, who: Credentials, descriptors: Sequence[int]) -> Reply:
        sock = self._socket_of(descriptors)
        name = self._take_name(sock, request, who)
        self._unwatch(sock)
        self._supervisor.note(sock.cookie, sock.text())
        return Answer(operation=RequestOp.BIND, socket=sock.cookie, name=name), ()

    def _take_name(self, sock: NodeSocket, request: Request, who: Credentials) -> Name:
        assert request.name is not None, "the codec has checked it"
        local, port = _checked(request.name, Call.BIND)
        if sock.attached is not None:
            raise os_error(ErrorReason.ALREADY_BOUND, f"to {sock.attached.local}")
        transport = _transport(sock, request.transport)
        if not self._settings.may_bind(who.uid, local):
            raise OSError(errno.EACCES, f"user {who.uid} may not bind {local} (addresses)")
        sock.attached = self._bound(sock, local, port, transport)
        self._by_attached[sock.attached] = sock
        name = Name(sock.attached.local, sock.attached.port)
        self.ports.take(sock.user.uid, (name.address, name.port))
        if sock.user.is_over_quota:  # it was opened before
            self._calls.restrict(sock.attached, is_over_quota=True)
        values = f"{sock.cookie:x}", sock.user.uid, name.address, name.port
        tell(self._log, NodeEvent.SOCKET_BOUND, *values)
        return name

    def _give_name_back(self, sock: NodeSocket) -> None:
        """Free the port of a socket, whose messages linger."""
        self._calls.close(sock.attached)
        self.ports.give_back((sock.attached.local, sock.attached.port), time.monotonic())
        self._by_attached.pop(sock.attached, None)

    def _bound(
        self, sock: NodeSocket, local: IPAddress, port: int, transport: Transport | None
    ) -> Any:
        for _ in range(_PORT_TRIES):
            if port:
                self.ports.check(sock.user.uid, (local, port), time.monotonic())
            try:
                made = self._attach(sock, local, port, transport)
            except OSError as refused:
                holders = filter(lambda one: one.endpoint == (local, port), self.sockets.values())
                if refused.errno != errno.EADDRINUSE or not self._leave_closed(holders):
                    raise
                continue
            try:
                self.ports.check(sock.user.uid, (local, made.port), time.monotonic())
            except OSError:
                self._calls.close(made)
            else:
                return made
        raise os_error(ErrorReason.PORTS_EXHAUSTED, f"on {local}")

    def _leave_closed(self, among: Iterable[NodeSocket]) -> bool:
        """Leave closed ones of which the plane has yet to tell, but where messages wait."""
        by_end = {one.opened.node_end: one for one in among}
        closed = [by_end[node_end] for node_end in hung_up(by_end)]
        done = [one for one in closed if not one.attached or self._calls.take_rest(one.attached)]
        for one in done:
            self.leave(one)
        return bool(done)

    def _attach(
        self, sock: NodeSocket, local: IPAddress, port: int, transport: Transport | None = None
    ) -> Any:
        settings = settings_of(sock.options, is_strict=self._tunables.strict_linux)
        kept, was_left = sock.opened.kept, sock.is_left
        return self._calls.bind(kept, local, port, settings, transport, was_left=was_left)

    def _route(self, request: Request, _: Credentials, descriptors: Sequence[int]) -> Reply:
        sock = self._bound_socket_of(descriptors)
        assert request.name is not None and request.tos is not None, "the codec has checked it"
        peer, _port = _checked(request.name, Call.SEND)
        if peer.version != sock.attached.local.version:
            raise os_error(ErrorReason.FAMILY_MISMATCH, f"to {peer}", peer=peer)
        with self.users.taking_route(sock.user, sock.routes, peer):
            number, generation = self._calls.route(sock.attached, peer, request.tos)
        answer = Answer(
            operation=RequestOp.ROUTE, socket=sock.cookie, route=number, generation=generation
        )
        return answer, ()

    def _set_option(self, request: Request, _: Credentials, descriptors: Sequence[int]) -> Reply:
        sock = self._socket_of(descriptors)
        assert request.data is not None, "the codec has checked it"
        level, option = request.level or 0, request.option or 0
        if level == SOL_RDS and option == SockOpt.CANCEL_SENT_TO:
            raise os_error(ErrorReason.NO_SUCH_OPTION, "to cancel is a request of its own")
        sock.options = options.set_option(
            sock.options, level=level, option=option, data=request.data, settings=self._tunables
        )
        if sock.attached is not None:
            settings = settings_of(sock.options, is_strict=self._tunables.strict_linux)
            self._calls.configure(sock.attached, settings)
        self._supervisor.note(sock.cookie, sock.text())
        return Answer(operation=RequestOp.SET_OPTION, socket=sock.cookie), ()

    def _cancel(self, request: Request, _: Credentials, descriptors: Sequence[int]) -> Reply:
        sock = self._bound_socket_of(descriptors)
        name = request.name
        assert name is not None, "the codec has checked it"
        peer, port = (None, None) if name == NO_NAME else (name.address, name.port)
        count = self._calls.cancel(sock.attached, peer, port)
        return Answer(operation=RequestOp.CANCEL, socket=sock.cookie, count=count), ()

    def _info(self, request: Request, who: Credentials, descriptors: Sequence[int]) -> Reply:
        option = request.info or 0
        key = (self._socket_of(descriptors).cookie if descriptors else -who.pid, option)
        now_s = time.monotonic()
        until_s, element_bytes, data = self._lists.get(key, (0.0, 0, b""))
        if until_s <= now_s:
            self._leave_closed(self.sockets.values())
            element_bytes, data = self._calls.info(option)
            self._lists[key] = now_s + _LIST_KEPT_S, element_bytes, data
        answer = Answer(
            operation=RequestOp.INFO, element_bytes=element_bytes, total_bytes=len(data)
        )
        return answer, [self._made.seal(data)]

    def _status(self, _: Request, __: Credentials, ___: Sequence[int]) -> Reply:
        self._leave_closed(self.sockets.values())
        data = json.dumps(self.status()).encode()
        answer = Answer(operation=RequestOp.STATUS, total_bytes=len(data))
        return answer, [self._made.seal(data)]

    def _upgrade(self, _: Request, who: Credentials, __: Sequence[int]) -> Reply:
        self._check_owner(who)
        self._supervisor.ask("upgrade")
        return Answer(operation=RequestOp.UPGRADE), ()

    def _stop(self, _: Request, who: Credentials, __: Sequence[int]) -> Reply:
        self._check_owner(who)
        self._supervisor.ask("stop")
        return Answer(operation=RequestOp.STOP), ()

    def status(self) -> dict[str, Any]:
        """Return what `urds node status` and `urds info` show."""
        bound = sum(one.attached is not None for one in self.sockets.values())
        return {
            "version": VERSION,
            "place": self._place,
            "uid": self._owner,
            "worker": os.getpid(),
            **self.facts,
            "sockets": len(self.sockets),
            "bound": bound,
            "closing": len(self._closing),
            "users": self.users.rows(),
            "report": json.loads(self._calls.report()),
        }

    # -- what requests share

    def _check_owner(self, who: Credentials) -> None:
        if who.uid not in (0, self._owner):
            raise OSError(errno.EPERM, f"user {who.uid} is neither root nor user {self._owner}")

    def _socket_of(self, descriptors: Sequence[int]) -> NodeSocket:
        """Return the socket whose descriptor came. Raises OSError (ENOTSOCK) for anything else."""
        cookie = self._cookies.of(descriptors[0]) if len(descriptors) == 1 else None
        sock = None if cookie is None else self.sockets.get(cookie)
        if sock is None:
            raise OSError(errno.ENOTSOCK, "no socket of this node")
        return sock

    def _bound_socket_of(self, descriptors: Sequence[int]) -> NodeSocket:
        sock = self._socket_of(descriptors)
        if sock.attached is None:
            raise os_error(ErrorReason.NOT_BOUND)
        return sock


def _transport(sock: NodeSocket, asked: int | None) -> Transport | None:
    """Return what SO_RDS_TRANSPORT chose. Raises OSError for all but TCP."""
    chosen = sock.options.transport if asked == Transport.NONE else asked
    if chosen not in (None, Transport.TCP):
        text = f"transport {chosen}: sockets of a node are over TCP"
        raise os_error(ErrorReason.TRANSPORT_MISSING, text)
    return None if chosen is None else Transport.TCP


def _checked(name: Name, call: Call) -> tuple[IPAddress, int]:
    """Return address and port, checked as of a program's own call. Raises OSError."""
    return addresses.parse(addresses.socket_address(name.address, name.port), call)
