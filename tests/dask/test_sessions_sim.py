"""Sessions under loss of peers, cancelled writes and slow readers, in virtual time."""

import pytest

from tests.dask.session_world import LIMITS, MS, WINDOW, World, taken, views
from urds.common.errors import LocalProtocolError
from urds.dask.session import State

pytestmark = pytest.mark.sim
SEEDS = range(12)


def _message(random, count_max=6, frame_bytes_max=3000):
    return tuple(
        random.randbytes(random.randrange(frame_bytes_max))
        for _ in range(random.randrange(count_max))
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_arrive_whole_once_and_in_order(seed):
    """Both ways at once on several sessions, each end reading when it likes."""
    world = World(seed, hosts=3)
    pairs = [world.connected(*ends) for ends in ((0, 1), (1, 0), (0, 2), (2, 2))]
    ends = [end for pair in pairs for end in pair]
    peers = {end: other for a, b in pairs for end, other in ((a, b), (b, a))}
    sent = {end: [] for end in ends}
    got = {end: [] for end in ends}
    for _ in range(30):
        for end in ends:
            if world.random.random() < 0.4:
                message = _message(world.random)
                end.send(views(*message))
                sent[end].append(message)
            if world.random.random() < 0.3:
                got[end] += taken(end)
        world.run(world.random.randrange(1, 40) * MS)
    for _ in range(300):
        world.run(20 * MS)
        for end in ends:
            got[end] += taken(end)
    for end in ends:
        assert got[peers[end]] == sent[end]
        assert end.state is State.OPEN
    assert world.packets_lost == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_peer_that_dies_is_noticed_with_pings_alone(seed):
    """No notice, no answer: over after so many pings, and what came before can be read."""
    world = World(seed)
    here, there = world.connected()
    there.send(views(b"last words"))
    world.run(50 * MS)
    world.hosts[1].is_alive = False
    died_ns = world.now_ns
    if world.random.random() < 0.5:
        here.send(views(bytes(3 * WINDOW)))  # stuck for want of credit
    world.run((LIMITS.pings_max - 1) * LIMITS.ping_ns)
    assert not here.is_over
    while not here.is_over and world.now_ns < died_ns + 60_000 * MS:
        world.run(10 * MS)
    assert (LIMITS.pings_max + 2) * LIMITS.ping_ns >= world.now_ns - died_ns
    assert "silent" in here.reason and not here.is_closed
    assert list(taken(here)) == [(b"last words",)]
    assert here.is_closed
    with pytest.raises(LocalProtocolError):
        here.send(views(b"more"))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_peer_that_begins_anew_resets_the_session(seed):
    world = World(seed)
    here, _ = world.connected()
    world.hosts[1].start()
    here.send(views(b"for one that is gone"))
    world.run(50 * MS)
    assert here.is_over and here.reason == "reset by the peer"
    again, there = world.connected()
    again.send(views(b"x"))
    world.run(50 * MS)
    assert list(taken(there)) == [(b"x",)]


@pytest.mark.parametrize("seed", SEEDS)
def test_an_end_that_was_stopped_gives_no_peer_up(seed):
    """Its clock has moved on by an hour; its peer is there."""
    world = World(seed)
    here, there = world.connected()
    there.peer_is_watched = True  # the other way round a stopped process is silence
    world.hosts[0].is_stopped = True
    world.run(3_600_000 * MS, step_ns=500 * MS)
    world.hosts[0].is_stopped = False
    world.run(5 * LIMITS.ping_ns)
    there.send(views(b"good morning"))
    world.run(50 * MS)
    assert list(taken(here)) == [(b"good morning",)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reader_that_stops_holds_a_bounded_amount(seed):
    """Others of the same hosts go on; when it reads again, all of it comes."""
    world = World(seed)
    slow, slow_there = world.connected()
    fast, fast_there = world.connected()
    message = bytes(WINDOW // 2)
    sent = [slow.send(views(message)) for _ in range(40)]
    fast_got = 0
    for number in range(40):
        fast.send(views(message))
        world.run(30 * MS)
        fast_got += len(list(taken(fast_there)))
        assert slow_there.unread_bytes <= 2 * WINDOW + len(message)
        assert not slow.is_sent(sent[-1])
        assert fast_got >= number
    got = 0
    for _ in range(400):
        got += len(list(taken(slow_there)))
        world.run(10 * MS)
    assert got == 40 and slow.is_sent(sent[-1])


@pytest.mark.parametrize("seed", SEEDS)
def test_one_long_message_needs_no_reader(seed):
    """Both ends may write before they read, as with a TCP connection and its buffers."""
    world = World(seed)
    here, there = world.connected()
    numbers = {end: end.send(views(bytes(20 * WINDOW))) for end in (here, there)}
    world.run(3000 * MS)
    assert all(end.is_sent(number) for end, number in numbers.items())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cancelled_write_ends_the_session_and_no_half_message_is_seen(seed):
    world = World(seed)
    here, there = world.connected()
    here.send(views(b"whole"))
    here.send(views(bytes(world.random.randrange(2 * WINDOW, 9 * WINDOW))))
    world.run(world.random.randrange(3) * MS)
    here.abort()
    world.run(100 * MS)
    assert there.is_over
    assert list(taken(there)) in ([(b"whole",)], [])
    assert there.is_closed
    assert not list(world.hosts[0].hub) and not list(world.hosts[1].hub)


@pytest.mark.parametrize("seed", SEEDS)
def test_finish_lets_everything_leave(seed):
    world = World(seed)
    here, there = world.connected()
    sent = [_message(world.random) for _ in range(10)]
    for message in sent:
        here.send(views(*message))
    here.finish()
    got = []
    for _ in range(200):
        world.run(10 * MS)
        got += taken(there)
    assert got == sent
    assert there.is_closed and there.reason == "closed by the peer"
    assert here.is_closed and not list(world.hosts[0].hub)


@pytest.mark.parametrize("seed", SEEDS)
def test_connecting_waits_for_a_host_that_comes_late(seed):
    world = World(seed)
    world.hosts[1].is_alive = False
    here = world.connect(0, 1)
    world.run(2000 * MS)
    assert here.state is State.ASKING
    assert 8 <= world.packets_lost <= 20  # it asks again, with pauses
    world.hosts[1].start()
    world.run(500 * MS)
    assert here.state is State.OPEN
    assert len(world.hosts[1].accepted) == 1  # however often it asked


@pytest.mark.parametrize("seed", range(5))
def test_connecting_is_refused_by_a_host_that_does_not_listen(seed):
    world = World(seed)
    world.hosts[1].hub.is_listening = False
    here = world.connect(0, 1)
    world.run(50 * MS)
    assert here.is_over and here.reason == "refused by the peer"


@pytest.mark.parametrize("seed", SEEDS)
def test_who_gave_up_asking_leaves_no_session_behind(seed):
    world = World(seed)
    here = world.connect(0, 1)
    world.run(world.random.randrange(8) * MS)
    here.abort("the caller was cancelled")
    world.run(100 * MS)
    accepted = [session for _, session in world.hosts[1].accepted]
    for session in accepted:
        if not session.is_over:
            session.send(views(b"handshake"))
    world.run(100 * MS)
    assert all(session.is_over for session in accepted)
