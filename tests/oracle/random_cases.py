"""A seed and a level → a small random pattern, bound and valid, with random events by key.

    Level 1: sequences of variables joined by `->`, relaxed repetition, conditions across events, within, three skips.
    Level 2: also `,` and `->>`, strict, any, greedy, optional, and absence in the middle.
    Level 3: also groups, alternatives, any order, step windows, gaps, absence at the end, until, windows in events,
             time-outs, the other skips and `in order`.

Patterns that the language's check refuses are not generated: an absence without a window, a loop over a part that can
match nothing, a pattern that can match nothing. The same seed and level give the same case.
Tested by: tests/oracle/test_oracle.py
"""

from dataclasses import dataclass, replace
from random import Random

from cep.base.schema import EventType, Field, Kind, Schema, Type
from cep.lang import ir
from tests.oracle.expressions import Value
from tests.oracle.matcher import Event

ID, TIME, TEXT = Type(Kind.ID), Type(Kind.TIME), Type(Kind.STRING)
INT, MAYBE_INT = Type(Kind.INT), Type(Kind.INT, nullable=True)
BOOL, MAYBE_BOOL = Type(Kind.BOOL), Type(Kind.BOOL, nullable=True)
EVENT_TYPE = "e"
SCHEMA = Schema(
    (
        EventType(
            EVENT_TYPE,
            (
                Field("id", ID),
                Field("event_time", TIME),
                Field("key", TEXT),
                Field("k", TEXT),
                Field("v", MAYBE_INT),
            ),
        ),
    )
)
LETTERS = "abcd"
EVENTS_MAX = 11  # the oracle is exponential in it where every combination counts
START_MS = 1_000

_K = ir.CurrentField("k", TEXT)
_V = ir.CurrentField("v", MAYBE_INT)
_COMPARISONS: tuple[ir.BinaryOp, ...] = ("<", "<=", ">", ">=", "==", "!=")


@dataclass(frozen=True)
class Case:
    """A pattern and its events: the events of each key, in the order of (time, order)."""

    seed: int
    level: int
    pattern: ir.PatternIR
    events: dict[str, list[Event]]


def random_case(seed: int, level: int) -> Case:
    """Return the case of a seed at a level from 1 to 3."""
    random = Random(f"{level}/{seed}")
    pattern = _Maker(random, level).pattern()
    return Case(seed, level, pattern, _events(random))


def with_nulls(case: Case) -> Case:
    """Make `k`, which is declared without `?`, null in some events, and test it for null in some conditions."""
    random = Random(f"nulls {case.level}/{case.seed}")
    events = {
        key: [
            replace(event, fields={**event.fields, "k": None}) if random.random() < 0.25 else event
            for event in key_events
        ]
        for key, key_events in case.events.items()
    }
    is_null = ir.Unary("is_null", _K, BOOL)
    variables = [
        replace(variable, where=ir.Binary("or", variable.where, is_null, MAYBE_BOOL))
        if variable.where is not None and random.random() < 0.4 else variable
        for variable in case.pattern.variables
    ]  # fmt: skip
    return replace(case, pattern=replace(case.pattern, variables=tuple(variables)), events=events)


def _events(random: Random) -> dict[str, list[Event]]:
    """Return events of one to three keys, interleaved, with small gaps and ties."""
    keys = ["x", "y", "z"][: random.choice((1, 1, 2, 3))]
    events_by_key: dict[str, list[Event]] = {key: [] for key in keys}
    time_ms = START_MS
    letters = random.choice((LETTERS, LETTERS, "aabc", "aab"))
    for order in range(random.randint(4, EVENTS_MAX) * len(keys)):
        time_ms += random.choice((0, 0, 1, 1, 1, 2, 3, 6)) if len(keys) == 1 else random.choice((0, 0, 0, 1, 1, 3))
        key = random.choice(keys)
        if len(events_by_key[key]) >= EVENTS_MAX:
            continue
        value = None if random.random() < 0.12 else random.randint(0, 5)
        fields: dict[str, Value] = {"id": str(order), "event_time": time_ms, "key": key}
        fields |= {"k": random.choice(letters), "v": value}
        events_by_key[key].append(Event(order, EVENT_TYPE, time_ms, order, fields))
    return events_by_key


