"""What an error tells a program beside its text: reason, limit, peer; equal on both planes."""

import copy
import pickle
from collections.abc import Callable

import pytest

from tests.parity.planes import OTHER, PEER, PEER_PORT, RealWorld, World
from urds.common.errors import ErrorReason
from urds.rds.constants import HeaderFlag
from urds.rds.plane.contract import (
    Agreement,
    Mailbox,
)
from urds.rds.types import AckMode

THERE = (str(PEER), PEER_PORT)
ELSEWHERE = (str(OTHER), PEER_PORT)


def error_of(call: Callable[[], object]) -> OSError:
    with pytest.raises(OSError) as caught:
        call()
    return caught.value


def check(call: Callable[[], object], reason: ErrorReason, limit: int | None, peer: object) -> None:
    """Assert the attributes of the error that a call raises, and of its copies."""
    problem = error_of(call)
    wanted = {"reason": reason, "limit": limit, "peer": None if peer is None else str(peer)}
    assert problem.errno == reason.code
    for one in (problem, copy.copy(problem), pickle.loads(pickle.dumps(problem))):
        assert vars(one) == wanted
        assert type(one) is type(problem)


def small(world: World) -> Mailbox:
    return world.mailbox(send_bytes_max=10, send_wait_ns=0, receive_wait_ns=0)


def test_a_payload_above_the_send_buffer(world: World) -> None:
    mailbox = small(world)
    check(lambda: mailbox.sendto(bytes(11), THERE), ErrorReason.TOO_LONG, 10, None)


def test_a_payload_above_what_the_peer_takes(world: World) -> None:
    mailbox = world.mailbox(send_wait_ns=0)
    world.attach()
    agreed = Agreement(ack_mode=AckMode.PEER_ACKNOWLEDGED, message_bytes_max=100)
    world.path().agree(agreed)
    check(lambda: mailbox.sendto(bytes(101), THERE), ErrorReason.TOO_LONG, 100, PEER)


def test_a_full_queue(world: World) -> None:
    mailbox = small(world)
    mailbox.sendto(bytes(10), THERE)
    check(lambda: mailbox.sendto(b"x", THERE), ErrorReason.QUEUE_FULL, 10, PEER)


def test_the_share_of_one_of_several_destinations(world: World) -> None:
    mailbox = small(world)
    mailbox.sendto(bytes(5), THERE)

    def fill() -> None:
        for _ in range(20):
            mailbox.sendto(b"x", ELSEWHERE)

    check(fill, ErrorReason.SHARE_FULL, 10, OTHER)


def test_a_congested_peer(world: World) -> None:
    mailbox = small(world)
    mailbox.sendto(b"x", THERE)
    remote = world.attach()
    full = bytearray(8192)
    full[PEER_PORT >> 3] |= 1 << (PEER_PORT & 7)
    remote.say(0, bytes(full), flags=HeaderFlag.CONG_BITMAP, source_port=0, target_port=0)
    world.turn()
    check(lambda: mailbox.sendto(b"x", THERE), ErrorReason.PEER_CONGESTED, None, PEER)


def test_no_route(make_plane: Callable[..., object]) -> None:
    world = World(lambda **given: make_plane(**given | {"resolve": lambda *_: None}))
    try:
        mailbox = small(world)
        check(lambda: mailbox.sendto(b"x", THERE), ErrorReason.PEER_UNREACHABLE, None, PEER)
    finally:
        world.close()


def test_another_family(world: World) -> None:
    mailbox = small(world)
    check(
        lambda: mailbox.sendto(b"x", ("fd00::2", 1)), ErrorReason.FAMILY_MISMATCH, None, "fd00::2"
    )


def test_nothing_to_receive_and_a_closed_mailbox(world: World) -> None:
    mailbox = small(world)
    check(lambda: mailbox.recvfrom(10), ErrorReason.NOTHING_TO_RECEIVE, None, None)
    mailbox.close()
    check(lambda: mailbox.recvfrom(10), ErrorReason.CLOSED, None, None)
    check(lambda: mailbox.sendto(b"x", THERE), ErrorReason.CLOSED, None, None)


def test_flags_that_are_not_known(world: World) -> None:
    mailbox = small(world)
    check(lambda: mailbox.sendto(b"x", 1, THERE), ErrorReason.FLAGS_NOT_SUPPORTED, None, None)


def test_a_send_that_waited_long_enough(real: RealWorld) -> None:
    mailbox = real.mailbox(send_bytes_max=10, send_wait_ns=1_000_000)
    mailbox.sendto(bytes(10), THERE)
    check(lambda: mailbox.sendto(b"x", THERE), ErrorReason.TIMED_OUT, None, PEER)
