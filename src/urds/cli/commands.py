"""The front with typer: help with colours, shell completion, the same tools and options."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any, Final

import typer

from urds.cli import texts
from urds.cli.exits import Exit, guarded
from urds.cli.info_tables import TABLES
from urds.cli.rsocket_commands import add as add_tool
from urds.cli.rsocket_commands import group as rsocket_group
from urds.cli.stress_texts import STRESS

_CONTEXT: Final = {"help_option_names": ["-h", "--help"]}
app: Final = typer.Typer(
    name="urds",
    help=texts.ABOUT,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=_CONTEXT,
)
dat_app: Final = typer.Typer(help=texts.DAT, no_args_is_help=True, context_settings=_CONTEXT)
verbs_app: Final = typer.Typer(help=texts.VERBS, no_args_is_help=True, context_settings=_CONTEXT)
app.add_typer(verbs_app, name="verbs")
app.add_typer(dat_app, name="dat")
app.add_typer(rsocket_group(), name="rsocket")


def main() -> int:
    """Carry out the command line of this process. Raises SystemExit with the exit code."""
    app(prog_name="urds")
    return Exit.OK


def _end(tool: str, run: Callable[[], Exit]) -> None:
    raise typer.Exit(guarded(tool, run))


def _examples(lines: texts.Examples) -> str:
    # \b keeps the lines as they are.
    return "\b\nExamples:\n" + texts.examples(lines)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(texts.version())
        raise typer.Exit(Exit.OK)


def _option(name: str, *flags: str) -> Any:
    return typer.Option(*flags, help=texts.OPTIONS[name])


def _table(letter: str) -> Any:
    about = next((one.help for one in TABLES if one.letter == letter), "counters")
    return typer.Option(f"-{letter}", help=f"Show {about}.")


_Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=_print_version, is_eager=True, help=texts.OPTIONS["version"]
    ),
]
_Json = Annotated[bool, _option("json", "--json")]


@app.callback()
def options_of_all(version: _Version = False) -> None:
    """Carry the options that stand before the name of a tool."""


@app.command(help=texts.DEMO, epilog=_examples(texts.DEMO_EXAMPLES))
def demo(
    hosts: Annotated[int, _option("hosts", "--hosts")] = 4,
    seconds: Annotated[float, _option("seconds", "--seconds")] = 8.0,
    payload_bytes: Annotated[int, _option("size", "--size")] = 1024,
    reset_every_s: Annotated[float, _option("reset_every", "--reset-every")] = 0.25,
    seed: Annotated[int | None, _option("seed", "--seed")] = None,
    first_address: Annotated[str, _option("first", "--first")] = "127.0.0.2",
    json_wanted: _Json = False,
) -> None:
    """Read the options of `urds demo`."""
    from urds.cli import demo as tool

    options = tool.DemoOptions(
        hosts=hosts,
        seconds=seconds,
        payload_bytes=payload_bytes,
        reset_every_s=reset_every_s,
        seed=seed,
        first_address=first_address,
        json_wanted=json_wanted,
    )
    _end("demo", lambda: tool.run(options))


@app.command(help=texts.PING, epilog=_examples(texts.PING_EXAMPLES))
def ping(
    target: Annotated[str, typer.Argument(help=texts.OPTIONS["target"])],
    count: Annotated[int | None, _option("count", "-c", "--count")] = None,
    interval: Annotated[str, _option("interval", "-i", "--interval")] = "1",
    local: Annotated[str | None, _option("local", "-I", "--local")] = None,
    type_of_service: Annotated[int | None, _option("tos", "-Q", "--tos")] = None,
    json_wanted: _Json = False,
) -> None:
    """Read the options of `urds ping`."""
    from urds.cli import ping as tool

    _end(
        "ping",
        lambda: tool.run(
            tool.PingOptions(
                target=target,
                count=count,
                interval_s=tool.parse_interval(interval),
                local=local,
                type_of_service=type_of_service,
                json_wanted=json_wanted,
            )
        ),
    )


@app.command(help=texts.INFO, epilog=_examples(texts.INFO_EXAMPLES))
def info(
    counters: Annotated[bool, _table("c")] = False,
    processes: Annotated[bool, _table("p")] = False,
    sockets: Annotated[bool, _table("k")] = False,
    connections: Annotated[bool, _table("n")] = False,
    receive_queue: Annotated[bool, _table("r")] = False,
    send_queue: Annotated[bool, _table("s")] = False,
    retransmit_queue: Annotated[bool, _table("t")] = False,
    tcp_sockets: Annotated[bool, _table("T")] = False,
    ib_connections: Annotated[bool, _table("I")] = False,
    pid: Annotated[int | None, _option("pid", "--pid")] = None,
    verbose: Annotated[bool, _option("verbose", "-v", "--verbose")] = False,
    json_wanted: _Json = False,
    version: _Version = False,
) -> None:
    """Read the options of `urds info`."""
    from urds.cli import info as tool

    named = {
        "c": counters,
        "p": processes,
        "k": sockets,
        "n": connections,
        "r": receive_queue,
        "s": send_queue,
        "t": retransmit_queue,
        "T": tcp_sockets,
        "I": ib_connections,
    }
    options = tool.InfoOptions(
        tables=frozenset(letter for letter, wanted in named.items() if wanted),
        pid=pid,
        verbose=verbose,
        json_wanted=json_wanted,
    )
    _end("info", lambda: tool.run(options))


add_tool(app, STRESS, "stress")


@dat_app.command("demo", help=texts.DAT_DEMO, epilog=_examples(texts.DAT_DEMO_EXAMPLES))
def dat_demo(json_wanted: _Json = False) -> None:
    """Read the options of `urds dat demo`."""
    from urds.cli import dat_demo as tool

    _end("dat demo", lambda: tool.run(tool.DatDemoOptions(json_wanted=json_wanted)))


def _letter(letters: Iterable[texts.Letter], letter: str) -> Any:
    text = next(each.text for each in letters if each.letter == letter)
    return typer.Option(f"-{letter}", help=text)


_dtest: Final = partial(_letter, texts.DAT_TEST_OPTIONS)
_dapltest: Final = partial(_letter, texts.DAT_LOAD_OPTIONS)


@dat_app.command(
    "test",
    help=texts.DAT_TEST,
    epilog=_examples(texts.DAT_TEST_EXAMPLES),
    # -h is the host, as in dtest, and -U its help.
    context_settings={"help_option_names": ["--help", "-U"]},
)
def dat_test(
    ia_name: Annotated[str, _dtest("P")] = "shm0",
    host: Annotated[str | None, _dtest("h")] = None,
    is_server: Annotated[bool, _dtest("s")] = False,
    size_bytes: Annotated[int, _dtest("b")] = 64,
    bursts: Annotated[int, _dtest("B")] = 10,
    use_cno: Annotated[bool, _dtest("c")] = False,
    poll: Annotated[bool, _dtest("p")] = False,
    delay_s: Annotated[float, _dtest("d")] = 0.0,
    write_only: Annotated[bool, _dtest("w")] = False,
    write_ping_pong: Annotated[bool, _dtest("W")] = False,
    one_way: Annotated[bool, _dtest("u")] = False,
    all_sizes: Annotated[bool, _dtest("a")] = False,
    increment_bytes: Annotated[int, _dtest("i")] = 0,
    validate: Annotated[bool, _dtest("D")] = False,
    signal_rate: Annotated[int, _dtest("S")] = 10,
    times: Annotated[bool, _dtest("t")] = False,
    verbose: Annotated[bool, _dtest("v")] = False,
    qpn: Annotated[str | None, _dtest("q")] = None,
    lid: Annotated[str | None, _dtest("l")] = None,
    conn_qual: Annotated[int, _option("conn_qual", "--port")] = 45_248,
    json_wanted: _Json = False,
) -> None:
    """Read the options of `urds dat test`."""
    options = dict(locals())
    from urds.cli import dat_test as tool

    _end("dat test", lambda: tool.run(tool.DatTestOptions(**options)))


@verbs_app.callback()
def verbs_tools() -> None:
    """Keep `bench` a name of its own while it is the only tool."""


@verbs_app.command("bench", help=texts.VERBS_BENCH, epilog=_examples(texts.VERBS_BENCH_EXAMPLES))
def verbs_bench(
    devices: Annotated[list[str] | None, _option("device", "--device")] = None,
    sizes: Annotated[list[int] | None, _option("sizes", "--size")] = None,
    seconds: Annotated[float, _option("figure_seconds", "--seconds")] = 0.3,
    connections: Annotated[int, _option("connections", "--connections")] = 200,
    json_wanted: _Json = False,
) -> None:
    """Read the options of `urds verbs bench`."""
    from urds.cli import verbs_bench as tool

    options = tool.VerbsBenchOptions(
        devices=tuple(devices or tool.DEVICES),
        sizes=tuple(sizes or tool.SIZES),
        seconds=seconds,
        connections=connections,
        json_wanted=json_wanted,
    )
    _end("verbs bench", lambda: tool.run(options))


@dat_app.command("load", help=texts.DAT_LOAD, epilog=_examples(texts.DAT_LOAD_EXAMPLES))
def dat_load(
    kind: Annotated[str, _dapltest("T")] = "T",
    ia_name: Annotated[str, _dapltest("P")] = "shm0",
    iterations: Annotated[int, _dapltest("i")] = 100,
    endpoints: Annotated[int, _dapltest("w")] = 1,
    size_bytes: Annotated[int, _dapltest("b")] = 4096,
    pipeline: Annotated[int, _dapltest("p")] = 16,
    operation: Annotated[str, _dapltest("o")] = "RW",
    attempts: Annotated[int, _dapltest("m")] = 1000,
    poll: Annotated[bool, _dapltest("q")] = False,
    json_wanted: _Json = False,
) -> None:
    """Read the options of `urds dat load`."""
    options = dict(locals())
    from urds.cli import dat_load as tool

    _end("dat load", lambda: tool.run(tool.DatLoadOptions(**options)))
