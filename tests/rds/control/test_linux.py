"""A kernel as peer: the core is told what a kernel does, and its actions are looked at."""

from ipaddress import ip_address
from random import Random

import pytest

from tests.rds.control.proto_world import control, down, first_frame, shake_hands
from tests.support.lone_peer import LonePeer
from urds.rds.control.events import (
    Action,
    Agree,
    Attach,
    Connect,
    Detach,
    FanOut,
    Hold,
    PathLost,
    PathUp,
    PeerKind,
    PeerKnown,
    PeerStartedAnew,
    Refuse,
    Release,
    RememberHandshake,
    RequestCallBack,
    SendControl,
)
from urds.rds.control.handshake import emit_ours
from urds.rds.control.settings import ConnectionSettings
from urds.rds.types import AckMode
from urds.rds.wire.extensions import Handshake, emit_handshake, parse_handshake

MS, SECOND = 1_000_000, 1_000_000_000
LOW, HIGH = ip_address("10.0.0.1"), ip_address("10.0.0.2")
# As a node with one path sends it to a peer that it does not know.
PROBE = emit_ours(ConnectionSettings(generation=7), generation=False, sport_index=False)
LINUX_6 = Handshake(npaths=8)
LINUX_7 = Handshake(npaths=8, generation=0x11223344, sport_index=True)


def connection(*, lower: bool, npaths: int = 1) -> LonePeer:
    return LonePeer(
        local=LOW if lower else HIGH,
        peer=HIGH if lower else LOW,
        settings=ConnectionSettings(generation=7, npaths=npaths),
        random=Random(1),
    )


def actions(core: LonePeer) -> list[Action]:
    """Take the actions; notices of paths that came up or were lost are left out."""
    found = []
    while (action := core.poll_event()) is not None:
        if not isinstance(action, PathUp | PathLost):
            found.append(action)
    return found


def hear(
    core: LonePeer, handshake: Handshake, *, ping: bool, now_ns: int = 0, index: int = 0
) -> list[Action]:
    shake_hands(core, handshake, ping=ping, now_ns=now_ns, index=index)
    return actions(core)


def up_as_lower(npaths: int = 1) -> LonePeer:
    """Return a core whose path 0 has heard the kernel's map; its probe is out."""
    core = connection(lower=True, npaths=npaths)
    core.handle_wanted(0, 0)
    core.handle_connected(0, 1, 0)
    first_frame(core, 0, 0)
    actions(core)
    return core


def up_as_higher(npaths: int = 1) -> LonePeer:
    core = connection(lower=False, npaths=npaths)
    core.handle_accepted(1, 40000, 0)
    first_frame(core, 0, 0)
    actions(core)
    return core


def test_the_lower_side_connects_and_waits_for_the_first_frame() -> None:
    core = connection(lower=True)
    core.handle_wanted(0, 0)
    (connect,) = actions(core)
    assert isinstance(connect, Connect)
    core.handle_connected(0, 1, 0)
    (attach,) = actions(core)
    assert attach == Attach(HIGH, 0, 1, Hold.FIRST_FRAME, PROBE)
    first_frame(core, 0, 0)
    assert not actions(core)


def test_the_higher_side_requests_a_call_back_and_probes_at_once() -> None:
    core = connection(lower=False)
    core.handle_wanted(0, 0)
    assert actions(core) == [RequestCallBack(LOW)]
    core.handle_call_back_requested(0)
    core.handle_accepted(1, 40000, 0)
    assert actions(core) == [Attach(LOW, 0, 1, Hold.NOTHING, PROBE)]
    assert core.poll_timeout() is None, "no more requests a call-back"


def test_a_stream_that_may_be_of_another_path_waits_for_the_first_frame() -> None:
    """A kernel's ports tell no path; of a urds node it is the stream of a path that is not here."""
    core = connection(lower=False)
    core.handle_accepted(1, 40001, 0)
    assert actions(core) == [Attach(LOW, 0, 1, Hold.HELLO, PROBE)]
    first_frame(core, 0, 0)
    assert actions(core) == [Release(LOW, 0, None)]


