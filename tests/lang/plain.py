"""Syntax trees without the places of their parts, so that two texts can be compared."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

from cep.lang.diagnostics import Collector, Span
from cep.lang.parser import parse


def plain(node: object) -> object:
    """The tree as nested tuples; a span only says that it is there."""
    if isinstance(node, Span):
        return "span"
    if is_dataclass(node):
        return (type(node).__name__, *(plain(getattr(node, f.name)) for f in fields(node)))
    return tuple(plain(part) for part in node) if isinstance(node, tuple) else node


def tree(text: str) -> object:
    """The tree of a text that must have no mistakes of syntax."""
    collector = Collector()
    found = parse(text, "x.cep", collector)
    assert collector.error_count == 0, collector.found
    return plain(found)
