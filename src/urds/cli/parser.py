"""The command line of every command, made from one table with `argparse`.

A command is a `Command`: its help, its record of options and the function that runs it. Each field
of the record that `option` made is an option or a positional argument: its annotation tells the
type, its default the default. Help and options are the same with and without the extra `cli`,
which colours the help on a terminal (rich-argparse) and completes words in a shell (argcomplete).
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from ipaddress import ip_address
from math import inf
from textwrap import fill
from types import NoneType
from typing import Any, Final, get_args, get_origin, get_type_hints

from urds.cli.output import Exit, UsageError, complain, guarded, is_terminal
from urds.common.types import IPAddress

_OPTION: Final = "option"  # key of the metadata of a field
_WIDTH_MAX: Final = 100
_WIDTH_MIN: Final = 20  # on a terminal that is narrower still, its lines wrap

EXIT_CODES: Final = (
    "exit codes:\n"
    "  0    done\n"
    "  1    failed: no answer, a lost message, an address that cannot be had\n"
    "  2    wrong arguments or settings\n"
    "  130  ended by Ctrl-C"
)
_MORE: Final = "Colours and completion: in a checkout, pip install '.[cli]'"


@dataclass(frozen=True, slots=True)
class _Option:
    """The command line's data of one field of a record."""

    flags: tuple[str, ...]  # none: a positional argument
    help: str
    metavar: str
    low: float | None
    high: float | None
    parse: Callable[[str], Any] | None
    letters: Mapping[str, str]  # flags of one letter, each of which adds itself to the field
    bare: Any  # the value of a flag without one; None: a value must follow
    has_rest: bool  # all words from here on, options of another program too


def option(
    *flags: str,
    help: str,
    metavar: str = "N",
    default: Any = None,
    low: float | None = None,
    high: float | None = None,
    parse: Callable[[str], Any] | None = None,
    letters: Mapping[str, str] | None = None,
    bare: Any = None,
    has_rest: bool = False,
) -> Any:
    """Return a field of a record of options; without flags it is a positional argument.

    `low` and `high` are the limits that `check_ranges` holds and the help shows. `parse` makes
    the value from the text and raises UsageError. With `has_rest` a last argument takes every word
    that follows, whatever it looks like.
    """
    shown = _Option(flags, help, metavar, low, high, parse, letters or {}, bare, has_rest)
    return field(default=default, metadata={_OPTION: shown})


