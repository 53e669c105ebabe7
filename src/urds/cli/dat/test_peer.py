"""One side of `urds dat test`: its objects, its way of waiting, its exchanges and figures.

The steps, figures and constants are those of dtest, the test program of the OpenFabrics library: so
a program written against that one finds the same order here. Source: docs/reference/dat.md 18.1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

from urds import dat
from urds.cli.output import UsageError
from urds.cli.parser import check_ranges, json_option, option

CONN_QUAL: Final = 45_248
SIZES_MAX: Final = 1024  # of one write ping-pong after the other
PRIVATE_DATA_BYTES: Final = 48
MESSAGE_BUFFERS: Final = 3
WRITE_SEGMENTS: Final = 2
READS: Final = 4
READ_COOKIE: Final = 0x9999
_FIRST_BYTE: Final = {True: 0x55, False: 0xAA}  # of the client, of the server
CONNECT_WAIT_S: Final = 100.0
TRANSFER_WAIT_S: Final = 5.0
LOCAL_WAIT_S: Final = 10.0  # where both ends are in this process
SERVER_WAIT_S: Final = 120.0  # for the first request; a server alone waits without end
_SECOND_US: Final = 1_000_000

_TRIPLET: Final = Struct(">I4xQQ")  # context, address, length: 24 bytes in network order
_BUFFER_BYTES: Final = _TRIPLET.size
_NOTICE_BYTES: Final = 8


def ia_option() -> Any:
    """Return the field of `-P`, the adapter."""
    return option(
        "-P", metavar="IA", default="shm0", help="Adapter: shm0, tcp0, udp0, or a name of dat.conf."
    )


def check_adapter(ia_name: str) -> None:
    """Raise UsageError for an adapter that is not registered, or without a registry."""
    try:
        known = [provider.ia_name for provider in dat.providers()]
    except dat.DatInternalError as error:
        raise UsageError(error.detail) from error
    if ia_name not in known:
        raise UsageError(f"-P {ia_name}: there are {', '.join(known)}")


class TestFailure(Exception):
    """A check failed; the text says which."""


def connect_endpoints(
    active: dat.Endpoint, passive: dat.Endpoint, requests: dat.EventDispatcher, conn_qual: int
) -> None:
    """Connect two endpoints of this process; the passive one's adapter listens.

    Raises TestFailure: there is no connection.
    """
    active.connect(passive.device.address, conn_qual, timeout_s=LOCAL_WAIT_S)
    request = requests.wait(LOCAL_WAIT_S)
    assert isinstance(request, dat.ConnectionRequestEvent), request
    request.cr.accept(passive)
    for ep in (active, passive):
        assert ep.connect_evd is not None, "made with one"
        event = ep.connect_evd.wait(LOCAL_WAIT_S)
        if event.event_number != dat.DAT_CONNECTION_EVENT_ESTABLISHED:
            raise TestFailure(f"no connection: {event.event_number.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatTestOptions:
    """Options of `urds dat test`, named after dtest's letters in the command line."""

    ia_name: str = ia_option()
    host: str | None = option(
        "-h", metavar="HOST", help="Be the client of the server at this address or name."
    )
    is_server: bool = option("-s", default=False, help="Be the server, for one client.")
    size_bytes: int = option(
        "-b", metavar="BYTES", default=64, low=1, high=1 << 26, help="Bytes of each transfer."
    )
    bursts: int = option("-B", default=10, low=1, high=10_000, help="Transfers of each kind.")
    use_cno: bool = option(
        "-c", default=False, help="Wait for receives through a notification point."
    )
    poll: bool = option("-p", default=False, help="Poll instead of waiting.")
    delay_s: float = option(
        "-d", metavar="S", default=0.0, low=0, high=60,
        help="Seconds that the server waits before it accepts.",
    )  # fmt: skip
    write_only: bool = option("-w", default=False, help="Stream RDMA writes only.")
    write_ping_pong: bool = option(
        "-W", default=False, help="Answer RDMA writes with RDMA writes only."
    )
    one_way: bool = option(
        "-u", default=False, help="With -w: the client writes, the server does not."
    )
    all_sizes: bool = option(
        "-a", default=False, help="With -W: sizes 1, 2, 4 and so on up to that of -b."
    )
    increment_bytes: int = option(
        "-i", metavar="BYTES", default=0, help="With -W: sizes by this step up to that of -b."
    )
    validate: bool = option("-D", default=False, help="Check the bytes of each ping-pong.")
    signal_rate: int = option(
        "-S", default=10, low=1, high=10_000, help="Requests per completion that is asked for."
    )
    times: bool = option("-t", default=False, help="Print what the single calls took.")
    verbose: bool = option(
        "-v", default=False, help="Print the addresses of both ends, and times as -t does."
    )
    qpn: str | None = option("-q", help="Rejected: adapters here have no ucm addresses.")
    lid: str | None = option("-l", help="Rejected, as -q.")
    conn_qual: int = option(
        "--port", metavar="QUALIFIER", default=CONN_QUAL, low=1, high=65_535,
        help="Connection qualifier of the server.",
    )  # fmt: skip
    json_wanted: bool = json_option()

    def check(self) -> None:
        """Raise UsageError for wrong options."""
        check_ranges(self)
        if not 0 <= self.increment_bytes <= self.size_bytes:
            limits = f"must be from 0 to {self.size_bytes} (-b)"
            raise UsageError(f"-i {self.increment_bytes}: {limits}")
        if len(self.sizes) > SIZES_MAX:
            raise UsageError(
                f"-i {self.increment_bytes}: {len(self.sizes)} sizes, at most {SIZES_MAX}"
            )
        for letter, value in (("q", self.qpn), ("l", self.lid)):
            if value is not None:
                raise UsageError(
                    f"-{letter} {value}: no ucm addresses here, -h takes an IP address"
                )
        if self.is_server and self.host is not None:
            raise UsageError("either -s, or -h with the host of the server")
        if self.write_only and self.write_ping_pong:
            raise UsageError("either -w or -W")
        if self.one_way and not self.write_only:
            raise UsageError("-u is for -w alone")
        if (self.all_sizes or self.increment_bytes) and not self.write_ping_pong:
            raise UsageError("-a and -i are for -W alone")
        check_adapter(self.ia_name)

    @property
    def sizes(self) -> Sequence[int]:
        """Return the bytes of a write, for each round of the write ping-pong."""
        if self.increment_bytes:
            return range(self.increment_bytes, self.size_bytes + 1, self.increment_bytes)
        if self.all_sizes:
            return [1 << power for power in range(self.size_bytes.bit_length())]
        return [self.size_bytes]


