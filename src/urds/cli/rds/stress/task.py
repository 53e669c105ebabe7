"""One task: a socket, the state of its pairs, and the loop in which it receives and sends.

Any error that is not a full queue or a congested peer ends the run. One thread runs a task and
counts; the thread that prints reads its counts without a lock: a line may be off by the message
that is being counted.
Source: rds-tools 2.0.7 rds-stress.c; docs/reference/rds.md 5.6.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, field, replace
from functools import reduce
from ipaddress import IPv4Address
from operator import add, sub
from struct import Struct
from typing import Any, Final, Self

import urds
from urds.cli.output import complain
from urds.cli.rds.stress.rdma import (
    FIRST_SEQUENCE,
    Ancillary,
    KeyMeter,
    Memory,
    PairRdma,
    cookie_of,
    ended_operations,
)
from urds.cli.rds.stress.wire import (
    NO_RDMA,
    Operation,
    Pair,
    Parameters,
    Rdma,
    RdmaPart,
    StressError,
)

BUCKETS: Final = 16  # of round trips by powers of two of microseconds; the last has the rest
_NS_PER_USEC: Final = 1000
_CONTROL_BYTES: Final = 256
_RECEIVED_MAX: Final = 256  # of one pass: then it is time to send
_GATHER_BYTES_MIN: Final = 8192  # from here on a payload goes by reference
_WAIT_S: Final = 0.1
_PAUSE_S: Final = 0.001
_ENDING_S: Final = 1.0
_DONTWAIT: Final = int(urds.MSG_DONTWAIT)
_MASK: Final = Struct("=Q")


@dataclass(slots=True)
class Counters:
    """Counts of one task, or sums and differences of some."""

    requests_sent: int = 0
    requests_received: int = 0
    acks_sent: int = 0
    acks_received: int = 0
    rdma_in: int = 0  # operations of either side that brought bytes here
    rdma_out: int = 0
    sending_ns: int = 0  # in the calls that sent requests
    round_trips_ns: int = 0  # from request to ack
    buckets: list[int] = field(default_factory=lambda: [0] * BUCKETS)

    def add_round_trip(self, round_trip_ns: int) -> None:
        """Count an ack and its time."""
        self.acks_received += 1
        self.round_trips_ns += round_trip_ns
        usec = round_trip_ns // _NS_PER_USEC
        self.buckets[min(max(usec.bit_length() - 1, 0), BUCKETS - 1)] += 1

    def minus(self, earlier: Self) -> Self:
        """Return what was counted since."""
        return self._with(sub, earlier)

    def plus(self, other: Self) -> Self:
        """Return the sum."""
        return self._with(add, other)

    def _with(self, operation: Callable[[int, int], int], other: Self) -> Self:
        (*one, buckets), (*two, others) = astuple(self), astuple(other)
        counts: list[Any] = list(map(operation, one, two))
        counts.append(list(map(operation, buckets, others)))
        return type(self)(*counts)


def total(all_counters: Iterable[Counters]) -> Counters:
    """Return the sum of the tasks."""
    return reduce(Counters.plus, all_counters, Counters())


class Task:
    """Task `number` of this side. As a context manager it closes its socket."""

    def __init__(
        self,
        parameters: Parameters,
        number: int,
        *,
        is_active: bool,
        outlier_usec: int | None = None,
    ) -> None:
        self.counted = Counters()
        self.meter = KeyMeter() if parameters.rdma_key_o_meter else None
        self._parameters = parameters
        self._requests = is_active or not parameters.simplex
        self._outlier_ns = None if outlier_usec is None else outlier_usec * 1000
        self._first_port = parameters.base_port + 1
        self._ours = (parameters.receive_address, self._first_port + number)
        self._peer_address = str(parameters.send_address)
        self._bytes_max = max(parameters.request_bytes, parameters.ack_bytes)
        self._gathers = self._bytes_max >= _GATHER_BYTES_MIN
        self.sock: Final = _bound_socket(parameters, self._ours)
        if not number and not parameters.suppress_warnings:
            _complain_of_buffers(self.sock, parameters.buffer_bytes)
        self._pairs = [
            Pair(parameters, ours=self._ours, peer=(parameters.send_address, port))
            for port in range(self._first_port, self._first_port + parameters.tasks)
        ]
        self._rdma: list[PairRdma] = []
        if parameters.rdma_bytes:
            memory = Memory(parameters)
            self._rdma = [
                PairRdma(parameters, self.sock, memory, pair, self.meter)
                for pair in range(parameters.tasks)
            ]

    def close(self) -> None:
        """Close the socket, without waiting for a peer that has stopped."""
        try:
            self.sock.cancel()
        finally:
            self.sock.close()

    def run(self, is_ending: threading.Event) -> None:
        """Receive and send until the run ends, then wait a little for what is under way.

        Raises StressError: something wrong was received. OSError: the socket fails.
        """
        while not is_ending.is_set():
            self._send_and_receive()
        self._requests = False
        for rdma in self._rdma:
            rdma.is_ending = True
        deadline_s = time.monotonic() + _ENDING_S
        # The peer ends too, and does not learn when; no traffic means that the run is over.
        while time.monotonic() < deadline_s and self._send_and_receive():
            pass

    def _send_and_receive(self) -> bool:
        """Send what may go, receive what is there; tell whether anything came."""
        if not self._send():
            return self._receive(wait=True)
        # A full queue; or no connection yet, of which POLLOUT would not tell.
        time.sleep(_PAUSE_S)
        self._receive(wait=False)
        return True

    # -- receiving

    def _receive(self, *, wait: bool) -> bool:
        """Take what is there; if nothing is, wait for a tenth of a second. Tell if anything came.

        A wait in the receive itself, not for the descriptor: so this thread reads the connections.
        """
        recvfrom, bytes_max = self.sock.recvfrom, self._bytes_max + 1
        ancillary: Ancillary = []
        flags = 0 if wait else _DONTWAIT
        for number in range(_RECEIVED_MAX):
            try:
                if self._rdma:
                    payload, ancillary, _, source = self.sock.recvmsg(
                        bytes_max, _CONTROL_BYTES, flags
                    )
                else:
                    payload, source = recvfrom(bytes_max, flags)
            except (BlockingIOError, TimeoutError):
                return number > 0
            flags = _DONTWAIT
            if payload:
                self._take(payload, source, ancillary)
            else:
                self._take_notices(ancillary)
        return True

    def _take(self, payload: bytes, source: Any, ancillary: Ancillary) -> None:
        number = source[1] - self._first_port
        if source[0] != self._peer_address or not 0 <= number < len(self._pairs):
            raise StressError(f"message from {source[0]}:{source[1]}, which is no task of the peer")
        pair = self._pairs[number]
        operation, index = pair.receive(payload)
        if operation is Operation.REQUEST:
            self.counted.requests_received += 1
            self._take_request(number, index, payload, cookie_of(ancillary))
            return
        round_trip_ns = time.perf_counter_ns() - pair.sent_ns[index]
        self.counted.add_round_trip(round_trip_ns)
        if self._outlier_ns is not None and round_trip_ns > self._outlier_ns:
            complain("urds stress", f"round trip of {round_trip_ns // 1000} us to port {source[1]}")
        if self._rdma:
            part = RdmaPart.parse(payload)
            if part.key:
                self._rdma[number].acknowledged(index, part)
                self._count_rdma(is_in=part.operation == Rdma.WRITE)

    def _take_request(self, number: int, index: int, payload: bytes, cookie: int) -> None:
        pair = self._pairs[number]
        if not self._rdma:
            return
        part = RdmaPart.parse(payload)
        if cookie:
            # The rest is of asynchronous sends.
            part = replace(part, key=cookie, retry=0, remote_error=0, pending=0)
        if part.key:
            self._rdma[number].asked(part)
        pair.asked[index] = part

    def _take_notices(self, ancillary: Ancillary) -> None:
        """Take notifications: of ended congestion, and of ended operations.

        Without RDMA the sender's groups are not requested: all are tried again, one call each.
        """
        for token, status in ended_operations(ancillary):
            number, index = divmod(token, self._parameters.depth)
            self._rdma[number].ended(index, status)
        for pair in self._pairs:
            pair.is_congested = False

    def _count_rdma(self, *, is_in: bool) -> None:
        self.counted.rdma_in += is_in
        self.counted.rdma_out += not is_in

    # -- sending

    def _send(self) -> bool:
        """Send what may go to each peer; tell whether the queue of the socket is full."""
        is_full = False
        for number, pair in enumerate(self._pairs):
            if pair.is_congested and self._parameters.use_congestion_monitor:
                continue
            try:
                self._send_to(number, pair)
            except BlockingIOError:
                return True
            except OSError as failure:
                if failure.errno != errno.ENOBUFS:
                    raise
                pair.is_congested = True
                is_full |= not self._parameters.use_congestion_monitor
        return is_full

    def _send_to(self, number: int, pair: Pair) -> None:
        """Send acks, then requests, until nothing more may go. Raises OSError."""
        while pair.unacked and self._send_ack(number, pair):
            pass
        while self._requests and pair.may_request:
            self._send_request(number, pair)

    def _send_ack(self, number: int, pair: Pair) -> bool:
        """Send an ack; False if an operation has to end before."""
        index = pair.ack_index
        if not self._rdma or not pair.asked[index].key:
            self._put(pair, pair.ack(), [])
        else:
            part, rdma = pair.asked[index], self._rdma[number]
            ancillary = rdma.operation(index, part)
            if ancillary is None:
                return False
            if rdma.is_to_fetch(index, part):
                self._put(pair, (b"", b""), ancillary)
                rdma.begun(index, part)
                return False
            self._put(pair, pair.ack(part.emit()), ancillary)
            if ancillary:
                rdma.begun(index, part)
            rdma.acked(index)
            self._count_rdma(is_in=part.operation == Rdma.READ)
        pair.acked()
        self.counted.acks_sent += 1
        return True

    def _send_request(self, number: int, pair: Pair) -> None:
        index = pair.send_index
        has_rdma = bool(self._rdma) and pair.send_sequence >= FIRST_SEQUENCE
        rdma = NO_RDMA
        ancillary: Ancillary = []
        if has_rdma:
            part, ancillary = self._rdma[number].request(index, pair.send_sequence)
            rdma = part.emit()
        started_ns = time.perf_counter_ns()
        self._put(pair, pair.request(rdma), ancillary)
        self.counted.sending_ns += time.perf_counter_ns() - started_ns
        self.counted.requests_sent += 1
        pair.requested(started_ns)
        if has_rdma:
            self._rdma[number].requested(index)

    def _put(self, pair: Pair, message: tuple[bytes, bytes], ancillary: Ancillary) -> None:
        if ancillary or self._gathers:
            self.sock.sendmsg(message, ancillary, _DONTWAIT, pair.peer)
        else:
            self.sock.sendto(message[0] + message[1], _DONTWAIT, pair.peer)
        if self._parameters.tracing and message[0]:
            word = "request" if message[0][18] == Operation.REQUEST else "ack"
            complain("urds stress", f"{word} {pair.send_sequence} to {pair.peer[0]}:{pair.peer[1]}")


def _bound_socket(parameters: Parameters, ours: tuple[IPv4Address, int]) -> urds.Socket:
    """Return a task's socket. Raises OSError: the address cannot be had."""
    sock = urds.Socket()
    try:
        if parameters.rdma_bytes:
            sock.setsockopt(urds.SOL_RDS, urds.SO_RDS_TRANSPORT, urds.RDS_TRANS_IB)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, parameters.buffer_bytes)
        if parameters.use_congestion_monitor:
            sock.setsockopt(urds.SOL_RDS, urds.RDS_CONG_MONITOR, 1)
        sock.bind((str(ours[0]), ours[1]))
        if parameters.type_of_service:
            sock.ioctl(urds.SIOCRDSSETTOS, parameters.type_of_service)
    except OSError as failure:
        sock.close()
        if failure.errno != errno.EADDRINUSE:
            raise
        reason = f"{failure.strerror}; choose another local address with -r"
        raise OSError(failure.errno, reason) from failure
    sock.settimeout(_WAIT_S)
    return sock


def _complain_of_buffers(sock: urds.Socket, wanted_bytes: int) -> None:
    """Warn of a buffer that is smaller than what may be under way, in the words of rds-stress."""
    for name in ("SNDBUF", "RCVBUF"):
        byte_count = sock.getsockopt(socket.SOL_SOCKET, getattr(socket, f"SO_{name}"))
        if byte_count // 2 < wanted_bytes:
            text = f"getsockopt({name}) returned {byte_count}, we wanted {wanted_bytes} * 2"
            complain("urds stress", text)
