"""The answer to `urds info`: a process's information socket, served by its control thread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from urds.rds.plane.contract import Interest
from urds.rds.runtime.information_socket import InformationSocket
from urds.rds.runtime.watches import Watches


class Information:
    """The information socket of a driver, or its absence. Control lock held."""

    def __init__(
        self, watches: Watches, confine: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Begin without one; `confine` keeps an exception of a report from ending the thread."""
        self.socket: InformationSocket | None = None
        self._watches = watches
        self._confine = confine

    def open(self, report: Callable[[], bytes], directory: str) -> None:
        """Answer with what `report` returns; it is called in the control thread."""
        self.socket = InformationSocket.open(report, directory)
        self.watch()

    def watch(self) -> None:
        """Serve the socket, if there is one."""
        if self.socket is not None:
            self._watches.serve(self.socket.fileno(), self._answer, Interest.READ)

    def close(self) -> None:
        """Stop listening and remove the socket's file."""
        if self.socket is not None:
            self.socket.close()

    def abandon_in_child(self) -> None:
        """After a fork, in the child: close the copy; the file stays the parent's."""
        if self.socket is not None:
            self.socket.abandon_in_child()

    def _answer(self) -> None:
        assert self.socket is not None, "it is watched"
        with self._confine():
            self.socket.handle_ready()
        self.watch()
