"""A key with more values of a sub-key in a window than the limit: the values with the oldest last events are forgotten.

The definition: in a window with more events than the limit an event counts for its value unless, between two events of
the value or after its last event, as many other values had their last event later. The value then starts again with its
next event. At the same time, values with greater numbers (sub_keys.py) count as later.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from cep.base.limits import HISTORY_EVENTS_MAX, HISTORY_VALUES_MAX
from cep.columnar.batch import TEXT, EventBatch
from cep.engine.advance import advance
from cep.engine.alerts import alert_table
from cep.engine.keyed_state import KeyedState
from cep.histories.sub_keys import sub_key_numbers
from cep.lang.ir import History
from cep.lang.walk import histories
from cep.nfa.program import Program
from tests.engine.bridge import batch_of, event_id, split, state_after, through_bytes, whole
from tests.histories.test_folds import LIMIT, asked_of, defined, moved_by_keys, one_by_one, split_evenly
from tests.histories.test_reach import payment, program_over
from tests.histories.test_values import differences, engine_values
from tests.oracle.expressions import Value, evaluate, in_panes
from tests.oracle.matcher import Event
from tests.seeds import LATER, RELEASE, seeds

VALUES = 7
_NEVER = -(2**61)
WRITTEN = [
    "count(pay over 700 ms by shop) > 1",
    "count(pay.amount over previous 900 ms by shop where way == card) > 1",
    "sum(pay.amount over 700 ms by (shop, way)) > 1",
    "avg(pay.weight over previous 900 ms by shop) > 1",
    "stddev(pay.size over 900 ms by shop) > 1",
    "stddev(pay.weight over 800 ms by shop) > 1",
    "min(pay.size over 700 ms by shop where way == card) > 1",
    "max(pay.weight over previous 700 ms by size) > 1",
    "distinct(pay.way over 700 ms by shop) > 1",
    "percentile(pay.amount over 900 ms by shop, 30) > 1",
    "first(pay over 1 s by shop).weight > 1",
    "first(pay over previous 900 ms by shop where way == card).amount > 1",
    "first(pay over previous hour by shop).amount > 1",
    "count(pay over hour by shop) > 1",
    'median(pay.amount over day in "Asia/Kolkata" by size) > 1',
]


@dataclass
class OfValue:
    """A known value: place and time of its last event, its first counted event, the end of a possible gap before."""

    last: tuple[int, int]
    since: int
    lacks_ms: int


def numbers_of(expr: History, past: Sequence[Event]) -> list[int | None]:
    """Return the number of each event's value of the sub-key, or None for an event without a value."""
    types = {"shop": TEXT, "size": pa.int64(), "way": pa.int64()}
    columns = [pa.array([e.fields.get(name) for e in past], types[name]) for name in expr.by]
    nulls = [any(e.fields.get(name) is None for name in expr.by) for e in past]
    numbers = sub_key_numbers(columns).tolist()
    return [None if is_null else number for number, is_null in zip(numbers, nulls, strict=True)]


def counts(expr: History, event: Event) -> bool:
    if event.type != expr.event_type or (expr.where is not None and evaluate(expr.where, event.fields, {}) is not True):
        return False
    argument = None if expr.fn == "first" else expr.argument
    return argument is None or evaluate(argument, event.fields, {}) is not None


def known_at(expr: History, past: Sequence[Event]) -> Iterator[tuple[int, int]]:
    """For each event, yield the first event that its value knows, and the time up to which events may be missing."""
    known_values: dict[int, OfValue] = {}
    for index, (event, number) in enumerate(zip(past, numbers_of(expr, past), strict=True)):
        if number is None:
            yield 0, _NEVER
            continue
        latest = sorted((value.last for value in known_values.values()), reverse=True)
        known_value = known_values.get(number)
        lacks_ms = latest[VALUES - 1][0] if len(latest) >= VALUES else _NEVER
        is_known = known_value is not None and sum(last > known_value.last for last in latest) < VALUES
        range_of_value = (
            (known_value.since, known_value.lacks_ms) if known_value is not None and is_known else (index, lacks_ms)
        )
        if counts(expr, event):
            known_values[number] = OfValue((event.time_ms, number), *range_of_value)
        yield range_of_value


def expected(expr: History, events: Sequence[Event]) -> Iterator[tuple[Value, bool, bool]]:
    """Yield the value at each event, whether older events are folded, and whether some may be forgotten."""
    for index, (since, lacks_ms) in enumerate(known_at(expr, events)):
        past = events[: index + 1]
        value, is_folded = defined(expr, past)
        if is_folded:
            may_lack = in_panes(expr.window, replace(past[-1], time_ms=lacks_ms), past[-1])
            yield defined(expr, past, since)[0], True, lacks_ms > _NEVER and may_lack
        else:
            yield value, False, False


