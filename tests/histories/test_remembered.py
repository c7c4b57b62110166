"""A key with more values of a sub-key than it knows, in a replay and in any micro-batches.

`last` and `exists` forget the values that came longest ago, `first` and `first_seen` do not remember new ones. The
definition is `Reference`: a dictionary of so many values, in the order in which they came.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest

from cep.columnar.batch import EventBatch
from cep.engine.advance import advance
from cep.engine.alerts import alert_table
from cep.engine.keyed_state import KeyedState
from cep.lang.ir import History
from cep.lang.walk import histories
from cep.nfa.program import Program
from tests.engine.bridge import Delivery, batch_of, event_id, split, state_after, through_bytes, whole
from tests.histories.test_folds import asked_of, moved_by_keys, one_by_one, split_evenly
from tests.histories.test_reach import program_over
from tests.histories.test_values import differences, engine_values
from tests.oracle.expressions import Value, evaluate, in_window
from tests.oracle.matcher import Event
from tests.seeds import seeds

VALUES, LIMIT = 4, 12
WRITTEN = [
    "last(pay by shop).size > 1",
    "last(pay by (shop, way) where size > 5).amount > 1",
    "last(pay over previous 300 ms by shop).size > 1",
    "last(pay over 300 ms by size where way == card).amount > 1",
    "last(login by shop).ok",
    'last(pay over previous hour in "Asia/Kolkata" by shop).weight > 1',
    "exists(pay by size)",
    "exists(pay over previous 200 ms by shop)",
    "exists(pay over 200 ms by shop where way == card)",
    "exists(login over 2 s by shop)",
    "first(pay by shop).size > 1",
    "first(pay by (way, size)).amount > 1",
    "first(login by shop).ok",
    "first(pay by size where way == card).amount > 1",
    "first_seen(shop) < 5 ms",
    "first_seen(size) < 5 ms",
]
# These pin other events, or keep them in segments and panes. Known values must not be derived from them.
LISTS_FOLDER = [
    "max(pay.size over 700 ms by shop) > 1",
    "distinct(pay.shop over 900 ms) > 1",
    "count(pay over 1 s by shop) > 1",
    'last(pay).shop == "s1"',
]


@dataclass
class Reference:
    """The values of a sub-key that one key knows.

    `known` maps a value to its last event, the oldest first, or to its first event.
    """

    expr: History
    known: dict[tuple[Value, ...], Event] = field(default_factory=dict)

    def take(self, event: Event) -> tuple[Value, bool, bool]:
        """Return the value at the event, whether events may be forgotten, and whether a value is dropped for it."""
        expr = self.expr
        by = tuple(event.fields.get(name) for name in expr.by)
        if None in by:
            return (False if expr.fn == "exists" else None), False, False
        last_event = self.known.get(by)
        is_full = len(self.known) == VALUES
        may_lack = last_event is None and is_full and self._holds(next(iter(self.known.values())), event)
        is_member = self._counts(event)
        if is_member and expr.fn in ("first", "first_seen"):
            if not is_full:
                self.known.setdefault(by, event)
        elif is_member:
            self.known.pop(by, None)
            if len(self.known) == VALUES:
                del self.known[next(iter(self.known))]
            self.known[by] = event
        if expr.fn == "first_seen":
            return event.time_ms - (last_event or event).time_ms, may_lack, may_lack
        if is_member and expr.window is not None and not expr.window.previous:
            last_event = event
        last_event = last_event if last_event is not None and self._holds(last_event, event) else None
        cut = may_lack and last_event is not event
        if expr.fn == "exists":
            return last_event is not None, cut, may_lack and is_member
        assert expr.argument is not None
        return (evaluate(expr.argument, last_event.fields, {}) if last_event else None), cut, may_lack and is_member

    def _holds(self, past: Event, now: Event) -> bool:
        return self.expr.window is None or in_window(self.expr.window, past, now)

    def _counts(self, event: Event) -> bool:
        where = self.expr.where
        is_of_type = self.expr.event_type in ("", event.type)
        return is_of_type and (where is None or evaluate(where, event.fields, {}) is True)


Told = dict[str, list[tuple[Value, bool, bool]]]


def referred(functions: Sequence[History], events: dict[str, list[Event]]) -> Told:
    """Return by event id the answer of the reference for each history."""
    answers: Told = {}
    for key_events in events.values():
        references = [Reference(expr) for expr in functions]
        for event in key_events:
            answers[event_id(event.order)] = [reference.take(event) for reference in references]
    return answers


def values_of(answers: Told) -> dict[str, list[Value]]:
    return {event: [value for value, _, _ in of_event] for event, of_event in answers.items()}


def events_of(random: Random, count: int, shops: int = 40) -> dict[str, list[Event]]:
    """Return events: most shops come seldom, so that some return after they were forgotten. Some events have none."""
    events: dict[str, list[Event]] = {"x": [], "y": []}
    time_ms = 1_700_000_000_000
    for order in range(count):
        time_ms += random.choice((0, 0, 1, 3, 9, 60))
        number = random.choice((random.randrange(3), random.randrange(shops)))
        key, kind = random.choice("xxxy"), random.choice(("pay", "pay", "pay", "login"))
        fields: dict[str, Value] = {"id": event_id(order), "event_time": time_ms, "key": key}
        fields["shop"] = random.choice((None, *[f"s{number}"] * 9))
        if kind == "login":
            fields["ok"] = random.random() < 0.5
        else:
            fields |= {"way": random.randrange(2), "size": number}
            fields["amount"] = random.choice((None, random.randint(-900, 900)))
            fields["weight"] = random.choice((None, 0.1, -2.7, 1e16))
        events[key].append(Event(order, kind, time_ms, order, fields))
    return events


@pytest.fixture(params=[4, 9], autouse=True)
def _few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.nfa.histories.HISTORY_EVENTS_MAX", LIMIT)
    for module in ("sub_keys", "retained"):
        monkeypatch.setattr(f"cep.histories.{module}.HISTORY_VALUES_MAX", request.param)
    monkeypatch.setattr(f"{__name__}.VALUES", request.param)


def deliveries_of(batch: EventBatch, random: Random) -> list[list[Delivery]]:
    return [whole(batch), one_by_one(batch), split_evenly(batch, random), split(batch, random), split(batch, random)]


@pytest.mark.parametrize("seed", seeds(6))
def test_values_are_those_of_the_reference_however_events_come(seed: int) -> None:
    random = Random(seed)
    events = events_of(random, 110)
    program = program_over(*WRITTEN, *LISTS_FOLDER)
    exprs, batch = asked_of(program, [*WRITTEN, *LISTS_FOLDER])[: len(WRITTEN)], batch_of(program.schema, events)
    expected = referred(exprs, events)
    assert sum(cut for answers in expected.values() for _, cut, _ in answers) > 5 * len(WRITTEN)
    for deliveries in deliveries_of(batch, random):
        values_by_event = engine_values(program, deliveries, exprs)
        assert differences(values_by_event, values_of(expected), WRITTEN) == []
        assert len(values_by_event) == 110


@pytest.mark.parametrize("seed", seeds(3))
def test_what_may_be_forgotten_is_told_and_counted_however_events_come(seed: int) -> None:
    random = Random(seed)
    events = events_of(random, 90)
    program = program_over(*(f"{text} or size >= 0" for text in WRITTEN))
    of_rules = [(rule.deployed.rule_id, next(histories(rule.deployed.pattern))) for rule in program.rules]
    expected, batch = referred([expr for _, expr in of_rules], events), batch_of(program.schema, events)
    cut_alerts = {
        (rule, event_id(event.order)): answer[1]
        for key_events in events.values()
        for event in key_events
        for (rule, _), answer in zip(of_rules, expected[event_id(event.order)], strict=True)
        if event.type == "pay"
    }
    cut = sum(cut for answers in expected.values() for _, cut, _ in answers)
    dropped = sum(dropped for answers in expected.values() for _, _, dropped in answers)
    assert cut > 100
    assert dropped > 100
    for deliveries in deliveries_of(batch, random):
        counters, cuts_by_alert = led_through(program, deliveries)
        assert cuts_by_alert == cut_alerts
        assert (counters["histories_cut"], counters["history_values_dropped"]) == (cut, dropped)


def led_through(program: Program, deliveries: Sequence[Delivery]) -> tuple[Counter[str], dict[tuple[str, str], bool]]:
    """Return the counters, and the `history_cut` of each alert by rule and event."""
    counters: Counter[str] = Counter()
    cuts_by_alert: dict[tuple[str, str], bool] = {}
    state: KeyedState | None = None
    for part, watermark_ms in deliveries:
        advanced = advance(program, state, part, watermark_ms)
        counters.update(advanced.counters)
        cuts_by_alert |= {
            (alert["rule_id"], alert["events"][0]["event_id"]): alert["history_cut"]
            for alert in alert_table(program, advanced.matches).to_pylist()
        }
        state = through_bytes(program, advanced.keyed_state, watermark_ms)
    return counters, cuts_by_alert


@pytest.mark.parametrize("seed", seeds(2))
def test_what_is_known_moves_with_its_keys(seed: int) -> None:
    random = Random(seed)
    events = events_of(random, 100)
    program = program_over(*WRITTEN, *LISTS_FOLDER)
    exprs, batch = asked_of(program, [*WRITTEN, *LISTS_FOLDER])[: len(WRITTEN)], batch_of(program.schema, events)
    cut = random.randrange(40, 80)
    first, rest = one_by_one(batch)[:cut], one_by_one(batch)[cut:]
    expected = values_of(referred(exprs, events))
    values_by_event = engine_values(program, rest, exprs, moved_by_keys(state_after(program, first), program))
    assert values_by_event == {event: expected[event] for event in values_by_event}
    assert len(values_by_event) == 100 - cut


@pytest.mark.parametrize("seed", seeds(4))
def test_a_rule_that_comes_later_knows_the_same_values_where_their_events_are_kept(seed: int) -> None:
    """The values of the earlier rules stay the same, for any histories that later rules read."""
    random = Random(seed)
    events = events_of(random, 110)
    before = ["last(pay by shop).size > 1", "first(pay by shop).size > 1", "last(pay).amount > 1"]
    later = ["last(pay by shop).amount > 1", "exists(pay by shop)", "first(pay by shop).amount > 1"]
    later += ["last(pay over previous 300 ms by shop).amount > 1"]
    early, late = program_over(*before), program_over(*before, *later, *LISTS_FOLDER)
    exprs = asked_of(late, [*before, *later, *LISTS_FOLDER])[: len(before) + len(later)]
    batch, expected = batch_of(early.schema, events), values_of(referred(exprs, events))
    deliveries = split_evenly(batch, random)
    cut = len(deliveries) // 2
    values_by_event = engine_values(late, deliveries[cut:], exprs, state_after(early, deliveries[:cut]))
    assert values_by_event == {event: expected[event] for event in values_by_event}


def test_what_is_kept_is_bounded() -> None:
    program = program_over("last(pay by shop).size > 1", "first(pay by shop).size > 1")
    events = {"x": events_of(Random(1), 200, shops=60)["x"]}
    state = state_after(program, split_evenly(batch_of(program.schema, events), Random(1)))
    assert VALUES < len(state.histories) <= 2 * VALUES
