"""The embedded replay equals the oracle and the replay on Spark, for every file and number of threads."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import orjson
import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from cep.base.text import utc_text
from cep.cli import replay as verb
from cep.model.rule import ControlRecord, RetireRecord
from cep.rulebook.deploy import deploy
from cep.runners.embedded import replay as embedded
from cep.runners.output import Replayed
from cep.runners.spark import replay as on_spark
from cep.sinks.json_form import json_lines
from cep.sources import pieces
from cep.sources.pieces import read_pieces
from cep.step.job import Job
from tests.runners.spark.transactions import BY_CUSTOMER, BY_TERMINAL, oracle_alerts, records, transactions


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the same transactions in three kinds of files."""
    folder, table = tmp_path_factory.mktemp("history"), transactions()
    pq.write_table(table, folder / "events.parquet", row_group_size=4_000)
    pc_csv.write_csv(table, folder / "events.csv")
    (folder / "events.jsonl").write_bytes(b"\n".join(orjson.dumps(row) for row in table.to_pylist()))
    return folder


def run(path: Path, records: list[Any], workers: int = 2) -> Replayed:
    deployment = deploy(records)
    assert deployment.set_aside == ()
    job = Job(deployment.schema, deployment.key_domains)
    return embedded.replay(job, deployment.rulebook, read_pieces(path, job.schema), workers)


@pytest.mark.slow
@pytest.mark.always
def test_it_finds_what_the_oracle_finds(history: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_EVENTS_AT_ONCE", 1_000)
    replayed = run(history / "events.parquet", records("rising", "terminal_quiet"))
    alerts = {
        (
            alert["rule_id"],
            alert["key"],
            tuple(event["event_id"] for event in alert["events"]),
            round(alert["detected_at"].timestamp() * 1000),
        )
        for alert in replayed.alerts.to_pylist()
    }
    table = transactions()
    expected = oracle_alerts(table, "rising") | oracle_alerts(table, "terminal_quiet")
    last_ms = max(table["event_time"].cast(pa.int64()).to_pylist())
    assert alerts == {alert for alert in expected if alert[-1] <= last_ms}, "no absence is certain after the last event"
    assert replayed.counters["events"] == replayed.counters["records"] == len(table)


@pytest.mark.slow
@pytest.mark.always
def test_files_threads_and_shares_do_not_matter(history: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules_of_test = records(*BY_CUSTOMER, *BY_TERMINAL)
    expected = run(history / "events.parquet", rules_of_test, workers=1)
    assert expected.alerts.num_rows > 1_000
    monkeypatch.setattr(pieces, "PIECE_ROWS", 777)
    for kind, workers, at_once in (("parquet", 4, 500), ("csv", 2, 5_000), ("jsonl", 3, 2_000)):
        monkeypatch.setattr(embedded, "_EVENTS_AT_ONCE", at_once)
        replayed = run(history / f"events.{kind}", rules_of_test, workers)
        assert replayed.dead_letters == ()
        assert replayed.alerts.equals(expected.alerts), kind


@pytest.mark.spark
def test_it_is_the_replay_on_spark_byte_for_byte(spark: SparkSession, history: Path, tmp_path: Path) -> None:
    times = sorted(transactions()["event_time"].cast(pa.int64()).to_pylist())
    first, *others = records(*BY_CUSTOMER, *BY_TERMINAL)
    control_records: list[ControlRecord] = [
        first,
        *others,
        first.model_copy(
            update={"version": 2, "params": {"times": 4}, "effective_at": utc_text(times[len(times) // 3])}
        ),
        RetireRecord(id=others[0].id, version=2, effective_at=utc_text(times[len(times) // 2])),
    ]
    lines = (history / "events.jsonl").read_bytes().splitlines()
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join([*lines[:50], b"{", b"", lines[0].replace(b'"amount":', b'"amount":"x'), *lines[50:]]))
    deployment = deploy(control_records)
    job = Job(deployment.schema, deployment.key_domains)
    theirs = on_spark.replay(job, deployment.rulebook, on_spark.read_events(spark, path), 2)
    ours = run(path, control_records)
    assert list(json_lines(ours.alerts)) == list(json_lines(theirs.alerts))
    assert ours.alerts.num_rows > 1_000
    assert sorted(ours.dead_letters) == sorted(theirs.dead_letters)
    assert len(ours.dead_letters) == 2

    def counted(replayed: Replayed) -> dict[str, int]:
        # The number of visits to runs depends on how keys are grouped.
        return {name: count for name, count in replayed.counters.items() if count and name != "run_steps"}

    assert counted(ours) == counted(theirs)


@pytest.mark.slow
@pytest.mark.always
def test_replay_imports_neither_spark_nor_java(tmp_path: Path) -> None:
    """A separate process without pyspark and Java does not try Spark, and says that it is missing."""
    rules = Path(__file__).parents[3] / "rules"
    payment = {
        "tx_id": "t1", "event_time": 1_772_323_200_000, "card_id": "c1", "account_id": "a1", "amount": 1.5,
        "status": "approved", "channel": "pos", "country": "PT",
    }  # fmt: skip
    (tmp_path / "events.jsonl").write_bytes(orjson.dumps(payment) + b"\n{}\n")
    script = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import cep.cli.replay\n"
        "cep.cli.replay.IN_PROCESS_BYTES_MAX = 0\n"  # without this, so little data is never for Spark
        "from cep.cli.main import main\n"
        f"sys.exit(main(['replay', '--rules', {str(rules)!r}, '--events', {str(tmp_path / 'events.jsonl')!r}, "
        f"'--out', {str(tmp_path / 'alerts.jsonl')!r}, '--rejected-max', '0.5']))"
    )
    environment = {"PATH": "", "JAVA_HOME": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": str(rules.parent)}
    # Without this, all kernels are compiled again for the new home.
    environment["CEP_KERNEL_CACHE"] = str(Path(numba.config.CACHE_DIR).parents[1])  # type: ignore[attr-defined]
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment, timeout=120
    )
    assert process.returncode == 0, process.stderr
    assert "the embedded engine takes its place" in " ".join(process.stderr.split())  # lines break anywhere
    assert (tmp_path / "alerts.jsonl").read_bytes() == b""
    assert (tmp_path / "alerts.jsonl.dead.jsonl").exists()


@pytest.mark.parametrize(
    ("bytes_count", "words", "engine"),
    [
        (9, [], "embedded"),
        (10, [], "spark"),
        (9, ["--partitions", "2"], "spark"),
        (10, ["--engine", "embedded"], "embedded"),
    ],
)
def test_a_small_history_is_not_worth_a_start_of_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_count: int, words: list[str], engine: str
) -> None:
    monkeypatch.setattr(verb, "IN_PROCESS_BYTES_MAX", 9)
    monkeypatch.setattr(verb, "check_java", lambda: None)
    (tmp_path / "events.jsonl").write_bytes(b" " * bytes_count)
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    options = parser.parse_args(["--events", str(tmp_path), "--out", "alerts.jsonl", *words])
    assert verb._engine(options, options.events, Console()) == engine
