"""Every history at every event equals its definition, for every cut of the events into batches."""

from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

from cep.base.schema import Schema, Type
from cep.columnar.batch import EventBatch
from cep.engine.advance import advance
from cep.engine.alerts import alert_table
from cep.engine.keyed_state import KeyedState
from cep.engine.table import PreparedEvents, prepare
from cep.histories.values import expires_ms
from cep.lang.ir import History, PatternIR
from cep.lang.walk import histories as histories_in
from cep.nfa.histories import HistoryPlan
from cep.nfa.program import Program
from tests.engine.bridge import Delivery, batch_of, event_id, program_of, split, through_bytes, whole
from tests.lang.common import bound_pattern
from tests.oracle.expressions import Value, value_at
from tests.oracle.matcher import Event
from tests.seeds import seeds

EVENTS = """
event pay {
  id          id
  event_time  time
  key         string
  shop        string?
  amount      decimal(2)?
  size        int
  weight      float?
  way         enum(card, cash)
}
event login {
  id          id
  event_time  time
  key         string
  shop        string?
  ok          bool
}
event other { id id  event_time time  nothing string }
"""
WRITTEN = [
    "count(pay over 5 ms) > 1",
    "count(pay over previous 5 ms) > 1",
    "count(pay over 3 ms) > 1",
    "count(pay.amount over 9 ms where way == cash) > 1",
    "count(login over 4 ms where not ok) > 1",
    "sum(pay.amount over previous 6 ms) > 1",
    'sum(pay.size over 6 ms where shop == "s1") > 1',
    "sum(pay.amount over 20 ms by shop) > 1",
    "sum(pay.weight over 7 ms) > 1",
    "sum(pay.size * 2 over 7 ms by (shop, way)) > 1",
    "avg(pay.amount over previous 12 ms) > 1",
    "avg(pay.weight over 12 ms) > 1",
    "avg(pay.size over 1 h) > 1",
    "min(pay.amount over 8 ms) > 1",
    'max(pay.amount over previous 8 ms where lower(shop) == "s2") > 1',
    "min(pay.weight over 8 ms) > 1",
    "max(pay.weight over 5 ms by shop) > 1",
    "stddev(pay.amount over 15 ms) > 1",
    "stddev(pay.weight over 15 ms) > 1",
    "stddev(pay.size over previous 9 ms by shop) > 1",
    "count(pay over 6 ms by way) > 1",
    "avg(pay.amount over 30 ms by (shop, way)) > 1",
    "distinct(pay.amount over 12 ms by shop where way == card) > 1",
    "distinct(pay.shop over 10 ms) > 1",
    "distinct(login.shop over previous 10 ms) > 1",
    "distinct(pay.weight over 9 ms) > 1",
    "distinct(pay.weight * 0 over 30 ms) > 1",
    "median(pay.amount over 10 ms) > 1",
    "percentile(pay.size over previous 11 ms, 90) > 1",
    "percentile(pay.weight over 9 ms, 33) > 1",
    "approx_distinct(pay.shop over 10 ms) > 1",
    "approx_distinct(pay.weight over previous 500 ms where size > 1) > 1",
    "approx_distinct(login.shop over 1 h) > 1",
    "approx_percentile(pay.amount over 200 ms, 50) > 1",
    "approx_percentile(pay.size * 77 over previous 90 ms, 95) > 1",
    "approx_percentile(pay.weight over 300 ms where way == card, 20) > 1",
    "approx_percentile(pay.weight over previous 300 ms where way == card, 70) > 1",
    'last(pay).shop == "s1"',
    'first(pay).shop == "s1"',
    "first(pay).amount > 1",
    'first(pay over 6 ms).shop == "s1"',
    "first(pay over previous 9 ms by shop where way == cash).amount > 1",
    "first(login by shop).ok",
    "last(pay over 4 ms where size > 2).amount > 1",
    "last(pay by shop).size > 1",
    "last(login).ok",
    "exists(login)",
    "exists(pay over previous 2 ms)",
    "not exists(login over 6 ms by shop)",
    "first_seen(shop) < 5 ms",
    "first_seen(way) < 5 ms",
    'count(pay over day in "Europe/Paris") > 1',
    "sum(pay.amount over previous month) > 1",
]  # fmt: skip


@cache
def patterns() -> tuple[Schema, tuple[PatternIR, ...]]:
    bound = [bound_pattern(f"{EVENTS}\npattern p by key {{ seq a where a: pay {text} }}") for text in WRITTEN]
    return bound[0][1], tuple(pattern for pattern, _ in bound)


