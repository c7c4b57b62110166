"""Walks over syntax trees and checked expressions that several readers of them need.

Tested by: tests/lang/test_expressions.py, tests/lang/test_golden.py
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeVar

from cep.lang.ir import Expr, History, PatternIR
from cep.lang.syntax import CallSyntax, HistorySyntax, InSyntax, NameRef

_LEAVES = (  # fields of these types hold no nodes
    "str", "Span", "bool", "int", "Type", "Link", "Inner", "SkipKind", "Which", "AggregateFn", "HistoryFn", "UnaryOp",
    "BinaryOp", "str | None", "int | None", "int | float | None", "tuple[str, ...]", "CalendarUnit | None",
    "int | float | bool | str | None", "int | Decimal | float | str | bool | None",
)  # fmt: skip
T = TypeVar("T")


def nodes(tree: object) -> Iterator[object]:
    """Yield every dataclass in a tree of dataclasses and tuples, the outermost first, without recursion."""
    return iter(_nodes_of(_Object(tree)).nodes) if isinstance(tree, PatternIR) else _walk(tree)


def nodes_of(tree: object, kind: type[T]) -> Iterator[T]:
    """Yield the nodes of one class, in the same order."""
    if isinstance(tree, PatternIR):
        return iter(_nodes_of(_Object(tree)).by_class.get(kind, ()))
    return (node for node in nodes(tree) if isinstance(node, kind))


class _Object(NamedTuple):
    """A pattern as a key. Only the same object is an equal key, because the hash of a pattern is a walk over it."""

    tree: PatternIR

    def __hash__(self) -> int:
        return id(self.tree)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Object) and self.tree is other.tree


class _Nodes(NamedTuple):
    """The nodes of a pattern: all of them, and by class."""

    nodes: tuple[object, ...]
    by_class: Mapping[type, tuple[Any, ...]]


@lru_cache(maxsize=1)
def _nodes_of(pattern: _Object) -> _Nodes:
    """Walk a pattern, or return the nodes of the last one: five readers in turn walk a rule that loads."""
    by_class: dict[type, list[Any]] = {}
    all_nodes = tuple(_walk(pattern.tree))
    for node in all_nodes:
        by_class.setdefault(node.__class__, []).append(node)
    return _Nodes(all_nodes, {kind: tuple(same) for kind, same in by_class.items()})


def _walk(tree: object) -> Iterator[object]:
    """Yield every dataclass in a tree of dataclasses and tuples, the outermost first. All other values are leaves."""
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
    return nodes_of(tree, History)
