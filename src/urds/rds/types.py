"""Types that the control plane and the data planes share."""

from enum import Enum, auto


class AckMode(Enum):
    """What frees a message at the sender."""

    NOT_YET = auto()  # kind of peer unknown: keep everything
    STREAM_ACKNOWLEDGED = auto()  # Linux: TCP acknowledged the last byte
    PEER_ACKNOWLEDGED = auto()  # urds node: the header's acknowledgement field


class Hold(Enum):
    """What a newly attached path waits for before it sends anything but its congestion map."""

    NOTHING = auto()
    # The lower address towards Linux: TCP accepts and acknowledges before RDS does, so bytes sent
    # into a connection that the peer then rejects are lost. Source: linux v6.1, v6.12 (observed).
    FIRST_FRAME = auto()
    # Between urds nodes: until `end_hold`, which follows the peer's hello.
    HELLO = auto()
