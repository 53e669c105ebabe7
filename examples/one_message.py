"""One message on its way through the data plane, step by step; start here.

Two paths, one per host, and instead of TCP a variable with bytes: `PathCore` knows no sockets. The
same calls in the same order happen in a real process, only faster and with threads around them.
Then read docs/architecture.md, "The way of one message", and `urds.rds.plane.python.path`.
"""

from dataclasses import dataclass

from urds.rds.constants import CONGESTION_MAP_BYTES, HeaderFlag
from urds.rds.plane.contract import Hold, Limits
from urds.rds.plane.python.counters import Counters
from urds.rds.plane.python.inbox import Inbox
from urds.rds.plane.python.path import PathCore
from urds.rds.types import AckMode
from urds.rds.wire.header import HEADER_BYTES, Header

ALICE, BOB = ("10.0.0.1", 4000), ("10.0.0.2", 4001)


@dataclass(eq=False, slots=True)  # compared by identity: a path keeps a set of them
class Account:
    """What a socket is charged for."""

    send_queued_bytes: int = 0  # sent and not acknowledged
    given_up: int = 0  # messages that were dropped, with a peer that is gone


def make_path(peer: str, inbox: Inbox) -> PathCore:
    """Make the path of a host to its peer; between urds nodes the header acknowledges."""
    path = PathCore(
        Limits(),
        Counters(),
        sequence_first=1,
        inboxes={inbox.port: inbox},
        source_of=lambda port: (peer, port),
        map_bytes=lambda: bytes(CONGESTION_MAP_BYTES),
    )
    path.agree(ack_mode=AckMode.PEER_ACKNOWLEDGED, checksum=True)
    return path


def connect(*paths: PathCore) -> None:
    """Give each path a stream; all but the congestion map is held until the peer is known."""
    for path in paths:
        path.attach(Hold.HELLO)
    first, second = paths
    second.receive_data(write(first), now_ns=0)
    first.receive_data(write(second), now_ns=0)
    for path in paths:
        # The peer's greeting can tell what it has already; here it does not, to show a retransmit.
        path.end_hold(received_by_peer=None)


def write(path: PathCore) -> bytes:
    """Take the bytes that a path has for its stream, as a socket would."""
    data = b"".join(path.poll_transmit())
    path.transmitted(len(data))
    return data


def show(step: str, data: bytes) -> None:
    header = Header.parse(data[:HEADER_BYTES])
    flags = HeaderFlag(header.flags).name or "none"
    print(f"{step}: {len(data)} bytes")
    print(f"     {data[:24].hex(' ', 4)} ...")
    print(
        f"     sequence {header.sequence}, ack {header.ack}, ports {header.source_port} to"
        f" {header.target_port}, flags {flags}, payload {data[HEADER_BYTES:]!r}"
    )


def main() -> None:
    account = Account()
    alice_inbox = Inbox(port=ALICE[1], buffer_bytes=106_496)
    bob_inbox = Inbox(port=BOB[1], buffer_bytes=106_496)
    alice, bob = make_path(BOB[0], alice_inbox), make_path(ALICE[0], bob_inbox)

    connect(alice, bob)
    print(f" 1  connected; each side began with its congestion map, {CONGESTION_MAP_BYTES} bytes")

    alice.send(account, ALICE[1], BOB[1], b"hello")
    print(f" 2  sendto: queued; the socket's account holds {account.send_queued_bytes} bytes")

    data = write(alice)
    show(" 3  the path numbers the message and makes its bytes", data)

    bob.receive_data(data, now_ns=0)
    print(f" 4  the other side parses them; in the inbox of port {BOB[1]}: {list(bob_inbox.queue)}")

    payload, source = bob_inbox.queue.popleft()[:2]
    print(f" 5  recvfrom: {payload!r} from {source}")

    # No message goes back to carry the acknowledgement; after 200 ms it goes alone.
    bob.handle_timeout(now_ns=200_000_000)
    data = write(bob)
    show(" 6  the acknowledgement", data)
    alice.receive_data(data, now_ns=0)
    print(f"     the account holds {account.send_queued_bytes} bytes: the message is delivered")

    alice.send(account, ALICE[1], BOB[1], b"again")
    bob.receive_data(write(alice), now_ns=0)
    alice.detach()
    bob.detach()
    print(" 7  a second message arrives, but a reset destroys its acknowledgement")

    connect(alice, bob)
    print(f" 8  connected anew; Bob's inbox: {list(bob_inbox.queue)}")
    data = write(alice)
    show(" 9  the path repeats what was not acknowledged", data)
    bob.receive_data(data, now_ns=0)
    dropped = bob.counters.recv_drop_old_seq
    print(f"10  Bob has seen that number: repeats dropped {dropped}, inbox {list(bob_inbox.queue)}")
    assert len(bob_inbox.queue) == 1, "delivered once"


if __name__ == "__main__":
    main()
