"""Greedy loops with gap limits: the engine, the trace, and whole jobs agree with the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.corpus.engines import CorpusJob, by_embedded_replay, by_oracle, of_alerts
from tests.corpus.greedy import differences, greedy_case
from tests.seeds import seeds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCK = 100
ON_SPARK = 200


@pytest.mark.parametrize("block", seeds(24))
def test_a_greedy_loop_ends_with_the_event_that_it_cannot_take(block: int) -> None:
    assert list(differences(range(block * BLOCK, (block + 1) * BLOCK))) == []


@pytest.mark.spark
def test_a_replay_on_spark_finds_what_the_oracle_finds(spark: SparkSession, tmp_path: Path) -> None:
    from cep.runners.spark.replay import read_events, replay  # noqa: PLC0415 the other engines need no Spark

    cases = [greedy_case(seed) for seed in range(ON_SPARK)]
    corpus = CorpusJob.of(cases)
    events = read_events(spark, corpus.write_history(tmp_path))
    answers = of_alerts(cases, replay(corpus.job, corpus.deployment.rulebook, events, 2).alerts)
    assert answers == by_embedded_replay(cases, tmp_path)
    assert [case.name for case in cases if answers[case.id] != by_oracle(case).sorted()] == []
