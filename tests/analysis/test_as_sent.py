"""The alerts that a backtest counts as sent equal the alerts of `cep run` with the same rules and control records."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from cep.analysis.budget import by_budget
from cep.analysis.labels import labels_of_table
from cep.analysis.measure import Measured, Terms, measure
from cep.api.given import GivenRules
from cep.base.utc import utc_ms, utc_text
from cep.cli.main import main
from cep.sources.pieces import read_pieces
from tests.analysis.bench_data import DAY_MS, SOURCE, START_MS, payments
from tests.cli.test_backtest import RULE
from tests.seeds import seeds

RULES = ("busy_shop", "large", "small_large")
DAYS = 20


def write_rules(draw: random.Random, folder: Path) -> None:
    (folder / "patterns").mkdir()
    (folder / "rules").mkdir()
    (folder / "patterns" / "pays.cep").write_text(SOURCE)
    for name in RULES:
        text = RULE.format(name=name).replace('"low"', f'"{draw.choice(["low", "high"])}"')
        if draw.random() < 0.25:
            text = text.replace('"live"', '"shadow"')
        if draw.random() < 0.6:
            text += f'suppress = "{draw.choice(["1 h", "1 d", "5 d"])}"\n'
        if draw.random() < 0.6:
            text += f'exclusive = "one"\npriority = {draw.randrange(3)}\n'
        (folder / "rules" / f"{name}.toml").write_text(text)
    snoozes = []
    for version in range(draw.randrange(3)):
        from_ms = START_MS + draw.randrange(DAYS) * DAY_MS
        snooze = {
            "kind": "snooze", "id": draw.choice(RULES), "version": version + 1, "by": "me",
            "effective_at": utc_text(from_ms), "until": utc_text(from_ms + draw.randrange(1, 6) * DAY_MS),
        }  # fmt: skip
        if draw.random() < 0.4:
            snooze["key"] = f"c{draw.randrange(60)}"
        snoozes.append(orjson.dumps(snooze))
    (folder / "control.jsonl").write_bytes(b"".join(line + b"\n" for line in snoozes))


def measured_by(folder: Path, labels: pa.Table, terms: Terms) -> Measured:
    rules = GivenRules.read(folder / "rules", folder / "control.jsonl")
    read = labels_of_table(labels, rules.deployment.schema, "labels")
    return measure(rules.deployment, partial(read_pieces, folder / "events.parquet"), read, terms, Console(quiet=True))


@pytest.mark.parametrize("seed", seeds(60, inner=3))
def test_alerts_as_sent_are_those_of_a_job(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    write_rules(draw, tmp_path)
    events, labels = payments(seed, days=DAYS)
    pq.write_table(events.sort_by([("event_time", "ascending"), ("tx_id", "ascending")]), tmp_path / "events.parquet")
    command = ["--rules", tmp_path / "rules", "--events", tmp_path / "events.parquet", "--alerts", tmp_path / "alerts"]
    control = ["--control", tmp_path / "control.jsonl", "--available-now"]
    assert main(["run", *map(str, [*command, *control])]) == 0
    written = (tmp_path / "alerts").glob("*.jsonl")
    sent = [orjson.loads(line) for path in written for line in path.read_bytes().splitlines()]
    has_live = any('"live"' in path.read_text() for path in (tmp_path / "rules").glob("*.toml"))
    assert bool(sent) is has_live
    as_of_ms = draw.choice([None, START_MS + 15 * DAY_MS])
    maturity_ms = draw.choice([None, 0, 3 * DAY_MS])
    measured = measured_by(tmp_path, labels, Terms(as_of_ms=as_of_ms, maturity_ms=maturity_ms))
    alert_ids = {each["alert_id"] for each in sent if utc_ms(each["detected_at"]) <= measured.marks.as_of_ms}
    rows = pa.array(measured.judged.row)
    assert set(measured.history.replayed.alerts["alert_id"].take(rows).to_pylist()) == alert_ids
    figures = measured.figures
    assert figures.together.alerts == len(alert_ids) <= figures.all_matches.together.alerts
    by_rule = {name: sum(each["rule_id"] == name and each["alert_id"] in alert_ids for each in sent) for name in RULES}
    assert {each.rule: each.alerts for each in figures.rules} == by_rule
    unlimited = by_budget(measured.judged, measured.marks, figures.about["days"])[-1]
    assert unlimited["alerts"] <= len(alert_ids)
    if as_of_ms is None:
        assert figures.all_matches.together.alerts - len(alert_ids) == sum(figures.about["matches_not_sent"].values())
    mature = measured.marks.is_mature[measured.judged.bound_row]
    has_immature = np.zeros(len(alert_ids), np.bool_)
    has_immature[measured.judged.bound_alert[~mature]] = True
    assert figures.together.precision.whole == int((~has_immature).sum())
