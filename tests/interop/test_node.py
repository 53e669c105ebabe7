"""A node and a Linux kernel: programs share an address, and outlive the worker that serves them."""

import time
from pathlib import Path

import pytest

from tests.cli import stress_peer
from tests.programs.conftest import tools
from tests.shim import libraries

from .conftest import KERNEL_PORT, OUR_PORT, OUR_SETTINGS, Ends, Note, OpenOurs
from .exchanges import IDLE_S, judged, judged_exchange
from .lab.guest import GUEST, Lab
from .lab.node import Node
from .lab.remote import Remote
from .lab.wire import Direction

__all__ = ["tools"]

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400), pytest.mark.usefixtures("node")]

SIZES = (0, 1, 64, 8192, (1 << 20) - 8)
UPGRADES, KILLS, KILL_PAUSE_S = 10, 8, 0.5
COUNT = 25_000
MOVED = 50  # messages from the kernel between two upgrades
MOVED_S = 30.0
BURST, BURST_BYTES = 80, 65_536  # more than TCP takes at once
EXCHANGE = "exchange(s, target, count=count, seed=seed, idle_s=idle_s, size='size_small')"
SEND_LONG = "for number in range(count): s.sendto(message(number, body_bytes), target)"
PERL = r"""
use Socket;
my ($own, $kernel) = @ARGV;
socket(my $s, 21, 5, 0) or die "socket: $!";
bind($s, pack_sockaddr_in(5000, inet_aton($own))) or die "bind: $!";
defined(send($s, "question", 0, pack_sockaddr_in(4000, inet_aton($kernel)))) or die "send: $!";
my $bits = ''; vec($bits, fileno($s), 1) = 1;
select($bits, undef, undef, 20) == 1 or die "select: $!";
my $from = recv($s, my $data, 100, 0) or die "recv: $!";
my ($port, $source) = unpack_sockaddr_in($from);
print "$data ", inet_ntoa($source), " $port\n";
"""
STRESS_S = 4


@pytest.mark.short
def test_a_message_of_each_size_crosses_both_ways(ends: Ends) -> None:
    ends.open_sockets()
    sides = [(ends.ours, ends.guest, ends.kernel), (ends.guest, ends.ours, ends.us)]
    for sender, receiver, target in sides:
        for number, body_bytes in enumerate(SIZES):
            names = {"number": number, "body_bytes": body_bytes, "target": target}
            sender("s.sendto(message(number, body_bytes), target)", **names)
            assert receiver("number_of(s.recv(MESSAGE_BYTES_MAX))") == number
        sender("s.sendto(b'', (address, 0))", address=target[0])
        assert sender("s.recvfrom(100)") == (b"", (target[0], 0)), "no answer to a ping"


def test_two_programs_share_an_address(
    guest: Remote, open_ours: OpenOurs, our_address: str
) -> None:
    """The address has one connection; each program has its own messages and order."""
    names = {"count": 1000, "seed": 3, "idle_s": IDLE_S}
    with open_ours() as first, open_ours() as second:
        for index, ours in enumerate((first, second)):
            us, kernel = (our_address, OUR_PORT + index), (GUEST, KERNEL_PORT + index)
            ours("s = open_socket(*address)", address=us)
            guest(f"s{index} = open_socket(*address)", address=kernel)
            ours.start(EXCHANGE, target=kernel, **names)
        for index in range(2):
            target = (our_address, OUR_PORT + index)
            source = EXCHANGE.replace("(s,", f"(s{index},")
            assert sorted(guest(source, target=target, **names)) == list(range(1000))
        for ours in (first, second):
            assert ours.finish() == list(range(1000))