@pytest.mark.parametrize("npaths", [1, 8])
def test_the_probe_of_a_unknown_peer_has_the_mark_and_no_generation(npaths: int) -> None:
    core = connection(lower=False, npaths=npaths)
    core.handle_accepted(1, 40000, 0)
    attach, *controls = actions(core)
    assert isinstance(attach, Attach)
    (probe,) = [attach.probe] if attach.probe else [one.extension for one in controls]
    assert bool(controls) is (attach.hold is Hold.HELLO), "a held path takes only a hello"
    handshake = parse_handshake(probe)
    assert (handshake.npaths, handshake.generation) == (npaths, None)
    assert not handshake.sport_index, "older kernels log it; newer ones announce it first"
    assert handshake.mark is not None


@pytest.mark.rule("wire-negotiation")
@pytest.mark.parametrize("handshake", [LINUX_6, LINUX_7], ids=["6.x", "7.x"])
@pytest.mark.parametrize("ping", [True, False])
def test_a_handshake_without_the_mark_tells_linux(handshake: Handshake, ping: bool) -> None:
    core = up_as_higher()
    heard = hear(core, handshake, ping=ping)
    assert Agree(LOW, AckMode.STREAM_ACKNOWLEDGED, False) in heard
    assert RememberHandshake(LOW, handshake.generation) in heard
    assert core.facts.kind is PeerKind.LINUX
    pongs = [action for action in heard if isinstance(action, SendControl)]
    assert len(pongs) == ping
    for pong in pongs:
        assert (pong.source_port, pong.target_port, pong.hello) == (0, 1, False)
        assert parse_handshake(pong.extension).generation is None, "a change would cost messages"


def test_silence_tells_linux_with_one_path() -> None:
    core = up_as_lower(npaths=8)
    assert core.poll_timeout() == SECOND
    core.handle_timeout(SECOND)
    assert actions(core)[0] == Agree(HIGH, AckMode.STREAM_ACKNOWLEDGED, False)
    assert core.npaths == 1
    assert core.poll_timeout() is None


@pytest.mark.parametrize("generation", [None, 7], ids=["kernel", "urds"])
@pytest.mark.parametrize("superseded", [False, True], ids=["lost", "superseded"])
def test_streams_that_are_cut_share_one_wait_unless_they_show_a_urds_node(
    generation: int | None, superseded: bool
) -> None:
    """Messages to a peer of unknown kind are kept: each stream begins with all of them again."""
    core = connection(lower=False)
    lived_ns = 30 * MS
    between_ns = 0 if superseded else SECOND  # it does not count
    now_ns = 0
    for stream in range(1, 41):
        core.handle_accepted(stream, 40000, now_ns)
        core.handle_first_frame(0, stream, now_ns, generation=generation)
        core.handle_timeout(now_ns + lived_ns - 1)
        if core.facts.kind is PeerKind.LINUX:
            break
        now_ns += lived_ns
        if not superseded:
            down(core, 0, 2, now_ns)
        now_ns += between_ns
    known = PeerKind.UNKNOWN if generation else PeerKind.LINUX
    assert (core.facts.kind, stream) == (known, 40 if generation else 34)


def test_a_known_kernel_is_not_probed_again() -> None:
    core = up_as_lower()
    hear(core, LINUX_6, ping=False)
    down(core, 0, 5, SECOND)
    core.handle_connected(0, 2, SECOND)
    first_frame(core, 0, SECOND)
    kinds = [type(action) for action in actions(core)]
    assert kinds == [Connect, Attach]


@pytest.mark.rule("wire-mprds-before-data")
def test_the_lower_side_fans_out_when_its_probe_is_answered() -> None:
    """At the kernel's own probe it would be too early: the kernel does not know our paths yet."""
    core = up_as_lower(npaths=4)
    assert not [a for a in hear(core, LINUX_7, ping=True) if isinstance(a, FanOut | Connect)]
    heard = hear(core, LINUX_7, ping=False)
    assert core.poll_timeout() is None
    assert FanOut(HIGH, 4) in heard
    connects = [action for action in heard if isinstance(action, Connect)]
    assert [(connect.index, connect.source_ports.index) for connect in connects] == [
        (1, 1), (2, 2), (3, 3),
    ]  # fmt: skip
    assert heard.index(FanOut(HIGH, 4)) < heard.index(connects[0])