def events_of(random: Random, count: int, shops: int = 30) -> dict[str, list[Event]]:
    """Return events: some shops come often, most seldom."""
    events: dict[str, list[Event]] = {"x": [], "y": []}
    time_ms = 1_700_000_000_000
    for order in range(count):
        time_ms += random.choice((0, 0, 1, 3, 9, 60))
        number = random.choice((random.randrange(3), random.randrange(shops)))
        key = random.choice("xxxy")
        fields: dict[str, Value] = {
            "id": event_id(order),
            "event_time": time_ms,
            "key": key,
            "way": random.randrange(2),
        }
        fields |= {"shop": random.choice((None, *[f"s{number}"] * 9)), "size": number}
        fields["amount"] = random.choice((None, random.randint(-900, 900)))
        fields["weight"] = random.choice((None, 0.1, -2.7, 1e16, -1e16, 3e-300))
        events[key].append(Event(order, "pay", time_ms, order, fields))
    return events


@pytest.fixture(params=[3, 7])
def most(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the number of known values: less than the number of events that stay single, or more."""
    monkeypatch.setattr("cep.nfa.histories.HISTORY_EVENTS_MAX", LIMIT)
    monkeypatch.setattr("cep.histories.sub_keys.HISTORY_VALUES_MAX", request.param)
    monkeypatch.setattr(f"{__name__}.VALUES", request.param)


@pytest.mark.usefixtures("most")
@pytest.mark.parametrize("seed", seeds(2))
def test_values_are_those_of_the_definition_however_events_come(seed: int) -> None:
    random = Random(seed)
    events = events_of(random, 90)
    program = program_over(*WRITTEN)
    exprs, batch = asked_of(program, WRITTEN), batch_of(program.schema, events)
    defined_as = {
        event_id(e.order): list(of_event)
        for key_events in events.values()
        for e, *of_event in zip(key_events, *(expected(expr, key_events) for expr in exprs), strict=True)
    }
    assert sum(cut for key_events in defined_as.values() for _, _, cut in key_events) > 5 * len(WRITTEN)
    for deliveries in (whole(batch), one_by_one(batch), split_evenly(batch, random), split(batch, random)):
        values = {event: [value for value, _, _ in of_event] for event, of_event in defined_as.items()}
        assert differences(engine_values(program, deliveries, exprs), values, WRITTEN) == []


@pytest.mark.parametrize("most", [pytest.param(3, marks=pytest.mark.always), 7], indirect=True)
@pytest.mark.usefixtures("most")
@pytest.mark.slow
def test_what_may_be_forgotten_is_told_and_counted_and_the_panes_are_bounded() -> None:
    random = Random(5)
    events = {"x": events_of(random, 300, shops=120)["x"]}
    key_events = events["x"]
    program = program_over(*(f"{text} or size >= 0" for text in WRITTEN))
    of_rules = [(rule.deployed.rule_id, next(histories(rule.deployed.pattern))) for rule in program.rules]
    cut_alerts = {
        (rule, event_id(e.order)): of_event[1:]
        for rule, expr in of_rules
        for e, of_event in zip(key_events, expected(expr, key_events), strict=True)
    }
    batch = batch_of(program.schema, events)
    for deliveries in (whole(batch), split_evenly(batch, random)):
        counters: Counter[str] = Counter()
        cuts_by_alert: dict[tuple[str, str], tuple[bool, bool]] = {}
        state: KeyedState | None = None
        for part, watermark_ms in deliveries:
            advanced = advance(program, state, part, watermark_ms)
            counters.update(advanced.counters)
            cuts_by_alert |= {
                (alert["rule_id"], alert["events"][0]["event_id"]): (alert["history_folded"], alert["history_cut"])
                for alert in alert_table(program, advanced.matches).to_pylist()
            }
            state = through_bytes(program, advanced.keyed_state, watermark_ms)
        assert cuts_by_alert == cut_alerts
        of_histories = {repr(expr): rule for rule, expr in of_rules}.values()
        assert counters["histories_cut"] == sum(
            cut for (rule, _), (_, cut) in cut_alerts.items() if rule in of_histories
        )
    assert state is not None
    values = len({e.fields["shop"] for e in key_events})
    assert values > 8 * VALUES
    assert program.histories is not None
    for number in program.histories.retained_panes:
        panes = [segment.load().rows for segment in state.histories.segments if segment.panes_number == number]
        assert len({sub for rows in panes for sub in rows.columns["pane_sub"].to_pylist()}) <= VALUES


@pytest.mark.usefixtures("most")
@pytest.mark.parametrize(
    ("most", "seed"), [pytest.param(3, 0, marks=LATER), pytest.param(7, 0, marks=RELEASE)], indirect=["most"]
)
def test_what_is_known_moves_with_its_keys(seed: int) -> None:
    random = Random(seed)
    program = program_over(*WRITTEN)
    exprs, batch = asked_of(program, WRITTEN), batch_of(program.schema, events_of(random, 90))
    cut = random.randrange(40, 70)
    first, rest = one_by_one(batch)[:cut], one_by_one(batch)[cut:]
    everything = engine_values(program, whole(batch), exprs)
    values_by_event = engine_values(program, rest, exprs, moved_by_keys(state_after(program, first), program))
    assert values_by_event == {event: everything[event] for event in values_by_event}


def test_panes_of_an_earlier_build_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The earlier build wrote panes of all values and did not write known sub-keys."""
    monkeypatch.setattr("cep.nfa.histories.HISTORY_EVENTS_MAX", LIMIT)
    program = program_over("count(pay over 1 h by shop) > 1")
    exprs = asked_of(program, ["count(pay over 1 h by shop) > 1"])
    batch = batch_of(program.schema, {"x": events_of(Random(2), 90, shops=6)["x"]})
    first, rest = one_by_one(batch)[:30], one_by_one(batch)[30:]
    state = state_after(program, first)
    assert program.histories is not None
    without = [s for s in state.histories.segments if s.panes_number not in program.histories.by_known_sub_keys]
    assert 0 < len(without) < len(state.histories.segments)
    before = replace(state, histories=replace(state.histories, segments=tuple(without)))
    everything = engine_values(program, whole(batch), exprs)
    values_by_event = engine_values(program, rest, exprs, before)
    assert values_by_event == {event: everything[event] for event in values_by_event}


def test_a_value_that_is_in_panes_alone_is_found_by_an_event_that_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cep.nfa.histories.HISTORY_EVENTS_MAX", LIMIT)
    written = ["count(pay over 1 h by shop where way == card) > 1"]
    program = program_over(*written)
    time_ms = 1_700_000_000_000
    key_events = [payment(index, time_ms + index, "x", shop=f"s{index // 20}") for index in range(40)]
    key_events.append(payment(40, time_ms + 40, "x", way=1, shop="s0"))
    batch, exprs = batch_of(program.schema, {"x": key_events}), asked_of(program, written)
    for deliveries in (whole(batch), one_by_one(batch)):
        assert engine_values(program, deliveries, exprs)[event_id(40)] == [20]


@pytest.mark.slow
def test_a_key_with_hundreds_of_thousands_of_values_stays_bounded() -> None:
    """With the real limits: bytes of state after all values came once and are in the window."""
    program = program_over("count(pay over 90 d by shop) > 1", "sum(pay.amount over 90 d by shop) > 1")
    count, size = 450_000, 50_000
    sizes, state = [], None
    for start in range(0, count, size):
        batch = many_shops(program, start, start + size)
        watermark_ms = int(batch.time_ms[-1])
        advanced = advance(program, state, batch, watermark_ms)
        state = through_bytes(program, advanced.keyed_state, watermark_ms)
        sizes.append(sum(s.stored.size for s in state.histories.segments if s.stored))
        assert len(state.histories) <= HISTORY_EVENTS_MAX + HISTORY_EVENTS_MAX // 4 + size
    assert advanced.counters["histories_cut"] == 2 * size
    assert state is not None
    assert program.histories is not None
    for number in program.histories.retained_panes:
        assert sum(len(s) for s in state.histories.segments if s.panes_number == number) <= 3 * HISTORY_VALUES_MAX
    assert sizes[-1] <= 1.3 * max(sizes[3:5]), "what came in the last half takes no more"


def many_shops(program: Program, start: int, end: int) -> EventBatch:
    """Return events of one key, each of another shop."""
    count = end - start
    ids = pa.array([f"{index:08}" for index in range(start, end)], TEXT)
    batch = batch_of(program.schema, {"x": [Event(0, "pay", 0, 0, {"id": "0", "key": "x", "size": 1, "way": 0})]})
    columns = {name: batch.columns[name].take(pa.array(np.zeros(count, np.int64))) for name in batch.columns}
    columns |= {"id": ids, "shop": ids, "amount": pa.array(np.arange(start, end))}
    times = 1_700_000_000_000 + np.arange(start, end) * 10_000
    return EventBatch(pa.repeat(pa.scalar("x", TEXT), count), ids, np.zeros(count, np.int16), times, columns)
