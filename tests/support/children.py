"""Processes of this project's sources that tests start: lines go in, lines come out."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
END_S = 10.0


class Child:
    """A process of this interpreter. `words` are `-m` and a module or `-c` and a program, and more.

    It has the environment of this process with `environ` added, or what `base` says in its place.
    """

    def __init__(
        self,
        *words: object,
        prefix: Sequence[str] = (),
        base: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
        errors: int | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, *map(str, words)],
            cwd=ROOT,
            env={**(os.environ if base is None else base), **SOURCES, **(environ or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )

    @property
    def pid(self) -> int:
        """Return the process's number."""
        return self.process.pid

    def say(self, line: str = "") -> None:
        """Write a line to its input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """Wait for a line of its output. Raises EOFError if it has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EOFError(f"it ended with {self.process.wait()}")
        return line.removesuffix("\n")

    # -- what it uses

    @property
    def rss_bytes(self) -> int:
        """Return the memory that it has in use. Source: proc(5), statm."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    @property
    def descriptor_count(self) -> int:
        """Return how many descriptors it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    @property
    def cpu_s(self) -> float:
        """Return the processor time that it has used. Source: proc(5), stat."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # -- its end

    def stop(self) -> None:
        """Have it stand still, as under a debugger; return when it does."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        """End that."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it without a word, however it is; return when it is gone."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def close(self) -> None:
        """End it in order, by the end of its input; by force after ten seconds."""
        if self.process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self.process.communicate(timeout=END_S)
        self.kill()


class Servant(Child):
    """A child that obeys requests: a name and arguments in JSON each, and so the answers."""

    def ask(self, name: str, **arguments: Any) -> Any:
        """Make one request and wait for its answer."""
        self.begin(name, **arguments)
        return self.finish()

    def begin(self, name: str, **arguments: Any) -> None:
        """Make a request; `finish` fetches the answer."""
        self.say(json.dumps([name, arguments]))

    def finish(self) -> Any:
        """Wait for the answer to the request that was begun."""
        return json.loads(self.hear())


def fork_for_each_line(live: Callable[..., None]) -> None:
    """Be the child of `Forks`: fork for each line, have `live` take its words, and say the number.

    This process waits for none of them, and what it has opened they have too.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        child = os.fork()
        if child:
            print(child, flush=True)
            continue
        try:
            live(*line.split())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)


class Forks:
    """Processes that a child makes of itself, one for each line that it hears.

    It says the number of each, and more; one that ends is waited for by the kernel alone.
    """

    def __init__(self, module: str) -> None:
        self._child = Child("-m", module)
        self._living: set[int] = set()

    def start(self, *words: object) -> list[int]:
        """Make a new one; return its number and what else was said of it."""
        self._child.say(" ".join(map(str, words)))
        said = [int(word) for word in self._child.hear().split()]
        self._living.add(said[0])
        return said

    def kill(self, number: int) -> bool:
        """End one without a word and wait until it is gone; return whether it was there."""
        if number not in self._living:
            return False
        self._living.discard(number)
        try:
            os.kill(number, signal.SIGKILL)
        except ProcessLookupError:
            return False
        while Path(f"/proc/{number}").exists():
            time.sleep(0.001)
        return True

    def close(self) -> None:
        """End all of them."""
        for number in list(self._living):
            self.kill(number)
        self._child.close()
