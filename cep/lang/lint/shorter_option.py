"""CEP714: an alternative that never gives a match, because a shorter one has always matched the same events before it.

Tested by: tests/lang/golden/lints/, tests/lang/test_golden.py
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from cep.lang.check.order import spans_of
from cep.lang.diagnostics import Diagnostic, Severity
from cep.lang.ir import ONCE, AlternativeNode, Link, Node, PatternIR, SequenceNode, SkipKind, Step, VarNode
from cep.lang.lint.greedy_step import parts_of
from cep.lang.load import Checked

CODE = "CEP714"


def find(checked: Checked) -> Iterator[Diagnostic]:
    """Find options of a whole pattern that begin with the steps of another option."""
    for pattern in checked.patterns.values():
        spans = spans_of(checked.resolved.patterns[pattern.name].structure)
        for shorter, longer in _hidden_options(pattern):
            message = f"the alternative that ends with `{longer}` never matches: the one that ends with `{shorter}` is "
            message += "complete before it, on the same events"
            help_line = f"leave it out, or exclude its events in the condition of `{shorter}`"
            yield Diagnostic(CODE, message, spans.get(longer), (), help_line, Severity.WARNING)


def _hidden_options(pattern: PatternIR) -> Iterator[tuple[str, str]]:
    """Yield the last variables of a shorter option and of each longer one that fits only what the shorter one fits."""
    steps = pattern.structure.steps
    if pattern.skip.kind is not SkipKind.PAST_LAST or len(steps) != 1 or not isinstance(steps[0].node, AlternativeNode):
        return
    options = [tuple(_plain_steps(option)) for option in steps[0].node.options]
    for shorter, longer in permutations(options, 2):
        if 0 < len(shorter) < len(longer) and all(_fits(pattern, *pair) for pair in zip(shorter, longer, strict=False)):
            yield shorter[-1][1], longer[-1][1]


def _plain_steps(option: Node) -> list[tuple[Link, str]]:
    """Return (link, variable) of each step of an option, [] unless each step is a single event without a time."""
    match option:
        case VarNode():
            steps: tuple[Step, ...] = (Step(Link.FOLLOWED_BY, option),)
        case SequenceNode() if option.quantifier == ONCE and option.within_ms is None:
            steps = option.steps
        case _:
            return []
    plain = [
        (Link.FOLLOWED_BY if number == 0 else step.link, step.node.variable)
        for number, step in enumerate(steps)
        if isinstance(step.node, VarNode) and step == Step(step.link, VarNode(step.node.variable))
    ]
    return plain if len(plain) == len(steps) else []


def _fits(pattern: PatternIR, shorter: tuple[Link, str], longer: tuple[Link, str]) -> bool:
    """Return True if each event of a step of the longer option fits the step of the shorter one."""
    narrow, wide = pattern.variable(longer[1]), pattern.variable(shorter[1])
    is_same_place = shorter[0] == longer[0] and narrow.event_type == wide.event_type
    return is_same_place and set(parts_of(wide.where)) <= set(parts_of(narrow.where))
