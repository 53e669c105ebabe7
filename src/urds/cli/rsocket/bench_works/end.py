"""One end of `urds rsocket bench`: what client and server do with their connected socket.

The client leads. Each work begins with a header of 16 bytes that describes it, so that both ends
run plain loops of one size; a call carries JSON and is answered with JSON: samples of a process's
use of resources, and probes that count or time more closely for a while.
"""

from __future__ import annotations

import json
import resource
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import fields
from enum import IntEnum
from struct import Struct
from typing import Any, Final

from urds.cli.rsocket.bench_works.probes import Probe, costs, probe_of
from urds.cli.rsocket.sockets import AnySocket, new_memory
from urds.rsocket.core.stream.records import StreamStats

SIZE_MAX: Final = 16 << 20
_BULK_BYTES: Final = 256 << 10  # a receive takes what is there, up to so much, for small messages
_WHOLE_BYTES_MIN: Final = 64 << 10  # from here on a receive waits for one whole message
_STALLED_S: Final = 120  # one work takes far less; then the process ends by SIGALRM
_HEADER: Final = Struct(">BxHIQ")  # work, nothing, bytes of the answer, bytes, how many
_FIRST_COUNT: Final = 4
_COUNT_MAX: Final = 2_000_000
_ROUNDS: Final = 5


class Work(IntEnum):
    """What comes after a header."""

    ROUND_TRIPS = 1
    STREAM = 2
    CALL = 3


Numbers = dict[str, float]


