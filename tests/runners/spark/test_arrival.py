"""Events of one time without a declared field on Spark: arrival orders files, however tasks share them; else ids."""

from __future__ import annotations

import itertools
import os
import threading
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

import cep
from cep.rulebook.deploy import deploy
from cep.runners.embedded.replay import replay
from cep.runners.spark import replay as on_spark
from cep.runners.spark.live import LiveSettings, serve, start_live
from cep.runners.spark.live_output import LiveOutput
from cep.runners.spark.sources import FolderSource
from cep.sinks.dead_letters import DeadLetterFiles
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from cep.step.job import Job
from tests.runners.parity_cases import tied
from tests.runners.spark.live_cases import END, LiveRun
from tests.runners.test_arrival import PATTERN, START_MS

pytestmark = pytest.mark.spark


def test_files_are_in_order_however_tasks_share_them(spark: SparkSession, tmp_path: Path) -> None:
    """Six files of one time, read in one micro-batch or by three tasks; Spark would take the largest one first."""
    stream = tied(11, is_declared=False)
    deployment = deploy(stream.records)
    job = Job(deployment.schema, deployment.key_domains, 8)
    live = LiveRun(spark, tmp_path / "live", job, tuple(record.to_json() for record in stream.records))
    events = tmp_path / "live" / "events"
    for number, (first, end) in enumerate(itertools.pairwise([0, 10, 30, 80, 180, 350, 600])):
        path = events / f"{number}.jsonl"
        path.write_bytes(b"\n".join(stream.lines[first:end]))
        os.utime(path, (1_000_000_000, 1_000_000_000))
    batch = replace(job, to_the_end=True)
    expected = sorted(json_lines(replay(batch, deployment.rulebook, read_pieces(events, job.schema), 2).alerts))
    assert len(expected) > 20
    theirs = on_spark.replay(batch, deployment.rulebook, on_spark.read_events(spark, events), 3)
    assert sorted(json_lines(theirs.alerts)) == expected

    output = LiveOutput(live.checkpoint.parent, DeadLetterFiles(tmp_path / "letters"), [], live.reports.append)
    folders = FolderSource(events), FolderSource(tmp_path / "live" / "control")
    serve(
        start_live(spark, LiveSettings(job, live.initial, *folders, live.checkpoint, available_now=True), output),
        output,
        threading.Event(),
    )
    live.phase([], [END])
    assert live.alerts() == expected
    assert live.totals["ties_out_of_order"] == 0


def test_ids_order_a_frame_of_spark_whose_rows_have_no_order(spark: SparkSession) -> None:
    random = Random(3)
    rows = pd.DataFrame({
        "tx_id": [str(number) for number in range(400)],
        "event_time": pd.to_datetime([START_MS] * 400, unit="ms", utc=True),
        "card_id": [f"c{number // 20}" for number in range(400)],
        "kind": [random.choice("dddh") for _ in range(400)],
    })  # fmt: skip
    rules = cep.parse(PATTERN)
    expected = rules.match(rows).table.num_rows
    mixed = spark.createDataFrame(rows.sample(frac=1.0, random_state=1)).repartition(5)
    alerts: Any = rules.match(mixed)
    assert alerts.count() == expected > 10
