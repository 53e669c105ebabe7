"""Rules 5, 6, 8 and 9 of docs/protocol/rds-tcp.md: a node or a kernel restarts.

Each rule is shown twice: as built nothing is lost or doubled; with the rule switched off the same
scenario does harm, or it would prove nothing.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tests.rds.transports.tcp.conftest import Lab
from tests.rds.transports.tcp.faults import make_deaf
from tests.rds.transports.tcp.kernel_peer import REPEATED, KernelPeer, Release
from tests.rds.transports.tcp.meetings import (
    arrived,
    lose_first_transmission,
    meet,
    numbered,
    probes_written,
    reconnect_deaf,
    send_to_kernel,
    send_to_node,
    settle,
    taken,
)
from tests.rds.transports.tcp.nodes import Node
from urds.rds.control import handshake
from urds.rds.control.events import RestartPeer
from urds.rds.control.handshake import emit_ours
from urds.rds.control.settings import ConnectionSettings
from urds.rds.control.tcp_peer import TcpPeer
from urds.rds.plane.contract import DownReason
from urds.rds.plane.python.receiver import Receiver
from urds.rds.runtime import paths as driver_paths

ORDERS = ["lower", "higher"]
KERNELS = [pytest.param(release, id=release.name) for release in Release]
SENT = numbered("sent", 10)


def restart(lab: Lab, node: Node, peer: KernelPeer) -> Node:
    """End a node and start another one at its address, once the kernel has seen the end."""
    node.close()
    peer.run_until(lambda: not peer.up)
    return lab.node_again(node)


# -- rule 5: our numbers start from the clock


def restart_and_lose_the_first_transmission(lab: Lab, order: str, release: Release) -> list[bytes]:
    """Have everything that a restarted node sends first come as repeats."""
    node, peer = lab.pair(order, kernel={"release": release})
    meet(node, peer)
    send_to_kernel(node, peer, numbered("earlier", 20))
    arrived(peer, 20)
    peer.received.clear()
    node = restart(lab, node, peer)
    send_to_kernel(node, peer, SENT)
    reconnect_deaf(node, peer)
    peer.run_until(lambda: node.row(peer.address).unacknowledged_messages >= len(SENT))
    peer.break_connection()
    return arrived(peer, len(SENT), wait_s=2.0)


@pytest.mark.rule("wire-sequence-start")
@pytest.mark.parametrize("release", KERNELS)
@pytest.mark.parametrize("order", ORDERS)
def test_a_restarted_node_is_above_its_earlier_life(lab: Lab, order: str, release: Release) -> None:
    assert restart_and_lose_the_first_transmission(lab, order, release) == SENT


@pytest.mark.parametrize("order", ORDERS)
def test_numbers_that_start_at_1_are_lost_after_a_restart(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setattr(driver_paths, "first_sequence", lambda: 1)
    assert restart_and_lose_the_first_transmission(lab, order, Release.V6) == []


# -- rule 6: no generation towards a kernel


def restart_with_the_kernels_messages_in_flight(lab: Lab, order: str) -> list[bytes]:
    """Have a restarted node's probe arrive while the kernel's messages are unacknowledged."""
    node, peer = lab.pair(order)
    meet(node, peer)
    node = restart(lab, node, peer)
    peer.reading = False
    read = len(peer.frames)
    send_to_kernel(node, peer, [b"wakes the probe"])
    peer.run_until(lambda: peer.up)
    peer.run_until(lambda: probes_written(node, peer) == 1)
    make_deaf(node.stream(peer.address))
    send_to_node(peer, SENT)
    peer.run_until(lambda: not peer.paths[0].queue and not peer.paths[0].out)
    peer.reading = True
    probe = (1, 0)
    peer.run_until(lambda: probe in [frame.ports for frame in peer.frames[read:]])
    peer.break_connection()
    node.backend.break_connections()  # deaf, it did not hear of it
    return taken(node, peer, len(SENT), wait_s=2.0)


@pytest.mark.parametrize("order", ORDERS)
def test_a_restarted_node_does_not_make_a_kernel_drop_messages(lab: Lab, order: str) -> None:
    assert restart_with_the_kernels_messages_in_flight(lab, order) == SENT


@pytest.mark.parametrize("order", ORDERS)
def test_a_new_generation_makes_a_kernel_drop_messages(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    def always(settings: ConnectionSettings, *, generation: bool, sport_index: bool) -> bytes:
        return emit_ours(settings, generation=True, sport_index=sport_index)

    monkeypatch.setattr(handshake, "emit_ours", always)
    assert restart_with_the_kernels_messages_in_flight(lab, order) == []


# -- rule 8: a restarted kernel is recognised before the duplicate rule


def reboot_and_send(lab: Lab, order: str, **kernel: Any) -> list[bytes]:
    """Sign a: the restart's messages come plainly, with numbers below the expected one."""
    node, peer = lab.pair(order, kernel=kernel)
    meet(node, peer)
    send_to_node(peer, numbered("earlier", 20))
    taken(node, peer, 20)
    peer.reboot()
    send_to_node(peer, SENT)
    return taken(node, peer, len(SENT), wait_s=1.0)