def json_option() -> Any:
    """Return the field of `--json`, which every command has."""
    return option("--json", default=False, help="Print JSON.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command; its name and summary are in the table of `main`."""

    about: str  # paragraphs, without the summary
    examples: tuple[tuple[str, str], ...]  # a command line, and what it is for
    options: type[Any]  # a dataclass
    run: Callable[[Any], Exit]
    help_flags: tuple[str, ...] = ("-h", "--help")
    has_version: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Commands under one word, or, without a name, those directly under `urds`."""

    name: str
    summary: str
    commands: Mapping[str, str]  # by name, the summary that lists of commands show
    package: str  # of the modules, each named as its command; one is loaded when used

    def load(self, name: str) -> Command:
        """Return a command."""
        command: Command = import_module(f"{self.package}.{name}").COMMAND
        return command


def main(about: str, groups: Sequence[Group], arguments: Sequence[str]) -> int:
    """Run a command line; return its exit code. Raises SystemExit for help and wrong usage."""
    is_completion = "_ARGCOMPLETE" in os.environ
    words = os.environ.get("COMP_LINE", "").split()[1:] if is_completion else arguments
    parser = build(about, groups, words)
    if is_completion:
        _complete(parser)
    return _run(parser, arguments)


def run_alone(program: str, summary: str, command: Command, arguments: Sequence[str]) -> int:
    """Run a program that is one command; return its exit code. Raises SystemExit as `main`."""
    parser = _Parser(prog=program, help_flags=(), argument_default=argparse.SUPPRESS)
    _fill(parser, program, summary, command)
    return _run(parser, arguments)


def build(
    about: str, groups: Sequence[Group], words: Sequence[str] | None = None
) -> argparse.ArgumentParser:
    """Return the parser of a command line of these words; None loads every command.

    Only the module of the named command is loaded: `urds ping` needs nothing of verbs.
    """
    chosen = None if words is None else [word for word in words if word[:1] != "-"][:2]
    extra = () if find_spec("rich_argparse") else (_MORE,)
    parser = _Parser(prog="urds", description=about, epilog="\n\n".join((EXIT_CODES, *extra)))
    _add_version(parser)
    commands = _add_commands(parser)
    for group in groups:
        below = commands
        if group.name:
            one = commands.add_parser(
                group.name, help=group.summary, description=group.summary, prog=f"urds {group.name}"
            )
            below = _add_commands(one)
        for command, summary in group.commands.items():
            path = [*filter(None, [group.name]), command]
            name = " ".join(("urds", *path))
            one = below.add_parser(
                command, help=summary, prog=name, help_flags=(), argument_default=argparse.SUPPRESS
            )
            if chosen is None or chosen[: len(path)] == path:
                _fill(one, name, summary, group.load(command))
    return parser


def check_ranges(options: Any) -> None:
    """Raise UsageError for a number of a record beyond the limits of its option."""
    for each in fields(options):
        shown = _shown(each)
        value = getattr(options, each.name)
        if shown is None or shown.low is None or value is None:
            continue
        for number in value if isinstance(value, (list, tuple)) else (value,):
            high = inf if shown.high is None else shown.high
            if not shown.low <= number <= high:  # so written, it refuses NaN too
                limits = f"from {shown.low} to {shown.high}"
                if shown.high is None:
                    limits = f"{shown.low} or more"
                name = shown.flags[-1] if shown.flags else shown.metavar
                raise UsageError(f"{name} {number}: must be {limits}")


def check_settings(name: str) -> None:
    """Read the settings before a command begins or starts a child; warn of unknown variables.

    Raises SettingError.
    """
    from urds.rds.runtime.process import process
    from urds.rds.settings import unknown_variables

    process.settings()
    for variable in unknown_variables():
        complain(name, f"variable {variable}: no such setting, ignored")
        del os.environ[variable]  # this process and its children need not tell it again


def find_address(text: str) -> IPAddress:
    """Return a literal address, or the first one that the resolver returns for a name, IPv4 first.

    A v4-mapped one is IPv4, as everywhere in RDS. Raises UsageError for an unknown name.
    """
    import socket

    with suppress(ValueError):
        address = ip_address(text)
        return getattr(address, "ipv4_mapped", None) or address
    try:
        found = socket.getaddrinfo(text, None, type=socket.SOCK_DGRAM)
    except OSError as failure:
        raise UsageError(f"{text}: {failure.strerror}") from failure
    best = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return ip_address(str(best[4][0]))


def version() -> str:
    """Return the line of `--version`."""
    from urds.common.version import VERSION

    python = ".".join(map(str, sys.version_info[:3]))
    return f"urds {VERSION} ({_plane()}), Python {python}, {platform.system()} {platform.release()}"


def _plane() -> str:
    """Return which data plane carries messages here, and why not the compiled one."""
    from urds.common.errors import PlaneError, SettingError
    from urds.rds.runtime.process import plane_in_use

    try:
        plane, reason = plane_in_use()
    except (SettingError, PlaneError) as wrong:
        return f"no plane: {wrong}"
    return f"{plane} plane" if plane == "native" else f"{plane} plane: {reason}"


class _Parser(argparse.ArgumentParser):
    """A parser whose help is coloured on a terminal, and that suggests commands for a wrong one."""

    def __init__(self, *, help_flags: Sequence[str] = ("-h", "--help"), **settings: Any) -> None:
        super().__init__(add_help=False, formatter_class=_Formatter, **settings)
        self._positionals.title = "arguments"
        if help_flags:
            self.add_argument(*help_flags, action="help", help="Show this help and exit.")

    def format_help(self) -> str:
        """Return the help; rich is loaded here and nowhere else."""
        self.formatter_class = _help_formatter()
        return super().format_help()

    def print_help(self, file: Any = None) -> None:
        """Print the help; argparse's own says nothing of output that cannot be written."""
        print(self.format_help(), end="", file=file)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        near = get_close_matches(value, action.choices)
        advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(action.choices)}"
        raise argparse.ArgumentError(None, f"no command {value!r}; {advice}")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help as rich-argparse and Python 3.13 write it: the value once, behind all flags."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=_width())

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        flags = ", ".join(action.option_strings)
        return f"{flags} {self._format_args(action, action.dest.upper())}"


def _help_formatter() -> Any:
    """Return rich's formatter on a terminal, if it is installed."""
    if not is_terminal():
        return _Formatter
    try:
        from rich_argparse import RawDescriptionRichHelpFormatter
    except ModuleNotFoundError:
        return _Formatter

    class Formatter(RawDescriptionRichHelpFormatter):
        """The same text, coloured."""

        group_name_formatter = str
        help_markup = text_markup = False  # a bracket is a bracket

    return partial(Formatter, max_help_position=28, width=_width())


def _width() -> int:
    from shutil import get_terminal_size

    return max(_WIDTH_MIN, min(get_terminal_size().columns, _WIDTH_MAX) - 2)


def _complete(parser: argparse.ArgumentParser) -> None:
    """Print the words that a shell's completion requests, and end; nothing without argcomplete."""
    try:
        import argcomplete
    except ModuleNotFoundError:
        return
    argcomplete.autocomplete(parser)