def test_further_paths_to_a_kernel_do_not_wait_for_a_map_for_ever() -> None:
    core = up_as_lower(npaths=2)
    hear(core, LINUX_6, ping=False)
    core.handle_connected(1, 2, 0)
    assert actions(core) == [Attach(HIGH, 1, 2, Hold.HELLO)]
    core.handle_timeout(SECOND)
    assert actions(core) == [Release(HIGH, 1, None)]
    core.handle_connected(1, 3, 2 * SECOND)
    actions(core)
    first_frame(core, 1, 2 * SECOND)
    assert actions(core) == [Release(HIGH, 1, None)], "a frame ends the wait at once"


def test_the_higher_side_places_streams_by_source_port_if_announced() -> None:
    core = up_as_higher(npaths=4)
    assert FanOut(LOW, 4) in hear(core, LINUX_7, ping=True)
    core.handle_accepted(5, 40002, 0)
    assert actions(core)[0] == Attach(LOW, 2, 5, Hold.NOTHING)


def test_the_higher_side_places_streams_in_order_otherwise() -> None:
    core = up_as_higher(npaths=4)
    hear(core, LINUX_6, ping=True)
    for stream in (5, 6, 7):
        core.handle_accepted(stream, 41003, 0)
    placed = [(a.stream, a.index) for a in actions(core) if isinstance(a, Attach)]
    assert placed == [(5, 1), (6, 2), (7, 3)]
    core.handle_accepted(8, 41003, 0)
    assert Refuse(LOW, 8) in actions(core), "no path is free; one of ours must be dead"
    assert (core.stats.dead_stream_probes, core.stats.refused_no_path) == (4, 1)


def test_streams_that_come_before_the_handshake_are_parked() -> None:
    """A kernel connects further paths right behind its answer, on other connections."""
    core = up_as_higher(npaths=2)
    core.handle_accepted(5, 40001, 0)
    assert actions(core) == []
    assert Attach(LOW, 1, 5, Hold.NOTHING) in hear(core, LINUX_7, ping=False)


def test_a_parked_stream_supersedes_when_there_is_one_path_only() -> None:
    core = up_as_higher(npaths=2)
    core.handle_accepted(5, 40001, 0)
    core.handle_accepted(6, 40003, 0)
    core.handle_timeout(SECOND)
    attached = [action.stream for action in actions(core) if isinstance(action, Attach)]
    assert attached[-1] == 6


def test_a_parked_stream_takes_the_place_of_one_that_ends() -> None:
    core = up_as_higher(npaths=2)
    core.handle_accepted(5, 40001, 0)
    down(core, 0, 1, 0)
    assert actions(core)[0] == Attach(LOW, 0, 5, Hold.HELLO)


def test_no_more_streams_are_parked_than_paths_can_be() -> None:
    core = up_as_higher(npaths=8)
    for stream in range(10, 18):
        core.handle_accepted(stream, 40001, 0)
    assert [action for action in actions(core) if isinstance(action, Refuse)] == [Refuse(LOW, 10)]


def test_path_0_is_dropped_if_its_source_port_belongs_elsewhere() -> None:
    core = connection(lower=False, npaths=8)
    core.handle_accepted(1, 40003, 0)
    first_frame(core, 0, 0)
    actions(core)
    heard = hear(core, LINUX_7, ping=True)
    assert Detach(LOW, 0) in heard
    assert not [action for action in heard if isinstance(action, SendControl)], "no answer"


@pytest.mark.rule("wire-mprds-before-data")
def test_with_several_paths_nothing_goes_to_a_unknown_peer_before_the_handshake() -> None:
    core = connection(lower=False, npaths=2)
    core.handle_accepted(1, 40000, 0)
    attach, probe = actions(core)
    assert attach == Attach(LOW, 0, 1, Hold.HELLO)
    assert isinstance(probe, SendControl)
    assert probe.hello, "nothing else passes the hold"
    first_frame(core, 0, 0)
    assert Release(LOW, 0, None) in hear(core, LINUX_6, ping=False)


