"""How many peers have a stream: of the process, of one /64, and which one gives way."""

import errno
from ipaddress import ip_address, ip_network
from random import Random

import pytest

from tests.rds.control.proto_world import first_frame
from urds.common.types import IPAddress
from urds.rds.control.connected import Connected
from urds.rds.control.events import Action, Connect, Forget, Reason, Refuse, Refused
from urds.rds.control.local_address import LocalAddress
from urds.rds.control.settings import ConnectionSettings, LocalAddressSettings
from urds.rds.control.state import PathState

MS = 1_000_000
SECOND = 1_000 * MS
ALL_NETWORKS = (ip_network("0.0.0.0/0"), ip_network("::/0"))
FIRST = ip_address("10.0.0.1")


def endpoint(
    connected: Connected, local: str = "10.9.9.9", *, kept: set[IPAddress]
) -> LocalAddress:
    """Make an endpoint; the peers of `kept` have sent a message to a socket."""
    return LocalAddress(
        local=ip_address(local),
        settings=LocalAddressSettings(allowed=ALL_NETWORKS),
        connection_settings=ConnectionSettings(generation=7),
        random=Random(3),
        may_disconnect=lambda peer: peer not in kept,
        connected=connected,
    )


def actions(core: LocalAddress) -> list[Action]:
    found = []
    while (action := core.poll_event()) is not None:
        found.append(action)
    return found


def connect(core: LocalAddress, peer: IPAddress, now_ns: int) -> list[Action]:
    """Have a peer connect and say its first word; return what is asked of the driver then."""
    actions(core)
    core.handle_accepted(int(peer) % 2**20 + 1, peer, 40_000, now_ns)
    found = actions(core)
    connection = core.find(peer)
    if connection is not None and connection.has_stream:
        first_frame(connection, 0, now_ns)
    return found


def test_half_of_the_descriptors_are_the_programs() -> None:
    connected = Connected(4096, 8)
    assert (connected.peers_max, Connected(4096, 100_000).peers_max) == (4, 4096)
    assert Connected(4096, 1024, npaths=8).peers_max == 64, "a peer may have eight streams"
    core = endpoint(connected, kept={FIRST + number for number in range(9)})
    for number in range(4):
        assert not any(isinstance(one, Refuse) for one in connect(core, FIRST + number, 0))
    late = FIRST + 4
    refused = connect(core, late, 10 * SECOND)
    assert refused[-1] == Refused(late, Reason.NO_DESCRIPTORS_LEFT_TO_SHARE)
    text = r"no descriptors left to share\): 4 of `ulimit -n` 8; raise it or set peers_max"
    with pytest.raises(OSError, match=text) as failed:
        core.connection(late, 10 * SECOND)
    assert failed.value.errno == errno.EUSERS
    assert (core.stats.refused_descriptors, core.stats.refused_peers) == (2, 0)
    assert len(connected) == 4


def test_a_set_bound_is_named_and_nothing_else() -> None:
    core = endpoint(Connected(1), kept={FIRST})
    connect(core, FIRST, 0)
    assert connect(core, FIRST + 1, 0)[-1] == Refused(FIRST + 1, Reason.TOO_MANY_PEERS)
    with pytest.raises(OSError, match="1 peers; raise the setting peers_max"):
        core.connection(FIRST + 1, 0)


def test_the_longest_idle_that_never_sent_a_message_gives_way() -> None:
    """Neither one that had one for a socket, nor one that something is queued to."""
    core = endpoint(Connected(4), kept={FIRST})
    for number in range(4):
        connect(core, FIRST + number, number)
    waits = core.find(FIRST + 1)
    assert waits is not None
    waits._paths[0].search.wanted = True
    early = connect(core, FIRST + 8, SECOND)
    assert early[-1] == Refused(FIRST + 8, Reason.TOO_MANY_PEERS), "all came just now"
    found = connect(core, FIRST + 9, 5 * SECOND)
    assert found[0] == Forget(FIRST + 2)
    assert not any(isinstance(one, Refuse) for one in found)
    assert (core.stats.evicted_connected, core.stats.evicted) == (1, 1)
    for number in range(3):  # its stream is no pending connection's any more, its timers are gone
        core.handle_timeout((10 + number) * SECOND)


