"""The supervisor: workers that die, upgrades, the end, a second start, what systemd wants."""

import errno
import fcntl
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from tests.rds.node.conftest import WAIT_S, Node, StartNode, wait_until
from tests.rds.node.stand_in import DEATH_FILE, FORMAT_FILE
from urds.rds.node import commands
from urds.rds.node.channel import Channel
from urds.rds.runtime.places import is_served
from urds.rds.wire.node import Name, RequestOp

DESCRIPTORS_TOO_FEW = 9  # a node has 7 before it starts its first process


def kill_worker(node: Node) -> int:
    """Kill the worker; return the process of the next one that answers."""
    before = node.status()["worker"]
    os.kill(before, signal.SIGKILL)

    def other() -> int:
        try:
            now = node.status()["worker"]
        except ConnectionError:  # it was in the queue of the one that died
            return 0
        return 0 if now == before else now

    return wait_until(other)


def test_a_worker_that_dies_is_replaced_and_sockets_stay(start_node: StartNode) -> None:
    node = start_node()
    unbound, bound = node.open(), node.open()
    cookies = [node.ask(RequestOp.FIND, one)[0].socket for one in (unbound, bound)]
    port = node.bind(bound, "127.0.0.9")
    option = {"level": socket.SOL_SOCKET, "option": socket.SO_RCVBUF}
    node.ask(RequestOp.SET_OPTION, bound, **option, data=(4096).to_bytes(4, "little"))
    kill_worker(node)
    status = node.status()
    assert (status["sockets"], status["bound"], status["deaths"]) == (2, 1, 1)
    assert [node.ask(RequestOp.FIND, one)[0].socket for one in (unbound, bound)] == cookies
    with pytest.raises(OSError) as error:
        node.bind(bound, "127.0.0.9")
    assert error.value.errno == errno.EINVAL  # it is bound
    with pytest.raises(OSError) as error:
        node.bind(unbound, "127.0.0.9", port)
    assert error.value.errno == errno.EADDRINUSE
    assert node.bind(unbound, "127.0.0.9")
    node.close(bound)  # the new worker sees it
    wait_until(lambda: node.status()["sockets"] == 1)
    died = node.has_told("worker-died")
    assert died is not None
    assert died["status"] == "SIGKILL"


def test_a_socket_that_is_left_while_no_worker_runs_is_forgotten(start_node: StartNode) -> None:
    node = start_node()
    ends = [node.open(), node.open()]
    node.bind(ends[1])
    os.kill(node.status()["worker"], signal.SIGKILL)
    for one in ends:
        node.close(one)
    wait_until(lambda: (node.has_told("worker-serving") or {}).get("sockets") == 2)
    wait_until(lambda: node.status()["sockets"] == 0)


def test_after_the_third_death_there_is_a_pause(start_node: StartNode) -> None:
    node = start_node()
    for _ in range(4):
        kill_worker(node)
    pauses = [line["pause_s"] for line in node.events("worker-died")]
    assert pauses == [0.0, 0.0, 0.1, 0.2]


def test_workers_are_forked_from_one_process(start_node: StartNode) -> None:
    node = start_node()
    server = node.status()["fork_server"]
    for number in range(2, 5):
        kill_worker(node)
        status = node.status()
        assert (status["fork_server"], status["starts"]) == (server, number)
    assert len(node.events("fork-server-started")) == 1
    commands.upgrade(node.place)
    assert node.status()["fork_server"] != server
    wait_until(lambda: not Path(f"/proc/{server}").exists())


def test_a_fork_server_that_ends_is_replaced_and_the_worker_goes_on(start_node: StartNode) -> None:
    node = start_node()
    end = node.open()
    before = node.status()
    os.kill(before["fork_server"], signal.SIGKILL)
    wait_until(lambda: len(node.events("fork-server-started")) == 2)
    told = node.has_told("fork-server-ended")
    assert (told["fork_server"], told["reason"]) == (before["fork_server"], "SIGKILL")
    assert node.ask(RequestOp.FIND, end)
    assert node.status()["worker"] == before["worker"]
    kill_worker(node)  # whose parent is gone
    assert node.status()["sockets"] == 1
    assert node.has_told("worker-died")["status"] == "an unknown status"
    kill_worker(node)
    assert node.has_told("worker-died")["status"] == "SIGKILL"


def test_fork_server_and_worker_that_end_together_are_replaced(start_node: StartNode) -> None:
    node = start_node()
    end = node.open()
    before = node.status()
    for one in ("fork_server", "worker"):
        os.kill(before[one], signal.SIGKILL)
    wait_until(lambda: (node.has_told("worker-serving") or {}).get("sockets") == 1)
    assert node.ask(RequestOp.FIND, end)
    assert node.status()["fork_server"] != before["fork_server"]


