"""A job moves between `cep run` and `cep live` at a random point and keeps all: its alerts equal a replay.

The move keeps the whole state of a job: runs, histories, events that wait for the watermark, ids of events that may
come again, a future change of a rule, the last alerts of keys. The number of tasks and processes changes on the way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from cep.base.errors import SinkError, UsageError
from cep.base.utc import utc_text
from cep.cli.main import main
from cep.model.rule import UpsertRecord
from cep.rulebook.deploy import deploy
from cep.rulebook.suppression import Policies, suppress_alerts
from cep.runners.embedded import replay as embedded
from cep.runners.embedded.targets import is_embedded
from cep.runners.handover.to_spark import load_for_spark
from cep.runners.live_checkpoint import open_checkpoint, read_job
from cep.runners.spark.live_output import LiveOutput
from cep.runners.spark.to_savepoint import save_for_both
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from cep.state.target import Target
from cep.step.job import Job
from tests.real_kafka import KafkaCluster
from tests.runners.spark.live_cases import (
    END,
    LiveRun,
    disordered,
    make_job,
    payments,
    rules,
    split,
    time_ms,
    write_file,
)
from tests.runners.spark.live_kafka import TopicRun, send

pytestmark = pytest.mark.spark

RULES = Path(__file__).parents[3] / "rules"
LATENESS_MS, DEDUP_MS, GROUPS = 60_000, 600_000, 8
SEEDS = [pytest.param(1), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]


@dataclass(frozen=True)
class Case:
    """A stream in order of arrival, with repeated records, its cut, and a change of a rule before the cut."""

    lines: list[bytes]
    cut: int
    change: UpsertRecord | None

    @property
    def job(self) -> Job:
        return replace(make_job(rules().values(), LATENESS_MS), dedup_ms=DEDUP_MS)

    @property
    def initial(self) -> tuple[bytes, ...]:
        return tuple(record.to_json() for record in rules().values())

    def expected(self, folder: Path) -> list[bytes]:
        """Return the sent alerts of a replay of every event once, with the change in its place."""
        path = folder / "history.jsonl"
        path.write_bytes(b"\n".join(dict.fromkeys(self.lines)))
        deployed = deploy(rules().values())
        if self.change is not None:
            assert deployed.rulebook.apply(self.change, None).kind == "applied"
        # The live jobs of the tests get a watermark at the end of time, and so does the replay.
        job = Job(deployed.schema, deployed.key_domains, to_the_end=True)
        alerts = embedded.replay(job, deployed.rulebook, read_pieces(path, job.schema), 1).alerts
        return sorted(json_lines(suppress_alerts(alerts, Policies.of(deployed.rulebook), {}).alerts))


def case(seed: int) -> Case:
    random = np.random.default_rng(seed)
    lines = disordered(payments(seed), LATENESS_MS, seed)
    for position in sorted(random.integers(50, len(lines), 300).tolist(), reverse=True):
        lines.insert(
            position, lines[position - int(random.integers(1, 40))]
        )  # within the window, before and after the cut
    cut = int(random.integers(len(lines) // 3, len(lines) * 2 // 3))
    at_ms = time_ms(lines[cut]) + 1_800_000  # the job knows it before the cut, and it starts after the cut
    old = rules()["card_testing"]
    change = old.model_copy(update={"version": 2, "params": {"tries": 2}, "effective_at": utc_text(at_ms)})
    return Case(lines, cut, change)


def changes_of(given: Case) -> list[bytes]:
    return [] if given.change is None else [given.change.to_json()]


def run(folder: Path, checkpoint: Path, *more: str) -> int:
    """Run one process of `cep run`, to the end of the events."""
    times = ["--lateness", f"{LATENESS_MS} ms", "--dedup", f"{DEDUP_MS} ms", "--key-groups", str(GROUPS)]
    sources = ["--events", str(folder / "events"), "--control", str(folder / "control")]
    out = ["--alerts", str(folder / "alerts" / checkpoint.name), "--checkpoint", str(checkpoint)]
    return main(["run", "--rules", str(RULES), *sources, *times, *out, "--available-now", *more])


def written(folder: Path) -> list[bytes]:
    return [line for path in sorted(folder.rglob("*.jsonl")) for line in path.read_bytes().splitlines()]


def place(folder: Path, files: Sequence[Sequence[bytes]], first: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, lines in enumerate(files, first):
        write_file(folder / f"{number:03}.jsonl", lines, number)


@pytest.mark.parametrize("seed", SEEDS)
def test_from_one_process_to_spark(
    seed: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved_case = case(seed)
    folder = tmp_path / "job"
    live = LiveRun(spark, folder, moved_case.job, moved_case.initial, partitions=3)
    (folder / "alerts").mkdir()
    place(folder / "events", split(moved_case.lines[: moved_case.cut], 2), 0)
    assert run(folder, tmp_path / "one") == 0
    place(folder / "control", [changes_of(moved_case)], 2)
    live.files_count = 3
    assert run(folder, tmp_path / "one") == 0
    assert main(["job", "savepoint", "--checkpoint", str(tmp_path / "one"), "--to", str(tmp_path / "saved")]) == 0
    restore = ["job", "restore", "--from", str(tmp_path / "saved"), "--checkpoint", str(folder / "checkpoint")]
    assert main([*restore, "--engine", "spark"]) == 0
    # Like a second `cep live`, it continues with the same rules and must be the same job.
    assert open_checkpoint(folder / "checkpoint", moved_case.job, ()) == (moved_case.initial, True)
    stored = read_job(folder / "checkpoint")
    assert stored is not None
    assert stored.digest_key
    live.job = replace(live.job, digest_key=stored.digest_key)
    with pytest.raises(UsageError, match="other lateness"):
        open_checkpoint(folder / "checkpoint", replace(moved_case.job, lateness_ms=1), ())

    rest = split(moved_case.lines[moved_case.cut :], 3)
    with monkeypatch.context() as patched:
        patched.setattr(LiveOutput, "take_table", _refuse)
        with pytest.raises(SinkError, match="between two steps"):
            live.phase(rest[:1])  # keyed state is written, and the micro-batch is repeated
    live.phase(rest[1:])
    live.phase([], [END])
    expected = moved_case.expected(tmp_path)
    first = written(folder / "alerts")
    assert 0 < len(first) < len(expected)
    assert sorted([*first, *live.alerts()]) == expected
    assert live.reports[0].batch_id > 1, "numbers go on, so that no file of alerts is written over"
    assert live.totals["events"] == len(moved_case.lines)
    assert live.totals["duplicates"] == len(moved_case.lines) - len(set(moved_case.lines))


def _refuse(*_: object) -> None:
    raise SinkError("killed between two steps")


@pytest.mark.parametrize("seed", SEEDS)
def test_from_spark_to_two_processes(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    moved_case = case(seed)
    folder = tmp_path / "job"
    live = LiveRun(spark, folder, moved_case.job, moved_case.initial, partitions=3)
    checkpoint = folder / "checkpoint"
    open_checkpoint(checkpoint, moved_case.job, moved_case.initial)
    live.phase(split(moved_case.lines[: moved_case.cut // 2], 2), changes_of(moved_case))
    live.phase([moved_case.lines[moved_case.cut // 2 : moved_case.cut]])
    saved = tmp_path / "saved"
    assert len(save_for_both(spark, checkpoint, Target(str(saved))).groups) == GROUPS
    (folder / "alerts").mkdir()
    place(folder / "events", split(moved_case.lines[moved_case.cut :], 2), live.files_count)
    for name, groups in (("left", "0-4"), ("right", "5-7")):
        assert (
            main(["job", "restore", "--from", str(saved), "--checkpoint", str(tmp_path / name), "--groups", groups])
            == 0
        )
        assert run(folder, tmp_path / name, "--groups", groups) == 0
    place(folder / "control", [[END]], 90)
    for name, groups in (("left", "0-4"), ("right", "5-7")):
        assert run(folder, tmp_path / name, "--groups", groups) == 0
    expected = moved_case.expected(tmp_path)
    assert 0 < len(live.alerts()) < len(expected)
    assert sorted([*live.alerts(), *written(folder / "alerts")]) == expected


def test_a_topic_is_read_on_where_the_other_has_stopped(
    spark: SparkSession, kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    """One process, then Spark, then one process again, each with a third of the topic's records."""
    moved_case = case(9)
    folder = tmp_path / "job"
    live = TopicRun(spark, kafka_broker, folder, moved_case.job, moved_case.initial, 4, 500)
    (folder / "alerts").mkdir()
    records = [(number % 3, line) for number, line in enumerate(moved_case.lines)]
    first, second, third = (records[len(records) * n // 3 : len(records) * (n + 1) // 3] for n in range(3))

    def run_topic(checkpoint: Path) -> None:
        times = ["--lateness", f"{LATENESS_MS} ms", "--dedup", f"{DEDUP_MS} ms", "--key-groups", str(GROUPS)]
        sources = ["--bootstrap-servers", kafka_broker.address, "--topic", live.topic]
        sources += ["--control", str(folder / "control")]
        out = ["--alerts", str(folder / "alerts" / checkpoint.name), "--checkpoint", str(checkpoint)]
        assert main(["run", "--rules", str(RULES), *sources, *times, *out, "--available-now"]) == 0

    send(kafka_broker, live.topic, first)
    run_topic(tmp_path / "one")
    assert main(["job", "savepoint", "--checkpoint", str(tmp_path / "one"), "--to", str(tmp_path / "s1")]) == 0
    load_for_spark(Target(str(tmp_path / "s1")), folder / "checkpoint")
    live.phase(second)
    save_for_both(spark, folder / "checkpoint", Target(str(tmp_path / "s2")))
    assert main(["job", "restore", "--from", str(tmp_path / "s2"), "--checkpoint", str(tmp_path / "two")]) == 0
    send(kafka_broker, live.topic, third)
    run_topic(tmp_path / "two")
    write_file(folder / "control" / "end.jsonl", [END], 90)
    run_topic(tmp_path / "two")
    alerts = sorted([*written(folder / "alerts"), *live.alerts()])
    assert alerts == replace(moved_case, change=None).expected(tmp_path)
    assert json.loads((folder / "checkpoint" / "progress.json").read_bytes())["totals"]["events"] == len(first + second)


def test_there_and_back_is_the_same(spark: SparkSession, tmp_path: Path) -> None:
    """A savepoint of Spark, loaded into Spark and saved once more without an event in between, has equal entries."""
    moved_case = case(7)
    live = LiveRun(spark, tmp_path / "job", moved_case.job, moved_case.initial)
    checkpoint = tmp_path / "job" / "checkpoint"
    open_checkpoint(checkpoint, moved_case.job, moved_case.initial)
    live.phase([moved_case.lines[: moved_case.cut]])
    first = save_for_both(spark, checkpoint, Target(str(tmp_path / "first")))
    loaded = load_for_spark(Target(str(tmp_path / "first")), tmp_path / "again")
    assert loaded.entries > GROUPS
    assert first.groups == loaded.groups
    assert not is_embedded(tmp_path / "again")
    with pytest.raises(UsageError, match="no finished micro-batch yet"):
        save_for_both(spark, tmp_path / "again", Target(str(tmp_path / "second")))
    with pytest.raises(UsageError, match="is not empty"):
        load_for_spark(Target(str(tmp_path / "first")), tmp_path / "again")
