"""One measurement of `benches/compare.py`: processor time per message of one row of its table.

    python benches/compare_worker.py rds_one_way_64 20000

Runs under the interpreter of either build and uses public names alone. Two processes, or one for
some rows, exchange messages: a quarter of them first, then as many as were asked for. The user and
system time of all threads of both during those goes to standard output as JSON. A call
that takes less than a microsecond is made in many short rounds, and the shortest of them counts for
all: other load of the machine makes a round longer, never shorter.
"""

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any

import urds
import urds.aio
from urds import dat, rsocket, verbs

PORT = 4000
PENDING_MAX = 64  # work requests of one queue pair
WAIT_S = 30.0


class End:
    """One side of a measurement. The listening side receives, the other one sends."""

    processes = 2
    round_calls = 0  # not 0: the shortest round of so many calls counts

    def __init__(self, payload_bytes: int) -> None:
        """Make what the side needs before it has a peer."""
        self.payload = b"x" * payload_bytes

    def listen(self) -> Any:
        """Return the address for the other side."""
        raise NotImplementedError

    def accept(self) -> None:
        """Wait for the other side, where that is needed."""

    def connect(self, address: Any) -> None:
        """Reach the listening side."""
        raise NotImplementedError

    def send(self, count: int) -> None:
        """Send `count` messages."""
        raise NotImplementedError

    def receive(self, count: int) -> None:
        """Receive `count` messages."""
        raise NotImplementedError


class Rds(End):
    """Blocking RDS sockets at two addresses of loopback."""

    def _bind(self, host: int) -> None:
        pair = os.getppid() if host == 2 else os.getpid()
        self.network = f"127.{16 + pair % 224}.{pair // 224 % 256}"
        self.socket = urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET)
        self.socket.bind((f"{self.network}.{host}", PORT))

    def listen(self) -> Any:
        self._bind(2)
        return [f"{self.network}.2", PORT]

    def connect(self, address: Any) -> None:
        self._bind(10)
        self.target = tuple(address)

    def send(self, count: int) -> None:
        sendto, payload, target = self.socket.sendto, self.payload, self.target
        for _ in range(count):
            sendto(payload, target)

    def receive(self, count: int) -> None:
        recvfrom, room = self.socket.recvfrom, len(self.payload)
        for _ in range(count):
            recvfrom(room)


class RdsRoundTrip(Rds):
    """The same, one message under way: it comes back."""

    def send(self, count: int) -> None:
        sendto, recvfrom, payload = self.socket.sendto, self.socket.recvfrom, self.payload
        for _ in range(count):
            sendto(payload, self.target)
            recvfrom(len(payload))

    def receive(self, count: int) -> None:
        sendto, recvfrom = self.socket.sendto, self.socket.recvfrom
        for _ in range(count):
            sendto(*recvfrom(len(self.payload)))


class RdsAsyncio(Rds):
    """Round trips of `urds.aio`."""

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        if not hasattr(self, "loop"):
            self.loop = asyncio.new_event_loop()
            self.aio = urds.aio.Socket(self.socket)
        self.loop.run_until_complete(work)

    def send(self, count: int) -> None:
        async def ask() -> None:
            for _ in range(count):
                await self.aio.send_to(self.payload, self.target)
                await self.aio.recv_from()

        self._run(ask())

    def receive(self, count: int) -> None:
        async def answer() -> None:
            for _ in range(count):
                await self.aio.send_to(*await self.aio.recv_from())

        self._run(answer())


class Rsocket(End):
    """A stream rsocket; the receiving side takes whole messages."""

    def listen(self) -> Any:
        self.listener = rsocket.Socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        return list(self.listener.getsockname())

    def accept(self) -> None:
        self.socket, _ = self.listener.accept()

    def connect(self, address: Any) -> None:
        self.socket = rsocket.Socket()
        self.socket.connect(tuple(address))

    def send(self, count: int) -> None:
        send, payload = self.socket.sendall, self.payload
        for _ in range(count):
            send(payload)

    def receive(self, count: int) -> None:
        receive, place = self.socket.recv_into, memoryview(bytearray(len(self.payload)))
        for _ in range(count):
            receive(place, 0, socket.MSG_WAITALL)


