"""Remote Python: run the source that a test sends, answer with its value or its errno.

As process 1 of the guest it brings the machine up and serves each TCP connection in a child of its
own, so that one of them may block in a call while another goes on. With a descriptor as argument
it serves that one stream: so it is run on our side, inside the network namespace.

A request is one line, the literal `(source, names)`; the answer is one line, the literal
`("value", value)`, `("errno", number, text)` or `("failure", traceback)`. Literals, not JSON:
bytes and tuples survive. Standard library only, one file: this is all of us that the guest has.
"""

import ast
import errno
import os
import socket
import subprocess
import sys
import traceback
from typing import Any

GUEST_ADDRESS = "10.78.0.10"
AGENT_PORT = 7777
READY = "agent: ready"  # on the console, when the guest serves


def evaluate(source: str, names: dict[str, Any]) -> object:
    """Run `source` in `names`; return the value of its last expression, None without one."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<test>", "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), "<test>", "eval"), names)


def plain(value: object) -> object:
    """Return `value` as a literal can say it: enums as integers, views as bytes, others as text."""
    if value is None or isinstance(value, bool | float | str | bytes):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, tuple):
        return tuple(plain(part) for part in value)
    if isinstance(value, dict):
        return {plain(key): plain(part) for key, part in value.items()}
    return repr(value)


def answer(source: str, names: dict[str, Any]) -> tuple[object, ...]:
    """Run `source` and say what came of it."""
    try:
        return "value", plain(evaluate(source, names))
    except TimeoutError:  # Python's own, of settimeout(), has no errno
        return "errno", errno.ETIMEDOUT, traceback.format_exc()
    except OSError as error:
        return "errno", error.errno, traceback.format_exc()
    except Exception:  # whatever the test's code raises is the test's to judge
        return "failure", traceback.format_exc()


def serve(stream: socket.socket) -> None:
    """Answer requests until the other end closes."""
    names: dict[str, Any] = {"__name__": "remote"}
    with stream, stream.makefile("rw") as lines:
        for request in lines:
            source, given = ast.literal_eval(request)
            names.update(given)
            print(repr(answer(source, names)), file=lines, flush=True)


def bring_up() -> None:
    """Mount what programs expect, join the network, load RDS."""
    commands = (
        "mount -t tmpfs tmpfs /run",
        "mount -t tmpfs tmpfs /tmp",
        "ip link set lo up",
        "ip link set eth0 up",
        f"ip address add {GUEST_ADDRESS}/24 dev eth0",
        "modprobe rds_tcp",
    )
    for command in commands:
        subprocess.run(command.split(), check=True)


def serve_guest() -> None:
    """Serve each connection in a child, for ever, and reap as process 1 must."""
    listener = socket.create_server((GUEST_ADDRESS, AGENT_PORT))
    listener.settimeout(0.5)
    print(READY, flush=True)
    while True:
        try:
            stream, _ = listener.accept()
        except TimeoutError:
            reap()
            continue
        if os.fork() == 0:
            listener.close()
            stream.settimeout(None)
            serve(stream)
            os._exit(0)
        stream.close()


def reap() -> None:
    """Take the exit status of each child that has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(socket.socket(fileno=int(sys.argv[1])))
    else:
        bring_up()
        serve_guest()
