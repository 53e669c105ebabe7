"""Ports, allowed and pending peers, eviction; the small parts: timers, states, port hash."""

import errno
from ipaddress import ip_address, ip_network
from random import Random

import pytest

from tests.rds.control.proto_world import down, first_frame
from urds.common.errors import LocalProtocolError
from urds.rds.control.connected import Connected
from urds.rds.control.events import Action, Attach, Connect, Detach, Forget, Reason, Refuse, Refused
from urds.rds.control.local_address import LocalAddress
from urds.rds.control.paths import SourcePortRule, address_bytes, agreed_npaths, path_of_port
from urds.rds.control.settings import ConnectionSettings, LocalAddressSettings
from urds.rds.control.state import PathInput, PathState, next_state
from urds.rds.control.timers import TimerKey, TimerKind, Timers

SECOND = 1_000_000_000
LOCAL = ip_address("10.0.0.200")


def endpoint(local: str = "10.0.0.200", *, npaths: int = 1, **settings: object) -> LocalAddress:
    settings.setdefault("allowed", (ip_network("10.0.0.0/24"),))
    return LocalAddress(
        local=ip_address(local),
        settings=LocalAddressSettings(**settings),
        connection_settings=ConnectionSettings(generation=7, npaths=npaths),
        random=Random(3),
    )


def actions(core: LocalAddress) -> list[Action]:
    found = []
    while (action := core.poll_event()) is not None:
        found.append(action)
    return found


@pytest.mark.rule("rds7-bind-unique")
def test_bind_takes_a_port_once() -> None:
    core = endpoint()
    assert core.bind(4000) == 4000
    with pytest.raises(OSError) as refused:
        core.bind(4000)
    assert refused.value.errno == errno.EADDRINUSE
    core.release(4000)
    assert core.bind(4000) == 4000


def test_port_1_is_reserved() -> None:
    with pytest.raises(OSError) as refused:
        endpoint().bind(1)
    assert refused.value.errno == errno.EINVAL


@pytest.mark.rule("rds7-bind-port-zero")
def test_port_0_chooses_every_free_port_once_and_then_refuses() -> None:
    core = endpoint()
    first = core.bind(0)
    assert core.bind(0) != first
    core._ports = set(range(2, 65536)) - {9}  # 65,534 calls would take their time
    assert core.bind(0) == 9
    with pytest.raises(OSError) as refused:
        core.bind(0)
    assert refused.value.errno == errno.EADDRINUSE


@pytest.mark.rule("rds7-bind-port-zero")
def test_port_0_starts_at_random_and_wraps_to_2() -> None:
    class Last(Random):
        def randrange(self, start: int, stop: int) -> int:
            return stop - 1

    core = endpoint()
    core._random = Last()
    assert [core.bind(0), core.bind(0), core.bind(0)] == [65535, 2, 3]


@pytest.mark.parametrize(
    ("local", "peer", "allowed"),
    [
        ("127.0.0.1", "127.9.9.9", True),
        ("::1", "::2", False),
        ("127.0.0.1", "10.0.0.1", True),  # by the network
        ("10.0.0.200", "127.0.0.1", True),  # from the same machine
        ("10.0.0.200", "10.0.1.1", False),
    ],
)
def test_who_is_allowed(local: str, peer: str, allowed: bool) -> None:
    assert endpoint(local).allows(ip_address(peer)) == allowed


def test_an_address_without_a_subnet_allows_no_peer() -> None:
    """The network of the kernel's selftest: two /32 with routes. Source: linux v7.0 (net/rds)."""
    alone = ip_network("10.0.0.1/32")
    assert not endpoint("10.0.0.1", allowed=(alone,)).allows(ip_address("10.0.0.2"))
    named = (alone, ip_network("10.0.0.2/32"))
    assert endpoint("10.0.0.1", allowed=named).allows(ip_address("10.0.0.2"))


