"""Every engine gives the matches of the corpus: the oracle, the kernels, whole jobs in one process and on Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.corpus import engines, greedy
from tests.corpus.cases import Case, read_cases
from tests.seeds import seeds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
CASES = read_cases()
ENDED = [case for case in CASES if case.ends]
NAMED = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def differences(cases: list[Case], answers: dict[str, engines.Answer]) -> list[str]:
    return [
        f"{case.name}: {answers[case.id]}, not {engines.expected(case)}"
        for case in cases
        if answers[case.id] != engines.expected(case).sorted()
    ]


@NAMED
def test_the_oracle(case: Case) -> None:
    assert engines.by_oracle(case) == engines.expected(case), str(engines.by_oracle(case))


@NAMED
def test_advance(case: Case) -> None:
    assert engines.by_advance(case).sorted() == engines.expected(case).sorted(), str(engines.by_advance(case))


@NAMED
def test_advance_one_by_one(case: Case) -> None:
    assert engines.by_advance_one_by_one(case).sorted() == engines.expected(case).sorted(), str(
        engines.by_advance_one_by_one(case)
    )


def test_kernels_that_are_not_compiled() -> None:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "tests.corpus.engines"]
    result = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.strip()) == (0, ""), result.stderr


def test_a_replay_in_one_process(tmp_path: Path) -> None:
    assert differences(ENDED, engines.by_embedded_replay(ENDED, tmp_path)) == []


def test_a_live_job_in_one_process(tmp_path: Path) -> None:
    assert differences(ENDED, engines.by_embedded_live(ENDED, tmp_path)) == []


@pytest.mark.spark
def test_a_replay_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    from cep.runners.spark.replay import read_events, replay  # noqa: PLC0415 the other engines need no Spark

    corpus = engines.CorpusJob.of(ENDED)
    events = read_events(spark, corpus.write_history(tmp_path))
    alerts = replay(corpus.job, corpus.deployment.rulebook, events, 2).alerts
    assert differences(ENDED, engines.of_alerts(ENDED, alerts)) == []


def test_a_topic_has_many_cases() -> None:
    assert {case.topic for case in CASES} == {"absence", "repetition", "sequence", "skip", "windows"}
    assert len(CASES) >= 47


if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCK = 100
ON_SPARK = 200


@pytest.mark.parametrize("block", seeds(24))
def test_a_greedy_loop_ends_with_the_event_that_it_cannot_take(block: int) -> None:
    assert list(greedy.differences(range(block * BLOCK, (block + 1) * BLOCK))) == []


@pytest.mark.spark
def test_a_replay_on_spark_finds_what_the_oracle_finds(spark: SparkSession, tmp_path: Path) -> None:
    from cep.runners.spark.replay import read_events, replay  # noqa: PLC0415 the other engines need no Spark

    cases = [greedy.greedy_case(seed) for seed in range(ON_SPARK)]
    corpus = engines.CorpusJob.of(cases)
    events = read_events(spark, corpus.write_history(tmp_path))
    answers = engines.of_alerts(cases, replay(corpus.job, corpus.deployment.rulebook, events, 2).alerts)
    assert answers == engines.by_embedded_replay(cases, tmp_path)
    assert [case.name for case in cases if answers[case.id] != engines.by_oracle(case).sorted()] == []
