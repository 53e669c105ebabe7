"""What Dask sees of a session: a comm, the connector and the listener that make them.

Their contracts are Dask's. Source: distributed 2026.8.0 distributed/comm/core.py, comm/tcp.py.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
import weakref
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, ClassVar, Final

import dask
from dask.utils import parse_bytes, parse_timedelta
from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import BaseListener, Comm, CommClosedError, Connector
from distributed.comm.tcp import RequireEncryptionMixin
from distributed.comm.utils import ensure_concrete_host, from_frames, to_frames
from distributed.protocol.utils import host_array
from distributed.utils import ensure_memoryview

from urds.dask import local
from urds.dask.alive import can_watch
from urds.dask.endpoint import Endpoint, Link, endpoints
from urds.dask.session import Limits

PREFIX: Final = "rds://"
_WILDCARDS: Final = {"": "0.0.0.0", "0.0.0.0": "0.0.0.0", "::": "::"}
_PINGS: Final = 4  # in the time after which a silent peer is given up
logger = logging.getLogger(__name__)


def limits() -> Limits:
    """Return the numbers of sessions, from Dask's configuration. Raises ValueError."""
    silent_s = parse_timedelta(dask.config.get("distributed.comm.timeouts.tcp"), default="s")
    return Limits(
        window_bytes=parse_bytes(dask.config.get("distributed.comm.rds.window", "8 MiB")),
        fragment_bytes=parse_bytes(dask.config.get("distributed.comm.rds.fragment", "256 KiB")),
        ping_ns=max(1, int(silent_s * 1e9 / (_PINGS + 1))),  # one before the first ping
        pings_max=_PINGS,
    )


class RDSComm(Comm):
    """A session as Dask's comm. Used in the thread of its loop."""

    shard_bytes: ClassVar[int] = parse_bytes(dask.config.get("distributed.comm.shard"))

    def __init__(
        self, link: Link, local_addr: str, peer_addr: str, deserialize: bool = True
    ) -> None:
        super().__init__(deserialize=deserialize)
        self._link = link
        self._local_addr, self._peer_addr = local_addr, peer_addr
        self._closed = False
        self._finalizer = weakref.finalize(self, _abandon, link, repr(self))
        self._finalizer.atexit = False

    @property
    def local_address(self) -> str:
        """The address of this end."""
        return self._local_addr

    @property
    def peer_address(self) -> str:
        """The address of the other end."""
        return self._peer_addr

    @property
    def same_host(self) -> bool:
        """Tell whether both ends are on one host: addresses of 127.0.0.0/8 differ by process."""
        session = self._link.session
        if session.peer_hello is not None and can_watch(session.hello, session.peer_hello):
            return True
        return bool(super().same_host)

    async def read(self, deserializers: Any = None) -> Any:
        """Return the next message. Raises CommClosedError."""
        if self._closed:
            raise CommClosedError(f"{self!r} is closed")
        try:
            frames = await self._link.receive()
        except ConnectionError as ended:
            self._end()
            raise CommClosedError(f"in {self!r}: {ended}") from ended
        except BaseException:
            self.abort()  # as comms of TCP: a cancelled read gives the comm up
            raise
        try:
            return await from_frames(
                frames,
                deserialize=self.deserialize,
                deserializers=deserializers,
                allow_offload=self.allow_offload,
            )
        except EOFError:
            self.abort()
            raise CommClosedError("aborted a comm with truncated data") from None

    async def write(self, msg: Any, serializers: Any = None, on_error: Any = "message") -> int:
        """Send a message; return its bytes. Waits for credit. Raises CommClosedError."""
        if self._closed:
            raise CommClosedError(f"{self!r} is closed")
        frames = await to_frames(
            msg,
            allow_offload=self.allow_offload,
            serializers=serializers,
            on_error=on_error,
            context={
                "sender": self.local_info,
                "recipient": self.remote_info,
                **self.handshake_options,
            },
            frame_split_size=self.shard_bytes,
        )
        try:
            views = [ensure_memoryview(frame) for frame in frames]
            await self._link.send(views)
        except ConnectionError as ended:
            self._end()
            raise CommClosedError(f"in {self!r}: {ended}") from ended
        except BaseException:
            self.abort()  # it may be half sent
            raise
        return sum(map(len, views))

    async def close(self) -> None:
        """Let what was written leave, then close. Idempotent."""
        if not self._closed:
            self._end()
            await self._link.finish()

    def abort(self) -> None:
        """Close at once. Idempotent."""
        if not self._closed:
            self._end()
            self._link.abort()

    def closed(self) -> bool:
        """Tell whether it is closed, here or by the peer with nothing left to read."""
        return self._closed or self._link.session.is_closed

    def _end(self) -> None:
        self._closed = True
        self._finalizer.detach()


