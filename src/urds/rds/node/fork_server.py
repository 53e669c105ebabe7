"""The process from which workers are forked: it has loaded the code and the configuration.

To begin as a new program costs a worker a fifth of a second, for which its sockets would have
nothing; to be forked from one that waits costs it some milliseconds. So this process has no
thread, no plane and no socket of a program, and does nothing but fork, and tell how forks ended. It
was started by exec: an upgrade starts another one, which loads what is new.
"""

from __future__ import annotations

import gc
import os
import select
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from urds.rds.node.channel import Channel
from urds.rds.node.plan import EXIT_FAILED, EXIT_OK


class ForkServer:
    """Forks workers for the supervisor at the other end of `channel`, until that is gone.

    `serve` is called in each fork, with the descriptor of that worker's channel; what it returns is
    the exit code.
    """

    def __init__(self, channel: Channel, serve: Callable[[int], int]) -> None:
        self._channel = channel
        self._serve = serve
        self._workers: dict[int, int] = {}  # by the descriptor that tells of the end

    def run(self) -> int:
        """Fork on request; return the exit code."""
        gc.collect()
        gc.freeze()  # the collector writes into no page that forks share
        self._channel.send("ready")
        while True:
            poll = select.poll()
            for descriptor in (self._channel.fileno(), *self._workers):
                poll.register(descriptor, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll()}
            for watch in ready & self._workers.keys():  # before the next fork is asked for
                self._tell_end(watch)
            if self._channel.fileno() in ready and not self._hear():
                return EXIT_OK

    def _hear(self) -> bool:
        """Take a request; false if the supervisor is gone."""
        try:
            found = self._channel.receive()
        except EOFError:
            return False
        if found is not None and found[0]["what"] == "fork":
            self._fork(found[1][0])
        return True

    def _fork(self, descriptor: int) -> None:
        try:
            worker = os.fork()
        except OSError as failure:  # too many processes
            os.close(descriptor)
            self._channel.send("unforked", reason=str(failure))
            return
        if not worker:
            self._become_worker(descriptor)
        os.close(descriptor)
        watch = os.pidfd_open(worker)
        self._workers[watch] = worker
        self._channel.send("forked", [watch], worker=worker)

    def _become_worker(self, descriptor: int) -> NoReturn:
        code = EXIT_FAILED
        try:
            gc.unfreeze()
            self._channel.close()
            for watch in self._workers:
                os.close(watch)
            code = self._serve(descriptor)
        finally:  # whatever was raised: nothing of the server may run here
            if sys.exc_info()[0] is not None:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(code)  # what the interpreter still had is of no use

    def _tell_end(self, watch: int) -> None:
        worker = self._workers.pop(watch)
        os.close(watch)
        _, status = os.waitpid(worker, 0)
        self._channel.send("ended", worker=worker, status=os.waitstatus_to_exitcode(status))
