"""The demo: it ends well, its library is whole, and it finds the planted frauds."""

import json
import os
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from cep.base.errors import UsageError
from cep.base.schema import EventType, Kind
from cep.columnar.decode import decode_json
from cep.demo.day import SIZES
from cep.demo.in_process import MemoryTopics
from cep.demo.labels import report_day, write_labels
from cep.demo.library import copy_library, library_folder
from cep.demo.stream import CHANNELS, SCHEMA, STATUSES, Stream, StreamSize, build, json_lines
from cep.lang.check.bind import bind
from cep.lang.load import load_files, load_text
from cep.rulebook.files import read_rules
from tests.oracle.matcher import Event, find_matches

# The demo ends well: live and replay agree, and find the alerts in its file of expected alerts.

ROOT = Path(__file__).parents[2]
EXPECTED = ROOT / "cep" / "demo" / "expected_alerts.json"


def run_demo(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the demo as a person starts it, but in the virtual environment."""
    return subprocess.run(
        [sys.executable, "-m", "demo", *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.mark.spark
def test_the_small_demo(tmp_path: Path) -> None:
    page = tmp_path / "made" / "day.html"
    process = run_demo("--size", "small", "--seconds", "4", "--report", str(page))
    assert process.returncode == 0, process.stdout + process.stderr
    assert "All 39 alerts are equal" in process.stdout
    assert "impossible_travel is published" in process.stdout
    assert process.stderr == ""
    assert_it_ends_with_a_report(process.stdout, page)


def assert_it_ends_with_a_report(printed: str, page: Path) -> None:
    """The line before the seconds says where the report is, and the report is there with its thresholds."""
    assert printed.splitlines()[-2] == f"what the rules found, what they missed and why: open {page} in a browser"
    assert "Just above and just below the line" in page.read_text(encoding="utf-8")
    numbers = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    assert {curve["rule"] for curve in numbers["thresholds"]} == {"card_testing"}


def test_the_expected_alerts_are_what_is_planted() -> None:
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))
    assert expected.keys() == {"default", "small"}
    planted = Counter(case.rule_id for case in build(7, StreamSize()).planted if case.fires)
    for ids in expected.values():
        for rule_id, count in planted.items():
            alerts_count = len(set(ids[rule_id]))
            # This rule is published at noon and sees half a day.
            assert (0 < alerts_count < count) if rule_id == "impossible_travel" else alerts_count == count


def test_without_java_it_says_so_and_runs_in_one_process(tmp_path: Path) -> None:
    page = tmp_path / "day.html"
    process = run_demo("--size", "small", "--seconds", "1", "--report", str(page), JAVA_HOME=str(tmp_path))
    assert process.returncode == 0, process.stdout + process.stderr
    assert "no Java found" in process.stdout
    assert "All 39 alerts are equal" in process.stdout
    assert process.stderr == ""
    assert_it_ends_with_a_report(process.stdout, page)


def test_spark_without_java_is_refused_in_one_line(tmp_path: Path) -> None:
    process = run_demo("--size", "small", "--engine", "spark", JAVA_HOME=str(tmp_path))
    assert process.returncode == 2
    (line,) = process.stderr.splitlines()
    assert "no Java found" in line


# The patterns and rules of the installation are found in a checkout, and copied whole.


def test_a_checkout_has_its_own_folders() -> None:
    assert library_folder() == ROOT


def test_a_copy_has_every_pattern_and_the_same_rules(tmp_path: Path) -> None:
    copy_library(tmp_path / "day")
    names = {path.name for path in (tmp_path / "day" / "patterns").iterdir()}
    assert names == {path.name for path in (ROOT / "patterns").glob("*.cep")}
    assert read_rules(tmp_path / "day" / "rules") == read_rules(ROOT / "rules")
    assert (tmp_path / "day" / "rules" / "rules.lock").read_bytes() == (ROOT / "rules" / "rules.lock").read_bytes()


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    with pytest.raises(UsageError, match="choose another folder"):
        copy_library(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["rules"]


# The rules of this repository find all planted frauds of the demo and no other match, by the brute-force oracle.


SIZE = StreamSize(cards_count=150, payments_per_card=12)


def slot(value: Any, event_type: EventType, name: str) -> Any:
    """Return the slot content of a value, as in the table."""
    field = event_type.field(name)
    assert field is not None
    if value is None:
        return None
    if field.type.kind is Kind.DECIMAL:
        return int(value.scaleb(field.type.scale))
    if field.type.kind is Kind.ENUM:
        return field.type.symbols.index(value)
    return value


def events_by(key: str, payments: pa.Table, event_type: EventType) -> dict[str, list[Event]]:
    milliseconds = payments.set_column(1, "event_time", payments["event_time"].cast(pa.int64()))
    events = defaultdict(list)
    for order, row in enumerate(milliseconds.to_pylist()):
        fields = {name: slot(value, event_type, name) for name, value in row.items()}
        events[row[key]].append(Event(row["tx_id"], event_type.name, row["event_time"], order, fields))
    return events


def test_the_rules_find_what_is_planted_and_nothing_else() -> None:
    stream = build(11, SIZE)
    records, problems = read_rules(ROOT / "rules")
    assert problems == []
    alerts = set()
    for record in records:
        checked = load_text(record.source, record.id)
        (event_type,) = checked.schema.event_types
        pattern, _ = bind(checked.patterns[record.pattern], record.params)
        assert pattern is not None
        (key,) = pattern.key
        for value, events in events_by(key, stream.payments, event_type).items():
            for match in find_matches(pattern, events).matches:
                alerts.add((record.id, value, tuple(tx_id for _, tx_id in match.bindings)))
    assert alerts == {(case.rule_id, case.key, case.tx_ids) for case in stream.planted if case.fires}


# The report of the simulated day: the rules find exactly the planted frauds.


def test_the_days_rules_find_what_was_planted(tmp_path: Path) -> None:
    stream = build(7, SIZES["small"])
    pq.write_table(stream.payments, tmp_path / "payments.parquet")
    labels = write_labels(stream, tmp_path)
    page_and_numbers = report_day(tmp_path / "payments.parquet", labels, 2, Console(quiet=True))
    numbers = orjson.loads(page_and_numbers.numbers)
    together = numbers["together"]
    planted = sum(case.fires for case in stream.planted)
    assert numbers["about"]["frauds"] == planted
    assert (together["precision"]["value"], together["fraud_recall"]["part"]) == (1.0, planted)
    assert together["recall_by_kind"].keys() == {case.rule_id for case in stream.planted if case.fires}
    assert "Frauds that no rule finds" in page_and_numbers.html


# The demo's stream: the same for a seed, planted as planned, and without accidental frauds.


SMALL = StreamSize(cards_count=200, payments_per_card=12)


@pytest.fixture(scope="module")
def stream() -> Stream:
    return build(7)


def test_it_has_the_size_that_was_asked_for(stream: Stream) -> None:
    assert 55_000 <= stream.payments.num_rows <= 62_000
    assert stream.payments.schema == SCHEMA
    assert pc.count_distinct(stream.payments["tx_id"]).as_py() == stream.payments.num_rows
    assert set(stream.payments["status"].unique().to_pylist()) == set(STATUSES)
    assert set(stream.payments["channel"].unique().to_pylist()) == set(CHANNELS)


def test_it_is_in_event_time_order(stream: Stream) -> None:
    times = stream.payments["event_time"].to_numpy().astype(np.int64)
    assert bool((np.diff(times) >= 0).all())


def test_cases_are_as_planned(stream: Stream) -> None:
    fires = Counter(case.rule_id for case in stream.planted if case.fires)
    misses = Counter(case.rule_id for case in stream.planted if not case.fires)
    assert dict(fires) == StreamSize().counts()
    assert set(misses.values()) == {StreamSize().near_misses_count}


def test_the_ids_of_a_case_are_those_of_its_payments(stream: Stream) -> None:
    rows = {row["tx_id"]: row for row in stream.payments.select([0, 1, 2, 3]).to_pylist()}
    for case in stream.planted:
        case_rows = [rows[tx_id] for tx_id in case.tx_ids]
        assert {case.key} <= {name for row in case_rows for name in (row["card_id"], row["account_id"])}
        assert [row["event_time"] for row in case_rows] == sorted(row["event_time"] for row in case_rows)
        assert int(case_rows[-1]["event_time"].timestamp() * 1_000) == case.last_ms


def test_everyday_payments_are_never_tiny_and_never_near_a_case(stream: Stream) -> None:
    fraud = {tx_id for case in stream.planted for tx_id in case.tx_ids}
    tiny = stream.payments.filter(pc.less(stream.payments["amount"], 3))["tx_id"].to_pylist()
    assert tiny
    assert set(tiny) <= fraud


def test_a_seed_gives_the_same_stream_and_another_seed_another() -> None:
    assert build(1, SMALL).payments.equals(build(1, SMALL).payments)
    assert build(1, SMALL).planted == build(1, SMALL).planted
    assert not build(1, SMALL).payments.equals(build(2, SMALL).payments)


def test_json_lines_say_what_the_table_says() -> None:
    payments = build(3, SMALL).payments
    lines = [json.loads(line) for line in json_lines(payments)]
    assert len(lines) == payments.num_rows
    first = payments.slice(0, 1).to_pylist()[0]
    assert lines[0]["tx_id"] == first["tx_id"]
    assert lines[0]["amount"] == float(first["amount"])
    assert lines[0]["event_time"] == first["event_time"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert all(value is not None for value in lines[0].values())


def test_every_line_is_a_good_record_for_the_schema_of_the_patterns() -> None:
    payments = build(3, SMALL).payments
    schema = load_files([ROOT / "patterns" / "events.cep"]).schema
    decoded = decode_json(schema, pa.array(json_lines(payments), pa.binary()))
    assert decoded.poison == ()
    assert decoded.event_id.to_pylist() == payments["tx_id"].to_pylist()
    assert decoded.time_ms.tolist() == payments["event_time"].cast(pa.int64()).to_pylist()
    assert decoded.columns["amount"].to_pylist() == [int(a.scaleb(2)) for a in payments["amount"].to_pylist()]


# Topics in memory keep the contract of a live source.

RECORDS = [(f"k{n % 7}", f"{n}".encode()) for n in range(50)]


def topics() -> MemoryTopics:
    memory_topics = MemoryTopics()
    memory_topics.create("t")
    return memory_topics


def test_every_record_comes_once_and_those_of_a_key_in_order() -> None:
    memory_topics = topics()
    memory_topics.send("t", RECORDS)
    reader = memory_topics.reader("t")
    values: list[int] = []
    while chunks := reader.poll(8, 0.0):
        assert sum(map(len, chunks)) <= 8
        values += [int(value) for chunk in chunks for value in chunk.values]
    assert sorted(values) == list(range(50))
    for key in range(7):
        assert [value for value in values if value % 7 == key] == list(range(key, 50, 7))
    assert not any(reader.behind().values())
    assert sum(reader.positions().values()) == 50


def test_it_goes_on_behind_positions() -> None:
    memory_topics = topics()
    memory_topics.send("t", RECORDS)
    reader, again = memory_topics.reader("t"), memory_topics.reader("t")
    reader.poll(8, 0.0)
    again.seek(reader.positions())
    first, second = reader.poll(100, 0.0), again.poll(100, 0.0)
    assert [chunk.values for chunk in first] == [chunk.values for chunk in second]


def test_whoever_waits_is_woken() -> None:
    memory_topics = topics()
    reader = memory_topics.reader("t")
    assert reader.poll(1, 0.0) == []
    sender = threading.Thread(target=memory_topics.send, args=("t", [("k", b"v")]))
    sender.start()
    (chunk,) = reader.poll(4, 30.0)
    sender.join()
    assert chunk.values == [b"v"]
