"""The configuration of a node: a TOML file, checked whole before the node begins.

    [node]       idle_exit_s, port_grace_s, request_wait_s, socket_mode
    [quota]      sockets, memory, routes, peers, requests, requests_per_s: of each user, root twice
    [addresses]  which networks a user may bind, by name or number; "*" is all other users
    [settings]   the tunables of urds, as the file of URDS_CONFIG has them

A mistake is one `SettingError` whose text names file, key, value and limit. docs/node.md has a
table of all keys, and a test holds it to this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from urds.common.errors import SettingError
from urds.common.records import field, fields, record
from urds.common.types import IPAddress
from urds.rds.settings import (
    ANY,
    Rule,
    Settings,
    integer_rule,
    networks_rule,
    read_toml,
    seconds_rule,
    shown,
    size_rule,
)

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

OTHERS: Final = "*"
ROOT_FACTOR: Final = 2
OVERFLOW_UID: Final = 65534  # of a user namespace that does not map its user. user_namespaces(7)
_DAY_S: Final = 24 * 3600
_UID_MAX: Final = (1 << 32) - 2
_MODES: Final = range(0o600, 0o777)


def _mode(value: object) -> int:
    text = value if isinstance(value, str) else ""
    if not text.isdecimal():  # int() takes more: "0o660", "6_60", blanks
        raise ValueError
    mode = int(text, 8)
    if mode not in _MODES or not mode & 0o600 == 0o600 or mode & 0o111:
        raise ValueError
    return mode


def _key(section: str, default: Any, rule: Rule) -> Any:
    return field(default=default, metadata={"section": section, "rule": rule})


@record(kw_only=True)
class NodeSettings:
    """Every key of a node, each within its range."""

    idle_exit_s: float = _key("node", 0.0, seconds_rule(_DAY_S))  # 0 never ends by itself
    port_grace_s: float = _key("node", 60.0, seconds_rule(_DAY_S))
    request_wait_s: float = _key("node", 2.0, seconds_rule(60))  # for a client that says nothing
    socket_mode: int = _key(
        "node", 0, Rule(_mode, 'octal digits from "0600" to "0666"')
    )  # 0: by kind
    sockets: int = _key("quota", 4096, integer_rule(1, 1 << 20))
    memory: int = _key("quota", 1 << 30, size_rule(1 << 20, 1 << 46))
    routes: int = _key("quota", 4096, integer_rule(1, 4096))  # of one socket
    peers: int = _key("quota", 1024, integer_rule(1, 65_536))
    requests: int = _key("quota", 64, integer_rule(1, 4096))  # under way
    requests_per_s: int = _key("quota", 2000, integer_rule(1, 1_000_000))
    addresses: Mapping[int | str, tuple[str, ...]] = field(default_factory=lambda: {OTHERS: (ANY,)})
    tunables: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def load(cls, place: str | None) -> NodeSettings:
        """Read a file, or take the defaults. Raises SettingError."""
        return cls() if place is None else _checked(place, read_toml(place, place))

    def settings(self) -> Settings:
        """Return the tunables of the control plane. Raises SettingError.

        The addresses of a node are in its own process.
        """
        return Settings.load({**self.tunables, "node": "inprocess"})

    def may_bind(self, uid: int, address: IPAddress) -> bool:
        """Tell whether a user may have an address; root may have each."""
        if not uid:
            return True
        allowed = self.addresses.get(uid, self.addresses.get(OTHERS, ()))
        return any(one == ANY or address in _network(one) for one in allowed)


KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    section: tuple(
        one.name for one in fields(NodeSettings) if one.metadata.get("section") == section
    )
    for section in ("node", "quota")
}
_RULES: Final[Mapping[str, Rule]] = {
    one.name: one.metadata["rule"] for one in fields(NodeSettings) if "rule" in one.metadata
}
_SECTIONS: Final = (*KEYS, "addresses", "settings")


def _network(text: str) -> IPv4Network | IPv6Network:
    from ipaddress import ip_network

    return ip_network(text)


def _checked(place: str, document: Mapping[str, object]) -> NodeSettings:
    values: dict[str, Any] = {}
    for section, table in document.items():
        if section not in _SECTIONS:
            raise SettingError(f"{place}: {section}: no such section{_near(section, _SECTIONS)}")
        if not isinstance(table, dict):
            raise SettingError(
                f"{place}: {section} = {shown(table)}: must be a section, [{section}]"
            )
        if section == "addresses":
            values["addresses"] = _addresses(place, table)
        elif section == "settings":
            values["tunables"] = _tunables(place, table)
        else:
            values |= _keys(place, section, table)
    return NodeSettings(**values)


def _keys(place: str, section: str, table: Mapping[str, object]) -> dict[str, Any]:
    for key in table:
        if key not in KEYS[section]:
            text = f"{place}: {section}.{key}: no such key{_near(key, KEYS[section])}"
            raise SettingError(text)
    return {
        key: _value(f"{place}: {section}.{key}", value, _RULES[key].read, _RULES[key].allowed)
        for key, value in table.items()
    }


def _addresses(place: str, table: Mapping[str, object]) -> dict[int | str, tuple[str, ...]]:
    rule = networks_rule()
    found: dict[int | str, tuple[str, ...]] = {OTHERS: (ANY,)}
    named: dict[int | str, str] = {}
    for user, value in table.items():
        name = f"{place}: addresses.{user}"
        networks = _value(name, value, rule.read, rule.allowed)
        uid = user if user == OTHERS else _served_uid(name, user)
        if uid in named:
            raise SettingError(f"{name}: names the same user as addresses.{named[uid]}")
        named[uid] = user
        found[uid] = networks
    return found


def _served_uid(name: str, user: str) -> int:
    """Return the uid of a user that a node serves. Raises SettingError."""
    uid = _uid(name, user)
    if uid == OVERFLOW_UID:
        raise SettingError(f"{name}: uid {uid} stands for every unmapped user: a node serves none")
    return uid


def _uid(name: str, user: str) -> int:
    if user.isdecimal() and user.isascii() and int(user) <= _UID_MAX:
        return int(user)
    import pwd

    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):
        raise SettingError(f'{name}: no such user; give a name, a number, or "{OTHERS}"') from None


def _tunables(place: str, table: Mapping[str, object]) -> dict[str, object]:
    if "node" in table:
        raise SettingError(f"{place}: settings.node: a node has its addresses in its own process")
    try:
        Settings.load(table, environ={})
    except SettingError as wrong:
        raise SettingError(f"{place}: settings.{wrong}".replace(", in Python", "")) from None
    return dict(table)


def _value(name: str, value: object, read: Callable[[object], Any], allowed: str) -> Any:
    try:
        return read(value)
    except (ValueError, TypeError, OverflowError):
        text = shown(value)
        text = text if len(text) < 80 else f"{text[:77]}..."
        raise SettingError(f"{name} = {text}: must be {allowed}") from None


def _near(word: str, words: tuple[str, ...]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(word, words, n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(words)}"