def test_any_allows_all_networks() -> None:
    core = endpoint(allowed=(ip_network("0.0.0.0/0"), ip_network("::/0")))
    assert core.allows(ip_address("192.0.2.1"))
    assert core.allows(ip_address("fe80::1%eth0"))


def test_a_peer_that_is_not_allowed_is_refused_both_ways() -> None:
    core = endpoint()
    peer = ip_address("192.0.2.1")
    core.handle_accepted(5, peer, 40000, 0)
    assert actions(core) == [Refuse(peer, 5), Refused(peer, Reason.NOT_ALLOWED)]
    assert core.stats.refused_not_allowed == 1
    with pytest.raises(PermissionError, match="URDS_ALLOW"):
        core.connection(peer, 0)
    assert core.connections == ()


def test_a_connection_from_the_own_address_is_refused() -> None:
    core = endpoint()
    core.handle_accepted(5, LOCAL, 40000, 0)
    assert actions(core)[0] == Refuse(LOCAL, 5)


def test_pending_connections_are_few_per_address_and_in_all() -> None:
    core = endpoint()
    stream = 0
    for host in range(1, 8):
        for _ in range(17):
            stream += 1
            core.handle_accepted(stream, ip_address(f"10.0.0.{host}"), 40000, 0)
    refused = [action for action in actions(core) if isinstance(action, Refuse)]
    # One path: a stream supersedes its elder, which then is no pending connection any more.
    assert refused == []
    for host in range(8, 90):
        stream += 1
        core.handle_accepted(stream, ip_address(f"10.0.0.{host}"), 40000, 0)
    refused = [action for action in actions(core) if isinstance(action, Refused)]
    assert len(refused) == 7 + 82 - 64
    assert {action.reason for action in refused} == {Reason.TOO_MANY_PENDING}


@pytest.mark.parametrize(
    ("form", "refused"), [("fd00::{}", 3), ("fd00::{}:0:0:0:0", 0), ("10.0.0.{}", 0)]
)
def test_pending_connections_of_ipv6_are_counted_by_64_bits(form: str, refused: int) -> None:
    """One host has all the addresses of such a network; of IPv4 it has one."""
    all_networks = (ip_network("0.0.0.0/0"), ip_network("::/0"))
    local = "fd00:ffff::1" if ":" in form else "10.0.0.200"
    core = endpoint(local, allowed=all_networks, pending_per_address_max=2)
    for number in range(1, 6):
        core.handle_accepted(number, ip_address(form.format(number)), 40_000, 0)
    assert core.stats.refused_pending == refused


def test_parked_pending_connections_of_one_address_are_at_most_16() -> None:
    core = endpoint(pending_per_address_max=2)
    core._connection_settings = ConnectionSettings(generation=7, npaths=8)
    peer = ip_address("10.0.0.1")
    for stream in range(4):
        core.handle_accepted(stream, peer, 40000, 0)
    assert core.stats.refused_pending == 2


def test_streams_that_a_fault_of_ours_closed_are_no_pending_connections_any_more() -> None:
    """The second one is parked: the number of paths is not known yet."""
    core, peer = endpoint(npaths=2, pending_per_address_max=2), ip_address("10.0.0.1")
    for stream in (1, 2):
        core.handle_accepted(stream, peer, 40_000, 0)
    connection = core.find(peer)
    assert connection is not None
    connection.handle_fault([1, 0], 0)
    actions(core)
    core.handle_accepted(3, peer, 40_000, 0)
    core.handle_accepted(4, peer, 40_000, 0)
    assert not any(isinstance(action, Refuse) for action in actions(core))


def test_a_unknown_peer_that_spoke_is_none() -> None:
    core = endpoint(pending_max=1)
    first, second = ip_address("10.0.0.1"), ip_address("10.0.0.2")
    core.handle_accepted(1, first, 40000, 0)
    first_frame(core.connection(first, 0), 0, 0)
    core.handle_accepted(2, second, 40000, 0)
    assert core.stats.refused_pending == 0


