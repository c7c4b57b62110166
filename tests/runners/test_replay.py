"""Both replays equal the oracle and each other, for every kind of file and every division of the work."""

import io
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numba
import orjson
import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console

from cep.base.errors import InputError, SourceError, UsageError
from cep.base.text import utc_text
from cep.cli import replay as verb
from cep.cli.verbs import Parser
from cep.columnar.convert import Written
from cep.columnar.mapping import FieldMapping
from cep.model.rule import ControlRecord, RetireRecord
from cep.rulebook.deploy import deploy
from cep.runners.embedded import replay as embedded
from cep.runners.output import Replayed
from cep.runners.spark.progress import failure_of, with_progress
from cep.runners.spark.replay import read_events, replay
from cep.sinks.json_form import json_lines
from cep.sources import pieces
from cep.sources.inputs import kind_of
from cep.sources.pieces import read_pieces
from cep.step.job import Job
from tests.runners.embedded.cases import replayed_at
from tests.runners.spark.transactions import BY_CUSTOMER, BY_TERMINAL, oracle_alerts, records, transactions
from tests.runners.test_later_rules import written


@dataclass(frozen=True)
class History:
    """The same transactions as a table and in three kinds of files."""

    table: pa.Table
    folder: Path

    def path(self, kind: str) -> Path:
        return self.folder / f"transactions.{kind}"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    files = History(transactions(), tmp_path_factory.mktemp("history"))
    pq.write_table(files.table, files.path("parquet"), row_group_size=4_000)
    pc_csv.write_csv(files.table, files.path("csv"))
    with files.path("jsonl").open("wb") as file:
        for row in files.table.to_pylist():
            file.write(orjson.dumps(row) + b"\n")
    return files


def run(spark: SparkSession, path: Path, records: list[Any], partitions: int = 2, key_groups: int = 32) -> Replayed:
    deployment = deploy(records)
    assert deployment.set_aside == ()
    job = Job(deployment.schema, deployment.key_domains, key_groups)
    return replay(job, deployment.rulebook, read_events(spark, path), partitions)


def oracle_form(replayed: Replayed) -> set[tuple[str, str, tuple[str, ...], int]]:
    return {
        (
            alert["rule_id"],
            alert["key"],
            tuple(event["event_id"] for event in alert["events"]),
            round(alert["detected_at"].timestamp() * 1000),
        )
        for alert in replayed.alerts.to_pylist()
    }


@pytest.mark.spark
@pytest.mark.parametrize("names", [BY_CUSTOMER, BY_TERMINAL])
def test_replay_finds_what_the_oracle_finds(spark: SparkSession, history: History, names: tuple[str, ...]) -> None:
    replayed = run(spark, history.path("parquet"), records(*names))
    last_ms = max(history.table["event_time"].cast(pa.int64()).to_pylist())
    certain = {alert for alert in oracle_alerts(history.table, *names) if alert[-1] <= last_ms}
    assert oracle_form(replayed) == certain, "no absence is certain after the last event"
    assert replayed.alerts.num_rows == len(oracle_form(replayed)) == len(set(replayed.alerts["alert_id"].to_pylist()))
    assert replayed.counters["events"] == replayed.counters["records"] == len(history.table)
    for name in names:
        assert (
            replayed.counters[f"alerts[{name}@1]"] == sum(rule_id == name for rule_id, *_ in oracle_form(replayed)) > 0
        )


@pytest.mark.spark
def test_files_partitions_and_key_groups_do_not_matter(spark: SparkSession, history: History) -> None:
    rules_of_test = records(*BY_CUSTOMER, *BY_TERMINAL)
    expected = run(spark, history.path("parquet"), rules_of_test, partitions=1).alerts
    assert expected.num_rows > 1_000
    for kind, partitions, key_groups in (("parquet", 4, 7), ("csv", 2, 128), ("jsonl", 3, 1)):
        replayed = run(spark, history.path(kind), rules_of_test, partitions, key_groups)
        assert replayed.dead_letters == ()
        assert replayed.alerts.equals(expected), kind


