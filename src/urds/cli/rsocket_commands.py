"""The tools of `urds rsocket` for the front with typer, made from their table."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from urds.cli import texts
from urds.cli.exits import guarded
from urds.cli.rsocket_texts import ABOUT, TOOLS, Option, Tool

_NAMES_OF_HELP: Final = {"help_option_names": ["-h", "--help"]}


def group() -> typer.Typer:
    """Return the group with all its tools."""
    app = typer.Typer(help=ABOUT, no_args_is_help=True, context_settings=_NAMES_OF_HELP)

    @app.callback()
    def tools() -> None:
        """Keep the names of tools while there is one only."""

    for tool in TOOLS:
        add(app, tool, f"rsocket {tool.name}")
    return app


def add(app: typer.Typer, tool: Tool, called: str) -> None:
    """Give a group or the command itself a tool; `called` begins the lines of its failures."""
    # \b keeps the lines as they are.
    examples = "\b\nExamples:\n" + texts.examples(tool.examples)
    app.command(tool.name, help=tool.about, epilog=examples)(_command(tool, called))


def _command(tool: Tool, called: str) -> Callable[..., None]:
    """Return a function whose signature is the tool's options: typer reads that."""

    def command(**values: Any) -> None:
        raise typer.Exit(guarded(called, lambda: tool.run(values)))

    parameters = [_parameter(option) for option in tool.options]
    json_wanted = typer.Option("--json", help=texts.OPTIONS["json"])
    parameters.append(_named("json_wanted", Annotated[bool, json_wanted], False))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # functions have one
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _parameter(option: Option) -> inspect.Parameter:
    if not option.flags:
        shown: Any = typer.Argument(metavar=option.metavar, help=option.text)
        return _named(option.name, Annotated[option.kind | None, shown], option.default)
    shown = typer.Option(*option.flags, metavar=option.metavar or None, help=option.text)
    if option.kind is bool:
        return _named(option.name, Annotated[bool, shown], False)
    if option.is_repeated:
        return _named(option.name, Annotated[list[option.kind], shown], [])  # type: ignore[name-defined]  # known at run time
    if option.default is None:
        return _named(option.name, Annotated[option.kind | None, shown], None)
    return _named(option.name, Annotated[option.kind, shown], option.default)


def _named(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
