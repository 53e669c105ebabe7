"""The other process of the tests of sockets: `python -m tests.rsocket.socket_peer WORD HOST`.

Prints its address as `host port`, then does what the word says with one connection after another.
"""

import socket
import sys
import time

from tests.support.places import family_of
from urds.rsocket import create_server
from urds.rsocket.socket import Socket


def echo(one: Socket) -> None:
    """Send back what comes, until the end."""
    while data := one.recv(1 << 16):
        one.sendall(data)


def count(one: Socket) -> None:
    """Take everything, then say how much it was."""
    taken = 0
    while data := one.recv(1 << 20):
        taken += len(data)
    one.sendall(b"%d" % taken)


def sleep(one: Socket) -> None:
    """Read nothing and say nothing."""
    one.sendall(b"asleep")
    time.sleep(60)


def leave(one: Socket) -> None:
    """Send and end the process without closing anything."""
    one.sendall(b"x" * 100_000)
    sys.exit(0)


def main() -> None:
    act = {"echo": echo, "count": count, "sleep": sleep, "leave": leave}[sys.argv[1]]
    with create_server((sys.argv[2], 0), family=family_of(sys.argv[2])) as listener:
        host, port = listener.getsockname()[:2]
        print(host, port, flush=True)
        while True:
            accepted, _ = listener.accept()
            try:
                act(accepted)
            except OSError as error:
                print(error, file=sys.stderr)
            if act is not leave:
                accepted.close()


if __name__ == "__main__":
    socket.setdefaulttimeout(60)
    main()