@pytest.mark.short
def test_upgrades_under_traffic_lose_nothing(ends: Ends, lab: Lab, note: Note, node: Node) -> None:
    """The next worker goes on with what the kernel has not, and with nothing that it has."""
    ends.open_sockets()
    with judged_exchange(ends, lab, note, count=COUNT // 2, seed=7, kernel_size="size_small"):
        for number in range(UPGRADES):
            _wait_until_moved(node, number)
            node.upgrade()
    note(upgrades=UPGRADES)


def test_killed_workers_lose_only_what_they_had_not_read(
    ends: Ends, lab: Lab, note: Note, node: Node
) -> None:
    """To the kernel nothing is lost or doubled; from it, what TCP had acknowledged dies unread."""
    ends.open_sockets()
    with judged_exchange(
        ends, lab, note, count=COUNT, seed=8, kernel_size="size_small", may_lose=Direction.TO_HOST
    ):
        for number in range(KILLS):
            _wait_until_moved(node, number)
            node.kill_worker()
            time.sleep(KILL_PAUSE_S)
    note(kills=KILLS)


def test_what_either_side_holds_arrives_after_an_upgrade(
    ends: Ends, lab: Lab, note: Note, node: Node
) -> None:
    """No socket sends anew: the next worker connects for what waits at the kernel as well."""
    ends.open_sockets()
    with judged(ends, lab, note, count=BURST) as received:
        for sender, receiver, target, way in (
            (ends.guest, ends.ours, ends.us, Direction.TO_HOST),
            (ends.ours, ends.guest, ends.kernel, Direction.TO_GUEST),
        ):
            sender(SEND_LONG, target=target, count=BURST, body_bytes=BURST_BYTES)
            node.upgrade()
            received[way] = receiver("receive_numbers(s, count)", count=BURST)


def test_perl_talks_with_a_kernel(lab: Lab, guest: Remote, node: Node, our_address: str) -> None:
    """A program that knows nothing of `urds`, under `urds run`."""
    guest("s = open_socket(*address)", address=(GUEST, KERNEL_PORT))
    guest.start("data, source = s.recvfrom(100); s.sendto(b'answer', source); (data, source)")
    said = _run(lab, node, "perl", "-e", PERL, our_address, GUEST)
    assert said == f"answer {GUEST} {KERNEL_PORT}\n"
    assert guest.finish() == (b"question", (our_address, OUR_PORT))


def test_rds_ping_of_a_kernel(lab: Lab, node: Node, our_address: str, tools: Path) -> None:
    said = _run(lab, node, str(tools / "rds-ping"), "-c", "5", "-I", our_address, GUEST)
    assert said.count("usec") == 5, said


@pytest.mark.parametrize("more", ["-t 1 -d 1", "-t 4 -d 4 -q 8192 -v", "-t 1 -d 2 -q 65536 -v"])
def test_rds_stress_with_a_kernel(
    lab: Lab, guest: Remote, node: Node, our_address: str, tools: Path, more: str
) -> None:
    """The unmodified program here, the scripted other side of it over the kernel's RDS there."""
    guest(Path(stress_peer.__file__).read_text())
    guest.start("passive(address, 4000)", address=GUEST)
    time.sleep(1.0)
    options = ["-r", our_address, "-s", GUEST, "-p", "4000", "-T", str(STRESS_S), *more.split()]
    said = _run(lab, node, str(tools / "rds-stress"), *options)
    counts = guest.finish()
    assert "(average)" in said
    assert min(counts["sent"], counts["received"]) > 0, (said, counts)


def _run(lab: Lab, node: Node, *program: str) -> str:
    """Run a program under `urds run` and return what it printed."""
    libraries.found()
    return lab.run("urds", "run", "--node", node.place, "--", *program, **OUR_SETTINGS)


def _wait_until_moved(node: Node, number: int) -> None:
    """Wait until the worker has had messages of the kernel."""
    until_s = time.monotonic() + MOVED_S
    while node.status()["report"]["counters"]["recv_queued"] < MOVED:
        assert time.monotonic() < until_s, f"no messages move after {number} upgrades"
        time.sleep(0.01)
