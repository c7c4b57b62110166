"""Control records in any order, repeated, late, with restarts and any cut into micro-batches: the same rules result.

The alerts equal a plain reference that looks up the version of each event.
"""

import random
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cep.base.limits import TIME_MS_MAX
from cep.base.text import utc_text
from cep.model import rule as control
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from tests.rulebook.records import SCHEMA
from tests.rulebook.timeline import DOMAIN, Arrival, Payment, alerts_of, engine, reference, upsert

NEVER = 10**6  # so many rules share no start
IDS = ("a", "b")


def payments(*minors: int) -> st.SearchStrategy[list[Payment]]:
    """Return a few payments of such amounts, one after the other."""
    return st.lists(st.tuples(st.integers(1, 6), st.sampled_from(minors)), min_size=4, max_size=24).map(
        lambda steps: [
            Payment(1_000 + sum(gap for gap, _ in steps[: n + 1]), minor) for n, (_, minor) in enumerate(steps)
        ]
    )


EVENTS = payments(50, 50, 650, 900)
END_MS = 1_160  # after every event


@st.composite
def change(
    draw: st.DrawFn, rule_id: str, version: int, effective_ms: int | None, pattern: str = "pair"
) -> control.ControlRecord:
    """Return one version of a rule: mostly one that matches."""
    effective = None if effective_ms is None else utc_text(effective_ms)
    kind = draw(st.sampled_from(["live", "live", "live", "shadow", "draft", "retire", "rollback"]))
    on_update = draw(st.sampled_from(["drain", "restart", "carry"]))
    if kind == "retire":
        return control.RetireRecord(id=rule_id, version=version, effective_at=effective)
    large = draw(st.sampled_from([5, 8]))
    if kind == "rollback" and version > 1:
        earlier = upsert(rule_id, version - 1, None, large, pattern=pattern)
        fields = {"id": rule_id, "version": version, "to_version": version - 1, "rule": earlier.model_dump()}
        return control.RollbackRecord.model_validate({**fields, "effective_at": effective, "on_update": on_update})
    status = "live" if kind == "rollback" else kind
    return upsert(rule_id, version, effective, large, status=status, on_update=on_update, pattern=pattern)


@st.composite
def turn(draw: st.DrawFn, rule_id: str, version: int, effective_ms: int | None) -> control.ControlRecord:
    """Return a pause or a resumption."""
    effective = None if effective_ms is None else utc_text(effective_ms)
    if draw(st.booleans()):
        return control.PauseRecord(id=rule_id, version=version, effective_at=effective)
    return control.ResumeRecord(id=rule_id, version=version, effective_at=effective)


TIMES = st.one_of(st.none(), st.integers(1_000, END_MS))


@st.composite
def records(draw: st.DrawFn, pattern: str = "pair") -> list[control.ControlRecord]:
    """Return records of two rules in any order, with repetitions."""
    drawn: list[control.ControlRecord] = []
    for rule_id in IDS:
        versions = draw(st.lists(st.integers(1, 6), max_size=5))
        drawn += [draw(change(rule_id, version, draw(TIMES), pattern)) for version in versions]
        turns = draw(st.lists(st.integers(1, 4), max_size=3))
        drawn += [draw(turn(rule_id, version, draw(TIMES))) for version in turns]
    ordered = draw(st.permutations(drawn))
    again = draw(st.lists(st.sampled_from(ordered), max_size=4)) if ordered else []
    return [*ordered, *again]


# After every change and every pause, in any order.
LATER = [Payment(10_000 + number, minor) for number, minor in enumerate([50, 650, 50, 900, 50, 650, 900])]


def in_force(book: Rulebook) -> object:
    """Return the state from the last change on: the rulebook without versions that are on their way out."""
    report = book.report()
    rules = [
        (rule.rule_id, rule.version, rule.status, rule.content_hash)
        for rule in report.rules
        if rule.starts_until_ms == TIME_MS_MAX
    ]
    return rules, report.last_versions, report.paused


