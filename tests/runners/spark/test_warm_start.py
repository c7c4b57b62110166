"""Replay up to a cut and live from its state, both on Spark: together they give the alerts of a full replay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cep.model.rule import UpsertRecord
from cep.rulebook.deploy import deploy
from cep.runners.embedded.warm_to_spark import begin_warm
from cep.runners.handover.warm_start import About, Ending, finish, job_until, open_warm_start
from cep.runners.spark.replay import read_events, replay
from tests.runners.embedded.cases import day, expected
from tests.runners.handover.test_warm_start import job_for, lines_of
from tests.runners.laundering import records as laundering
from tests.runners.laundering import transfers
from tests.runners.spark.live_cases import END, LiveRun, rows, rules, split, time_ms
from tests.runners.spark.test_live_history import history_lines
from tests.runners.spark.test_live_history import records as histories

pytestmark = [pytest.mark.spark, pytest.mark.slow]
OVERLAP = 30
CASES = {
    "runs": lambda: (list(day()), list(rules().values())),
    "histories": lambda: (history_lines()[:6_000], histories()),
    "levels": lambda: (lines_of(transfers(3, 150)), laundering()),
}


@pytest.mark.parametrize("name", CASES)
def test_replay_and_then_live_are_a_replay_of_everything(spark: SparkSession, name: str, tmp_path: Path) -> None:
    lines, records = CASES[name]()
    cut = len(lines) * 2 // 3
    deployed = deploy(records)
    past = tmp_path / "past.jsonl"
    past.write_bytes(b"\n".join(lines[: cut + OVERLAP]))
    ending = Ending(tmp_path / "state", time_ms(lines[cut]))
    events = read_events(spark, past)
    replayed = replay(job_until(job_for(deployed), ending), deployed.rulebook, events, 2, ending)
    assert replayed.until_ms == time_ms(lines[cut])
    initial = tuple(record.to_json() for record in records)
    finish(ending.folder, replayed.state_files, About(job_for(deployed), initial, replayed.since_ms, replayed.until_ms))
    warm = open_warm_start(str(ending.folder))
    # The live job has its own number of pages and, except in one case, its own number of key groups.
    job = replace(job_for(deployed, 16 if name == "levels" else 8, 2), begins_ms=warm.about.until_ms)
    live = LiveRun(spark, tmp_path / "live", job, initial)
    begin_warm(warm, job, deployed.rulebook, tmp_path / "live" / "checkpoint")
    parts = split(lines[cut - OVERLAP :], 2)
    live.phase(parts[:1])
    live.phase(parts[1:])
    live.phase([], [END])
    assert sorted(rows(replayed.alerts) + live.alerts()) == sorted(expected(lines, deployed, tmp_path))
    assert replayed.alerts.num_rows
    assert live.totals["events_before_start"] > 0
    assert live.totals["late_events"] == 0
    assert live.totals["runs"] >= 0


def test_the_cut_is_behind_the_last_event_if_none_is_given(spark: SparkSession, tmp_path: Path) -> None:
    records: list[UpsertRecord] = list(rules().values())
    lines, deployed = list(day())[:300], deploy(records)
    (tmp_path / "past.jsonl").write_bytes(b"\n".join(lines))
    events = read_events(spark, tmp_path / "past.jsonl")
    replayed = replay(job_for(deployed), deployed.rulebook, events, 2, Ending(tmp_path / "state"))
    times = list(map(time_ms, lines))
    assert (replayed.since_ms, replayed.until_ms) == (min(times), max(times) + 1)
    assert pa.types.is_timestamp(replayed.alerts.schema.field("history_from").type)