def _run(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    found, unknown = parser.parse_known_args(arguments)
    values = vars(found)
    run = values.pop("_run", None)
    one: argparse.ArgumentParser = values.pop("_parser", parser)
    rest = values.pop("_rest", None)
    if rest and not any(word[:1] == "-" for word in unknown):
        values[rest] += unknown  # before Python 3.13 argparse leaves those behind an option
        unknown = []
    if unknown:  # argparse would show the usage of `urds`, not of the command
        one.error(f"unrecognized arguments: {' '.join(unknown)}")
    if run is None:  # no command: help, as of cargo
        one.print_help()
        return Exit.OK
    code: int = run(values)
    return code


def _add_commands(parser: argparse.ArgumentParser) -> Any:
    parser.set_defaults(_parser=parser)
    return parser.add_subparsers(title="commands", metavar="COMMAND", prog=parser.prog)


def _add_version(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--version", action=_Version, nargs=0, default=argparse.SUPPRESS,
        help="Print version and data plane, and exit.",
    )  # fmt: skip


class _Version(argparse.Action):
    """Print the version; argparse's own would ask for it, and so for the plane, in every call."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(version())
        parser.exit()


def _fill(parser: argparse.ArgumentParser, name: str, summary: str, command: Command) -> None:
    """Give a parser the help, the options and the function of a command."""
    width = max(len(line) for line, _ in command.examples)
    lines = [f"  {line.ljust(width)}   {what}" for line, what in command.examples]
    if max(map(len, lines)) > _WIDTH_MAX:
        lines = [f"  # {what}\n  {line}" for line, what in command.examples]
    parser.description = _paragraphs(f"{summary}\n\n{command.about}".strip())
    parser.epilog = "\n".join(("examples:", *lines))
    parser._positionals.title = "arguments"
    parser.add_argument(*command.help_flags, action="help", help="Show this help and exit.")
    types = get_type_hints(command.options)
    arguments = []
    for each in fields(command.options):
        if (shown := _shown(each)) is not None:
            _add(parser, each, types[each.name], shown)
            if not shown.flags and not shown.letters:
                more = " ..." if get_origin(types[each.name]) is Sequence else ""
                is_required = each.default is MISSING
                arguments.append(shown.metavar if is_required else f"[{shown.metavar}{more}]")
    parser.usage = " ".join((name, "[OPTION ...]", *arguments))
    if command.has_version:
        _add_version(parser)

    def run(values: dict[str, Any]) -> Exit:
        def checked() -> Exit:
            check_settings(name)
            return command.run(command.options(**values))

        return guarded(name, checked)

    parser.set_defaults(_run=run, _parser=parser)


def _add(parser: argparse.ArgumentParser, each: Field[Any], kind: Any, shown: _Option) -> None:
    """Add the option of a field."""
    for letter, text in shown.letters.items():
        parser.add_argument(
            f"-{letter}", dest=each.name, action="append_const", const=letter, help=text
        )
    if shown.letters:
        return
    text = (shown.help + _default(each, shown)).replace("%", "%%")
    single = _single(kind)
    settings: dict[str, Any] = {"help": text}
    if single is bool and shown.parse is None:
        settings["action"] = "store_true"
    else:
        settings |= {"metavar": shown.metavar, "type": shown.parse or single}
        if shown.bare is not None:
            settings |= {"nargs": "?", "const": shown.bare}
        if get_origin(kind) in (Sequence, tuple, list):
            settings |= {"action": "append"} if shown.flags else {"nargs": "*"}
    if shown.flags:
        parser.add_argument(*shown.flags, dest=each.name, **settings)
    else:
        is_required = each.default is MISSING
        if not is_required:  # argparse would parse SUPPRESS like a word of the command line
            settings = {"nargs": "?", **settings, "default": None}
        if shown.has_rest:
            settings["nargs"] = argparse.REMAINDER
        elif settings.get("nargs") == "*":
            parser.set_defaults(_rest=each.name)
        added = parser.add_argument(each.name, **settings)
        added.required = is_required  # before Python 3.13 the rest of a line counts as required


def _single(kind: Any) -> Any:
    """Return the type of one value: int of `int | None` and of `Sequence[int]`."""
    parts = [part for part in get_args(kind) if part not in (NoneType, Ellipsis)]
    return parts[0] if parts else kind


def _default(each: Field[Any], shown: _Option) -> str:
    """Return the help's text on the limits and the default of an option."""
    parts = []
    if shown.low is not None and shown.high is not None:
        parts.append(f"{shown.low} to {shown.high}")
    default = each.default
    if isinstance(default, bool):  # a flag, or 0|1
        parts += [f"default {default:d}"] if shown.parse else []
    elif isinstance(default, tuple) and default:
        parts.append(f"default {', '.join(map(str, default))}")
    elif default is not MISSING and default not in (None, "", ()):
        parts.append(f"default {default:g}" if isinstance(default, float) else f"default {default}")
    return f" ({'; '.join(parts)})" if parts else ""


def _shown(each: Field[Any]) -> _Option | None:
    return each.metadata.get(_OPTION)


def _paragraphs(text: str) -> str:
    return "\n\n".join(fill(" ".join(each.split()), _width()) for each in text.split("\n\n"))
