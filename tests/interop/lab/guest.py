"""The lab: a network namespace, the wire, the guest, and Python on both sides of the wire.

    with Lab(ensure_image("6.1")) as lab, lab.open_guest() as guest, lab.open_ours() as ours: ...

The host's end of the wire has two addresses, one below and one above the guest's, because who
connects to which in RDS over TCP depends on their order. Everything the lab starts is its own child
and dies with it (PDEATHSIG), whatever way it goes; the namespace and the directory that a killed
run left behind are removed by the next one.
"""

import ctypes
import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from . import agent, wire
from .image import Image
from .remote import Remote, RemoteHang
from .wire import Orders

GUEST = agent.GUEST_ADDRESS
LOWER, HIGHER = "10.78.0.1", "10.78.0.100"  # ours, on either side of the guest's in order
BOOT_TIMEOUT_S = 120.0
RUN_TIMEOUT_S = 100.0
PREFIX = "urds-lab-"  # of namespaces and work directories, before our process number
NAMESPACES, WORK_DIRECTORIES = Path("/run/netns"), Path(tempfile.gettempdir())
CLONE_NEWNET = 0x40000000
HERE = Path(__file__).parent
WORKLOAD = (HERE / "workload.py").read_text()
KILL = """
import os, signal
try: os.kill(pid, signal.SIGKILL)
except ProcessLookupError: pass
"""


