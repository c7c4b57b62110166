"""Events of one time in a topic: live jobs without lateness and both replays give the same alerts, repeats or not.

A partition brings the events in their order: by microseconds, then by the field of `order by`. Their ids are unordered.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import orjson
import pytest
from pyspark.sql import SparkSession

from cep.base.limits import DEDUP_MS_DEFAULT
from cep.cli.main import main
from cep.rulebook.deploy import deploy
from cep.runners.embedded.replay import replay
from cep.sources.pieces import read_pieces
from cep.step.job import Job
from tests.real_kafka import KafkaCluster
from tests.runners.parity_cases import tied
from tests.runners.spark.live_cases import END, replayed, rows
from tests.runners.spark.live_kafka import TopicRun, changed
from tests.runners.test_arrival import RULE

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_topic_keeps_the_order_of_events_of_one_time(
    spark: SparkSession, kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    stream = tied(5)
    # Each seventh event is repeated at once and after a restart, each eleventh also with other content.
    sent: list[bytes] = []
    for number, line in enumerate(stream.lines):
        sent += [line] * (2 if number % 7 == 0 else 1)
        sent += [changed(line, kind="c" if b'"a"' in line else "a")] if number % 11 == 0 else []
    half = len(sent) // 2
    again = sent[half - 20 : half]
    deployed = deploy(stream.records)
    initial = tuple(record.to_json() for record in stream.records)
    job = Job(deployed.schema, deployed.key_domains, 8, dedup_ms=DEDUP_MS_DEFAULT)
    live = TopicRun(spark, kafka_broker, tmp_path / "live", job, initial, 1, records_per_trigger=150)
    live.phase([(0, line) for line in sent[:half]])
    live.phase([(0, line) for line in [*again, *sent[half:]]])
    live.phase([], [END])

    history = tmp_path / "history"
    history.mkdir()
    (history / "events.jsonl").write_bytes(b"\n".join([*sent[:half], *again, *sent[half:]]))
    batch = replace(job, to_the_end=True)
    expected = replay(batch, deployed.rulebook, read_pieces(history, job.schema), 2)
    assert expected.alerts.num_rows > 20
    once = tmp_path / "once.jsonl"
    once.write_bytes(b"\n".join(stream.lines))
    clean = replay(replace(batch, dedup_ms=0), deployed.rulebook, read_pieces(once, job.schema), 2)
    assert rows(expected.alerts) == rows(clean.alerts), "repeats change nothing"
    theirs = replayed(spark, history, batch, stream.records)
    assert rows(theirs.alerts) == rows(expected.alerts)
    assert live.alerts() == rows(expected.alerts)
    for name in ("duplicates", "reused_ids"):
        assert live.totals[name] == theirs.counters[name] == expected.counters[name] > 0
    assert live.totals["ties_out_of_order"] == 0
    letters = [letter for letter in live.letters() if letter["code"] == "reused_id"]
    assert len(letters) == live.totals["reused_ids"]

    alerts = ran(tmp_path / "run", live, stream.records[0].source, 2)  # type: ignore[union-attr]
    assert facts(alerts) == facts(rows(expected.alerts))


@pytest.mark.parametrize("seed", [1, 2])
def test_partitions_of_a_topic_are_in_the_order_of_their_numbers(
    seed: int, spark: SparkSession, kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    """Without a declared field, the live jobs give the alerts of a history with one file for each partition."""
    stream, random = tied(seed, is_declared=False), Random(seed)
    deployed = deploy(stream.records)
    job = Job(deployed.schema, deployed.key_domains, 8)
    sent = [(random.randrange(3), line) for line in stream.lines]
    initial = tuple(record.to_json() for record in stream.records)
    live = TopicRun(spark, kafka_broker, tmp_path / "live", job, initial, 3, records_per_trigger=110)
    for phase in (sent[:207], sent[207:]):
        live.phase(phase)
    live.phase([], [END])

    history = tmp_path / "history"
    history.mkdir()
    for number in range(3):
        (history / f"{number}.jsonl").write_bytes(b"\n".join(line for partition, line in sent if partition == number))
    expected = replay(replace(job, to_the_end=True), deployed.rulebook, read_pieces(history, job.schema), 2)
    assert expected.alerts.num_rows > 20
    assert live.alerts() == rows(expected.alerts)
    assert live.totals["late_events"] == live.totals["ties_out_of_order"] == 0
    alerts = ran(tmp_path / "run", live, stream.records[0].source, 1)  # type: ignore[union-attr]
    assert facts(alerts) == facts(rows(expected.alerts))


def ran(folder: Path, live: TopicRun, source: str, starts: int) -> list[bytes]:
    """Return the alerts of `cep run` on the topic of a live job; a second start reads no record again."""
    for name in ("rules", "control"):
        (folder / name).mkdir(parents=True)
    (folder / "rules" / "p.cep").write_text(source)
    (folder / "rules" / "steps.toml").write_text(RULE)
    (folder / "control" / "end.jsonl").write_bytes(END)
    words = ["run", "--rules", folder / "rules", "--control", folder / "control", "--topic", live.topic]
    words += ["--bootstrap-servers", live.kafka.address, "--checkpoint", folder / "job", "--alerts", folder / "alerts"]
    for _ in range(starts):
        assert main([*map(str, words), "--available-now", "--max-records", "70", "--rejected-max", "0.5"]) == 0
    return [line for path in (folder / "alerts").iterdir() for line in path.read_bytes().splitlines()]


def facts(lines: list[bytes]) -> list[tuple[object, ...]]:
    """Return the parts of alerts that do not depend on the rulebook of a job."""
    return sorted(tuple(orjson.loads(line)[name] for name in ("alert_id", "detected_at")) for line in lines)