def test_a_silent_unknown_peer_is_dropped_after_its_time() -> None:
    core = endpoint()
    peer = ip_address("10.0.0.1")
    core.handle_accepted(1, peer, 40000, 0)
    assert isinstance(actions(core)[0], Attach)
    core.handle_timeout(30 * SECOND)
    assert actions(core)[:1] == [Detach(peer, 0)]
    assert core.stats.pending_silent == 1


def test_the_peer_that_is_idle_for_longest_makes_room() -> None:
    core = endpoint(peers_max=2)
    hosts = [ip_address(f"10.0.0.{host}") for host in (1, 2, 3, 4)]
    core.connection(hosts[0], 5)
    core.connection(hosts[1], 3)
    core.connection(hosts[2], 9)
    assert actions(core) == [Forget(hosts[1])]
    core.connection(hosts[0], 9).handle_wanted(0, 10)
    core.connection(hosts[2], 9).handle_wanted(0, 10)
    with pytest.raises(OSError) as refused:
        core.connection(hosts[3], 11)
    assert refused.value.errno == errno.EUSERS
    core.handle_accepted(1, hosts[3], 40000, 11)
    assert actions(core)[-1] == Refused(hosts[3], Reason.TOO_MANY_PEERS)


def test_pending_connections_are_many_from_half_of_their_bound_on() -> None:
    """Then a new peer has to speak first, unless it is known, refused or asks for a call-back."""
    core = endpoint(pending_max=4)
    first, second, later = (ip_address("10.0.0.1") + number for number in range(3))
    core.handle_accepted(1, first, 40000, 0)
    assert not core.is_crowded(later)
    core.handle_accepted(2, second, 40000, 0)
    assert core.is_crowded(later)
    assert core.accept_queue_settings().pending_max == 2
    assert not core.is_crowded(ip_address("10.0.0.250"))
    assert not core.is_crowded(ip_address("10.9.0.1"))
    first_frame(core.find(first), 0, 0)
    core.handle_timeout(2 * SECOND)  # it is taken for Linux
    core.handle_accepted(3, later, 40000, 2 * SECOND)
    assert core.is_crowded(ip_address("10.0.0.9"))
    assert not core.is_crowded(first)


def test_a_look_for_idle_peers_serves_many_evictions() -> None:
    """Those that were used since the look stay, and the order is that of their last use."""
    hosts = [ip_address("10.0.0.0") + number for number in range(1, 181)]
    core = endpoint(peers_max=100)
    for number, host in enumerate(hosts[:100]):
        core.connection(host, number)
    core.connection(hosts[100], 200)
    core.connection(hosts[1], 201).handle_wanted(0, 201)
    core.connection(hosts[2], 202).used_ns = 202
    for number, host in enumerate(hosts[101:], 300):
        core.connection(host, number)
    forgotten = [action.peer for action in actions(core) if isinstance(action, Forget)]
    assert forgotten == [hosts[0], *hosts[3:82]]


def test_after_an_empty_look_the_next_one_waits() -> None:
    core = endpoint(peers_max=1)
    core._connected = Connected(10)  # which would be full as well, and have no place to look for
    first = core.connection(ip_address("10.0.0.1"), 0)
    first.handle_accepted(1, 40000, 0)
    for now_ns in (1, 40_000_000):
        with pytest.raises(OSError) as refused:
            core.connection(ip_address("10.0.0.2"), now_ns)
        assert refused.value.errno == errno.EUSERS
        down(first, 0, 0, now_ns)
        assert first.is_idle
    core.connection(ip_address("10.0.0.2"), 60_000_000)


def test_an_evicted_peer_leaves_no_timer() -> None:
    core = endpoint(peers_max=1)
    first = core.connection(ip_address("10.0.0.1"), 0)
    first.handle_accepted(1, 40000, 0)
    first_frame(first, 0, 0)
    assert core.poll_timeout() is not None  # for the answer to our probe
    core.handle_timeout(2 * SECOND)
    down(first, 0, 1, 2 * SECOND)
    assert core.poll_timeout() is not None  # for the next call-back request
    core.connection(ip_address("10.0.0.2"), 1)
    assert core.poll_timeout() is None


