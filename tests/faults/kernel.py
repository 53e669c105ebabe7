"""Faults that this host's kernel makes: it aborts sockets, or sends frames to an unknown card."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from contextlib import closing
from typing import Final

import pytest

from tests.rds.transports.tcp.faults import make_deaf
from tests.support.places import LINK, Namespaces

_OVERFLOW_UID: Final = "02:00:00:00:00:fe"  # a locally administered address that no link has


def missing_kill() -> str:
    """Return why `ss -K` does nothing here, or nothing."""
    if os.geteuid() != 0:
        return "ss -K needs root"
    if shutil.which("ss") is None:
        return "ss is not installed"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        with closing(ours), closing(listener.accept()[0]):
            if kill_sockets("127.0.0.1", "127.0.0.1", port=ours.getsockname()[1]):
                return ""
    return "ss -K kills nothing: the kernel lacks CONFIG_INET_DIAG_DESTROY"


def missing_filter() -> str:
    """Return why no socket can be made deaf here, or nothing."""
    with socket.socket() as tried:
        try:
            make_deaf(tried)
        except pytest.skip.Exception as error:
            return str(error)
    return ""


def kill_sockets(
    source: str, target: str, *, prefix: Sequence[str] = (), port: int | None = None
) -> int:
    """Abort the TCP sockets at `source` whose other end is `target`; return how many.

    Each is reset at both ends. `port` narrows it to the sockets that have it. Source: ss(8); linux
    v6.12 net/ipv4/tcp.c, tcp_abort.
    """
    bracketed = [f"[{one}]" if ":" in one else one for one in (source, target)]
    chosen = ["src", bracketed[0], "and", "dst", bracketed[1]]
    if port is not None:
        chosen += ["and", "sport", "=", f":{port}"]
    command = [*prefix, "ss", "-K", "-H", "-n", "-t", "state", "connected", *chosen]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return len(done.stdout.splitlines())


class Link:
    """The link of two namespaces, on which one or both ways can be black holes.

    The sender's neighbour table is given a wrong card, so that its frames reach no host and no host
    says so. That is how a network fails, while a route that is a black hole tells the sender.
    """

    def __init__(self, place: Namespaces) -> None:
        self._place = place

    def silence(self, host: int, peer: int) -> None:
        """Let nothing come from a host to a peer."""
        address = self._place.address(peer)
        change = f"neighbour replace {address} lladdr {_OVERFLOW_UID} dev {LINK} nud permanent"
        self._place.side(host).ip(change)

    def heal(self, host: int, peer: int) -> None:
        """Let everything through again; also if it was."""
        change = f"neighbour replace {self._place.address(peer)} dev {LINK} nud none"
        self._place.side(host).ip(change)
