"""`since` and `until`: the same as if the history had no other events, in every verb and function that reads one."""

from __future__ import annotations

from dataclasses import asdict
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
from tests.api.frames import EVENT, PATTERN, START, payments, write_rules_and_before

SINCE, UNTIL = "2026-03-01T00:20:00Z", "2026-03-01T01:00:00Z"
PERIOD: Any = {"since": SINCE, "until": UNTIL}
FLAGS = ("--since", SINCE, "--until", UNTIL)
FEATURES = {"spent": "sum(payment.amount over 1 h by card_id)"}


def labelled() -> pa.Table:
    """Return payments, some of them fraud, also outside of the period."""
    is_fraud = np.random.default_rng(1).random(240) < 0.2
    return payments().append_column("is_fraud", pa.array(is_fraud))


def within(table: pa.Table) -> pa.Table:
    """Return the payments of the period."""
    times_ms = table["event_time"].cast(pa.int64())
    begin = int(START.timestamp() * 1_000)
    return table.filter(pc.and_(pc.greater_equal(times_ms, begin + 1_200_000), pc.less(times_ms, begin + 3_600_000)))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Rules, other rules, and a file of labelled payments."""
    write_rules_and_before(tmp_path)
    pq.write_table(labelled(), tmp_path / "events.parquet")
    pq.write_table(within(labelled()), tmp_path / "cut.parquet")
    return tmp_path


def run(place: Path, verb: str, *arguments: object, events: str = "events", flags: tuple[str, ...] = FLAGS) -> int:
    return cli.main([*verb.split(), *map(str, arguments), "--events", str(place / f"{events}.parquet"), *flags])


def sources(place: Path) -> list[Any]:
    """Return the events as a frame and as a path."""
    return [labelled(), place / "events.parquet"]


def test_the_period_cuts_something() -> None:
    rules = cep.parse(EVENT + PATTERN)
    assert 0 < len(rules.match(within(labelled()), cores=2)) < len(rules.match(labelled(), cores=2))


def test_match_is_the_replay(place: Path, tmp_path: Path) -> None:
    rules = cep.load(place / "rules")
    assert run(place, "replay", "--rules", place / "rules", "--out", tmp_path / "verb.parquet") == 0
    expected = rules.match(within(labelled()), cores=2)
    for events in sources(place):
        alerts = rules.match(events, cores=2, **PERIOD)
        assert alerts.table.equals(expected.table)
        assert alerts.table.equals(pq.read_table(tmp_path / "verb.parquet"))
        assert alerts.counters["events_before_start"] == 60
        assert alerts.counters["events_after_end"] == 60
        for number in range(len(alerts)):
            assert str(alerts.why(number)) == str(expected.why(number))


def test_why_reads_no_event_outside(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first alert of a period may need a bait from before the period. Without the bait the rule does not fire."""
    rules = cep.load(place / "rules")
    whole = rules.match(labelled(), cores=2)
    assert run(place, "replay", "--rules", place / "rules", "--out", place / "all.parquet", flags=()) == 0
    crossing = next(
        number for number, row in enumerate(whole.table.to_pylist())
        if row["events"][0]["event_time"].isoformat() < SINCE < row["detected_at"].isoformat()
    )  # fmt: skip
    alert = whole.table["alert_id"][crossing].as_py()
    capsys.readouterr()
    command = ("--rules", place / "rules", "--alerts", place / "all.parquet", "--alert", alert)
    assert run(place, "why", *command, flags=()) == 0
    capsys.readouterr()
    assert run(place, "why", *command) == 1
    printed = capsys.readouterr().out
    assert "these rules and events do not give this alert" in printed
    assert run(place, "why", *command, events="cut", flags=()) == 1
    assert capsys.readouterr().out == printed