@given(st.data())
def test_of_each_thing_the_highest_version_is_the_last_word(data: st.DataObject) -> None:
    """One number has one meaning, as in published versions."""
    drawn: list[control.ControlRecord] = []
    for rule_id in IDS:
        times = data.draw(st.lists(st.integers(1_000, END_MS), min_size=5, max_size=5).map(sorted))
        drawn += [data.draw(change(rule_id, v, times[v - 1])) for v in range(1, data.draw(st.integers(1, 5)))]
        drawn += [data.draw(turn(rule_id, v, times[v - 1])) for v in range(1, data.draw(st.integers(1, 4)))]
    drawn.append(control.SnoozeRecord(id="a", version=1, until=utc_text(END_MS), by="someone"))
    mixed = data.draw(st.permutations(drawn + data.draw(st.lists(st.sampled_from(drawn), max_size=5))))
    compacted = list({control.topic_key(record): record for record in drawn}.values())
    books = []
    for order in (drawn, mixed, compacted):
        book = Rulebook(SCHEMA, (DOMAIN,))
        seen_ms = 0
        for record in order:
            seen_ms += data.draw(st.integers(0, 20))
            book.apply(record, seen_ms or None)
            if data.draw(st.booleans()):
                book = rulebook_from_bytes(rulebook_bytes(book), SCHEMA, (DOMAIN,))
        books.append(book)
    assert in_force(books[0]) == in_force(books[1]) == in_force(books[2])
    assert len({book.content_hash for book in books}) == 1
    # Their later alerts are equal too, except for the epoch, which counts changes of the job's own history.
    alerts = [alerts_of(book, LATER).drop_columns(["epoch"]) for book in books]
    assert alerts[0].equals(alerts[1])
    assert alerts[0].equals(alerts[2])


def lined_up(events: list[Payment], given_records: list[control.ControlRecord], data: st.DataObject) -> list[Arrival]:
    """Place the records among the events, in their order."""
    places = data.draw(st.lists(st.integers(0, len(events)), min_size=len(given_records), max_size=len(given_records)))
    return [Arrival(record, after) for record, after in zip(given_records, sorted(places), strict=True)]


@pytest.mark.parametrize(
    ("minors", "pattern", "shared"),
    [((50, 50, 650, 900), "pair", (1, 2, NEVER)), ((50, 50, 200, 650, 900), "triple", (1, 2))],
    ids=["pair", "rules that share two conditions"],
)
@given(st.data())
@settings(max_examples=150)
def test_records_in_any_order_and_at_any_time(
    minors: tuple[int, ...], pattern: str, shared: tuple[int, ...], data: st.DataObject
) -> None:
    events, given_records = data.draw(payments(*minors)), data.draw(records(pattern))
    arrivals = lined_up(events, given_records, data)
    places = st.lists(st.integers(0, len(events)), max_size=6)
    with patch("cep.nfa.prefixes.SHARED_MIN", data.draw(st.sampled_from(shared))):
        matches = engine(events, arrivals, data.draw(places), data.draw(places))
    assert matches == reference(events, arrivals)


@given(EVENTS, st.data())
@settings(max_examples=100)
def test_in_time_it_does_not_matter_when_a_record_comes(events: list[Payment], data: st.DataObject) -> None:
    """With each record before its effective_at, the alerts equal a job that had all of them from the start."""
    history: list[Arrival] = []
    for rule_id in IDS:
        times = sorted(data.draw(st.lists(st.integers(1_000, END_MS), max_size=5, unique=True)))
        after = 0
        for version, time_ms in enumerate(times, start=1):
            record = data.draw(change(rule_id, version, time_ms))
            in_time = sum(event.time_ms < time_ms for event in events)
            after = data.draw(st.integers(min(after, in_time), in_time))
            history.append(Arrival(record, after))
    history.sort(key=lambda a: a.after)
    places = st.lists(st.integers(0, len(events)), max_size=6)
    matches = engine(events, history, data.draw(places), data.draw(places))
    at_start = [Arrival(arrival.record, 0) for arrival in history]
    assert matches == engine(events, at_start, [], []) == reference(events, at_start)


@pytest.mark.parametrize("seed", [*range(7), 9])
def test_long_histories(seed: int) -> None:
    """Many versions over many events, which hypothesis would keep too small."""
    rng = random.Random(seed)
    times = sorted(rng.sample(range(1_000, 60_000), 1_500 if seed < 4 else 6_000))
    pattern, minors = ("pair", [50, 650, 900]) if seed < 4 else ("triple", [50, 200, 650, 900])
    events = [Payment(time_ms, rng.choice(minors)) for time_ms in times]
    arrivals = []
    for rule_id in IDS:
        for version in range(1, 40):
            effective = utc_text(rng.randrange(1_000, 60_000))
            status = rng.choice(["live", "live", "shadow", "draft"])
            on_update = rng.choice(["drain", "restart", "carry"])
            large = rng.choice([5, 8])
            record = upsert(rule_id, version, effective, large, status=status, on_update=on_update, pattern=pattern)
            arrivals.append(Arrival(record, rng.randrange(len(events))))
    arrivals.sort(key=lambda a: a.after)
    cuts = [rng.randrange(len(events)) for _ in range(60)]
    with patch("cep.nfa.prefixes.SHARED_MIN", 1 if seed % 2 else NEVER):
        matches = engine(events, arrivals, cuts, cuts[:20])
    assert matches == reference(events, arrivals)
    assert len(matches) > 40
    assert all(first.time_ms < second.time_ms for first, second in pairwise(events))


