"""One message on its way through the data plane, step by step; start here.

Two paths, one per host, and instead of TCP a variable with octets: `PathCore` knows no sockets. The
same calls in the same order happen in a real process, only faster and with threads around them.
Then read docs/architecture.md, "The way of one message", and `dataplane.reference.path`.
"""

from dataclasses import dataclass

from urds.constants import CONGESTION_MAP_BYTES, HeaderFlag
from urds.dataplane.base import Hold, Limits, Release
from urds.dataplane.reference.counters import Counters
from urds.dataplane.reference.inbox import Inbox
from urds.dataplane.reference.path import PathCore
from urds.wire.header import HEADER_BYTES, Header

ALICE, BOB = ("10.0.0.1", 4000), ("10.0.0.2", 4001)


@dataclass(eq=False, slots=True)  # told apart by identity: a path keeps a set of them
class Account:
    """What a socket is charged for: octets sent and not acknowledged."""

    send_queued_bytes: int = 0
    given_up: int = 0


def make_path(peer: str, inbox: Inbox) -> PathCore:
    """Make the path of a host to its peer; between urds nodes the header acknowledges."""
    path = PathCore(
        Limits(),
        Counters(),
        sequence_first=1,
        inboxes={inbox.port: inbox},
        source_of=lambda port: (peer, port),
        map_octets=lambda: bytes(CONGESTION_MAP_BYTES),
    )
    path.agree(release=Release.PEER_ACKNOWLEDGED, checksum=True)
    return path


def connect(*paths: PathCore) -> None:
    """Give each path a stream; all but the congestion map is held until the peer is known."""
    for path in paths:
        path.attach(Hold.RELEASE)
    first, second = paths
    second.receive_data(write(first), now_ns=0)
    first.receive_data(write(second), now_ns=0)
    for path in paths:
        # The peer's greeting can tell what it has already; here it does not, to show a repeat.
        path.release(received_by_peer=None)


def write(path: PathCore) -> bytes:
    """Take the octets that a path has for its stream, as a socket would."""
    octets = b"".join(path.poll_transmit())
    path.transmitted(len(octets))
    return octets


def show(step: str, octets: bytes) -> None:
    header = Header.parse(octets[:HEADER_BYTES])
    flags = HeaderFlag(header.flags).name or "none"
    print(f"{step}: {len(octets)} octets")
    print(f"     {octets[:24].hex(' ', 4)} ...")
    print(
        f"     sequence {header.sequence}, ack {header.ack}, ports {header.source_port} to"
        f" {header.target_port}, flags {flags}, payload {octets[HEADER_BYTES:]!r}"
    )


def main() -> None:
    account = Account()
    alice_inbox = Inbox(port=ALICE[1], buffer_bytes=106_496)
    bob_inbox = Inbox(port=BOB[1], buffer_bytes=106_496)
    alice, bob = make_path(BOB[0], alice_inbox), make_path(ALICE[0], bob_inbox)

    connect(alice, bob)
    print(f" 1  connected; each side began with its congestion map, {CONGESTION_MAP_BYTES} octets")

    alice.send(account, ALICE[1], BOB[1], b"hello")
    print(f" 2  sendto: queued; the socket's account holds {account.send_queued_bytes} octets")

    octets = write(alice)
    show(" 3  the path numbers the message and makes its octets", octets)

    bob.receive_data(octets, now_ns=0)
    print(f" 4  the other side parses them; in the inbox of port {BOB[1]}: {list(bob_inbox.queue)}")

    payload, source = bob_inbox.queue.popleft()[:2]
    print(f" 5  recvfrom: {payload!r} from {source}")

    # Nothing goes back on which the acknowledgement could ride; after 40 ms it goes alone.
    bob.handle_timeout(now_ns=40_000_000)
    octets = write(bob)
    show(" 6  the acknowledgement", octets)
    alice.receive_data(octets, now_ns=0)
    print(f"     the account holds {account.send_queued_bytes} octets: the message is delivered")

    alice.send(account, ALICE[1], BOB[1], b"again")
    bob.receive_data(write(alice), now_ns=0)
    alice.detach()
    bob.detach()
    print(" 7  a second message arrives, but a reset destroys its acknowledgement")

    connect(alice, bob)
    print(f" 8  connected anew; Bob's inbox: {list(bob_inbox.queue)}")
    octets = write(alice)
    show(" 9  the path repeats what nobody acknowledged", octets)
    bob.receive_data(octets, now_ns=0)
    dropped = bob.counters.recv_drop_old_seq
    print(f"10  Bob has seen that number: repeats dropped {dropped}, inbox {list(bob_inbox.queue)}")
    assert len(bob_inbox.queue) == 1, "delivered once"


if __name__ == "__main__":
    main()
