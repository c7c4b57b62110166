"""Functions of one event and rounding: the engine's columns agree with Python, one value at a time."""

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from random import Random

import numpy as np
import pytest

from cep.base.limits import EVENT_TIME_MS_MAX, EVENT_TIME_MS_MIN
from cep.base.schema import Schema
from cep.functions.calendar import pane_starts, unit_starts
from cep.lang.ir import Binary, CalendarUnit, Cast, Expr, PatternIR
from cep.lang.load import load_text
from tests.engine.bridge import batch_of, engine_answers, event_id, program_of, split, whole
from tests.lang.common import bound_pattern
from tests.oracle.expressions import Value, evaluate
from tests.oracle.matcher import Event

EVENTS = """
event e {
  id          id
  event_time  time
  key         string
  s           string?
  ip          string?
  d           decimal(2)?
  fine        decimal(9)?
  f           float?
}
"""
SCHEMA: Schema = load_text(EVENTS).schema
WORDS = ("", "a", "Ab", "aB", "ABC", "abc%", "b", "Straße", "STRASSE", "ÉTÉ", "été", "é", "İx", "日本語", "a\nb", "😀b")
ADDRESSES = ("10.0.0.1", "10.255.0.9", "11.0.0.1", "10.0.0", "", "2001:db8::1", "2001:db9::1", "::ffff:10.0.0.1", "x")
HALVES = (0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.49999999999999994, 2.0**52 + 1, -(2.0**53), 0.25, -0.75, 1e300)
ZONES = (
    "UTC", "Europe/Paris", "America/New_York", "America/Sao_Paulo", "America/Havana", "Australia/Lord_Howe",
    "Asia/Kathmandu", "Pacific/Apia", "Africa/Monrovia", "America/Asuncion", "Pacific/Kiritimati",
)  # fmt: skip
END_MS = 2**61
INT64_MAX = 2**63 - 1


def pattern(body: str) -> PatternIR:
    return bound_pattern(f"{EVENTS}\npattern p by key {{ {body}\nskip none }}")[0]


def random_events(random: Random, count: int, times: Callable[[], int] | None = None) -> list[Event]:
    """Return events of one key with every kind of null."""
    events = []
    time_ms = sorted(times() if times is not None else random.randint(0, 10**6) for _ in range(count))
    for order in range(count):
        fields: dict[str, Value] = {
            "s": random.choice((None, *WORDS)),
            "ip": random.choice((None, *ADDRESSES)),
            "d": random.choice((None, random.randint(-300, 300), INT64_MAX, -INT64_MAX, -INT64_MAX - 1)),
            "fine": random.choice((None, random.randint(-3, 3) * 5 * 10**8, random.randint(-(10**12), 10**12))),
            "f": random.choice((None, *HALVES, random.uniform(-9, 9), random.uniform(-1e18, 1e18))),
        }
        values = {"id": event_id(order), "event_time": time_ms[order], "key": "x", **fields}
        events.append(Event(order, "e", time_ms[order], order, values))
    return events


def condition_of(subject: PatternIR) -> Expr:
    where = subject.variable("a").where
    assert where is not None
    return where


def taken_by_a(subject: PatternIR, events: list[Event]) -> set[str]:
    answers = engine_answers(program_of(SCHEMA, subject), whole(batch_of(SCHEMA, {"x": events})))
    return {ids[0] for _, ((_, ids),), _, _ in answers.matches}


def measured(expr: str, events: list[Event], random: Random | None = None) -> list[Value]:
    """Return the measure of each event, in order."""
    batch = batch_of(SCHEMA, {"x": events})
    deliveries = whole(batch) if random is None else split(batch, random)
    answers = engine_answers(program_of(SCHEMA, pattern(f"seq a where a: e emit m = {expr}")), deliveries)
    by_event = {ids[0]: values[0][1] for _, ((_, ids),), _, values in answers.matches}
    return [by_event[event_id(e.order)] for e in events]