class End:
    """A connected socket of either side."""

    def __init__(self, sock: AnySocket, *, is_kernel: bool) -> None:
        self._sock = sock
        sock.setblocking(True)  # no timeout: with one, Python itself waits, and not for all
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._out = memoryview(bytearray(SIZE_MAX))
        self._in = new_memory(SIZE_MAX, is_kernel=is_kernel)
        self._out[:] = bytes(range(256)) * (SIZE_MAX // 256)  # written memory: no zero page
        self._in[:] = self._out
        self._probe: Probe | None = None

    # -- the server

    def serve(self) -> None:
        """Do what headers ask for, until the client leaves."""
        header = memoryview(bytearray(_HEADER.size))
        while self._filled(header):
            signal.alarm(_STALLED_S)
            work, answer_bytes, size_bytes, count = _HEADER.unpack(header)
            if work == Work.ROUND_TRIPS:
                self._answer(size_bytes, answer_bytes, count)
            elif work == Work.STREAM:
                self._take(size_bytes, count)
                self._sock.sendall(self._out[:1])
            else:
                self._filled(self._in[:size_bytes])
                reply = json.dumps(self.call(json.loads(bytes(self._in[:size_bytes])))).encode()
                self._sock.sendall(_HEADER.pack(Work.CALL, 0, len(reply), 1) + reply)

    def _answer(self, request_bytes: int, answer_bytes: int, count: int) -> None:
        place, answer = self._in[:request_bytes], self._out[:answer_bytes]
        receive, send = self._sock.recv_into, self._sock.sendall
        for _ in range(count):
            if receive(place, 0, socket.MSG_WAITALL) != request_bytes:
                raise ConnectionError("the client left in the middle of a request")
            send(answer)

    def _take(self, size_bytes: int, count: int) -> None:
        receive = self._sock.recv_into
        if size_bytes >= _WHOLE_BYTES_MIN:
            place = self._in[:size_bytes]
            for _ in range(count):
                if receive(place, 0, socket.MSG_WAITALL) != size_bytes:
                    raise ConnectionError("the client left in the middle of a message")
            return
        left_bytes, place = size_bytes * count, self._in[:_BULK_BYTES]
        while left_bytes:
            taken = receive(place if left_bytes >= _BULK_BYTES else place[:left_bytes])
            if not taken:
                raise ConnectionError("the client left in the middle of a message")
            left_bytes -= taken

    # -- the client

    def round_trips(self, *, request_bytes: int, answer_bytes: int, seconds: float) -> Numbers:
        """Ask and get answers for about so long; return rate and times in microseconds."""
        self._ask(request_bytes, answer_bytes, 2 * _FIRST_COUNT)
        first_s = sum(self._ask(request_bytes, answer_bytes, 8 * _FIRST_COUNT))
        count = _count(8 * _FIRST_COUNT, first_s, seconds)
        start_s = time.perf_counter()
        times_s = self._ask(request_bytes, answer_bytes, count)
        spent_s = time.perf_counter() - start_s
        times_s.sort()
        return {
            "count": count,
            "seconds": spent_s,
            "per_s": count / spent_s,
            "lowest_decile_us": times_s[count // 10] * 1e6,
            "median_us": times_s[count // 2] * 1e6,
            "p99_us": times_s[count * 99 // 100] * 1e6,
        }

    def _ask(self, request_bytes: int, answer_bytes: int, count: int) -> list[float]:
        request, place = self._out[:request_bytes], self._in[:answer_bytes]
        receive, send, clock_s = self._sock.recv_into, self._sock.sendall, time.perf_counter
        send(_HEADER.pack(Work.ROUND_TRIPS, answer_bytes, request_bytes, count))
        times_s = []
        for _ in range(count):
            start_s = clock_s()
            send(request)
            if receive(place, 0, socket.MSG_WAITALL) != answer_bytes:
                raise ConnectionError("the server left in the middle of an answer")
            times_s.append(clock_s() - start_s)
        return times_s

    def stream(self, *, size_bytes: int, seconds: float) -> Numbers:
        """Send messages for about so long, in rounds; return the median round's rate.

        What either side spends belongs to all rounds together: `count`, `seconds` and the
        differences of the samples around them.
        """
        count, spent_s = _FIRST_COUNT, self._least_of_rounds(size_bytes, _FIRST_COUNT)
        while spent_s < seconds / 10 and count < _COUNT_MAX:
            count = _count(count, spent_s, seconds / 5)
            spent_s = self._least_of_rounds(size_bytes, count)
        count = _count(count, spent_s, seconds / _ROUNDS)
        before, before_there = self.sample(), self.remote({"call": "sample"})
        rounds_s = sorted(self.send_round(size_bytes, count) for _ in range(_ROUNDS))
        after, after_there = self.sample(), self.remote({"call": "sample"})
        data = float(count * size_bytes)
        return {
            "count": _ROUNDS * count,
            "seconds": sum(rounds_s),
            "gb_per_s": data * 8 / rounds_s[_ROUNDS // 2] / 1e9,
            "gb_per_s_min": data * 8 / rounds_s[-1] / 1e9,
            "gb_per_s_max": data * 8 / rounds_s[0] / 1e9,
            **_differences("client", before, after),
            **_differences("server", before_there, after_there),
        }

    def _least_of_rounds(self, size_bytes: int, count: int) -> float:
        """Return the seconds of the faster of two rounds: one slow start decides no count."""
        return min(self.send_round(size_bytes, count) for _ in range(2))

    def send_round(self, size_bytes: int, count: int) -> float:
        """Send so many messages; return the seconds until the server has them all."""
        data, send = self._out[:size_bytes], self._sock.sendall
        start_s = time.perf_counter()
        send(_HEADER.pack(Work.STREAM, 0, size_bytes, count))
        for _ in range(count):
            send(data)
        if not self._filled(self._in[:1]):
            raise ConnectionError("the server left before it had everything")
        return time.perf_counter() - start_s

    # -- calls

    def do(self, work: str, details: dict[str, Any]) -> Any:
        """Do a work of the client by its name; return its figures."""
        signal.alarm(_STALLED_S)
        works: dict[str, Callable[..., Any]] = {
            "round_trips": self.round_trips,
            "stream": self.stream,
            "send_round": self.send_round,
            "remote": self.remote,
            "call": self.call,
        }
        return works[work](**details)

    def remote(self, call: dict[str, Any]) -> Any:
        """Have the other side do a call; return its answer."""
        data = json.dumps(call).encode()
        self._sock.sendall(_HEADER.pack(Work.CALL, 0, len(data), 1) + data)
        header = memoryview(bytearray(_HEADER.size))
        if not self._filled(header):
            raise ConnectionError("the server left in the middle of a call")
        place = memoryview(bytearray(_HEADER.unpack(header)[2]))
        self._filled(place)
        return json.loads(bytes(place))

    def call(self, call: dict[str, Any]) -> Any:
        """Do a call of either side: `sample`, `start` a probe, `stop` it, or measure `costs`."""
        if call["call"] == "sample":
            return self.sample()
        if call["call"] == "start":
            self._probe = probe_of(call["probe"])
            self._probe.start()
            return None
        if call["call"] == "costs":
            return costs(call["bytes"])
        assert self._probe is not None, "started before"
        self._probe.stop()
        return self._probe.found()

    def sample(self) -> Numbers:
        """Return what this process has spent and counted so far."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        found: Numbers = {
            "user_s": usage.ru_utime,
            "system_s": usage.ru_stime,
            "sleeps": usage.ru_nvcsw,
            "preemptions": usage.ru_nivcsw,
            "buffer_bytes_in": self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
            "buffer_bytes_out": self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
        }
        stats = getattr(self._sock, "stats", None)
        if stats is not None:
            found |= {one.name: getattr(stats, one.name) for one in fields(StreamStats)}
        return found | _of_device(self._sock)

    def _filled(self, place: memoryview) -> bool:
        """Fill all of it; false if the stream ended before the first byte."""
        taken = 0
        while taken < len(place):
            count = self._sock.recv_into(place[taken:], 0, socket.MSG_WAITALL)
            if not count:
                if taken:
                    raise ConnectionError("the other side left in the middle of a message")
                return False
            taken += count
        return True


def _of_device(sock: AnySocket) -> Numbers:
    """Return the counters of the device; not all have them all."""
    link = getattr(sock, "link", None)
    adapter = getattr(getattr(link, "context", None), "adapter", None)
    if adapter is None:
        return {}
    found: Numbers = {}
    if hasattr(adapter, "costs"):  # of a compiled engine; probes see those of Python's
        found |= {f"engine_{name}": value for name, value in adapter.costs().items()}
    if hasattr(adapter, "channel_counters"):
        found["doorbells_rung"] = adapter.channel_counters().doorbells_rung
    return found


def _count(count: int, spent_s: float, wanted_s: float) -> int:
    return max(1, min(_COUNT_MAX, int(count * wanted_s / spent_s) + 1))


def _differences(side: str, before: Numbers, after: Numbers) -> Numbers:
    return {
        f"{side}_{name}": value if name.startswith("buffer") else value - before.get(name, 0)
        for name, value in after.items()
    }
