"""One pattern's positions and conditions → rows of tables, in numbers of its own (piece.py combines them).

Tested by: tests/nfa/test_compile.py
"""

from __future__ import annotations

from cep.base.limits import (
    MATCHES_PER_EVENT_MAX,
    MEASURES_MAX,
    NODES_PER_KEY_MAX,
    REGISTERS_MAX,
    RUNS_PER_KEY_MAX,
    TIME_MS_MAX,
    WAITS_PER_STATE_MAX,
    WAYS_PER_EVENT_MAX,
)
from cep.base.schema import DERIVED_COLUMNS, Schema, Type
from cep.kernels import layout as y
from cep.lang.ir import Aggregate, Binary, CurrentField, Expr, If, Link, PatternIR, SkipKind, Unary, VarField
from cep.lang.walk import histories
from cep.nfa.code import Constants, ScalarCode, VectorCode
from cep.nfa.columns import ColumnMap
from cep.nfa.positions import Automaton, Bound, CompileError, Guard, Position, Wait, bound_number, guards_of
from cep.nfa.predicates import Predicates
from cep.nfa.prefixes import NOT_SIMPLE, Prefix, prefix_of
from cep.nfa.simplify import FALSE, TRUE, Facts, all_of, children, conjuncts, needs_run
from cep.nfa.tables import DERIVED, NO_CODE, GuardRow, Row, StateRow, WaitRow

RegisterKey = tuple[str, str, Expr | None]
_WAIT_KIND = {Link.NEXT: y.WAIT_STRICT, Link.FOLLOWED_BY: y.WAIT_RELAXED, Link.FOLLOWED_BY_ANY: y.WAIT_ANY}
_GUARD_KIND = {
    "before": y.GUARD_BEFORE, "after": y.GUARD_AFTER, "next": y.GUARD_NEXT, "greedy": y.GUARD_GREEDY,
    "frees": y.GUARD_FREES, "stop": y.GUARD_STOP,
}  # fmt: skip
_SKIP = {
    SkipKind.NONE: y.SKIP_NONE, SkipKind.TO_NEXT: y.SKIP_TO_NEXT, SkipKind.PAST_LAST: y.SKIP_PAST_LAST,
    SkipKind.TO_FIRST: y.SKIP_TO_FIRST, SkipKind.TO_LAST: y.SKIP_TO_LAST,
}  # fmt: skip
_SIMPLE = {
    "<": y.SIMPLE_LT, "<=": y.SIMPLE_LE, ">": y.SIMPLE_GT, ">=": y.SIMPLE_GE, "==": y.SIMPLE_EQ, "!=": y.SIMPLE_NE,
}  # fmt: skip
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
COUNT_MAX = TIME_MS_MAX  # no upper limit of a loop counter
ROW_KINDS = ("first", "last", "prev", "mark")  # the registers that hold a row of the event table
# The order in which a take updates registers: an action that reads an old value precedes the action that replaces it.
_ACTION_ORDER = (
    "prev", "rest", "sum", "high", "low", "base", "offset", "offset squared", "min", "max", "present", "first", "last",
    "count", "loop",
)  # fmt: skip
# The register that the update of another one reads, if it is not "present" (the number of values).
_OTHER_OF = {"rest": "sum", "offset": "base", "offset squared": "base"}


def compile_tables(pattern: PatternIR, schema: Schema, automaton: Automaton) -> RuleTables:
    """Write the positions and conditions of a bound pattern into tables. Raises: CompileError."""
    rule = RuleTables(pattern, schema)
    rule.compile(automaton)
    return rule