@pytest.mark.parametrize(
    ("condition", "plain"),
    [
        ('lower(s) == "ab"', lambda s: s.lower() == "ab"),
        ('lower(s) != "i̇x"', lambda s: s.lower() != "i̇x"),
        ('upper(s) == "STRASSE"', lambda s: s.upper() == "STRASSE"),
        ('lower(s) in ["été", "b", "nothing"]', lambda s: s.lower() in ("été", "b")),
        ('lower(s) not in ["été", "b"]', lambda s: s.lower() not in ("été", "b")),
        ('lower(upper(s)) == "strasse"', lambda s: s.upper().lower() == "strasse"),
        ("lower(s) == upper(s)", lambda s: s.lower() == s.upper()),
        ("lower(s) == s", lambda s: s.lower() == s),
        ("substring(s, 2) == substring(s, 2, 1)", lambda s: s[1:] == s[1:2]),
        ('substring(s, 1, 1) == "é"', lambda s: s[:1] == "é"),
        ('substring(s, 9) == ""', lambda s: not s[8:]),
        ('substring(s, 9, 9223372036854775807) == ""', lambda s: not s[8:]),
        ('upper(substring(lower(s), 1, 2)) == "AB"', lambda s: s.lower()[:2].upper() == "AB"),
        ("length(s) between 2 and 3", lambda s: 2 <= len(s) <= 3),
        ("length(upper(s)) > 6", lambda s: len(s.upper()) > 6),
        ("length(s) + length(upper(s)) == 13", lambda s: len(s) + len(s.upper()) == 13),
        ('starts_with(s, "a")', lambda s: s.startswith("a")),
        ('starts_with(s, "")', lambda s: s is not None),
        ('not ends_with(s, "b")', lambda s: not s.endswith("b")),
        ('contains(upper(s), "B")', lambda s: "B" in s.upper()),
        ('s like "a_"', lambda s: len(s) == 2 and s[0] == "a"),
        ('lower(s) like "%b%"', lambda s: "b" in s.lower()),
        ('s matches "^[aA].?[bB]"', lambda s: s[:1] in tuple("aA") and ("b" in s[1:3].lower()) and s != "a\nb"),
        ('s matches "(?i)ab"', lambda s: "ab" in s.lower()),
        ('s matches "é$" or s matches "^.$"', lambda s: s.endswith("é") or len(s) == 1),
        ('if lower(s) == "ab" then false else length(s) == 2', lambda s: s.lower() != "ab" and len(s) == 2),
    ],
)
def test_functions_of_text(condition: str, plain: Callable[[str], bool]) -> None:
    events = random_events(Random(condition), 200)
    subject = pattern(f"seq a where a: e {condition}")
    expected = {event_id(e.order) for e in events if e.fields["s"] is not None and plain(str(e.fields["s"]))}
    assert 0 < len(expected) < len(events)
    assert {event_id(e.order) for e in events if evaluate(condition_of(subject), e.fields, {}) is True} == expected
    assert taken_by_a(subject, events) == expected


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ('in_cidr(ip, "10.0.0.0/8")', {"10.0.0.1", "10.255.0.9"}),
        ('not in_cidr(ip, "10.0.0.0/8")', {"11.0.0.1", "2001:db8::1", "2001:db9::1", "::ffff:10.0.0.1"}),
        ('in_cidr(ip, "2001:db8::/32")', {"2001:db8::1"}),
        ('in_cidr(ip, "2001:db8::/32") is null', {None, "", "x", "10.0.0"}),
        ('in_cidr(substring(ip, 1, 8), "11.0.0.1/32")', {"11.0.0.1"}),
        ("lower(ip) is null", {None}),
    ],
)
def test_addresses_and_null(condition: str, expected: set[str | None]) -> None:
    events = random_events(Random(condition), 200)
    matched = taken_by_a(pattern(f"seq a where a: e {condition}"), events)
    assert {e.fields["ip"] for e in events if event_id(e.order) in matched} == expected
    assert len(matched) == sum(e.fields["ip"] in expected for e in events)


def test_a_batch_without_any_text() -> None:
    events = [replace(e, fields={**e.fields, "s": None}) for e in random_events(Random(1), 5)]
    assert taken_by_a(pattern('seq a where a: e lower(s) == "a" or length(s) > 1 or contains(s, "a")'), events) == set()
    assert len(taken_by_a(pattern('seq a where a: e (lower(s) == "a") is null and length(s) is null'), events)) == 5