def reboot_and_repeat(lab: Lab, order: str, **kernel: Any) -> list[bytes]:
    """Signs b and c: the first messages of the restart come as repeats."""
    node, peer = lab.pair(order, kernel=kernel)
    meet(node, peer)
    send_to_node(peer, numbered("earlier", 20))
    taken(node, peer, 20)
    peer.break_connection()
    peer.run_until(lambda: peer.up)
    send_to_node(peer, numbered("on the last connection", 5))
    taken(node, peer, 5)
    peer.reboot()
    send_to_node(peer, SENT)
    lose_first_transmission(node, peer)
    return taken(node, peer, len(SENT), wait_s=1.0)


SCENARIOS = [
    pytest.param(reboot_and_send, Release.V6, True, id="a: unflagged lower number"),
    pytest.param(reboot_and_repeat, Release.V7, True, id="b: probe with a new generation"),
    pytest.param(reboot_and_repeat, Release.V6, True, id="b: second probe without generation"),
    pytest.param(reboot_and_repeat, Release.V6, False, id="c: repeat below the last connection"),
]
Scenario = Callable[..., list[bytes]]


@pytest.mark.rule("wire-generation-restart", "wire-generation-two-failures")
@pytest.mark.parametrize(("scenario", "release", "probes"), SCENARIOS)
@pytest.mark.parametrize("order", ORDERS)
def test_a_rebooted_kernel_is_recognised(
    lab: Lab, order: str, scenario: Scenario, release: Release, probes: bool
) -> None:
    assert scenario(lab, order, release=release, probes=probes) == SENT


@pytest.mark.reference
@pytest.mark.parametrize(("scenario", "release", "probes"), SCENARIOS[1:])
def test_an_unrecognised_reboot_loses_messages(
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    scenario: Scenario,
    release: Release,
    probes: bool,
) -> None:
    monkeypatch.setattr(Receiver, "_is_restart", lambda self, fields: False)
    assert scenario(lab, "lower", release=release, probes=probes) == []


