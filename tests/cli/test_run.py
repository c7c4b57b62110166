"""`cep run`: refuses what makes no sense; files and standard input to alerts; goes on where it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cep.cli.main import USAGE, main
from cep.sources.live.files import FilesSource
from tests.base.test_private import readable_by_others
from tests.runners.embedded.cases import day, deployment, expected

ROOT = Path(__file__).parents[2]
RULES = str(ROOT / "rules")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "give the events"),
        (["--events", "x", "--topic", "y", "--bootstrap-servers", "z"], "give the events"),
        (["--topic", "y"], "needs --bootstrap-servers"),
        (["--events", "x", "--alerts", "kafka:alerts"], "needs --bootstrap-servers"),
        (["--events", "x", "--control", "a", "--control-topic", "b"], "not both"),
        (["--events", "x"], "there is nothing at x"),
        (["--events", "-", "--groups", "0-40000"], "below the job's"),
        (["--events", "-", "--groups", "7"], "give first-last"),
        (["--events", "x", "--workers", "0"], "$.embedded.workers"),
        (["--events", "x", "--format", "avro", "--schema-file", "y"], "avro is read from a topic only"),
        (["--topic", "x", "--bootstrap-servers", "y", "--format", "avro"], "a schema file"),
    ],
)
def test_bad_arguments(capsys: pytest.CaptureFixture[str], words: list[str], reason: str) -> None:
    assert main(["run", "--rules", RULES, *words]) == USAGE
    assert reason in capsys.readouterr().err


def test_rules_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--events", "-"]) == USAGE
    assert "give --rules" in capsys.readouterr().err


def written(folder: Path) -> list[bytes]:
    return [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().splitlines()]


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize("store", ["memory", "rocksdb"])
def test_a_job_goes_on_where_it_was(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [*day(), b"{"]
    (tmp_path / "events").mkdir()
    arguments = [
        "run", "--rules", RULES, "--events", str(tmp_path / "events"), "--alerts", str(tmp_path / "alerts"),
        "--checkpoint", str(tmp_path / "job"), "--store", store, "--available-now", "--workers",
    ]  # fmt: skip
    for number in range(3):
        part = lines[number * 2_500 : (number + 1) * 2_500]
        (tmp_path / "events" / f"{number}.jsonl").write_bytes(b"\n".join(part))
        assert main([*arguments, str(1 + number)]) == 0
        assert ("the job goes on" if number else "the job begins") in capsys.readouterr().err
    assert sorted(written(tmp_path / "alerts")) == sorted(expected(list(day()), deployment(), tmp_path))
    assert len(written(tmp_path / "job" / "dead_letters")) == 1
    assert not readable_by_others(tmp_path / "job", tmp_path / "alerts")
    saved = ["savepoint", "--checkpoint", str(tmp_path / "job"), "--to", str(tmp_path / "saved")]
    assert main(saved) == 0
    assert main(["restore", "--from", str(tmp_path / "saved"), "--checkpoint", str(tmp_path / "again")]) == 0
    assert not readable_by_others(tmp_path / "saved", tmp_path / "again")


@pytest.mark.slow
@pytest.mark.always
def test_standard_input_without_java_or_spark(tmp_path: Path) -> None:
    script = "import sys; sys.modules['pyspark'] = None; from cep.cli.main import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAVA_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script, "run", "--rules", RULES, "--events", "-", "--alerts", str(tmp_path / "alerts")],
        input=b"\n".join(day()),
        env=environment,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"nothing is kept" in done.stderr
    assert sorted(written(tmp_path / "alerts")) == sorted(expected(list(day()), deployment(), tmp_path))


def test_a_single_file_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(day()[:10]))
    source = FilesSource(path, follow=True)
    assert sum(len(chunk) for chunk in source.poll(100, 0.0)) + sum(len(c) for c in source.poll(100, 0.0)) == 10
    assert source.poll(100, 0.0) == []
    assert source.ended
