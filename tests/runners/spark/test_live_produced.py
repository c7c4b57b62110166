"""Patterns that feed patterns, live: they equal the replay for every cut; a rule without a stage is reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from pyspark.sql import SparkSession

from cep.rulebook.deploy import deploy
from cep.step.job import Job
from tests.runners.laundering import circles, records, transfers
from tests.runners.spark.live_cases import END, LiveRun, disordered, replayed, rows, split
from tests.seeds import RELEASE

pytestmark = pytest.mark.spark


def _job(lateness_ms: int) -> Job:
    deployment = deploy(records())
    assert deployment.set_aside == ()
    return Job(deployment.schema, deployment.key_domains, 8, 1, lateness_ms, levels_count=3)


def _lines(seed: int, count: int) -> list[bytes]:
    lines = []
    for row in transfers(seed, count).to_pylist():
        stamp = row["event_time"].strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        lines.append(orjson.dumps({**row, "event_time": stamp, "event_type": "transfer"}))
    return lines


@pytest.mark.parametrize(
    ("files", "partitions", "lateness_ms"), [pytest.param(3, 2, 0, marks=RELEASE), (4, 1, 200_000)]
)
def test_live_finds_what_replay_finds(
    spark: SparkSession, tmp_path: Path, files: int, partitions: int, lateness_ms: int
) -> None:
    job, lines = _job(lateness_ms), _lines(5, 150)
    arriving = disordered(lines, lateness_ms, 3) if lateness_ms else lines
    live = LiveRun(spark, tmp_path, job, tuple(r.to_json() for r in records()), partitions)
    live.phase(split(arriving, files))
    live.phase([], [END])
    replay_result = replayed(spark, tmp_path / "events", job, records())
    assert replay_result.alerts.num_rows == len(circles(transfers(5, 150))) > 0
    assert live.alerts() == rows(replay_result.alerts)
    counted = ("events", "events_produced", "alerts[circle@1]")
    assert [live.totals[name] for name in counted] == [replay_result.counters[name] for name in counted]
    assert live.totals["late_events"] == 0
    assert live.letters == []


def test_a_rule_that_needs_another_stage_is_told(spark: SparkSession, tmp_path: Path) -> None:
    job = replace(_job(0), levels_count=2)
    first = [r for r in records() if r.id != "circle"]
    live = LiveRun(spark, tmp_path, job, tuple(r.to_json() for r in first), 1)
    live.phase([_lines(5, 30)], [records("circle")[0].to_json()])
    live.phase([], [END])
    (letter,) = live.letters
    assert (letter["code"], letter["rule_id"]) == ("control_refused", "circle")
    assert live.totals["control_refused"] == 1
