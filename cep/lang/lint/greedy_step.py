"""CEP713: a step after a greedy loop that never takes an event, as each event that fits it is one more of the loop.

Tested by: tests/lang/golden/lints/, tests/answers/language.py
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from cep.lang.check.order import spans_of
from cep.lang.diagnostics import Diagnostic, Severity
from cep.lang.ir import AlternativeNode, AnyOrderNode, Binary, Expr, Inner, Node, PatternIR, SequenceNode, Step, VarNode
from cep.lang.load import Checked
from cep.lang.show import show_expr

CODE = "CEP713"


def find(checked: Checked) -> Iterator[Diagnostic]:
    """Find required steps whose condition has all parts of the condition of the endless greedy loop before them."""
    for pattern in checked.patterns.values():
        spans = spans_of(checked.resolved.patterns[pattern.name].structure)
        for loop, step in _blocked_steps(pattern):
            message = f"`{step}` never takes an event: each one that fits it fits the greedy loop `{loop}`, too"
            help_line = f"leave out `greedy`, or exclude the events of `{step}` in the condition of `{loop}`"
            yield Diagnostic(CODE, message, spans.get(step), (), help_line, Severity.WARNING)


def _blocked_steps(pattern: PatternIR) -> Iterator[tuple[str, str]]:
    variables = {variable.name: variable for variable in pattern.variables}
    for first, second in _steps(pattern.structure):
        if not _is_endless(first) or not _is_required(second):
            continue
        assert isinstance(first.node, VarNode)
        assert isinstance(second.node, VarNode)
        loop, step = variables[first.node.variable], variables[second.node.variable]
        if loop.event_type == step.event_type and set(parts_of(loop.where)) <= set(parts_of(step.where)):
            yield loop.name, step.name


def _steps(node: Node) -> Iterator[tuple[Step, Step]]:
    """Yield each pair of adjacent steps of a sequence, unless the sequence has a window of its own."""
    match node:
        case SequenceNode():
            nodes = [step.node for step in node.steps]
            if node.within_ms is None:
                yield from pairwise(node.steps)
        case AlternativeNode():
            nodes = list(node.options)
        case AnyOrderNode():
            nodes = list(node.items)
        case _:
            nodes = []
    for each in nodes:
        yield from _steps(each)


def _is_endless(step: Step) -> bool:
    if step.negated or not isinstance(step.node, VarNode):
        return False
    loop = step.node.quantifier
    is_open = loop.max_count is None and loop.until is None and loop.gap_ms is None
    return loop.greedy and is_open and loop.inner is Inner.RELAXED


def _is_required(step: Step) -> bool:
    has_gap = step.gap_min_ms is not None or step.gap_max_ms is not None
    is_variable = isinstance(step.node, VarNode) and step.node.quantifier.min_count != 0
    return is_variable and not step.negated and not has_gap


def parts_of(expr: Expr | None) -> Iterator[str]:
    """Yield the parts of a condition that must all hold, as texts."""
    if isinstance(expr, Binary) and expr.op == "and":
        yield from parts_of(expr.left)
        yield from parts_of(expr.right)
    elif expr is not None:
        yield show_expr(expr)
