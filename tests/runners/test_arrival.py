"""Events of one time and random ids, without a declared field: arrival is their order, on every path that has one.

On Spark, arrival orders files, however tasks share them, and ids order other rows. Live jobs without lateness on a
topic and both replays give the same alerts, repeats or not: a partition brings the events in their order, by
microseconds, then by the field of `order by`.
"""

import csv
import io
import itertools
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import cep
from cep.base.limits import DEDUP_MS_DEFAULT
from cep.cli.main import main
from cep.columnar.decode import decode_json, in_partition
from cep.rulebook.deploy import deploy
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.replay import replay
from cep.runners.spark import replay as on_spark
from cep.runners.spark.live import LiveSettings
from cep.runners.spark.live_output import LiveOutput
from cep.runners.spark.sources import FolderSource
from cep.sinks.files import DeadLetterFiles
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from cep.state.memory import MemoryStore
from cep.step.job import Job
from tests.real_kafka import KafkaCluster, new_topic
from tests.rule_files import rule_text
from tests.runners.embedded.cases import save
from tests.runners.parity_cases import tied
from tests.runners.spark.live_cases import END, LiveRun, disordered, replayed, run_live, time_ms, write_file
from tests.runners.spark.live_cases import rows as alert_rows
from tests.runners.spark.live_kafka import TopicRun, changed

FRAUDS = 2_000
PATTERN = """\
event t { tx_id id  event_time time  card_id string  kind string }
pattern steps by card_id { seq d{3} -> hit within 1 h where d: t kind == "d"  hit: t kind == "h" skip past last }
"""
RULE = rule_text("steps")
START_MS = 1_772_323_200_000