def test_a_fork_server_that_hangs_is_replaced(start_node: StartNode) -> None:
    node = start_node()
    before = node.status()
    os.kill(before["fork_server"], signal.SIGSTOP)
    after = kill_worker(node)
    assert after != before["worker"]
    assert node.has_told("fork-server-started")["fork_server"] == node.status()["fork_server"]
    with pytest.raises(ProcessLookupError):
        os.kill(before["fork_server"], 0)


def test_a_worker_that_hangs_is_replaced_by_sighup(start_node: StartNode) -> None:
    """No request goes past such a worker, that of an upgrade neither."""
    node = start_node(end_wait_s=0.1)
    end = node.open()
    before = node.status()["worker"]
    os.kill(before, signal.SIGSTOP)
    node.process.send_signal(signal.SIGHUP)
    wait_until(lambda: node.has_told("worker-upgraded"))
    assert node.status()["worker"] != before
    assert node.ask(RequestOp.FIND, end)


def test_a_configuration_counts_from_the_upgrade_on(start_node: StartNode) -> None:
    """What a worker is forked with was read by the fork server, whatever the file says now."""
    node = start_node("[quota]\nsockets = 1\n")
    node.open()
    config = Path(node.place).parent / "node.toml"
    for text in ("[quota]\nsockets = 9\n", "[quota]\nsockets = 0\n"):
        config.write_text(text)
        kill_worker(node)
        with pytest.raises(OSError) as error:
            [node.open() for _ in range(4)]  # root has twice as much
        assert error.value.errno == errno.EMFILE
    os.kill(node.status()["fork_server"], signal.SIGKILL)  # the file is wrong now
    wait_until(lambda: len(node.events("fork-server-ended")) >= 2)
    assert "quota.sockets = 0" in node.has_told("fork-server-ended")["reason"]
    assert node.status()["sockets"]
    config.write_text("[quota]\nsockets = 9\n")
    commands.upgrade(node.place)
    for _ in range(7):
        node.open()


def test_a_worker_that_cannot_start_ends_the_node(start_node: StartNode) -> None:
    node = start_node(waits=False, worker=["-c", "import sys; sys.exit('no such thing')"])
    assert node.process.wait(WAIT_S) == 1
    assert node.has_told("node-stopped")["reason"] == "no worker could start"


def test_an_upgrade_starts_the_next_worker_first(start_node: StartNode) -> None:
    node = start_node()
    end = node.open()
    node.bind(end)
    for _ in range(3):
        before, after = commands.upgrade(node.place)
        assert before != after
        assert node.ask(RequestOp.FIND, end)
    status = node.status()
    assert (status["starts"], status["deaths"], status["bound"]) == (4, 0, 1)
    names = [json.loads(line)["event"] for line in node.log.read_text().splitlines()]
    first = names.index("worker-upgraded")
    assert names[:first].count("worker-started") == 2


def test_sighup_is_an_upgrade_that_reads_the_configuration_anew(start_node: StartNode) -> None:
    node = start_node("[quota]\nsockets = 1\n")
    before = node.status()["worker"]
    (Path(node.place).parent / "node.toml").write_text("[quota]\nsockets = 9\n")
    node.process.send_signal(signal.SIGHUP)
    wait_until(lambda: node.has_told("worker-upgraded"))
    assert node.status()["worker"] != before
    for _ in range(9):
        node.open()


def test_an_upgrade_that_fails_leaves_the_worker(start_node: StartNode) -> None:
    node = start_node("[quota]\nsockets = 1\n")
    before = node.status()["worker"]
    (Path(node.place).parent / "node.toml").write_text("[quota]\nsockets = 0\n")
    reason = "the old worker serves: .*node.toml: quota.sockets = 0: must be a whole number"
    with pytest.raises(OSError, match=reason):
        commands.upgrade(node.place)
    assert node.status()["worker"] == before
    told = node.has_told("upgrade-failed")
    assert told is not None
    assert "quota.sockets = 0" in told["reason"]


@contextmanager
def without_descriptors(node: Node) -> Iterator[None]:
    """Have the supervisor get no more descriptors meanwhile, so it can start no process."""
    before = resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (5, before[1]))
    yield
    resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, before)


