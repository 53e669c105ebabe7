"""Nothing hangs and nothing is changed when every queue pair is busy in both directions.

A lost wake-up, or two sides that both write and neither reads, shows as a wait without an end.
Large messages fill rings and sockets; small ones meet threads that fall asleep.
"""

import pytest

from tests.verbs.stress_world import Plan, crowd, crowd_processes

LARGE = Plan(messages=24, size_max=1 << 22, seed=1)
SMALL = Plan(messages=150, size_max=64, seed=2)
DEVICES = ("shm0", "udp0", "tcp0")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("plan", [LARGE, SMALL], ids=["large", "small"])
def test_both_directions_at_once_between_contexts(device: str, plan: Plan) -> None:
    crowd(device, plan)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("plan", [LARGE, SMALL], ids=["large", "small"])
def test_both_directions_at_once_between_processes(device: str, plan: Plan) -> None:
    crowd_processes(device, plan)


@pytest.mark.parametrize("device", DEVICES)
def test_two_messages_of_16_mib_under_way_in_each_direction(device: str) -> None:
    """Both sides' buffers are full, and each has to read while it writes."""
    crowd_processes(device, Plan(pairs=1, messages=6, size_max=1 << 24, size_min=1 << 24, seed=3))
