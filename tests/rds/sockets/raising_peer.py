"""A program that sends or receives numbers while a timer's handler raises; see the test of it."""

import contextlib
import json
import random
import select
import signal
import sys
import time

import urds
from urds.rds.constants import MSG_DONTWAIT

END = 1 << 62
ENDS, END_S = 20, 0.05
CALLS_PER_INTERVAL = 50
SHORTEST_S, LONGEST_S = 2e-5, 3e-2
PADS = (0, 0, 0, 50, 9000, 30_000)


class Interrupted(BaseException):
    """What the handler raises."""


class Guard:
    """Calls with a handler that raises; `raised` counts how often it did."""

    def __init__(self, seed: int) -> None:
        self.armed = False
        self.raised = 0
        self.calls = 0
        self.rng = random.Random(seed)
        signal.signal(signal.SIGALRM, self.handle)

    def handle(self, *_: object) -> None:
        if self.armed:
            self.raised += 1
            raise Interrupted

    def call(self, call, *arguments):
        """Return what a call gives, None if it was interrupted."""
        self.calls += 1
        if self.calls % CALLS_PER_INTERVAL == 1:
            interval_s = SHORTEST_S * (LONGEST_S / SHORTEST_S) ** self.rng.random()
            signal.setitimer(signal.ITIMER_REAL, interval_s, interval_s)
        try:
            self.armed = True
            result = call(*arguments)
            self.armed = False
        except Interrupted:
            self.armed = False  # before the next look for signals
            return None
        return result

    def end(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)


def send(sock: urds.Socket, target: tuple[str, int], raises: int, end_at: float) -> dict:
    """Send numbers; return how many, and those of which it is not known whether they left."""
    guard, number, uncertain = Guard(1), 0, []
    while guard.raised < raises and time.monotonic() < end_at:
        payload = number.to_bytes(8, "big") + bytes(guard.rng.choice(PADS))
        if guard.call(sock.sendto, payload, target) is None:
            uncertain.append(number)
        number += 1
    guard.end()
    for _ in range(ENDS):  # a receive that is interrupted may have taken one with it
        sock.sendto(END.to_bytes(8, "big"), target)
        time.sleep(END_S)
    return {"raised": guard.raised, "sent": number, "uncertain": uncertain}


def receive(sock: urds.Socket, polled: bool) -> dict:
    """Receive numbers until the last; return them."""
    guard, got = Guard(2), []

    def take() -> bytes:
        if polled:
            select.select([sock], [], [], 5)
            with contextlib.suppress(BlockingIOError):
                return sock.recvfrom(1 << 20, MSG_DONTWAIT)[0]
            return b""
        return sock.recvfrom(1 << 20)[0]

    patience = time.monotonic() + 20
    while not got or got[-1] != END:
        taken = guard.call(take)
        if taken:
            got.append(int.from_bytes(taken[:8], "big"))
            patience = time.monotonic() + 20
        elif time.monotonic() > patience:
            guard.end()
            raise TimeoutError(f"{len(got)} messages, then none for 20 s")
    guard.end()
    return {"raised": guard.raised, "got": got[:-1]}


def main(role: str, here: str, there: str, raises: str, seconds: str, polled: str) -> None:
    with urds.Socket() as sock:
        sock.bind((here, 4000))
        sock.settimeout(20)
        if polled == "True":
            sock.fileno()
        print("bound", flush=True)
        sys.stdin.readline()
        if role == "send":
            end_at = time.monotonic() + float(seconds)
            result = send(sock, (there, 4000), int(raises), end_at)
        else:
            result = receive(sock, polled == "True")
        print(json.dumps(result), flush=True)
        sys.stdin.readline()  # until both are done


if __name__ == "__main__":
    main(*sys.argv[1:])