def test_an_upgrade_without_descriptors_fails_and_leaves_the_worker(start_node: StartNode) -> None:
    node = start_node()
    end, before = node.open(), node.status()
    reason = "the old worker serves: no fork server can start: Too many open files"
    with without_descriptors(node), pytest.raises(OSError, match=reason):
        commands.upgrade(node.place)
    assert node.ask(RequestOp.FIND, end)
    assert node.status()["worker"] == before["worker"]
    commands.upgrade(node.place)
    assert node.ask(RequestOp.FIND, end)


def test_a_fork_server_that_cannot_be_replaced_is_tried_again(start_node: StartNode) -> None:
    node = start_node()
    end, before = node.open(), node.status()
    with without_descriptors(node):
        os.kill(before["fork_server"], signal.SIGKILL)
        wait_until(lambda: len(node.events("fork-server-ended")) >= 2)
    told = node.has_told("fork-server-ended")
    assert told["reason"] == "no fork server can start: Too many open files"
    wait_until(lambda: len(node.events("fork-server-started")) == 2)
    assert node.ask(RequestOp.FIND, end)
    kill_worker(node)
    assert node.ask(RequestOp.FIND, end)


def test_a_node_that_cannot_begin_leaves_no_socket(start_node: StartNode) -> None:
    limited = ("sh", "-c", f'ulimit -n {DESCRIPTORS_TOO_FEW}; exec "$@"', "sh")
    node = start_node(waits=False, prefix=limited)
    assert node.process.wait(WAIT_S) == 1
    reason = "no fork server can start: Too many open files"
    assert node.has_told("node-stopped")["reason"] == reason
    assert not Path(node.place).exists()


def node_with_format(start_node: StartNode, tmp_path: Path) -> tuple[Node, Path]:
    """Return a node and the file that names the format of memory of its next worker."""
    file = tmp_path / "format"
    file.write_text("first")
    return start_node(variables={FORMAT_FILE: str(file)}), file


def test_a_worker_with_another_memory_waits_for_the_last_socket(
    start_node: StartNode, tmp_path: Path
) -> None:
    node, file = node_with_format(start_node, tmp_path)
    end = node.open()
    node.bind(end)
    before = node.status()["worker"]
    file.write_text("second")
    reason = "memory of format first, the new worker has memory of format second: upgrade once"
    with pytest.raises(OSError, match=reason):
        commands.upgrade(node.place)
    assert node.status()["worker"] == before
    assert node.ask(RequestOp.FIND, end)
    node.close(end)
    wait_until(lambda: not any(node.status()[one] for one in ("sockets", "closing")))
    assert commands.upgrade(node.place)[0] == before
    node.open()


@pytest.mark.parametrize("call", ["bind", "memory_bytes"])
def test_a_worker_that_dies_while_it_makes_a_bound_socket_leaves_its_port(
    start_node: StartNode, tmp_path: Path, call: str
) -> None:
    """It dies before the supervisor has the socket, and after that: its program asks again."""
    file = tmp_path / "death"
    node = start_node(variables={DEATH_FILE: str(file)})
    before = node.status()["worker"]
    file.write_text(call)
    name = Name(ip_address("127.0.0.9"), 4000)
    values = {"flags": 0, "name": name, "transport": 0xFFFF_FFFF, "data": b""}
    with pytest.raises(ConnectionError):
        node.ask(RequestOp.OPEN_AND_BIND, **values)
    end = node.ask(RequestOp.OPEN_AND_BIND, **values)[1][0]
    wait_until(lambda: node.status()["sockets"] == 1)
    status = node.status()
    assert (status["bound"], status["deaths"]) == (1, 1)
    assert status["worker"] != before
    assert sum(user["sockets"] for user in status["users"]) == 1
    kill_worker(node)  # the supervisor has it with its name
    assert node.status()["bound"] == 1
    node.close(end)
    wait_until(lambda: node.status()["sockets"] == 0)


def test_after_a_death_a_worker_with_another_memory_begins_anew(
    start_node: StartNode, tmp_path: Path
) -> None:
    node, file = node_with_format(start_node, tmp_path)
    end = node.open()
    node.bind(end)
    file.write_text("second")
    kill_worker(node)
    told = node.has_told("socket-lost")
    assert told is not None
    assert "format second" in told["reason"]
    assert os.read(end, 1) == b""  # its end
    node.open()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_node_in_order(
    start_node: StartNode, number: signal.Signals, code: int
) -> None:
    node = start_node()
    end = node.open()
    worker = node.status()["worker"]
    node.process.send_signal(number)
    assert node.process.wait(WAIT_S) == code
    assert not Path(node.place).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    with socket.socket(fileno=os.dup(end)) as one:  # its program sees the end
        one.settimeout(WAIT_S)
        assert one.recv(1) == b""