def test_the_reference_sees_versions() -> None:
    """The three ways of an update, by hand."""
    events = [Payment(1_000, 50), Payment(1_005, 650), Payment(1_006, 50), Payment(1_012, 650), Payment(1_013, 900)]
    first = upsert("a", 1, None, 5)
    expected = {
        "drain": {("a", 1, 1_000, 1_005), ("a", 1, 1_006, 1_012)},
        "restart": {("a", 1, 1_000, 1_005)},
        "carry": {("a", 1, 1_000, 1_005), ("a", 2, 1_006, 1_013)},
    }
    for on_update, matches in expected.items():
        second: control.UpsertRecord = upsert("a", 2, utc_text(1_010), 8, on_update=on_update)
        arrivals = [Arrival(first, 0), Arrival(second, 2)]
        assert reference(events, arrivals) == matches
        assert engine(events, arrivals, [1, 3], [3]) == matches


@pytest.mark.parametrize("ender", ["draft", "retire"])
def test_a_shadow_that_was_ended_before_it_starts_stays_away(ender: str) -> None:
    """The job forgets the change that ended it before the shadow would start."""
    events = [Payment(1_000, 900), Payment(1_060, 900), Payment(1_110, 50), Payment(1_115, 650)]
    shadow = upsert("a", 1, utc_text(1_100), 5, status="shadow")
    at_ms = utc_text(1_050)
    second = control.RetireRecord(id="a", version=2, effective_at=at_ms) if ender == "retire" else None
    arrivals = [Arrival(shadow, 1), Arrival(second or upsert("a", 2, at_ms, 5, status="draft"), 1)]
    assert reference(events, arrivals) == set()
    assert engine(events, arrivals, [2], [2]) == set()
    assert engine(events, arrivals[:1], [2], [2]) == {("a", 1, 1_110, 1_115)}, "it would have found something"


CARRYING = upsert("a", 3, utc_text(1_008), 5, on_update="carry")


@pytest.mark.parametrize("cuts", [[], [1]])
def test_what_a_pause_has_ended_is_not_carried_on(cuts: list[int]) -> None:
    """An event between the pause and the version that carries is not needed."""
    events = [Payment(1_000, 50), Payment(1_010, 650)]
    pause = control.PauseRecord(id="a", version=1, effective_at=utc_text(1_004))
    resume = control.ResumeRecord(id="a", version=2, effective_at=utc_text(1_006))
    arrivals = [Arrival(record, 0) for record in (upsert("a", 1, None, 5), pause, resume, CARRYING)]
    assert engine(events, arrivals, cuts, cuts) == reference(events, arrivals) == set()
    unpaused = [arrivals[0], arrivals[3]]
    assert engine(events, unpaused, cuts, cuts) == reference(events, unpaused) == {("a", 3, 1_000, 1_010)}


@pytest.mark.parametrize("cuts", [[], [1]])
def test_what_a_live_version_has_ended_is_not_carried_on(cuts: list[int]) -> None:
    """A shadow carries from the shadow before it, unless a live version came between the two."""
    events = [Payment(1_000, 50), Payment(1_010, 650)]
    first = upsert("a", 1, None, 5, status="shadow")
    live = upsert("a", 2, utc_text(1_004), 5)
    third = CARRYING.model_copy(update={"status": "shadow"})
    arrivals = [Arrival(record, 0) for record in (first, live, third)]
    assert engine(events, arrivals, cuts, cuts) == reference(events, arrivals) == set()
    alone = [arrivals[0], arrivals[2]]
    assert engine(events, alone, cuts, cuts) == reference(events, alone) == {("a", 3, 1_000, 1_010)}


def test_a_change_that_a_later_shadow_overtakes_does_not_end_what_drains() -> None:
    """The retirement takes the turn of the third version, as it would between live versions."""
    events = [Payment(1_000, 50), Payment(1_010, 650)]
    first, third = (upsert("a", v, ms, 5, status="shadow") for v, ms in ((1, None), (3, utc_text(1_004))))
    retire = control.RetireRecord(id="a", version=2, effective_at=utc_text(1_006))
    arrivals = [Arrival(record, 0) for record in (first, retire, third)]
    assert engine(events, arrivals, [1], [1]) == reference(events, arrivals) == {("a", 1, 1_000, 1_010)}
