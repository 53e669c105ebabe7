"""A server that echoes and a client that sends: two processes, two hosts, one socket each.

The server needs no listen and no accept: one bound socket serves any number of clients, and the
reply goes to where the request came from.
"""

import errno
import multiprocessing
import time

import urds

SERVER = ("127.0.0.21", 7)
CLIENT = ("127.0.0.22", 0)  # port 0: any free one
REQUESTS = 1000


def serve() -> None:
    with urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET) as sock:
        sock.bind(SERVER)
        while True:
            request, client = sock.recvfrom(65536)
            try:
                sock.sendto(request.upper(), urds.MSG_DONTWAIT, client)
            except OSError as refused:
                # A client that reads nothing has no room left: it loses its answer, and the others
                # go on. A send that waits would wait for that client, and the server with it.
                if refused.errno not in (errno.EAGAIN, errno.ENOBUFS):
                    raise


def ask() -> None:
    with urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET) as sock:
        sock.bind(CLIENT)
        sock.connect(SERVER)  # a default destination; nothing is sent yet
        sock.settimeout(5)
        sock.send(b"hello")  # waits in the queue until the server is up
        print("reply:", sock.recv(65536).decode())

        started_s = time.perf_counter()
        for number in range(REQUESTS):
            sock.send(b"request %d" % number)
            reply = sock.recv(65536)
            assert reply == b"REQUEST %d" % number, reply
        elapsed_s = time.perf_counter() - started_s
        print(f"{REQUESTS} round trips, {elapsed_s / REQUESTS * 1e6:.0f} microseconds each")


def main() -> None:
    server = multiprocessing.get_context("spawn").Process(target=serve, daemon=True)
    server.start()
    ask()
    server.terminate()
    server.join()


if __name__ == "__main__":
    main()
