"""Matches to alerts: ids, messages, measures, order, events of the source, and since when the past is known."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
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
from cep.base.schema import DERIVED_ORIGINS
from cep.columnar.batch import TEXT
from cep.columnar.decode import concat_decoded, route
from cep.engine.advance import advance
from cep.engine.alerts import (
    ALERT_SCHEMA,
    alert_table,
    alerting,
    alerts_of,
    list_origins,
    sort_alerts,
    sorted_together,
    write_origins,
)
from cep.engine.reach import history_from_ms, reaches_ms
from cep.lang.ir import HistoryWindow
from cep.nfa.deployed import DeployedRule
from cep.rulebook.deploy import deploy
from cep.sources.pieces import read_pieces
from cep.step.match import MatchOutput, match_events
from cep.step.rules import programs_by_level
from tests.engine.rules import batch, program, rule
from tests.oracle.expressions import in_window  # the definition of a window, event by event
from tests.oracle.matcher import Event
from tests.runners.laundering import records, transfers

END_MS = 2**61 - 1
PAIR = "seq a -> b within 10 ms\nwhere a: e kind == a\n b: e kind == b\n"


def alerts(rows: list[str], *rules: DeployedRule) -> pa.Table:
    compiled = program(*rules)
    return alert_table(compiled, advance(compiled, None, batch(*rows), END_MS).matches)


def one(text: str, rows: list[str], **changes: Any) -> dict[str, Any]:
    (alert,) = alerts(rows, rule(text, **changes)).to_pylist()
    return dict(alert)


def test_an_alert_says_everything() -> None:
    alert = one(
        PAIR + "emit amount = b.amount, total = a.amount + b.amount",
        ["card c@0", "card a@1 10.00", "card b@5 0.05"],
        message="{amount} of {total} on {key}, {unknown}",
        severity="high", priority=3, score=7, epoch=9, status="shadow",
    )  # fmt: skip
    moment = datetime(1970, 1, 1, tzinfo=UTC)
    digest = hashlib.sha256(b"r 1 4:card2:e12:e2").hexdigest()[:32]
    assert alert == {
        "alert_id": digest,
        "rule_id": "r",
        "version": 1,
        "epoch": 9,
        "status": "shadow",
        "severity": "high",
        "priority": 3,
        "score": 7,
        "kind": "match",
        "key": "card",
        "message": "0.05 of 10.05 on card, {unknown}",
        "description": "",
        "measures": '{"amount":0.05,"total":10.05}',
        "events": [
            {"variable": "a", "event_id": "e1", "event_time": moment.replace(microsecond=1_000)},
            {"variable": "b", "event_id": "e2", "event_time": moment.replace(microsecond=5_000)},
        ],
        "origins": None,
        "history_cut": False,
        "history_folded": False,
        "history_from": None,
        "unconfirmed": False,
        "flawed": False,
        "match_start": moment.replace(microsecond=1_000),
        "match_end": moment.replace(microsecond=5_000),
        "detected_at": moment.replace(microsecond=5_000),
        "content_hash": alert["content_hash"],
    }


@pytest.mark.parametrize(
    ("measure", "expected", "in_message"),
    [
        ("a.amount", 12.3, "12.30"),
        ("a.note", 'say "é"', 'say "é"'),
        ("b.note", None, "null"),
        ("b.amount", None, "null"),
        ("a.kind", "a", "a"),
        ("a.event_time", "1970-01-01T00:00:00.001Z", "1970-01-01T00:00:00.001Z"),
        ("b.event_time - a.event_time", "4 ms", "4 ms"),
        ("count(a)", 1, "1"),
        ("a.amount / 3.0", 4.1, "4.1"),
        ("a.amount > 1", True, "true"),
        ("a.amount * a.amount", 151.29, "151.2900"),
        ("a.amount * 0.00000001", 1.23e-7, "0.0000001230"),
    ],
)  # fmt: skip
def test_measures_of_every_kind(measure: str, expected: Any, in_message: str) -> None:
    events = batch("x a@1 12.30", "x b@5 - -")
    note = pa.array(['say "é"', None], pa.large_string())
    events = type(events)(
        events.key, events.event_id, events.event_type, events.time_ms, {**events.columns, "note": note}
    )
    compiled = program(rule(PAIR + f"emit m = {measure}", message="<{m}>"))
    (alert,) = alert_table(compiled, advance(compiled, None, events, END_MS).matches).to_pylist()
    measured = json.loads(alert["measures"])["m"]
    assert measured == (pytest.approx(expected) if isinstance(expected, float) else expected)
    assert alert["message"] == f"<{in_message}>"


def test_the_words_of_the_pattern_are_on_the_alert_in_one_line() -> None:
    deployed = rule(PAIR)
    documented = replace(deployed, pattern=replace(deployed.pattern, doc="An a, then a b.\n  Soon."))
    (alert,) = alerts(["card a@1", "card b@5"], documented).to_pylist()
    assert alert["description"] == "An a, then a b. Soon."


def test_a_pattern_without_measures_and_a_rule_without_message() -> None:
    alert = one(PAIR, ["x a@1", "x b@2"])
    assert (alert["measures"], alert["message"]) == ("{}", "")


def test_ids_cannot_be_made_to_collide() -> None:
    pattern = rule("seq a{2,3} -> b within 10 ms\nwhere a: e kind == a\n b: e kind == b\nskip none")
    compiled = program(pattern)
    events = batch("x a@1", "x a@2", "x a@3", "x b@4")
    ids = pa.array(["1:a", "1:b", "1:a1:b", "c"], pa.large_string())
    events = type(events)(events.key, ids, events.event_type, events.time_ms, events.columns)
    table = alert_table(compiled, advance(compiled, None, events, END_MS).matches)
    assert table.num_rows == len(set(table["alert_id"].to_pylist())) == 3


@pytest.mark.parametrize("ends", ["", "\non timeout emit m = count(a)"])
def test_equal_events_of_other_variables_have_other_ids_in_any_order_of_matches(ends: str) -> None:
    pattern = rule(f"seq a{{1,}} -> b{{1,}} -> c within 9 ms\nwhere a: e\n b: e\n c: e kind == c\nskip none{ends}")
    compiled = program(pattern)
    events = batch("x a@1", "x a@2", "x a@3", "x c@4", "x c@5", "x a@90")
    matches = advance(compiled, None, events, END_MS).matches
    tables = [
        alerts_of([replace(part, rows=part.rows[::step]) for part in alerting(compiled, matches)], matches, TIME_MS_MIN)
        for step in (1, -1)
    ]
    ids = [alert["alert_id"] for alert in tables[0].to_pylist()]
    by_events = Counter(str([event["event_id"] for event in alert["events"]]) for alert in tables[0].to_pylist())
    assert len(ids) == len(set(ids)) > len(by_events) > 3
    assert tables[1].equals(tables[0])
    plain = hashlib.sha256(b"r 1 1:x2:e02:e12:e22:e3").hexdigest()[:32]
    assert plain in ids, "one of them has the digest of its events alone"


def test_alerts_come_in_the_order_of_detection_then_id() -> None:
    rows = [f"k{i % 5} {'ab'[i // 5 % 2]}@{i}" for i in range(60)]
    table = alerts(rows, rule(PAIR, "r1"), rule(PAIR, "r2"))
    keys = list(zip(table["detected_at"].to_pylist(), table["alert_id"].to_pylist(), strict=True))
    assert keys == sorted(keys)
    assert set(table["rule_id"].to_pylist()) == {"r1", "r2"}


def test_alerts_of_several_rules_between_each_other_keep_what_is_theirs() -> None:
    rows = [f"k{i % 5} {'ab'[i // 5 % 2]}@{i}" for i in range(60)]
    emit = "emit at = a.amount\n"
    rules = [
        rule(PAIR + emit, "r1", message="{key} one"),
        rule(PAIR, "r2", message="two"),
        rule(PAIR, "r3", message="3"),
    ]
    records = alerts(rows, *rules).to_pylist()
    alone = [alert for one in rules for alert in alerts(rows, one).to_pylist()]
    assert records == sorted(alone, key=lambda alert: (alert["detected_at"], alert["alert_id"]))
    assert len({alert["rule_id"] for alert in records[:4]}) > 1


def test_tables_that_follow_each_other_or_do_not_become_one_in_order() -> None:
    whole = alerts([f"k{i % 5} {'ab'[i // 5 % 2]}@{i // 2}" for i in range(60)], rule(PAIR, "r1"), rule(PAIR, "r2"))
    for cut in range(whole.num_rows + 1):
        parts = [whole.slice(0, cut), whole.slice(cut)]
        assert sorted_together(parts).equals(whole)
        assert sorted_together(parts[::-1]).equals(whole)
    assert sort_alerts(whole).equals(whole)


def test_no_match_gives_an_empty_table_of_the_same_shape() -> None:
    table = alerts(["x a@1"], rule(PAIR))
    assert table.num_rows == 0
    assert table.schema == ALERT_SCHEMA


def test_a_time_out_is_an_alert_of_its_kind() -> None:
    """It has the values, the time and the message of a time-out; a match in the same call stays unchanged."""
    text = PAIR + "emit amount = b.amount\non timeout emit waited = a.amount, amount = a.amount * 2"
    deployed = rule(text, message="{waited} and {amount} on {key}")
    rows = ["x a@1 3.00", "x c@50", "y a@1 1.00", "y b@5 2.00"]
    timeout, match = sorted(alerts(rows, deployed).to_pylist(), key=lambda alert: str(alert["kind"]), reverse=True)
    assert (timeout["kind"], match["kind"]) == ("timeout", "match")
    assert (timeout["measures"], match["measures"]) == ('{"waited":3.00,"amount":6.00}', '{"amount":2.00}')
    assert (timeout["message"], match["message"]) == ("3.00 and 6.00 on x", "{waited} and 2.00 on y")
    assert [event["variable"] for event in timeout["events"]] == ["a"]
    assert timeout["detected_at"] == datetime(1970, 1, 1, 0, 0, 0, 11_000, tzinfo=UTC)
    assert timeout["alert_id"] == hashlib.sha256(b"timeout r 1 1:x2:e0").hexdigest()[:32]


def test_an_absence_that_is_certain_when_its_run_times_out_gives_two_alerts() -> None:
    text = "seq a -> b? -> !c within 10 ms\nwhere a: e kind == a\n b: e kind == b\n c: e kind == c\n"
    table = alerts(["x a@1", "x c@50"], rule(text + "on timeout emit n = a.amount"))
    assert len(set(table["alert_id"].to_pylist())) == table.num_rows
    assert sorted(table["kind"].to_pylist()) == ["match", "timeout"]


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
    texts, _ = write_origins(*columns([list(event.bound)]))
    return str(texts[0])


def columns(matches: list[list[tuple[str, Source | Derived]]]) -> tuple[Any, ...]:
    """Return the bound events of matches, as `write_origins` takes them."""
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
    lists, dropped = list_origins(offsets, names, inner)
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
    texts, dropped = write_origins(*columns([large, large[:2]]))
    assert dropped == 2
    assert [text.count("\x1e") for text in texts.to_pylist()] == [3, 2]
    many: list[tuple[str, Source | Derived]] = [("h", Derived(tuple(large[:2]))) for _ in range(4)]
    offsets, names, _, _, inner = columns([many, many[:1]])
    lists, dropped = list_origins(offsets, names, inner)
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
            assert (DERIVED_ORIGINS in compiled.columns_read) == (programs is not lower[0]), "the source has none"
            events = route(concat_decoded(schema, decoded), domain, schema.columns())[0]
            match_events(compiled, None, events, TIME_MS_MAX, output)
        decoded += output.produced
    ((domain, compiled),) = top.items()
    batch = route(concat_decoded(schema, decoded), domain, schema.columns())[0]
    whole = alert_table(compiled, advance(compiled, None, batch, TIME_MS_MAX).matches)
    middle_ms = int(np.median(batch.time_ms))
    early, late = batch.take(batch.time_ms < middle_ms), batch.take(batch.time_ms >= middle_ms)
    without = replace(early, columns={**early.columns, DERIVED_ORIGINS: pa.nulls(len(early), TEXT)})
    before = advance(compiled, None, without, middle_ms)
    old = before.keyed_state
    columns = {name: column for name, column in old.events.columns.items() if name != DERIVED_ORIGINS}
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
