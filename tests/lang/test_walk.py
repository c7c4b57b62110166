"""`nodes_of` returns the nodes of a class that a whole walk of the tree meets, in the same order."""

from __future__ import annotations

import pytest

from cep.lang.ir import Binary, Const, History, PatternIR, Step
from cep.lang.load import load_text
from cep.lang.walk import histories, nodes, nodes_of
from tests.lang.generate import random_file


@pytest.mark.parametrize("seed", range(20))
def test_nodes_by_class(seed: int) -> None:
    for pattern in load_text(random_file(seed)).patterns.values():
        trees: tuple[object, ...] = (pattern, pattern.structure, pattern.measures)
        for tree in trees:
            walked = list(nodes(tree))
            for kind in (Binary, Const, History, Step, PatternIR):
                by_class: list[object] = list(nodes_of(tree, kind))
                assert [id(node) for node in by_class] == [id(node) for node in walked if isinstance(node, kind)]
            assert list(histories(tree)) == [node for node in walked if isinstance(node, History)]


def test_the_nodes_of_an_equal_pattern_are_its_own() -> None:
    """Another object has its own nodes, even if it is equal, because readers compare nodes with `is`."""
    text = random_file(1)
    first, second = ({**load_text(text).patterns} for _ in range(2))
    for name, pattern in first.items():
        assert pattern == second[name]
        for tree in (pattern, second[name], pattern):
            assert next(nodes(tree)) is tree
