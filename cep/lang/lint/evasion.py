"""CEP708 and CEP709: patterns that an attacker who knows them evades with one cheap event.

Only event types with an amount (a decimal) count: their events can be cheap. A pattern whose steps must follow each
other directly is ended by any event in between. A value that was never seen before becomes known by a cent.
Tested by: tests/lang/golden/lints/
"""

from __future__ import annotations

from collections.abc import Iterator

from cep.base.schema import Kind
from cep.lang.diagnostics import Diagnostic, Severity
from cep.lang.ir import (
    AlternativeNode,
    AnyOrderNode,
    CurrentField,
    History,
    Inner,
    Link,
    Node,
    SequenceNode,
    Unary,
)
from cep.lang.lint.never_true import place_of
from cep.lang.load import Checked
from cep.lang.walk import conditions, nodes_of

STRICT, PRIMED = "CEP708", "CEP709"


def find(checked: Checked) -> Iterator[Diagnostic]:
    """Find patterns that a cheap event of an attacker evades: between strict steps, or before a "first" value."""
    cheap = {e.name for e in checked.schema.event_types if any(f.type.kind is Kind.DECIMAL for f in e.fields)}
    for pattern in checked.patterns.values():
        syntax = checked.resolved.patterns[pattern.name].structure
        if syntax is None or cheap.isdisjoint(pattern.event_types):
            continue
        if _is_strict(pattern.structure):
            message = (
                f"a cheap event between the steps of `{pattern.name}` ends the match, and an attacker can send one"
            )
            help_line = "write `->` for `,` and leave `strict` out, or say why it is fine"
            yield Diagnostic(STRICT, message, syntax.span, (), help_line, Severity.WARNING)
        for name, where in conditions(pattern):
            for history in _first_times(where, cheap):
                message = f"one cheap event makes `{history.by[0]}` known, and an attacker can send it before"
                help_line = "let past events of a smallest amount count alone: `where amount >= 5.00`"
                yield Diagnostic(PRIMED, message, place_of(checked, pattern, name), (), help_line, Severity.WARNING)


def _is_strict(node: Node) -> bool:
    """Return True if an event must follow another one directly."""
    if isinstance(node, AlternativeNode):
        return any(_is_strict(option) for option in node.options)
    if isinstance(node, AnyOrderNode):
        return any(_is_strict(item) for item in node.items)
    repeats = node.quantifier.max_count != 1
    if not isinstance(node, SequenceNode):
        return repeats and node.quantifier.inner is Inner.STRICT
    steps = node.steps if repeats else node.steps[1:]
    follows = any(step.link is Link.NEXT and not step.negated for step in steps)
    return follows or any(_is_strict(step.node) for step in node.steps)


def _first_times(where: object, cheap: set[str]) -> Iterator[History]:
    """Yield the functions of past events that ask if a value of a field comes for the first time, whatever it cost."""
    for unary in nodes_of(where, Unary):
        history = unary.argument
        if unary.op != "not" or not isinstance(history, History) or history.fn != "exists" or not history.by:
            continue
        has_amount = any(field.type.kind is Kind.DECIMAL for field in nodes_of(history.where, CurrentField))
        if history.event_type in cheap and not has_amount:
            yield history
