"""Measure what a pool of short-lived workers costs, over urds and over pyzmq.

    benches/pool.py --workers 50 --jobs 5000 --rounds 3

Each worker is a process: it starts, imports, binds or connects, says that it is ready, does jobs
until it is told to stop, and ends. So a start and an end count for as much as in life, and most of
it is no message. The figure is the processor time of all processes, master included, which a busy
machine changes less than the time of the clock. Contenders take turns; the first round of each
compiles modules and is not counted.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import TypeAlias

NETWORK = "127.83.7"
WORKERS_MAX = 250
LIMIT_S = 300  # of one run
SILENCE_S = 60  # of all workers, for one that failed
JOB = b"j" * 64

Child: TypeAlias = "subprocess.Popen[bytes]"

URDS_WORKER = """
import sys, urds
sock = urds.socket()
sock.bind((sys.argv[1], 0))
master = (sys.argv[2], int(sys.argv[3]))
sock.sendto(b"ready", master)
while (job := sock.recvfrom(100)[0]) != b"stop":
    sock.sendto(b"%d" % sum(job), master)
"""
ZMQ_WORKER = """
import sys, zmq
sock = zmq.Context.instance().socket(zmq.DEALER)
sock.connect("tcp://%s:%s" % (sys.argv[2], sys.argv[3]))
sock.send(b"ready")
while (job := sock.recv()) != b"stop":
    sock.send(b"%d" % sum(job))
"""
# Of a contender: its name, its master, its environment.
CONTENDERS: dict[str, tuple[str, dict[str, str]]] = {
    "urds, native plane": ("urds", {"URDS_IMPL": "native"}),
    "urds, python plane": ("urds", {"URDS_IMPL": "python"}),
    "pyzmq": ("zmq", {}),
}


def start(program: str, *arguments: object) -> Child:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command)


def urds_master(workers: int, jobs: int) -> list[Child]:
    """Give each worker a job for each answer, then the word to stop."""
    import urds

    sock = urds.socket()
    sock.settimeout(SILENCE_S)
    sock.bind((f"{NETWORK}.1", 0))
    host, port = sock.getsockname()[:2]
    hosts = (f"{NETWORK}.{number + 2}" for number in range(workers))
    started = [start(URDS_WORKER, own, host, port) for own in hosts]
    for _ in range(jobs):
        sock.sendto(JOB, sock.recvfrom(100)[1])
    for _ in range(workers):
        sock.sendto(b"stop", sock.recvfrom(100)[1])
    return started


def zmq_master(workers: int, jobs: int) -> list[Child]:
    """Do the same with DEALER and ROUTER, over TCP as well."""
    import zmq

    sock = zmq.Context.instance().socket(zmq.ROUTER)
    sock.setsockopt(zmq.RCVTIMEO, SILENCE_S * 1000)
    port = sock.bind_to_random_port("tcp://127.0.0.1")
    started = [start(ZMQ_WORKER, "-", "127.0.0.1", port) for _ in range(workers)]
    for _ in range(jobs):
        sock.send_multipart([sock.recv_multipart()[0], JOB])
    for _ in range(workers):
        sock.send_multipart([sock.recv_multipart()[0], b"stop"])
    return started


MASTERS: dict[str, Callable[[int, int], list[Child]]] = {
    "urds": urds_master,
    "zmq": zmq_master,
}


def spent_s(whose: int) -> float:
    used = resource.getrusage(whose)
    return used.ru_utime + used.ru_stime


def run(name: str, workers: int, jobs: int) -> tuple[float, float]:
    """Run a contender; return the processor time of its workers and of its master, in seconds."""
    kind, environment = CONTENDERS[name]
    everything = {**os.environ, **environment}
    everything.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process compiles everything
    command = [sys.executable, __file__, "--master", kind]
    command += ["--workers", str(workers), "--jobs", str(jobs)]
    done = subprocess.run(
        command, env=everything, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S
    )
    of_workers, of_master = map(float, done.stdout.split())
    return of_workers, of_master


def missing(name: str) -> str:
    module = {"pyzmq": "zmq", "urds, native plane": "urds_native"}.get(name, "urds")
    return "" if find_spec(module) else f"{module} is not installed"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what a pool of workers costs.")
    parser.add_argument("--workers", type=int, default=50, help=f"up to {WORKERS_MAX} processes")
    parser.add_argument("--jobs", type=int, default=5000, help="messages with an answer")
    parser.add_argument("--rounds", type=int, default=3, help="runs that count, of each contender")
    parser.add_argument("--master", choices=MASTERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not 1 <= options.workers <= WORKERS_MAX or options.jobs < 0 or options.rounds < 1:
        parser.error(f"give 1 to {WORKERS_MAX} workers, 0 jobs or more, 1 round or more")
    if options.master:
        for one in MASTERS[options.master](options.workers, options.jobs):
            one.wait()
        print(spent_s(resource.RUSAGE_CHILDREN), spent_s(resource.RUSAGE_SELF))
        return
    report(options)


def report(options: argparse.Namespace) -> None:
    measured: dict[str, list[tuple[float, float]]] = {
        name: [] for name in CONTENDERS if not missing(name)
    }
    for turn in range(options.rounds + 1):
        for name, figures in measured.items():
            figure = run(name, options.workers, options.jobs if turn else 0)
            if turn:
                figures.append(figure)
    print(f"{options.workers} workers, {options.jobs} jobs, processor time, the median of", end=" ")
    print(f"{options.rounds} rounds (lowest to highest):")
    sums = {name: sorted(map(sum, figures)) for name, figures in measured.items()}
    other = statistics.median(sums["pyzmq"]) if "pyzmq" in sums else None
    for name, every in sums.items():
        median = statistics.median(every)
        workers = statistics.median(one for one, _ in measured[name]) / options.workers
        ratio = f", {median / other:.2f} of pyzmq" if other else ""
        print(f"{name:20} {median:6.2f} s ({every[0]:.2f} to {every[-1]:.2f}), ", end="")
        print(f"a worker {workers * 1000:.1f} ms{ratio}")
    for name in CONTENDERS:
        if reason := missing(name):
            print(f"{name:20} not measured: {reason}")


if __name__ == "__main__":
    main()
