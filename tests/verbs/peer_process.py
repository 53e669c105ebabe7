"""The other process of a test: listens, takes messages, sends as many back, says how it ended.

Run as `python -m tests.verbs.peer_process DEVICE COUNT LENGTH`; prints its port, `ready` when it
is connected, `sent` when all its messages arrived, then the kind of the end.
"""

import sys

from tests.verbs.pair import REGION_BYTES, End, bytes_of
from urds.verbs import Context, WCOpcode, WCStatus
from urds.verbs.providers.base import ConnectionEventKind


def main(device: str, count: int, length: int) -> None:
    """Serve one connection."""
    with Context(device) as context:
        end = End(context)
        end.post_receives(count, length)
        listener = end.listen(("127.0.0.1", 0))
        print(listener.local[1], flush=True)
        assert end.wait_for(ConnectionEventKind.ESTABLISHED, 30_000_000_000), end.events
        print("ready", flush=True)
        received = end.cq.wait_for(count, 30.0)
        assert [wc.wr_id for wc in received] == list(range(count))
        assert {wc.status for wc in received} == {WCStatus.SUCCESS}
        for number in range(count):
            assert end.mr.read(length, number * length) == bytes_of(number, length)
        for number in range(count):
            end.send(number, bytes_of(number, length), base=REGION_BYTES // 2)
        sent = end.cq.wait_for(count, 30.0)
        assert all(wc.opcode is WCOpcode.SEND for wc in sent)
        assert all(wc.status is WCStatus.SUCCESS for wc in sent), sent
        # Who left now would take our last acknowledgements for lost, where some were.
        print("sent", flush=True)
        ended = end.wait_for_end(30_000_000_000)
        print(ended and ended.name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
