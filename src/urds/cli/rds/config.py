"""`urds config`: each setting as it is in force here, and where its value is from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from urds.cli.output import Exit, Output, columns
from urds.cli.parser import Command, json_option
from urds.rds.runtime.process import process


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigOptions:
    """Options of `urds config`."""

    json_wanted: bool = json_option()


def run(options: ConfigOptions) -> Exit:
    """Print the settings of a program that is started here. Raises SettingError."""
    output = Output(json_wanted=options.json_wanted)
    values, sources = asdict(process.settings()), process.sources()
    output.document(
        {name: {"value": value, "source": sources[name]} for name, value in values.items()}
    )
    rows = [(name, value_text(value), sources[name]) for name, value in values.items()]
    output.table("", columns("Setting:<22|Value:<14|Source:<7"), rows)
    return Exit.OK


def value_text(value: object) -> str:
    """Return a value as the environment takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


COMMAND: Final = Command(
    about="""
    Prints each setting with its value and its source: default, the file of URDS_CONFIG, a variable
    of the environment, or Python. A program that calls urds.configure has values of its own. A bad
    value is named, with exit code 2.
    """,
    examples=(("urds config", "what holds here"), ("urds config --json", "for a script")),
    options=ConfigOptions,
    run=run,
)
