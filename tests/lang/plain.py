"""Syntax trees without the places of their parts, so that two texts can be compared."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from cep.lang.diagnostics import Collector, Span
from cep.lang.parse.file import parse


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(f.name for f in reversed(fields(kind)))


def plain(node: object) -> list[object]:
    """Return the tree in pre-order, each part with its size; a span only says that it is there. Trees may be deep."""
    parts: list[object] = []
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Span):
            parts.append("span")
        elif is_dataclass(part) and not isinstance(part, type):
            names = _names(type(part))
            parts.append((type(part).__name__, len(names)))
            waiting.extend(getattr(part, name) for name in names)
        elif isinstance(part, tuple):
            parts.append(len(part))
            waiting.extend(reversed(part))
        else:
            parts.append(part)
    return parts


def tree(text: str) -> list[object]:
    """Return the tree of a text, which must be free of syntax errors."""
    collector = Collector()
    file = parse(text, "x.cep", collector)
    assert collector.error_count == 0, collector.diagnostics
    return plain(file)