@pytest.mark.spark
def test_poison_is_counted_and_kept_and_empty_lines_are_not(
    spark: SparkSession, history: History, tmp_path: Path
) -> None:
    lines = history.path("jsonl").read_bytes().splitlines()[:500]
    bad = [b"{", b"[]", lines[0].replace(b'"amount"', b'"amont"'), lines[0].replace(b'"amount":', b'"amount":"x')]
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join([*lines[:100], *bad, b"", b"  ", *lines[100:]]) + b"\n\n")
    replayed = run(spark, path, records("rising"))
    assert replayed.counters["records"] == 504
    assert replayed.counters["events"] == 500
    letters = [orjson.loads(letter) for letter in replayed.dead_letters]
    assert sorted(letter["record"].encode() for letter in letters) == sorted(bad)
    assert (replayed.counters["poison[unreadable]"], replayed.counters["poison[missing_field]"]) == (3, 1)
    clean = tmp_path / "clean.jsonl"
    clean.write_bytes(b"\n".join(lines))
    assert run(spark, clean, records("rising")).alerts.equals(replayed.alerts)


@pytest.mark.spark
def test_each_version_sees_its_own_span(spark: SparkSession, history: History) -> None:
    times = sorted(history.table["event_time"].cast(pa.int64()).to_pylist())
    second_ms, end_ms = times[len(times) // 3], times[2 * len(times) // 3]
    (first,) = records("small_then_large")
    second = first.model_copy(update={"version": 2, "effective_at": utc_text(second_ms), "severity": "high"})
    retire = RetireRecord(id=first.id, version=3, effective_at=utc_text(end_ms))
    control: list[ControlRecord] = [first, second, retire]
    replayed = run(spark, history.path("parquet"), control)
    expected = set()
    for alert in run(spark, history.path("parquet"), [first]).alerts.to_pylist():
        ends = alert["match_end"].timestamp() * 1000
        version = 1 if alert["match_start"].timestamp() * 1000 < second_ms else 2
        if ends < end_ms:
            expected.add((version, tuple(event["event_id"] for event in alert["events"])))
    answers = {(a["version"], tuple(e["event_id"] for e in a["events"])) for a in replayed.alerts.to_pylist()}
    assert answers == expected
    assert {version for version, _ in answers} == {1, 2}


@pytest.mark.spark
def test_a_folder_holds_one_kind_of_file(history: History, tmp_path: Path) -> None:
    assert kind_of(history.path("csv")) == "csv"
    with pytest.raises(SourceError, match="files of several kinds"):
        kind_of(history.folder)
    with pytest.raises(SourceError, match="no Parquet, CSV or JSON lines"):
        kind_of(tmp_path)
    with pytest.raises(SourceError, match="there are no events at"):
        kind_of(tmp_path / "gone.csv")


@pytest.mark.spark
def test_a_terminal_gets_a_bar_and_the_outcome(spark: SparkSession) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True)
    assert with_progress(spark, "matching", lambda: spark.range(1_000).count(), console) == 1_000

    def fails() -> None:
        raise UsageError("told")

    with pytest.raises(UsageError, match="told"):
        with_progress(spark, "matching", fails, console)
    assert "matching" in screen.getvalue()


@pytest.mark.spark
def test_no_terminal_gets_no_bar(spark: SparkSession) -> None:
    screen = io.StringIO()
    assert with_progress(spark, "matching", lambda: 7, Console(file=screen)) == 7
    assert screen.getvalue() == ""


