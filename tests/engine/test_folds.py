"""A key with more events in a window than the limit: older ones are folded, and the value is that of the definition.

The definition: a window that holds more than the limit has its far edge rounded outwards to a pane, a 64th of it.
`distinct` counts exactly up to its own limit, percentiles are those of buckets.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cep.columnar.batch import TEXT, EventBatch
from cep.engine.advance import advance
from cep.engine.alerts import alert_table
from cep.engine.folds import folded
from cep.engine.history_state import unplaced
from cep.engine.keyed_state import KeyedState, concat_states
from cep.engine.panes import concat_panes, merged
from cep.engine.partition import divide
from cep.lang.ir import History, HistoryFn
from cep.nfa.program import Program
from cep.state.whole import decode_whole, encode_whole
from tests.engine.bridge import Delivery, batch_of, event_id, split, through_bytes, whole
from tests.engine.test_histories import engine_values
from tests.engine.test_history_reach import program_over
from tests.oracle.expressions import Value
from tests.oracle.histories import in_panes, value_at
from tests.oracle.matcher import Event

LIMIT = 5
FOLDED = [
    "count(pay over 700 ms) > 1",
    "count(pay.amount over previous 700 ms where way == card) > 1",
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
]
# What has no panes keeps the newest ones.
CUT = ["stddev(pay.weight over 700 ms) > 0", "sum(pay.amount over 700 ms by shop) > 1", "count(pay over hour) > 1"]
_LIKE: dict[HistoryFn, HistoryFn] = {"median": "approx_percentile", "percentile": "approx_percentile"}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.nfa.histories.HISTORY_EVENTS_MAX", LIMIT)


def defined(expr: History, past: Sequence[Event]) -> tuple[Value, bool]:
    """The value at the last of the events, and whether older ones are folded."""
    counting = replace(expr, fn="count")
    exact = value_at(counting, past)
    assert isinstance(exact, int)
    if exact <= LIMIT:
        return value_at(expr, past), False
    wide = [e for e in past if e is past[-1] or in_panes(expr.window, e, past[-1])]
    everything = replace(expr.window, ms=2**40) if expr.window is not None else None
    alike = replace(expr, fn=_LIKE.get(expr.fn, expr.fn), window=everything)
    if expr.fn == "median":
        alike = replace(alike, percent=None)
    return value_at(alike, wide), True


def events_of(random: Random, count: int) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {"x": [], "y": []}
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
        found[key].append(Event(order, "pay", time_ms, order, fields))
    return found


def one_by_one(batch: EventBatch) -> list[Delivery]:
    return [(batch.take(np.array([at])), int(batch.time_ms[at])) for at in range(len(batch))]


def asked_of(program: Program, written: Sequence[str]) -> list[History]:
    plan = program.histories
    assert plan is not None
    assert len(plan.histories) == len(written)
    return [history.expr for history in plan.histories]


@pytest.mark.parametrize("seed", range(6))
def test_values_are_those_of_the_definition_however_events_come(seed: int) -> None:
    random = Random(seed)
    events = events_of(random, 90)
    program = program_over(*FOLDED)
    wanted, batch = asked_of(program, FOLDED), batch_of(program.schema, events)
    expected = {
        event_id(e.order): [defined(expr, own[: at + 1])[0] for expr in wanted]
        for own in events.values()
        for at, e in enumerate(own)
    }
    folded = sum(defined(e, own[: at + 1])[1] for own in events.values() for at in range(len(own)) for e in wanted)
    assert folded > 200
    for deliveries in (whole(batch), one_by_one(batch), split(batch, random), split(batch, random)):
        found = engine_values(program, deliveries, wanted)
        assert [
            (FOLDED[at], event, ours, theirs)
            for event, values in found.items()
            for at, (ours, theirs) in enumerate(zip(values, expected[event], strict=True))
            if ours != (theirs if "stddev" not in FOLDED[at] or theirs is None else pytest.approx(theirs, rel=1e-14))
        ] == []


@pytest.mark.parametrize("seed", range(3))
def test_panes_move_with_their_keys(seed: int) -> None:
    """Divided by keys, written whole, read, joined: as a savepoint, a warm start and a change of runners do it."""
    random = Random(seed)
    events = events_of(random, 80)
    written = [*FOLDED, "approx_distinct(pay.size over 5 s) > 1", "approx_percentile(pay.amount over 5 s, 80) > 1.0"]
    program = program_over(*written)
    wanted, batch = asked_of(program, written), batch_of(program.schema, events)
    cut = random.randrange(30, 60)
    first, rest = one_by_one(batch)[:cut], one_by_one(batch)[cut:]
    state: KeyedState | None = None
    for part, watermark_ms in first:
        state = through_bytes(program, advance(program, state, part, watermark_ms).keyed_state, watermark_ms)
    assert state is not None
    assert any(segment.panes for segment in state.histories.segments)
    shares = divide(
        state, lambda keys: np.array([ord(key) for key in keys.to_pylist()], np.int64), program.row_registers
    )
    assert len(shares) == 2
    moved = concat_states([decode_whole(encode_whole(share)) for _, share in shares], program.row_registers)
    moved = replace(moved, histories=replace(moved.histories, segments=unplaced(moved.histories.segments)))
    everything = engine_values(program, [*first, *rest], wanted)
    found = engine_values(program, rest, wanted, moved)
    assert found == {event: everything[event] for event in found}
    assert len(found) == 80 - cut


def fed(program: Program, batch: EventBatch) -> tuple[Counter[str], KeyedState, dict[str, tuple[bool, bool]]]:
    """Counters, the state at the end, and by event what its alert says: (cut, folded)."""
    counters: Counter[str] = Counter()
    told: dict[str, tuple[bool, bool]] = {}
    state: KeyedState | None = None
    for part, watermark_ms in one_by_one(batch):
        advanced = advance(program, state, part, watermark_ms)
        counters.update(advanced.counters)
        for alert in alert_table(program, advanced.matches).to_pylist():
            told[alert["events"][0]["event_id"]] = alert["history_cut"], alert["history_folded"]
        state = through_bytes(program, advanced.keyed_state, watermark_ms)
    assert state is not None
    return counters, state, told


@pytest.mark.parametrize(("written", "is_folded"), [*((text, True) for text in FOLDED[:1]), *((t, False) for t in CUT)])
def test_a_busy_key_is_bounded_counted_and_told(written: str, is_folded: bool) -> None:
    count, time_ms = 60, 1_700_000_000_000
    own = [
        Event(at, "pay", time_ms + at, at, {"id": event_id(at), "key": "x", "size": 1, "way": 0, "shop": "s1",
              "amount": 100, "weight": float(at)})
        for at in range(count)
    ]  # fmt: skip
    program = program_over(written)
    counters, state, told = fed(program, batch_of(program.schema, {"x": own}))
    beyond = count - LIMIT
    assert counters["histories_folded" if is_folded else "histories_cut"] == beyond
    assert counters["histories_cut" if is_folded else "histories_folded"] == 0
    expected = (False, True) if is_folded else (True, False)
    assert {event: said for event, said in told.items() if any(said)} == {
        event_id(at): expected for at in range(LIMIT, count)
    }
    assert len(state.histories) <= 2 * LIMIT
    panes = [segment for segment in state.histories.segments if segment.panes]
    assert bool(panes) == is_folded
    assert sum(map(len, panes)) <= 3 * 6, "60 ms are six panes"


@given(st.lists(st.tuples(st.sampled_from([0, 1]), st.floats(width=64)), min_size=1, max_size=30), st.integers(0, 30))
@example([(0, 1.7e308), (0, 1.7e308), (0, -1.7e308)], 1)
def test_floats_of_a_pane_keep_their_sum_exactly(events: list[tuple[int, float]], cut: int) -> None:
    """However they are joined: numbers that are finite as a sum, others by what they are."""
    program = program_over("sum(pay.weight over 640 s) > 1")
    assert program.histories is not None
    (history,) = program.histories.histories
    parts = []
    for share in (events[:cut], events[cut:]):
        key, values = np.array([k for k, _ in share], np.int64), np.array([v for _, v in share], np.float64)
        rows = folded(history, key, 0 * key, values.view(np.int64), pa.array([], TEXT))
        parts.append(merged(history, rows, -(2**40)))
    rows = merged(history, concat_panes(parts), -(2**40))
    for number in (0, 1):
        own = rows.take(rows.key == number)
        shown = [value for k, value in events if k == number]
        assert int(own.weight.sum()) == len(shown)
        kept = own.code.view(np.float64).tolist()
        finite = [sum((Fraction(v) for v in numbers if math.isfinite(v)), Fraction(0)) for numbers in (kept, shown)]
        assert finite[0] == finite[1]
        assert len(kept) <= len(shown) + 2
        assert {str(v) for v in kept if not math.isfinite(v)} == {str(v) for v in shown if not math.isfinite(v)}


def test_a_window_that_is_small_again_is_exact_again() -> None:
    time_ms = 1_700_000_000_000
    times = [*range(40), 2_000, 2_001, 2_300]
    own = [
        Event(at, "pay", time_ms + ms, at, {"id": event_id(at), "key": "x", "size": 1, "way": 0})
        for at, ms in enumerate(times)
    ]
    program = program_over(FOLDED[0])
    (expr,) = asked_of(program, FOLDED[:1])
    batch = batch_of(program.schema, {"x": own})
    found = [values[0] for values in engine_values(program, one_by_one(batch), [expr]).values()]
    assert found == [*range(1, 41), 1, 2, 3]


def test_definitions_name_all_that_can_be_folded() -> None:
    program = program_over(*FOLDED, *CUT)
    plan = program.histories
    assert plan is not None
    assert [history.is_foldable for history in plan.histories] == [True] * len(FOLDED) + [False] * len(CUT)
