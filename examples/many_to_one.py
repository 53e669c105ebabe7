"""Many senders, one receiver: one socket and one queue for all senders.

With TCP the receiver would hold a connection per sender and poll them all. Here the messages of all
senders wait in one queue, each sender's in its order. When the queue is over its buffer, the
receiver's host tells all senders, and their sends wait: no one is disconnected, nothing dropped.
"""

import multiprocessing
import time
from collections import Counter

import urds

RECEIVER = ("127.0.0.41", 4000)
SENDERS = [f"127.0.0.{last}" for last in range(42, 46)]
MESSAGES = 2000  # of each sender
PAYLOAD = bytes(500)


def send(address: str) -> None:
    with urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET) as sock:
        sock.bind((address, 0))
        for number in range(MESSAGES):
            sock.sendto(number.to_bytes(4, "big") + PAYLOAD, RECEIVER)


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    with urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET) as sock:
        sock.bind(RECEIVER)
        sock.settimeout(8)
        processes = [spawn.Process(target=send, args=(one,), daemon=True) for one in SENDERS]
        for process in processes:
            process.start()

        received: Counter[str] = Counter()
        for count in range(MESSAGES * len(SENDERS)):
            payload, (sender, _) = sock.recvfrom(1000)
            number = int.from_bytes(payload[:4], "big")
            assert number == received[sender], f"{sender}: {number} after {received[sender]}"
            received[sender] += 1
            if count == MESSAGES:
                time.sleep(0.2)  # a slow moment: the senders wait, and go on afterwards
        for process in processes:
            process.join(5)
    for sender, count in sorted(received.items()):
        print(f"{sender}: {count} messages, each in order")


if __name__ == "__main__":
    main()
