"""Each role and action has a cell, and the test in the cell exists."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.hostile.roles import ACTIONS, CELLS, ROLES

TESTS = Path(__file__).parents[1]


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("action", ACTIONS)
def test_a_cell_has_a_test(role: str, action: str) -> None:
    file, _, function = CELLS[role, action].test.partition("::")
    assert function in functions(file)


def test_a_test_shows_one_thing() -> None:
    """A test may appear in a few cells, but a table of a few tests would show little."""
    assert len({cell.test for cell in CELLS.values()}) > len(CELLS) * 2 // 3
