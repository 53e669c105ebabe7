"""The tests that are left out over nodes are there."""

import ast
from pathlib import Path

import pytest

from tests.rds.sockets.over_nodes import IN_PROCESS_ONLY


@pytest.mark.parametrize("key", IN_PROCESS_ONLY)
def test_what_is_left_out_is_a_test(key: str) -> None:
    module, _, function = key.partition("::")
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text("utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert not function or function in names