class _Maker:
    """Makes one pattern."""

    def __init__(self, random: Random, level: int) -> None:
        self.random = random
        self.level = level
        self.variables: list[ir.Variable] = []
        self.bound: list[str] = []
        self.loops: set[str] = set()

    def pattern(self) -> ir.PatternIR:
        random = self.random
        within_ms = random.randint(3, 25) if random.random() < 0.6 else None
        steps = self._sequence(random.choice((1, 2, 2, 3, 3, 4)), depth=0)
        if all(_may_be_empty(step) for step in steps):
            steps = (*steps, ir.Step(ir.Link.FOLLOWED_BY, self._variable(ir.ONCE)))
        if self.level == 3 and within_ms is not None and random.random() < 0.2:
            steps = (*steps, self._absence(random.choice((ir.Link.FOLLOWED_BY, ir.Link.FOLLOWED_BY, ir.Link.NEXT))))
        within_events = random.randint(2, 8) if self.level == 3 and random.random() < 0.1 else None
        return ir.PatternIR(
            name="random",
            params=(),
            key=("key",),
            structure=ir.SequenceNode(steps),
            variables=tuple(self.variables),
            measures=self._measures(),
            event_types=(EVENT_TYPE,),
            skip=self._skip(),
            within_ms=within_ms,
            within_events=within_events,
            timeout_measures=self._measures() if self.level == 3 and random.random() < 0.5 else None,
        )

    def _measures(self) -> tuple[ir.Measure, ...]:
        variable = self.random.choice(self.bound)
        argument = None if (fn := self._aggregate_fn()) == "count" else _V
        return (
            ir.Measure(
                "total", ir.Aggregate(fn, variable, argument, INT if fn in ("count", "distinct") else MAYBE_INT)
            ),
            ir.Measure("latest", ir.VarField(variable, "last", "v", MAYBE_INT)),
        )

    def _aggregate_fn(self) -> ir.AggregateFn:
        fns: tuple[ir.AggregateFn, ...] = ("count", "sum", "min", "max", "distinct")
        return self.random.choice(fns)

    def _skip(self) -> ir.Skip:
        kinds = [ir.SkipKind.NONE, ir.SkipKind.NONE, ir.SkipKind.PAST_LAST, ir.SkipKind.TO_NEXT]
        if self.level < 3:
            return ir.Skip(self.random.choice(kinds))
        kind = self.random.choice([*kinds, ir.SkipKind.TO_FIRST, ir.SkipKind.TO_LAST])
        in_order = kind is not ir.SkipKind.NONE and self.random.random() < 0.3
        named = self.random.choice(self.bound) if kind in (ir.SkipKind.TO_FIRST, ir.SkipKind.TO_LAST) else None
        return ir.Skip(kind, named, in_order)

    # ---- structure

    def _sequence(self, length: int, depth: int) -> tuple[ir.Step, ...]:
        """Return steps with an absence never first and never last: the step after an absence is mandatory."""
        steps: list[ir.Step] = []
        for index in range(length):
            if index and self.level >= 2 and self.random.random() < 0.15:
                steps.append(self._absence(self._link()))
                steps.append(ir.Step(self._link(), self._variable(ir.ONCE)))
            else:
                steps.append(self._step(depth, is_first=index == 0))
        return tuple(steps)

    def _step(self, depth: int, *, is_first: bool) -> ir.Step:
        link = ir.Link.FOLLOWED_BY if is_first else self._link()
        step = ir.Step(link, self._node(depth))
        if self.level == 3 and not is_first and self.random.random() < 0.15:
            gap_max_ms = self.random.randint(2, 8)
            gap_min_ms = self.random.randint(1, gap_max_ms - 1) if self.random.random() < 0.3 else None
            return replace(step, gap_min_ms=gap_min_ms, gap_max_ms=gap_max_ms)
        return step

    def _link(self) -> ir.Link:
        if self.level == 1:
            return ir.Link.FOLLOWED_BY
        return self.random.choice((ir.Link.FOLLOWED_BY, ir.Link.FOLLOWED_BY, ir.Link.FOLLOWED_BY_ANY, ir.Link.NEXT))

    def _absence(self, link: ir.Link) -> ir.Step:
        bound = list(self.bound)
        node = self._variable(ir.ONCE)
        self.bound = bound  # an absent variable is never bound: later conditions must not use it
        return ir.Step(link, node, negated=True)

    def _node(self, depth: int) -> ir.Node:
        if self.level < 3 or depth >= 2 or self.random.random() < 0.7:
            return self._variable(self._quantifier(group=False))
        shape = self.random.choice(("group", "group", "alternative", "any order"))
        if shape == "alternative":
            return ir.AlternativeNode((self._item(depth), self._item(depth)))
        if shape == "any order":
            return ir.AnyOrderNode((self._item(depth), self._item(depth)))
        steps = self._sequence(self.random.choice((1, 2, 2)), depth + 1)
        within_ms = self.random.randint(3, 12) if self.random.random() < 0.3 else None
        quantifier = self._quantifier(group=True)
        if all(_may_be_empty(step) for step in steps):
            quantifier = ir.ONCE
        return ir.SequenceNode(steps, quantifier, within_ms)

    def _item(self, depth: int) -> ir.Node:
        """Return an option or an item: a node that takes at least one event."""
        if self.random.random() < 0.7:
            quantifier = self._quantifier(group=False)
            return self._variable(quantifier if quantifier.min_count else ir.ONCE)
        steps = self._sequence(2, depth + 2)
        if all(_may_be_empty(step) for step in steps):
            steps = (*steps, ir.Step(ir.Link.FOLLOWED_BY, self._variable(ir.ONCE)))
        return ir.SequenceNode(steps)

    def _quantifier(self, *, group: bool) -> ir.Quantifier:
        random = self.random
        if random.random() < 0.5:
            return ir.ONCE
        low, high = random.choice(((1, None), (1, None), (2, None), (1, 2), (2, 2), (2, 3), (3, 3)))
        if self.level == 1:
            return ir.Quantifier(low, high)
        if random.random() < 0.3:
            low, high = random.choice(((0, 1), (0, None), (0, 2)))
        if high == 1:
            return ir.Quantifier(low, high)
        inner = random.choice((ir.Inner.RELAXED, ir.Inner.RELAXED, ir.Inner.STRICT, ir.Inner.ANY))
        greedy = not group and inner is not ir.Inner.ANY and random.random() < 0.3
        if self.level == 2:
            return ir.Quantifier(low, high, inner, greedy)
        until = self._plain() if high is None and random.random() < 0.2 else None
        gap_ms = random.randint(2, 8) if random.random() < 0.15 else None
        return ir.Quantifier(low, high, inner, greedy, until, gap_ms)

    # ---- conditions

    def _variable(self, quantifier: ir.Quantifier) -> ir.VarNode:
        name = f"v{len(self.variables) + 1}"
        loops = quantifier.max_count != 1
        where = self._plain()
        if self.random.random() < 0.35:
            if loops and self.random.random() < 0.6:
                where = ir.Binary("and", where, self._own(name), MAYBE_BOOL)
            elif self.bound:
                where = ir.Binary("and", where, self._cross(self.random.choice(self.bound)), MAYBE_BOOL)
        self.variables.append(ir.Variable(name, EVENT_TYPE, None if self.random.random() < 0.04 else where))
        self.bound.append(name)
        if loops:
            self.loops.add(name)
        return ir.VarNode(name, quantifier)

    def _plain(self) -> ir.Expr:
        """Return a test on the event alone."""
        random = self.random
        named = ir.Binary("==", _K, ir.Const(random.choice(LETTERS[:3]), TEXT), BOOL)
        shape = random.random()
        if shape < 0.65:
            return named
        if shape < 0.75:
            return ir.In(_K, tuple(ir.Const(letter, TEXT) for letter in sorted(random.sample(LETTERS, 2))), BOOL)
        if shape < 0.9:
            return ir.Binary(random.choice(_COMPARISONS), _V, ir.Const(random.randint(0, 5), INT), MAYBE_BOOL)
        return ir.Unary("not", named, BOOL)

    def _cross(self, other: str) -> ir.Expr:
        """Return a comparison with a field of another variable."""
        random = self.random
        shape = random.random()
        if shape < 0.5:
            ways: tuple[ir.Which, ...] = ("last", "last", "first", "prev") if other in self.loops else ("last", "first")
            which = random.choice(ways)
            return ir.Binary(random.choice(_COMPARISONS), _V, ir.VarField(other, which, "v", MAYBE_INT), MAYBE_BOOL)
        if shape < 0.75:
            total = ir.Aggregate("sum", other, _V, INT)
            return ir.Binary(random.choice(_COMPARISONS), total, ir.Const(random.randint(1, 9), INT), BOOL)
        count = ir.Aggregate("count", other, None, INT)
        return ir.Binary(random.choice(("<", ">=")), count, ir.Const(random.randint(1, 3), INT), BOOL)

    def _own(self, name: str) -> ir.Expr:
        """Return a comparison with the repetitions taken so far: rising, or within a total."""
        if self.random.random() < 0.3:
            total = ir.Binary("+", ir.Aggregate("sum", name, _V, INT), _V, MAYBE_INT)
            return ir.Binary("<=", total, ir.Const(self.random.randint(4, 12), INT), MAYBE_BOOL)
        last = ir.VarField(name, "last", "v", MAYBE_INT)
        compared = ir.Binary(self.random.choice(_COMPARISONS), _V, last, MAYBE_BOOL)
        return ir.Binary("or", ir.Unary("is_null", last, BOOL), compared, MAYBE_BOOL)


def _may_be_empty(step: ir.Step) -> bool:
    return step.negated or _node_may_be_empty(step.node)


def _node_may_be_empty(node: ir.Node) -> bool:
    match node:
        case ir.VarNode(quantifier=quantifier):
            return quantifier.min_count == 0
        case ir.SequenceNode(steps=steps, quantifier=quantifier):
            return quantifier.min_count == 0 or all(_may_be_empty(step) for step in steps)
        case ir.AlternativeNode(options=nodes):
            return any(_node_may_be_empty(option) for option in nodes)
        case ir.AnyOrderNode(items=nodes):
            return all(_node_may_be_empty(item) for item in nodes)
