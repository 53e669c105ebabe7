"""`urds node`: the node of this host or user, in the foreground; and what to ask of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from urds.cli.output import Exit, Output, UsageError, columns
from urds.cli.parser import Command, check_ranges, json_option, option
from urds.common.errors import SettingError
from urds.rds.node import commands
from urds.rds.node.settings import NodeSettings
from urds.rds.node.start import StartOptions, serve

_ACTIONS: Final = ("status", "upgrade", "stop")
_FORMATS: Final = ("logfmt", "json")
_MIB: Final = 1 << 20


def _action(text: str) -> str:
    if text not in _ACTIONS:
        raise UsageError(f"{text!r}: there are {', '.join(_ACTIONS)}; without one the node runs")
    return text


def _format(text: str) -> str:
    if text not in _FORMATS:
        raise UsageError(f"{text!r}: must be one of {', '.join(_FORMATS)}")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """Options of `urds node`."""

    action: str | None = option(
        metavar="status|upgrade|stop", parse=_action,
        help="Ask a running node; without it, run one here until Ctrl-C.",
    )  # fmt: skip
    system: bool = option(
        "--system", default=False, help="The node of the host, /run/urds/node.sock, for all users."
    )
    socket: str | None = option(
        "--socket", metavar="PATH", help="Another place than that of the host or of this user."
    )
    config: str | None = option("--config", metavar="FILE", help="Configuration, in TOML.")
    check_config: bool = option(
        "--check-config", default=False, help="Check the configuration and end."
    )
    log: str = option(
        "--log", metavar="FORMAT", default=_FORMATS[0], parse=_format,
        help="Lines of standard error: logfmt or json.",
    )  # fmt: skip
    idle_exit_s: float | None = option(
        "--idle-exit-s", metavar="SECONDS", low=0, high=86_400,
        help="End after so long without a socket or message; 0 never.",
    )  # fmt: skip
    verbose: bool = option("-v", "--verbose", default=False, help="Log each socket as well.")
    json_wanted: bool = json_option()


def run(options: NodeOptions) -> Exit:
    """Run a node, or ask one. Raises UsageError, SettingError, PlaneError, OSError."""
    check_ranges(options)
    if options.system and options.socket is not None:
        raise UsageError("--socket and --system: give one of them")
    if options.socket is not None:
        commands.check_place(options.socket)
    if options.action is not None:
        _refuse_of_a_start(options)
    output = Output(json_wanted=options.json_wanted)
    if options.check_config:
        return _check(options, output)
    if options.action is None:
        if options.json_wanted:
            raise UsageError("--json: a node that starts here has --log json")
        return _serve(options)
    place = commands.find(options.socket, system=options.system)
    if options.action == "status":
        _show(commands.status(place), output)
    elif options.action == "upgrade":
        before, after = commands.upgrade(place)
        output.document({"before": before, "worker": after})
        output.line(f"worker {before} has ended, worker {after} serves")
    else:
        commands.stop(place)
        output.document({"stopped": place})
        output.line(f"the node at {place} has stopped")
    return Exit.OK


def _refuse_of_a_start(options: NodeOptions) -> None:
    """Refuse with an action what only a node that starts here would obey. Raises UsageError."""
    given = {
        "--config": options.config is not None,
        "--check-config": options.check_config,
        "--idle-exit-s": options.idle_exit_s is not None,
        "--log": options.log != _FORMATS[0],
        "--verbose": options.verbose,
    }
    for name, is_given in given.items():
        if is_given:
            raise UsageError(f"{options.action} {name}: that option is for a node that starts here")


def _check(options: NodeOptions, output: Output) -> Exit:
    if options.config is None:
        raise SettingError("--check-config: give the file with --config")
    NodeSettings.load(options.config).settings()
    output.document({"config": options.config, "valid": True})
    output.line(f"{options.config}: valid")
    return Exit.OK


def _serve(options: NodeOptions) -> Exit:
    start = StartOptions(
        system=options.system,
        place=options.socket,
        config=options.config,
        log=options.log,
        verbose=options.verbose,
        idle_exit_s=options.idle_exit_s,
    )
    return Exit(serve(start))


def _show(found: dict[str, Any], output: Output) -> None:
    report = found.pop("report")
    output.document({**found, "counters": report["counters"]})
    output.line(f"node at {found['place']}, urds {found['version']}, user {found['uid']}")
    output.line(
        f"supervisor {found['pid']}, fork server {found['fork_server']}, worker {found['worker']}:"
        f" {found['starts']} started, {found['deaths']} died"
    )
    if found["upgrade_error"]:
        output.line(f"last upgrade failed: {found['upgrade_error']}")
    output.line(
        f"{found['sockets']} sockets, {found['bound']} bound;"
        f" {found['closing']} closed with messages to send"
    )
    rows = [
        (
            *(one["uid"], one["sockets"], f"{one['memory_bytes'] / _MIB:.1f}", one["peers"]),
            one.get("refused", 0),  # a node of an earlier release does not tell
        )
        for one in found["users"]
    ]
    if rows:
        output.table("Users", columns("Uid:10|Sockets:7|MiB:10|Peers:5|Refused:7"), rows)


COMMAND: Final = Command(
    about="""
    A node owns addresses for all programs of a host, or of one user, that attach to it: they share
    an address, keep their sockets over fork and exec, and their messages outlive them. It runs
    here until Ctrl-C or SIGTERM; SIGHUP and `upgrade` replace its worker, with the configuration
    read anew, and no program notices. docs/node.md tells how to operate it.
    """,
    examples=(
        ("urds node", "a node of this user, until Ctrl-C"),
        ("urds node --system --config /etc/urds/node.toml", "the host's, as its unit runs it"),
        ("urds node --check-config --config node.toml", "is the configuration right?"),
        ("urds node status --json", "for a script"),
        ("urds node upgrade", "load new code or configuration"),
    ),
    options=NodeOptions,
    run=run,
)
