"""Traffic that crowds a device: several queue pairs, both directions at once, many threads.

Each queue pair has a thread that posts and waits for what it posted, and one that takes messages
in and gives their room back. Sizes go from one byte to a limit; every byte that arrives is
compared. A wait that takes longer than `LIMIT_S` is a hang, and everything ends with it.

Run as `python -m tests.verbs.stress_world DEVICE`, the fields of a plan behind it, it is the other
process of `crowd_processes`.
"""

import random
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from urds.verbs import (
    CQ,
    MR,
    PD,
    QP,
    WC,
    AccessFlag,
    Context,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    WCStatus,
    WROpcode,
)
from urds.verbs.providers.base import (
    ConnectionEventKind,
    ConnectParameters,
    PortSpace,
    VerbsConnectionEvent,
)

LIMIT_S = 15.0  # far beyond what any wait here takes
WAIT_NS = 20_000_000_000
DEPTH = 8  # requests of a queue pair under way
ROOMS = 3  # receives of a queue pair: fewer than the peer sends at once
PERIOD = 251  # of the bytes: a prime, so that a shifted message differs
_LOOPBACK = "127.0.0.1"
_ALL = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE | AccessFlag.REMOTE_READ


_OPCODES = (*[WROpcode.SEND] * 4, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ)
_FAR = struct.Struct(">QIQI")  # what a side says of its memory: pattern to read, room to write
Asked = tuple[WROpcode, int]  # what, and how many bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """What goes over each queue pair in each direction."""

    pairs: int = 3
    messages: int = 60
    size_max: int = 1 << 22
    size_min: int = 1
    seed: int = 1

    def requests(self, pair: int, *, from_listener: bool) -> "list[Asked]":
        """Return what one direction asks for: sends mostly, of sizes up to the limit."""
        rng = random.Random(f"{self.seed} {pair} {from_listener}")
        bits_min, bits_max = self.size_min.bit_length() - 1, self.size_max.bit_length() - 1
        return [
            (rng.choice(_OPCODES), 1 << rng.randint(bits_min, bits_max))
            for _ in range(self.messages)
        ]


