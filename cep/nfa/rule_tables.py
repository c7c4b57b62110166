"""One rule's positions and conditions → rows of the program's tables.

Tested by: tests/nfa/test_compile.py
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from cep.base.limits import (
    MATCHES_PER_EVENT_MAX,
    REGISTERS_MAX,
    RUNS_PER_KEY_MAX,
    TIME_MS_MAX,
    WAITS_PER_STATE_MAX,
)
from cep.base.schema import Schema, Type
from cep.kernels import layout as y
from cep.kernels.opcodes import MACHINE_WIDTH
from cep.lang.ir import Aggregate, Binary, CurrentField, Expr, If, Link, SkipKind, VarField
from cep.nfa.code import CodeRange, Constants, ScalarCode, VectorCode
from cep.nfa.deployed import DeployedRule
from cep.nfa.positions import Automaton, Guard, Position, Wait
from cep.nfa.simplify import FALSE, TRUE, Known, children, conjuncts, needs_run


class RuleLimitError(Exception):
    """A rule needs more of something than one rule may have; the message says what."""


class Columns(Protocol):
    """Field name → column number (compile.ColumnMap)."""

    retained: set[int]

    def number(self, field: str) -> int: ...


_WAIT_KIND = {Link.NEXT: y.WAIT_STRICT, Link.FOLLOWED_BY: y.WAIT_RELAXED, Link.FOLLOWED_BY_ANY: y.WAIT_ANY}
_GUARD_KIND = {"before": y.GUARD_BEFORE, "after": y.GUARD_AFTER, "next": y.GUARD_NEXT}
_SKIP = {
    SkipKind.NONE: y.SKIP_NONE, SkipKind.TO_NEXT: y.SKIP_TO_NEXT, SkipKind.PAST_LAST: y.SKIP_PAST_LAST,
    SkipKind.TO_FIRST: y.SKIP_TO_FIRST, SkipKind.TO_LAST: y.SKIP_TO_LAST,
}  # fmt: skip
_SIMPLE = {
    "<": y.SIMPLE_LT, "<=": y.SIMPLE_LE, ">": y.SIMPLE_GT, ">=": y.SIMPLE_GE, "==": y.SIMPLE_EQ, "!=": y.SIMPLE_NE,
}  # fmt: skip
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_ROW_KINDS = ("first", "last", "prev", "mark")
# The order in which a take updates registers: what reads an old value comes before what replaces it.
_ACTION_ORDER = ("prev", "sum", "squares", "min", "max", "present", "first", "last", "count", "loop")


@dataclass(slots=True)
class Tables:
    """The growing tables of a program; `finish` freezes them."""

    state_first_wait: list[int] = field(default_factory=lambda: [0])
    state_accept: list[tuple[int, int, int]] = field(default_factory=list)
    state_first_action: list[int] = field(default_factory=lambda: [0])
    state_variable: list[int] = field(default_factory=list)
    waits: list[tuple[int, int, int, int]] = field(default_factory=list)  # target, kind, predicate, reset
    wait_code: list[tuple[int, int, int]] = field(default_factory=list)
    wait_simple: list[tuple[int, int, int, int]] = field(default_factory=list)
    wait_count: list[tuple[int, int, int]] = field(default_factory=list)
    wait_first_mark: list[int] = field(default_factory=lambda: [0])
    marks: list[int] = field(default_factory=list)
    wait_first_guard: list[int] = field(default_factory=lambda: [0])
    guards: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    guard_gap: list[tuple[int, int]] = field(default_factory=list)
    wait_first_bound: list[int] = field(default_factory=lambda: [0])
    bounds: list[tuple[int, int, int]] = field(default_factory=list)
    actions: list[tuple[int, int, int, int, bool]] = field(default_factory=list)  # …, column is a derived one
    measures: list[tuple[int, int, int]] = field(default_factory=list)

    def finish(self, scalar: ScalarCode, constants: Constants, first_derived: int) -> y.ProgramArrays:
        def i32(values: object, *columns: int) -> y.Int32:
            return np.array(values, np.int32).reshape(-1, *columns)

        def i64(values: object, *columns: int) -> y.Int64:
            return np.array(values, np.int64).reshape(-1, *columns)

        waits, accept, bounds = i32(self.waits, 4), i64(self.state_accept, 3), i64(self.bounds, 3)
        actions = [(k, r, c + first_derived if d else c, x) for k, r, c, x, d in self.actions]
        return y.ProgramArrays(
            state_first_wait=i32(self.state_first_wait),
            state_accept=accept[:, 0].astype(np.int32),
            state_accept_register=accept[:, 1].astype(np.int32),
            state_accept_min=accept[:, 2].copy(),
            state_first_action=i32(self.state_first_action),
            state_variable=i32(self.state_variable),
            wait_target=waits[:, 0].copy(),
            wait_kind=waits[:, 1].copy(),
            wait_predicate=waits[:, 2].copy(),
            wait_code=i32(self.wait_code, 3),
            wait_simple=i32(self.wait_simple, 4),
            wait_count=i64(self.wait_count, 3),
            wait_reset=waits[:, 3].copy(),
            wait_first_mark=i32(self.wait_first_mark),
            mark_register=i32(self.marks),
            wait_first_guard=i32(self.wait_first_guard),
            wait_first_bound=i32(self.wait_first_bound),
            guard_condition=i32(self.guards, 5),
            guard_gap=i64(self.guard_gap, 2),
            bound_register=bounds[:, 0].astype(np.int32),
            bound_ms=bounds[:, 1:].copy(),
            action=i32(actions, 4),
            measure_code=i32(self.measures, 3),
            code=i32(scalar.instructions, MACHINE_WIDTH),
            constants=i64(constants.slots),
        )


class RuleCompiler:
    """Writes one rule into the tables and keeps what the program must know of it."""

    def __init__(self, number: int, rule: DeployedRule, schema: Schema, columns: Columns, vector: VectorCode,
                 scalar: ScalarCode, tables: Tables) -> None:  # fmt: skip
        self.rule, self.pattern, self.schema = rule, rule.pattern, schema
        self._number, self._columns, self._vector, self._scalar, self._tables = number, columns, vector, scalar, tables
        self._variables = {v.name: i for i, v in enumerate(self.pattern.variables)}
        self._registers: dict[tuple[str, str, Expr | None], int] = {}
        self._first_state = len(tables.state_accept)
        self._end_state = self._first_state
        self._first_measure = len(tables.measures)
        self.measures = self.pattern.measures
        self.relevant: set[int] = set()
        self.reacts_to_all = False
        self._has_absence = False
        self.derived_types: list[tuple[int, Type]] = []
        self.stream: tuple[int, ...] = ()
        self._never_null = frozenset(
            f.name
            for f in (f for e in schema.event_types for f in e.fields)
            if not any(other.type.nullable for e in schema.event_types for other in e.fields if other.name == f.name)
        )

    @property
    def registers_count(self) -> int:
        return len(self._registers)

    def compile(self, automaton: Automaton) -> None:
        """Write all positions, then the measures, then the actions (which need to know every register)."""
        known = self._known(automaton)
        for number, position in enumerate(automaton.positions):
            if len(position.waits) > WAITS_PER_STATE_MAX:
                raise RuleLimitError(
                    f"after `{position.variable}` there are {len(position.waits)} ways to go on; "
                    f"the limit is {WAITS_PER_STATE_MAX}"
                )
            self._write_position(automaton, number, position, known[number])
        self._end_state = len(self._tables.state_accept)
        everything = frozenset(self._variables)
        for measure in self.measures:
            code = self._scalar_code(measure.value, Known(frozenset(), everything, self._never_null))
            self._tables.measures.append(code.as_row())
        for position in automaton.positions:
            self._write_actions(automaton, position)
        if self.registers_count > REGISTERS_MAX:
            raise RuleLimitError(f"the pattern needs {self.registers_count} run registers; the limit is {REGISTERS_MAX}")
        strict = any(w.link is Link.NEXT or any(g.moment == "next" for g in w.guards) for p in automaton.positions for w in p.waits)
        if strict or self.pattern.within_events is not None:
            self.stream = tuple(sorted(self.schema.code(name) for name in self.pattern.event_types))

    # -------------------------------------------------------------------------------------------- what is known

    def _known(self, automaton: Automaton) -> list[Known]:
        """For each position, which variables are bound there: a forward pass to a fixed point."""
        everything = frozenset(self._variables)
        positions = automaton.positions
        bound: list[frozenset[str]] = [everything] * len(positions)
        possible: list[frozenset[str]] = [frozenset()] * len(positions)
        bound[0] = frozenset()
        changed = True
        while changed:
            changed = False
            for at, position in enumerate(positions):
                for target in (w.target for w in position.waits if w.target is not None):
                    name = positions[target].variable
                    new = (bound[target] & (bound[at] | {name}), possible[target] | possible[at] | {name})
                    if new != (bound[target], possible[target]):
                        bound[target], possible[target] = new
                        changed = True
        return [Known(b & p, p, self._never_null) for b, p in zip(bound, possible, strict=True)]

    # ------------------------------------------------------------------------------------------------ positions

    def _write_position(self, automaton: Automaton, number: int, position: Position, known: Known) -> None:
        tables = self._tables
        loop = self._loop_register(automaton, number)
        for wait in position.waits:
            self._write_wait(automaton, wait, loop, known)
        tables.state_first_wait.append(len(tables.waits))
        tables.state_accept.append(
            (
                y.ACCEPT_NOW if position.accepts else y.ACCEPT_NO,
                loop if position.accept_min > 1 else -1,
                position.accept_min,
            )
        )
        tables.state_variable.append(self._variables.get(position.variable, -1))

    def _loop_register(self, automaton: Automaton, number: int) -> int:
        """The register that counts the position's loop, or -1 if nothing asks for the count."""
        position = automaton.positions[number]
        asked = position.accept_min > 1 or any(w.counted[0] > 1 or w.counted[1] is not None for w in position.waits)
        return self._register("loop", str(number), None) if position.loops and asked else -1

    def _write_wait(self, automaton: Automaton, wait: Wait, loop: int, known: Known) -> None:
        tables = self._tables
        assert wait.link is not None, "every wait has been joined"
        kind, target, predicate, reset = _WAIT_KIND[wait.link], -1, -1, -1
        code, simple = CodeRange(), (y.SIMPLE_NONE, 0, 0, 0)
        if wait.target is None:
            kind = y.WAIT_ABSENCE_NEXT if wait.link is Link.NEXT else y.WAIT_ABSENCE
            self.reacts_to_all = self.reacts_to_all or kind == y.WAIT_ABSENCE_NEXT
            self._has_absence = True
        else:
            target = self._first_state + wait.target
            predicate, code, simple = self._condition(automaton.positions[wait.target].variable, wait.until, known)
            reset = self._loop_register(automaton, wait.target) if wait.enters_loop else -1
            self._react(predicate)
        tables.waits.append((target, kind, predicate, reset))
        tables.wait_code.append(code.as_row())
        tables.wait_simple.append(simple)
        low, high = wait.counted
        tables.wait_count.append((loop if low > 1 or high is not None else -1, low, TIME_MS_MAX if high is None else high))
        tables.marks.extend(self._register("mark", str(mark), None) for mark in wait.marks)
        tables.wait_first_mark.append(len(tables.marks))
        for bound in wait.bounds:
            base = -1 if bound.mark is None else self._register("mark", str(bound.mark), None)
            tables.bounds.append((base, bound.min_ms, TIME_MS_MAX if bound.max_ms is None else bound.max_ms))
        tables.wait_first_bound.append(len(tables.bounds))
        guards = wait.guards
        if wait.until is not None and wait.target is not None and wait.link is Link.FOLLOWED_BY:
            # A stop event that fits the loop is neither taken nor skipped: nothing is waited for any more.
            guards = (*guards, Guard("before", automaton.positions[wait.target].variable, wait.until))
        for guard in guards:
            tables.guards.append(self._guard(guard, known))
            tables.guard_gap.append((guard.gap_min_ms, TIME_MS_MAX if guard.gap_max_ms is None else guard.gap_max_ms))
        tables.wait_first_guard.append(len(tables.guards))

    def _react(self, predicate: int) -> None:
        if predicate < 0:
            self.reacts_to_all = True
        else:
            self.relevant.add(predicate)

    def _guard(self, guard: Guard, known: Known) -> tuple[int, int, int, int, int]:
        parts, event_type = conjuncts(guard.condition, known), None
        if guard.variable is not None:
            fits, event_type = self._fits(guard.variable, known)
            parts = fits + parts
        for unless in guard.unless:
            parts = parts + _unless(unless, known)
        predicate, code, _ = self._split(parts, event_type, known, allow_simple=False)
        self._react(predicate)
        return (_GUARD_KIND[guard.moment], predicate, *code.as_row())

    # ----------------------------------------------------------------------------------------------- conditions

    def _condition(self, variable: str, until: Expr | None, known: Known
                   ) -> tuple[int, CodeRange, tuple[int, int, int, int]]:  # fmt: skip
        """Predicate, code and fast form of "fits the variable, and is not the stop event"."""
        parts, event_type = self._fits(variable, known)
        if until is not None:
            parts = parts + _unless(until, known)
        return self._split(parts, event_type, known, allow_simple=True)

    def _fits(self, variable: str, known: Known) -> tuple[list[Expr], int | None]:
        """The conjuncts of a variable's condition, and the event type that has to be checked (None: there is but one)."""
        declared = self.pattern.variable(variable)
        single = len(self.schema.event_types) == 1
        return conjuncts(declared.where, known), None if single else self.schema.code(declared.event_type)

    def _split(self, parts: list[Expr], event_type: int | None, known: Known, allow_simple: bool
               ) -> tuple[int, CodeRange, tuple[int, int, int, int]]:  # fmt: skip
        alone = [p for p in parts if not needs_run(p)]
        with_run = [p for p in parts if needs_run(p)]
        predicate = self._vector.predicate(alone, event_type) if alone or event_type is not None else -1
        if not with_run:
            return predicate, CodeRange(), (y.SIMPLE_NONE, 0, 0, 0)
        if len(with_run) == 1 and allow_simple:
            simple = self._simple(with_run[0])
            if simple is not None:
                return predicate, CodeRange(), simple
        whole = with_run[0]
        for part in with_run[1:]:
            whole = Binary("and", whole, part, TRUE.type.as_nullable())
        return predicate, self._scalar_code(whole, known), (y.SIMPLE_NONE, 0, 0, 0)

    def _simple(self, part: Expr) -> tuple[int, int, int, int] | None:
        """A comparison of a field of the event with the same kind of field of a bound one."""
        if not isinstance(part, Binary) or part.op not in _SIMPLE:
            return None
        op, left, right = part.op, part.left, part.right
        if isinstance(left, VarField) and isinstance(right, CurrentField):
            op, left, right = _TURNED[op], right, left  # type: ignore[assignment]
        if not (isinstance(left, CurrentField) and isinstance(right, VarField)):
            return None
        register = self._register(right.which, right.variable, None)
        column = self._columns.number(right.field)
        self._columns.retained.add(column)
        code = _SIMPLE[op] + (y.SIMPLE_FLOAT if left.type.is_float else 0)
        return code, self._columns.number(left.field), register, column

    def _scalar_code(self, expr: Expr, known: Known) -> CodeRange:
        self._retain(expr)
        return self._scalar.compile(expr, self._register, self._variables.__getitem__)

    def _retain(self, expr: Expr) -> None:
        """Columns that are read of bound events have to be kept with them."""
        if isinstance(expr, VarField):
            self._columns.retained.add(self._columns.number(expr.field))
        if isinstance(expr, Aggregate) and expr.fn == "distinct":
            if not isinstance(expr.argument, CurrentField):
                raise RuleLimitError("distinct(…) over a variable takes a plain field, like distinct(x.merchant_id)")
            self._columns.retained.add(self._columns.number(expr.argument.field))
        for child in children(expr):
            self._retain(child)

    # ------------------------------------------------------------------------------------------------ registers

    def _register(self, kind: str, variable: str, argument: Expr | None) -> int:
        """The run register for (kind, variable, argument); what it needs beside it is made with it."""
        key = (kind, variable, argument)
        if key not in self._registers:
            self._registers[key] = len(self._registers)
            if kind == "prev":
                self._register("last", variable, None)
            if kind in ("sum", "min", "max", "squares"):
                self._register("present", variable, argument)
        return self._registers[key]

    def _write_actions(self, automaton: Automaton, position: Position) -> None:
        number = automaton.positions.index(position)
        own = [
            (kind, argument, register)
            for (kind, name, argument), register in self._registers.items()
            if kind != "mark" and name == (str(number) if kind == "loop" else position.variable)
        ]
        for kind, argument, register in sorted(own, key=lambda item: (_ACTION_ORDER.index(item[0]), item[2])):
            self._tables.actions.append(self._action(kind, position.variable, argument, register))
        self._tables.state_first_action.append(len(self._tables.actions))

    def _action(self, kind: str, variable: str, argument: Expr | None, register: int) -> tuple[int, int, int, int, bool]:
        plain = {"loop": y.ACT_COUNT, "count": y.ACT_COUNT, "last": y.ACT_LAST, "first": y.ACT_FIRST}
        if kind in plain:
            return plain[kind], register, 0, 0, False
        if kind == "prev":
            return y.ACT_PREVIOUS, register, 0, self._registers["last", variable, None], False
        assert argument is not None, "aggregates have an argument"
        is_float = argument.type.is_float
        code = {
            "present": y.ACT_COUNT_PRESENT,
            "sum": y.ACT_FSUM if is_float else y.ACT_SUM,
            "min": y.ACT_FMIN if is_float else y.ACT_MIN,
            "max": y.ACT_FMAX if is_float else y.ACT_MAX,
            "squares": y.ACT_FSQUARES,
        }[kind]
        present = self._registers["present", variable, argument]
        if isinstance(argument, CurrentField):
            return code, register, self._columns.number(argument.field), present, False
        derived = self._vector.derived(argument)
        self.derived_types.append((derived, argument.type))
        return code, register, derived, present, True

    # ------------------------------------------------------------------------------------------------- finished

    def start_run(self, width: int) -> list[int]:
        """The run that has taken nothing: every register at its neutral value, every wait open for ever."""
        run = [0] * width
        run[y.RUN_STATE], run[y.RUN_WAITS], run[y.RUN_EXPIRY] = self._first_state, -1, TIME_MS_MAX
        run[y.RUN_START_ROW] = run[y.RUN_ORDINAL] = run[y.RUN_START_ORDINAL] = run[y.RUN_NODE] = -1
        for (kind, _, _), register in self._registers.items():
            if kind in _ROW_KINDS:
                run[y.RUN_HEADER + register] = -1
        return run

    def row_registers(self, registers_max: int) -> list[int]:
        """1 for each register that holds a row of the event table."""
        flags = [0] * registers_max
        for (kind, _, _), register in self._registers.items():
            flags[register] = int(kind in _ROW_KINDS)
        return flags

    def scalars(self) -> y.RuleScalars:
        pattern, rule = self.pattern, self.rule
        assert not pattern.skip.in_order, "refused by problems()"
        within = TIME_MS_MAX if pattern.within_ms is None else _whole(pattern.within_ms)
        events = TIME_MS_MAX if pattern.within_events is None else _whole(pattern.within_events)
        return y.RuleScalars(
            rule=self._number,
            start_state=self._first_state,
            end_state=self._end_state,
            within_ms=within,
            within_events=events,
            from_ms=rule.from_ms,
            starts_until_ms=rule.starts_until_ms,
            until_ms=rule.until_ms,
            skip_kind=_SKIP[pattern.skip.kind],
            skip_variable=-1 if pattern.skip.variable is None else self._variables.get(pattern.skip.variable, -1),
            report_timeouts=int(pattern.timeout_measures is not None),
            fires=int(pattern.timeout_measures is not None or self._has_absence),
            register_count=self.registers_count,
            measure_first=self._first_measure,
            measure_last=self._first_measure + len(self.measures),
            runs_max=RUNS_PER_KEY_MAX,
            matches_max=MATCHES_PER_EVENT_MAX,
        )


def _unless(condition: Expr, known: Known) -> list[Expr]:
    """The opposite of a condition, in which null counts as not true."""
    return conjuncts(If(condition, FALSE, TRUE, TRUE.type), known)


def _whole(value: object) -> int:
    assert isinstance(value, int), "parameters are bound before compilation"
    return value