@pytest.mark.reference
def test_dropping_every_lower_number_loses_a_rebooted_kernels_messages(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Receiver._take

    def drop_lower(self: Receiver, fields: Any, payload: bytes) -> DownReason | None:
        if 0 < fields[0] < self.sequence_expected and fields[4]:
            return None
        return take(self, fields, payload)

    monkeypatch.setattr(Receiver, "_take", drop_lower)
    assert reboot_and_send(lab, "lower", probes=False) == []


# -- rule 9: our numbers and messages outlive a kernel's restart


def reboot_with_our_messages_in_flight(lab: Lab, order: str, release: Release) -> KernelPeer:
    """Reboot the kernel before it has read ten messages, and break the next connection too."""
    node, peer = lab.pair(order, kernel={"release": release})
    meet(node, peer)
    send_to_node(peer, numbered("earlier", 5))
    taken(node, peer, 5)
    reconnect_deaf(node, peer)
    send_to_kernel(node, peer, SENT)
    peer.run_until(lambda: node.row(peer.address).unacknowledged_messages == len(SENT))
    numbers = [message.sequence for message in node.handed_over(peer.address)]
    peer.reboot()
    send_to_node(peer, [b"from the restart"])
    reconnect_deaf(node, peer)
    peer.run_until(lambda: node.counters["peer_restarted"] > 0)
    peer.run_for(0.05)  # a node that drops messages for it has done so by now
    peer.break_connection()
    got = arrived(peer, len(SENT), wait_s=1.0)
    assert [one.sequence for one in peer.received] == numbers[: len(got)]
    return peer


@pytest.mark.parametrize("release", KERNELS)
@pytest.mark.parametrize("order", ORDERS)
def test_what_a_rebooted_kernel_did_not_read_goes_again(
    lab: Lab, order: str, release: Release
) -> None:
    peer = reboot_with_our_messages_in_flight(lab, order, release)
    assert peer.payloads == SENT
    assert {message.flags for message in peer.received} == {REPEATED}


@pytest.mark.parametrize("order", ORDERS)
def test_treating_a_kernel_as_an_own_node_loses_messages(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    handle = TcpPeer.handle_peer_restarted

    def handle_as_own(self: TcpPeer, now_ns: int) -> None:
        handle(self, now_ns)
        self._context.emit(RestartPeer(self.peer))

    monkeypatch.setattr(TcpPeer, "handle_peer_restarted", handle_as_own)
    peer = reboot_with_our_messages_in_flight(lab, order, Release.V6)
    assert peer.payloads == []


# -- all rules together

# Up to 6.19 a kernel with several paths attaches connections in order of arrival, and after a reset
# the numbers of two paths are mixed: nothing that a peer could mend.
# Source: docs/reference/rds.md 2.8.
PATHS = [
    pytest.param(Release.V6, 1, id="V6"),
    pytest.param(Release.V7, 1, id="V7"),
    pytest.param(Release.V7, 8, id="V7 with 8 paths"),
]


@pytest.mark.rule("wire-reconnect", "rds7-reliable-in-order")
@pytest.mark.parametrize(("release", "npaths"), PATHS)
@pytest.mark.parametrize("order", ORDERS)
def test_many_resets_in_traffic_both_ways(
    lab: Lab, order: str, release: Release, npaths: int
) -> None:
    """Reset a connection forty times, at moments that the seed chooses."""
    rng = Random(f"{order} {release} {npaths}")
    node, peer = lab.pair(order, kernel={"release": release, "npaths": npaths}, npaths=npaths)
    meet(node, peer)
    to_kernel, to_node = numbered("to kernel", 400), numbered("to node", 400)
    got: list[bytes] = []
    for start in range(0, 400, 10):
        peer.run_until(lambda: peer.up)
        send_to_kernel(node, peer, to_kernel[start : start + 10])
        send_to_node(peer, to_node[start : start + 10])
        for _ in range(rng.randrange(6)):
            peer.step(rng.choice((0.0, 0.001)))
            got += node.take()
        peer.break_connection(rng.choice([path.index for path in peer.paths if path.connection]))
    got += taken(node, peer, len(to_node) - len(got))
    assert got == to_node
    assert arrived(peer, len(to_kernel)) == to_kernel
    settle(node, peer)
    # How many of the forty it hears of depends on the load: some hit a connection that it has not
    # accepted yet. The first one it had, and that ended or was replaced.
    assert node.counters["downs"] + node.counters["superseded"] > 0