def test_why_not(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = cep.load(place / "rules")
    for key in ("c1", "c2", "c3"):
        expected = rules.why_not("small_then_large", key, within(labelled()))
        for events in sources(place):
            assert str(rules.why_not("small_then_large", key, events, **PERIOD)) == str(expected)
        run(place, "why-not", "--rules", place / "rules", "--rule", "small_then_large", "--key", key)
        assert "".join(capsys.readouterr().out.split()) == "".join(str(expected).split())


def test_diff(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = cep.load(place / "before"), cep.load(place / "rules")
    expected = after.diff(before, within(labelled()), cores=2)
    assert expected.gained.num_rows > 0
    for events in sources(place):
        difference = after.diff(before, events, cores=2, **PERIOD)
        assert difference.gained.equals(expected.gained)
        assert difference.lost.equals(expected.lost)
    for more in ((), ("--label", "is_fraud")):
        assert run(place, "diff", place / "before", place / "rules", *more) == 1
        assert repr(expected).splitlines()[0] in capsys.readouterr().out
        assert run(place, "diff", place / "before", place / "rules", *more, flags=()) == 1
        assert repr(expected).splitlines()[0] not in capsys.readouterr().out


def test_backtest_report_and_prune(place: Path) -> None:
    rules = cep.load(place / "rules")
    expected = rules.backtest(within(labelled()), "is_fraud", cores=2)
    flags = ("--rules", place / "rules", "--labels", "is_fraud")
    assert run(place, "backtest", *flags, "--json", place / "verb.json") == 0
    figures = orjson.loads((place / "verb.json").read_bytes())
    assert figures == orjson.loads(orjson.dumps(expected.to_json()))
    assert figures["about"]["labels_without_event"] == 0, "a column has no labels of other events"
    expected.report(place / "cut.html", thresholds=[])
    assert run(place, "report", *flags, "--thresholds", "none", "--out", place / "verb.html") == 0
    assert run(place, "rules prune", *flags, "--json", place / "prune.json") == 0
    assert orjson.loads((place / "prune.json").read_bytes()) == orjson.loads(orjson.dumps(asdict(expected.prune())))
    for events in sources(place):
        quality = rules.backtest(events, "is_fraud", cores=2, **PERIOD)
        assert orjson.loads(orjson.dumps(quality.to_json())) == figures
        quality.report(place / "python.html", thresholds=[])
        for name in ("verb", "python"):
            assert (place / f"{name}.html").read_bytes() == (place / "cut.html").read_bytes()


def test_tune(place: Path) -> None:
    rules = cep.load(place / "rules")
    tries = {"small": "1.00,2.00"}
    command = ("small_then_large", "--rules", place / "rules", "--labels", "is_fraud", "--try", "small=1.00,2.00")
    assert run(place, "rules tune", *command, "--gap", "1min", "--json", place / "verb.json") == 0
    expected = asdict(rules.tune("small_then_large", within(labelled()), "is_fraud", tries=tries, gap="1min", cores=2))
    assert orjson.loads((place / "verb.json").read_bytes()) == orjson.loads(orjson.dumps(expected))
    for events in sources(place):
        tuned = rules.tune("small_then_large", events, "is_fraud", tries=tries, gap="1min", cores=2, **PERIOD)
        assert asdict(tuned) == expected


def test_suggest() -> None:
    rules = cep.parse(BASE)
    table = planted(4, frauds=40, count=1_500)
    until = pc.quantile(table["event_time"].cast(pa.int64()), 0.9).to_pylist()[0]
    moment = pa.scalar(int(until), pa.int64()).cast(pa.timestamp("ms", "UTC")).as_py().isoformat()
    cut = table.filter(pc.less(table["event_time"].cast(pa.int64()), int(until)))
    settings: dict[str, Any] = {"steps": 2, "count": 1, "cores": 2}
    expected = rules.suggest(cut, "is_fraud", "card_id", **settings)
    assert rules.suggest(table, "is_fraud", "card_id", until=moment, **settings).text == expected.text


def test_features(place: Path) -> None:
    expected = cep.features(within(labelled()), FEATURES, declare=EVENT)
    assert expected.num_rows == 120
    for events in sources(place):
        assert cep.features(events, FEATURES, declare=EVENT, **PERIOD).equals(expected)
    (place / "events.cep").write_text(EVENT)
    command = ("--out", place / "out.parquet", "--declare", place / "events.cep", f"spent={FEATURES['spent']}")
    assert run(place, "features", *command) == 0
    assert pq.read_table(place / "out.parquet").equals(expected)


def test_a_time_that_is_none_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = cep.load(place / "rules")
    with pytest.raises(cep.CepError, match=r"^since: 'yesterday' is not a time with an offset"):
        rules.diff(rules, labelled(), since="yesterday")
    command = ("--rules", place / "rules", "--labels", "is_fraud")
    assert run(place, "backtest", *command, flags=("--until", "2026-03-01")) == 2
    assert "--until: '2026-03-01' is not a time with an offset" in capsys.readouterr().err
