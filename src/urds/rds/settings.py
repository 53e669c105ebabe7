"""The tunables: their names, their ranges, and the sources of their values.

Sources in rising order: the defaults here, a TOML file named by URDS_CONFIG, the environment
(`URDS_` and the name in capitals), Python. The record is complete and valid or it is not made:
a `SettingError` names key, value, range and source. Names are those of rds(7) and of current
kernels, where they have one; docs/tunables.md lists every field and a test holds it to that.
Source of names and defaults: linux v6.12 net/rds/sysctl.c, net/rds/tcp.c, net/core/sock.c.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from urds.common.errors import SettingError
from urds.common.records import field, fields, record
from urds.rds.constants import MAX_MESSAGE_BYTES, PATHS_MAX, RDS_TCP_PORT

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

ENVIRONMENT_PREFIX: Final = "URDS_"
CONFIG_VARIABLE: Final = "URDS_CONFIG"
CONFIG_BYTES_MAX: Final = 1 << 20
OTHER_VARIABLES: Final = frozenset(  # that urds reads and that set no tunable
    f"{ENVIRONMENT_PREFIX}{name}"
    for name in ("CONFIG", "IMPL", "VERBS_DEVICE", "RSOCKET_DEVICES", "RSOCKET_CONFIG")
)
ANY: Final = "any"
AUTO: Final = "auto"
IN_PROCESS: Final = "inprocess"

# rds(7) has the words of two names in another order; the kernel's TCP sysctls carry a prefix.
ALIASES: Final[Mapping[str, str]] = {
    "reconnect_delay_min_ms": "reconnect_min_delay_ms",
    "reconnect_delay_max_ms": "reconnect_max_delay_ms",
    "rds_tcp_sndbuf": "tcp_sndbuf",
    "rds_tcp_rcvbuf": "tcp_rcvbuf",
}

_SPELLING_LIKENESS: Final = 0.9  # of a variable and a tunable's; one letter of ten
_YEAR_S: Final = 366 * 24 * 3600
_BUFFER_BYTES_MAX: Final = (1 << 30) - 1  # a C int holds the double
_LINUX_BUFFER_BYTES: Final = 212_992
_SIZE: Final = r"(?i:(\d+)(?:([kmg])(ib|b)?|b))"
_POWERS: Final = {"k": 1, "m": 2, "g": 3}
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


@record
class Rule:
    """What a value may be: how to read it and the words for it in a message."""

    read: Callable[[object], Any]  # raises ValueError or TypeError
    allowed: str


def _number(read_one: Callable[[object], int], chosen: Container[int], allowed: str) -> Rule:
    def read(value: object) -> int:
        number = read_one(value)
        if number not in chosen:
            raise ValueError
        return number

    return Rule(read, allowed)


def _integer(low: int, high: int) -> Rule:
    return _number(_whole, range(low, high + 1), f"a whole number from {low} to {high}")


def _size(low: int, high: int) -> Rule:
    allowed = f"a size from {low} to {high} bytes, such as 64KiB or 5M"
    return _number(_bytes_of, range(low, high + 1), allowed)


def _whole(value: object) -> int:
    number = int(value, 0) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError
    return number


def _bytes_of(value: object) -> int:
    """Read a number of bytes: K, KiB, M, MiB, G, GiB are powers of 1024, kB, MB, GB of 1000.

    Upper and lower case are the same. Raises ValueError, TypeError.
    """
    if isinstance(value, str):
        found = re.fullmatch(_SIZE, value.strip())
        if found is None:
            return int(value, 0)
        digits, unit, binary = found.groups()
        base = 1000 if binary and binary.lower() == "b" else 1024
        return int(digits) * (base ** _POWERS[unit.lower()] if unit else 1)
    return _whole(value)


def _seconds(high: float) -> Rule:
    def read(value: object) -> float:
        number = float(value) if isinstance(value, str | int | float) else -1.0
        if isinstance(value, bool) or not 0 <= number <= high:
            raise ValueError
        return number

    return Rule(read, f"seconds from 0 to {high:g}")


def _switch() -> Rule:
    def read(value: object) -> bool:
        word = str(value).lower()
        if word not in _TRUE | _FALSE:
            raise ValueError
        return word in _TRUE

    return Rule(read, "true or false")


def _one_of(*choices: int) -> Rule:
    return _number(_bytes_of, choices, "one of " + ", ".join(map(str, choices)))


def _word(*choices: str) -> Rule:
    def read(value: object) -> str:
        if value not in choices:
            raise ValueError
        return str(value)

    return Rule(read, "one of " + ", ".join(choices))


# For other files of settings.
integer_rule, size_rule, seconds_rule = _integer, _size, _seconds


def _names(value: object) -> tuple[str, ...]:
    given = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
        raise TypeError
    return tuple(given)


def _words() -> Rule:
    return Rule(_names, "names with commas between them")


def _networks() -> Rule:
    def read(value: object) -> tuple[str, ...]:
        return tuple(one if one == ANY else _network(one) for one in _names(value))

    return Rule(read, f"networks such as 10.0.0.0/8 or fd00::/8, or `{ANY}`")


networks_rule = _networks


def _network(text: str) -> str:
    from ipaddress import ip_network

    return str(ip_network(text, strict=False))


def _place() -> Rule:
    def read(value: object) -> str:
        if not isinstance(value, str) or not (value in {AUTO, IN_PROCESS} or value[:1] == "/"):
            raise ValueError
        return value

    return Rule(read, f"`{AUTO}`, `{IN_PROCESS}` or the absolute path of a node's socket")


def _directory() -> Rule:
    def read(value: object) -> str:
        if not isinstance(value, str) or not (value == AUTO or value[:1] == "/"):
            raise ValueError
        return value

    return Rule(read, f"`{AUTO}` or the absolute path of a directory")


def _tunable(default: Any, rule: Rule, *, strict: Any = None) -> Any:
    """Declare a tunable; `strict` is its default with `strict_linux`, where it is another one."""
    by_character = strict is not None  # resolved when the record is made
    metadata = {"rule": rule, "default": default, "strict": strict if by_character else default}
    return field(default=None if by_character else default, metadata=metadata)


@record(kw_only=True)
class Settings:
    """All tunables of a process, each within its range.

    `Settings(...)` takes Python values only and checks them; `Settings.load()` reads all sources.
    """

    # Reconnecting. Linux counts the delays in ticks and so shows 4 for 1 where HZ is 250.
    reconnect_min_delay_ms: int = _tunable(1, _integer(1, 60_000))
    reconnect_max_delay_ms: int = _tunable(1000, _integer(1, 3_600_000))
    reconnect_give_up_s: float = _tunable(0.0, _seconds(_YEAR_S))  # 0 never gives up
    # Between urds nodes: after so much without ACK_REQUIRED, ask for an acknowledgement.
    max_unacked_packets: int = _tunable(8, _integer(1, 65_536))
    max_unacked_bytes: int = _tunable(16 << 20, _size(1, (1 << 32) - 1))
    ping_enable: bool = _tunable(True, _switch())  # answer pings to port 0
    # Buffers of sockets as net.core has them: a default is twice what it can hold, a maximum
    # bounds that and what SO_SNDBUF and SO_RCVBUF ask for. The kernel's figures guard the memory
    # of a host; here it is the program's own, and the longest message of RDS has to fit.
    wmem_default: int = _tunable(
        2 * MAX_MESSAGE_BYTES, _size(4608, _BUFFER_BYTES_MAX), strict=_LINUX_BUFFER_BYTES
    )
    rmem_default: int = _tunable(_LINUX_BUFFER_BYTES, _size(2304, _BUFFER_BYTES_MAX))
    wmem_max: int = _tunable(64 << 20, _size(4608, _BUFFER_BYTES_MAX), strict=_LINUX_BUFFER_BYTES)
    rmem_max: int = _tunable(64 << 20, _size(2304, _BUFFER_BYTES_MAX), strict=_LINUX_BUFFER_BYTES)
    # Above 1 MiB only between urds nodes: no kernel takes more. Also what a peer may announce.
    max_message_bytes: int = _tunable(8 << 20, _size(1, (1 << 32) - 1), strict=MAX_MESSAGE_BYTES)
    # The TCP connections; 0 leaves a buffer to the kernel's own tuning.
    tcp_port: int = _tunable(RDS_TCP_PORT, _integer(1, 65_535))  # the same on all nodes
    tcp_sndbuf: int = _tunable(0, _size(0, _BUFFER_BYTES_MAX))
    tcp_rcvbuf: int = _tunable(0, _size(0, _BUFFER_BYTES_MAX))
    # Between processes of one user on one host, where both have the compiled plane: a ring of so
    # many bytes for each direction.
    shared_memory: bool = _tunable(True, _switch())
    shared_memory_bytes: int = _tunable(1 << 20, _one_of(*(1 << bits for bits in range(16, 27))))
    # SO_BUSY_POLL of a new socket, as net.core.busy_read is for the kernel's; 0 never spins.
    busy_poll_us: int = _tunable(0, _integer(0, (1 << 31) - 1))
    npaths: int = _tunable(1, _one_of(1, 2, 4, PATHS_MAX))
    keepalive_idle_s: int = _tunable(5, _integer(1, 32_767))
    keepalive_interval_s: int = _tunable(5, _integer(1, 32_767))
    keepalive_count: int = _tunable(5, _integer(1, 127))
    # Which peers may connect, and how many. A pending connection has connected and not yet sent a
    # frame.
    allow: tuple[str, ...] = _tunable((), _networks())  # beside loopback and the own subnet
    peers_max: int = _tunable(0, _integer(0, 65_536))  # 0: 4096, or fewer by RLIMIT_NOFILE
    pending_max: int = _tunable(64, _integer(1, 65_536))
    pending_per_address_max: int = _tunable(16, _integer(1, 65_536))
    pending_wait_s: float = _tunable(30.0, _seconds(3600))
    # The end: of the process, and in the background of a closed socket without SO_LINGER.
    drain_s: float = _tunable(5.0, _seconds(3600))
    linger_s: float = _tunable(5.0, _seconds(3600))  # 0 cancels at close, as Linux does
    idle_s: float = _tunable(2.0, _seconds(3600))  # without a socket, then the thread ends
    # RDS over RDMA: what bind takes unless SO_RDS_TRANSPORT chose, the devices in the order in
    # which peers are tried on them, and the rings of a connection as net.rds.ib has them.
    transport: str = _tunable("tcp", _word("tcp", "ib"))
    rdma_devices: tuple[str, ...] = _tunable(("shm0", "tcp0"), _words())
    ib_max_send_wr: int = _tunable(256, _integer(16, 16_384))
    ib_max_recv_wr: int = _tunable(256, _integer(16, 16_384))
    ib_flow_control: bool = _tunable(False, _switch())  # offer credits; needs both sides
    # Where local addresses are kept, which users may look, and whose faults to keep.
    node: str = _tunable(AUTO, _place())
    info_socket: bool = _tunable(True, _switch())  # answer `urds info` of the same user
    info_directory: str = _tunable(AUTO, _directory())  # of that socket
    strict_linux: bool = _tunable(False, _switch())  # see docs/differences.md

    def __post_init__(self) -> None:
        """Check every value and the pairs that belong together. Raises SettingError."""
        is_strict = _read("strict_linux", self.strict_linux, "Python")
        for one in fields(self):
            value = getattr(self, one.name)
            if value is None:
                value = one.metadata["strict" if is_strict else "default"]
            object.__setattr__(self, one.name, _read(one.name, value, "Python"))
        if self.reconnect_min_delay_ms > self.reconnect_max_delay_ms:
            raise SettingError(
                f"reconnect_min_delay_ms = {self.reconnect_min_delay_ms} is above"
                f" reconnect_max_delay_ms = {self.reconnect_max_delay_ms}"
            )

    @classmethod
    def load(
        cls,
        values: Mapping[str, object] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """Read file and environment (`os.environ` unless given); `values` outrank them.

        Aliases are understood in every source. A variable that names no tunable is ignored, see
        `unknown_variables`, unless it nearly spells one. Raises SettingError for a bad value, an
        unknown key, such a variable, or a file that cannot be read.
        """
        environ = os.environ if environ is None else environ
        chosen: dict[str, Any] = {}
        for _, part in _layers(values or {}, environ):
            chosen |= part
        _check_spelling(environ)
        return cls(**chosen)

    def networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """Return `allow` as networks; `any` is all of IPv4 and all of IPv6."""
        from ipaddress import ip_network

        texts = [("0.0.0.0/0", "::/0") if one == ANY else (one,) for one in self.allow]
        return tuple(ip_network(text) for pair in texts for text in pair)

    @property
    def send_bytes_default(self) -> int:
        """Return what a new socket's send queue holds: the kernel's figure is the double."""
        return min(self.wmem_default // 2, self.wmem_max)

    @property
    def receive_bytes_default(self) -> int:
        """Return the size of a new socket's receive buffer."""
        return min(self.rmem_default // 2, self.rmem_max)


def names() -> tuple[str, ...]:
    """Return the names of all tunables, in the order of the record."""
    return tuple(one.name for one in fields(Settings))


def sources(
    values: Mapping[str, object] | None = None, *, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return where `Settings.load` has the value of each tunable from.

    That is "default", the file, the variable, or "Python". Raises SettingError as `Settings.load`.
    """
    found = dict.fromkeys(names(), "default")
    for source, part in _layers(values or {}, os.environ if environ is None else environ):
        found |= dict.fromkeys(part, source)
    return found


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return the variables that begin like ours and that nothing here reads, in order."""
    known = _variables() | OTHER_VARIABLES
    every = os.environ if environ is None else environ
    return sorted(one for one in every if one.startswith(ENVIRONMENT_PREFIX) and one not in known)


def _layers(
    values: Mapping[str, object], environ: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield each source, the lowest first, and the values that it has. Raises SettingError."""
    if place := environ.get(CONFIG_VARIABLE):
        source = f"file {place}"
        yield source, _checked(read_toml(place, f"file {place} ({CONFIG_VARIABLE})"), source)
    for name in (*names(), *ALIASES):
        variable = ENVIRONMENT_PREFIX + name.upper()
        if variable in environ:
            source = f"variable {variable}"
            yield source, _checked({name: environ[variable]}, source)
    yield "Python", _checked(values, "Python")


def _variables() -> set[str]:
    return {ENVIRONMENT_PREFIX + name.upper() for name in (*names(), *ALIASES)}


def _checked(values: Mapping[str, object], source: str) -> dict[str, object]:
    """Return the values by their own names. Raises SettingError for an unknown one."""
    own_names = {name: ALIASES.get(name, name) for name in values}
    unknown = sorted(name for name, own in own_names.items() if own not in names())
    if unknown:
        raise SettingError(f"{unknown[0]}: no such setting, in {source}{_nearest(unknown[0])}")
    return {own: _read(own, values[name], source) for name, own in own_names.items()}


def _check_spelling(environ: Mapping[str, str]) -> None:
    """Refuse a variable that nearly spells a tunable: it was meant to set one."""
    for variable in unknown_variables(environ):
        from difflib import get_close_matches

        close = get_close_matches(variable, _variables(), n=1, cutoff=_SPELLING_LIKENESS)
        if close:
            raise SettingError(f"variable {variable}: no such setting; did you mean {close[0]}?")


def _read(name: str, value: object, source: str) -> object:
    rule: Rule = _RULES[name]
    try:
        return rule.read(value)
    except (ValueError, TypeError, OverflowError):
        text = f"{name} = {shown(value)}, in {source}: must be {rule.allowed}"
        raise SettingError(text) from None


def shown(value: object) -> str:
    """Return a rejected value for the text of an error, whatever it is."""
    try:
        return repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return "a number of thousands of digits"


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, [*names(), *ALIASES], n=1)
    return f"; did you mean {close[0]}?" if close else ""


def read_toml(place: str, named: str) -> dict[str, object]:
    """Read a file of `CONFIG_BYTES_MAX` at most. Raises SettingError, whose text begins `named`."""
    import tomllib

    try:
        with open(place, "rb") as file:  # noqa: PTH123 - pathlib costs milliseconds at import
            data = file.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise SettingError(f"{named}: {error.strerror}") from error
    if len(data) > CONFIG_BYTES_MAX:
        raise SettingError(f"{named} is over {CONFIG_BYTES_MAX} bytes")
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # no UTF-8, no TOML, or nested too deep
        raise SettingError(f"{named}: {' '.join(str(error).split())}") from error


_RULES: Final[Mapping[str, Rule]] = {one.name: one.metadata["rule"] for one in fields(Settings)}
