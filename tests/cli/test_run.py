"""`cep run`: refuses senseless options; files and standard input to alerts; continues where it stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from cep.base.exits import Exit
from cep.cli.main import main
from cep.runners.live_checkpoint import lock_checkpoint
from cep.sources.live.files import FilesSource
from cep.state.savepoints import NAME
from tests.base.test_durable import readable_by_others
from tests.cli.monitored import missing
from tests.mock_kafka import send_all
from tests.runners.embedded.cases import day, deployment, expected
from tests.state.test_manifest import forged

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
        (["--events", "x"], "there is no file or folder at x"),
        (["--events", "-", "--groups", "0-40000"], "below the job's"),
        (["--events", "-", "--groups", "7"], "give first-last"),
        (["--events", "x", "--workers", "0"], "$.embedded.workers"),
        (["--events", "x", "--format", "avro", "--schema-file", "y"], "avro is read from a topic only"),
        (["--topic", "x", "--bootstrap-servers", "y", "--format", "avro"], "a schema file"),
    ],
)
def test_bad_arguments(capsys: pytest.CaptureFixture[str], words: list[str], reason: str) -> None:
    assert main(["run", "--rules", RULES, *words]) == Exit.USAGE
    assert reason in capsys.readouterr().err


def test_rules_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--events", "-"]) == Exit.USAGE
    assert "give --rules" in capsys.readouterr().err


def written(folder: Path) -> list[bytes]:
    return [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().splitlines()]


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize("store", ["memory", "rocksdb"])
def test_a_job_goes_on_where_it_was(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, batch_ids = [*day(), b"{"], list[int]()
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
        batch_ids.append(json.loads((tmp_path / "job" / "progress.json").read_bytes())["batch_id"])
    assert batch_ids == sorted(set(batch_ids)), "micro-batches are counted for the job's whole life"
    assert sorted(written(tmp_path / "alerts")) == sorted(expected(list(day()), deployment(), tmp_path))
    assert len(written(tmp_path / "job" / "dead_letters")) == 1
    assert not readable_by_others(tmp_path / "job", tmp_path / "alerts")
    saved = ["job", "savepoint", "--checkpoint", str(tmp_path / "job"), "--to", str(tmp_path / "saved")]
    assert main(saved) == 0
    assert main(["job", "restore", "--from", str(tmp_path / "saved"), "--checkpoint", str(tmp_path / "again")]) == 0
    assert not readable_by_others(tmp_path / "saved", tmp_path / "again")
    capsys.readouterr()
    forged(tmp_path / "saved", NAME, f"beside/{tmp_path}/victim", b"bad")
    assert main(["job", "restore", "--from", str(tmp_path / "saved"), "--checkpoint", str(tmp_path / "forged")]) != 0
    assert "outside of" in capsys.readouterr().err
    assert not [*tmp_path.rglob("victim"), *tmp_path.glob("forged")]


@pytest.mark.slow
@pytest.mark.always
def test_standard_input_without_java_or_spark(tmp_path: Path) -> None:
    """The libraries of frames and of signatures are not loaded either: they would only make a start longer."""
    absent = "dict.fromkeys(('pyspark', 'narwhals', 'cryptography'))"
    script = f"import sys; sys.modules |= {absent}; from cep.cli.main import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAVA_HOME": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", script, "run", "--rules", RULES, "--events", "-", "--alerts", str(tmp_path / "alerts")],
        input=b"\n".join(day()),
        env=environment,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr.decode()
    assert b"nothing is kept" in process.stderr
    assert sorted(written(tmp_path / "alerts")) == sorted(expected(list(day()), deployment(), tmp_path))


def test_a_single_file_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(day()[:10]))
    source = FilesSource(path, follow=True)
    assert sum(len(chunk) for chunk in source.poll(100, 0.0)) + sum(len(c) for c in source.poll(100, 0.0)) == 10
    assert source.poll(100, 0.0) == []
    assert source.ended


def test_a_job_whose_broker_is_silent_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job is unhealthy, though neither a restart nor more records would help; its log has start and end."""
    monkeypatch.setattr("cep.runners.assembly.WATCH_MS", 1_000)
    broker = subprocess.Popen(
        [sys.executable, "-m", "tests.mock_kafka"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert broker.stdout is not None
    address = broker.stdout.readline().strip()
    lines = day()[:200]
    records: Any = ({"value": line, "partition": number % 4} for number, line in enumerate(lines))
    send_all(Producer({"bootstrap.servers": address, "log_level": 2}), "payments", records, 30)
    statuses_in_order: list[tuple[int, int, int]] = []
    scraped: list[str] = []
    port = free_port()

    def status(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0  # it does not listen yet

    def look(until: Callable[[tuple[int, int, int]], bool]) -> None:
        for _ in range(600):
            statuses = (status("/live"), status("/ready"), status("/health"))
            if until(statuses):
                break
            time.sleep(0.05)
        statuses_in_order.append(statuses)

    def operate() -> None:
        try:
            look(lambda statuses: statuses == (200, 200, 200))
            for _ in range(600):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    scraped.append(answer.read().decode())
                if "cep_events_total 200.0" in scraped[-1]:
                    break
                time.sleep(0.05)
            broker.send_signal(signal.SIGSTOP)
            look(lambda statuses: statuses[2] == 503)
            broker.send_signal(signal.SIGCONT)
            look(lambda statuses: statuses[2] == 200)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    operator = threading.Thread(target=operate)
    operator.start()
    try:
        arguments = ["--topic", "payments", "--bootstrap-servers", address, "--checkpoint", str(tmp_path / "job")]
        assert main(["run", "--rules", RULES, *arguments, "--listen", str(port), "--log", "json"]) == 0
    finally:
        operator.join()
        broker.kill()
        broker.wait()
    assert missing(scraped[-1], is_embedded=True) == set(), "what alert rules and the dashboard ask for is there"
    assert statuses_in_order == [(200, 200, 200), (200, 200, 503), (200, 200, 200)]
    log_lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in log_lines] == ["started", "rules", "progress", "unhealthy", "healthy", "ended"]
    assert log_lines[3]["part"] == log_lines[4]["part"] == "brokers"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        number: int = one.getsockname()[1]
        return number


def test_a_second_process_is_told_of_the_job_and_not_of_its_port(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(day()[:10]))
    job = ["run", "--rules", RULES, "--events", str(tmp_path / "events.jsonl"), "--checkpoint", str(tmp_path / "job")]
    with socket.create_server(("127.0.0.1", 0)) as listener, lock_checkpoint(tmp_path / "job"):
        assert main([*job, "--listen", str(listener.getsockname()[1])]) == Exit.USAGE
    assert "is in use by process" in capsys.readouterr().err