class Channel:
    """One queue pair of a side, with queues of its own and memory for both directions."""

    def __init__(self, context: Context, pd: PD, plan: Plan) -> None:
        self.scq, self.rcq = CQ(context, 2 * DEPTH), CQ(context, 2 * DEPTH)
        init = QPInitAttr(
            scq=self.scq, rcq=self.rcq, cap=QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH)
        )
        self.qp = QP(pd, init, QPAttr(qp_access_flags=_ALL))
        self._room_bytes = plan.size_max
        self._pattern = bytes(range(PERIOD)) * (plan.size_max // PERIOD + 2)
        self._source = MR(pd, bytearray(self._pattern), _ALL)
        self._rooms = MR(pd, context.adapter.allocate(ROOMS * plan.size_max), _ALL)
        # Reads bring bytes here, a place for each under way; writes of the peer land behind them.
        self._read = MR(pd, bytearray((DEPTH + 1) * plan.size_max), _ALL)
        self._reading: dict[int, int] = {}  # request number: its size
        self.far = (0, 0, 0, 0)
        self._under_way = 0
        for room in range(ROOMS):
            self._post_receive(room)

    def _post_receive(self, room: int) -> None:
        piece = self._rooms.sge(room * self._room_bytes, self._room_bytes)
        self.qp.post_recv(RecvWR(room, [piece]))

    @property
    def near(self) -> bytes:
        """What the other side has to know of our memory."""
        place = self._read.buf + DEPTH * self._room_bytes
        return _FAR.pack(self._source.buf, self._source.rkey, place, self._read.rkey)

    def meet(self, said: bytes) -> None:
        """Take what the other side said of its memory."""
        self.far = _FAR.unpack(said[: _FAR.size])

    def ask(self, requests: Sequence[Asked]) -> None:
        """Post these requests and wait until all have completed; compare what reads brought."""
        for number, (opcode, size_bytes) in enumerate(requests):
            if self._under_way == DEPTH:
                self._reap(1)
            self.qp.post_send(self._request(number, opcode, size_bytes))
            self._under_way += 1
        self._reap(self._under_way)

    def _request(self, number: int, opcode: WROpcode, size_bytes: int) -> SendWR:
        shift = number % PERIOD
        pattern, pattern_key, place, place_key = self.far
        if opcode is WROpcode.RDMA_READ:
            self._reading[number] = size_bytes
            piece = self._read.sge(number % DEPTH * self._room_bytes, size_bytes)
            return SendWR(number, opcode, [piece], remote_addr=pattern + shift, rkey=pattern_key)
        piece = self._source.sge(shift, size_bytes)
        return SendWR(number, opcode, [piece], remote_addr=place, rkey=place_key)

    def _reap(self, count: int) -> None:
        for completion in self.scq.wait_for(count, LIMIT_S):
            _check(completion)
            self._under_way -= 1
            number = completion.wr_id
            if (size_bytes := self._reading.pop(number, None)) is not None:
                start = number % DEPTH * self._room_bytes
                self._compare(self._read.view[start : start + size_bytes], number)

    def _compare(self, data: memoryview, number: int) -> None:
        shift = number % PERIOD
        assert data == self._pattern[shift : shift + len(data)], f"request {number}"

    def receive(self, requests: Sequence[Asked]) -> None:
        """Receive the sends among the peer's requests, in order, and compare every byte."""
        for number, (opcode, size_bytes) in enumerate(requests):
            if opcode is not WROpcode.SEND:
                continue
            [completion] = self.rcq.wait_for(1, LIMIT_S)
            _check(completion)
            assert completion.byte_len == size_bytes, (number, completion, size_bytes)
            start = completion.wr_id * self._room_bytes
            self._compare(self._rooms.view[start : start + size_bytes], number)
            self._post_receive(completion.wr_id)


class Side:
    """One context and its channels: the one that listens, or the one that connects."""

    def __init__(self, device: str, plan: Plan, *, listens: bool) -> None:
        self.context = Context(device)
        self._adapter = self.context.adapter
        self._plan = plan
        self._listens = listens
        self._accepted = self._established = 0
        self._failures: list[Exception] = []
        pd = PD(self.context)
        self._channels = [Channel(self.context, pd, plan) for _ in range(plan.pairs)]

    def listen(self) -> int:
        """Listen, and return at which port."""
        with self._adapter.lock:
            listener = self._adapter.listen(
                (_LOOPBACK, 0), PortSpace.TCP, backlog=64, on_event=self._handle_event
            )
        return listener.local[1]

    def connect(self, port: int) -> None:
        """Connect all channels, one after another: the other side has them in the same order."""
        for index, channel in enumerate(self._channels):
            with self._adapter.lock:
                self._adapter.connect(
                    channel.qp.engine,
                    (_LOOPBACK, port),
                    PortSpace.TCP,
                    ConnectParameters(channel.near),
                    on_event=self._handle_event,
                )
            self._wait_established(index + 1)

    def start(self) -> list[threading.Thread]:
        """Start the threads of all channels, once these are connected."""
        self._wait_established(len(self._channels))
        threads = []
        for index, channel in enumerate(self._channels):
            ours = self._plan.requests(index, from_listener=self._listens)
            theirs = self._plan.requests(index, from_listener=not self._listens)
            for work, requests in ((channel.ask, ours), (channel.receive, theirs)):
                threads.append(threading.Thread(target=self._run, args=(work, requests)))
                threads[-1].start()
        return threads

    def check(self) -> None:
        """Raise what a thread has raised first."""
        for failure in self._failures:
            raise failure

    def _run(self, work: Callable[[Sequence[Asked]], None], requests: Sequence[Asked]) -> None:
        try:
            work(requests)
        except (OSError, AssertionError) as failure:
            self._failures.append(failure)

    def _wait_established(self, count: int) -> None:
        assert self._adapter.wait(lambda: self._established >= count, WAIT_NS), self._established

    def _handle_event(self, event: VerbsConnectionEvent) -> None:
        if event.kind is ConnectionEventKind.REQUEST:
            channel = self._channels[self._accepted]
            self._accepted += 1
            channel.meet(event.parameters.private_data)
            event.connection.on_event = self._handle_event
            event.connection.accept(channel.qp.engine, ConnectParameters(channel.near))
        elif event.kind is ConnectionEventKind.ESTABLISHED:
            if not self._listens:
                self._channels[self._established].meet(event.parameters.private_data)
            self._established += 1


def crowd(device: str, plan: Plan) -> None:
    """Run a plan between two contexts of this process. Raises what one of its threads raised."""
    left, right = Side(device, plan, listens=True), Side(device, plan, listens=False)
    with left.context, right.context:
        right.connect(left.listen())
        for thread in left.start() + right.start():
            thread.join()
        left.check()
        right.check()


def crowd_processes(device: str, plan: Plan) -> None:
    """Run a plan between this process and another one. Raises what a thread of ours raised."""
    words = map(str, (plan.pairs, plan.messages, plan.size_max, plan.size_min, plan.seed))
    with subprocess.Popen(
        [sys.executable, "-m", "tests.verbs.stress_world", device, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as peer:
        assert peer.stdin is not None and peer.stdout is not None
        side = Side(device, plan, listens=False)
        with side.context:
            side.connect(int(peer.stdout.readline()))
            for thread in side.start():
                thread.join()
            said = peer.stdout.readline()  # it has everything: who left now would be missed
            side.check()
            assert said == "done\n", said
            peer.stdin.close()
        assert peer.wait(LIMIT_S) == 0


def main(device: str, *words: str) -> None:
    """Be the other process: tell the port, then that everything went well."""
    side = Side(device, Plan(*map(int, words)), listens=True)
    with side.context:
        print(side.listen(), flush=True)
        for thread in side.start():
            thread.join()
        side.check()
        print("done", flush=True)
        sys.stdin.read()


def _check(completion: WC) -> None:
    assert completion.status is WCStatus.SUCCESS, completion


if __name__ == "__main__":
    main(*sys.argv[1:])
