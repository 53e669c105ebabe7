"""A sender that never waits: it learns that a port is congested, and when it no longer is.

A non-blocking send to a port whose queue is over its buffer fails with ENOBUFS: full there, not
here. A socket with RDS_CONG_MONITOR then receives a control message once that port, or one of its
group, has room again. So one thread can serve many peers and skip only those that are slow.
"""

import errno
import threading
import time

import urds

FAST = ("127.0.0.51", 4000)
SLOW = ("127.0.0.52", 4001)
MESSAGES = 2000
PAYLOAD = bytes(1000)


def receive_slowly(sock: urds.Socket) -> None:
    time.sleep(0.3)
    for _ in range(MESSAGES):
        sock.recvfrom(len(PAYLOAD))


def wait_for_room(sock: urds.Socket) -> bool:
    """Wait for a congestion update; tell whether it is about the group of the slow port."""
    _, control, _, _ = sock.recvmsg(0, 64)
    for level, kind, data in control:
        if (level, kind) == (urds.SOL_RDS, urds.RDS_CMSG_CONG_UPDATE):
            groups = int.from_bytes(data, "little")  # the host's order; little on most
            return bool(groups & urds.RDS_CONG_MONITOR_MASK(SLOW[1]))
    return False


def main() -> None:
    fast = urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET)
    slow = urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET)
    with fast, slow:
        fast.bind(FAST)
        slow.bind(SLOW)
        fast.setsockopt(urds.SOL_RDS, urds.RDS_CONG_MONITOR, 1)
        fast.settimeout(5)
        receiver = threading.Thread(target=receive_slowly, args=(slow,), daemon=True)
        receiver.start()

        sent = refused = 0
        while sent < MESSAGES:
            try:
                fast.sendto(PAYLOAD, urds.MSG_DONTWAIT, SLOW)
                sent += 1
            except OSError as failure:
                if failure.errno != errno.ENOBUFS:
                    raise
                refused += 1
                while not wait_for_room(fast):
                    pass
        receiver.join(5)
    print(f"{sent} messages sent; {refused} times the port was congested and an update ended it")
    assert refused


if __name__ == "__main__":
    main()
