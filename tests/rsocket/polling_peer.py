"""A process that connects and does what it is told: to be killed, or to end in order.

Usage: python -m tests.rsocket.polling_peer PORT. It prints a line when it is connected, sends one
byte, and then waits for a line: "close" ends the socket in order.
"""

import sys

from urds.rsocket.socket import Socket


def main() -> None:
    """Be the peer."""
    socket = Socket()
    socket.settimeout(20)
    socket.connect(("127.0.0.1", int(sys.argv[1])))
    socket.sendall(b"x")
    print("connected", flush=True)
    sys.stdin.readline()
    socket.close()


if __name__ == "__main__":
    main()