def test_a_node_stops_on_request(start_node: StartNode) -> None:
    node = start_node()
    commands.stop(node.place)
    assert node.process.wait(WAIT_S) == 0
    assert node.has_told("node-stopped")["reason"] == "a request"


def test_without_its_supervisor_a_worker_ends(start_node: StartNode) -> None:
    node = start_node()
    end = node.open()
    worker = node.status()["worker"]
    node.process.kill()
    with socket.socket(fileno=os.dup(end)) as one:
        one.settimeout(WAIT_S)
        assert one.recv(1) == b""
    wait_until(lambda: _is_dead(worker))


def _is_dead(pid: int) -> bool:
    """Tell whether a process has ended, reaped or not; it may be reaped during the look."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_node_without_sockets_ends_by_itself(start_node: StartNode) -> None:
    node = start_node(idle_exit_s=0.3)
    end = node.open()
    node.bind(end)
    wait_until(lambda: node.has_told("socket-bound"))
    with pytest.raises(TimeoutError):
        _wait_briefly(node)
    node.close(end)
    assert node.process.wait(WAIT_S) == 0
    assert node.has_told("node-stopped")["reason"] == "nothing to do"
    assert not Path(node.place).exists()


def _wait_briefly(node: Node) -> None:
    """Wait for longer than the idle time, for the end of a node that has a socket."""
    import subprocess

    try:
        node.process.wait(1.5)
    except subprocess.TimeoutExpired as late:
        raise TimeoutError from late


def test_a_second_node_of_a_place_says_who_has_it(start_node: StartNode) -> None:
    node = start_node()
    second = start_node(waits=False, place=node.place)
    assert second.process.wait(WAIT_S) == 1
    said = second.log.read_text().strip()
    assert said == f"urds node: a node runs at {node.place} already"
    assert node.status()["sockets"] == 0


def test_two_starts_at_once_make_one_node(start_node: StartNode, tmp_path: Path) -> None:
    place = str(tmp_path / "both.sock")
    both = [start_node(waits=False, place=place) for _ in range(4)]
    ended = wait_until(lambda: sum(one.process.poll() is not None for one in both) == 3)
    assert ended
    assert {one.process.returncode for one in both} == {None, 1}
    wait_until(lambda: any(one.has_told("worker-serving") for one in both))
    assert commands.status(place)["sockets"] == 0


def test_a_socket_that_an_ended_node_left_is_replaced(start_node: StartNode) -> None:
    first = start_node()
    first.process.kill()
    first.process.wait()
    wait_until(lambda: not is_served(first.place))  # its worker ends a moment later
    second = start_node(place=first.place)
    assert second.status()["sockets"] == 0


def test_a_file_that_is_no_socket_is_left_alone(start_node: StartNode, tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("precious")
    node = start_node(waits=False, place=str(place))
    assert node.process.wait(WAIT_S) == 1
    assert "is no socket" in node.log.read_text()
    assert place.read_text() == "precious"


# -- systemd

LISTEN = """
import os, sys
os.environ["LISTEN_PID"] = str(os.getpid())
for at, name in enumerate(sys.argv[1].split(":")):
    os.set_inheritable(3 + at, True)
os.environ["LISTEN_FDS"], os.environ["LISTEN_FDNAMES"] = str(at + 1), sys.argv[1]
os.execv(sys.argv[2], sys.argv[2:])
"""


class Manager:
    """What systemd is for a service: a socket for its lines, and a store of descriptors."""

    def __init__(self, folder: Path) -> None:
        self.place = str(folder / "notify")
        self._end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._end.bind(self.place)
        self._end.settimeout(0)
        self.lines: list[str] = []
        self.store: dict[str, int] = {}

    def hear(self) -> list[str]:
        """Take what came; return all lines."""
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._end, 4096, 4)
            except BlockingIOError:
                return self.lines
            lines = data.decode().splitlines()
            self.lines += lines
            name = next((one[7:] for one in lines if one.startswith("FDNAME=")), "")
            if "FDSTORE=1" in lines:
                self.store[name] = descriptors[0]
            elif "FDSTOREREMOVE=1" in lines:
                os.close(self.store.pop(name))

    def start(self, start_node: StartNode, listener: socket.socket, **options: object) -> Node:
        """Start a node as the unit does: with its socket, and what is in the store."""
        self.hear()
        descriptors = [listener.fileno(), *self.store.values()]
        names = ":".join(["urds-node.socket", *self.store])
        # Out of the way of 3, 4, ..., and of every descriptor of this process.
        passed = [fcntl.fcntl(one, fcntl.F_DUPFD, 3 + len(descriptors)) for one in descriptors]
        moves = "".join(f"os.dup2({one}, {3 + at}); " for at, one in enumerate(passed))
        prefix = [sys.executable, "-c", f"import os; {moves}\n{LISTEN}", names]
        try:
            return start_node(
                prefix=prefix, pass_fds=passed, place=str(listener.getsockname()),
                variables={"NOTIFY_SOCKET": self.place, "WATCHDOG_USEC": "600000"}, **options,
            )  # fmt: skip
        finally:
            for one in passed:
                os.close(one)


@pytest.fixture
def listener(tmp_path: Path) -> socket.socket:
    """Listen as a socket unit does."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(str(tmp_path / "unit.sock"))
    made.listen(9)
    return made