@pytest.mark.spark
def test_files_that_differ_are_read_as_the_embedded_engine_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    source = (
        "event n { i id  event_time time  h string  v decimal(2)?  part string }\n"
        "pattern p by part { seq a where a: n v >= 2.50 or v is null }\n"
    )
    moment = datetime(2026, 3, 1, 10, tzinfo=UTC)
    for name, zone, column in [
        ("01001", None, pa.array([2], pa.int32())), ("7", "UTC", pa.array([2.5])), ("x", "UTC", None),
        ("y", "UTC", pa.array(["3.5"])),
    ]:  # fmt: skip
        folder = tmp_path / f"part={name}"
        folder.mkdir()
        times = pa.array([moment.replace(tzinfo=None if zone is None else UTC)], pa.timestamp("us", zone))
        table = pa.table({"i": [name], "event_time": times, "h": ["h"]})
        pq.write_table(table if column is None else table.append_column("v", column), folder / "a.parquet")
    deployment = deploy([written("p", source, "p")])
    job = Job(deployment.schema, deployment.key_domains, 32)
    mapping = FieldMapping(time=Written(zone="America/New_York"))
    for paths in ([tmp_path], sorted(tmp_path.glob("*"))):
        theirs = replay(job, deployment.rulebook, read_events(spark, *paths), 2, None, mapping)
        ours = embedded.replay(job, deployment.rulebook, read_pieces(paths, job.schema, mapping), 1)
        assert theirs.alerts.equals(ours.alerts)
        assert sorted(theirs.alerts["key"].to_pylist()) == ["7", "x", "y"]
    (tmp_path / "part=x" / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(PySparkException) as caught:
        replay(job, deployment.rulebook, read_events(spark, tmp_path), 2)
    error = failure_of(str(caught.value))
    assert isinstance(error, InputError)
    assert "part=x/a.parquet cannot be read" in str(error)


@pytest.mark.spark
def test_old_times_of_parquet_are_those_of_the_embedded_replay(
    spark: SparkSession, history: History, tmp_path: Path
) -> None:
    """INT96 stores the time as a day and nanoseconds, without a zone; it means UTC."""
    table, path = history.table, tmp_path / "old.parquet"
    place = table.column_names.index("event_time")
    times = table["event_time"].cast(pa.int64()).cast(pa.timestamp("ms", "UTC"))
    pq.write_table(table.set_column(place, "event_time", times), path, use_deprecated_int96_timestamps=True)
    with pq.ParquetFile(path) as written_file:
        assert written_file.schema.column(place).physical_type == "INT96"
    rules_of_test = records(*BY_CUSTOMER)
    deployment = deploy(rules_of_test)
    job = Job(deployment.schema, deployment.key_domains)
    mapping = FieldMapping(time=Written(zone="UTC"))
    expected = embedded.replay(job, deployment.rulebook, read_pieces(path, job.schema, mapping), 2).alerts
    assert expected.num_rows
    assert expected.equals(run(spark, history.path("parquet"), rules_of_test).alerts)
    replayed = replay(job, deployment.rulebook, read_events(spark, path), 2, None, mapping)
    assert replayed.alerts.equals(expected)


def test_it_finds_what_the_oracle_finds(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_EVENTS_AT_ONCE", 1_000)
    replayed = replayed_at(history.path("parquet"), records("rising", "terminal_quiet"))
    table = transactions()
    expected = oracle_alerts(table, "rising") | oracle_alerts(table, "terminal_quiet")
    last_ms = max(table["event_time"].cast(pa.int64()).to_pylist())
    assert oracle_form(replayed) == {alert for alert in expected if alert[-1] <= last_ms}, (
        "no absence is certain after the last event"
    )
    assert replayed.counters["events"] == replayed.counters["records"] == len(table)


def test_files_threads_and_shares_do_not_matter(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    rules_of_test = records(*BY_CUSTOMER, *BY_TERMINAL)
    expected = replayed_at(history.path("parquet"), rules_of_test, workers=1)
    assert expected.alerts.num_rows > 1_000
    monkeypatch.setattr(pieces, "PIECE_ROWS", 777)
    for kind, workers, at_once in (("parquet", 4, 500), ("csv", 2, 5_000), ("jsonl", 3, 2_000)):
        monkeypatch.setattr(embedded, "_EVENTS_AT_ONCE", at_once)
        replayed = replayed_at(history.path(kind), rules_of_test, workers)
        assert replayed.dead_letters == ()
        assert replayed.alerts.equals(expected.alerts), kind


@pytest.mark.spark
def test_it_is_the_replay_on_spark_byte_for_byte(spark: SparkSession, history: History, tmp_path: Path) -> None:
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
    lines = history.path("jsonl").read_bytes().splitlines()
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join([*lines[:50], b"{", b"", lines[0].replace(b'"amount":', b'"amount":"x'), *lines[50:]]))
    deployment = deploy(control_records)
    job = Job(deployment.schema, deployment.key_domains)
    theirs = replay(job, deployment.rulebook, read_events(spark, path), 2)
    ours = replayed_at(path, control_records)
    assert list(json_lines(ours.alerts)) == list(json_lines(theirs.alerts))
    assert ours.alerts.num_rows > 1_000
    assert sorted(ours.dead_letters) == sorted(theirs.dead_letters)
    assert len(ours.dead_letters) == 2

    def counted(replayed: Replayed) -> dict[str, int]:
        # The number of visits to runs depends on how keys are grouped.
        return {name: count for name, count in replayed.counters.items() if count and name != "run_steps"}

    assert counted(ours) == counted(theirs)


def test_replay_imports_neither_spark_nor_java(tmp_path: Path) -> None:
    """A separate process without pyspark and Java does not try Spark, and says that it is missing."""
    rules = Path(__file__).parents[2] / "rules"
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
    parser = Parser()
    verb.add_arguments(parser)
    options = parser.parse_args(["--events", str(tmp_path), "--out", "alerts.jsonl", *words])
    assert verb._engine(options, options.events, Console()) == engine
