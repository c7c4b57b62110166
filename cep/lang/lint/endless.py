"""CEP707: a pattern whose partial matches may wait for ever, because no time ends the wait for the next event.

A repetition without a maximum and without a window is CEP420 instead.
Tested by: tests/lang/golden/lints/
"""

from __future__ import annotations

from collections.abc import Iterator

from cep.lang.diagnostics import Diagnostic, Severity, Span
from cep.lang.ir import AlternativeNode, AnyOrderNode, Inner, Link, Node, Quantifier, SequenceNode
from cep.lang.load import Checked

CODE = "CEP707"


def find(checked: Checked) -> Iterator[Diagnostic]:
    """Find patterns without `within` in which a step may come at any time after the step before it."""
    for pattern in checked.patterns.values():
        syntax = checked.resolved.patterns[pattern.name].structure
        is_bounded = pattern.within_ms is not None or pattern.within_events is not None
        if syntax is None or is_bounded or not _waits(pattern.structure):
            continue
        if any(
            d.code == "CEP420" and d.span is not None and _is_inside(d.span, syntax.span) for d in checked.diagnostics
        ):
            continue
        message = f"a partial match of `{pattern.name}` may wait for ever, and an `in order` match behind it as well"
        yield Diagnostic(CODE, message, syntax.span, (), "add `within 1 h` at the end of `seq`", Severity.WARNING)


def _is_inside(inner: Span, outer: Span) -> bool:
    return inner.file == outer.file and outer.start <= inner.start and inner.end <= outer.end


def _waits(node: Node) -> bool:
    """Return True if an event of the node may come at any time after an event of the node."""
    if isinstance(node, AnyOrderNode):
        return len(node.items) > 1
    if isinstance(node, AlternativeNode):
        return any(_waits(option) for option in node.options)
    if _repeats_at_any_time(node.quantifier):
        return True
    if not isinstance(node, SequenceNode) or node.within_ms is not None:
        return False
    later = (step for step in node.steps[1:] if not step.negated)
    free = any(step.link is not Link.NEXT and step.gap_max_ms is None for step in later)
    return free or any(_waits(step.node) for step in node.steps)


def _repeats_at_any_time(quantifier: Quantifier) -> bool:
    return quantifier.max_count != 1 and quantifier.gap_ms is None and quantifier.inner is not Inner.STRICT
