"""Two bound patterns → may the runs of one go on as runs of the other?

They may if both have the same automaton. Structure, windows, NFA states and registers are equal. Conditions and
measures differ in numbers and texts only. A run that is handed over keeps its counts. From then on the new conditions
decide.
Tested by: tests/rulebook/test_carry.py
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum

from cep.base.schema import Schema, Type
from cep.lang.ir import Const, PatternIR, Quantifier
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from cep.nfa.program import Program


def same_automaton(before: PatternIR, after: PatternIR, schema: Schema) -> bool:
    """Return True if runs can go on. Both patterns are bound and have compiled for this schema."""
    if before.key != after.key or _shape(before) != _shape(after):
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


def _shape(value: object) -> object:
    """Return a tree without the numbers and texts that are compared with, and without counts of repetitions.

    Windows stay: a run keeps its own, and the version that takes it over is forgotten by its window.
    """
    if isinstance(value, Const):
        return "const", repr(value.type)
    if isinstance(value, Enum | str | bool | int | float | Type) or value is None:
        return repr(value)
    if isinstance(value, tuple):
        return tuple(_shape(item) for item in value)
    assert is_dataclass(value), f"{type(value).__name__} in a pattern"
    counts = ("min_count", "max_count") if isinstance(value, Quantifier) else ()
    parts = {field.name: getattr(value, field.name) for field in fields(value) if field.name != "doc"}
    shapes = [(name, part is None if name in counts else _shape(part)) for name, part in parts.items()]
    return type(value).__name__, tuple(shapes)