def test_a_peer_with_an_attempt_under_way_stays() -> None:
    """Else the attempt's answer would come to the connection that is made for the peer next."""
    core = endpoint(Connected(1), kept=set())
    connect(core, FIRST, 0)
    connection = core.find(FIRST)
    assert connection is not None
    connection._paths.append(connection._context.new_path(1))
    connection._paths[1].state = PathState.CALL_BACK_REQUESTED
    assert connect(core, FIRST + 1, 5 * SECOND)[-1] == Refused(FIRST + 1, Reason.TOO_MANY_PEERS)
    connection._paths[1].state = PathState.WAITING
    assert connect(core, FIRST + 1, 6 * SECOND)[0] == Forget(FIRST)


def test_a_stream_of_another_address_of_the_process_counts_and_gives_way() -> None:
    connected = Connected(2)
    one, other = (endpoint(connected, f"10.9.9.{host}", kept=set()) for host in (1, 2))
    connect(one, FIRST, 0)
    connect(one, FIRST + 1, 1)
    assert connect(other, FIRST, SECOND)[-1] == Refused(FIRST, Reason.TOO_MANY_PEERS)
    actions(one)
    connect(other, FIRST, 5 * SECOND)
    assert actions(one) == [Forget(FIRST)]
    assert len(connected) == 2


def test_a_known_peer_without_a_stream_counts_when_it_has_one_again() -> None:
    core = endpoint(Connected(1), kept={FIRST})
    connection = core.connection(FIRST + 1, 0)
    connect(core, FIRST, 0)
    assert connect(core, FIRST + 1, 0)[-1] == Refused(FIRST + 1, Reason.TOO_MANY_PEERS)
    assert not connection.has_stream


def test_a_stream_that_we_opened_is_refused_when_there_is_no_room_any_more() -> None:
    core = endpoint(Connected(1), "10.0.0.0", kept={FIRST})
    for peer in (FIRST, FIRST + 1):
        core.connection(peer, 0).handle_wanted(0, 0)
    actions(core)
    core.handle_connected(FIRST, 0, 1, 0)
    core.handle_connected(FIRST + 1, 0, 2, 0)
    found = actions(core)
    assert Refuse(FIRST + 1, 2) in found
    assert Refused(FIRST + 1, Reason.TOO_MANY_PEERS) in found
    assert any(isinstance(one, Connect) and one.peer == FIRST + 1 for one in found), "once more"


def test_one_network_of_ipv6_holds_a_quarter() -> None:
    local = "fd00:ffff:ffff::1"
    core = endpoint(Connected(8), local, kept={ip_address("fd00::1"), ip_address("fd00::2")})
    for number in (1, 2):
        connect(core, ip_address(f"fd00::{number}"), 0)
    for number in (1, 2):
        connect(core, ip_address(f"fd00:1::{number}"), number)
    late = ip_address("fd00::3")
    assert connect(core, late, 5 * SECOND)[-1] == Refused(late, Reason.NETWORK_HAS_ITS_SHARE)
    with pytest.raises(OSError, match=r"2 of 8 peers are of one /64.*peers_max") as failed:
        core.connection(late, 5 * SECOND)
    assert failed.value.errno == errno.EUSERS
    assert core.stats.refused_networks == 2
    assert connect(core, ip_address("fd00:1::3"), 5 * SECOND)[0] == Forget(ip_address("fd00:1::1"))
    for number in range(1, 4):
        found = connect(core, ip_address(f"10.0.0.{number}"), 5 * SECOND)
        assert not any(isinstance(one, Refuse) for one in found), "others have the rest"


def test_a_look_for_peers_that_give_way_serves_many() -> None:
    core = endpoint(Connected(100), kept=set())
    for number in range(100):
        connect(core, FIRST + number, number)
    forgotten = []
    for number in range(70):
        found = connect(core, FIRST + 200 + number, 5 * SECOND + number)
        forgotten += [action.peer for action in found if isinstance(action, Forget)]
    assert forgotten == [FIRST + number for number in range(70)]


def test_after_a_look_of_which_nothing_gave_way_the_next_one_waits() -> None:
    kept = {FIRST + number for number in range(100)}
    core = endpoint(Connected(100), kept=kept)
    for number in range(100):
        connect(core, FIRST + number, number)
    for number in range(20):  # each tries eight of the 64 that were found
        assert not any(
            isinstance(action, Forget)
            for action in connect(core, FIRST + 200 + number, 5 * SECOND + number)
        )
    kept.clear()
    refused = connect(core, FIRST + 300, 5 * SECOND + 40 * MS)
    assert refused[-1] == Refused(FIRST + 300, Reason.TOO_MANY_PEERS)
    assert connect(core, FIRST + 301, 5 * SECOND + 60 * MS)[0] == Forget(FIRST)