def random_events(random: Random, count: int = 40) -> dict[str, list[Event]]:
    """Return events of three keys, some at the same time, sometimes after a pause."""
    events: dict[str, list[Event]] = {key: [] for key in "xyz"}
    time_ms = 1_700_000_000_000
    for order in range(count):
        time_ms += random.choice((0, 0, 0, 1, 1, 2, 4, 30))
        kind, key = random.choice(("pay", "pay", "pay", "login")), random.choice("xxyz")
        fields: dict[str, Value] = {"id": event_id(order), "event_time": time_ms, "key": key}
        fields["shop"] = random.choice((None, "s1", "s2", "S2"))
        if kind == "pay":
            fields["amount"] = random.choice((None, random.randint(-3, 9) * 50))
            fields["size"] = random.randint(0, 5)
            fields["weight"] = random.choice((None, random.choice((0.1, 0.2, 0.3, -1e16, 1e16, 1e-300, 3.0))))
            fields["way"] = random.randint(0, 1)
        else:
            fields["ok"] = random.random() < 0.5
        events[key].append(Event(order, kind, time_ms, order, fields))
    return events


def engine_values(
    program: Program, deliveries: Sequence[Delivery], expr: Sequence[History], keyed_state: KeyedState | None = None
) -> dict[str, list[Value]]:
    """Return the value of each history at each event, by event id. Between two calls the keyed state is bytes."""
    values_by_event: dict[str, list[Value]] = {}
    tables: list[PreparedEvents] = []

    def prepare_and_look(*args: Any, **kwargs: Any) -> PreparedEvents:
        tables.append(prepare(*args, **kwargs))
        return tables[-1]

    with pytest.MonkeyPatch.context() as patched:  # the values that the matcher reads, not a second calculation
        patched.setattr("cep.engine.advance.prepare", prepare_and_look)
        for batch, watermark_ms in deliveries:
            after = advance(program, keyed_state, batch, watermark_ms).keyed_state
            keyed_state = through_bytes(program, after, watermark_ms)
            while tables:  # an empty batch lacks a table
                values_by_event |= dict(_values(program, tables.pop(), batch, expr))
    return values_by_event


def _values(
    program: Program, prepared: PreparedEvents, batch: EventBatch, functions: Sequence[History]
) -> Iterator[tuple[str, list[Value]]]:
    plan = program.histories
    assert isinstance(plan, HistoryPlan)
    numbers = {column.expr: column.number for column in plan.histories}
    for index, row in enumerate(prepared.batch_rows.tolist()):
        place = prepared.first_row + index
        values: list[Value] = []
        for expr in functions:
            number = numbers[expr]
            slot, null = prepared.columns[number, place : place + 1], prepared.nulls[number, place]
            values.append(None if null else _value(slot, expr.type, prepared.texts))
        yield batch.event_id[row].as_py(), values


def _value(slot: np.ndarray, type_: Type, texts: object) -> Value:
    if type_.is_text:
        return str(texts[int(slot[0])].as_py())  # type: ignore[index]
    if type_.is_float:
        return float(slot.view(np.float64)[0])
    return bool(slot[0]) if str(type_).startswith("bool") else int(slot[0])


def oracle_values(events: dict[str, list[Event]], functions: Sequence[History]) -> dict[str, list[Value]]:
    return {
        event_id(event.order): [value_at(expr, key_events[: index + 1]) for expr in functions]
        for key_events in events.values()
        for index, event in enumerate(key_events)
    }


def differences(
    engine_values: dict[str, list[Value]],
    expected: dict[str, list[Value]],
    texts: Sequence[str] = WRITTEN,
) -> list[object]:
    """Return the differing values of the histories with these texts."""
    assert engine_values.keys() == expected.keys()
    return [
        (text, event, ours, theirs)
        for event, values in engine_values.items()
        for text, ours, theirs in zip(texts, values, expected[event], strict=True)
        if not _same(ours, theirs, exactly="stddev" not in text)
    ]


def _same(ours: Value, theirs: Value, *, exactly: bool) -> bool:
    if exactly or ours is None or theirs is None:
        return ours == theirs
    return ours == pytest.approx(theirs, rel=1e-14)


@pytest.mark.parametrize("seed", seeds(12, 3))
def test_values_are_those_of_the_definition_in_any_split(seed: int) -> None:
    schema, every = patterns()
    program = program_of(schema, *every)
    exprs = [next(histories_in(pattern)) for pattern in every]
    random = Random(seed)
    events = random_events(random)
    batch = batch_of(schema, events)
    expected = oracle_values(events, exprs)
    assert differences(engine_values(program, whole(batch), exprs), expected) == []
    for _ in range(3):
        assert differences(engine_values(program, split(batch, random), exprs), expected) == []