def test_a_manager_is_told_and_its_socket_is_used(
    start_node: StartNode, tmp_path: Path, listener: socket.socket
) -> None:
    manager = Manager(tmp_path)
    node = manager.start(start_node, listener)
    wait_until(lambda: "READY=1" in manager.hear())
    wait_until(lambda: manager.hear().count("WATCHDOG=1") >= 2)
    worker = node.status()["worker"]
    os.kill(worker, signal.SIGSTOP)  # it says nothing: the watchdog starves
    wait_until(lambda: _starves(manager))
    os.kill(worker, signal.SIGCONT)
    assert node.end() == 0
    assert "STOPPING=1" in manager.hear()
    assert Path(node.place).exists()  # it is the manager's
    listener.close()


def _starves(manager: Manager) -> bool:
    import time

    before = manager.hear().count("WATCHDOG=1")
    time.sleep(0.8)  # longer than two of its intervals
    return manager.hear().count("WATCHDOG=1") == before


def test_sockets_outlive_a_restart_of_the_service(
    start_node: StartNode, tmp_path: Path, listener: socket.socket
) -> None:
    manager = Manager(tmp_path)
    node = manager.start(start_node, listener)
    ends = [node.open(), node.open(), node.open()]
    port = node.bind(ends[0], "127.0.0.7")
    node.close(ends[2])
    wait_until(lambda: manager.hear() and len(manager.store) == 2 + 2 * 4)
    kept, node.opened = node.opened, []
    assert node.end() == 0
    again = manager.start(start_node, listener)
    again.opened = kept
    status = again.status()
    assert (status["sockets"], status["bound"]) == (2, 1)
    assert again.bind(ends[1], "127.0.0.7")
    with pytest.raises(OSError) as error:
        again.bind(ends[1], "127.0.0.7", port)
    assert error.value.errno == errno.EINVAL
    again.close_opened()
    wait_until(lambda: manager.hear() and len(manager.store) == 2)  # what sockets share stays
    listener.close()


def test_a_store_that_was_full_costs_the_sockets_that_it_has_in_part(
    start_node: StartNode, tmp_path: Path, listener: socket.socket
) -> None:
    """By `FileDescriptorStoreMax=` systemd cuts in the middle of a socket."""
    manager = Manager(tmp_path)
    node = manager.start(start_node, listener)
    whole, cut = node.open(), node.open()
    wait_until(lambda: manager.hear() and len(manager.store) == 2 + 2 * 4)
    kept, node.opened = node.opened, []
    assert node.end() == 0
    for name in list(manager.store)[-3:]:
        os.close(manager.store.pop(name))
    again = manager.start(start_node, listener)
    again.opened = kept
    assert again.status()["sockets"] == 1
    assert again.bind(whole, "127.0.0.7")
    with socket.socket(fileno=os.dup(cut)) as end:
        end.settimeout(WAIT_S)
        assert end.recv(1) == b""
    listener.close()


def test_a_socket_of_another_kind_is_refused(start_node: StartNode, tmp_path: Path) -> None:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.bind(str(tmp_path / "stream.sock"))
    stream.listen()
    node = Manager(tmp_path).start(start_node, stream, waits=False)
    assert node.process.wait(WAIT_S) == 1
    assert "ListenSequentialPacket=" in node.log.read_text()
    stream.close()


def test_messages_of_the_channel_wait_for_a_slow_reader() -> None:
    own, other = Channel.pair()
    there = Channel(other)
    for number in range(2000):
        own.send_soon("note", socket=number, record="x" * 1000)
    assert own.has_waiting
    taken = []
    while len(taken) < 2000:
        own.flush()
        found = there.receive(wait_s=5)
        assert found is not None
        taken.append(found[0]["socket"])
    assert taken == list(range(2000))
    own.close()
    with pytest.raises(EOFError):
        there.receive(wait_s=5)
    there.close()
