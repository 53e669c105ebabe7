"""The control connection of a run: options one way, a byte each way, and its end.

The active side sends its options in one piece, makes its tasks, sends a byte and waits for one; the
passive side mirrors that. Nothing follows: the connection's end is the run's. Source: rds-tools
2.0.7 rds-stress.c; docs/reference/rds.md 5.6.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Final

from urds.cli.rds.stress.wire import GO, NOWHERE, VERSION_BYTES, Parameters, form_bytes
from urds.common.errors import WireError

_RETRY_S: Final = 1.0
_ANSWER_S: Final = 30.0  # the other side makes its tasks meanwhile
_OPTIONS_S: Final = 10.0
_BACKLOG: Final = 16
_TRIED_AGAIN: Final = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH})

Say = Callable[[str], None]


class Control:
    """A connection between the two sides of a run."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def close(self) -> None:
        """End the run for the other side."""
        self._connection.close()

    def send_options(self, parameters: Parameters) -> None:
        """Send the options to the passive side: in one write, for it may read in one."""
        self._connection.sendall(parameters.emit())

    def receive_options(self) -> Parameters:
        """Return the received options. Raises OSError: none came. WireError: they are wrong."""
        self._connection.settimeout(_OPTIONS_S)
        begun = self._receive(VERSION_BYTES)
        return Parameters.parse(begun + self._receive(form_bytes(begun) - VERSION_BYTES))

    def start_active(self) -> None:
        """Report that the tasks are ready, wait until the peer's are. Raises OSError."""
        self._connection.sendall(GO)
        self._connection.settimeout(_ANSWER_S)
        self._receive(len(GO))

    def start_passive(self) -> None:
        """Wait until the peer's tasks are ready, report that these are. Raises OSError."""
        self._connection.settimeout(_ANSWER_S)
        self._receive(len(GO))
        self._connection.sendall(GO)

    def is_over(self, wait_s: float) -> bool:
        """Tell whether the other side has ended, or sent a byte; wait so long for it."""
        return bool(select.select([self._connection], [], [], wait_s)[0])

    def local_address(self) -> IPv4Address:
        """Return our address of the connection: RDS takes the same."""
        return IPv4Address(self._connection.getsockname()[0])

    def _receive(self, byte_count: int) -> bytes:
        received = b""
        while len(received) < byte_count:
            try:
                piece = self._connection.recv(byte_count - len(received))
            except TimeoutError as late:
                raise TimeoutError(errno.ETIMEDOUT, "the other side says nothing") from late
            if not piece:
                raise ConnectionError(errno.ECONNRESET, "the other side closed the connection")
            received += piece
        return received


def connect(parameters: Parameters, say: Say) -> Control:
    """Connect to the passive side, again after a second where it is not there yet.

    Raises OSError: it is not there after as many retries as the options allow.
    """
    target = (str(parameters.send_address), parameters.base_port)
    tries = 0
    while True:
        try:
            local = (str(parameters.receive_address), 0)
            connection = socket.create_connection(target, _ANSWER_S, source_address=local)
        except OSError as failure:
            if failure.errno not in _TRIED_AGAIN or tries >= parameters.connect_retries:
                reason = failure.strerror or str(failure)
                advice = "" if failure.errno not in _TRIED_AGAIN else _advice(parameters)
                raise OSError(failure.errno, f"{target[0]}:{target[1]}: {reason}{advice}") from None
            tries += 1
            say(f"connecting to {target[0]}:{target[1]}: {failure.strerror} - retrying")
            time.sleep(_RETRY_S)
        else:
            return Control(connection)


def _advice(parameters: Parameters) -> str:
    return f"; there, start `urds stress -p {parameters.base_port}`, or use --connect-retries"


def listen(address: IPv4Address, port: int) -> socket.socket:
    """Return the passive side's listener. Raises OSError: the address cannot be had."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(address), port))
        listener.listen(_BACKLOG)
    except OSError as failure:
        listener.close()
        other = "another port with -p" if failure.errno == errno.EADDRINUSE else "another -r"
        reason = f"{address}:{port}: {failure.strerror}; choose {other}"
        raise OSError(failure.errno, reason) from failure
    return listener


def accept(
    listener: socket.socket, address: IPv4Address, say: Say, complain: Say
) -> tuple[Control, Parameters]:
    """Wait for an active side; return the connection and its options with addresses swapped.

    A client that sends nothing, or wrong options, is reported and closed.
    """
    while True:
        connection, (host, port) = listener.accept()
        control = Control(connection)
        source = f"{host}:{port}"
        say(f"accepted connection from {source}")
        try:
            told = control.receive_options()
            ours = control.local_address() if address == NOWHERE else address
            return control, _swapped(told, ours, IPv4Address(host))
        except (OSError, WireError) as wrong:
            complain(f"turned {source} away: {getattr(wrong, 'strerror', None) or wrong}")
            control.close()


def _swapped(told: Parameters, ours: IPv4Address, source: IPv4Address) -> Parameters:
    """Return the options as ours. Raises WireError: they name an address that is not the sender's.

    Otherwise any client of the port could make this process send to any host.
    """
    if told.receive_address not in (source, NOWHERE):
        raise WireError(f"its options name {told.receive_address} as its address")
    return replace(told, send_address=source, receive_address=ours)