class Lab:
    """A booted guest. Enter it to boot (seconds), leave it to take everything down."""

    def __init__(self, image: Image) -> None:
        """Begin; `work` is a folder for files that go when the lab does."""
        self._image = image
        self._namespace = f"{PREFIX}{os.getpid()}"
        self.work = WORK_DIRECTORIES / self._namespace
        self._stack = ExitStack()
        self._overseer: Remote | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            remove_leftovers()
            self.work.mkdir()
            stack.callback(shutil.rmtree, self.work)
            stack.enter_context(network_namespace(self._namespace))
            self._wire = stack.enter_context(self._start_wire())
            self._configure_tap()
            if capture := os.environ.get("TEST_LAB_PCAP"):
                dump = ["tcpdump", "-i", "tap0", "-U", "-w", capture, "tcp port 16385"]
                stack.enter_context(child(self.inside(*dump)))
            self._machine = stack.enter_context(ExitStack())
            stack.callback(self._dismiss_overseer)
            self.reboot()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def reboot(self) -> None:
        """Stop the guest, if it runs, and boot it. Raises RuntimeError with the console."""
        self._dismiss_overseer()
        self._machine.close()
        (self.work / "console").unlink(missing_ok=True)
        machine = self._machine.enter_context(child(self._machine_command()))
        self._wait_until_ready(machine)

    @contextmanager
    def open_guest(self) -> Iterator[Remote]:
        """Open a process in the guest, with the workload in its names; kill it at the end."""
        remote = self._connect_guest()
        try:
            with closing(remote):
                remote(WORKLOAD)
                yield remote
        finally:
            # By its number and from another process: it may be blocked in a call.
            self.oversee(KILL, pid=remote.pid)

    def oversee(self, source: str, **names: object) -> Any:
        """Run `source` in a process of the guest that lives as long as it does, and has no socket.

        What is done for each test is done there: an emulated processor takes long to begin another.
        Raises as a call of `Remote` does.
        """
        try:
            if self._overseer is None:
                self._overseer = self._connect_guest()
                self._overseer(WORKLOAD)
            self._overseer.start(source, **names)
            return self._overseer.finish()
        except (OSError, RemoteHang):
            self._dismiss_overseer()
            raise

    def _dismiss_overseer(self) -> None:
        if self._overseer is not None:
            self._overseer.close()
            self._overseer = None

    @contextmanager
    def open_ours(self, **environment: str) -> Iterator[Remote]:
        """Open a process on our side, with the workload in its names; kill it at the end."""
        near, far = socket.socketpair()
        command = self.inside(sys.executable, str(HERE / "agent.py"), str(far.fileno()))
        with near, child(command, keep=far, environment=with_source(environment)):
            far.close()
            with closing(Remote(near, side="ours")) as remote:
                remote(WORKLOAD)
                yield remote

    def inside(self, *command: str) -> list[str]:
        """Return the command that runs `command` on our side, in the network namespace."""
        return ["ip", "netns", "exec", self._namespace, *command]

    def run(self, module: str, *arguments: str, **environment: str) -> str:
        """Run a module of Python on our side; return what it printed. Raises AssertionError."""
        command = self.inside(sys.executable, "-m", module, *arguments)
        variables = with_source(environment)
        variables.pop("URDS_IMPL", None)  # of the tests
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=RUN_TIMEOUT_S,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def order(self, orders: Orders) -> dict[str, int]:
        """Tell the wire what to do from now on; return its counts up to here."""
        return self._ask_wire(dataclasses.asdict(orders))

    def cut_now(self) -> dict[str, int]:
        """Reset every RDS connection on the wire; return the wire's counts."""
        return self._ask_wire({"cut_now": True})

    @contextmanager
    def recorded(self) -> Iterator[Path]:
        """Record what the wire lets through, into a file that is whole when this is left."""
        path = self.work / "recording.pcap"
        self._ask_wire({"record": str(path)})
        try:
            yield path
        finally:
            self._ask_wire({"record": None})

    def counts(self) -> dict[str, int]:
        """Return what the wire counted: cuts, blocked and lost frames."""
        return self._ask_wire({})

    def _ask_wire(self, body: dict[str, object]) -> dict[str, int]:
        self._wire.send(json.dumps(body).encode())
        counts: dict[str, int] = json.loads(self._wire.recv(65536))
        return counts

    def _connect_guest(self) -> Remote:
        """Open a process in the guest. Raises OSError with the console where that fails."""
        try:
            return Remote(connect_inside(self._namespace, (GUEST, agent.AGENT_PORT)), side="guest")
        except OSError as error:
            error.add_note(f"the guest does not answer; it said: {self._console()}")
            raise

    def _console(self) -> str:
        """Return the end of what the guest printed."""
        console = self.work / "console"
        return console.read_text(errors="replace")[-4000:] if console.exists() else "nothing"

    @contextmanager
    def _start_wire(self) -> Iterator[socket.socket]:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = self.inside(sys.executable, wire.__file__, "tap0", *self._wire_paths())
        command.append(str(far.fileno()))
        paths = filter(None, [str(HERE.parents[2]), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}  # for tests.support
        with near, child(command, keep=far, environment=environment):
            far.close()
            near.settimeout(10)
            near.send(b"{}")
            near.recv(65536)  # it answers when it has its ports
            yield near

    def _wire_paths(self) -> tuple[str, str]:
        return f"{self.work}/guest", f"{self.work}/wire"

    def _configure_tap(self) -> None:
        for address in (LOWER, HIGHER):
            _ip("-n", self._namespace, "address", "add", f"{address}/24", "dev", "tap0")
        _ip("-n", self._namespace, "link", "set", "tap0", "up")

    def _machine_command(self) -> list[str]:
        accelerator = os.environ.get("TEST_LAB_ACCEL", "tcg,thread=multi")
        guest_path, wire_path = self._wire_paths()
        wiring = f"local.type=unix,local.path={guest_path},remote.type=unix,remote.path={wire_path}"
        kernel_line = (
            "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable random.trust_cpu=on"
        )
        return [
            *("qemu-system-x86_64", "-accel", accelerator, "-cpu", "max", "-machine", "q35"),
            *("-smp", "2", "-m", "1G", "-display", "none", "-monitor", "none", "-no-reboot"),
            *("-serial", f"file:{self.work}/console"),
            *("-kernel", str(self._image.kernel), "-initrd", str(self._image.initrd)),
            *("-append", kernel_line),
            *("-drive", f"file={self._image.root},format=raw,if=virtio,snapshot=on"),
            *("-fw_cfg", f"name=opt/agent.py,file={agent.__file__}"),
            *("-device", "virtio-rng-pci", "-nic", "none"),
            *("-netdev", f"dgram,id=net,{wiring}", "-device", "virtio-net-pci,netdev=net"),
        ]

    def _wait_until_ready(self, machine: "subprocess.Popen[bytes]") -> None:
        """Wait for the agent's word on the console. Raises RuntimeError with the console."""
        console = self.work / "console"
        deadline_s = time.monotonic() + BOOT_TIMEOUT_S
        while machine.poll() is None and time.monotonic() < deadline_s:
            if console.exists() and agent.READY in console.read_text(errors="replace"):
                return
            time.sleep(0.05)
        said = f"exit {machine.poll()}; it said: {self._console()}"
        raise RuntimeError(f"the guest did not come up: {said}")


def missing_requirement() -> str | None:
    """Return what this host lacks for the lab, None if nothing."""
    if os.geteuid() != 0:
        return "the lab needs root for network namespaces and a tap device"
    if not os.path.exists("/dev/net/tun"):
        return "the lab needs /dev/net/tun"
    search = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    for tool in ("qemu-system-x86_64", "mmdebstrap", "busybox", "mke2fs", "modprobe", "setpriv"):
        if not any(os.access(Path(folder) / tool, os.X_OK) for folder in search.split(":")):
            return f"the lab needs {tool}: install the packages of tests/interop/packages.txt"
    return None


@contextmanager
def network_namespace(name: str) -> Iterator[None]:
    """Make a network namespace with loopback up; remove it at the end."""
    _ip("netns", "add", name)
    try:
        _ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        _ip("netns", "delete", name)


def remove_leftovers() -> None:
    """Remove namespaces and work directories whose owner, in their name, lives no more."""
    for folder, remove in (
        (NAMESPACES, lambda entry: _ip("netns", "delete", entry.name)),
        (WORK_DIRECTORIES, shutil.rmtree),
    ):
        for entry in folder.glob(f"{PREFIX}*"):
            if not Path("/proc", entry.name.removeprefix(PREFIX)).exists():
                remove(entry)


def connect_inside(namespace: str, address: tuple[str, int]) -> socket.socket:
    """Return a connection made from inside `namespace`; only a helper thread enters it.

    Raises OSError as connecting does.
    """
    with ThreadPoolExecutor(1) as thread:
        thread.submit(_enter_namespace, namespace).result()
        return thread.submit(socket.create_connection, address, 10.0).result()


def _enter_namespace(name: str) -> None:
    """Move the calling thread into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{name}") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")


def with_source(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment of a process on our side that uses this checkout."""
    paths = [os.environ.get("PYTHONPATH", ""), str(HERE.parents[2] / "src")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environment}


@contextmanager
def child(
    command: list[str],
    *,
    keep: socket.socket | None = None,
    environment: dict[str, str] | None = None,
    log: BinaryIO | None = None,
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `command` with the descriptor `keep` open in it; end it at the end, or with us.

    Standard error goes to `log`, if there is one.
    """
    descriptors = () if keep is None else (keep.fileno(),)
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *command],
        stdin=subprocess.DEVNULL,
        pass_fds=descriptors,
        env=environment,
        stderr=log,
    )
    try:
        yield process
    finally:
        process.kill()  # none of them has anything to put in order
        process.wait()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
