"""The tools of `urds rsocket` for the front with the standard library alone, from their table."""

from __future__ import annotations

import argparse

from urds.cli.exits import Exit
from urds.cli.rsocket_texts import Option, Tool


def add_options(parser: argparse.ArgumentParser, tool: Tool) -> None:
    """Give a parser the options of a tool; `--json` it has already."""
    for option in tool.options:
        _add(parser, option)


def run(tool: Tool, options: argparse.Namespace) -> Exit:
    """Run a tool with parsed options."""
    values = {option.name: getattr(options, option.name) for option in tool.options}
    return tool.run({**values, "json_wanted": options.json})


def _add(parser: argparse.ArgumentParser, option: Option) -> None:
    if not option.flags:
        parser.add_argument(
            option.name, nargs="?", type=option.kind, default=option.default,
            metavar=option.metavar, help=option.text,
        )  # fmt: skip
    elif option.kind is bool:
        parser.add_argument(*option.flags, dest=option.name, action="store_true", help=option.text)
    else:
        parser.add_argument(
            *option.flags, dest=option.name, type=option.kind, metavar=option.metavar,
            help=option.text, default=[] if option.is_repeated else option.default,
            action="append" if option.is_repeated else "store",
        )  # fmt: skip
