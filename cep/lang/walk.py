"""Walks over syntax trees and checked expressions that several readers of them need.

Tested by: tests/lang/test_lint.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache

from cep.lang.ir import Expr, History, PatternIR
from cep.lang.syntax import CallSyntax, HistorySyntax, InSyntax, NameRef

_LEAVES = ("str", "Span", "bool", "int", "str | None", "int | None", "Type")


def nodes(tree: object) -> Iterator[object]:
    """Yield every dataclass in a tree of dataclasses and tuples, the outermost first, without recursion."""
    return iter(_last.nodes_of(tree)) if isinstance(tree, PatternIR) else _walk(tree)


class _Last:
    """The nodes of the pattern that was walked last: a rule that loads is walked by five readers in turn."""

    def __init__(self) -> None:
        self._walked: tuple[object, list[object]] = (None, [])

    def nodes_of(self, pattern: PatternIR) -> list[object]:
        walked = self._walked  # read once: another thread may replace it
        if walked[0] is not pattern:
            walked = self._walked = (pattern, list(_walk(pattern)))
        return walked[1]


_last = _Last()


def _walk(tree: object) -> Iterator[object]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        kind = node.__class__
        if kind is tuple:
            waiting += reversed(node)  # type: ignore[call-overload] # mypy does not see that it is one
            continue
        names = _field_names(kind)  # type: ignore[arg-type] # mypy takes object for unhashable
        if names is not None:
            yield node
            for name in names:
                waiting.append(getattr(node, name))


@cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    """Return the fields of a dataclass that hold other nodes, the last one first; None for any other type."""
    if not is_dataclass(kind):
        return None
    return tuple(f.name for f in reversed(fields(kind)) if f.type not in _LEAVES)


def names_in(tree: object) -> set[str]:
    """Return every name that expressions in the tree use: values, functions and lists."""
    names: set[str] = set()
    for node in nodes(tree):
        if isinstance(node, NameRef | CallSyntax | HistorySyntax):
            names.add(node.name)
        elif isinstance(node, InSyntax) and isinstance(node.items, NameRef):
            names.add(node.items.name)
    return names


def conditions(pattern: PatternIR) -> Iterator[tuple[str, Expr]]:
    """Yield the condition of each variable that has one."""
    for variable in pattern.variables:
        if variable.where is not None:
            yield variable.name, variable.where


def histories(tree: object) -> Iterator[History]:
    """Yield every function of past events."""
    for node in nodes(tree):
        if isinstance(node, History):
            yield node
