"""The front with the standard library alone: the same tools and options, fewer comforts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from textwrap import fill
from typing import Any, TypeAlias

from urds.cli import rsocket_plain, rsocket_texts, texts
from urds.cli.exits import Exit, guarded
from urds.cli.info_tables import TABLES
from urds.cli.stress_texts import STRESS

# What add_subparsers returns; argparse has no public name for it.
_Tools: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def main(arguments: Sequence[str]) -> Exit:
    """Carry out a command line. Raises SystemExit for help, version and wrong usage."""
    options, unknown = _parser().parse_known_args(arguments)
    if unknown:  # argparse would show the usage of `urds`, not of the tool
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    run: Callable[[argparse.Namespace], Exit] = options.run
    return guarded(options.tool, partial(run, options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="urds", description=texts.ABOUT, epilog="More comfort: pip install 'urds[cli]'"
    )
    _add_version(parser)
    tools = _tools_of(parser)
    _add_demo(_tool(tools, "demo", texts.DEMO, texts.DEMO_EXAMPLES, _demo))
    _add_ping(_tool(tools, "ping", texts.PING, texts.PING_EXAMPLES, _ping))
    _add_info(_tool(tools, "info", texts.INFO, texts.INFO_EXAMPLES, _info))
    stress_run = partial(rsocket_plain.run, STRESS)
    rsocket_plain.add_options(
        _tool(tools, STRESS.name, STRESS.about, STRESS.examples, stress_run), STRESS
    )
    verbs = _tools_of(tools.add_parser("verbs", help=texts.VERBS, description=texts.VERBS))
    _add_verbs_bench(
        _tool(
            verbs,
            "bench",
            texts.VERBS_BENCH,
            texts.VERBS_BENCH_EXAMPLES,
            _verbs_bench,
            group="verbs",
        )
    )
    dat = _tools_of(tools.add_parser("dat", help=texts.DAT, description=texts.DAT))
    _tool(dat, "demo", texts.DAT_DEMO, texts.DAT_DEMO_EXAMPLES, _dat_demo, group="dat")
    _add_dat_test(
        _tool(dat, "test", texts.DAT_TEST, texts.DAT_TEST_EXAMPLES, _dat_test, group="dat")
    )
    _add_letters(
        _tool(dat, "load", texts.DAT_LOAD, texts.DAT_LOAD_EXAMPLES, _dat_load, group="dat"),
        texts.DAT_LOAD_OPTIONS,
    )
    about = rsocket_texts.ABOUT
    rsocket = _tools_of(tools.add_parser("rsocket", help=about, description=about))
    for tool in rsocket_texts.TOOLS:
        run = partial(rsocket_plain.run, tool)
        rsocket_plain.add_options(
            _tool(rsocket, tool.name, tool.about, tool.examples, run, group="rsocket"), tool
        )
    return parser


def _tools_of(parser: argparse.ArgumentParser) -> _Tools:
    return parser.add_subparsers(title="tools", metavar="TOOL", required=True)


def _tool(
    tools: _Tools,
    name: str,
    about: str,
    shown: texts.Examples,
    run: Callable[[argparse.Namespace], Exit],
    *,
    group: str = "",
) -> argparse.ArgumentParser:
    one = tools.add_parser(
        name,
        help=about.partition("\n")[0],
        description="\n\n".join(map(fill, about.split("\n\n"))),
        epilog="examples:\n" + texts.examples(shown),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        conflict_handler="resolve",  # dtest's -h is a host
    )
    one.add_argument("--json", action="store_true", help=texts.OPTIONS["json"])
    one.set_defaults(run=run, parser=one, tool=f"{group} {name}".strip())
    return one


def _add_demo(parser: argparse.ArgumentParser) -> None:
    words = texts.OPTIONS
    parser.add_argument("--hosts", type=int, default=4, metavar="N", help=words["hosts"])
    parser.add_argument("--seconds", type=float, default=8.0, metavar="S", help=words["seconds"])
    parser.add_argument("--size", type=int, default=1024, metavar="OCTETS", help=words["size"])
    parser.add_argument(
        "--reset-every", type=float, default=0.25, metavar="S", help=words["reset_every"]
    )
    parser.add_argument("--seed", type=int, metavar="N", help=words["seed"])
    parser.add_argument("--first", default="127.0.0.2", metavar="ADDRESS", help=words["first"])


def _add_ping(parser: argparse.ArgumentParser) -> None:
    words = texts.OPTIONS
    parser.add_argument("-c", "--count", type=int, metavar="N", help=words["count"])
    parser.add_argument("-i", "--interval", default="1", metavar="TIME", help=words["interval"])
    parser.add_argument("-I", "--local", metavar="ADDRESS", help=words["local"])
    parser.add_argument("-Q", "--tos", type=int, metavar="TOS", help=words["tos"])
    parser.add_argument("target", help=words["target"])


def _add_info(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c", dest="tables", action="append_const", const="c", help="Show counters."
    )
    for table in TABLES:
        parser.add_argument(
            f"-{table.letter}",
            dest="tables",
            action="append_const",
            const=table.letter,
            help=f"Show {table.help}.",
        )
    parser.add_argument("--pid", type=int, metavar="N", help=texts.OPTIONS["pid"])
    parser.add_argument("-v", "--verbose", action="store_true", help=texts.OPTIONS["verbose"])
    _add_version(parser)


def _add_version(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--version", action=_Version, nargs=0, help=texts.OPTIONS["version"])


class _Version(argparse.Action):
    """Print the version; argparse's own would ask for it, and so for the plane, in every call."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(texts.version())
        parser.exit()