def test_a_restarted_kernel_is_asked_again_if_there_are_paths() -> None:
    core = up_as_lower(npaths=2)
    hear(core, LINUX_7, ping=False)
    core.handle_peer_restarted(SECOND)
    notice, probe = actions(core)
    assert notice == PeerStartedAnew(HIGH)
    assert isinstance(probe, SendControl)
    heard = hear(core, Handshake(npaths=8, generation=5, sport_index=True), ping=False)
    assert RememberHandshake(HIGH, 5) in heard


def test_an_own_node_that_became_a_kernel_is_noticed() -> None:
    core = up_as_lower()
    own = parse_handshake(bytes.fromhex("05000100000000000000005552010007"))
    hear(core, own, ping=False)
    assert core.facts.kind is PeerKind.URDS
    down(core, 0, 5, SECOND)
    core.handle_connected(0, 2, SECOND)
    first_frame(core, 0, SECOND)
    actions(core)
    heard = hear(core, LINUX_6, ping=False)
    assert heard[:3] == [
        Agree(HIGH, AckMode.STREAM_ACKNOWLEDGED, False),
        RememberHandshake(HIGH, None),
        PeerKnown(HIGH, PeerKind.LINUX, 1, core.facts.capabilities),
    ]
    assert Release(HIGH, 0, None) in heard


def test_a_known_own_node_that_stays_silent_counts_as_linux() -> None:
    core = up_as_lower()
    hear(core, parse_handshake(bytes.fromhex("05000100000000000000005552010007")), ping=False)
    down(core, 0, 5, SECOND)
    core.handle_connected(0, 2, SECOND)
    first_frame(core, 0, SECOND)
    actions(core)
    core.handle_timeout(6 * SECOND)
    assert Release(HIGH, 0, None) in actions(core)
    assert core.facts.kind is PeerKind.LINUX


@pytest.mark.parametrize("source_port", [2, 65535])
def test_a_ping_is_answered_without_extension(source_port: int) -> None:
    core = up_as_lower()
    control(
        core,
        0,
        acknowledgement=0,
        source_port=source_port,
        target_port=0,
        extension=bytes(16),
        now_ns=0,
    )
    assert actions(core) == [SendControl(HIGH, 0, 0, source_port, bytes(16), False)]


def test_reports_about_an_earlier_stream_are_ignored() -> None:
    """They cross with the action that attached the next one."""
    core = up_as_higher()
    core.handle_accepted(2, 40000, 0)
    actions(core)
    core.handle_down(0, 1, 7, 0)
    core.handle_first_frame(0, 1, 0)
    core.handle_control(
        0,
        1,
        acknowledgement=0,
        source_port=1,
        target_port=0,
        extension=emit_handshake(LINUX_6),
        now_ns=0,
    )
    assert actions(core) == []
    assert core.facts.kind is PeerKind.UNKNOWN
    assert core.stats.downs == core.stats.handshakes == 0


def test_a_ping_from_port_0_is_ignored() -> None:
    core = up_as_lower()
    control(core, 0, acknowledgement=0, source_port=0, target_port=0, extension=bytes(16), now_ns=0)
    assert actions(core) == []


def test_a_kernel_that_announces_its_ports_hears_ours_before_more_paths_open() -> None:
    core = up_as_lower(npaths=2)
    (probe,) = [one for one in hear(core, LINUX_7, ping=False) if isinstance(one, SendControl)]
    assert parse_handshake(probe.extension).sport_index
    assert (probe.source_port, probe.target_port) == (1, 0)
    opened = [one for one in hear(core, LINUX_7, ping=False) if isinstance(one, Connect)]
    assert [one.index for one in opened] == [1]


def test_a_kernel_that_announces_nothing_is_asked_once() -> None:
    heard = hear(up_as_lower(npaths=2), LINUX_6, ping=False)
    assert not [one for one in heard if isinstance(one, SendControl)]
    assert [one.index for one in heard if isinstance(one, Connect)] == [1]
