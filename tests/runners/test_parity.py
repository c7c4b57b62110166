"""One rulebook, one stream, four ways to match it: the replay, the replay on Spark, `cep run`, `cep live`.

All give the same alerts, byte for byte, for any division of the events and any threads, tasks, stores and restarts from
a checkpoint, and with a new version that takes runs over.
"""

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cep.base.limits import MATCHES_PER_EVENT_MAX
from cep.rulebook.deploy import deploy
from cep.rulebook.rulebook import by_level
from cep.rulebook.suppression import Policies, suppress_alerts
from cep.runners.embedded import replay as embedded
from cep.runners.embedded.engine import Workers
from cep.runners.embedded.run import Pace
from cep.runners.meanings import is_loss
from cep.runners.spark import replay as on_spark
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from cep.step.job import Job
from cep.step.rules import rule_status
from tests.rulebook.carry_cases import drawn as carried
from tests.runners.embedded.outside import run_once
from tests.runners.parity_cases import Stream, drawn, hot, losing, public, simulated_day, tied
from tests.runners.spark.live_cases import END, LiveRun, disordered, write_file

pytestmark = pytest.mark.spark


GROUPS = 8
SLOW = pytest.mark.slow


# The alerts of one way, sorted, and its counters.
Found = tuple[list[bytes], Counter[str]]


def ways(spark: SparkSession, folder: Path, stream: Stream, seed: int) -> dict[str, Found]:
    random = np.random.default_rng(seed)
    deployed = deploy(stream.records)
    assert deployed.set_aside == ()
    lateness_ms = int(random.choice([0, 3_600_000]))
    levels = len(by_level(deployed.rulebook.deployed(), deployed.schema))
    job = Job(
        deployed.schema, deployed.key_domains, GROUPS, int(random.integers(1, 4)), lateness_ms, levels_count=levels
    )
    history = folder / "history.jsonl"
    arriving = disordered(stream.lines, lateness_ms, seed) if lateness_ms else stream.lines
    history.write_bytes(b"\n".join(arriving))  # arrival decides between events of one time
    policies = Policies.of(deployed.rulebook)

    def sent(alerts: pa.Table) -> list[bytes]:
        return sorted(json_lines(suppress_alerts(alerts, policies, {}).alerts))

    # The live jobs of the tests get a watermark at the end of time, and so does the replay.
    batch = replace(job, lateness_ms=0, to_the_end=True)
    replayed = embedded.replay(batch, deployed.rulebook, read_pieces(history, job.schema), 2)
    theirs = on_spark.replay(batch, deployed.rulebook, on_spark.read_events(spark, history), 2)
    return {
        "replay": (sent(replayed.alerts), replayed.counters),
        "replay on Spark": (sent(theirs.alerts), theirs.counters),
        "cep run": ran(folder / "run", job, stream, arriving, random),
        "cep live": lived(spark, folder / "live", job, stream, arriving, random),
    }


def pieces(lines: list[bytes], random: np.random.Generator, count: int) -> list[list[bytes]]:
    bounds = [0, *sorted(random.integers(1, len(lines), count - 1).tolist()), len(lines)]
    return [lines[a:b] for a, b in itertools.pairwise(bounds) if a < b]


def ran(folder: Path, job: Job, stream: Stream, arriving: list[bytes], random: np.random.Generator) -> Found:
    """Run like `cep run`: three starts, the last with the heartbeat that closes every window."""
    for name in ("events", "control"):
        (folder / name).mkdir(parents=True)
    backend = str(random.choice(["memory", "rocksdb"]))
    initial = tuple(record.to_json() for record in stream.records)
    for number, lines in enumerate([*pieces(arriving, random, 2), []]):
        if lines:
            write_file(folder / "events" / f"{number}.jsonl", lines, number)
        else:
            write_file(folder / "control" / "end.jsonl", [END], number)
        page_bytes = None if backend == "memory" else int(random.integers(1, 200_000))
        workers = Workers(int(random.integers(1, 4)), page_bytes_max=page_bytes)
        pace = Pace(interval_ms=int(random.integers(1, 200)), records_max=int(random.integers(50, 4_000)))
        totals, _ = run_once(folder, job, initial, workers, pace, backend=backend)
    alerts = sorted(line for path in (folder / "alerts").iterdir() for line in path.read_bytes().splitlines())
    return alerts, totals


