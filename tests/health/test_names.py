"""Names of the house style: files are nouns with a theme, a parameter tells its unit."""

import ast

from tests.health.sources import Module, definitions, is_public, modules

# `helper` is a word of the glossary, the thread of a plane; in the plural it is no theme.
NOT_A_MODULE = {"util", "utils", "helpers", "misc", "shared", "stuff"}
NOT_A_PARAMETER = {"timeout", "size", "len", "length", "duration", "delay"}

# Parameters that carry the name a program already uses with `socket.socket` or its relatives.
# One line per function: its dotted name, the parameter, why the world's name stays.
WORLD_NAMES: dict[tuple[str, str], str] = {
    ("urds.rds.socket_base.SocketBase.settimeout", "timeout"): "socket.socket's own",
    ("urds.rsocket.stream_socket.create_connection", "timeout"): "socket.create_connection's own",
    ("urds.rsocket.repoll.Repoll.poll", "timeout"): "called in place of select.epoll.poll",
}

# Words that have one meaning throughout a package: in verbs and in pyverbs, as in `ibv_sge`, a
# length is a number of bytes.
WORDS_OF_A_PACKAGE = {"urds.verbs": {"length"}}


def test_a_module_is_named_after_its_theme() -> None:
    themeless = [one.place for one in modules() if NOT_A_MODULE & set(one.name.split("."))]
    assert themeless == []


def test_a_parameter_names_its_unit() -> None:
    """Judges public functions; `timeout_ns`, `payload_bytes`, `wait_s` pass."""
    bare = [
        f"{module.place}:{node.lineno}: {name}({argument.arg})"
        for module in modules()
        for name, node in definitions(module.tree.body)
        if not isinstance(node, ast.ClassDef) and all(map(is_public, name.split(".")))
        for argument in _arguments(node)
        if argument.arg in NOT_A_PARAMETER - _known_words(module)
        and (f"{module.name}.{name}", argument.arg) not in WORLD_NAMES
    ]
    assert bare == []


def test_the_list_of_world_names_has_no_dead_line() -> None:
    known = {
        (f"{module.name}.{name}", argument.arg)
        for module in modules()
        for name, node in definitions(module.tree.body)
        if not isinstance(node, ast.ClassDef)
        for argument in _arguments(node)
    }
    assert WORLD_NAMES.keys() - known == set()


def _known_words(module: Module) -> set[str]:
    return {
        word
        for package, words in WORDS_OF_A_PACKAGE.items()
        if f"{module.name}.".startswith(f"{package}.")
        for word in words
    }


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
