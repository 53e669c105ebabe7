"""Types that the control plane and the data planes share."""

from enum import Enum, auto


class AckMode(Enum):
    """What frees a message at the sender."""

    NOT_YET = auto()  # kind of peer unknown: keep everything
    STREAM_ACKNOWLEDGED = auto()  # Linux: TCP acknowledged the last byte
    PEER_ACKNOWLEDGED = auto()  # urds node: the header's acknowledgement field
