"""What both sides run: this text is sent to the guest and to our process alike.

The one difference is `new_socket`, which our side defines anew. Messages are numbered, and their
content follows from number and size, so that a receiver can check them.
"""

import errno
import math
import random
import select
import socket
import struct
import subprocess
import time

SO_TIMESTAMP = 29  # Python's socket module does not know it
AF_RDS = 21
SOL_RDS = 276
CANCEL_SENT_TO, GET_MR, FREE_MR, RECVERR, CONG_MONITOR, TRANSPORT, RXPATH_LATENCY = (
    1,
    2,
    3,
    5,
    6,
    8,
    10,
)

BUFFER_BYTES = 8 << 20
CONTROL_BYTES = 256
MESSAGE_BYTES_MAX = 1 << 20
PAUSE_S = 0.005
BURST = 8  # messages sent before as many are taken, lest one starve the other
HEADER = struct.Struct(">II")  # number, bytes that follow


def new_socket(kind: int = socket.SOCK_SEQPACKET, protocol: int = 0) -> socket.socket:
    """Return a socket of the kernel's RDS. Raises OSError for another kind or protocol."""
    return socket.socket(AF_RDS, kind, protocol)


def run(command: str) -> str:
    """Run a shell command and return what it printed. Raises CalledProcessError if it fails."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    return done.stdout


def open_socket(
    address: str, port: int, *, send_bytes: int = BUFFER_BYTES, receive_bytes: int = BUFFER_BYTES
) -> socket.socket:
    """Return a bound socket that waits at most ten seconds."""
    opened = new_socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    opened.bind((address, port))
    opened.settimeout(10)
    return opened


def message(number: int, body_bytes: int) -> bytes:
    """Return message `number`, whose content follows from the two arguments."""
    pattern = bytes((number + index) & 255 for index in range(256))
    return HEADER.pack(number, body_bytes) + (pattern * (body_bytes // 256 + 1))[:body_bytes]


def number_of(data: bytes) -> int:
    """Return the number of a message. Raises ValueError if its content is not as sent."""
    number, body_bytes = HEADER.unpack_from(data)
    if data != message(number, body_bytes):
        raise ValueError(f"message {number} of {len(data)} bytes has the wrong content")
    return int(number)


def send_numbers(sender: socket.socket, target: tuple[str, int], numbers: range) -> None:
    """Send one small message for each number, waiting for room."""
    for number in numbers:
        sender.sendto(message(number, 100), target)


def receive_numbers(receiver: socket.socket, count: int, *, wait_s: float = 20.0) -> list[int]:
    """Return the numbers of the next `count` messages; of fewer if `wait_s` passes without one."""
    numbers: list[int] = []
    receiver.settimeout(wait_s)
    try:
        while len(numbers) < count:
            numbers.append(number_of(receiver.recv(MESSAGE_BYTES_MAX)))
    except TimeoutError:
        pass
    return numbers


def size_small(sizes: random.Random) -> int:
    """Return a size of 0 to 2,000 bytes, each as likely as another."""
    return sizes.randint(0, 2000)


def size_medium(sizes: random.Random) -> int:
    """Return a size of 0 to 6,000 bytes, each as likely as another."""
    return sizes.randint(0, 6000)


def size_mix(sizes: random.Random) -> int:
    """Return a size of 0 to 48 KiB: three in four below 200 bytes, one in fifty above 8 KiB."""
    kind = sizes.random()
    if kind < 0.75:
        return sizes.randint(0, 200)
    return sizes.randint(0, 4000) if kind < 0.98 else sizes.randint(8192, 49152)


def exchange(
    end: socket.socket, target: tuple[str, int], *, count: int, seed: int, idle_s: float, size: str
) -> list[int]:
    """Send `count` messages, sized by the function `size`, while taking as many.

    Return the numbers taken. Ends early when nothing moved for `idle_s`. One thread does both, as
    the wire is busy both ways.
    """
    sizes = random.Random(seed)
    size_of = globals()[size]
    pending = (message(number, size_of(sizes)) for number in range(count))
    unsent = next(pending, None)
    numbers: list[int] = []
    missing = set(range(count))
    end.setblocking(False)
    moved_s = time.monotonic()
    while (unsent is not None or missing) and time.monotonic() - moved_s < idle_s:
        sent = 0
        while unsent is not None and sent < BURST and _was_sent(end, target, unsent):
            unsent = next(pending, None)
            sent += 1
        taken = _receive_some(end, numbers, count_max=BURST)
        missing.difference_update(numbers[len(numbers) - taken :])
        if sent + taken:
            moved_s = time.monotonic()
        else:
            time.sleep(PAUSE_S)
    return numbers


def _was_sent(end: socket.socket, target: tuple[str, int], data: bytes) -> bool:
    """Send one message if there is room for it; say whether it was accepted."""
    try:
        end.sendto(data, target)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
            raise
        return False
    return True


def _receive_some(end: socket.socket, numbers: list[int], *, count_max: float = math.inf) -> int:
    """Add what can be taken without waiting to `numbers`; return how many."""
    count = 0
    try:
        while count < count_max:
            numbers.append(number_of(end.recv(MESSAGE_BYTES_MAX)))
            count += 1
    except BlockingIOError:
        pass
    return count


def drain(receiver: socket.socket) -> list[int]:
    """Return the numbers of the messages that can be taken without waiting."""
    numbers: list[int] = []
    receiver.setblocking(False)
    _receive_some(receiver, numbers)
    return numbers


def send_until_refused(sender: socket.socket, target: tuple[str, int], *, count_max: int) -> int:
    """Send messages of 1,000 bytes without waiting until ENOBUFS; return how many were accepted.

    Raises AssertionError if none of `count_max` is refused: the receiver never said it is full.
    """
    sender.setblocking(False)
    accepted = 0
    while accepted < count_max:
        try:
            sender.sendto(message(accepted, 1000), target)
            accepted += 1
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                return accepted
            if error.errno != errno.EAGAIN:
                raise
        time.sleep(PAUSE_S)  # the map of the other side needs time to come
    raise AssertionError(f"{accepted} messages were accepted and none refused")


def receive_control(receiver: socket.socket, *, wait_s: float = 10.0) -> object:
    """Wait for the next message or notice; return its bytes and control messages."""
    receiver.settimeout(wait_s)
    raw, control, _, _ = receiver.recvmsg(MESSAGE_BYTES_MAX, CONTROL_BYTES)
    return raw, [(level, kind, bytes(data)) for level, kind, data in control]


def socket_address(address: str, port: int) -> bytes:
    """Return a `struct sockaddr_in`."""
    family = struct.pack("=H", socket.AF_INET)
    return family + struct.pack(">H4s8x", port, socket.inet_aton(address))


def poll_bits(polled: socket.socket) -> int:
    """Return the events of poll(2) that hold now, but for POLLWRBAND."""
    poller = select.poll()
    poller.register(polled, 0x3FF)
    return sum(bits & ~select.POLLWRBAND for _, bits in poller.poll(0))


def received(receiver: socket.socket, bytes_max: int = 100, flags: int = 0) -> object:
    """Receive; return the bytes, the kinds of control messages, the flags and the sender's port.

    Not the sender's address and no time: two hosts differ there.
    """
    raw, control, flags, address = receiver.recvmsg(bytes_max, CONTROL_BYTES, flags)
    kinds = [(level, kind, len(data)) for level, kind, data in control]
    return raw, kinds, flags, address[1] if address else None