def lived(
    spark: SparkSession, folder: Path, job: Job, stream: Stream, arriving: list[bytes], random: np.random.Generator
) -> Found:
    """Run like `cep live`: two starts, the second with the heartbeat that closes every window."""
    initial = tuple(record.to_json() for record in stream.records)
    live = LiveRun(spark, folder, job, initial, partitions=int(random.integers(1, 4)))
    live.status = rule_status(deploy(stream.records).rulebook)
    live.phase(pieces(arriving, random, int(random.integers(2, 4))))
    live.phase([], [END])
    return live.alerts(), live.totals


def check(matches_by_runner: dict[str, Found]) -> None:
    expected, _ = matches_by_runner.pop("replay")
    assert expected, "the case says nothing"
    for name, (alerts, _) in matches_by_runner.items():
        assert alerts == expected, name


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=SLOW) for seed in (2, 3))])
def test_the_simulated_day(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    check(ways(spark, tmp_path, simulated_day(seed), seed))


@pytest.mark.parametrize(
    "customers", [pytest.param(40, marks=[SLOW, pytest.mark.always]), pytest.param(None, marks=SLOW)]
)
def test_public_transactions(customers: int | None, spark: SparkSession, tmp_path: Path) -> None:
    check(ways(spark, tmp_path, public(customers), 4))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=SLOW) for seed in range(2, 8))])
def test_rules_drawn_by_a_seed(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    check(ways(spark, tmp_path, drawn(seed), seed))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=SLOW) for seed in (2, 3, 4))])
def test_events_of_one_millisecond_keep_their_order(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    results = ways(spark, tmp_path, tied(seed, is_declared=seed % 2 == 0), seed)
    counts = [counters["ties_out_of_order"] for _, counters in results.values()]
    assert counts == [0] * len(results), "the source brings its events in order"
    check(results)


@SLOW
def test_what_is_bounded_is_bounded_alike(spark: SparkSession, tmp_path: Path) -> None:
    """The oldest runs of a busy key were evicted, and one payment completes more runs than the limit."""
    results = ways(spark, tmp_path, hot(), 5)
    assert len(results["replay"][0]) == MATCHES_PER_EVENT_MAX
    check(results)


@pytest.mark.parametrize("seed", [6, pytest.param(7, marks=SLOW)])
def test_what_is_lost_is_counted_alike(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    """Runs that leave for lack of room, matches beyond a limit, sums beyond 64 bits, records that cannot be read."""
    results = ways(spark, tmp_path, losing(), seed)
    lost = {
        name: {counter: n for counter, n in counters.items() if is_loss(counter) and n}
        for name, (_, counters) in results.items()
    }
    assert lost["replay"].keys() >= {
        "runs_evicted", "rule_runs_evicted[hot@1]", "rule_runs_evicted[loop@1]", "matches_dropped",
        "rule_matches_dropped[hot@1]", "arithmetic_overflows", "rule_overflows[vast@1]", "poison[too_long]",
        "unkeyed[customer_id]", "bad_values[wrong_value@amount]", "bad_values[too_long@terminal_id]",
    }  # fmt: skip
    assert lost["replay"]["flawed_events"] == 7
    assert lost["replay"]["bad_values[wrong_value@opened]"] == 2
    assert lost["replay"]["bad_values[wrong_value@terminal_id]"] == 2
    assert lost["replay"]["bad_values[wrong_value@customer_id]"] == 1
    assert lost["replay"]["unkeyed[customer_id]"] == 2
    for name, counted in lost.items():
        assert counted == lost["replay"], name
    check(results)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_new_version_takes_runs_over(spark: SparkSession, seed: int, tmp_path: Path) -> None:
    case = carried(seed)
    results = ways(spark, tmp_path, Stream(case.lines, list(case.versions("carry"))), seed)
    alerts = {way: alerts for way, (alerts, _) in results.items()}
    assert all(of_way == alerts["replay"] for of_way in alerts.values()), seed
