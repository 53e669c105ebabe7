"""The structures of rds-rdma(7) as a C program lays them out, with addresses of this process."""

import ctypes
import mmap
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import urds
from tests.rds.sockets.conftest import FAKE_PEER
from tests.support.errnos import refused
from urds.rds.constants import SOL_RDS, Cmsg, SockOpt

Ancillary = tuple[int, int, bytes]
NOWHERE = 1 << 44  # within the addresses of a process, and surely not mapped
PAGE = mmap.PAGESIZE


class Memory:
    """A buffer and its address; what C calls `char memory[size]`."""

    def __init__(self, data: int | bytes) -> None:
        content = bytes(data)
        self._held = ctypes.create_string_buffer(content, len(content))
        self.address = ctypes.addressof(self._held)
        self.size = len(content)

    @property
    def data(self) -> bytes:
        """Return what is in it."""
        return self._held.raw

    def number(self) -> int:
        """Return its first eight bytes as a number."""
        value: int = struct.unpack_from("=Q", self.data)[0]
        return value


class Pages:
    """Whole pages, so that nothing else is where their end is."""

    def __init__(self, byte_count: int) -> None:
        self.mapping = mmap.mmap(-1, -(-byte_count // PAGE) * PAGE)
        self._held = ctypes.c_char.from_buffer(self.mapping)
        self.address = ctypes.addressof(self._held)
        self.end = self.address + len(self.mapping)


@contextmanager
def read_only_page() -> Iterator[int]:
    """Give the address of a page that cannot be written."""
    mapping = mmap.mmap(-1, PAGE)
    held = ctypes.c_char.from_buffer(mapping)
    address = ctypes.addressof(held)
    protect = ctypes.CDLL(None).mprotect
    assert protect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), mmap.PROT_READ) == 0
    yield address
    del held
    mapping.close()


def get_mr(address: int, byte_count: int, cookie_address: int, flags: int = 0) -> bytes:
    """Return struct rds_get_mr_args."""
    return struct.pack("=4Q", address, byte_count, cookie_address, flags)


def get_mr_for_dest(address: int, byte_count: int, cookie_address: int, flags: int = 0) -> bytes:
    """Return struct rds_get_mr_for_dest_args, for no destination in particular."""
    return bytes(128) + get_mr(address, byte_count, cookie_address, flags)


def free_mr(cookie: int, flags: int = 0) -> bytes:
    """Return struct rds_free_mr_args."""
    return struct.pack("=2Q", cookie, flags)


def region_option(option: SockOpt, address: int, byte_count: int, cookie: int, flags: int) -> bytes:
    """Return the value of one of the two options that make a region."""
    pack = get_mr if option == SockOpt.GET_MR else get_mr_for_dest
    return pack(address, byte_count, cookie, flags)


def iovecs(pieces: Sequence[tuple[int, int]]) -> Memory:
    """Return an array of struct rds_iovec; keep it while its address is used."""
    return Memory(b"".join(struct.pack("=2Q", *piece) for piece in pieces))


def rdma_args(
    *,
    cookie: int = 0,
    remote: tuple[int, int],
    vector: tuple[int, int],
    flags: int = 0,
    token: int = 0,
) -> Ancillary:
    """Return the control message with struct rds_rdma_args; `vector` is address and count."""
    data = struct.pack("=7Q", cookie, *remote, *vector, flags, token)
    return SOL_RDS, Cmsg.RDMA_ARGS, data


def atomic_args(
    kind: Cmsg,
    local_address: int,
    operands: Sequence[int],
    *,
    cookie: int = 0,
    remote_address: int = 0,
    flags: int = 0,
    token: int = 0,
) -> Ancillary:
    """Return the control message with struct rds_atomic_args."""
    four = (*operands, 0, 0, 0, 0)[:4]
    return (
        SOL_RDS,
        kind,
        struct.pack("=9Q", cookie, local_address, remote_address, *four, flags, token),
    )


def rdma_map(address: int, byte_count: int, cookie_address: int = 0, flags: int = 0) -> Ancillary:
    """Return the control message that makes a region."""
    return SOL_RDS, Cmsg.RDMA_MAP, get_mr(address, byte_count, cookie_address, flags)


def rdma_dest(cookie: int) -> Ancillary:
    """Return the control message that brings a cookie along."""
    return SOL_RDS, Cmsg.RDMA_DEST, struct.pack("=Q", cookie)


def send(sock: urds.Socket, *ancillary: Ancillary, payload: bytes = b"x") -> int:
    """Send to FAKE_PEER with control messages."""
    return sock.sendmsg([payload], ancillary, 0, FAKE_PEER)


def send_refused(sock: urds.Socket, *ancillary: Ancillary, payload: bytes = b"x") -> int | None:
    """Return the errno of a send with control messages."""
    return refused(lambda: send(sock, *ancillary, payload=payload))


def get_region(sock: urds.Socket, memory: Memory, flags: int = 0) -> int:
    """Make a region of all of a memory; return its cookie."""
    place = Memory(8)
    value = region_option(SockOpt.GET_MR, memory.address, memory.size, place.address, flags)
    sock.setsockopt(SOL_RDS, SockOpt.GET_MR, value)
    return place.number()
