"""Processes that a command starts for its other side, with the very `urds` that runs here.

`own_server` runs a module with the options of the command as JSON. Its first line holds its
address. It ends when its client is done or does not come, or, where clients come and go, when its
standard input closes, which happens however the command ends.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import urds
from urds.cli.child import let_ctrl_c_in
from urds.cli.output import Exit, guarded

_END_S: Final = 10.0
_TIDY_S: Final = 2.0
CLIENT_WAIT_S: Final = 30.0


def environment(*folders: Path) -> dict[str, str]:
    """Return an environment in which a child finds this `urds`, and modules of other folders."""
    place = Path(urds.__file__).resolve().parents[1]
    others = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, (place, *folders)), *others])}


@contextmanager
def ctrl_c_held() -> Iterator[None]:
    """Hold Ctrl-C back in this thread, and in processes that it starts until they let it in.

    So it finds no process that nothing will end, and none that still loads its modules.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(
    module: str, *arguments: str, folders: Sequence[Path] = (), own_session: bool = False
) -> subprocess.Popen[str]:
    """Start a module of ours, with pipes for its input and output; Ctrl-C is to be held.

    In a session of its own the terminal's Ctrl-C does not reach it. What happens to the process
    from then on, `urds.cli.child` says.
    """
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(*folders),
        start_new_session=own_session,
    )  # fmt: skip


@contextmanager
def own_server(module: str, options: Any) -> Iterator[int]:
    """Start the server of a tool; yield its port. Raises OSError: it failed."""
    with ExitStack() as stack:
        with ctrl_c_held():
            server = start(module, json.dumps(asdict(options)))
            stack.callback(_end, server)
        assert server.stdin is not None and server.stdout is not None, "they are piped"
        ready = re.search(r"port\W+(\d+)", server.stdout.readline())
        if ready is None:
            raise OSError(f"the server did not start: exit code {server.wait(_END_S)}")
        yield int(ready[1])
        server.stdin.close()
        if server.wait(_END_S):
            raise OSError(f"the server ended with exit code {server.returncode}")


def _end(server: subprocess.Popen[str]) -> None:
    """Let it clean up as after Ctrl-C, which it may have had already; kill it if it does not."""
    if server.poll() is None:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(_TIDY_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    for pipe in (server.stdin, server.stdout):
        assert pipe is not None, "it is piped"
        pipe.close()


def tell_port(port: int, *, json_wanted: bool) -> None:
    """Print where this server listens."""
    print(json.dumps({"port": port}) if json_wanted else f"listening on port {port}", flush=True)


def is_abandoned() -> bool:
    """Tell whether the parent has closed the standard input of this server."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def serve_child(tool: str, options_type: type[Any], serve: Callable[..., None]) -> Exit:
    """Run the server of a tool with the options of the command line, as `own_server` starts it.

    `serve` gets the longest time to wait for a client: the parent may be gone.
    """
    # Tuples come back as lists; a record of options only reads them.
    options = options_type(**json.loads(sys.argv[1]))

    def run() -> Exit:
        let_ctrl_c_in()
        with suppress(ConnectionError):  # the client is the parent: it says what happened
            serve(options, wait_s=CLIENT_WAIT_S)
        return Exit.OK

    code = guarded(tool, run)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a parent that ends; this process does
    return code
