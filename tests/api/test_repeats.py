"""Repeated events and reused ids: every verb and function answers as if the history did not have them."""

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
from tests.api.frames import EVENT, write_rules_and_before
from tests.api.test_period import FEATURES, labelled

pytestmark = pytest.mark.filterwarnings("ignore::cep.RejectedRecordsWarning")


def with_repeats(table: pa.Table, amount: float = 640.0) -> pa.Table:
    """Add every fifth event again, and every seventh with another amount, so that its id counts as reused."""
    again, reused = (table.take(pa.array(np.arange(0, table.num_rows, step))) for step in (5, 7))
    place = reused.column_names.index("amount")
    amounts = pa.array([amount] * reused.num_rows).cast(table.schema.field("amount").type)
    return pa.concat_tables([table, again, reused.set_column(place, table.schema.field("amount"), amounts), again])


DIRTY = with_repeats(labelled())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Rules, other rules, and files of events with and without repeats."""
    write_rules_and_before(tmp_path)
    (tmp_path / "events.cep").write_text(EVENT)
    pq.write_table(labelled(), tmp_path / "clean.parquet")
    pq.write_table(DIRTY, tmp_path / "dirty.parquet")
    return tmp_path


def run(place: Path, verb: str, *arguments: object, events: str = "dirty", more: tuple[str, ...] = ()) -> int:
    shares = ("--rejected-max", "0.9")
    return cli.main([*verb.split(), *map(str, arguments), "--events", str(place / f"{events}.parquet"), *shares, *more])


def sources(place: Path) -> list[Any]:
    """Return the events as a frame and as a path."""
    return [DIRTY, place / "dirty.parquet"]


def test_match_and_why(place: Path) -> None:
    rules = cep.load(place / "rules")
    expected = rules.match(labelled(), cores=2)
    assert len(rules.match(DIRTY, dedup="0 s", cores=2)) > len(expected)
    for events in sources(place):
        alerts = rules.match(events, cores=2)
        assert alerts.table.equals(expected.table)
        assert (alerts.counters["duplicates"], alerts.counters["reused_ids"]) == (96, 35)
        for number in range(len(alerts)):
            assert str(alerts.why(number)) == str(expected.why(number))


def test_why_not_knows_reused_ids(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = cep.load(place / "rules")
    command = ("--rules", place / "rules", "--rule", "small_then_large")
    for key in ("c1", "c2", "c3"):
        expected = rules.why_not("small_then_large", key, labelled())
        for events in sources(place):
            answer = rules.why_not("small_then_large", key, events)
            assert str(answer) == str(expected)
            assert answer.rejections.by_code["reused_id"] == answer.rejections.count > 0
        capsys.readouterr()
        run(place, "why-not", *command, "--key", key)
        printed = capsys.readouterr()
        assert "".join(printed.out.split()) == "".join(str(expected).split())
        assert "reused_id" in printed.err
    assert run(place, "why-not", *command, "--key", "c1", more=("--dedup", "0 s")) in (0, 1)
    assert "reused_id" not in capsys.readouterr().err


def test_diff(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = cep.load(place / "before"), cep.load(place / "rules")
    expected = after.diff(before, labelled(), cores=2)
    for events in sources(place):
        assert after.diff(before, events, cores=2).gained.equals(expected.gained)
    assert run(place, "diff", place / "before", place / "rules") == 1
    assert repr(expected).splitlines()[0] in capsys.readouterr().out
    assert run(place, "diff", place / "before", place / "rules", more=("--dedup", "0 s")) == 1
    assert repr(expected).splitlines()[0] not in capsys.readouterr().out


def test_backtest_report_and_prune(place: Path) -> None:
    rules = cep.load(place / "rules")
    expected = rules.backtest(labelled(), "is_fraud", cores=2)
    expected.report(place / "clean.html", thresholds=[])
    command = ("--rules", place / "rules", "--labels", "is_fraud")
    assert run(place, "backtest", *command, "--json", place / "verb.json") == 0
    assert orjson.loads((place / "verb.json").read_bytes()) == orjson.loads(orjson.dumps(expected.to_json()))
    assert run(place, "rules prune", *command, "--json", place / "prune.json") == 0
    assert orjson.loads((place / "prune.json").read_bytes()) == orjson.loads(orjson.dumps(asdict(expected.prune())))
    assert run(place, "report", *command, "--thresholds", "none", "--out", place / "dirty.html") == 0
    assert (place / "dirty.html").read_bytes() == (place / "clean.html").read_bytes()
    assert run(place, "backtest", *command, "--json", place / "off.json", more=("--dedup", "0 s")) == 0
    assert (place / "off.json").read_bytes() != (place / "verb.json").read_bytes()


def test_tune(place: Path) -> None:
    rules = cep.load(place / "rules")
    command = ("small_then_large", "--rules", place / "rules", "--labels", "is_fraud", "--try", "small=1.00,2.00")
    assert run(place, "rules tune", *command, "--gap", "1min", "--episodes", "0s", "--json", place / "verb.json") == 0
    tries = {"small": "1.00,2.00"}
    expected = asdict(
        rules.tune("small_then_large", labelled(), "is_fraud", tries=tries, gap="1min", episodes="0 s", cores=2)
    )
    assert orjson.loads((place / "verb.json").read_bytes()) == orjson.loads(orjson.dumps(expected))


def test_suggest() -> None:
    rules, table = cep.parse(BASE), planted(4, frauds=40, count=1_500)
    settings: dict[str, Any] = {"steps": 2, "count": 1, "cores": 2}
    expected = rules.suggest(table, "is_fraud", "card_id", **settings)
    assert rules.suggest(with_repeats(table, 0.55), "is_fraud", "card_id", **settings).text == expected.text


def test_features(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A repeated row has the value of its event, and a row with a reused id is null."""
    expected = cep.features(labelled(), FEATURES, declare=EVENT)["spent"].to_pylist()
    steps = [*range(240), *range(0, 240, 5), *[-1] * 35, *range(0, 240, 5)]
    whole = [None if row < 0 else expected[row] for row in steps]
    for events in sources(place):
        assert cep.features(events, FEATURES, declare=EVENT)["spent"].to_pylist() == whole
        assert cep.features(events, FEATURES, declare=EVENT, dedup="0 s")["spent"].to_pylist() != whole
    command = ("--out", place / "out.parquet", "--declare", place / "events.cep", f"spent={FEATURES['spent']}")
    assert run(place, "features", *command) == 0
    assert pq.read_table(place / "out.parquet")["spent"].to_pylist() == whole
    assert "35 times reused_id" in capsys.readouterr().err
    assert pc.count(pa.array(whole)).as_py() == len(steps) - 35