def frauds() -> list[dict[str, object]]:
    """Three declines and a hit of each card, in one second and in this order, between those of other cards."""
    random = Random("arrival")
    waiting = [["h", "d", "d", "d"] for _ in range(FRAUDS)]
    cards, rows = list(range(FRAUDS)), []
    while cards:
        place = random.randrange(min(40, len(cards)))
        card = cards[place]
        event = {"tx_id": f"{random.getrandbits(64):016x}", "event_time": START_MS + card // 100 * 1_000}
        rows.append({**event, "card_id": f"c{card}", "kind": waiting[card].pop()})
        if not waiting[card]:
            cards.pop(place)
    return sorted(rows, key=lambda row: int(str(row["event_time"])))


@pytest.fixture(scope="module")
def rows() -> list[dict[str, object]]:
    return frauds()


def as_lines(rows: list[dict[str, object]]) -> bytes:
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def as_csv(rows: list[dict[str, object]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def as_parquet(rows: list[dict[str, object]]) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(rows)
    times = table["event_time"].cast(pa.timestamp("ms", "UTC"))
    pq.write_table(table.set_column(1, "event_time", times), sink, row_group_size=700)
    return bytes(sink.getvalue())


FORMS = {"jsonl": as_lines, "csv": as_csv, "parquet": as_parquet}


def replayed_count(folder: Path, events: Path) -> int:
    (folder / "p.cep").write_text(PATTERN)
    out = folder / "alerts.jsonl"
    assert main(["replay", "--rules", str(rules_in(folder)), "--events", str(events), "--out", str(out)]) == 0
    return len(out.read_bytes().splitlines())


def rules_in(folder: Path) -> Path:
    rules = folder / "rules"
    rules.mkdir()
    (rules / "p.cep").write_text(PATTERN)
    (rules / "steps.toml").write_text(RULE)
    return rules


@pytest.mark.parametrize("form", FORMS)
def test_a_file_has_every_fraud(form: str, rows: list[dict[str, object]], tmp_path: Path) -> None:
    path = tmp_path / f"events.{form}"
    path.write_bytes(FORMS[form](rows))
    assert replayed_count(tmp_path, path) == FRAUDS


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_has_every_fraud(form: str, rows: list[dict[str, object]], tmp_path: Path) -> None:
    """Files by their names, whatever their times and sizes; a fraud may begin in one and end in the next one."""
    folder = tmp_path / "events"
    folder.mkdir()
    bounds = [0, 10, 3_001, 3_002, 7_003, len(rows)]
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        (folder / f"{number:03}.{form}").write_bytes(FORMS[form](rows[first:end]))
    assert replayed_count(tmp_path, folder) == FRAUDS


def test_a_frame_has_every_fraud(rows: list[dict[str, object]]) -> None:
    frame = pd.DataFrame(rows)
    frame["event_time"] = pd.to_datetime(frame["event_time"], unit="ms", utc=True)
    assert cep.parse(PATTERN).match(frame).table.num_rows == FRAUDS


def test_a_live_folder_has_every_fraud(rows: list[dict[str, object]], tmp_path: Path) -> None:
    """Two starts, small micro-batches, and no lateness."""
    events = tmp_path / "events"
    events.mkdir()
    words = ["run", "--rules", str(rules_in(tmp_path)), "--events", str(events), "--checkpoint", str(tmp_path / "job")]
    words += ["--alerts", str(tmp_path / "alerts"), "--available-now", "--max-records", "37"]
    for number, (first, end) in enumerate(itertools.pairwise([0, 1_501, len(rows)])):
        write_file(events / f"{number}.jsonl", as_lines(rows[first:end]).splitlines(), number)
        assert main(words) == 0
    assert len(alerts_in(tmp_path / "alerts")) == FRAUDS


def test_a_topic_has_every_fraud(rows: list[dict[str, object]], kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    """Several partitions, each card in one of them."""
    topic = new_topic(kafka_broker)
    records = [{"value": orjson.dumps(row), "partition": int(str(row["card_id"])[1:]) % 4} for row in rows]
    kafka_broker.send(topic, records)
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "end.jsonl").write_bytes(END)
    words = ["run", "--rules", str(rules_in(tmp_path)), "--topic", topic, "--checkpoint", str(tmp_path / "job")]
    words += ["--bootstrap-servers", kafka_broker.address, "--control", str(tmp_path / "control")]
    words += ["--alerts", str(tmp_path / "alerts"), "--available-now", "--max-records", "500"]
    assert main(words) == 0
    assert len(alerts_in(tmp_path / "alerts")) == FRAUDS


def alerts_in(folder: Path) -> list[bytes]:
    return [line for path in folder.iterdir() for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("lateness_ms", [0, 20])
@pytest.mark.parametrize("seed", range(3))
def test_any_cut_gives_the_alerts_of_the_replay(seed: int, lateness_ms: int, partitions: int, tmp_path: Path) -> None:
    """Several partitions are an archive with a file each. Events are disordered by less than the lateness."""
    random = Random(seed)
    stream = tied(seed, is_declared=False)
    deployment = deploy(stream.records)
    job = Job(deployment.schema, deployment.key_domains, 4, lateness_ms=lateness_ms)
    arriving = disordered(stream.lines, lateness_ms, seed) if lateness_ms else stream.lines
    sent = [(random.randrange(partitions), line) for line in arriving]
    history = tmp_path / "history"
    history.mkdir()
    for number in range(partitions):
        lines = [line for partition, line in sent if partition == number]
        (history / f"{number}.jsonl").write_bytes(b"\n".join(lines))
    batch = Job(deployment.schema, deployment.key_domains, to_the_end=True)
    replayed = replay(batch, deployment.rulebook, read_pieces(history, job.schema), 2)
    expected = sorted(json_lines(replayed.alerts))
    assert len(expected) > 20
    initial = tuple(record.to_json() for record in stream.records)
    alerts, counters = run(job, initial, sent, random)
    assert alerts == expected
    assert counters["ties_out_of_order"] == counters["late_events"] == 0


def run(
    job: Job, initial: tuple[bytes, ...], sent: list[tuple[int, bytes]], random: Random
) -> tuple[list[bytes], Counter[str]]:
    """Match micro-batches of random sizes, and start again in between."""
    store, counters, alerts = MemoryStore(), Counter[str](), list[bytes]()
    engine = Engine(job, initial, store, Workers(2))
    bounds = sorted({0, len(sent), *(random.randrange(len(sent)) for _ in range(40))})
    for commit, (first, end) in enumerate(itertools.pairwise(bounds), 1):
        piece = sent[first:end]
        values = pa.array([line for _, line in piece], pa.large_binary())
        decoded = in_partition(decode_json(job.schema, values), np.array([partition for partition, _ in piece]))
        latest: dict[str, int] = {}
        for partition, line in piece:
            latest[str(partition)] = max(latest.get(str(partition), 0), time_ms(line))
        times = {name: (ms, False) for name, ms in latest.items()}
        if first == 0:  # a job knows all partitions of its topic
            times = {**{str(partition): (-(2**62), True) for partition, _ in sent}, **times}
        stepped = engine.step([decoded], (), times)
        alerts += json_lines(stepped.alerts)
        counters.update(stepped.counters)
        if random.random() < 0.2:
            save(engine, commit)
            engine.close()
            engine = Engine(job, initial, store, Workers(random.choice([1, 3])))
            engine.restore()
    alerts += json_lines(engine.step([], (END,), {}).alerts)
    engine.close()
    return sorted(alerts), counters


@pytest.mark.spark
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
    run_live(spark, LiveSettings(job, live.initial, *folders, live.checkpoint), output)
    live.phase([], [END])
    assert live.alerts() == expected
    assert live.totals["ties_out_of_order"] == 0


@pytest.mark.spark
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


@pytest.mark.spark
@pytest.mark.slow
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
    assert alert_rows(expected.alerts) == alert_rows(clean.alerts), "repeats change nothing"
    theirs = replayed(spark, history, batch, stream.records)
    assert alert_rows(theirs.alerts) == alert_rows(expected.alerts)
    assert live.alerts() == alert_rows(expected.alerts)
    for name in ("duplicates", "reused_ids"):
        assert live.totals[name] == theirs.counters[name] == expected.counters[name] > 0
    assert live.totals["ties_out_of_order"] == 0
    letters = [letter for letter in live.letters if letter["code"] == "reused_id"]
    assert len(letters) == live.totals["reused_ids"]

    alerts = ran_on_topic(tmp_path / "run", live, stream.records[0].source, 2)  # type: ignore[union-attr]
    assert facts(alerts) == facts(alert_rows(expected.alerts))


@pytest.mark.spark
@pytest.mark.slow
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
    assert live.alerts() == alert_rows(expected.alerts)
    assert live.totals["late_events"] == live.totals["ties_out_of_order"] == 0
    alerts = ran_on_topic(tmp_path / "run", live, stream.records[0].source, 1)  # type: ignore[union-attr]
    assert facts(alerts) == facts(alert_rows(expected.alerts))


def ran_on_topic(folder: Path, live: TopicRun, source: str, starts: int) -> list[bytes]:
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
