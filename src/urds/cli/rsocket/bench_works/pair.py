"""The two processes that `urds rsocket bench` measures, as the bench sees them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Self

from urds.cli import processes

_END_S: Final = 10.0


class Child:
    """One process; orders and answers are lines of JSON. As a context manager it ends with it."""

    def __init__(self, module: str, **start: Any) -> None:
        self._process = processes.start(module)
        self.tell(start)

    def tell(self, command: dict[str, Any]) -> None:
        """Send it a line."""
        assert self._process.stdin is not None, "it is piped"
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Return its next answer. Raises OSError: it failed, or it ended."""
        assert self._process.stdout is not None, "it is piped"
        line = self._process.stdout.readline()
        if not line:
            raise OSError(f"a process of the bench ended with exit code {self._process.wait()}")
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise OSError(said["error"])
        return said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.kill()
        self.close()

    def close(self) -> None:
        """Let it end; kill it if it does not."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()

    def kill(self) -> None:
        """End it now."""
        self._process.kill()
        self._process.wait()


class Pair:
    """A client with its server."""

    def __init__(self, client: Child) -> None:
        self._client = client

    def do(self, work: str, **details: Any) -> Any:
        """Have the client do a work; return its figures. Raises OSError: a process ended."""
        self._client.tell({"work": work, "details": details})
        return self._client.hear()["answer"]

    def on_both(self, **call: Any) -> dict[str, Any]:
        """Have both sides do a call."""
        return {"server": self.do("remote", call=call), "client": self.do("call", call=call)}


_MODULE: Final = "urds.cli.rsocket.bench_works.child"


@contextmanager
def pair(
    way: str,
    *,
    is_counted: bool = False,
    processors: tuple[int, int] | None = None,
    polling_us: int | None = None,
) -> Iterator[Pair]:
    """Start both processes and connect them over one way.

    `processors` are those of client and server.
    """
    start: dict[str, Any] = {"way": way, "is_counted": is_counted, "polling_us": polling_us}
    places = processors or (None, None)
    with child(_MODULE, **start, processor=places[1], port=None) as server:
        port = server.hear()["port"]
        with child(_MODULE, **start, processor=places[0], port=port) as client:
            client.hear()
            yield Pair(client)


@contextmanager
def child(module: str, **start: Any) -> Iterator[Child]:
    """Start a process; let it end, or kill it where something went wrong."""
    with ExitStack() as stack:
        with processes.ctrl_c_held():
            one = stack.enter_context(Child(module, **start))
        yield one
