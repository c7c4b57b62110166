"""Shared parts of the tests of cep/lang: an event type, short ways to check a text, and syntax trees without places."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from cep.base.schema import Schema
from cep.lang.check.bind import bind
from cep.lang.diagnostics import Collector, Span
from cep.lang.explain.render import render_text
from cep.lang.ir import PatternIR
from cep.lang.load import Checked, load_text
from cep.lang.parse.file import parse

EVENTS = """
event transaction {
  tx_id       id
  event_time  time
  card_id     string
  amount      decimal(2)
  status      enum(approved, declined, reversed)
  country     string?
  device_id   string?
  lat         float
  lon         float
  tries       int
  online      bool
}
"""


def checked_pattern(body: str, header: str = "pattern p by card_id", before: str = "") -> PatternIR:
    """Return the one pattern of a text that must be clean."""
    checked = load_text(f"{EVENTS}\n{before}\n{header} {{ {body} }}")
    assert checked.ok, render_text(checked.diagnostics, checked.sources)
    return next(iter(checked.patterns.values()))


def bound_pattern(
    text: str, arguments: Mapping[str, object] | None = None, name: str = "p"
) -> tuple[PatternIR, Schema]:
    """Return a pattern of a sound text, with arguments for its parameters, and the schema."""
    checked = load_text(text)
    assert checked.ok, shown(checked)
    bound, diagnostics = bind(checked.patterns[name], arguments or {})
    assert bound is not None, diagnostics
    return bound, checked.schema


def codes(text: str) -> list[str]:
    return [d.code for d in load_text(text).diagnostics]


def pattern_codes(body: str, header: str = "pattern p by card_id", before: str = "") -> list[str]:
    """Return the codes that a pattern over `transaction` gives."""
    return codes(f"{EVENTS}\n{before}\n{header} {{ {body} }}")


def shown(checked: Checked) -> str:
    return render_text(checked.diagnostics, checked.sources)


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
