"""States of an endpoint as a table; what is not in it cannot happen.

An endpoint is quiet (UNCONNECTED), belongs to a reserved service point (RESERVED, then PASSIVE when
a request met it), tries to connect (ACTIVE), was accepted (COMPLETION), is CONNECTED, drains
(DISCONNECT_PENDING) or is over (DISCONNECTED) until a reset. TENTATIVE is an endpoint that the
provider made for a request. Source: docs/reference/dat.md 4.3.
"""

from enum import Enum, auto
from typing import Final

from urds.dat.constants import EpState
from urds.dat.errors import dat_error
from urds.dat.returns import ReturnType, Subtype


class Input(Enum):
    """What moves an endpoint from state to state."""

    CONNECT = auto()
    ESTABLISHED = auto()
    DRAIN = auto()  # a graceful disconnect begins
    ENDED = auto()  # whatever ended it
    RESERVE = auto()
    UNRESERVE = auto()
    REQUEST = auto()  # a request met the reserved service point
    REJECT = auto()
    ACCEPT = auto()
    RESET = auto()


TRANSITIONS: Final[dict[tuple[EpState, Input], EpState]] = {
    (EpState.UNCONNECTED, Input.CONNECT): EpState.ACTIVE_CONNECTION_PENDING,
    (EpState.UNCONNECTED, Input.RESERVE): EpState.RESERVED,
    (EpState.UNCONNECTED, Input.ACCEPT): EpState.COMPLETION_PENDING,
    (EpState.UNCONNECTED, Input.RESET): EpState.UNCONNECTED,
    (EpState.RESERVED, Input.UNRESERVE): EpState.UNCONNECTED,
    (EpState.RESERVED, Input.REQUEST): EpState.PASSIVE_CONNECTION_PENDING,
    (EpState.PASSIVE_CONNECTION_PENDING, Input.REJECT): EpState.UNCONNECTED,
    (EpState.PASSIVE_CONNECTION_PENDING, Input.ACCEPT): EpState.COMPLETION_PENDING,
    (EpState.TENTATIVE_CONNECTION_PENDING, Input.ACCEPT): EpState.COMPLETION_PENDING,
    (EpState.ACTIVE_CONNECTION_PENDING, Input.ESTABLISHED): EpState.CONNECTED,
    (EpState.ACTIVE_CONNECTION_PENDING, Input.ENDED): EpState.DISCONNECTED,
    (EpState.COMPLETION_PENDING, Input.ESTABLISHED): EpState.CONNECTED,
    (EpState.COMPLETION_PENDING, Input.ENDED): EpState.DISCONNECTED,
    (EpState.CONNECTED, Input.DRAIN): EpState.DISCONNECT_PENDING,
    (EpState.CONNECTED, Input.ENDED): EpState.DISCONNECTED,
    (EpState.DISCONNECT_PENDING, Input.ENDED): EpState.DISCONNECTED,
    (EpState.DISCONNECTED, Input.RESET): EpState.UNCONNECTED,
}

# A service point or a request has yet to decide about it: it may not be freed or disconnected.
UNDECIDED: Final = frozenset(
    {EpState.RESERVED, EpState.PASSIVE_CONNECTION_PENDING, EpState.TENTATIVE_CONNECTION_PENDING}
)
CONNECTING: Final = frozenset({EpState.ACTIVE_CONNECTION_PENDING, EpState.COMPLETION_PENDING})
# Where attributes and dispatchers may still change.
MODIFIABLE: Final = UNDECIDED | {EpState.UNCONNECTED}

_SUBTYPES: Final = {
    EpState.UNCONNECTED: Subtype.INVALID_STATE_EP_UNCONNECTED,
    EpState.RESERVED: Subtype.INVALID_STATE_EP_RESERVED,
    EpState.PASSIVE_CONNECTION_PENDING: Subtype.INVALID_STATE_EP_PASSCONNPENDING,
    EpState.ACTIVE_CONNECTION_PENDING: Subtype.INVALID_STATE_EP_ACTCONNPENDING,
    EpState.TENTATIVE_CONNECTION_PENDING: Subtype.INVALID_STATE_EP_TENTCONNPENDING,
    EpState.CONNECTED: Subtype.INVALID_STATE_EP_CONNECTED,
    EpState.DISCONNECT_PENDING: Subtype.INVALID_STATE_EP_DISCPENDING,
    EpState.DISCONNECTED: Subtype.INVALID_STATE_EP_DISCONNECTED,
    EpState.COMPLETION_PENDING: Subtype.INVALID_STATE_EP_COMPLPENDING,
}


def next_state(state: EpState, event: Input) -> EpState:
    """Return the state after `event`. Raises DatInvalidState if it is not allowed."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise wrong_state(state, f"{event.name} is not allowed") from None


def wrong_state(state: EpState, detail: str) -> Exception:
    """Return the error whose subtype names the state that the endpoint is in."""
    return dat_error(ReturnType.INVALID_STATE, _SUBTYPES[state], f"{state.name}: {detail}")
