"""A server with one socket, clients that it answers, and clients that ask, read nothing, and die.

`python -m tests.rds.transports.tcp.frozen [--dead 1000] [--wait 31] [--rounds 2000]` prints the
round trips per
second of the honest clients before, beside and after them. Each part is a process of its own.
"""

from __future__ import annotations

import argparse
import errno
import socket
import sys
import threading
import time
from contextlib import ExitStack, suppress
from ipaddress import ip_address
from typing import Final

import urds
from tests.rds.transports.tcp.faults import reset
from tests.rds.transports.tcp.frames import emit_frame, emit_map
from tests.support import planes
from tests.support.children import Child
from urds.rds.constants import MSG_DONTWAIT, RDS_TCP_PORT

SERVER: Final = ("127.102.9.1", 700)  # above the frozen: who is below connects
HONEST: Final = "127.102.10.1"
FROZEN: Final = "127.102.2.1"
CLIENTS: Final = 31
QUESTIONS: Final = 3000
ANSWER_BYTES: Final = 1000  # of all honest clients they fit into one account
_NOT_NOW: Final = (errno.EAGAIN, errno.ENOBUFS)
_ANSWER_S: Final = 10.0
_RECEIVE_BYTES: Final = 8192  # of a client that reads nothing


def _hosts(first: str, count: int) -> list[str]:
    return [str(ip_address(first) + number) for number in range(count)]


# -- the server


def serve(way: str) -> None:
    """Answer in one of three ways: by threads, by epoll, by tasks."""
    with urds.Socket() as sock:
        sock.bind(SERVER)
        print("up", flush=True)
        if way == "threads":
            serve_threads(sock)
        elif way == "poll":
            serve_polling(sock)
        else:
            import asyncio

            asyncio.run(serve_tasks(sock))


def _answer(sock: urds.Socket, client: tuple[str, int]) -> bool:
    try:
        sock.sendto(bytes(ANSWER_BYTES), int(MSG_DONTWAIT), client)
    except OSError as refused:
        if refused.errno not in _NOT_NOW:
            raise
        return False
    return True


def serve_threads(sock: urds.Socket) -> None:
    """Answer each client in a thread of its own, which waits for room."""
    questions: dict[tuple[str, int], threading.Semaphore] = {}

    def answer(client: tuple[str, int], asked: threading.Semaphore) -> None:
        while asked.acquire():
            sock.sendto(bytes(ANSWER_BYTES), client)

    while True:
        client = sock.recvfrom(1 << 16)[1]
        asked = questions.get(client)
        if asked is None:
            asked = questions[client] = threading.Semaphore(0)
            threading.Thread(target=answer, args=(client, asked), daemon=True).start()
        asked.release()


def serve_polling(sock: urds.Socket) -> None:
    """Keep answers that found no room, one for each client, and try them when epoll says so."""
    import select

    sock.setblocking(False)
    poll = select.epoll()
    poll.register(sock.fileno(), select.EPOLLIN)
    waiting: dict[tuple[str, int], None] = {}
    while True:
        poll.poll()
        while True:
            try:
                client = sock.recvfrom(1 << 16)[1]
            except BlockingIOError:
                break
            if not _answer(sock, client):
                waiting[client] = None
        for client in list(waiting):
            if _answer(sock, client):
                del waiting[client]


async def serve_tasks(sock: urds.Socket) -> None:
    """Answer each client in a task of its own, which waits for room."""
    import asyncio

    from urds import aio

    tasks: dict[tuple[str, int], asyncio.Task[int]] = {}
    async with aio.Socket(sock) as served:
        while True:
            client = (await served.recv_from())[1]
            known = tasks.get(client)
            if known is None or known.done():
                tasks[client] = asyncio.create_task(served.send_to(bytes(ANSWER_BYTES), client))


# -- the honest clients, and the others


