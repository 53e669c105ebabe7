"""The calls for many messages, made of those for one: what a plane may do in fewer steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from urds.rds.constants import MSG_DONTWAIT

if TYPE_CHECKING:
    from urds.rds.plane.contract import Buffer, SocketAddress

_DONTWAIT: Final = int(MSG_DONTWAIT)


def send_each(
    sendto: Callable[[Buffer, SocketAddress], int],
    messages: Sequence[tuple[Buffer, SocketAddress | None]],
    peer: SocketAddress | None,
) -> int:
    """See `contract.Mailbox.send_many`."""
    count = 0
    try:
        for payload, address in messages:
            target = peer if address is None else address
            sendto(payload, target)  # type: ignore[arg-type]  # None is refused there
            count += 1
    except OSError:
        if not count:
            raise
    return count


def receive_each(
    recvfrom: Callable[[int, int], tuple[bytes, SocketAddress]],
    has_message: Callable[[], bool],
    count_max: int,
    bufsize: int,
) -> list[tuple[bytes, SocketAddress]]:
    """See `contract.Mailbox.recv_many`; `has_message` is a hint, another thread may be first."""
    taken = [recvfrom(bufsize, 0)]
    with suppress(BlockingIOError):
        while len(taken) < count_max and has_message():
            taken.append(recvfrom(bufsize, _DONTWAIT))
    return taken
