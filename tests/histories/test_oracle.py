"""Random patterns whose conditions read past events: the engine answers like the oracle, for every cut."""

from dataclasses import is_dataclass, replace
from random import Random
from typing import Any

import pytest

from cep.base.schema import Field, Schema
from cep.lang.ir import Binary, Const, CurrentField, Expr, History, HistoryFn, HistoryWindow, PatternIR, Unary
from cep.lang.walk import histories
from cep.nfa.compile import problems
from tests.engine.bridge import batch_of, engine_answers, joined, oracle_answers, program_of, split, whole
from tests.engine.test_against_oracle import difference, split_or_not
from tests.oracle.expressions import value_at
from tests.oracle.matcher import Event
from tests.oracle.random_cases import (
    BOOL,
    EVENT_TYPE,
    INT,
    MAYBE_BOOL,
    MAYBE_INT,
    SCHEMA,
    TEXT,
    Case,
    random_case,
    with_nulls,
)

CASES = 30
_FUNCTIONS: tuple[HistoryFn, ...] = (
    "count", "sum", "min", "max", "distinct", "first", "last", "exists", "first_seen", "approx_distinct",
)  # fmt: skip
_K = CurrentField("k", TEXT)
_V = CurrentField("v", MAYBE_INT)


def with_past(case: Case) -> Case:
    """Return the case with a condition over past events at one of its variables."""
    random = Random(f"past {case.level}/{case.seed}")
    changed = list(case.pattern.variables)
    for index in [random.randrange(len(changed))]:
        condition, where = _condition(random), changed[index].where
        alone = where is None or random.random() < 0.7
        both = condition if alone or where is None else Binary("and", where, condition, MAYBE_BOOL)
        changed[index] = replace(changed[index], where=both)
    return replace(case, pattern=replace(case.pattern, variables=tuple(changed)))


def _condition(random: Random) -> Expr:
    past = _history(random)
    if past.fn == "exists":
        return past if random.random() < 0.5 else Unary("not", past, BOOL)
    if past.type == TEXT.as_nullable():
        return Binary(random.choice(("==", "!=")), past, _K, MAYBE_BOOL)
    return Binary(random.choice(("<=", ">", ">=")), past, Const(random.randint(0, 2), INT), MAYBE_BOOL)


def _history(random: Random) -> History:
    window = HistoryWindow(random.randint(1, 12), None, previous=random.random() < 0.5)
    by = ("k",) if random.random() < 0.3 else ()
    letter = Binary("==", _K, Const(random.choice("abc"), TEXT), BOOL)
    where: Expr | None = letter if random.random() < 0.4 else None
    if random.random() < 0.5 and where is None:
        where = Binary(">", _V, Const(random.randint(0, 4), INT), MAYBE_BOOL)
    fn: HistoryFn = random.choice(_FUNCTIONS)
    if fn == "approx_distinct":  # without a sub-key
        return History(fn, EVENT_TYPE, _V, where, (), replace(window, ms=random.randint(1, 300)), None, INT)
    if fn == "first_seen":
        return History(fn, "", None, None, ("k",), None, None, INT)
    if fn in ("first", "last", "exists"):
        window_or_none = None if random.random() < 0.5 else window
        argument = None if fn == "exists" else random.choice((_K, _V))
        type_ = BOOL if argument is None else argument.type.as_nullable()
        return History(fn, EVENT_TYPE, argument, where, by, window_or_none, None, type_)
    argument = None if fn == "count" else _V
    return History(fn, EVENT_TYPE, argument, where, by, window, None, INT if fn in ("count", "distinct") else MAYBE_INT)


def cases(level: int) -> list[Case]:
    drawn = [random_case(seed, level) for seed in range(90_000, 90_000 + CASES)]
    past_cases = [with_past(case) for case in (*drawn, *map(with_nulls, drawn[: CASES // 3]))]
    return [case for case in past_cases if not problems(case.pattern, SCHEMA)]


def as_fields(case: Case) -> tuple[Schema, PatternIR, dict[str, list[Event]]]:
    """Return the same with every history as a field of the events. The values of the fields come from the oracle."""
    exprs = list(dict.fromkeys(histories(case.pattern)))
    fields = tuple(Field(f"past_{index}", past.type.as_nullable()) for index, past in enumerate(exprs))
    (event_type,) = SCHEMA.event_types
    names = [f.name for f in fields]

    def filled(events: list[Event], index: int) -> Event:
        values = [value_at(past, events[: index + 1]) for past in exprs]
        return replace(events[index], fields={**events[index].fields, **dict(zip(names, values, strict=True))})

    events = {
        key: [filled(key_events, index) for index in range(len(key_events))] for key, key_events in case.events.items()
    }
    swaps = {past: CurrentField(f.name, f.type) for past, f in zip(exprs, fields, strict=True)}
    variables = tuple(replace(v, where=_swapped(v.where, swaps)) for v in case.pattern.variables)
    schema = Schema((replace(event_type, fields=(*event_type.fields, *fields)),))
    return schema, replace(case.pattern, variables=variables), events


def _swapped(expr: Any, swaps: dict[History, CurrentField]) -> Any:
    """Return the expression with each history replaced."""
    if isinstance(expr, History):
        return swaps[expr]
    if not is_dataclass(expr) or isinstance(expr, type):
        return expr
    return replace(expr, **{name: _swapped(getattr(expr, name), swaps) for name in ("left", "right", "argument")
                            if hasattr(expr, name)})  # fmt: skip


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_history_is_like_a_field_of_the_event(level: int) -> None:
    differing, matched = [], 0
    for case in cases(level):
        schema, pattern, events = as_fields(case)
        expected = engine_answers(program_of(schema, pattern), whole(batch_of(schema, events)))
        matched += bool(expected.matches)
        differing += split_or_not(case, expected)
    assert [line for line in differing if line] == []
    assert matched > CASES / 5


@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_engine_finds_what_the_oracle_finds(level: int) -> None:
    differing, matched = [], 0
    for case in cases(level):
        expected = oracle_answers(case.pattern, case.events)
        matched += bool(expected.matches)
        differing += split_or_not(case, expected)
    assert [line for line in differing if line] == []
    assert matched > CASES / 5


@pytest.mark.parametrize("level", [1, 3])
def test_each_key_for_itself_and_rules_beside_change_nothing(level: int) -> None:
    differing = []
    for case in cases(level):
        others = (with_past(random_case(case.seed + 7_000 + i, 1 + i % 3)).pattern for i in range(3))
        beside = [pattern for pattern in others if not problems(pattern, SCHEMA)]
        program, batch = program_of(SCHEMA, case.pattern), batch_of(SCHEMA, case.events)
        at_once = engine_answers(program, whole(batch))
        alone = joined(engine_answers(program, whole(batch_of(SCHEMA, {k: e}))) for k, e in case.events.items())
        differing.append(difference(case, alone, at_once, "key by key"))
        crowded = program_of(SCHEMA, case.pattern, *beside)
        parts = split(batch, Random(case.seed))
        differing.append(difference(case, engine_answers(crowded, parts), at_once, "split, with rules beside"))
    assert [line for line in differing if line] == []
