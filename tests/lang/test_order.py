"""The order in which variables can be bound."""

from __future__ import annotations

import pytest

from cep.lang.check.order import Order, order_of
from cep.lang.diagnostics import Collector
from cep.lang.parse.file import parse
from cep.lang.syntax import PatternSyntax


def order(structure: str) -> Order:
    (declaration,) = parse(f"pattern p by k {{ seq {structure} }}", "x", Collector()).declarations
    assert isinstance(declaration, PatternSyntax)
    assert declaration.structure is not None
    return order_of(declaration.structure)


@pytest.mark.parametrize(
    ("structure", "variable", "may", "must"),
    [
        ("a -> b -> c", "c", "ab", "ab"),
        ("a -> b? -> c", "c", "ab", "a"),
        ("a -> b{0,2} -> c", "c", "ab", "a"),
        ("a -> !b -> c", "c", "a", "a"),
        ("a -> (b | c) -> d", "d", "abc", "a"),
        ("a -> (b | c) -> d", "c", "a", "a"),
        ("a -> (b & c) -> d", "d", "abc", "abc"),
        ("a -> (b & c) -> d", "b", "abc", "a"),
        ("a -> (b -> c){2} -> d", "b", "abc", "a"),
        ("a -> (b -> c){2} -> d", "d", "abc", "abc"),
        ("a -> (b -> c)? -> d", "d", "abc", "a"),
        ("a -> (b -> c)? -> d", "c", "ab", "ab"),
        ("a -> b{n,} -> c", "c", "ab", "ab"),
    ],
)
def test_before(structure: str, variable: str, may: str, must: str) -> None:
    position = order(structure).at[variable]
    assert (position.may, position.must) == (frozenset(may), frozenset(must))


def test_until_sees_its_own_loop() -> None:
    result = order("a -> b+ until (x) -> c")
    (before,) = result.at_until.values()
    assert (before.may, before.must) == (frozenset("ab"), frozenset("a"))


def test_the_end() -> None:
    result = order("a -> b? -> !c")
    assert (result.end.may, result.end.must, result.negated) == (frozenset("ab"), frozenset("a"), frozenset("c"))
