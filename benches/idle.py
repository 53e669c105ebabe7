"""A process that holds idle objects and measures how much memory they take.

It does one named thing after the other, on the parent's orders, and answers each with a number.
"""

import ctypes
import gc
import multiprocessing
import resource
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pair import uninterrupted
from peers.ours import Urds
from peers.rds import PORT

COUNT = 1000
WARM_UP = 8  # of them come first, bring in code and tables, and are not counted
_HOSTS_PER_BYTE = 250
# Third bytes. The lower address connects: a thousand call-back requests at once would be pending
# connections, and of those an address admits 64.
_HOLDER_ROW, _HOSTS_ROW = 63, 64
_HOLDER_HOST = 10
_SETTLE_S = 0.2  # for acknowledgements on their way, and the buffers that hold them
# For idle shm streams, which free their rings at the third of their checks, a second apart.
_REST_S = 4.0
_END_WAIT_S = 2.0


class LateError(Exception):
    """A process did not answer; the text is for the table."""


class Side:
    """The parent's hold on such a process; a context manager that leaves none behind."""

    def __init__(self, *, limit_s: float, ours: type[Urds] = Urds) -> None:
        context = multiprocessing.get_context("spawn")
        self._limit_s = limit_s
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_serve, args=(theirs, ours), daemon=True
        )
        with uninterrupted():
            self._process.start()
        theirs.close()

    def ask(self, what: str, start: int = 0, stop: int = 0) -> float:
        """Have it do `what`, with those of `start` to `stop`.

        Raises LateError if the process ends, fails, or does not answer in time.
        """
        try:
            self._pipe.send((what, start, stop))
            if not self._pipe.poll(self._limit_s):
                raise LateError(f"cut after {self._limit_s:g} s")
            answer = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise LateError("a process ended, see its message above") from None
        if isinstance(answer, OSError):
            raise LateError(f"failed: {answer}")
        return float(answer)

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(_END_WAIT_S)  # at the end of its pipe it ends by itself
        self._process.kill()
        self._process.join(_END_WAIT_S)


class _Holder:
    """Sockets of `urds`, and how much memory there was at the mark."""

    def __init__(self, ours: type[Urds]) -> None:
        self._ours = ours
        self._sockets: list[Any] = []
        self._bound_ns: list[int] = []
        self._marked_bytes = 0
        prefix = ours(0).network().rpartition(".")[0]
        places = (divmod(index, _HOSTS_PER_BYTE) for index in range(COUNT + WARM_UP))
        hosts = (f"{prefix}.{_HOSTS_ROW + host_row}.{host + 1}" for host_row, host in places)
        self._hosts = [(host, PORT) for host in hosts]
        self._own_host = f"{prefix}.{_HOLDER_ROW}.{_HOLDER_HOST}"

    def _bind(self, local: tuple[str, int]) -> None:
        peer = self._ours(0)
        start_ns = time.perf_counter_ns()
        bound = peer.new_socket()
        bound.bind(local)
        self._bound_ns.append(time.perf_counter_ns() - start_ns)
        self._sockets.append(bound)

    def bind_ns(self, start: int, stop: int) -> float:
        """Return the time in which so many percent of the sockets since the mark were made."""
        times_ns = sorted(self._bound_ns)
        return float(times_ns[min(len(times_ns) - 1, len(times_ns) * start // 100)])

    def mark(self, start: int, stop: int) -> None:
        """Remember how much memory there is."""
        self._marked_bytes = _resident_bytes()
        self._bound_ns.clear()

    def look(self, start: int, stop: int) -> float:
        """Return the growth since the mark, for each of them."""
        time.sleep(_SETTLE_S)
        return (_resident_bytes() - self._marked_bytes) / (stop - start)

    def rest(self, start: int, stop: int) -> None:
        """Leave everything idle for a while."""
        time.sleep(_REST_S)

    def shm_streams(self, start: int, stop: int) -> float:
        """Return how many shm streams this process has."""
        return Path("/proc/self/maps").read_text(encoding="utf-8").count("urds-shm")

    def host(self, start: int, stop: int) -> None:
        """Bind a socket at each of these addresses."""
        for local in self._hosts[start:stop]:
            self._bind(local)

    def bind(self, start: int, stop: int) -> None:
        """Bind sockets to ports of one address."""
        for index in range(start, stop):
            self._bind((self._own_host, PORT + index))

    def poll(self, start: int, stop: int) -> None:
        """Make the descriptors of these sockets."""
        for one in self._sockets[start:stop]:
            one.fileno()

    def send(self, start: int, stop: int) -> None:
        """Send a message to each of these addresses, from the first socket."""
        for target in self._hosts[start:stop]:
            self._sockets[0].sendto(b"?", target)

    def answer(self, start: int, stop: int) -> None:
        """Answer a message on each of these sockets."""
        for one in self._sockets[start:stop]:
            body, source = one.recvfrom(1)
            one.sendto(body, source)

    def collect(self, start: int, stop: int) -> None:
        """Receive an answer of each, on the first socket."""
        for _ in range(start, stop):
            self._sockets[0].recvfrom(1)


def _serve(pipe: Connection, ours: type[Urds]) -> None:
    """Follow orders until the parent's end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its sides
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    holder = _Holder(ours)
    actions: dict[str, Callable[[int, int], float | None]] = {
        name: getattr(holder, name)
        for name in (
            "mark",
            "look",
            "rest",
            "shm_streams",
            "host",
            "bind",
            "bind_ns",
            "poll",
            "send",
            "answer",
            "collect",
        )
    }
    try:
        while True:
            what, start, stop = pipe.recv()
            pipe.send(actions[what](start, stop) or 0.0)
    except (EOFError, ConnectionError):
        return
    except OSError as error:
        pipe.send(OSError(str(error)))


def _resident_bytes() -> int:
    """Return the resident set, after garbage and unused memory have been returned."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()