def test_a_text_that_is_made_is_compared_with_bound_events() -> None:
    """The condition is `lower(s) == a.s`, over several calls, with the keyed state between them."""
    random = Random(4)
    events = random_events(random, 60)
    subject = pattern("seq a ->> b where a: e s is not null\n b: e lower(s) == a.s emit n = count(b), m = a.s")
    batch = batch_of(SCHEMA, {"x": events})
    for deliveries in (whole(batch), split(batch, random), split(batch, random)):
        answers = engine_answers(program_of(SCHEMA, subject), deliveries)
        pairs = {(ids_a[0], ids_b[0]) for _, ((_, ids_a), (_, ids_b)), _, _ in answers.matches}
        assert pairs == {
            (event_id(one.order), event_id(two.order))
            for one in events
            for two in events
            if one.order < two.order and one.fields["s"] is not None
            if two.fields["s"] is not None and str(two.fields["s"]).lower() == one.fields["s"]
        }


def test_functions_of_text_in_aggregates() -> None:
    random = Random(5)
    events = random_events(random, 80)
    texts = [e.fields["s"] for e in events]
    lengths = [None if s is None else len(str(s)) for s in texts]
    assert measured("max(length(a.s))", events) == lengths
    assert measured("sum(length(upper(a.s)))", events, random) == [
        0 if s is None else len(str(s).upper()) for s in texts
    ]
    assert measured("count(lower(a.s))", events) == [int(s is not None) for s in texts]


# -------------------------------------------------------------------------------------------------------- time


@pytest.mark.parametrize("zone", ZONES)
def test_functions_of_time(zone: str) -> None:
    random = Random(zone)

    def any_time() -> int:
        return random.choice(
            (
                random.randint(EVENT_TIME_MS_MIN + 86_400_000, EVENT_TIME_MS_MAX),
                random.randint(-(10**12), 4 * 10**12),
                random.randint(0, 70_000) * 1_800_000 + random.choice((-1, 0, 1)),
                1_320_555_600_000 + random.randint(-(10**8), 10**8),  # November 2011
            )
        )

    events = random_events(random, 400, any_time)
    for fn in ("hour", "weekday", "date"):
        call = f'{fn}(event_time, "{zone}")'
        comparison = condition_of(pattern(f"seq a where a: e {call} == {'event_time' if fn == 'date' else '1'}"))
        assert isinstance(comparison, Binary)
        expected = [evaluate(comparison.left, e.fields, {}) for e in events]
        assert measured(f'max({fn}(a.event_time, "{zone}"))', events) == expected
        condition = pattern(f"seq a where a: e {call} < {'event_time - 6 h' if fn == 'date' else '5'}")
        passing = {event_id(e.order) for e in events if evaluate(condition_of(condition), e.fields, {}) is True}
        assert taken_by_a(condition, events) == passing


@pytest.mark.parametrize("time_ms", [EVENT_TIME_MS_MIN, EVENT_TIME_MS_MAX])
@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_the_ends_of_the_calendar(time_ms: int, zone: str) -> None:
    (event,) = random_events(Random(0), 1, lambda: time_ms)
    (hour,), (day,) = (measured(f'max({fn}(a.event_time, "{zone}"))', [event]) for fn in ("hour", "date"))
    assert isinstance(hour, int)
    assert isinstance(day, int)
    assert 0 <= hour < 24
    assert 0 <= time_ms - day < 86_400_000


# ---------------------------------------------------------------------------------------------------- rounding


@pytest.mark.parametrize(
    "call",
    ["round({}d)", "round({}d, 1)", "floor({}d)", "ceil({}d)", "round({}fine)", "round({}fine, 8)", "floor({}fine)",
     "round({}d - 0.01)", "floor({}f)", "ceil({}f)", "round({}f)", "round({}f, 2)"],
)  # fmt: skip
def test_rounding(call: str) -> None:
    random = Random(call)
    events = random_events(random, 300)
    results = measured(call.format("a."), events)
    where = pattern(f"seq a where a: e {call.format('')} == 0")
    equation = condition_of(where)
    assert isinstance(equation, Binary)
    rounded = equation.left.argument if isinstance(equation.left, Cast) else equation.left
    for event, value in zip(events, results, strict=True):
        expected = evaluate(rounded, event.fields, {})
        if isinstance(value, float) and isinstance(expected, float) and "2" in call:
            assert math.isclose(value, expected, rel_tol=1e-15, abs_tol=0.0100001 if near_half(event) else 1e-15)
        else:
            assert value == expected, (call, event.fields)
    zeros = {event_id(e.order) for e, value in zip(events, results, strict=True) if value == 0}
    assert taken_by_a(where, events) == zeros