class Verbs(End):
    """SEND between two reliable queue pairs of the shared memory device."""

    def listen(self) -> Any:
        self.context = verbs.Context("shm0")
        target = verbs.AddrInfo("127.0.0.1", 0, flags=verbs.RAI_PASSIVE)
        self.listener = verbs.CMID(target, context=self.context)
        self.listener.listen()
        return self.listener.local_addr[1]

    def accept(self) -> None:
        self.identifier = self.listener.get_request(WAIT_S)
        self._prepare()
        self.identifier.accept(verbs.ConnParam(rnr_retry=7, retry=7))

    def connect(self, address: Any) -> None:
        self.context = verbs.Context("shm0")
        target = verbs.AddrInfo(dst="127.0.0.1", dst_service=address)
        self.identifier = verbs.CMID(target, context=self.context)
        self._prepare()
        self.identifier.connect(verbs.ConnParam(rnr_retry=7, retry=7), WAIT_S)

    def _prepare(self) -> None:
        self.scq, self.rcq = (verbs.CQ(self.context, 2 * PENDING_MAX) for _ in range(2))
        cap = verbs.QPCap(max_send_wr=PENDING_MAX, max_recv_wr=PENDING_MAX)
        self.identifier.create_qp(verbs.QPInitAttr(scq=self.scq, rcq=self.rcq, cap=cap))
        self.qp = self.identifier.qp
        memory = bytearray(PENDING_MAX * len(self.payload))
        self.memory = verbs.MR(self.identifier.pd, memory, verbs.AccessFlag.LOCAL_WRITE)
        for slot in range(PENDING_MAX):
            self._post_receive(slot)

    def _post_receive(self, slot: int) -> None:
        piece = self.memory.sge(slot * len(self.payload), len(self.payload))
        self.qp.post_recv(verbs.RecvWR(wr_id=slot, sg=[piece]))

    def send(self, count: int) -> None:
        pending, piece = 0, self.memory.sge(0, len(self.payload))
        for _ in range(count):
            if pending == PENDING_MAX:
                pending -= self._taken(self.scq.wait_for(1))
            self.qp.post_send(verbs.SendWR(sg=[piece]))
            pending += 1
        while pending:
            pending -= self._taken(self.scq.wait_for(1))

    def receive(self, count: int) -> None:
        for _ in range(count):
            [completion] = found = self.rcq.wait_for(1)
            self._taken(found)
            self._post_receive(completion.wr_id)

    def _taken(self, completions: list[verbs.WC]) -> int:
        for completion in completions:
            if completion.status is not verbs.WCStatus.SUCCESS:
                raise OSError(f"a work request ended with {completion.status.name}")
        return len(completions)


class Dat(End):
    """uDAPL: post a receive and a send, reap both; both endpoints are in this process."""

    processes = 1

    def connect(self, address: Any) -> None:
        sides = [dat.open("shm0") for _ in range(2)]
        (self.one, self.source), (self.other, self.target) = map(self._made, sides)
        requests = sides[1].create_evd(2, dat.EvdFlag.CR)
        point = sides[1].listen(evd=requests)
        self.one.connect(sides[1].address, point.conn_qual, timeout_s=WAIT_S)
        requests.wait(WAIT_S).cr.accept(self.other)
        for ep in (self.one, self.other):
            event = ep.connect_evd.wait(WAIT_S)
            if event.event_number != dat.DAT_CONNECTION_EVENT_ESTABLISHED:
                raise OSError(f"no connection: {event.event_number.name}")

    def _made(self, ia: dat.InterfaceAdapter) -> tuple[Any, Any]:
        pz = ia.create_pz()
        evds = [ia.create_evd(8, dat.EvdFlag.DTO) for _ in range(2)]
        attr = dat.EpAttr(max_recv_dtos=4, max_request_dtos=4)
        ep = pz.create_ep(*evds, ia.create_evd(8, dat.EvdFlag.CONNECTION), attr)
        return ep, pz.register(bytearray(len(self.payload))).triplet(0, len(self.payload))

    def send(self, count: int) -> None:
        source, target = self.one.request_evd, self.other.recv_evd
        for _ in range(count):
            self.other.post_recv([self.target])
            self.one.post_send([self.source])
            source.wait(WAIT_S).raise_for_status()
            target.wait(WAIT_S).raise_for_status()


