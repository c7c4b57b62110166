"""A job names rejected records in its log, is unhealthy above the share, and ends with 1."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path

import pytest

from cep.cli.main import main
from cep.runners.job_lines import JobRejections
from cep.runners.observe import Log, Observed
from tests.cli.test_rejected import history

LETTER = (
    b'{"code": "wrong_value", "reason": "field `amount`: \'x\' is not a value of type decimal(2)", "record": "secret"}'
)


def watched(*, ends: bool = False) -> tuple[JobRejections, Observed, io.StringIO]:
    written = io.StringIO()
    log = Log("json", written)
    observed = Observed(60_000, log)
    return JobRejections(observed, log, 0.01, ends, every_ms=0), observed, written


def take(rejections: JobRejections, records: int, bad: int) -> None:
    counters = Counter({"records": records, "events": records - bad, "poison[wrong_value]": bad})
    rejections.add(counters, [LETTER] * bad)


def test_the_health_follows_the_share_and_names_no_value() -> None:
    rejections, observed, written = watched()
    take(rejections, 1_000, 5)
    assert observed.troubles == {}
    take(rejections, 99, 99)
    assert observed.troubles == {}, "too few to judge"
    take(rejections, 901, 0)
    assert "records" in observed.troubles
    take(rejections, 1_000, 0)
    assert observed.troubles == {}
    assert rejections.end() == 1, "104 of 3,000"
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["rejected", "unhealthy", "healthy", "rejected"]
    assert lines[0]["reasons"] == "5 wrong_value of `amount`"
    assert "99 of 1,000 records (9.90%)" in lines[1]["reason"]
    assert (lines[3]["records"], lines[3]["rejected"]) == (3_000, 104)
    assert "secret" not in written.getvalue()
    assert "'x'" not in written.getvalue()


def test_a_job_that_reads_nothing_says_so() -> None:
    rejections, _, written = watched(ends=True)
    assert rejections.end() == 0
    assert json.loads(written.getvalue())["event"] == "nothing_read"


@pytest.mark.parametrize(("bad_count", "code"), [(0, 0), (1, 0), (2, 1)])
def test_a_job_that_ends_prints_examples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bad_count: int, code: int
) -> None:
    events = history(tmp_path, "jsonl", bad_count)
    command = ["run", "--rules", str(tmp_path / "rules"), "--events", str(events), "--alerts", str(tmp_path / "alerts")]
    assert main([*command, "--available-now"]) == code
    error = capsys.readouterr().err
    assert ("field `amount`" in error) == bool(bad_count)
    assert (f"{bad_count} of 100 records" in error) == bool(bad_count)
    assert ("more than --rejected-max 0.01 allows" in error) == bool(code)
    assert main([*command, "--available-now", "--rejected-max", "0.5"]) == 0


def test_events_ahead_of_the_clock_end_a_job_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = history(tmp_path, "jsonl", 0)
    events.write_text(events.read_text().replace("2026-", "2226-"))
    rules = ["--rules", str(tmp_path / "rules"), "--events", str(events)]
    assert main(["run", *rules, "--alerts", str(tmp_path / "alerts"), "--available-now"]) == 1
    assert "dated more than 60000 ms ahead" in capsys.readouterr().err
    assert main(["replay", *rules, "--out", str(tmp_path / "a.jsonl")]) == 1
    assert "100 of 100 records (100.00%) were rejected" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl"])
def test_a_job_reads_a_named_file_of_each_form(form: str, tmp_path: Path) -> None:
    events = history(tmp_path, form, 0)
    rules = ["--rules", str(tmp_path / "rules"), "--events", str(events)]
    assert main(["run", *rules, "--alerts", str(tmp_path / "alerts"), "--available-now"]) == 0
    assert main(["replay", *rules, "--out", str(tmp_path / "a.jsonl")]) == 0
    sent = [line for path in (tmp_path / "alerts").glob("*.jsonl") for line in path.read_bytes().splitlines()]
    assert sent
    assert sorted(sent) == sorted((tmp_path / "a.jsonl").read_bytes().splitlines())


@pytest.mark.spark
@pytest.mark.slow
def test_a_job_on_spark_ends_with_1_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = history(tmp_path, "csv", 0)
    (tmp_path / "events").mkdir()
    events.rename(tmp_path / "events" / "a.csv")
    (tmp_path / "events" / "b.json").write_text('[{"i": "x", ')
    command = ["live", "--rules", str(tmp_path / "rules"), "--events", str(tmp_path / "events"), "--available-now"]
    command += ["--alerts", str(tmp_path / "alerts"), "--checkpoint", str(tmp_path / "job"), "--rejected-max", "0.001"]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "b.json, or what is left of it, cannot be read" in error
    assert "1 of 101 records (0.99%) were rejected, more than --rejected-max 0.001 allows" in error
