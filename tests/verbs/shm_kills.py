"""Processes that talk to a survivor over `shm0` and are killed at a random point of their work.

What must hold: a survivor reads whole messages without a gap up to the last one that was
published, then the end; what it sent comes back as completed or flushed, each once; memory that it
takes back is its own at once, also while the killed process was copying into it; nothing around
what a key allows changes; and nothing is left behind.

By hand, so many kills with a figure: `python -m tests.verbs.shm_kills --kills 500 --seed 1`
"""

import argparse
import gc
import json
import os
import random
import select
import signal
import socket
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.verbs.shm_world import ACCESS, BASE, PATIENCE_NS, Side
from urds.verbs.engine.keys import Region
from urds.verbs.engine.numbers import QPState, WCOpcode, WCStatus, WROpcode
from urds.verbs.engine.work import RecvWR, SendWR

PLACE_BITS: Final = 16  # of a message's place in the buffer
PLACES: Final = 16
# In the slot, in the ring, several packets.
LENGTHS: Final = (9, 80, 81, 300, 4096, 20_000, 40_000)
REGION_BYTES: Final = 8 << 20  # a copy takes a good while
EDGE_BYTES: Final = 1 << 16  # of a region, which no peer writes to
WRITE_BYTES: Final = 8192
DELAY_S: Final = 0.02  # at most, from the first message to the kill
LATE_S: Final = 0.1
PAUSE_S: Final = 0.000_05
LOOKS_MAX: Final = 10_000  # for a copy under way


def content(number: int) -> bytes:
    """Return message `number`: its number, then bytes that follow from it."""
    length = LENGTHS[number * 5 % len(LENGTHS)]
    return number.to_bytes(8, "big") + bytes([number % 251]) * (length - 8)


class End:
    """One queue pair of a side, with `PLACES` places for messages in the side's buffer."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.qp = side.new_qp()
        self.sent = self.done = self.flushed = 0
        self.heard: list[bytes] = []  # messages that were taken

    def lead(self, told: dict[str, Any], timeout: int = 0) -> None:
        """Connect to the end that told about itself; without `timeout` its end is told at once."""
        self.side.lead(self.qp, bytes.fromhex(told["gid"]), told["qpn"], timeout=timeout)

    def describe(self, **more: Any) -> dict[str, Any]:
        """Return what the other end must know."""
        return {"gid": self.side.adapter.gid.hex(), "qpn": self.qp.qpn, **more}

    def receive(self, place: int) -> None:
        """Post the receive of a place."""
        with self.side.adapter.lock:
            wr = RecvWR(place, self.side.piece(1 << PLACE_BITS, place << PLACE_BITS))
            self.qp.post_recv(wr, self.side.adapter.now_ns())
            self.side.adapter.progress_qp(self.qp)

    def send(self, message: bytes) -> None:
        """Send a message from the next place."""
        start = self.sent % PLACES << PLACE_BITS
        self.side.view[start : start + len(message)] = message
        self.side.post(SendWR(1, WROpcode.SEND, self.side.piece(len(message), start)), self.qp)
        self.sent += 1

    def write(self, key: int, at: int, length: int) -> None:
        """Write bytes of the buffer into memory of the peer."""
        wr = SendWR(1, WROpcode.RDMA_WRITE, self.side.piece(length), rkey=key)
        wr.remote_addr = BASE + at
        self.side.post(wr, self.qp)
        self.sent += 1

    def take(self, *, again: bool = True) -> None:
        """Take what has completed; a receive is posted again."""
        with self.side.adapter.lock:
            found = self.side.cq.poll(64)
        for wc in found:
            if wc.qp_num != self.qp.qpn:
                continue
            if wc.opcode is WCOpcode.RECV and wc.status is WCStatus.SUCCESS:
                start = wc.wr_id << PLACE_BITS
                self.heard.append(bytes(self.side.view[start : start + wc.byte_len]))
                if again:
                    self.receive(wc.wr_id)
            elif wc.opcode is not WCOpcode.RECV:
                self.done += wc.status is WCStatus.SUCCESS
                self.flushed += wc.status is not WCStatus.SUCCESS

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until something is so, or a completion is there."""
        cq = self.side.cq
        is_met = self.side.adapter.wait(lambda: len(cq) > 0 or until(), PATIENCE_NS)
        assert is_met, (self.sent, self.done, self.flushed, self.qp.state, len(self.heard))

    @property
    def is_over(self) -> bool:
        """Tell whether the peer is gone."""
        return self.qp.state is QPState.ERR


# -- who is killed


def write_messages(end: End, _: dict[str, Any]) -> None:
    """Send messages as fast as it goes."""
    while not end.is_over:
        while end.sent - end.done < PLACES and not end.is_over:
            end.send(content(end.sent))
        end.wait(lambda: end.is_over)
        end.take()