def ask() -> None:
    """Ask from every address in turn, so many rounds as each line of the input says."""
    with ExitStack() as ending:
        socks = []
        for host in _hosts(HONEST, CLIENTS):
            sock = ending.enter_context(urds.Socket())
            sock.bind((host, 0))
            sock.settimeout(_ANSWER_S)
            socks.append(sock)
        print("up", flush=True)
        for line in sys.stdin:
            began_s = time.perf_counter()
            for _ in range(int(line)):
                for sock in socks:
                    sock.sendto(b"?", SERVER)
                for sock in socks:
                    assert len(sock.recv(1 << 16)) == ANSWER_BYTES
            print(time.perf_counter() - began_s, flush=True)


def question(count: int) -> bytes:
    """Return the bytes of so many questions, after a map."""
    frames = (
        emit_frame(bytes(ANSWER_BYTES), sequence=number, source_port=7, target_port=SERVER[1])
        for number in range(1, count + 1)
    )
    return emit_map() + b"".join(frames)


def connected(host: str) -> socket.socket:
    """Connect as a kernel would that has little room for what it is sent."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
    connection.bind((host, 0))
    connection.settimeout(30)
    connection.connect((SERVER[0], RDS_TCP_PORT))
    return connection


def freeze(count: int) -> None:
    """Ask, read nothing, and stay until killed."""
    connection = connected(FROZEN)
    connection.sendall(question(count))
    print("asked", flush=True)
    sys.stdin.read()
    connection.close()


def die(count: int, questions: int) -> None:
    """Ask from many addresses, one after the other, and be gone, each with answers queued."""
    data = question(questions)
    for host in _hosts(FROZEN, count):
        with suppress(OSError):
            connection = connected(host)
            connection.sendall(data)
            time.sleep(0.002)
            reset(connection)
    print("dead", flush=True)


# -- all of it


class Part(Child):
    """A process of this program."""

    def __init__(self, *words: object) -> None:
        module = "tests.rds.transports.tcp.frozen"
        super().__init__("-m", module, *words, environ=planes.chosen())
        self.hear()

    def rounds(self, count: int) -> float:
        """Have the honest clients ask; return the seconds."""
        self.say(str(count))
        return float(self.hear())


def run(way: str, rounds: int, *, dead: int, wait_s: float) -> list[tuple[str, float, float]]:
    """Return what was measured: when, seconds, and the server's idle processor time per second.

    Raises EOFError when an honest client does not get its answer.
    """
    figures: list[tuple[str, float, float]] = []
    with ExitStack() as ending:

        def start(*arguments: object) -> Part:
            part = Part(*arguments)
            ending.callback(part.kill)
            return part

        server = start("serve", "--way", way)
        honest = start("ask")

        def measure(when: str) -> None:
            seconds, before_s = honest.rounds(rounds), server.cpu_s
            time.sleep(0.5)
            figures.append((when, seconds, (server.cpu_s - before_s) / 0.5))

        honest.rounds(max(1, rounds // 10))
        measure("before")
        frozen = start("freeze")
        measure("beside one that reads nothing")
        frozen.kill()
        measure("after it was killed")
        if dead:
            start("die", "--dead", dead)
            time.sleep(wait_s)
            measure(f"after {dead} died")
    return figures


def main() -> None:
    """Run a part, or all of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="?", choices=["serve", "ask", "freeze", "die"])
    parser.add_argument("--way", default="poll", choices=["threads", "poll", "tasks"])
    parser.add_argument("--questions", type=int, default=QUESTIONS)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--dead", type=int, default=0)
    parser.add_argument("--wait", type=float, default=31.0)
    chosen = parser.parse_args()
    with suppress(KeyboardInterrupt):
        if chosen.part == "serve":
            serve(chosen.way)
        elif chosen.part == "ask":
            ask()
        elif chosen.part == "freeze":
            freeze(chosen.questions)
        elif chosen.part == "die":
            die(chosen.dead, 40)
        else:
            for when, seconds, idle in run(
                chosen.way, chosen.rounds, dead=chosen.dead, wait_s=chosen.wait
            ):
                rate = chosen.rounds * CLIENTS / seconds
                print(f"{when:30} {rate:9.0f} answers/s, idle {idle:4.0%} of a core", flush=True)


if __name__ == "__main__":
    main()