class DatQuery(Dat):
    """uDAPL: ask for the counts of an endpoint that holds two buffers."""

    round_calls = 500

    def connect(self, address: Any) -> None:
        super().connect(address)
        for _ in range(2):
            self.other.post_recv([self.target])

    def send(self, count: int) -> None:
        query, ep = dat.dat_ep_recv_query, self.other
        for _ in range(count):
            query(ep)


TCP = {"URDS_SHARED_MEMORY": "0"}
RDMA = {"URDS_TRANSPORT": "ib", "URDS_RDMA_DEVICES": "shm0"}
# By name: the kind of end, the payload, the environment.
WORKS: dict[str, tuple[type[End], int, dict[str, str]]] = {
    "rds_one_way_64": (Rds, 64, TCP),
    "rds_one_way_1k": (Rds, 1024, TCP),
    "rds_one_way_64k": (Rds, 65_536, TCP),
    "rds_round_trip_64": (RdsRoundTrip, 64, TCP),
    "rds_asyncio_round_trip_64": (RdsAsyncio, 64, TCP),
    "rds_shm_one_way_64": (Rds, 64, {}),
    "rds_shm_round_trip_64": (RdsRoundTrip, 64, {}),
    "rds_rdma_one_way_64": (Rds, 64, RDMA),
    "rsocket_stream_64": (Rsocket, 64, {}),
    "rsocket_stream_64k": (Rsocket, 65_536, {}),
    "verbs_send_64": (Verbs, 64, {}),
    "dat_send_64": (Dat, 64, {}),
    "dat_recv_query": (DatQuery, 64, {}),
}


def spent_ns() -> int:
    """Return the processor time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return int((usage.ru_utime + usage.ru_stime) * 1e9)


def measure(end: End, count: int) -> int:
    """Exchange messages as the sending side; return what both sides spent on them."""
    first = max(1, count // 4)
    with ExitStack() as stack:
        peer = None
        if end.processes == 2:
            command = [sys.executable, *sys.argv, "--receive"]
            peer = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(peer.kill)
        end.connect(_line(peer))
        end.send(first)
        if end.round_calls:
            return _shortest_ns(end, count)
        _line(peer)
        before_ns = spent_ns()
        end.send(count)
        there_ns = _line(peer) or 0
        return spent_ns() - before_ns + there_ns


def _shortest_ns(end: End, count: int) -> int:
    """Return what `count` calls take at the pace of the shortest round."""
    rounds_ns = []
    for _ in range(max(1, count // end.round_calls)):
        before_ns = time.process_time_ns()
        end.send(end.round_calls)
        rounds_ns.append(time.process_time_ns() - before_ns)
    return count * min(rounds_ns) // end.round_calls


def receive(end: End, count: int) -> None:
    """Be the receiving side; print the address, a line between both parts, and what was spent."""
    _print(end.listen())
    end.accept()
    end.receive(max(1, count // 4))
    _print(None)
    before_ns = spent_ns()
    end.receive(count)
    _print(spent_ns() - before_ns)
    sys.stdin.read()  # acknowledgements go out until it is ended


def _print(value: Any) -> None:
    print(json.dumps(value), flush=True)


def _line(peer: "subprocess.Popen[str] | None") -> Any:
    if peer is None:
        return None
    assert peer.stdout is not None, "it is piped"
    line = peer.stdout.readline()
    if not line:
        raise SystemExit(f"the receiving side ended with exit code {peer.wait()}")
    return json.loads(line)


def main() -> None:
    """Measure one row, or be its receiving side."""
    name, count = sys.argv[1], int(sys.argv[2])
    kind, payload_bytes, settings = WORKS[name]
    os.environ.update(settings)
    end = kind(payload_bytes)
    if "--receive" in sys.argv:
        receive(end, count)
    else:
        _print({"spent_ns": measure(end, count), "messages": count, "from": urds.__file__})
        sys.stdout.flush()
        os._exit(0)  # the other side is gone: nothing to wait for


if __name__ == "__main__":
    main()
