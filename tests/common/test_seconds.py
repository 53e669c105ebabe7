"""Waiting times are checked in one place, and every public call asks it."""

import math
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

import urds
from urds import dat, rsocket
from urds.common.seconds import number_of, polling_time, seconds_of, waiting_time
from urds.dat.errors import DatInvalidParameter
from urds.rds.rdma import PendingOperation
from urds.verbs import CQ, CMEventChannel, CompChannel, Context, VerbsArgumentError
from urds.verbs.providers.sim import SimNetwork

PENDING: Any = PendingOperation  # nothing of what it was made from is looked at
HUGE = 10**400  # beyond a float


def test_what_is_a_time() -> None:
    assert [seconds_of(one) for one in (0, 2, True, Fraction(1, 2), Decimal("1.5"))] == [
        0.0,
        2.0,
        1.0,
        0.5,
        1.5,
    ]
    assert (number_of(HUGE, "x"), number_of(-HUGE, "x")) == (math.inf, -math.inf)


def test_what_waits_for_ever() -> None:
    assert [waiting_time(one) for one in (None, math.inf, 1e300, HUGE)] == [None] * 4
    assert waiting_time(1e9) == 1e9
    assert [polling_time(one, "timeout") for one in (None, -1, -math.inf, math.inf)] == [None] * 4
    assert (polling_time(250, "timeout_ms", per_s=1000), polling_time(0, "timeout")) == (0.25, 0)


@pytest.fixture(scope="module")
def things() -> Iterator[dict[str, Any]]:
    """One object of each kind that waits."""
    with ExitStack() as ends:
        context = ends.enter_context(Context(adapter=SimNetwork(1).adapter()))
        default = ends.enter_context(Context())  # of the plane under test
        adapter = ends.enter_context(dat.open("tcp0"))
        poller = ends.enter_context(rsocket.Repoll())
        yield {
            "sim": CQ(context, 8),
            "cq": CQ(default, 8),
            "channel": CompChannel(default),
            "context": default,
            "cm": CMEventChannel(context),
            "evd": adapter.create_evd(8, dat.EvdFlag.DTO),
            "cno": adapter.create_cno(),
            "stream": ends.enter_context(rsocket.Socket()),
            "rds": ends.enter_context(urds.Socket()),
            "poller": poller,
        }


# What a call with seconds is given; whether a negative number waits for ever, as in poll(2).
CALLS: dict[str, Callable[[dict[str, Any], Any], Any]] = {
    "CQ.wait_for": lambda one, x: one["cq"].wait_for(1, x),
    "CQ.wait_for, simulated": lambda one, x: one["sim"].wait_for(1, x),
    "CompChannel.get_cq_event": lambda one, x: one["channel"].get_cq_event(timeout_s=x),
    "Context.get_async_event": lambda one, x: one["context"].get_async_event(x),
    "CMEventChannel.get_event": lambda one, x: one["cm"].get_event(x),
    "drain": lambda _, x: urds.drain(x),
    "rds settimeout": lambda one, x: one["rds"].settimeout(x),
    "PendingOperation.wait": lambda _, x: PENDING(None, None).wait(x),
    "rsocket settimeout": lambda one, x: one["stream"].settimeout(x),
    "rselect": lambda _, x: rsocket.rselect([], [], [], x),
    "EventDispatcher.wait": lambda one, x: one["evd"].wait(x),
    "Notification.wait": lambda one, x: one["cno"].wait(x),
}
POLLS: dict[str, Callable[[dict[str, Any], Any], Any]] = {
    "rpoll": lambda _, x: rsocket.rpoll([], x),
    "Repoll.poll": lambda one, x: one["poller"].poll(x),
}


def _refused(call: Callable[[dict[str, Any], Any], Any], things: Any, value: Any) -> Exception:
    with pytest.raises((TypeError, ValueError, VerbsArgumentError, DatInvalidParameter)) as error:
        call(things, value)
    return error.value


@pytest.mark.parametrize("name", [*CALLS, *POLLS])
@pytest.mark.parametrize("value", ["5", [], b"1", 1j], ids=repr)
def test_another_kind_is_no_time(things: dict[str, Any], name: str, value: Any) -> None:
    error = _refused((CALLS | POLLS)[name], things, value)
    assert isinstance(error, TypeError | DatInvalidParameter)
    assert f"must be a number, not {type(value).__name__} {value!r}" in str(error)


@pytest.mark.parametrize("name", [*CALLS, *POLLS])
def test_nan_is_no_time(things: dict[str, Any], name: str) -> None:
    error = _refused((CALLS | POLLS)[name], things, math.nan)
    assert not isinstance(error, TypeError)
    assert "must be a number, not nan" in str(error)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("value", [-1, -0.5, -math.inf, -HUGE], ids=["-1", "-0.5", "-inf", "huge"])
def test_a_time_is_not_negative(things: dict[str, Any], name: str, value: Any) -> None:
    error = _refused(CALLS[name], things, value)
    assert not isinstance(error, TypeError)
    assert f"must be 0 or more seconds, not {value!r}" in str(error)


def test_infinity_waits_for_ever(things: dict[str, Any]) -> None:
    """It does not where the interface bounds a time: dat says how to wait without an end."""
    urds.drain(math.inf)
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.send(b"x")
        assert rsocket.rselect([reader], [], [], math.inf)[0] == [reader]
        assert rsocket.rpoll([(reader, 1)], math.inf)
    with pytest.raises(DatInvalidParameter, match="must be finite, not inf: None is for ever"):
        things["evd"].wait(math.inf)
    with pytest.raises(OverflowError, match="limit"):
        things["stream"].settimeout(math.inf)
