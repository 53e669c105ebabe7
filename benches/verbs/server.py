"""The other side of `benches.verbs`: a process that answers the requests of the bench.

It reads one JSON object per line from standard input and ends with it. The first line names the
device, or "tcp" and "unix" for plain sockets; the answer is where to connect.
"""

from __future__ import annotations

import json
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benches.verbs.ends import LAST, End, StreamEnd, accepted, listening
from urds import verbs
from urds.cli.child import run_child, start_line


def serve(end: End) -> None:
    """Follow the lines until standard input ends."""
    for line in sys.stdin:
        command = json.loads(line)
        end.prepare(command["size_bytes"])
        match command["work"]:
            case "ping-pong":
                first = end.receive()
                while first != LAST:
                    end.send()
                    first = end.receive()
                end.send(LAST)
            case "stream":
                while end.receive() != LAST:
                    pass
                end.send(LAST)
        end.flush()


def main() -> int:
    """Run one server."""
    kind = start_line()["device"]
    with ExitStack() as stack:
        if kind in ("tcp", "unix"):
            serve(StreamEnd(stack.enter_context(_accepted_socket(kind, stack))))
            return 0
        context = stack.enter_context(verbs.Context(kind))
        listener = stack.enter_context(listening(context))
        assert listener.local_addr is not None, "it listens"
        _tell(port=listener.local_addr[1])
        end = accepted(listener)
        _tell(rkey=end.place.rkey, address=end.place.buf)
        serve(end)
    return 0


def _accepted_socket(kind: str, stack: ExitStack) -> socket.socket:
    if kind == "unix":
        folder = stack.enter_context(TemporaryDirectory(prefix="urds-bench-"))
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        path = str(Path(folder) / "socket")
        listener.bind(path)
        where: dict[str, Any] = {"path": path}
    else:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        where = {"port": listener.getsockname()[1]}
    listener.listen()
    _tell(**where)
    return listener.accept()[0]


def _tell(**details: Any) -> None:
    print(json.dumps(details), flush=True)


if __name__ == "__main__":
    run_child(main)
