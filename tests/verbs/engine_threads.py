"""Programs that would hang a process if a lock of the compiled verbs engine were held too long.

`python -m tests.verbs.engine_threads NAME` returns 0 if it came to its end. A thread that waits for
a lock of the engine keeps the interpreter, so no test could end it: each is a process of its own.
"""

import errno
import gc
import random
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from tests.verbs.test_shm_engine import Side, joined
from urds.verbs.engine.numbers import QPType, WCStatus, WROpcode
from urds.verbs.engine.queue_pair import QPCap
from urds.verbs.engine.work import RecvWR, SendWR

ROUNDS: Final = 300
THREADS: Final = 4
REFUSED: Final = (errno.EINVAL, errno.ENOMEM)  # closed or not connected; full


class Cycle:
    """Garbage that only a collection finds, and whose end closes a queue pair."""

    ended = 0

    def __init__(self, side: Side, qpn: int) -> None:
        self.me = self
        self.qp = queue_pair(side, qpn)

    def __del__(self) -> None:
        self.qp.close()
        Cycle.ended += 1


def queue_pair(side: Side, qpn: int) -> Any:
    """Return one more queue pair of a side."""
    cq = side.engine.completion_queue(16)
    return side.engine.queue_pair(
        qpn=qpn, kind=QPType.RC, pd=object(), send_cq=cq, recv_cq=cq, cap=QPCap(4, 4, 1, 1, 16)
    )


def collections() -> None:
    """Post and poll while collections run at every chance and close queue pairs."""
    with joined() as (first, second):
        gc.collect()
        gc.set_threshold(1, 1, 1)
        for number in range(ROUNDS):
            for side in (first, second):
                Cycle(side, 100 + number)
            second.qp.post_recv(RecvWR(number, [second.piece(100, 64)]))
            first.qp.post_send(SendWR(number, WROpcode.SEND, [first.piece(0, 5)]))
            for side in (second, first):
                found: list[Any] = []
                while not found:
                    found = side.cq.poll(4)
                    first.engine.progress()
                    second.engine.progress()
                assert [wc.status for wc in found] == [WCStatus.SUCCESS]
        gc.set_threshold(700, 10, 10)
        gc.collect()
    assert Cycle.ended == 2 * ROUNDS


def races() -> None:
    """Post, poll and look from several threads while queue pairs are made and closed.

    A call on a queue pair that is closed meanwhile is refused, and nothing else happens.
    """
    with joined() as (first, second):
        over = threading.Event()
        shared: list[Any] = [queue_pair(first, 200), first.qp]
        refused, seen = [0], list[Any]()
        failures: list[BaseException] = []

        def post(seed: int) -> None:
            rng = random.Random(seed)
            while not over.is_set():
                qp = rng.choice(shared)
                try:
                    if rng.random() < 0.5:
                        qp.post_send(SendWR(1, WROpcode.SEND, [first.piece(0, 5)]))
                    else:
                        qp.post_recv(RecvWR(1, [first.piece(0, 64)]))
                except OSError as error:
                    if error.errno not in REFUSED:
                        raise
                    refused[0] += 1

        def poll(_: int) -> None:
            while not over.is_set():
                first.cq.poll(8)
                first.engine.progress()
                with suppress(OSError):
                    second.qp.post_recv(RecvWR(1, [second.piece(0, 64)]))
                second.cq.poll(8)
                seen.append((shared[0].state, shared[0].outstanding_requests, len(first.cq)))
                seen.clear()

        def guarded(work: Callable[[int], None], seed: int) -> None:
            try:
                work(seed)
            except BaseException as error:
                failures.append(error)
                over.set()

        threads = [
            threading.Thread(target=guarded, args=(work, seed))
            for work in (post, poll)
            for seed in range(THREADS // 2)
        ]
        for thread in threads:
            thread.start()
        for number in range(ROUNDS):
            old, shared[0] = shared[0], queue_pair(first, 300 + number)
            old.close()
            first.engine.arm_doorbell()
            first.engine.disarm_doorbell()
        over.set()
        for thread in threads:
            thread.join()
        assert not failures, failures
        assert refused[0]


PROGRAMS: Final = {"collections": collections, "races": races}


if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