def read_messages(end: End, _: dict[str, Any]) -> None:
    """Take messages as fast as it goes."""
    while not end.is_over:
        end.wait(lambda: end.is_over)
        end.take()


def place_writes(end: End, told: dict[str, Any]) -> None:
    """Write into memory of the other process, which it has mapped."""
    length, has_told = REGION_BYTES - 2 * EDGE_BYTES, False
    while not end.is_over:
        end.write(told["key"], EDGE_BYTES, length)
        end.wait(lambda: end.is_over or end.done + end.flushed == end.sent)
        end.take()
        if end.side.adapter.writes_placed and not has_told:
            end.send(b"placed")
            has_told = True


def map_memory(end: End, _: dict[str, Any]) -> None:
    """Register memory, write into memory of the other end, take the own one back, and so on."""
    swap_keys(end, is_first=True)


ROLES: Final = {
    "writer": write_messages,
    "reader": read_messages,
    "placing": place_writes,
    "mapping": map_memory,
}


def swap_keys(end: End, *, is_first: bool, on_turn: Callable[[], None] = lambda: None) -> None:
    """Tell the other end a key in turn; each writes behind what it is told."""
    adapter, mapped = end.side.adapter, []

    def map_new() -> None:
        view = adapter.allocate(1 << 16)
        with adapter.lock:
            mapped.append(adapter.register(end.side.pd, view, BASE, ACCESS))
        end.send(b"k" + mapped[-1].rkey.to_bytes(4, "big"))

    if is_first:
        map_new()
    seen = 0
    while not end.is_over:
        on_turn()
        end.wait(lambda: end.is_over)
        end.take()
        for message in end.heard[seen:]:
            key = int.from_bytes(message[1:5], "big")
            for _ in range(3):
                end.write(key, 0, WRITE_BYTES)
            if len(mapped) > 1:
                with adapter.lock:
                    adapter.deregister(mapped.pop(0))
            map_new()
        seen = len(end.heard)
    for region in mapped:
        with adapter.lock:
            adapter.deregister(region)


def be_killed(connection: socket.socket) -> None:
    """Be the process that is killed; what it must know comes over the connection."""
    told = json.loads(connection.recv(1000))
    side = Side(Path(told["directory"]), buffer=memoryview(bytearray(REGION_BYTES)))
    end = End(side)
    for place in range(PLACES):
        end.receive(place)
    end.lead(told)
    connection.send(json.dumps(end.describe()).encode())
    connection.recv(1)
    with suppress(OSError):  # of what ends meanwhile
        ROLES[told["role"]](end, told)


class Nursery:
    """A process that has all modules and no device: its children begin at once."""

    def __init__(self) -> None:
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = os.fork()
        if not self._pid:
            own.close()
            try:
                self._serve(theirs)
            finally:
                os._exit(0)
        theirs.close()
        self._connection = own

    @staticmethod
    def _serve(connection: socket.socket) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no thread waits for the killed
        while True:
            data, descriptors, _, _ = socket.recv_fds(connection, 100, 1)
            if not data:
                return
            pid = os.fork()
            if not pid:
                connection.close()
                be_killed(socket.socket(fileno=descriptors[0]))
                os._exit(0)
            os.close(descriptors[0])
            connection.send(str(pid).encode())

    def start(self) -> tuple[int, socket.socket]:
        """Return the number of a new process, and a connection to it."""
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._connection, [b"start"], [theirs.fileno()])
        return int(self._connection.recv(100)), own

    def close(self) -> None:
        """End it."""
        self._connection.close()
        os.waitpid(self._pid, 0)


# -- who survives