@dataclass(frozen=True, slots=True)
class Transfers:
    """A series of transfers of one kind and size."""

    transfer: str  # what was done
    count: int
    size_bytes: int
    total_us: float
    us_each: float
    mb_per_s: float


@dataclass(slots=True)
class Figures:
    """The results: addresses, microseconds of single calls, and totals of the transfers."""

    local: str = ""  # address and port of the endpoint
    remote: str = ""
    calls_us: dict[str, float] = field(default_factory=dict)
    transfers: list[Transfers] = field(default_factory=list)
    polls: int = 0

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Measure one call."""
        start_s = time.perf_counter()
        yield
        self.calls_us[name] = (time.perf_counter() - start_s) * _SECOND_US

    @contextmanager
    def series(self, name: str, count: int, size_bytes: int) -> Iterator[None]:
        """Measure a series of transfers of one kind and size."""
        start_s = time.perf_counter()
        yield
        total_us = (time.perf_counter() - start_s) * _SECOND_US
        rate = count * size_bytes / total_us  # bytes per microsecond: MB per second
        self.transfers.append(
            Transfers(name, count, size_bytes, total_us, us_each=total_us / count, mb_per_s=rate)
        )


class Peer:
    """The objects of one side. A context manager: it frees them in dtest's order, if all went well.

    After a failure the adapter is closed abruptly, whatever state its objects are in.
    """

    def __init__(self, options: DatTestOptions, figures: Figures) -> None:
        self.options = options
        self.figures = figures
        self.is_client = options.host is not None
        with figures.call("open"):
            self.ia = dat.open(options.ia_name)
        try:
            self._make_objects()
        except BaseException:
            self.ia.close()
            raise

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._free_objects()
        finally:
            with self.figures.call("close"):
                self.ia.close()

    def _free_objects(self) -> None:
        call = self.figures.call
        with call("LMR free"):
            for lmr in (self.messages_lmr, self.got_lmr, self.sent_lmr):
                lmr.free()
        with call("EP free"):
            self.ep.free()
        with call("EVD free"):
            for evd in (self.cr_evd, self.connect_evd, self.request_evd, self.recv_evd):
                evd.free()
        if self.cno is not None:
            with call("CNO free"):
                self.cno.free()
        with call("PZ free"):
            self.pz.free()

    def _make_objects(self) -> None:
        options, figures = self.options, self.figures
        room = options.size_bytes * (options.bursts + 1)
        with figures.call("PZ create"):
            self.pz = self.ia.create_pz()
        self.sent = bytearray(room)  # what this side sends and lets be read
        self.got = bytearray(room)  # where the peer writes and reads land
        self.messages = bytearray(_BUFFER_BYTES * (MESSAGE_BUFFERS + 1))
        with figures.call("LMR create"):
            self.sent_lmr = self.pz.register(self.sent)
            self.got_lmr = self.pz.register(self.got)
            self.messages_lmr = self.pz.register(self.messages)
        self.cno = None
        if options.use_cno:
            with figures.call("CNO create"):
                self.cno = self.ia.create_cno()
        depth = 2 * options.bursts * WRITE_SEGMENTS + 16
        with figures.call("EVD create"):
            self.cr_evd = self.ia.create_evd(10, dat.EvdFlag.CR)
            self.connect_evd = self.ia.create_evd(10, dat.EvdFlag.CONNECTION)
            self.request_evd = self.ia.create_evd(depth, dat.EvdFlag.DTO)
            self.recv_evd = self.ia.create_evd(depth, dat.EvdFlag.DTO, self.cno)
        attr = dat.EpAttr(
            max_recv_dtos=options.bursts + MESSAGE_BUFFERS,
            max_request_dtos=depth,
            max_rdma_read_in=READS,
            max_rdma_read_out=READS,
        )
        with figures.call("EP create"):
            self.ep = self.pz.create_ep(self.recv_evd, self.request_evd, self.connect_evd, attr)
        for number in range(MESSAGE_BUFFERS):
            piece = self.messages_lmr.triplet(number * _BUFFER_BYTES, _BUFFER_BYTES)
            self.ep.post_recv([piece], number)

    # -- connecting

    def serve(self, *, wait_s: float | None) -> None:
        """Wait for the client and accept it; check its private data and answer them."""
        with self.ia.listen(self.options.conn_qual, evd=self.cr_evd):
            print(
                f"server: {self.options.ia_name} at {self.ia.address}, "
                f"qualifier {self.options.conn_qual}",
                file=sys.stderr if self.options.json_wanted else sys.stdout,
                flush=True,
            )
            event = self.cr_evd.wait(wait_s)
            if not isinstance(event, dat.ConnectionRequestEvent):
                raise TestFailure(f"{event.event_number.name} instead of a request")
            said = event.cr.query().private_data
            if said[:PRIVATE_DATA_BYTES] != _private_data(1):
                raise TestFailure(f"private data {said.hex()}, not {_private_data(1).hex()}")
            time.sleep(self.options.delay_s)
            event.cr.accept(self.ep, _private_data(2))
            self._established()

    def connect(self) -> None:
        """Connect to the server; check what its accept said."""
        assert self.options.host is not None, "a client has the host of its server"
        with self.figures.call("connect"):
            self.ep.connect(
                self.options.host,
                self.options.conn_qual,
                timeout_s=CONNECT_WAIT_S,
                private_data=_private_data(1),
            )
            said = self._established()
        if said[:PRIVATE_DATA_BYTES] != _private_data(2):
            raise TestFailure(f"private data {said.hex()}, not {_private_data(2).hex()}")

    def _established(self) -> bytes:
        event = self.connect_evd.wait(CONNECT_WAIT_S)
        assert isinstance(event, dat.ConnectionEvent), event
        if event.event_number == dat.DAT_CONNECTION_EVENT_NON_PEER_REJECTED:
            where = f"{self.options.host}, qualifier {self.options.conn_qual}"
            raise TestFailure(f"no server at {where} ({event.event_number.name})")
        if event.event_number != dat.DAT_CONNECTION_EVENT_ESTABLISHED:
            raise TestFailure(f"no connection: {event.event_number.name}")
        param = self.ep.query()
        self.figures.local = f"{param.local_ia_address_ptr} port {param.local_port_qual}"
        self.figures.remote = f"{param.remote_ia_address_ptr} port {param.remote_port_qual}"
        return event.private_data

    def disconnect(self) -> None:
        """End the connection; the server waits for its end."""
        if self.is_client:
            self.ep.disconnect()
        event = self.connect_evd.wait(TRANSFER_WAIT_S)
        if event.event_number != dat.DAT_CONNECTION_EVENT_DISCONNECTED:
            raise TestFailure(f"{event.event_number.name} instead of DISCONNECTED")

    # -- the steps

    def exchange(self) -> None:
        """Do the steps of the options; each of the three message buffers is received into once."""
        options = self.options
        self._tell_memory(self.got_lmr)
        self._take(self.recv_evd, cookie=0, byte_count=_BUFFER_BYTES)
        self._remote = dat.RmrTriplet(*_TRIPLET.unpack_from(self.messages))
        if options.write_ping_pong:
            for size_bytes in options.sizes:
                self._write_ping_pong(size_bytes)
        elif options.write_only:
            if self.is_client or not options.one_way:
                self._stream_writes()
        else:
            self._write()
        self._notice(1)
        if options.write_ping_pong or options.write_only:
            return
        self._read()
        for number in range(options.bursts):  # behind the message buffers
            place = number * options.size_bytes
            self.ep.post_recv([self.got_lmr.triplet(place, options.size_bytes)], number)
        self._notice(2)
        self._ping_pong()

    def _write(self) -> None:
        """Write `bursts` times two segments, without completions but the last's."""
        bursts, size_bytes = self.options.bursts, self.options.size_bytes
        half = max(1, size_bytes // WRITE_SEGMENTS)
        self.sent[:size_bytes] = _pattern(size_bytes)
        pieces = [self.sent_lmr.triplet(0, half)]
        if size_bytes > half:
            pieces.append(self.sent_lmr.triplet(half, size_bytes - half))
        with self.figures.series("RDMA write", bursts, size_bytes):
            for number in range(bursts):
                part = self._part(number, size_bytes)
                flags = _flags(is_signalled=number == bursts - 1)
                self.ep.post_rdma_write(pieces, part, number, flags)
            self._take(self.request_evd, cookie=bursts - 1)

    def _read(self) -> None:
        """Check what the peer wrote here, then read the same back from there."""
        size_bytes, bursts = self.options.size_bytes, self.options.bursts
        if self.got[: size_bytes * bursts] != _pattern(size_bytes) * bursts:
            raise TestFailure("the bytes that the peer wrote are not those that it had")
        with self.figures.series("RDMA read", READS, size_bytes):
            for _ in range(READS):
                piece = self.sent_lmr.triplet(0, size_bytes)
                self.sent[:size_bytes] = bytes(size_bytes)
                self.ep.post_rdma_read([piece], self._part(0, size_bytes), READ_COOKIE)
                self._take(self.request_evd, cookie=READ_COOKIE, byte_count=size_bytes)
        if self.sent[:size_bytes] != _pattern(size_bytes):
            raise TestFailure("the bytes read are not those that were written")

    def _ping_pong(self) -> None:
        """Exchange `bursts` messages, one at a time."""
        options, size_bytes = self.options, self.options.size_bytes
        self.sent[:size_bytes] = bytes([_FIRST_BYTE[self.is_client]]) * size_bytes
        with self.figures.series("ping-pong", options.bursts, size_bytes):
            for number in range(options.bursts):
                if self.is_client:
                    self._send(number)
                self._take(self.recv_evd, cookie=number, byte_count=size_bytes)
                if not self.is_client:
                    self._send(number)
                if options.validate:
                    got = self.got[number * size_bytes : (number + 1) * size_bytes]
                    self._demand_fill(got, f"message {number}")

    def _send(self, number: int) -> None:
        is_signalled = number % self.options.signal_rate == 0
        piece = self.sent_lmr.triplet(0, self.options.size_bytes)
        self.ep.post_send([piece], number, _flags(is_signalled=is_signalled))
        if is_signalled:
            self._take(self.request_evd, cookie=number)

    def _stream_writes(self) -> None:
        """Write without pause, a completion every `signal_rate` writes."""
        bursts, rate = self.options.bursts, self.options.signal_rate
        with self.figures.series("RDMA write stream", bursts, self.options.size_bytes):
            for number in range(bursts):
                is_signalled = (number + 1) % rate == 0 or number == bursts - 1
                self._post_write(number, self.options.size_bytes, is_signalled=is_signalled)

    def _write_ping_pong(self, size_bytes: int) -> None:
        """Answer each write that is seen in memory with one; the last byte is the round's number.

        Sizes grow from one series to the next, so nothing has yet been written where it is awaited.
        """
        options, last = self.options, size_bytes - 1
        self.sent[:last] = bytes([_FIRST_BYTE[self.is_client]]) * last
        with self.figures.series("RDMA write ping-pong", options.bursts, size_bytes):
            for number in range(options.bursts):
                mark = number % 255 + 1
                if not self.is_client:
                    self._await_byte(last, mark)
                self.sent[last] = mark
                is_signalled = number % options.signal_rate == 0
                self._post_write(number, size_bytes, is_signalled=is_signalled)
                if self.is_client:
                    self._await_byte(last, mark)
                if options.validate:
                    self._demand_fill(self.got[:last], f"round {number}")

    def _post_write(self, number: int, size_bytes: int, *, is_signalled: bool) -> None:
        piece, part = self.sent_lmr.triplet(0, size_bytes), self._part(0, size_bytes)
        self.ep.post_rdma_write([piece], part, number, _flags(is_signalled=is_signalled))
        if is_signalled:
            self._take(self.request_evd, cookie=number)

    def _await_byte(self, index: int, value: int) -> None:
        deadline_s = time.monotonic() + TRANSFER_WAIT_S
        while self.got[index] != value:
            self.figures.polls += 1
            self.ia.adapter.progress()
            if time.monotonic() > deadline_s:
                raise TestFailure(
                    f"no write in 5 s: byte {index} is {self.got[index]}, not {value}"
                )

    def _demand_fill(self, got: bytearray, what: str) -> None:
        """Raise TestFailure unless all bytes are those that the peer fills its messages with."""
        byte = _FIRST_BYTE[not self.is_client]
        if got.count(byte) != len(got):
            raise TestFailure(f"{what}: not all of its {len(got)} bytes are {byte:#x}")

    def _part(self, number: int, size_bytes: int) -> dat.RmrTriplet:
        """Return the part of the peer's memory for one write."""
        remote = self._remote
        return dat.RmrTriplet(
            remote.rmr_context, remote.target_address + number * size_bytes, size_bytes
        )

    # -- messages

    def _tell_memory(self, lmr: dat.LocalMemory) -> None:
        """Send the peer the triplet by which it may use a memory region."""
        triplet = lmr.remote_triplet()
        offset = MESSAGE_BUFFERS * _BUFFER_BYTES
        _TRIPLET.pack_into(
            self.messages, offset, triplet.rmr_context, triplet.target_address,
            triplet.segment_length,
        )  # fmt: skip
        flags = dat.CompletionFlag.SUPPRESS
        piece = self.messages_lmr.triplet(offset, _BUFFER_BYTES)
        self.ep.post_send([piece], flags=flags)

    def _notice(self, cookie: int) -> None:
        """Tell the peer that this step is over, and wait for its message in this buffer."""
        piece = self.messages_lmr.triplet(MESSAGE_BUFFERS * _BUFFER_BYTES, _NOTICE_BYTES)
        self.ep.post_send([piece], flags=dat.CompletionFlag.SUPPRESS)
        self._take(self.recv_evd, cookie=cookie, byte_count=_NOTICE_BYTES)

    def _take(
        self, evd: dat.EventDispatcher, *, cookie: object = None, byte_count: int | None = None
    ) -> dat.DtoCompletionEvent:
        """Wait for a completion as the options say, and check it."""
        event = self._next(evd)
        if not isinstance(event, dat.DtoCompletionEvent):
            raise TestFailure(f"{event.event_number.name} instead of a completion")
        if event.status != dat.DtoStatus.SUCCESS:
            raise TestFailure(f"cookie {event.user_cookie!r}: {event.status.name}")
        if cookie is not None and event.user_cookie != cookie:
            raise TestFailure(f"cookie {event.user_cookie!r}, not {cookie!r}")
        if byte_count is not None and event.transfered_length != byte_count:
            raise TestFailure(f"{event.transfered_length} bytes, not {byte_count}")
        return event

    def _next(self, evd: dat.EventDispatcher) -> dat.Event:
        deadline_s = time.monotonic() + TRANSFER_WAIT_S
        if self.options.poll:
            while time.monotonic() < deadline_s:
                self.figures.polls += 1
                if (event := evd.dequeue()) is not None:
                    return event
            raise TestFailure(f"no event in {TRANSFER_WAIT_S:g} s of polling")
        if self.cno is not None and evd is self.recv_evd:
            # A trigger is a hint: it may have been for an event that was taken already.
            while time.monotonic() < deadline_s:
                if (event := evd.dequeue()) is not None:
                    return event
                self.cno.wait(1.0)
            raise TestFailure(f"no event in {TRANSFER_WAIT_S:g} s")
        return evd.wait(TRANSFER_WAIT_S)


def _private_data(first: int) -> bytes:
    return bytes((first + index) % 256 for index in range(PRIVATE_DATA_BYTES))


def _flags(*, is_signalled: bool) -> dat.CompletionFlag:
    return dat.CompletionFlag.DEFAULT if is_signalled else dat.CompletionFlag.SUPPRESS


def _pattern(size_bytes: int) -> bytes:
    """Return bytes none of which is what the memory holds before."""
    return (bytes(range(1, 252)) * (size_bytes // 251 + 1))[:size_bytes]
