"""`urds verbs devices`: the software RDMA devices of this host, in the form of ibv_devinfo.

Source of the form: rdma-core ibv_devinfo(1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any, Final

from urds.cli.output import TITLE, Exit, Output, UsageError, complain
from urds.cli.parser import Command, json_option, option
from urds.verbs.device import get_device_list
from urds.verbs.errors import VerbsError

# What is printed without `-v`, of a device and of its port.
_SHORT: Final = frozenset({
    "provider", "fw_ver", "vendor", "hw_ver", "phys_port_cnt",
    "state", "max_mtu", "active_mtu", "mtu_bytes", "link_layer", "gid[0]",
})  # fmt: skip
_WORDS: Final = {("state", 4): "PORT_ACTIVE (4)", ("link_layer", 2): "Ethernet"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesOptions:
    """Options of `urds verbs devices`: those of ibv_devinfo."""

    device: str | None = option("-d", "--ib-dev", metavar="NAME", help="Show this device only.")
    verbose: bool = option("-v", "--verbose", default=False, help="Show all attributes.")
    json_wanted: bool = json_option()


def run(options: DevicesOptions) -> Exit:
    """Print the devices; `Exit.FAILED` if one does not open. Raises UsageError: no such device."""
    output = Output(json_wanted=options.json_wanted)
    devices = [one for one in get_device_list() if options.device in (None, one.name)]
    if not devices:
        known = ", ".join(one.name for one in get_device_list())
        raise UsageError(f"-d {options.device}: must be one of {known}")
    found: list[dict[str, Any]] = []
    for device in devices:
        try:
            with device.open() as context:
                attributes: dict[str, Any] = {
                    name: sorted(one.name for one in value)
                    if isinstance(value, frozenset)
                    else value
                    for name, value in asdict(context.query_device()).items()
                }
                port = {
                    **asdict(context.query_port()),
                    **attributes.pop("link"),
                    "gid[0]": str(context.query_gid()),
                }
        except VerbsError as failure:
            complain("urds verbs devices", f"{device.name}: {failure.strerror}")
            continue
        found.append({**attributes, "phys_port_cnt": 1, "port": port})
    output.document(found)
    for one in found:
        output.line(f"hca_id: {one.pop('name')}", TITLE)
        port = one.pop("port")
        _print(output, one, 4, verbose=options.verbose)
        output.line(f"{'':8}port: 1")
        _print(output, port, 12, verbose=options.verbose)
        output.line()
    return Exit.OK if len(found) == len(devices) else Exit.FAILED


def _print(output: Output, values: Mapping[str, Any], blanks: int, *, verbose: bool) -> None:
    for name, value in values.items():
        if verbose or name in _SHORT:
            output.line(f"{'':{blanks}}{name + ':':{32 - blanks}}{_text(name, value)}")


def _text(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, IntEnum):  # an MTU: its size and its code
        return f"{128 << value} ({value:d})"
    return _WORDS.get((name, value), str(value))


COMMAND: Final = Command(
    about="""
    Opens each software device of this host and prints it in the form of ibv_devinfo. What a device
    reaches: shm0 other processes of this host, tcp0 and udp0 other hosts.
    """,
    examples=(
        ("urds verbs devices", "all of them"),
        ("urds verbs devices -d tcp0 -v", "every attribute of one"),
    ),
    options=DevicesOptions,
    run=run,
)
