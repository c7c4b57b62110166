"""Histories that count in part: `since` and `until`, repeated events and reused ids.

Every verb and function that reads a history answers as if the history had no other events.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import cep
from cep.cli import main as cli
from tests.analysis.test_suggest import BASE, planted
from tests.api.frames import EVENT, START, labelled, write_rules_and_before
from tests.output_of import OutputOf

SINCE, UNTIL = "2026-03-01T00:20:00Z", "2026-03-01T01:00:00Z"
PERIOD: Any = {"since": SINCE, "until": UNTIL}
FLAGS = ("--since", SINCE, "--until", UNTIL)
FEATURES = {"spent": "sum(payment.amount over 1 h by card_id)"}


def within(table: pa.Table) -> pa.Table:
    times_ms = table["event_time"].cast(pa.int64())
    begin = int(START.timestamp() * 1_000)
    return table.filter(pc.and_(pc.greater_equal(times_ms, begin + 1_200_000), pc.less(times_ms, begin + 3_600_000)))


def with_repeats(table: pa.Table, amount: float = 640.0) -> pa.Table:
    """Add every fifth event again, and every seventh with another amount, so that its id counts as reused."""
    again, reused = (table.take(pa.array(np.arange(0, table.num_rows, step))) for step in (5, 7))
    place = reused.column_names.index("amount")
    amounts = pa.array([amount] * reused.num_rows).cast(table.schema.field("amount").type)
    return pa.concat_tables([table, again, reused.set_column(place, table.schema.field("amount"), amounts), again])


@dataclass(frozen=True)
class Case:
    """The events of a history that count and all its events; how Python and verbs leave the others out or count all."""

    clean: pa.Table
    events: pa.Table
    python: dict[str, Any]
    flags: tuple[str, ...]
    all_python: dict[str, Any]
    all_flags: tuple[str, ...]
    counters: dict[str, int]
    episodes: dict[str, Any]
    has_rejections: bool


SHARES = ("--rejected-max", "0.9")
OUTSIDE = {"events_before_start": 60, "events_after_end": 60}
CASES = [
    pytest.param(Case(within(labelled()), labelled(), PERIOD, FLAGS, {}, (), OUTSIDE, {}, False), id="period"),
    pytest.param(
        Case(
            labelled(), with_repeats(labelled()), {}, SHARES, {"dedup": "0 s"}, (*SHARES, "--dedup", "0 s"),
            {"duplicates": 96, "reused_ids": 35}, {"episodes": "0 s"}, True,
        ),
        id="repeats", marks=pytest.mark.filterwarnings("ignore::cep.RejectedRecordsWarning"),
    ),
]  # fmt: skip


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    chosen: Case = request.param
    return chosen


@pytest.fixture
def place(case: Case, tmp_path: Path) -> Path:
    """Return a folder with rules, other rules, and files of all events and of those that count."""
    write_rules_and_before(tmp_path)
    (tmp_path / "events.cep").write_text(EVENT)
    pq.write_table(case.events, tmp_path / "events.parquet")
    pq.write_table(case.clean, tmp_path / "clean.parquet")
    return tmp_path


def run(place: Path, verb: str, *arguments: object, flags: tuple[str, ...], events: str = "events") -> int:
    return cli.main([*verb.split(), *map(str, arguments), "--events", str(place / f"{events}.parquet"), *flags])


def sources(case: Case, place: Path) -> list[Any]:
    return [case.events, place / "events.parquet"]


def as_json(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value))


def test_match_is_the_replay(case: Case, place: Path) -> None:
    rules = cep.load(place / "rules")
    out = place / "verb.parquet"
    assert run(place, "replay", "--rules", place / "rules", "--out", out, flags=case.flags) == 0
    expected = rules.match(case.clean, cores=2)
    assert len(rules.match(case.events, cores=2, **case.all_python)) > len(expected) > 0
    for events in sources(case, place):
        alerts = rules.match(events, cores=2, **case.python)
        assert alerts.table.equals(expected.table)
        assert alerts.table.equals(pq.read_table(out))
        assert {name: alerts.counters[name] for name in case.counters} == case.counters
        for number in range(len(alerts)):
            assert str(alerts.why(number)) == str(expected.why(number))


@pytest.mark.parametrize("case", CASES[:1], indirect=True)
def test_why_reads_no_event_outside(case: Case, place: Path, output_of: OutputOf) -> None:
    """The first alert of a period may need a bait from before the period. Without the bait the rule does not fire."""
    rules = cep.load(place / "rules")
    whole = rules.match(labelled(), cores=2)
    assert run(place, "replay", "--rules", place / "rules", "--out", place / "all.parquet", flags=()) == 0
    crossing = next(
        number for number, row in enumerate(whole.table.to_pylist())
        if row["events"][0]["event_time"].isoformat() < SINCE < row["detected_at"].isoformat()
    )  # fmt: skip
    alert = whole.table["alert_id"][crossing].as_py()
    output_of.read()
    command = ("--rules", place / "rules", "--alerts", place / "all.parquet", "--alert", alert)
    assert run(place, "why", *command, flags=()) == 0
    output_of.read()
    printed = output_of(run(place, "why", *command, flags=FLAGS), 1).out
    assert "these rules and events do not give this alert" in printed
    assert output_of(run(place, "why", *command, events="clean", flags=()), 1).out == printed


def test_why_not(case: Case, place: Path, output_of: OutputOf) -> None:
    rules = cep.load(place / "rules")
    command = ("why-not", "--rules", place / "rules", "--rule", "small_then_large", "--key")
    for key in ("c1", "c2", "c3"):
        expected = rules.why_not("small_then_large", key, case.clean)
        for events in sources(case, place):
            answer = rules.why_not("small_then_large", key, events, **case.python)
            assert str(answer) == str(expected)
            assert answer.rejections.by_code.get("reused_id", 0) == answer.rejections.rejected_count
            assert (answer.rejections.rejected_count > 0) == case.has_rejections
        output_of.read()
        run(place, *command, key, flags=case.flags)
        printed = output_of.read()
        assert "".join(printed.out.split()) == "".join(str(expected).split())
        assert ("reused_id" in printed.err) == case.has_rejections
    assert run(place, *command, "c1", flags=case.all_flags) in (0, 1)
    assert "reused_id" not in output_of.read().err


def test_diff(case: Case, place: Path, output_of: OutputOf) -> None:
    before, after = cep.load(place / "before"), cep.load(place / "rules")
    expected = after.diff(before, case.clean, cores=2)
    assert expected.gained.num_rows > 0
    for events in sources(case, place):
        difference = after.diff(before, events, cores=2, **case.python)
        assert difference.gained.equals(expected.gained)
        assert difference.lost.equals(expected.lost)
    first = repr(expected).splitlines()[0]
    for more in ((), ("--label", "is_fraud")):
        command = ("diff", place / "before", place / "rules", *more)
        assert first in output_of(run(place, *command, flags=case.flags), 1).out
        assert first not in output_of(run(place, *command, flags=case.all_flags), 1).out


def test_backtest_report_and_prune(case: Case, place: Path) -> None:
    rules = cep.load(place / "rules")
    expected = rules.backtest(case.clean, "is_fraud", cores=2)
    command = ("--rules", place / "rules", "--labels", "is_fraud")
    assert run(place, "backtest", *command, "--json", place / "verb.json", flags=case.flags) == 0
    figures = orjson.loads((place / "verb.json").read_bytes())
    judged, aside_count = as_json(expected.to_json()), case.counters.get("reused_ids", 0)
    assert figures == {**judged, "about": {**judged["about"], "records_set_aside": aside_count}}
    assert figures["about"]["labels_without_event"] == 0, "a column has no labels of other events"
    expected.report(place / "clean.html", thresholds=[])
    page = ("--thresholds", "none", "--out", place / "verb.html")
    assert run(place, "report", *command, *page, flags=case.flags) == 0
    assert run(place, "rules prune", *command, "--json", place / "prune.json", flags=case.flags) == 0
    assert orjson.loads((place / "prune.json").read_bytes()) == as_json(asdict(expected.prune()))
    for events in sources(case, place):
        quality = rules.backtest(events, "is_fraud", cores=2, **case.python)
        assert as_json(quality.to_json()) == figures
        quality.report(place / "python.html", thresholds=[])
        aside, clean = "records set aside</td><td>{}<", (place / "clean.html").read_text()
        for name in ("verb", "python"):
            assert (place / f"{name}.html").read_text() == clean.replace(aside.format(0), aside.format(aside_count))
    assert run(place, "backtest", *command, "--json", place / "all.json", flags=case.all_flags) == 0
    assert (place / "all.json").read_bytes() != (place / "verb.json").read_bytes()


def test_tune(case: Case, place: Path) -> None:
    rules = cep.load(place / "rules")
    how: dict[str, Any] = {"tries": {"small": "1.00,2.00"}, "gap": "1min", "cores": 2, **case.episodes}
    episodes = tuple(word for name, value in case.episodes.items() for word in (f"--{name}", value))
    command = ("small_then_large", "--rules", place / "rules", "--labels", "is_fraud", "--try", "small=1.00,2.00")
    out = ("--gap", "1min", "--json", place / "verb.json")
    assert run(place, "rules tune", *command, *out, flags=(*case.flags, *episodes)) == 0
    expected = asdict(rules.tune("small_then_large", case.clean, "is_fraud", **how))
    assert orjson.loads((place / "verb.json").read_bytes()) == as_json(expected)
    for events in sources(case, place):
        assert asdict(rules.tune("small_then_large", events, "is_fraud", **how, **case.python)) == expected


@pytest.mark.filterwarnings("ignore::cep.RejectedRecordsWarning")
def test_suggest() -> None:
    rules, table = cep.parse(BASE), planted(4, frauds=40, count=1_500)
    settings: dict[str, Any] = {"steps": 2, "count": 1, "cores": 2}
    until = pc.quantile(table["event_time"].cast(pa.int64()), 0.9).to_pylist()[0]
    moment = pa.scalar(int(until), pa.int64()).cast(pa.timestamp("ms", "UTC")).as_py().isoformat()
    cut = table.filter(pc.less(table["event_time"].cast(pa.int64()), int(until)))
    expected = rules.suggest(cut, "is_fraud", "card_id", **settings)
    assert rules.suggest(table, "is_fraud", "card_id", until=moment, **settings).text == expected.text
    expected = rules.suggest(table, "is_fraud", "card_id", **settings)
    assert rules.suggest(with_repeats(table, 0.55), "is_fraud", "card_id", **settings).text == expected.text


def test_features(case: Case, place: Path, output_of: OutputOf) -> None:
    """A row outside of the period is left out. A repeated row has the value of its event, one with a reused id null."""
    expected = cep.features(case.clean, FEATURES, declare=EVENT)
    values = expected["spent"].to_pylist()
    if case.has_rejections:
        steps = [*range(240), *range(0, 240, 5), *[-1] * 35, *range(0, 240, 5)]
        values = [None if row < 0 else values[row] for row in steps]
        assert pc.count(pa.array(values)).as_py() == len(steps) - 35
    else:
        assert expected.num_rows == 120
    for events in sources(case, place):
        features = cep.features(events, FEATURES, declare=EVENT, **case.python)
        assert features["spent"].to_pylist() == values
        assert case.has_rejections or features.equals(expected)
        whole = cep.features(events, FEATURES, declare=EVENT, **case.all_python)
        assert whole["spent"].to_pylist() != values
    command = ("--out", place / "out.parquet", "--declare", place / "events.cep", f"spent={FEATURES['spent']}")
    printed = output_of(run(place, "features", *command, flags=case.flags)).err
    assert ("35 times reused_id" in printed) == case.has_rejections
    assert pq.read_table(place / "out.parquet")["spent"].to_pylist() == values
    assert case.has_rejections or pq.read_table(place / "out.parquet").equals(expected)


@pytest.mark.parametrize("case", CASES[:1], indirect=True)
def test_a_time_that_is_none_is_refused(case: Case, place: Path, output_of: OutputOf) -> None:
    rules = cep.load(place / "rules")
    with pytest.raises(cep.CepError, match=r"^since: 'yesterday' is not a time with an offset"):
        rules.diff(rules, labelled(), since="yesterday")
    command = ("--rules", place / "rules", "--labels", "is_fraud")
    printed = output_of(run(place, "backtest", *command, flags=("--until", "2026-03-01")), 2).err
    assert "--until: '2026-03-01' is not a time with an offset" in printed
