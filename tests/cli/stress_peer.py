"""The other side of a run of rds-stress, written from the page alone: nothing of `urds` is used.

This text runs in a process of a test and in the guest of the lab: standard library only. Its RDS
is the kernel's unless `new_socket` is defined anew. On the control connection it does what
rds-stress does, byte by byte; in the tasks it checks what rds-stress checks, the first 19 bytes
of each message, its size, and with -v the rest. One thread turns all tasks. What the other side
sent that is not so raises AssertionError. On purpose it can send something wrong itself (`fault`),
to see it found out. Source: docs/reference/rds.md 5.6; rds-tools 2.0.7.
"""

import errno
import select
import socket
import struct
import time
from collections.abc import Callable

End = tuple[str, int]
Told = dict[str, int]

AF_RDS = 21
OPTIONS = struct.Struct(">IIIIIIHHI15BIII")
NAMES = (
    "req_depth", "req_size", "ack_size", "rdma_size", "send_addr", "receive_addr",
    "starting_port", "nr_tasks", "run_time", "summary_only", "rtprio", "tracing", "verify",
    "show_params", "show_perfdata", "use_cong_monitor", "rdma_use_once", "rdma_use_get_mr",
    "rdma_use_fence", "rdma_cache_mrs", "rdma_key_o_meter", "suppress_warnings", "simplex",
    "rw_mode", "rdma_vector", "rdma_alignment", "connect_retries",
)  # fmt: skip
BASIC = struct.Struct(">IIIHHHB")
HEADER_BYTES = 63
REQUEST, ACK = 1, 2
WRONG_SEQUENCE = 20  # the message of the first pair that a fault spoils
CONTROL_S = 20.0


def new_socket() -> socket.socket:
    """Return a socket of the kernel's RDS."""
    return socket.socket(AF_RDS, socket.SOCK_SEQPACKET, 0)


def number_of(address: str) -> int:
    """Return an IPv4 address as a number."""
    return int.from_bytes(socket.inet_aton(address), "big")


def options(**values: int) -> bytes:
    """Return the short form of the options, with the defaults of rds-stress."""
    defaults = {
        "req_depth": 1,
        "req_size": 1024,
        "ack_size": 63,
        "starting_port": 4000,
        "nr_tasks": 1,
        "use_cong_monitor": 1,
        "rdma_use_fence": 1,
        "rdma_vector": 1,
    }
    told = {**dict.fromkeys(NAMES, 0), **defaults, **values}
    return OPTIONS.pack(*(told[name] for name in NAMES))


def pattern(byte_count: int) -> bytes:
    """Return what follows a header with -v."""
    found, value = bytearray(), 11
    for index in range(1, byte_count + 1):
        found.append(value & 255)
        value = 41 * (value + 3) + (index >> 8)
    return bytes(found)


class Pair:
    """One of our tasks and one of theirs."""

    def __init__(
        self, sock: socket.socket, told: Told, ours: End, theirs: End, fault: str, filling: bytes
    ) -> None:
        self.sock, self.told, self.ours, self.theirs, self.fault = sock, told, ours, theirs, fault
        self.filling = filling  # what follows each header
        self.depth = told["req_depth"]
        self.sent = self.received = self.pending = 0
        self.send_index = self.receive_index = 0
        self.to_ack: list[int] = []
        self.requests = {"sent": 0, "received": 0}

    def expected(self, sequence: int, source: End, target: End, index: int, kind: int) -> bytes:
        """Return the bytes that are compared."""
        ends = (number_of(source[0]), number_of(target[0]), source[1], target[1])
        return BASIC.pack(sequence, *ends, index, kind)

    def send(self, index: int, kind: int) -> None:
        """Send one message. Raises OSError with EAGAIN or ENOBUFS: not now."""
        byte_count = self.told["req_size" if kind == REQUEST else "ack_size"]
        sequence = self.sent
        spoilt = self.fault if sequence == WRONG_SEQUENCE else ""
        if spoilt == "loss":
            sequence = self.sent = sequence + 1
        if spoilt == "repeat":
            sequence = self.sent = sequence - 1
        rest = byte_count - HEADER_BYTES
        body = bytearray(self.filling[:rest])
        if spoilt == "damage":
            body[rest // 2] ^= 0x10
        header = self.expected(sequence, self.ours, self.theirs, index, kind)
        self.sock.sendto(header + bytes(44) + bytes(body), self.theirs)
        self.sent += 1

    def send_all(self, works: bool) -> None:
        """Send acks, then requests up to the depth."""
        while self.to_ack:
            self.send(self.to_ack[0], ACK)
            self.to_ack.pop(0)
        while works and self.pending < self.depth:
            self.send(self.send_index, REQUEST)
            self.send_index = (self.send_index + 1) % self.depth
            self.pending += 1
            self.requests["sent"] += 1

    def receive(self, payload: bytes) -> None:
        """Check one message."""
        kind = payload[18]
        assert kind in (REQUEST, ACK), f"operation {kind}"
        oldest = (self.send_index - self.pending) % self.depth
        index = self.receive_index if kind == REQUEST else oldest
        wanted = self.expected(self.received, self.theirs, self.ours, index, kind)
        assert payload[:19] == wanted, f"{payload[:19].hex()} is not {wanted.hex()}"
        byte_count = self.told["req_size" if kind == REQUEST else "ack_size"]
        assert len(payload) == byte_count, f"{len(payload)} bytes, not {byte_count}"
        if self.told["verify"]:
            assert payload[HEADER_BYTES:] == self.filling[: byte_count - HEADER_BYTES], "payload"
        self.received += 1
        if kind == ACK:
            self.pending -= 1
        else:
            self.to_ack.append(index)
            self.receive_index = (self.receive_index + 1) % self.depth
            self.requests["received"] += 1


Task = tuple[socket.socket, dict[End, Pair]]


def bind_tasks(told: Told, ours: str, theirs: str, fault: str) -> list[Task]:
    """Return sockets and pairs: task i has the port base + 1 + i and talks to all of theirs."""
    base, count = told["starting_port"], told["nr_tasks"]
    buffer_bytes = count * told["req_depth"] * (told["req_size"] + told["ack_size"]) * 2
    filling_bytes = max(told["req_size"], told["ack_size"])
    filling = pattern(filling_bytes) if told["verify"] else bytes(filling_bytes)
    tasks = []
    for number in range(count):
        sock = new_socket()
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, buffer_bytes)
        sock.bind((ours, base + 1 + number))
        sock.setblocking(False)
        ends = [(theirs, base + 1 + other) for other in range(count)]
        mine = (ours, base + 1 + number)
        tasks.append((sock, {end: Pair(sock, told, mine, end, fault, filling) for end in ends}))
    return tasks


