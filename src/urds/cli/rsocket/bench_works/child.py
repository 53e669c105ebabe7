"""A process of `urds rsocket bench`: one end, over one transport, counted from the beginning.

The first line of standard input configures it; a server answers with its port, a client then does
one work per line and answers each with a line. Both are JSON objects.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from urds.cli.child import run_child, start_line


def main() -> int:
    """Run one end."""
    start = start_line()
    if start["is_counted"]:  # before any lock is made, and any module keeps a clock of its own
        from urds.cli.rsocket.bench_works.probes import count_locks_and_clocks

        count_locks_and_clocks()
    if start["processor"] is not None:
        os.sched_setaffinity(0, {start["processor"]})
    try:
        if start["polling_us"] is not None:
            _poll_for(start["polling_us"])
        if start["port"] is None:
            _serve(start["way"])
        else:
            _measure(start["way"], start["port"])
    except OSError as failure:
        _tell({"error": f"{start['way']}: {failure}"})
        return 1
    return 0


def _poll_for(polling_us: int) -> None:
    """Have rsockets of this process ask for so long before they sleep."""
    from urds.rsocket import settings

    with TemporaryDirectory() as directory:
        Path(directory, "polling_time").write_text(str(polling_us), "ascii")
        settings.configure(directory=directory)


def _serve(way: str) -> None:
    from urds.cli.rsocket.bench_works.end import End
    from urds.cli.rsocket.sockets import KERNEL, LOOPBACK, listening

    sock = _new_socket(way)
    with listening(sock, (LOOPBACK, 0)):
        _tell({"port": sock.getsockname()[1]})
        with sock.accept()[0] as accepted:
            End(accepted, is_kernel=way == KERNEL).serve()


def _measure(way: str, port: int) -> None:
    from urds.cli.rsocket.bench_works.end import End
    from urds.cli.rsocket.sockets import KERNEL, LOOPBACK

    with _new_socket(way) as sock:
        sock.connect((LOOPBACK, port))
        end = End(sock, is_kernel=way == KERNEL)
        _tell({"port": port})
        for line in sys.stdin:
            command = json.loads(line)
            _tell({"answer": end.do(command["work"], command["details"])})


def _new_socket(way: str) -> Any:
    from urds.cli.rsocket.sockets import KERNEL, choose_devices, new_socket

    choose_devices(() if way == KERNEL else (way,))
    return new_socket(is_kernel=way == KERNEL)


def _tell(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    run_child(main)
