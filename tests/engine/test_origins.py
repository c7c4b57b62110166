"""Facts in an alert: the events of the source behind derived events, and since when the past is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import MADE_OF
from cep.columnar.batch import TEXT
from cep.columnar.decode import concat_decoded, route
from cep.engine.advance import advance
from cep.engine.alerts import alert_table, made_of, origin_lists
from cep.engine.reach import history_from_ms, reaches_ms
from cep.lang.ir import HistoryWindow
from cep.rulebook.deploy import deploy
from cep.sources.pieces import read_pieces
from cep.step.match import MatchOutput, match_events
from cep.step.rules import programs_by_level
from tests.engine.rules import batch, program, rule
from tests.oracle.histories import in_window  # the definition of a window, event by event
from tests.oracle.matcher import Event
from tests.runners.laundering import records, transfers

IDS = st.text(st.characters(codec="utf-8") | st.sampled_from("\x1d\x1e\x1f.~01 2"), max_size=6)


@dataclass(frozen=True)
class Source:
    """An event of the source."""

    id: str
    time_ms: int


@dataclass(frozen=True)
class Derived:
    """A derived event: the events that its match has bound, with the variables."""

    bound: tuple[tuple[str, Source | Derived], ...]


SOURCES = st.builds(Source, IDS, st.integers(0, 2**41))
BOUND = st.tuples(st.sampled_from(["a", "b", "hop"]), SOURCES)
EVENTS = st.recursive(
    SOURCES,
    lambda inner: st.builds(
        Derived, st.lists(st.tuples(st.sampled_from(["a", "b"]), inner), min_size=1, max_size=3).map(tuple)
    ),
    max_leaves=8,
)


def behind(name: str, event: Source | Derived) -> list[tuple[str, str, int]]:
    """Return the variables, id and time of each event of the source, by recursion."""
    if isinstance(event, Source):
        return [(name, event.id, event.time_ms)]
    return [one for inner, each in event.bound for one in behind(f"{name}.{inner}", each)]


def text_of(event: Source | Derived) -> str | None:
    """Return the text that travels with an event, one derived event at a time."""
    if isinstance(event, Source):
        return None
    texts, _ = made_of(*columns([list(event.bound)]))
    return str(texts[0])


def columns(matches: list[list[tuple[str, Source | Derived]]]) -> tuple[Any, ...]:
    """Return the bound events of matches, as `made_of` takes them."""
    flat = [pair for match in matches for pair in match]
    offsets = np.cumsum([0, *map(len, matches)]).astype(np.int32)
    ids = pa.array([e.id if isinstance(e, Source) else "derived~1" for _, e in flat], TEXT)
    times = np.array([e.time_ms if isinstance(e, Source) else 0 for _, e in flat], np.int64)
    names, inner = pa.array([name for name, _ in flat], pa.string()), pa.array([text_of(e) for _, e in flat], TEXT)
    return offsets, names, ids, times, inner


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.sampled_from(["x", "y"]), EVENTS), min_size=1, max_size=3), min_size=1, max_size=3)
)
def test_an_alert_lists_what_its_derived_events_were_made_of(matches: list[list[tuple[str, Source | Derived]]]) -> None:
    offsets, names, _, _, inner = columns(matches)
    lists, dropped = origin_lists(offsets, names, inner)
    assert dropped == 0
    for match, origins in zip(matches, lists.to_pylist(), strict=True):
        expected = [
            (place, *one) for place, (n, e) in enumerate(match) if isinstance(e, Derived) for one in behind(n, e)
        ]
        listed = [
            (o["place"], o["variable"], o["event_id"], round(o["event_time"].timestamp() * 1_000))
            for o in origins or ()
        ]
        assert listed == expected
        assert (origins is None) == (not expected)
        assert all(o["level"] == len(o["variable"].split(".")) for o in origins or ())


def test_past_the_limit_the_first_ones_stay_and_the_others_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.engine.alerts.ORIGINS_MAX", 3)
    large: list[tuple[str, Source | Derived]] = [("a", Source(f"t{n}", n)) for n in range(5)]
    texts, dropped = made_of(*columns([large, large[:2]]))
    assert dropped == 2
    assert [text.count("\x1e") for text in texts.to_pylist()] == [3, 2]
    many: list[tuple[str, Source | Derived]] = [("h", Derived(tuple(large[:2]))) for _ in range(4)]
    offsets, names, _, _, inner = columns([many, many[:1]])
    lists, dropped = origin_lists(offsets, names, inner)
    assert dropped == 5
    assert [[(o["place"], o["event_id"]) for o in origins] for origins in lists.to_pylist()] == [
        [(0, "t0"), (0, "t1"), (1, "t0")],
        [(0, "t0"), (0, "t1")],
    ]


def test_state_of_a_build_that_had_no_origins_goes_on(tmp_path: Path) -> None:
    """Its derived events do not name their origins; later ones do."""
    deployment = deploy(records())
    schema = deployment.schema
    *lower, top = programs_by_level(deployment.rulebook, schema)
    pq.write_table(transfers(1, 120), tmp_path / "t.parquet")
    decoded = [piece.decode() for piece in read_pieces(tmp_path / "t.parquet", schema).pieces]
    for programs in lower:
        output = MatchOutput()
        for domain, compiled in programs.items():
            assert (MADE_OF in compiled.columns_read) == (programs is not lower[0]), "the source has no such column"
            events = route(concat_decoded(schema, decoded), domain, schema.columns())[0]
            match_events(compiled, None, events, TIME_MS_MAX, output)
        decoded += output.produced
    ((domain, compiled),) = top.items()
    batch = route(concat_decoded(schema, decoded), domain, schema.columns())[0]
    whole = alert_table(compiled, advance(compiled, None, batch, TIME_MS_MAX).matches)
    middle_ms = int(np.median(batch.time_ms))
    early, late = batch.take(batch.time_ms < middle_ms), batch.take(batch.time_ms >= middle_ms)
    without = replace(early, columns={**early.columns, MADE_OF: pa.nulls(len(early), TEXT)})
    before = advance(compiled, None, without, middle_ms)
    old = before.keyed_state
    columns = {name: column for name, column in old.events.columns.items() if name != MADE_OF}
    stored = replace(old, layout=replace(old.layout, fingerprint="old"), events=replace(old.events, columns=columns))
    after = advance(compiled, stored, late, TIME_MS_MAX)
    halves = [alert_table(compiled, matches.matches) for matches in (before, after)]
    assert all(half.num_rows for half in halves)
    joined = pa.concat_tables(halves)
    assert joined.drop_columns("origins").equals(whole.drop_columns("origins"))
    times = dict(zip(batch.event_id.to_pylist(), batch.time_ms.tolist(), strict=True))
    for ours, theirs in zip(joined.to_pylist(), whole.to_pylist(), strict=True):
        is_late = [times[event["event_id"]] >= middle_ms for event in ours["events"]]
        assert (ours["origins"] or []) == [origin for origin in theirs["origins"] if is_late[origin["place"]]]


DAY_MS = 86_400_000


@pytest.mark.parametrize("unit", [None, "hour", "day", "week", "month"])
def test_the_earliest_time_of_a_window_is_the_last_that_it_holds(unit: str | None) -> None:
    random = Random(f"reach {unit}")
    for _ in range(20):
        zone = random.choice(["UTC", "Europe/Paris"])
        length_ms = random.randint(1, 3 * DAY_MS) if unit is None else None
        window = HistoryWindow(length_ms, unit, zone, previous=random.random() < 0.5)  # type: ignore[arg-type]
        now_ms = random.randint(1_700_000_000_000, 1_710_000_000_000)
        (first_ms,) = reaches_ms([window], np.array([now_ms])).tolist()
        now = Event("now", "e", now_ms, 2, {})
        before = [Event("then", "e", time_ms, 1, {}) for time_ms in (first_ms - 1, first_ms)]
        assert [in_window(window, event, now) for event in before] == [False, first_ms < now_ms or not window.previous]


def test_the_longest_window_decides_and_a_job_that_does_not_know_says_nothing() -> None:
    windows = [HistoryWindow(10, None, previous=False), HistoryWindow(100, None, previous=True)]
    times = np.array([1_050, 1_098, 1_099, 1_100])
    assert history_from_ms(windows, times, 1_000).tolist() == [1_000, 1_000, TIME_MS_MIN, TIME_MS_MIN]
    assert (history_from_ms(windows, times, TIME_MS_MIN) == TIME_MS_MIN).all()
    assert (history_from_ms([], times, 1_000) == TIME_MS_MIN).all()
    assert (history_from_ms([windows[0], None], times, 1_000) == 1_000).all(), "all of the past"


def test_an_alert_has_it_and_a_condition_on_all_of_the_past_always() -> None:
    text = "seq a\nwhere a: e count(e over 10 ms) >= 1\nskip none"
    lasting = "seq a\nwhere a: e not exists(e) or last(e).kind == a\nskip none"
    compiled = program(rule(text), rule(lasting, "l"), rule("seq a\nwhere a: e\nskip none", "n"))
    events = batch("x a@100", "x a@105", "x a@109", "x a@110")
    matches = advance(compiled, None, events, TIME_MS_MAX).matches
    records = alert_table(compiled, matches, 100).to_pylist()
    since = datetime.fromtimestamp(0.1, UTC)
    known_from = {(a["rule_id"], a["events"][0]["event_id"]): a["history_from"] for a in records}
    assert known_from == {
        **{("r", f"e{i}"): since if i < 2 else None for i in range(4)},
        **{("l", f"e{i}"): since for i in range(4)},
        **{("n", f"e{i}"): None for i in range(4)},
    }
    assert all(a["history_from"] is None for a in alert_table(compiled, matches).to_pylist())