def turn(sock: socket.socket, pairs: dict[End, Pair], works: bool) -> None:
    """Receive what is there, send what may go."""
    try:
        while True:
            payload, source = sock.recvfrom(1 << 20)
            if payload:
                pairs[source].receive(payload)
    except BlockingIOError:
        pass
    for pair in pairs.values():
        try:
            pair.send_all(works)
        except OSError as full:
            if full.errno not in (errno.EAGAIN, errno.ENOBUFS):
                raise


def exchange(
    control: socket.socket, tasks: list[Task], works: bool, run_s: float
) -> dict[str, object]:
    """Turn the tasks for some seconds, or without a time until the control connection ends."""
    until_s = time.monotonic() + (run_s or CONTROL_S)
    while time.monotonic() < until_s:
        ready = select.select([control, *(sock for sock, _ in tasks)], [], [], 0.005)[0]
        if control in ready:
            break
        for sock, pairs in tasks:
            turn(sock, pairs, works)
    every = [pair for _, pairs in tasks for pair in pairs.values()]
    for sock, _ in tasks:
        sock.close()
    control.close()
    counts = {name: sum(pair.requests[name] for pair in every) for name in ("sent", "received")}
    # A run without a time ends with its control connection; with one, before if theirs does.
    return {**counts, "early": time.monotonic() < until_s}


def exactly(control: socket.socket, byte_count: int) -> bytes:
    """Return so many bytes of the control connection."""
    found = b""
    while len(found) < byte_count:
        piece = control.recv(byte_count - len(found))
        assert piece, f"closed after {found!r}"
        found += piece
    return found


def passive(
    ours: str, port: int, fault: str = "", ready: Callable[[], None] = lambda: None
) -> dict[str, object]:
    """Be `rds-stress -r OURS -p PORT` for one run; return counts and the options as they came."""
    listener = socket.create_server((ours, port))
    listener.settimeout(CONTROL_S)
    ready()
    control, _ = listener.accept()
    listener.close()
    control.settimeout(CONTROL_S)
    begun = exactly(control, 16)
    is_long = begun == VERSION
    data = begun + exactly(control, (77 if is_long else 59) - 16)
    short = data[16:75] if is_long else data
    told = dict(zip(NAMES, OPTIONS.unpack(short), strict=True))
    theirs = socket.inet_ntoa(struct.pack(">I", told["receive_addr"]))
    tasks = bind_tasks(told, ours, theirs, fault)
    exactly(control, 1)
    control.sendall(b"\0")
    return {**exchange(control, tasks, not told["simplex"], 0), "options": data}


def connected(ours: str, theirs: str, port: int) -> socket.socket:
    """Return a control connection; try again while there is no listener yet."""
    until_s = time.monotonic() + CONTROL_S
    while True:
        try:
            return socket.create_connection((theirs, port), CONTROL_S, source_address=(ours, 0))
        except ConnectionRefusedError:
            assert time.monotonic() < until_s, "no listener"
            time.sleep(0.1)


def active(ours: str, theirs: str, data: bytes, run_s: float, fault: str = "") -> dict[str, object]:
    """Be the active side with these options, 59 or 77 bytes; return counts."""
    short = data[16:75] if len(data) == 77 else data
    told = dict(zip(NAMES, OPTIONS.unpack(short), strict=True))
    control = connected(ours, theirs, told["starting_port"])
    control.sendall(data)
    tasks = bind_tasks(told, ours, theirs, fault)
    control.sendall(b"\1")  # the value is whatever lay in memory
    exactly(control, 1)
    return exchange(control, tasks, True, run_s)


VERSION = b"2.0.7".ljust(16, b"\0")