def _demo(options: argparse.Namespace) -> Exit:
    from urds.cli import demo

    return demo.run(
        demo.DemoOptions(
            hosts=options.hosts,
            seconds=options.seconds,
            payload_bytes=options.size,
            reset_every_s=options.reset_every,
            seed=options.seed,
            first_address=options.first,
            json_wanted=options.json,
        )
    )


def _ping(options: argparse.Namespace) -> Exit:
    from urds.cli import ping

    return ping.run(
        ping.PingOptions(
            target=options.target,
            count=options.count,
            interval_s=ping.parse_interval(options.interval),
            local=options.local,
            type_of_service=options.tos,
            json_wanted=options.json,
        )
    )


def _info(options: argparse.Namespace) -> Exit:
    from urds.cli import info

    return info.run(
        info.InfoOptions(
            tables=frozenset(options.tables or ()),
            pid=options.pid,
            verbose=options.verbose,
            json_wanted=options.json,
        )
    )


def _dat_demo(options: argparse.Namespace) -> Exit:
    from urds.cli import dat_demo

    return dat_demo.run(dat_demo.DatDemoOptions(json_wanted=options.json))


def _add_letters(parser: argparse.ArgumentParser, letters: Iterable[texts.Letter]) -> None:
    for letter, name, metavar, default, text in letters:
        flag = f"-{letter}"
        if not metavar:
            parser.add_argument(flag, dest=name, action="store_true", help=text)
            continue
        kind = str if default is None else type(default)
        parser.add_argument(flag, dest=name, type=kind, default=default, metavar=metavar, help=text)


def _letters(options: argparse.Namespace, letters: Iterable[texts.Letter]) -> dict[str, Any]:
    return {each.name: getattr(options, each.name) for each in letters}


def _add_dat_test(parser: argparse.ArgumentParser) -> None:
    _add_letters(parser, texts.DAT_TEST_OPTIONS)
    parser.add_argument("-U", action="help", help=texts.OPTIONS["usage"])
    parser.add_argument(
        "--port", dest="conn_qual", type=int, default=45_248, metavar="QUALIFIER",
        help=texts.OPTIONS["conn_qual"],
    )  # fmt: skip


def _dat_test(options: argparse.Namespace) -> Exit:
    from urds.cli import dat_test

    named = _letters(options, texts.DAT_TEST_OPTIONS)
    return dat_test.run(
        dat_test.DatTestOptions(**named, conn_qual=options.conn_qual, json_wanted=options.json)
    )


def _add_verbs_bench(parser: argparse.ArgumentParser) -> None:
    words = texts.OPTIONS
    parser.add_argument("--device", action="append", metavar="NAME", help=words["device"])
    parser.add_argument("--size", action="append", type=int, metavar="OCTETS", help=words["sizes"])
    parser.add_argument(
        "--seconds", type=float, default=0.3, metavar="S", help=words["figure_seconds"]
    )
    parser.add_argument(
        "--connections", type=int, default=200, metavar="N", help=words["connections"]
    )


def _verbs_bench(options: argparse.Namespace) -> Exit:
    from urds.cli import verbs_bench

    return verbs_bench.run(
        verbs_bench.VerbsBenchOptions(
            devices=tuple(options.device or verbs_bench.DEVICES),
            sizes=tuple(options.size or verbs_bench.SIZES),
            seconds=options.seconds,
            connections=options.connections,
            json_wanted=options.json,
        )
    )


def _dat_load(options: argparse.Namespace) -> Exit:
    from urds.cli import dat_load

    named = _letters(options, texts.DAT_LOAD_OPTIONS)
    return dat_load.run(dat_load.DatLoadOptions(**named, json_wanted=options.json))