class Survivor:
    """One device that outlives its peers."""

    def __init__(self, nursery: Nursery, directory: Path, seed: int) -> None:
        self.nursery = nursery
        self.directory = directory
        self.side = Side(directory)
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.waits_s: dict[str, list[float]] = {role: [] for role in ROLES}  # of deregistrations
        self._pidfd = -1
        self._late_looks = 0
        self.side.adapter.mappable_keys._pause = self._pause

    def close(self) -> None:
        """Close the device."""
        self.side.close()

    def lose_peer(self, role: str) -> None:
        """Have a peer killed while it does its work. Raises AssertionError if a rule is broken."""
        pid, connection = self.nursery.start()
        self._pidfd, self._late_looks = os.pidfd_open(pid), 0
        end = End(self.side)
        view = self.side.adapter.allocate(REGION_BYTES)
        edges = os.urandom(EDGE_BYTES)
        view[:EDGE_BYTES] = view[-EDGE_BYTES:] = edges
        with self.side.adapter.lock:
            region = self.side.adapter.register(self.side.pd, view, BASE, ACCESS)
        told = end.describe(role=role, directory=str(self.directory), key=region.rkey)
        connection.send(json.dumps(told).encode())
        end.lead(json.loads(connection.recv(1000)))
        for place in range(PLACES):
            end.receive(place)
        connection.send(b"!")
        if role == "placing":
            self._survive_placing(end, pid, region)
        else:
            getattr(self, f"_survive_{role}")(end, pid)
            self._take_back(role, region)
        assert view[:EDGE_BYTES] == view[-EDGE_BYTES:] == edges
        self._see_end(end)
        self.counts[role] += 1
        connection.close()
        os.close(self._pidfd)

    def _take_back(self, role: str, region: Region) -> None:
        started_s = time.monotonic()
        with self.side.adapter.lock:
            self.side.adapter.deregister(region)
        self.waits_s[role].append(time.monotonic() - started_s)
        assert self.side.adapter.mappable_keys.revocations_overdue == 0
        # A look may fall between the end of the process and the one before it.
        assert self._late_looks <= 1, "waits for a process that has ended"

    def _pause(self) -> None:
        """Pause, as a deregistration does that waits for a copy; count those after the end."""
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        self._late_looks += bool(poller.poll(0))
        time.sleep(PAUSE_S)

    def _kill(self, pid: int) -> None:
        time.sleep(self.rng.random() * DELAY_S)
        os.kill(pid, signal.SIGKILL)

    def _see_end(self, end: End) -> None:
        while not end.is_over:
            end.wait(lambda: end.is_over)
            end.take(again=False)
        while len(self.side.cq):
            end.take(again=False)
        assert end.done + end.flushed == end.sent
        with self.side.adapter.lock:
            self.side.adapter.remove(end.qp)

    def _survive_writer(self, end: End, pid: int) -> None:
        while not end.heard:
            end.wait(lambda: False)
            end.take()
        self._kill(pid)
        while not end.is_over:
            end.wait(lambda: end.is_over)
            end.take(again=not end.is_over)
        while len(self.side.cq):
            end.take(again=False)
        assert end.heard == [content(number) for number in range(len(end.heard))]
        self.counts["messages"] += len(end.heard)

    def _survive_reader(self, end: End, pid: int) -> None:
        kill = self._killing(pid)
        while not end.is_over:
            while end.sent - end.done - end.flushed < PLACES and not end.is_over:
                with suppress(OSError):  # it has ended meanwhile
                    end.send(content(end.sent))
            end.take()
            if end.done:
                kill()
            end.wait(lambda: end.is_over or end.sent - end.done < PLACES)
        self.counts["messages"] += end.done

    def _survive_placing(self, end: End, pid: int, region: Region) -> None:
        while not end.heard:
            end.wait(lambda: False)
            end.take()
        adapter, peer = self.side.adapter, end.qp.peer
        assert peer is not None
        channel = adapter.peers.find(peer.dgid)
        assert channel is not None
        adapter.wait(lambda: False, int(self.rng.random() * DELAY_S * 1e9))
        with adapter.lock:  # no thread sees the end before the memory is taken back
            for _ in range(LOOKS_MAX):
                if channel.is_placing:
                    break
            os.kill(pid, signal.SIGKILL)
            self.counts["killed while placing"] += channel.is_placing
            self._take_back("placing", region)

    def _survive_mapping(self, end: End, pid: int) -> None:
        kill = self._killing(pid)
        swap_keys(end, is_first=False, on_turn=kill)
        self.counts["keys"] += len(end.heard)

    def _killing(self, pid: int) -> Callable[[], None]:
        """Return what kills once, when its time has come."""
        end_s = time.monotonic() + self.rng.random() * DELAY_S
        killed: list[int] = []

        def kill() -> None:
            if not killed and time.monotonic() >= end_s:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

        return kill


def descriptor_count() -> int:
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def main() -> None:
    """Kill so many processes, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    nursery = Nursery()
    with tempfile.TemporaryDirectory() as directory:
        survivor = Survivor(nursery, Path(directory) / "meet", arguments.seed)
        roles = list(ROLES)
        before = None
        for number in range(arguments.kills):
            survivor.lose_peer(roles[number % len(roles)])
            if number == len(roles):
                gc.collect()
                before = descriptor_count()
        gc.collect()
        print(f"{type(survivor.side.adapter).__name__}: {dict(survivor.counts)}")
        for role, waits_s in survivor.waits_s.items():
            late = sum(wait_s > LATE_S for wait_s in waits_s)
            middle_ms, last_ms = statistics.median(waits_s) * 1000, max(waits_s) * 1000
            print(
                f"deregistration, {role}: median {middle_ms:.2f}, longest {last_ms:.1f} ms;", end=""
            )
            print(f" {late} above {LATE_S} s")
        print(f"descriptors: {before} early, {descriptor_count()} at the end")
        survivor.close()
    nursery.close()


if __name__ == "__main__":
    main()