def _abandon(link: Link, text: str) -> None:
    """End the session of a comm that was not closed; any thread."""
    if link.session.is_over or link.endpoint.loop.is_closed():
        return
    logger.warning("Closing dangling session in %s", text)
    with suppress(RuntimeError):  # closed meanwhile
        link.endpoint.loop.call_soon_threadsafe(link.abort)


class RDSConnector(Connector, RequireEncryptionMixin):
    """Makes comms to listeners."""

    prefix = PREFIX
    encrypted = False
    comm_class = RDSComm

    async def connect(
        self, address: str, deserialize: bool = True, **connection_args: Any
    ) -> RDSComm:
        """Return a comm to a listener. Waits until it answers.

        Raises OSError if it refuses, or no local address can be had; ValueError for no address.
        """
        self._check_encryption(address, connection_args)
        host, port = parse_host_port(address)
        if not host or not port:
            raise ValueError(f"{self.prefix}{address} is no address to connect to")
        host = await _literal(host)
        endpoint = endpoints().towards(host, limits, host_array)
        link = endpoint.open((host, port))
        try:
            await link.opened()
        except BaseException:
            link.abort()
            raise
        own = self.prefix + unparse_host_port(*endpoint.address)
        return self.comm_class(link, own, self.prefix + address, deserialize)


class RDSListener(BaseListener, RequireEncryptionMixin):
    """Accepts comms at one port."""

    prefix = PREFIX
    encrypted = False
    comm_class = RDSComm

    def __init__(
        self,
        address: str,
        comm_handler: Callable[[RDSComm], Any],
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        default_port: int = 0,
        **connection_args: Any,
    ) -> None:
        super().__init__()
        self._check_encryption(address, connection_args)
        self.host, self.port = parse_host_port(address, default_port)
        self.default_host = default_host
        self.comm_handler = comm_handler
        self.deserialize, self.allow_offload = deserialize, allow_offload
        self._endpoints: list[Endpoint] = []
        self._address: tuple[str, int] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Bind, and accept from now on. Raises OSError.

        RDS has no wildcard address: one of this host is taken in its place, and 127.0.0.1 with it
        where no other process has that.
        """
        host = self.host
        if host in _WILDCARDS:
            host = ensure_concrete_host(host, default_host=self.default_host)
        host = await _literal(host)
        first = endpoints().listening(host, self.port, limits, host_array)
        self._address = first.address
        self._endpoints.append(first)
        if self.host in _WILDCARDS and not local.are_loopback(host, host):
            port = first.address[1]
            with suppress(OSError):
                second = endpoints().listening("127.0.0.1", port, limits, host_array)
                self._endpoints.append(second)
        for endpoint in self._endpoints:
            endpoint.listen(self._accepted)

    def stop(self) -> None:
        """Accept no more. Idempotent."""
        stopped, self._endpoints = self._endpoints, []
        for endpoint in stopped:
            endpoint.stop_listening()

    @property
    def listen_address(self) -> str:
        """The address as it was asked for, with its port."""
        host, port = self._bound()
        return f"{self.prefix}{unparse_host_port(_WILDCARDS.get(self.host, host), port)}"

    @property
    def contact_address(self) -> str:
        """The address that others connect to."""
        return f"{self.prefix}{unparse_host_port(*self._bound())}"

    def _bound(self) -> tuple[str, int]:
        if self._address is None:
            raise ValueError("the listener was not started")
        return self._address

    def _accepted(self, link: Link) -> None:
        task = link.endpoint.loop.create_task(self._handle(link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, link: Link) -> None:
        peer = self.prefix + unparse_host_port(*link.peer)
        own = self.prefix + unparse_host_port(*link.endpoint.address)
        comm = self.comm_class(link, own, peer, self.deserialize)
        comm.allow_offload = self.allow_offload
        if not self._endpoints:  # stopped meanwhile; the peer waits for a handshake
            comm.abort()
            return
        try:
            await self.on_connection(comm)
        except CommClosedError:
            logger.info("Connection from %s closed before handshake completed", peer)
            return
        handled = self.comm_handler(comm)
        if inspect.isawaitable(handled):
            await handled


async def _literal(host: str) -> str:
    """Return the address of a host, IPv4 first. Raises OSError for an unknown name."""
    with suppress(ValueError):
        return str(ip_address(host))
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    return str(found[0][4][0])
