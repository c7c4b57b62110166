"""A key with more events in a window than the limit: older events are folded, and values equal the definition's.

The definition: a window that holds more than the limit has its far edge rounded outwards to a pane, a 64th of it.
`distinct` counts exactly up to its own limit. Percentiles come from buckets.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from random import Random
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cep.columnar.batch import TEXT, EventBatch
from cep.engine.advance import advance
from cep.engine.alerts import alert_table
from cep.engine.keyed_state import KeyedState, concat_states, divide
from cep.histories.numbers.folds import fold_into_panes, rows_of_events
from cep.histories.numbers.panes import concat_panes, merge_rows
from cep.histories.numbers.tally import two_sums
from cep.histories.pages import detach_segments
from cep.lang.ir import History, HistoryFn
from cep.lang.walk import histories
from cep.nfa.program import Program
from cep.state.past import decode_whole, encode_whole
from tests.engine.bridge import Delivery, batch_of, event_id, split, state_after, through_bytes, whole
from tests.histories.test_reach import payment, program_over, written_of
from tests.histories.test_values import differences, engine_values
from tests.oracle.expressions import Value, in_panes, value_at
from tests.oracle.matcher import Event
from tests.seeds import LATER, seeds

LIMIT = 5
_OF_ONE_EVENT, _OF_PANES = {"last", "exists", "first_seen"}, {"approx_distinct", "approx_percentile"}
FOLDED = [
    "count(pay over 700 ms) > 1",
    "count(pay.amount over previous 700 ms where way == card) > 1",
    "count(pay.weight over 700 ms) > 1",
    "sum(pay.amount over 640 ms) > 1",
    "sum(pay.size * 3 over previous 700 ms) > 1",
    "avg(pay.amount over 700 ms) > 1",
    "stddev(pay.size over 900 ms) > 1",
    "sum(pay.weight over 700 ms) > 1",
    "avg(pay.weight over previous 900 ms where way == card) > 1",
    "min(pay.amount over 700 ms) > 1",
    "min(pay.weight over previous 700 ms) > 1",
    "max(pay.size over previous 1 s) > 1",
    "max(pay.weight over 700 ms) > 1",
    "distinct(pay.shop over 700 ms) > 1",
    "distinct(pay.size over previous 900 ms) > 1",
    "median(pay.amount over 700 ms) > 1",
    "percentile(pay.size over previous 700 ms, 90) > 1",
    "stddev(pay.weight over 700 ms) > 1",
    "stddev(pay.weight over previous 900 ms where way == card) > 1",
    'first(pay over 700 ms).shop == "s1"',
    "first(pay over previous 900 ms where way == card).amount > 1",
    "first(pay over 1 s by shop).weight > 1",
    "count(pay over 700 ms by shop) > 1",
    "sum(pay.amount over 700 ms by (shop, way)) > 1",
    "avg(pay.amount over previous 900 ms by way) > 1",
    "stddev(pay.size over 900 ms by shop) > 1",
    "sum(pay.weight over 800 ms by way) > 1",
    "stddev(pay.weight over previous 800 ms by shop) > 1",
    "min(pay.size over 700 ms by shop where way == card) > 1",
    "max(pay.weight over previous 700 ms by way) > 1",
    "distinct(pay.size over 700 ms by shop) > 1",
    "percentile(pay.amount over 900 ms by size, 30) > 1",
    "median(pay.weight over 900 ms by way) > 1",
    "count(pay over hour) > 1",
    'sum(pay.amount over previous day in "Europe/Paris") > 1',
    "stddev(pay.weight over hour by shop) > 1",
    "max(pay.size over previous week) > 1",
    'distinct(pay.shop over month in "Asia/Kolkata") > 1',
    'median(pay.amount over hour in "Asia/Kolkata" by way) > 1',
    "first(pay over previous hour).amount > 1",
]
_LIKE: dict[HistoryFn, HistoryFn] = {"median": "approx_percentile", "percentile": "approx_percentile"}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.nfa.histories.HISTORY_EVENTS_MAX", LIMIT)


def defined(expr: History, past: Sequence[Event], since: int = 0) -> tuple[Value, bool]:
    """Return the value at the last of the events from `since` on, and whether older ones of them are folded."""
    # With a sub-key, the events of all its values count.
    has_sub_key = [e for e in past if all(e.fields.get(name) is not None for name in expr.by)]
    counting = replace(expr, fn="count", by=(), argument=None if expr.fn == "first" else expr.argument)
    exact = value_at(counting, has_sub_key) if has_sub_key[-1:] == past[-1:] else 0
    assert isinstance(exact, int)
    if exact <= LIMIT:
        return value_at(expr, past), False
    assert expr.window is not None
    wide = [e for e in past[since:] if e is past[-1] or in_panes(expr.window, e, past[-1])]
    everything = replace(expr.window, ms=2**40, calendar=None)
    alike = replace(expr, fn=_LIKE.get(expr.fn, expr.fn), window=everything)
    if expr.fn == "median":
        alike = replace(alike, percent=None)
    return value_at(alike, wide), True


def events_of(random: Random, count: int) -> dict[str, list[Event]]:
    events: dict[str, list[Event]] = {"x": [], "y": []}
    time_ms = 1_700_000_000_000
    for order in range(count):
        time_ms += random.choice((0, 1, 3, 9, 20, 150))
        key = random.choice("xxxy")
        fields: dict[str, Value] = {"id": event_id(order), "event_time": time_ms, "key": key}
        fields |= {
            "shop": random.choice((None, "s1", "s2", "s3", "s4")),
            "size": random.randint(0, 300),
            "way": order % 2,
        }
        fields |= {
            "amount": random.choice((None, random.randint(-900, 900))),
            "weight": random.choice((None, 0.1, -2.7, 1e16, -1e16, 3e-300)),
        }
        events[key].append(Event(order, "pay", time_ms, order, fields))
    return events


def one_by_one(batch: EventBatch) -> list[Delivery]:
    return [(batch.take(np.array([row])), int(batch.time_ms[row])) for row in range(len(batch))]


def asked_of(program: Program, written: Sequence[str]) -> list[History]:
    exprs = written_of(program)
    assert len(exprs) == len(written)
    return exprs


def moved_by_keys(state: KeyedState, program: Program) -> KeyedState:
    """Divide state by keys, write, read and join it, as savepoints, warm starts and changes of runners do."""
    shares = divide(
        state, lambda keys: np.array([ord(key) for key in keys.to_pylist()], np.int64), program.row_registers
    )
    assert len(shares) == 2
    moved = concat_states([decode_whole(encode_whole(share)) for _, share in shares], program.row_registers)
    return replace(moved, histories=replace(moved.histories, segments=detach_segments(moved.histories.segments)))


@pytest.mark.parametrize("seed", seeds(4))
def test_values_are_those_of_the_definition_however_events_come(seed: int) -> None:
    random = Random(seed)
    events = events_of(random, 60)
    program = program_over(*FOLDED)
    exprs, batch = asked_of(program, FOLDED), batch_of(program.schema, events)
    expected = {
        event_id(e.order): [defined(expr, key_events[: index + 1])[0] for expr in exprs]
        for key_events in events.values()
        for index, e in enumerate(key_events)
    }
    folded = sum(
        defined(e, key_events[: index + 1])[1]
        for key_events in events.values()
        for index in range(len(key_events))
        for e in exprs
    )
    assert folded > 20 * len(FOLDED)
    for deliveries in (whole(batch), split_evenly(batch, random), split(batch, random), split(batch, random)):
        assert differences(engine_values(program, deliveries, exprs), expected, FOLDED) == []


CALENDARS = [
    'count(pay over hour in "Europe/Paris") > 1',
    'sum(pay.amount over previous day in "Europe/Paris" by shop) > 1',
    'count(pay over previous hour in "Australia/Lord_Howe") > 1',
    'max(pay.size over hour in "Australia/Lord_Howe" by way) > 1',
    'first(pay over hour in "Australia/Lord_Howe").size > 1',
    'stddev(pay.weight over day in "Australia/Lord_Howe") > 1',
    'median(pay.size over week in "Asia/Kolkata") > 1',
    'first(pay over day in "Europe/Paris" by shop).amount > 1',
    'avg(pay.size over month in "Australia/Lord_Howe") > 1',
]


STARTS = ("2024-03-30T20:00Z", "2024-04-06T10:00Z", "2024-10-05T10:00Z")


@pytest.mark.parametrize("start", ["2024-10-26T20:00Z", *(pytest.param(start, marks=LATER) for start in STARTS)])
def test_a_unit_of_the_calendar_is_one_pane(start: str) -> None:
    """The window covers a change of the clock, by an hour or by half an hour."""
    random = Random(start)
    events = events_of(random, 70)
    time_ms = int(datetime.fromisoformat(start).timestamp() * 1000)
    for e in sorted((e for key_events in events.values() for e in key_events), key=lambda e: e.order):
        time_ms += random.randint(1, 15 * 60_000)
        key_events = events[str(e.fields["key"])]
        key_events[key_events.index(e)] = replace(e, time_ms=time_ms, fields={**e.fields, "event_time": time_ms})
    program = program_over(*CALENDARS)
    exprs, batch = asked_of(program, CALENDARS), batch_of(program.schema, events)
    values_by_event = engine_values(program, whole(batch), exprs)
    assert engine_values(program, split_evenly(batch, random), exprs) == values_by_event
    folded_count = 0
    for key_events in events.values():
        for index, e in enumerate(key_events):
            expected = [defined(expr, key_events[: index + 1]) for expr in exprs]
            folded_count += sum(is_folded for _, is_folded in expected)
            wide = [value if value is None else pytest.approx(value, rel=1e-14) for value, _ in expected]
            assert values_by_event[event_id(e.order)] == wide
    assert folded_count > 100


@pytest.mark.parametrize("seed", seeds(2, inner=0))
def test_panes_move_with_their_keys(seed: int) -> None:
    random = Random(seed)
    events = events_of(random, 60)
    written = [*FOLDED, "approx_distinct(pay.size over 5 s) > 1", "approx_percentile(pay.amount over 5 s, 80) > 1.0"]
    program = program_over(*written)
    exprs, batch = asked_of(program, written), batch_of(program.schema, events)
    cut = random.randrange(20, 45)
    first, rest = one_by_one(batch)[:cut], one_by_one(batch)[cut:]
    state = state_after(program, first)
    assert any(segment.panes_number for segment in state.histories.segments)
    everything = engine_values(program, [*first, *rest], exprs)
    values_by_event = engine_values(program, rest, exprs, moved_by_keys(state, program))
    assert values_by_event == {event: everything[event] for event in values_by_event}
    assert len(values_by_event) == 60 - cut


def test_a_busy_key_is_bounded_counted_and_told() -> None:
    """For every function, events and panes do not grow with more events in the same time."""
    count, time_ms = 96, 1_700_000_000_000
    events = [
        Event(index, "pay", time_ms + index // 24, index, {"id": event_id(index), "key": "x", "size": index % 2,
              "way": index % 3 // 2, "shop": f"s{index % 4}", "amount": index % 5, "weight": float(index % 3)})
        for index in range(count)
    ]  # fmt: skip
    program = program_over(*(f"{text} or size >= 0" for text in FOLDED))
    batch, random = batch_of(program.schema, {"x": events}), Random(1)
    counters: Counter[str] = Counter()
    folded_alerts: set[tuple[str, str]] = set()
    sizes: list[tuple[int, int]] = []
    state: KeyedState | None = None
    for part, watermark_ms in split_evenly(batch, random):
        advanced = advance(program, state, part, watermark_ms)
        counters.update(advanced.counters)
        for alert in alert_table(program, advanced.matches).to_pylist():
            assert not alert["history_cut"]
            if alert["history_folded"]:
                folded_alerts.add((alert["rule_id"], alert["events"][0]["event_id"]))
        state = through_bytes(program, advanced.keyed_state, watermark_ms)
        segments = state.histories.segments
        sizes.append((len(state.histories), sum(len(segment) for segment in segments if segment.panes_number)))
    exprs = asked_of(program, FOLDED)
    of_rules = [(rule.deployed.rule_id, next(histories(rule.deployed.pattern))) for rule in program.rules]
    assert folded_alerts == {
        (rule, event_id(index)) for rule, e in of_rules for index in range(count) if defined(e, events[: index + 1])[1]
    }
    assert counters["histories_folded"] == sum(
        defined(e, events[: index + 1])[1] for index in range(count) for e in exprs
    )
    assert counters["histories_cut"] == 0
    half = len(sizes) // 2
    assert sizes[-1][0] <= 4 * LIMIT + 10, "firsts of panes are kept too"
    assert sizes[-1][1] <= 1.8 * sizes[half][1]


# The function "first" does not use panes. For the others, panes have a row for each value, up to a limit.
_WITHOUT = ("first", "distinct", "median", "percentile")


@pytest.mark.parametrize("text", [t for t in FOLDED if not t.startswith(_WITHOUT)])
def test_panes_do_not_grow_with_different_values(text: str) -> None:
    """For 400 different events within some milliseconds, panes have rows for sums, ends and counts."""
    assert 0 < _pane_rows(text, 400) <= 100


def _pane_rows(text: str, count: int) -> int:
    """Return how many rows the panes of a history have at the end, of this many events in 20 ms."""
    events = [
        Event(index, "pay", 1_700_000_000_000 + 20 * index // count, index, {"id": event_id(index), "key": "x",
              "size": index % 2, "way": index % 3 // 2, "shop": f"s{index % 4}", "amount": 7 * index,
              "weight": index / 3})
        for index in range(count)
    ]  # fmt: skip
    program = program_over(f"{text} or size >= 0")
    state = state_after(program, split_evenly(batch_of(program.schema, {"x": events}), Random(1), most=16))
    return sum(len(segment) for segment in state.histories.segments if segment.panes_number)


def split_evenly(batch: EventBatch, random: Random, most: int = 4) -> list[Delivery]:
    """Return micro-batches of one to `most` events."""
    deliveries: list[Delivery] = []
    start = 0
    while start < len(batch):
        end = min(start + random.randint(1, most), len(batch))
        deliveries.append((batch.take(np.arange(start, end)), int(batch.time_ms[end - 1])))
        start = end
    return deliveries


@given(st.lists(st.tuples(st.sampled_from([0, 1]), st.floats(width=64)), min_size=1, max_size=30), st.integers(0, 30))
@example([(0, 1.7e308), (0, 1.7e308), (0, -1.7e308)], 1)
def test_floats_of_a_pane_keep_their_sum_exactly(events: list[tuple[int, float]], cut: int) -> None:
    """The sum is exact for every way to join panes: finite numbers are kept as a sum, other numbers as counts."""
    program = program_over("sum(pay.weight over 640 s) > 1")
    assert program.histories is not None
    (history,) = program.histories.histories
    parts = []
    for share in (events[:cut], events[cut:]):
        key, values = np.array([k for k, _ in share], np.int64), np.array([v for _, v in share], np.float64)
        codes = values.view(np.int64)
        rows = fold_into_panes(history, rows_of_events(history, key, 0 * key, codes, pa.array([], TEXT)), codes)
        parts.append(merge_rows(history, rows, -(2**40)))
    rows = merge_rows(history, concat_panes(parts), -(2**40))
    for number in (0, 1):
        key_rows = rows.take(rows.key == number)
        shown = [value for k, value in events if k == number]
        assert int(key_rows.weight.sum()) == len(shown)
        pane_values = key_rows.code.view(np.float64).tolist()
        finite = [
            sum((Fraction(v) for v in numbers if math.isfinite(v)), Fraction(0)) for numbers in (pane_values, shown)
        ]
        assert finite[0] == finite[1]
        assert len(pane_values) <= len(shown) + 2
        assert {str(v) for v in pane_values if not math.isfinite(v)} == {str(v) for v in shown if not math.isfinite(v)}


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=64), max_size=30), st.randoms())
@example([1e308, -1e308, 1e-308, 5e-324], Random(0))
def test_sums_of_windows_to_twice_the_digits(values: list[float], random: Random) -> None:
    values = [value / 64 for value in values]
    cuts = sorted((random.randint(0, len(values)), random.randint(0, len(values))) for _ in range(10))
    lows = np.array(sorted(min(cut) for cut in cuts), np.int64)
    highs = np.array(sorted(max(cut) for cut in cuts), np.int64)
    head, rest = two_sums(np.array(values, np.float64).view(np.int64), lows, highs)
    for low, high, one, other in zip(lows, highs, head.tolist(), rest.tolist(), strict=True):
        exact = sum(map(Fraction, values[low:high]), Fraction(0))
        assert one == float(exact)
        assert other == float(exact - Fraction(one))


def test_a_window_that_is_small_again_is_exact_again() -> None:
    time_ms = 1_700_000_000_000
    times = [*range(40), 2_000, 2_001, 2_300]
    events = [payment(index, time_ms + ms, "x") for index, ms in enumerate(times)]
    program = program_over(FOLDED[0])
    (expr,) = asked_of(program, FOLDED[:1])
    batch = batch_of(program.schema, {"x": events})
    counts = [values[0] for values in engine_values(program, one_by_one(batch), [expr]).values()]
    assert counts == [*range(1, 41), 1, 2, 3]


def test_the_order_of_the_fields_of_a_sub_key_counts() -> None:
    text = "count(pay over 700 ms by (way, size)) > 1"
    events = [payment(n, 1_700_000_000_000 + n, "x", way=n % 2, size=n // 2 % 2) for n in range(40)]
    program = program_over(text)
    (expr,) = asked_of(program, [text])
    batch = batch_of(program.schema, {"x": events})
    counts = [values[0] for values in engine_values(program, one_by_one(batch), [expr]).values()]
    assert counts == [n // 4 + 1 for n in range(40)]


def test_definitions_name_all_that_can_be_folded() -> None:
    program = program_over(*FOLDED)
    plan = program.histories
    assert plan is not None
    assert all(history.is_foldable for history in plan.histories)
    assert {history.expr.fn for history in plan.histories} == set(get_args(HistoryFn)) - _OF_ONE_EVENT - _OF_PANES