def test_equal_histories_of_different_rules_are_one_column() -> None:
    schema, every = patterns()
    program = program_of(schema, *every, *every)
    assert program.histories is not None
    assert len(program.histories.written) == len(every)


def test_past_a_limit_the_oldest_are_folded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.nfa.histories.HISTORY_EVENTS_MAX", 3)
    schema, every = patterns()
    program = program_of(schema, every[0])
    (expr,) = histories_in(every[0])
    pays = [Event(i, "pay", 1 + i // 6, i, {"id": event_id(i), "key": "x", "size": 1, "way": 0}) for i in range(12)]
    batch = batch_of(schema, {"x": pays})
    at_once = engine_values(program, whole(batch), [expr])
    assert [values[0] for values in at_once.values()] == list(range(1, 13)), "panes of a millisecond are exact"
    advanced = advance(program, None, batch, 5)
    assert advanced.counters["histories_folded"] == 9
    alerts = {
        row["events"][0]["event_id"]: row["history_folded"]
        for row in alert_table(program, advanced.matches).to_pylist()
    }
    assert alerts == {event_id(i): i > 2 for i in range(1, 12)}
    folded, keyed_state = 0, None
    for row in range(12):
        advanced = advance(program, keyed_state, batch.take(np.array([row])), 0)
        keyed_state = through_bytes(program, advanced.keyed_state, 0)
        folded += advanced.counters.get("histories_folded", 0)
        assert len(keyed_state.histories) <= 4
    assert folded == 9


def test_what_no_window_can_hold_is_forgotten() -> None:
    schema, every = patterns()
    text = [WRITTEN.index("count(pay over 5 ms) > 1"), WRITTEN.index('last(pay).shop == "s1"')]
    events = {k: [Event(i, "pay", i, i, {"id": event_id(i), "key": k, "size": 1, "way": 0}) for i in o] for k, o in
              (("x", range(1, 50)), ("y", range(50, 52)))}  # fmt: skip
    batch = batch_of(schema, events)
    window, last = (program_of(schema, every[index]) for index in text)
    state = advance(window, None, batch, 49).keyed_state
    assert len(state.histories) == 5 + 2  # times 45 to 49 of x, both of y
    later = batch_of(schema, {"z": [Event(99, "pay", 90, 99, {"id": "99", "key": "z", "size": 1, "way": 0})]})
    assert len(advance(window, state, later, 90).keyed_state.histories) == 1
    assert len(advance(last, None, batch, 49).keyed_state.histories) == 2
    assert expires_ms(window.histories, state.histories) == 56


@pytest.mark.parametrize(
    ("text", "expected", "cut"),
    [
        # Values s0 to s2 are remembered; s3 and s4 count as new each time.
        ("first_seen(shop) < 5 ms", [0, 0, 0, 0, 0, 5, 5, 5, 0, 0], [3, 4, 8, 9]),
        # The three shops that came last are known out of five, and never the shop that comes now.
        ("last(pay by shop).size > 1", [None] * 10, range(3, 10)),
    ],
)
def test_single_events_have_a_limit_and_are_counted_and_told(
    text: str, expected: list[Value], cut: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a key has as many values as cep can know, a new value may be a forgotten one."""
    monkeypatch.setattr("cep.histories.retained.HISTORY_VALUES_MAX", 3)
    monkeypatch.setattr("cep.histories.sub_keys.HISTORY_VALUES_MAX", 3)
    schema, every = patterns()
    pattern = every[WRITTEN.index(text)]
    bound, _ = bound_pattern(f"{EVENTS}\npattern p by key {{ seq a where a: pay {text} or size > 0 }}")
    program, exprs = program_of(schema, bound), [next(histories_in(pattern))]
    values: list[Value] = []
    cut_rows: list[int] = []
    dropped, keyed_state = 0, None
    for row in range(10):
        fields: dict[str, Value] = {"id": event_id(row), "key": "x", "size": 7, "way": 0, "shop": f"s{row % 5}"}
        batch = batch_of(schema, {"x": [Event(row, "pay", row, row, fields)]})
        values += [values[0] for values in engine_values(program, [(batch, row)], exprs, keyed_state).values()]
        advanced = advance(program, keyed_state, batch, row)
        keyed_state = through_bytes(program, advanced.keyed_state, row)
        dropped += advanced.counters.get("history_values_dropped", 0)
        assert advanced.counters.get("histories_cut", 0) == (row in cut)
        cut_rows += [row for alert in alert_table(program, advanced.matches).to_pylist() if alert["history_cut"]]
        assert len(keyed_state.histories.pinned) <= 3
    assert values == expected
    assert cut_rows == list(cut)
    assert dropped == (4 if "first_seen" in text else 7)
