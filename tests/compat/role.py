"""One host of a compatibility run: the public API of `urds` and the standard library alone.

    python role.py '{"local": "127.93.0.2", "peer": "127.93.0.3", "wait_s": 10}'

The runner (`tests.compat.rows`) starts one under the environment of a release and one under that of
the present sources. Each line of standard input begins an exchange: its number, and how many
messages go each way, at first one by one and then in bursts. Answers go to standard output, one
JSON object a line: `ready` with the file of `urds`, `exchanged`, `silence`, or `error` with the
text of an OSError. The end of input ends the process.
"""

import hashlib
import json
import sys

import urds

PORT = 4000
LENGTHS = (0, 1, 64, 1000, 4097, 65_536, 100_000)
BURST = 20
BURST_BYTES = 1000  # a burst fits the default receive buffer, so that neither side waits for room


def say(**fields: object) -> None:
    """Answer the runner."""
    print(json.dumps(fields), flush=True)


def content(sender: str, exchange: int, number: int, length: int) -> bytes:
    """Return the message of a number: both sides can compute it."""
    seed = f"{sender} {exchange} {number}".encode()
    return hashlib.shake_128(seed).digest(length)


class Host:
    """A socket and its one peer."""

    def __init__(self, *, local: str, peer: str, wait_s: float) -> None:
        """Bind. Raises OSError."""
        self.local, self.peer = local, peer
        self.socket = urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET)
        self.socket.bind((local, PORT))
        self.socket.settimeout(wait_s)

    def exchange(self, exchange: int, messages: int) -> str:
        """Send and receive so many messages; return what was wrong. Raises OSError."""
        single = messages - BURST
        for number in range(single):
            length = LENGTHS[number % len(LENGTHS)]
            self._send(exchange, number, length)
            if wrong := self._receive(exchange, number, length):
                return wrong
        for number in range(single, messages):
            self._send(exchange, number, BURST_BYTES)
        for number in range(single, messages):
            if wrong := self._receive(exchange, number, BURST_BYTES):
                return wrong
        return ""

    def _send(self, exchange: int, number: int, length: int) -> None:
        self.socket.sendto(content(self.local, exchange, number, length), (self.peer, PORT))

    def _receive(self, exchange: int, number: int, length: int) -> str:
        payload, source = self.socket.recvfrom(1 << 20)
        if source[:2] != (self.peer, PORT):
            return f"message {number} is from {source}"
        if payload != content(self.peer, exchange, number, length):
            return f"message {number} of exchange {exchange} is another one: {len(payload)} bytes"
        return ""

    def is_quiet(self) -> bool:
        """Tell whether nothing came that was not asked for, such as a repeated message."""
        self.socket.settimeout(0.2)
        try:
            self.socket.recvfrom(1 << 20)
        except (TimeoutError, BlockingIOError):
            return True
        return False


def main() -> int:
    """Serve the runner; return the exit code."""
    plan = json.loads(sys.argv[1])
    try:
        host = Host(**plan)
        say(said="ready", file=urds.__file__)
        for line in sys.stdin:
            exchange, messages = map(int, line.split())
            host.socket.settimeout(plan["wait_s"])
            wrong = host.exchange(exchange, messages)
            wrong = wrong or ("" if host.is_quiet() else "a message came twice")
            say(said="exchanged", wrong=wrong)
    except TimeoutError as error:
        say(said="silence", text=str(error))
        return 1
    except OSError as error:
        say(said="error", text=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
