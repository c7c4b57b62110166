"""A pattern with averages or spreads of bound events → the registers of a run, in 0.2.0 and in this build.

0.2.0 kept a sum and a sum of squares of floats. This build keeps sums in parts and the distances from the first value
(code.py), so `engine.migrate` translates the registers of such runs.
Tested by: tests/engine/test_keyed_state.py, tests/upgrade/test_upgrade.py
"""

from typing import NamedTuple

from cep.base.schema import Schema
from cep.kernels.expressions import opcodes as o
from cep.lang.ir import Aggregate, Binary, Cast, Expr, PatternIR
from cep.lang.walk import nodes_of
from cep.nfa.code import FLOAT, ScalarCode
from cep.nfa.positions import Position, build
from cep.nfa.rule_tables import RegisterKey, RuleTables


class Registers(NamedTuple):
    """The registers of a run by their numbers: of 0.2.0 and of this build."""

    earlier: tuple[RegisterKey, ...]
    current: tuple[RegisterKey, ...]


def changed_registers(pattern: PatternIR, schema: Schema) -> Registers | None:
    """Return the registers of both builds; None for a pattern whose runs are the same."""
    if not any(aggregate.fn in ("avg", "stddev") for aggregate in nodes_of(pattern, Aggregate)):
        return None
    automaton = build(pattern.structure)
    earlier, current = _EarlierTables(pattern, schema), RuleTables(pattern, schema)
    earlier.compile(automaton)
    current.compile(automaton)
    return Registers(earlier.register_keys, current.register_keys)


def as_float(argument: Expr) -> Expr:
    """Return the argument whose sums 0.2.0 kept for a spread."""
    return argument if argument.type.is_float else Cast(argument, FLOAT)


class _EarlierCode(ScalarCode):
    """Gives the registers of a run the numbers that version 0.2.0 gave them, to read the runs that it saved.

    A register gets its number when an expression first asks for it, so only the order of these calls matters. The
    emitted instructions are never run."""

    def _compare_averages(self, expr: Binary) -> int:
        sides = (expr.right, expr.left) if expr.op in (">", ">=") else (expr.left, expr.right)
        return max(self.lower(side) for side in sides)  # any register would do, because no instruction is run

    def _aggregate(self, expr: Aggregate) -> int:
        if expr.fn not in ("avg", "stddev"):
            return super()._aggregate(expr)
        argument = expr.argument
        assert argument is not None, "averages have an argument"
        self._run_register("present", expr.variable, argument)
        if expr.fn == "avg":
            return self.emit(o.REGISTER, self._run_register("sum", expr.variable, argument))
        self._run_register("sum", expr.variable, as_float(argument))
        return self.emit(o.REGISTER, self._run_register("squares", expr.variable, as_float(argument)))


class _EarlierTables(RuleTables):
    def __init__(self, pattern: PatternIR, schema: Schema) -> None:
        super().__init__(pattern, schema)
        self.scalar = _EarlierCode(self.constants, self.columns)

    def _write_actions(self, number: int, position: Position) -> None:
        """Write none: this build does not fill these registers."""