def near_half(event: Event) -> bool:
    """Return True if scaling by hundreds may have rounded onto a half."""
    value = event.fields["f"]
    assert isinstance(value, float)
    return abs(abs(value * 100) % 1 - 0.5) < 1e-9


def test_of_one_field_many_columns() -> None:
    """The same text functions in many rules are computed once."""
    rules = [pattern(f'seq a where a: e lower(s) == "w{i}" and hour(event_time, "UTC") == {i}') for i in range(20)]
    names = [c.name for c in program_of(SCHEMA, *rules).columns if c.computed]
    assert len(names) == 2


def test_beside_a_look_up() -> None:
    """Many rules each look for one text, so the other conditions are checked only for the events with that text."""
    events = random_events(Random(7), 300)
    rules = [pattern(f'seq a where a: e s == "{w}" and length(s) == {len(w)} and round(f) > 0.0') for w in "bé"]
    others = [pattern(f'seq a where a: e s == "w{i}" and lower(s) == "w{i}"') for i in range(20)]
    for subject in rules:
        program = program_of(SCHEMA, subject, *others)
        assert len(program.predicates.groups) == 1
        answers = engine_answers(program, whole(batch_of(SCHEMA, {"x": events})))
        expected = {event_id(e.order) for e in events if evaluate(condition_of(subject), e.fields, {}) is True}
        assert {ids[0] for _, ((_, ids),), _, _ in answers.matches} == expected
        assert expected


@pytest.mark.parametrize(
    ("unit", "zone", "time", "start"),
    [
        ("hour", "Australia/Lord_Howe", "2026-10-04T02:45+11:00", "2026-10-04T02:30+11:00"),
        ("day", "America/Toronto", "1919-03-31T00:45-04:00", "1919-03-31T00:30-04:00"),  # 23:30 is followed by 00:30
    ],
)
def test_a_unit_whose_start_is_skipped_begins_when_the_clock_changes(
    unit: CalendarUnit, zone: str, time: str, start: str
) -> None:
    time_ms, start_ms = (int(datetime.fromisoformat(text).timestamp() * 1000) for text in (time, start))
    assert unit_starts(unit, zone, np.array([time_ms, start_ms])).tolist() == [start_ms, start_ms]


@pytest.mark.parametrize("unit", ["hour", "day", "week", "month"])
@pytest.mark.parametrize(
    ("zone", "near"),
    [
        ("Europe/Paris", "2024-10-27T01:00Z"),
        ("Australia/Lord_Howe", "2024-04-06T15:00Z"),
        ("America/St_Johns", "2010-11-07T02:31Z"),  # a minute after midnight the clock goes back to before midnight
        ("America/Havana", "2024-11-03T05:00Z"),
        ("Australia/Lord_Howe", "2026-10-03T15:30Z"),
        ("America/Toronto", "1919-03-31T04:30Z"),
        ("Asia/Kathmandu", "2024-01-01T00:00Z"),
    ],
)
def test_a_unit_has_whole_panes(unit: CalendarUnit, zone: str, near: str) -> None:
    """For every two moments: the unit of the later one includes the earlier one, or the earlier pane ends first."""
    middle_ms = int(datetime.fromisoformat(near).timestamp() * 1000)
    times = middle_ms + np.arange(-400, 400, dtype=np.int64) * 17 * 60_000 // 5
    opens, panes = unit_starts(unit, zone, times), pane_starts(unit, zone, times)
    assert (panes <= times).all()
    for row in range(len(times)):
        assert np.array_equal(times[: row + 1] >= opens[row], panes[: row + 1] >= opens[row])
