"""Two bound patterns → may the runs of one go on as runs of the other?

They may if both have the same automaton and give a run's past the same meaning. Structure, windows, counts of
repetitions, NFA states and registers are equal, and so is every condition that an event must not have met so far: of a
negated variable, and of `until`. The conditions of the variables that a run binds, and the measures, may differ in
numbers and texts. A run keeps its bound events, and from then on the new conditions decide.

A run does not know its events that matched nothing. So the place that it would have under other counts, or under
another negation, cannot be worked out from it: such runs drain, as they do for another window.
Tested by: tests/rulebook/test_carry.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum

from cep.base.schema import Schema, Type
from cep.lang.ir import AlternativeNode, Const, Node, PatternIR, Quantifier, SequenceNode, Variable, VarNode
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from cep.nfa.program import Program


def same_automaton(before: PatternIR, after: PatternIR, schema: Schema) -> bool:
    """Return True if runs can go on. Both patterns are bound and have compiled for this schema."""
    negated = frozenset(_negated(after.structure))
    if before.key != after.key or _shape(before, negated) != _shape(after, negated):
        return False
    one, other = (compile_rules(schema, p.key, (DeployedRule("carry", 1, 0, "", p),)) for p in (before, after))
    return (
        one.width == other.width
        and one.rules[0].states_count == other.rules[0].states_count
        and one.row_registers.tolist() == other.row_registers.tolist()
        and one.rules[0].measures == other.rules[0].measures
        and _emitted(one) == _emitted(other)
    )


def _emitted(program: Program) -> list[str]:
    """Return the histories that are kept with bound events: a run has them from when an event came, or never."""
    return [column.name for _, column in program.emitted]


def _negated(node: Node) -> Iterator[str]:
    """Yield the variables that must not occur."""
    if isinstance(node, SequenceNode):
        for step in node.steps:
            yield from _variables(step.node) if step.negated else _negated(step.node)
    elif not isinstance(node, VarNode):
        for part in node.options if isinstance(node, AlternativeNode) else node.items:
            yield from _negated(part)


def _variables(node: Node) -> Iterator[str]:
    if isinstance(node, VarNode):
        yield node.variable
    elif isinstance(node, SequenceNode):
        for step in node.steps:
            yield from _variables(step.node)
    else:
        for part in node.options if isinstance(node, AlternativeNode) else node.items:
            yield from _variables(part)


def _shape(value: object, negated: frozenset[str] = frozenset()) -> object:
    """Return a tree without the numbers and texts that bound events are compared with.

    `negated` are the variables that must not occur: their conditions, the conditions of `until`, and counts stay
    unchanged. Windows stay: a run keeps its own, and the version that takes it over is forgotten by its window.
    """
    if isinstance(value, Const):
        return "const", repr(value.type)
    if isinstance(value, Quantifier) or (isinstance(value, Variable) and value.name in negated):
        return repr(value)
    if isinstance(value, Enum | str | bool | int | float | Type) or value is None:
        return repr(value)
    if isinstance(value, tuple):
        return tuple(_shape(item, negated) for item in value)
    assert is_dataclass(value), f"{type(value).__name__} in a pattern"
    parts = {field.name: getattr(value, field.name) for field in fields(value) if field.name != "doc"}
    return type(value).__name__, tuple((name, _shape(part, negated)) for name, part in parts.items())
