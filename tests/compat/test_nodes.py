"""Clients and nodes of different releases, as far as one can be without such releases."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.compat import nodes
from tests.compat.nodes import VARIATIONS, NodeRow, Variation, node_rows, rows_between
from tests.compat.relay import Change
from tests.compat.rows import NATIVE, Build, Result, tree_of
from tests.support import backends, planes

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120.0
TREE = replace(tree_of(ROOT), planes=(NATIVE,))

pytestmark = pytest.mark.skipif(
    planes.in_use() != NATIVE or bool(backends.missing()), reason="nodes need URDS_IMPL=native"
)


def all_rows() -> list[NodeRow]:
    return rows_between(TREE, TREE)


@pytest.mark.slow
@pytest.mark.parametrize("row", all_rows(), ids=lambda row: f"{row.carrier.name}, {row.connects}")
def test_each_works_or_ends_with_its_errno(row: NodeRow) -> None:
    verdict = row.run(limit_s=LIMIT_S)
    assert verdict.result is (Result.WORKS if row.wanted is None else Result.ERROR), verdict.detail


def test_a_release_without_a_node_is_stood_in_for() -> None:
    old = Build("0.0.1", "/nonexistent/python", {}, ROOT, planes=(NATIVE,))
    rows = node_rows(old, TREE)
    assert rows[0].connects == "tree, no release yet"
    assert len(rows) == len(all_rows())
    assert not node_rows(TREE, replace(TREE, planes=()))


def test_a_variation_that_changes_nothing_or_ends_otherwise_fails() -> None:
    for change, number, text in (
        (Change(), None, "nothing was changed"),
        (VARIATIONS[0].change, 1, "not EPERM"),
    ):
        row = nodes._varied(TREE, Variation("of a test", change, number))
        verdict = row.run(limit_s=LIMIT_S)
        assert verdict.result is Result.FAILED
        assert text in verdict.detail