class RuleTables:
    """The tables and code of one pattern, and facts that a program needs about it, in the rule's own numbers."""

    def __init__(self, pattern: PatternIR, schema: Schema) -> None:
        """Begin with empty tables; `compile` fills them: states with their waits (transitions) and guards."""
        self.pattern, self.schema = pattern, schema
        self.constants, self.columns = Constants(), ColumnMap(schema)
        self.predicates = Predicates()  # conditions of one event
        self.states: list[StateRow] = []
        self.measure_rows: list[Row] = []
        self.vector, self.scalar = VectorCode(self.constants, self.columns), ScalarCode(self.constants, self.columns)
        self.prefix = Prefix()  # the pattern's first conditions, whose events can be stored once for several rules
        self.code_end = 0  # instructions of conditions and measures; the instructions of predicates follow
        self._variables = {v.name: i for i, v in enumerate(self.pattern.variables)}
        self._registers: dict[RegisterKey, int] = {}  # the numbers that a run keeps, such as a count or a sum
        # First the values that a match emits, then the ones of a time-out. A kernel always computes all of them.
        self.measures = (*self.pattern.measures, *(self.pattern.timeout_measures or ()))
        self.relevant: set[int] = set()  # the predicates that its waits and guards test
        self.reacts_to_all = False  # the rule must see every event, not only events of `relevant`
        self._has_absence = False
        self._counts_distinct = False
        self._merges = False  # runs with the same future may become one
        self._control_count = 0  # how many registers conditions read; they come first, then others for measures
        self._is_plain = False  # the simplest matcher suffices: events are only taken or skipped
        self._stops: list[Expr] = []  # the stop events (`until`) of the current position's greedy loops
        self._predicate_of_variable: dict[str, int] = {}  # for variables whose condition reads only the event
        self._in_order = self.pattern.skip.in_order and self.pattern.skip.kind is not SkipKind.NONE  # in order of start
        self.derived_types: list[tuple[int, Type]] = []  # computed columns that aggregates read: number, type
        self.stream: tuple[int, ...] = ()  # the types of events that get ordinals, to know the next one; empty: none

    @property
    def _ends_without_event(self) -> bool:
        """True if a match or a time-out may come without a taken event. Valid after the positions are written."""
        return self._has_absence or self._in_order or self.pattern.timeout_measures is not None

    @property
    def register_keys(self) -> tuple[RegisterKey, ...]:
        """The registers of a run in their order: kind, variable, argument."""
        return tuple(self._registers)

    @property
    def registers_count(self) -> int:
        return len(self._registers)

    def compile(self, automaton: Automaton) -> None:
        """Write all positions, then the measures, then the actions (which need all registers)."""
        facts = self._facts(automaton)
        if any(e.derived for e in self.schema.event_types if e.name in self.pattern.event_types):
            self.columns.retained.update(self.columns.number(name) for name in DERIVED_COLUMNS)
        for number, position in enumerate(automaton.positions):
            if len(position.waits) > WAITS_PER_STATE_MAX:
                where = f"after `{position.variable}` there are" if position.variable else "to begin a match there are"
                message = f"{where} {len(position.waits)} ways to go on; the limit is {WAITS_PER_STATE_MAX}"
                raise CompileError(message, variable=position.variable)
            self._write_position(automaton, number, position, facts[number])
        # Registers that conditions read come first; the others are only for measures.
        self._control_count = self.registers_count
        self._merges = self._may_merge(automaton)
        self.measure_rows += [self._scalar_code(measure.value) for measure in self.measures]
        if self._ends_without_event:  # a match may come after its last event, whose histories it emits
            emitted = histories(self.measures)
            self.columns.retained.update(self.columns.history(past) for past in emitted)
        for number, position in enumerate(automaton.positions):
            self._write_actions(number, position)
        assert len(self.measures) <= MEASURES_MAX, "the check refuses more"
        if self.registers_count > REGISTERS_MAX:
            needs = f"a run of the pattern has to count or remember {self.registers_count} things"
            raise CompileError(f"{needs}; the limit is {REGISTERS_MAX}")
        strict = any(
            w.link is Link.NEXT or any(g.moment == "next" for g in w.guards)
            for p in automaton.positions
            for w in p.waits
        )
        if strict and self._ends_without_event:
            # The moment at which a strict wait is lost matters to a deadline and to a match that waits.
            self.reacts_to_all = True
        elsewhere = len(self.pattern.event_types) < len(self.schema.event_types)
        stops = any(g.variable is None for p in automaton.positions for w in p.waits for g in w.guards)
        # A stop event belongs to the pattern's stream, so events outside the stream must be recognised.
        if strict or self._in_order or self.pattern.within_events is not None or (elsewhere and stops):
            self.stream = tuple(sorted(self.schema.code(name) for name in self.pattern.event_types))
        if self.pattern.within_events is not None and self._ends_without_event:
            self.reacts_to_all = True  # any event may close a window in events
        self.code_end = len(self.scalar.instructions)
        self._is_plain = self._needs_only_plain()
        if self._is_plain:
            self.prefix = prefix_of(self.states)  # the events of a prefix can be deferred (prefixes.py)
            self.columns.retained.update(self.prefix.columns)

    def _may_merge(self, automaton: Automaton) -> bool:
        """Return True if runs with the same open waits (transitions) may become one run, and if that saves work.

        Such runs must have the same future. So nothing may depend on the last taken event (a bound without group is a
        time limit since that event), on single bound events, or on the order of runs (`skip`). Merging saves work if an
        event can make two runs out of one, because then runs become many."""
        waits = [w for p in automaton.positions[1:] for w in p.waits]
        # An event starts a branch if the wait that takes it stays open, unless the event ends the branch at once.
        branches = any(
            (w.link is Link.FOLLOWED_BY_ANY or w.reopens)
            and w.target is not None
            and automaton.positions[w.target].waits
            for w in waits
        )
        depends_on_last_event = any(w.link is Link.NEXT or any(b.group is None for b in w.bounds) for w in waits)
        guards = [g for w in waits for g in w.guards]
        depends_on_last_event = depends_on_last_event or any(
            g.moment == "next" or any(b.group is None for b in g.bounds) for g in guards
        )
        depends_on_bindings = self.pattern.timeout_measures is not None or self._has_absence or self._counts_distinct
        limits_events = self.pattern.within_events is not None
        return (
            branches
            and self.pattern.skip.kind is SkipKind.NONE
            and not (depends_on_last_event or depends_on_bindings or limits_events)
        )

    # -------------------------------------------------------------------------------------------- bound variables

    def _facts(self, automaton: Automaton) -> list[Facts]:
        """Find which variables are surely bound at each position, and which may be: a forward pass to a fixed point."""
        all_variables = frozenset(self._variables)
        positions = automaton.positions
        bound: list[frozenset[str]] = [all_variables] * len(positions)  # on all paths: the set shrinks
        possible: list[frozenset[str]] = [frozenset()] * len(positions)  # on some path: the set grows
        bound[0] = frozenset()  # nothing is bound at the start
        changed = True
        while changed:
            changed = False
            for index, position in enumerate(positions):
                for target in (w.target for w in position.waits if w.target is not None):
                    name = positions[target].variable
                    joined = (bound[target] & (bound[index] | {name}), possible[target] | possible[index] | {name})
                    if joined != (bound[target], possible[target]):
                        bound[target], possible[target] = joined
                        changed = True
        return [Facts(b & p, p, self.schema.never_null) for b, p in zip(bound, possible, strict=True)]  # p: if reached

    # ------------------------------------------------------------------------------------------------ positions

    def _write_position(self, automaton: Automaton, number: int, position: Position, facts: Facts) -> None:
        loop = self._loop_register(automaton, number)
        accept = (int(position.accepts), loop if position.accept_min > 1 else -1, position.accept_min)
        row = StateRow(accept, self._variables.get(position.variable, -1))
        self._stops = self._stops_of(position)
        row.waits = [self._wait_row(automaton, wait, loop, facts) for wait in position.waits]
        for wait, wait_row in zip(position.waits, row.waits, strict=True):
            wait_row.reopens = sum(1 << index for index, w in enumerate(position.waits) if w.loop in wait.reopens)
        self.states.append(row)

    @staticmethod
    def _stops_of(position: Position) -> list[Expr]:
        """Return the stop events that end the greed of a loop which the position may leave."""
        guards = [guard for wait in position.waits for guard in wait.guards if guard.moment == "frees"]
        stops = list(dict.fromkeys(guard.condition for guard in guards if guard.condition is not None))
        if len(position.waits) + len(stops) > WAITS_PER_STATE_MAX + 1:
            ways = f"{len(position.waits)} ways to go on and {len(stops)} stop events of greedy loops"
            message = f"after `{position.variable}` there are {ways}; the limit is {WAITS_PER_STATE_MAX + 1} of both"
            raise CompileError(message, variable=position.variable)
        return stops

    def _loop_register(self, automaton: Automaton, number: int) -> int:
        """Return the register that counts the position's loop, or -1 if the count is not used."""
        position = automaton.positions[number]
        is_counted = position.accept_min > 1 or any(
            w.counted[0] > 1 or w.counted[1] is not None for w in position.waits
        )
        return self._register("loop", str(number), None) if position.loops and is_counted else -1

    def _wait_row(self, automaton: Automaton, wait: Wait, loop: int, facts: Facts) -> WaitRow:
        """Translate a wait (transition) to a row; also note the events to which the rule reacts because of it."""
        assert wait.link is not None, "every wait has been joined"  # to the exit before it, which sets the link
        low, high = wait.counted  # the interval of the loop counter in which the wait is open
        row = WaitRow(
            target=-1,  # as for an absence; other waits get a target, a predicate and code below
            kind=_WAIT_KIND[wait.link],
            predicate=-1,
            code=NO_CODE,  # for a condition that also reads the run
            simple=NOT_SIMPLE,  # the faster form of such code, for one comparison
            count=(loop if low > 1 or high is not None else -1, low, COUNT_MAX if high is None else high),
            reset=-1,
            reopens=0,  # bits of the waits that keep this one open when it takes an event; set in _write_position
            marks=[self._register("mark", str(group), None) for group in wait.begins_groups],  # where windows begin
            guards=[],  # set below
            bounds=[self._bound_row(bound) for bound in wait.bounds],
        )
        guards = wait.guards
        if wait.target is None:  # an absence: the clock, or the next event, completes the match
            row.kind = y.WAIT_ABSENCE_NEXT if wait.link is Link.NEXT else y.WAIT_ABSENCE
            self.reacts_to_all = self.reacts_to_all or row.kind == y.WAIT_ABSENCE_NEXT
            self._has_absence = True
        else:
            variable = automaton.positions[wait.target].variable
            row.target = wait.target
            row.predicate, row.code, row.simple = self._condition(variable, wait.untils, facts)
            row.reset = self._loop_register(automaton, wait.target) if wait.enters_loop else -1
            self._add_relevant(row.predicate)
            guards = guards_of(wait, variable)  # also a guard for each stop event (`until`) if the wait skips others
        row.guards = [self._guard_row(guard, facts) for guard in guards]
        return row

    def _bound_row(self, bound: Bound) -> Row:
        base = -1 if bound.group is None else self._register("mark", str(bound.group), None)
        return base, bound.min_ms, TIME_MS_MAX if bound.max_ms is None else bound.max_ms

    def _add_relevant(self, predicate: int) -> None:
        if predicate < 0:
            self.reacts_to_all = True
        else:
            self.relevant.add(predicate)

    def _guard_row(self, guard: Guard, facts: Facts) -> GuardRow:
        predicate, code = self._guard_condition(guard, facts)
        self._add_relevant(predicate)
        ends_greed = () if guard.condition is None else (guard.condition,)
        freed = sum(y.FREED >> index for index, stop in enumerate(self._stops) if stop in (*ends_greed, *guard.unless))
        bounds = [self._bound_row(bound) for bound in guard.bounds]
        return GuardRow(_GUARD_KIND[guard.moment], predicate, code, freed, bounds)

    def _guard_condition(self, guard: Guard, facts: Facts) -> tuple[int, Row]:
        """Compile the condition of a guard (event that closes a wait): a predicate of the event, code for the rest."""
        if guard.variable in self._predicate_of_variable and guard.condition is None and not guard.unless:
            return self._predicate_of_variable[guard.variable], NO_CODE
        conditions, event_type = conjuncts(guard.condition, facts), None
        if guard.variable is not None:
            variable_conditions, event_type = self._conjuncts_of(guard.variable, facts)
            conditions = variable_conditions + conditions
        for unless in guard.unless:  # if one of these holds, the event closes no wait
            conditions = conditions + _not_true(unless, facts)
        # The simple form of code is for waits alone.
        predicate, code, _ = self._compile_conjuncts(conditions, event_type, allow_simple=False)
        return predicate, code

    # ----------------------------------------------------------------------------------------------- conditions

    def _condition(self, variable: str, untils: tuple[Expr, ...], facts: Facts) -> tuple[int, Row, Row]:
        """Compile "the event matches the variable and is not a stop event (`until`)". `facts`: the bound variables.

        Returns: the predicate of the event alone, or -1; the code that reads the run, or NO_CODE; the simple form, or
        NOT_SIMPLE. The simple form has numbers in place of the code of a single comparison, because it is faster."""
        if not untils and variable in self._predicate_of_variable:
            return self._predicate_of_variable[variable], NO_CODE, NOT_SIMPLE
        conditions, event_type = self._conjuncts_of(variable, facts)
        for until in untils:
            conditions = conditions + _not_true(until, facts)
        compiled = self._compile_conjuncts(conditions, event_type, allow_simple=True)
        where = self.pattern.variable(variable).where
        if not untils and (where is None or not needs_run(where)):
            self._predicate_of_variable[variable] = compiled[0]  # it reads no run: the same at every position
        return compiled

    def _conjuncts_of(self, variable: str, facts: Facts) -> tuple[list[Expr], int | None]:
        """Return the conjuncts of a variable's condition, and the event type to check (None: there is only one)."""
        declared = self.pattern.variable(variable)
        single = len(self.schema.event_types) == 1
        return conjuncts(declared.where, facts), None if single else self.schema.code(declared.event_type)

    def _compile_conjuncts(
        self, conditions: list[Expr], event_type: int | None, allow_simple: bool
    ) -> tuple[int, Row, Row]:
        """Compile conditions of the event alone to a predicate, and the others, which read the run, to code.

        Returns: (predicate or -1, code or NO_CODE, simple form or NOT_SIMPLE). A single comparison with a field of a
        bound event gets the simple form, which is faster than code; not for guards (events that close a wait).
        """
        run_conditions = [p for p in conditions if needs_run(p)]
        event_conditions = [p for p in conditions if p not in run_conditions] if run_conditions else conditions
        predicate = (
            self.predicates.number(event_conditions, event_type) if event_conditions or event_type is not None else -1
        )
        if not run_conditions:
            return predicate, NO_CODE, NOT_SIMPLE
        if len(run_conditions) == 1 and allow_simple:
            simple = self._simple(run_conditions[0])
            if simple is not None:
                return predicate, NO_CODE, simple
        return predicate, self._scalar_code(all_of(run_conditions)), NOT_SIMPLE

    def _simple(self, part: Expr) -> Row | None:
        """Return the fast form of a comparison between a field of the event and one of a bound event; None for others.

        The form is (comparison, column of the event, register with the row of the bound event, column of that row). If
        x is that field of the bound event, `x is null or COMPARISON` has a fast form, too: SIMPLE_OR_NULL is added."""
        if isinstance(part, Binary) and part.op == "or":
            for test, comparison in ((part.left, part.right), (part.right, part.left)):
                if _compares_the_tested(test, comparison) and (simple := self._simple(comparison)) is not None:
                    return simple[0] + y.SIMPLE_OR_NULL, *simple[1:]
            return None
        if not isinstance(part, Binary) or part.op not in _SIMPLE:
            return None
        op, left, right = part.op, part.left, part.right
        if isinstance(left, VarField) and isinstance(right, CurrentField):
            op, left, right = _TURNED[op], right, left  # type: ignore[assignment]
        if not (isinstance(left, CurrentField) and isinstance(right, VarField)):
            return None
        register = self._register(right.which, right.variable, None)
        column = self.columns.number(right.field)
        self.columns.retained.add(column)
        code = _SIMPLE[op] + (y.SIMPLE_FLOAT if left.type.is_float else 0)
        return code, self.columns.number(left.field), register, column

    def _scalar_code(self, expr: Expr) -> Row:
        self._retain(expr)
        return self.scalar.compile(expr, self._register, self._variables.__getitem__)

    def _retain(self, expr: Expr) -> None:
        """Retain the columns that are read from bound events."""
        if isinstance(expr, VarField):
            self.columns.retained.add(self.columns.number(expr.field))
        if isinstance(expr, Aggregate) and expr.fn == "distinct":
            assert isinstance(expr.argument, CurrentField), "the check refuses others"
            self.columns.retained.add(self.columns.number(expr.argument.field))
            self._counts_distinct = True
        for child in children(expr):
            self._retain(child)

    # ------------------------------------------------------------------------------------------------ registers

    def _register(self, kind: str, variable: str, argument: Expr | None) -> int:
        """Return the register of a run for a value; create a new one, with the registers that its update reads.

        `kind` is the row of a variable's event, such as "last", or a count, or a part of an aggregate, such as its sum.
        The update of a part also reads the number of values ("present"), or the part in _OTHER_OF.
        """
        key = (kind, variable, argument)
        if key not in self._registers:
            self._registers[key] = len(self._registers)
            if kind == "prev":
                self._register("last", variable, None)
            if kind in _OTHER_OF:
                self._register(_OTHER_OF[kind], variable, argument)
            elif kind in ("sum", "high", "low", "base", "min", "max"):
                self._register("present", variable, argument)
        return self._registers[key]

    def _write_actions(self, number: int, position: Position) -> None:
        actions = [
            (kind, argument, register)
            for (kind, name, argument), register in self._registers.items()
            if kind != "mark" and name == (str(number) if kind == "loop" else position.variable)
        ]
        actions.sort(key=lambda item: (_ACTION_ORDER.index(item[0]), item[2]))
        row = self.states[number]
        row.actions = [
            self._action(kind, position.variable, argument, register) for kind, argument, register in actions
        ]

    def _action(self, kind: str, variable: str, argument: Expr | None, register: int) -> Row:
        """Return how a taken event updates a register of the run: (action, register, column and register to read)."""
        simple_actions = {"loop": y.ACT_COUNT, "count": y.ACT_COUNT, "last": y.ACT_LAST, "first": y.ACT_FIRST}
        if kind in simple_actions:
            return simple_actions[kind], register, 0, 0
        if kind == "prev":
            return y.ACT_PREVIOUS, register, 0, self._registers["last", variable, None]
        assert argument is not None, "aggregates have an argument"
        is_float = argument.type.is_float
        code = {
            "present": y.ACT_COUNT_PRESENT,  # values that are not null
            "sum": y.ACT_FSUM if is_float else y.ACT_SUM,
            "min": y.ACT_FMIN if is_float else y.ACT_MIN,
            "max": y.ACT_FMAX if is_float else y.ACT_MAX,
            "high": y.ACT_HIGH,  # the exact sum of integers: of their upper …
            "low": y.ACT_LOW,  # … and of their lower 32 bits
            "rest": y.ACT_FREST,  # the rounding error of a sum of floats
            "base": y.ACT_BASE,  # the first value; a deviation sums the distances from it
            "offset": y.ACT_FOFFSET if is_float else y.ACT_OFFSET,
            "offset squared": y.ACT_FOFFSET_SQUARED if is_float else y.ACT_OFFSET_SQUARED,
        }[kind]
        other_register = self._registers[_OTHER_OF.get(kind, "present"), variable, argument]
        if isinstance(argument, CurrentField):
            column = self.columns.number(argument.field)
            if self._merges:  # merged runs have no sums of their own: a match adds up the column of its stored events
                self.columns.retained.add(column)
            return code, register, column, other_register
        self._merges = False  # a computed column is not stored with bound events, so a match could not sum it
        derived = self.vector.derived(argument)
        self.derived_types.append((derived, argument.type))
        return code, register, DERIVED + derived, other_register  # DERIVED marks the number of a derived column

    # ------------------------------------------------------------------------------------------------- results

    def relevance(self) -> list[int]:
        """Return the predicates that the rule reacts to; [-1] if it must see every event."""
        return [-1] if self.reacts_to_all else sorted(self.relevant)

    def repeats(self) -> bool:
        """Return True if two runs may bind the same events to the same variables: in two ways, or for two absences."""
        targets = [[self.states[w.target].variable for w in s.waits if w.target >= 0] for s in self.states]
        return self._has_absence or any(len(set(variables)) < len(variables) for variables in targets)

    def holds_rows(self) -> list[int]:
        """Return 1 for each register that holds a row of the event table, initially -1."""
        return [int(kind in ROW_KINDS) for kind, _, _ in self._registers]

    def _needs_only_plain(self) -> bool:
        """Return True if match/plain.py suffices: only relaxed waits, nothing else closes them, nothing fires."""
        if self._ends_without_event or self._merges or self.stream or self.pattern.within_events is not None:
            return False
        waits = [w for s in self.states for w in s.waits]
        return all(
            w.kind in (y.WAIT_RELAXED, y.WAIT_ANY) and not (w.guards or w.bounds or w.marks or w.reopens) for w in waits
        )

    def _waits_alike(self) -> bool:
        """Return True if every later NFA state has at most one wait, and all have one condition that plain.py compares:
        one without code, and not of floats.
        """
        states = self.states[1:]
        conditions = {(w.kind, w.predicate, w.code, w.simple) for s in states for w in s.waits}
        alone = all(len(s.waits) <= 1 for s in states)
        return (
            alone and len(conditions) == 1 and all(c[2] == NO_CODE and not c[3][0] & y.SIMPLE_FLOAT for c in conditions)
        )

    def row(self) -> list[int]:
        """Build the rule's row for kernels (layout.RULE_WIDTH words). The linker adds its interval and its offsets."""
        pattern, repeats, row = self.pattern, self.repeats(), [0] * y.RULE_WIDTH
        row[y.R_END_STATE] = len(self.states)
        row[y.R_WITHIN_MS] = TIME_MS_MAX if pattern.within_ms is None else bound_number(pattern.within_ms)
        row[y.R_WITHIN_EVENTS] = TIME_MS_MAX if pattern.within_events is None else bound_number(pattern.within_events)
        row[y.R_SKIP] = _SKIP[pattern.skip.kind]
        row[y.R_SKIP_VARIABLE] = self._variables.get(pattern.skip.variable or "", -1)
        row[y.R_TIMEOUTS] = int(pattern.timeout_measures is not None)
        row[y.R_DEADLINES_MATTER] = int(self._ends_without_event)  # time alone may complete a match
        row[y.R_MEASURES_END] = len(self.measures)
        row[y.R_RUNS_MAX] = RUNS_PER_KEY_MAX
        row[y.R_NODES_MAX] = NODES_PER_KEY_MAX
        row[y.R_MATCHES_MAX] = WAYS_PER_EVENT_MAX if repeats else MATCHES_PER_EVENT_MAX
        row[y.R_COUNTS] = int(bool(self.stream))  # it counts events, for "next" or for a window in events
        row[y.R_IN_ORDER] = int(self._in_order)
        row[y.R_MERGES] = int(self._merges)  # runs with the same future become one
        row[y.R_REACTS_TO_ALL] = int(self.reacts_to_all)
        row[y.R_PLAIN] = int(self._is_plain)  # the simplest matcher suffices
        row[y.R_SAME_WAIT] = int(self._waits_alike())  # all runs wait for the same condition
        row[y.R_REPEATS] = int(repeats)  # a match may be found twice
        row[y.R_CONTROL] = sum(1 << register for register in range(self._control_count))  # bits: read by conditions
        return row


def _not_true(condition: Expr, facts: Facts) -> list[Expr]:
    """Return the conjuncts of "the condition is false or null"."""
    return conjuncts(If(condition, FALSE, TRUE, TRUE.type), facts)


def _compares_the_tested(test: Expr, comparison: Expr) -> bool:
    """Return True for `x is null` and a comparison with the same field x of a bound event."""
    if not (isinstance(test, Unary) and test.op == "is_null" and isinstance(comparison, Binary)):
        return False
    is_bound = isinstance(test.argument, VarField)  # the fast form tests no field of the event itself
    return is_bound and comparison.op in _SIMPLE and test.argument in (comparison.left, comparison.right)