@pytest.mark.rule("wire-mprds-hash")
def test_the_port_hash_is_that_of_linux() -> None:
    """Examples of docs/reference/rds.md 1.8 (linux v6.12), initial value 0, 8 paths."""
    assert [path_of_port(port, 8) for port in range(4000, 4009)] == [1, 2, 6, 2, 4, 0, 0, 0, 4]


@pytest.mark.rule("wire-mprds-minimum", "wire-mprds-agree")
@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"),
    [(1, 8, 1), (8, 8, 8), (8, None, 1), (8, 0, 1), (8, 3, 2), (4, 65535, 4), (8, 2, 2)],
)
def test_the_number_of_paths(ours: int, theirs: int | None, agreed: int) -> None:
    assert agreed_npaths(ours, theirs) == agreed


def test_source_ports_carry_the_index() -> None:
    rule = SourcePortRule(index=3, attempt=2)
    ports = list(rule.ports(range_low=32769, range_high=32769 + 63))
    assert ports[0] == 32776 + 16 + 3
    assert sorted(ports) == [32776 + 8 * group + 3 for group in range(7)]
    assert list(rule.ports(range_low=40001, range_high=40007)) == []


def test_addresses_order_as_linux_orders_them() -> None:
    names = ["::1", "10.0.0.1", "192.0.2.1", "2001:db8::1"]
    data = [address_bytes(ip_address(name)) for name in names]
    assert data == sorted(data)


def test_a_peer_that_broke_the_protocol_rests_although_it_was_evicted() -> None:
    core = endpoint("10.0.0.1", peers_max=1)
    culprit, other = ip_address("10.0.0.2"), ip_address("10.0.0.3")
    core.connection(culprit, 0).handle_wanted(0, 0)
    core.handle_connected(culprit, 0, 2, 0)
    first_frame(core.connection(culprit, 0), 0, 0)
    core.connection(culprit, 0).handle_down(0, 1, 1, SECOND, protocol_error=True)
    core.connection(other, SECOND)
    assert Forget(culprit) in actions(core)
    core.connection(culprit, SECOND + 1).handle_wanted(0, SECOND + 1)
    assert not any(isinstance(action, Connect) for action in actions(core))
    core.handle_timeout(2 * SECOND)
    assert any(isinstance(action, Connect) for action in actions(core))


def test_timers_fire_in_order_and_the_last_setting_counts() -> None:
    timers = Timers()
    keys = [TimerKey(LOCAL, TimerKind.ATTEMPT, number) for number in range(100)]
    for number, key in enumerate(keys):
        timers.set(key, 1000 - number)
    for _ in range(300):
        timers.set(keys[50], 5)
    timers.cancel(keys[99])
    timers.cancel(keys[99])
    assert len(timers._heap) < 300, "what was replaced is tidied away"
    assert timers.next_ns() == 5
    assert timers.pop_due(4) is None
    fired = []
    while (key := timers.pop_due(2000)) is not None:
        fired.append(key.number)
    assert fired == [50, *range(98, 50, -1), *range(49, -1, -1)]


def test_what_is_not_in_the_table_cannot_happen() -> None:
    assert next_state(PathState.WAITING, PathInput.CONNECT) is PathState.CONNECTING
    for state, event in [
        (PathState.DOWN, PathInput.CONNECT),
        (PathState.UP, PathInput.RECONNECT),
        (PathState.UP, PathInput.GIVE_UP),
        (PathState.WAITING, PathInput.FRAME),
        (PathState.DOWN, PathInput.LOSE),
    ]:
        with pytest.raises(LocalProtocolError, match=f"{event.name} in state {state.name}"):
            next_state(state, event)
