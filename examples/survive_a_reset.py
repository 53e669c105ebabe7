"""A connection is reset again and again, and no message is lost, doubled or reordered.

The receiver is a process of its own, and shared memory is turned off, so there is real TCP between
the two. A call that exists for tests makes the resets on purpose; a broken switch or a strict
firewall causes the same.
"""

import multiprocessing
import threading
from collections.abc import Callable

import urds
from urds.rds.runtime import process as backend
from urds.rds.runtime.inprocess import InProcess

SENDER = ("127.0.0.31", 4000)
RECEIVER = ("127.0.0.32", 4001)
MESSAGES = 50_000
RESET_EVERY_S = 0.01


def receive() -> None:
    urds.configure(shared_memory=False)
    with urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET) as sock:
        sock.bind(RECEIVER)
        for expected in range(MESSAGES):
            payload, sender = sock.recvfrom(100)
            assert int(payload) == expected, f"{payload!r} came, {expected} was due"
        sock.sendto(b"all there, in order", sender)


def cut(is_over: Callable[[float], bool], resets: list[int]) -> None:
    """Reset this process's TCP connections until it is over."""
    place = backend.current()
    assert isinstance(place, InProcess)
    while not is_over(RESET_EVERY_S):
        resets.append(place.break_connections())


def main() -> None:
    receiver = multiprocessing.get_context("spawn").Process(target=receive, daemon=True)
    receiver.start()
    urds.configure(shared_memory=False)
    with urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET) as sock:
        sock.bind(SENDER)
        sock.settimeout(9)
        over, resets = threading.Event(), list[int]()
        threading.Thread(target=cut, args=(over.wait, resets), daemon=True).start()
        for number in range(MESSAGES):
            sock.sendto(b"%-100d" % number, RECEIVER)  # waits while the queue is full
        verdict, _ = sock.recvfrom(100)
        over.set()
    print(f"{MESSAGES} messages, {sum(resets)} resets: {verdict.decode()}")
    receiver.join(5)
    assert receiver.exitcode == 0
    assert any(resets), "the connection was never reset"


if __name__ == "__main__":
    main()
