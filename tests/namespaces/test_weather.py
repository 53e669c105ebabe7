"""A link that loses, delays, reorders and doubles packets: TCP's business, and that of udp0."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.namespaces import wire as wires
from tests.namespaces.conftest import Say
from tests.namespaces.test_tools import family, served
from tests.namespaces.traffic import Traffic
from tests.namespaces.wire import Weather, Wire
from tests.support.places import Namespaces

RUN_S = 1.5
WEATHERS = {
    "loss": Weather(loss=0.02),
    "delay": Weather(delay_s=0.02),
    "reorder": Weather(late=0.05),
    "all": Weather(loss=0.01, delay_s=0.003, late=0.05, twice=0.02),
}


@pytest.fixture
def wire(hosts: Namespaces) -> Iterator[Wire]:
    """Join the hosts once more, by a link that can spoil what it carries."""
    if reason := wires.missing():
        pytest.skip(reason)
    made = Wire(hosts, seed=7)
    yield made
    made.close()


@pytest.mark.each_carrier("tcp0")
@pytest.mark.parametrize("weather", WEATHERS.values(), ids=WEATHERS)
def test_messages_arrive_once_and_in_order(
    hosts: Namespaces, wire: Wire, weather: Weather, say: Say
) -> None:
    traffic = Traffic(hosts, addresses=wire.addresses)
    try:
        traffic.recover(wait_s=5.0)
        wire.weather = weather
        traffic.run(RUN_S)
        took_s = traffic.recover(wait_s=10.0)
        traffic.finish()
    finally:
        traffic.close()
    assert wire.lost > 0 or not weather.loss
    assert wire.overtaken > 0 or not weather.late
    say(f"{traffic}; {wire.lost} packets lost; the last messages took {took_s:.2f} s")


@pytest.mark.parametrize("device", ["tcp", "udp"])
def test_bytes_of_rsockets_are_verified(hosts: Namespaces, wire: Wire, device: str) -> None:
    """Over udp0 the device itself numbers, acknowledges and repeats."""
    wire.weather = WEATHERS["all"]
    there, common = wire.addresses[1], ("-C", "4", "-I", "3", "-S", "70000", "-T", "v")
    tools = ("rsocket", "rstream", "--device", device, *family(hosts), *common)
    client = (*tools, "-s", there, "-b", wire.addresses[0], "--json")
    [row] = json.loads(served(hosts, (*tools, "--serve", "-b", there), client))
    assert row["total_bytes"] == 2 * 4 * 3 * 70_000
    assert wire.lost > 0
