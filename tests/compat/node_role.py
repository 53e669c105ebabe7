"""Programs at a node, for compatibility runs: the public API of `urds` alone.

    python node_role.py hold 127.93.0.2      queue messages, and read them after a line of input
    python node_role.py try 127.93.0.4       make a socket, bind it, send it one message, receive it
    python node_role.py plain 127.93.0.4     the same by the standard library's sockets

Answers go to standard output, one JSON object a line: `held`, `whole`, `works`, or `error` with
errno and text of an OSError.
"""

import json
import socket
import sys

PORT = 4000
MESSAGES = 200
WAIT_S = 15.0
AF_RDS = 21


def say(**fields: object) -> None:
    """Answer the runner."""
    print(json.dumps(fields), flush=True)


def bound(address: str, port: int, *, is_plain: bool = False) -> socket.socket:
    """Return a socket. Raises OSError."""
    if is_plain:
        made = socket.socket(AF_RDS, socket.SOCK_SEQPACKET)
    else:
        import urds

        made = urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET)
    made.bind((address, port))
    made.settimeout(WAIT_S)
    return made


def hold(address: str) -> None:
    """Have messages queued while others do what they do. Raises OSError."""
    source, target = bound(address, PORT), bound(address, PORT + 1)
    for number in range(MESSAGES):
        source.sendto(b"%d" % number, (address, PORT + 1))
    say(said="held")
    sys.stdin.readline()
    for number in range(MESSAGES):
        if (data := target.recv(100)) != b"%d" % number:
            raise OSError(0, f"message {number} is {data!r}")
    source.sendto(b"after", (address, PORT + 1))
    if target.recv(100) != b"after":
        raise OSError(0, "the sockets do not go on")
    target.settimeout(0.1)
    try:
        raise OSError(0, f"one too many: {target.recv(100)!r}")
    except TimeoutError:
        say(said="whole")


def once(address: str, *, is_plain: bool) -> None:
    """Use each request that a message needs. Raises OSError."""
    with bound(address, PORT, is_plain=is_plain) as sock:
        sock.sendto(b"one", (address, PORT))
        if sock.recv(100) != b"one":
            raise OSError(0, "another message")
    say(said="works")


def main() -> int:
    """Do it; return the exit code."""
    what, address = sys.argv[1:]
    try:
        if what == "hold":
            hold(address)
        else:
            once(address, is_plain=what == "plain")
    except OSError as error:
        say(said="error", errno=error.errno, text=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
