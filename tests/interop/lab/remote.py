"""The test's end of remote Python: `guest("s.recv(100)")` returns the value or raises."""

import ast
import socket
from typing import Any

CALL_TIMEOUT_S = 60.0


class RemoteFailure(AssertionError):
    """The remote source raised something other than an OSError; the text is its traceback."""


class RemoteHang(AssertionError):
    """The remote process did not answer in time; nothing more can be asked of it."""


class Remote:
    """One Python process elsewhere, with names that live from call to call."""

    def __init__(self, stream: socket.socket, *, side: str) -> None:
        self._stream = stream
        self._lines = stream.makefile("rw")
        self.side = side
        self.pid = self("import os; os.getpid()")

    def __call__(
        self, source: str, /, *, timeout_s: float = CALL_TIMEOUT_S, **names: object
    ) -> Any:
        """Run `source` with `names` set; return the value of its last expression.

        Raises OSError with the remote errno, RemoteFailure, RemoteHang after `timeout_s`.
        """
        self.start(source, **names)
        return self.finish(timeout_s=timeout_s)

    def start(self, source: str, /, **names: object) -> None:
        """Begin a call that may block; the other side of the test goes on."""
        self._source = source
        print(repr((source, names)), file=self._lines, flush=True)

    def finish(self, *, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Wait for the call that `start` began and return its value. Raises as a call does."""
        self._stream.settimeout(timeout_s)
        try:
            line = self._lines.readline()
        except TimeoutError:
            raise RemoteHang(f"{self.side}: no answer in {timeout_s} s to {self._source}") from None
        if not line:
            raise ConnectionError(f"{self.side}: the remote process is gone")
        kind, *result = ast.literal_eval(line)
        if kind == "errno":
            number, text = result
            raise OSError(number, f"{self.side}: {text}")
        if kind == "failure":
            raise RemoteFailure(f"{self.side}: {result[0]}")
        return result[0]

    def close(self) -> None:
        """End the conversation; the remote process ends when it is not blocked in a call."""
        self._lines.close()
        self._stream.close()
