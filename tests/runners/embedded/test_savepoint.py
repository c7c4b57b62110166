"""Savepoints of `cep run`: to other processes, other stores and back, with every alert once; queries of state.

If the checkpoints of a job are elsewhere, queries, savepoints and restores find them without an option.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cep.base.errors import StateCorruptError, StoreError, UsageError
from cep.base.exits import Exit
from cep.cli.main import main
from cep.rulebook.files import read_rules
from cep.runners.embedded import savepoint
from cep.runners.embedded.opening import default_target, is_embedded, remembered_target, target_of
from cep.runners.live_checkpoint import JOB_FILE, RULES_FILE, read_progress
from cep.state import past
from cep.state.target import Target
from tests.output_of import OutputOf
from tests.rule_files import copy_rules, rule_text
from tests.runners.embedded.cases import day, deployment, expected, suppressing
from tests.runners.embedded.test_commit import Process, settings_of

if TYPE_CHECKING:
    from tests.real_s3 import S3Server


RULES = str(Path(__file__).parents[3] / "rules")
WAIT_S = 60


def run(folder: Path, *more: str) -> int:
    """Run one process of the job, to the end of the events."""
    events, alerts = folder.parent / "events", folder.parent / "alerts" / folder.name
    rules = folder.parent / "rules"  # of the test, if it has some
    fixed = ["--rules", str(rules) if rules.exists() else RULES, "--events", str(events), "--alerts", str(alerts)]
    return main(["run", *fixed, "--checkpoint", str(folder), "--key-groups", "16", "--available-now", *more])


def place(folder: Path, number: int, lines: tuple[bytes, ...]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{number}.jsonl").write_bytes(b"\n".join(lines))


def written(folder: Path) -> list[bytes]:
    return [line for path in sorted(folder.rglob("*.jsonl")) for line in path.read_bytes().splitlines()]


def test_one_process_becomes_two_and_one_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, rules = day(), copy_rules(tmp_path)
    (rules / "often.cep").write_text(suppressing()[-1].source)
    often = rule_text("often", "often.cep", message="{key}", suppress="2 d")
    (rules / "often.toml").write_text(often)  # each process remembers the last alerts of its own keys
    (tmp_path / "alerts").mkdir()
    place(tmp_path / "events", 0, lines[:2_500])
    assert run(tmp_path / "one") == 0
    assert main(["job", "savepoint", "--checkpoint", str(tmp_path / "one"), "--to", str(tmp_path / "s1")]) == 0
    for name, groups, store in (("left", "0-4", "memory"), ("right", "5-15", "rocksdb")):
        arguments = ["--checkpoint", str(tmp_path / name), "--groups", groups, "--store", store]
        assert main(["job", "restore", "--from", str(tmp_path / "s1"), *arguments]) == 0
    place(tmp_path / "events", 1, lines[2_500:4_500])
    assert run(tmp_path / "left", "--groups", "0-4", "--store", "memory") == 0
    with pytest.raises(UsageError, match="different positions"):
        savepoint.save([tmp_path / "left", tmp_path / "right"], Target(str(tmp_path / "s2")))
    assert run(tmp_path / "right") == Exit.USAGE, "its checkpoint has other key groups"
    assert "start it with --groups 5-15" in capsys.readouterr().err
    assert run(tmp_path / "right", "--groups", "5-15", "--workers", "3") == 0
    both = ["--checkpoint", str(tmp_path / "right"), str(tmp_path / "left")]
    assert main(["job", "savepoint", *both, "--to", str(tmp_path / "s2")]) == 0
    assert main(["job", "restore", "--from", str(tmp_path / "s2"), "--checkpoint", str(tmp_path / "again")]) == 0
    place(tmp_path / "events", 2, lines[4_500:])
    assert run(tmp_path / "again") == 0
    deployed = deployment(read_rules(rules)[0])
    assert sorted(written(tmp_path / "alerts")) == sorted(expected(list(lines), deployed, tmp_path))
    assert read_progress(tmp_path / "again")[1]["events"] == len(lines), "the totals are those of the first key groups"
    for name in ("left", "right", "again"):
        open_runs = sum(len(past.decode_page(page.content)) for page in savepoint.newest_pages(tmp_path / name).pages)
        assert read_progress(tmp_path / name)[1]["runs"] == open_runs, name


def test_what_cannot_be_saved_or_restored(tmp_path: Path) -> None:
    (tmp_path / "alerts").mkdir()
    with pytest.raises(UsageError, match="no checkpoint folder"):
        savepoint.save([tmp_path], Target(str(tmp_path / "s")))
    place(tmp_path / "events", 0, day()[:500])
    assert run(tmp_path / "job") == 0
    target = Target(str(tmp_path / "s"))
    savepoint.save([tmp_path / "job"], target)
    with pytest.raises(UsageError, match="is not empty"):
        savepoint.load(target, tmp_path / "job")
    with pytest.raises(UsageError, match="key groups 0-15 only"):
        savepoint.load(target, tmp_path / "new", range(10, 20))
    assert not (tmp_path / "new").exists()
    rules = tmp_path / "job" / RULES_FILE
    good = rules.read_bytes()
    for damaged in (b"", b"[]", b"{}", b'{"records": [1]}', b"\xff"):
        rules.write_bytes(damaged)
        with pytest.raises(StateCorruptError, match=RULES_FILE):
            savepoint.save([tmp_path / "job"], Target(str(tmp_path / "s2")))
    rules.write_bytes(good)
    job = tmp_path / "job" / JOB_FILE
    described = job.read_bytes()
    for name, value in (("groups_count", 4), ("key_domains", [[1.5]]), ("event_types", [{"name": []}])):
        job.write_text(json.dumps({**json.loads(described), name: value}), encoding="utf-8")
        with pytest.raises(StateCorruptError, match=JOB_FILE):
            savepoint.save([tmp_path / "job"], Target(str(tmp_path / "s2")))
    job.write_bytes(described)
    (tmp_path / "job" / "delivered").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="did not end in order"):
        savepoint.save([tmp_path / "job"], Target(str(tmp_path / "s2")))
    (tmp_path / "job" / "delivered").unlink()
    with pytest.raises(UsageError, match="did not end in order"):
        savepoint.save([tmp_path / "job"], Target(str(tmp_path / "s2")))


def test_a_key_of_a_stopped_and_of_a_running_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "alerts").mkdir()
    place(tmp_path / "events", 0, day()[:3_000])
    assert run(tmp_path / "job") == 0
    capsys.readouterr()
    assert main(["job", "state", "--checkpoint", str(tmp_path / "job"), "--json"]) == 0
    state = json.loads(capsys.readouterr().out)
    assert state["runs"] > 100
    key = json.loads(day()[2_990])["card_id"]
    assert main(["job", "state", "--checkpoint", str(tmp_path / "job"), "--key", key, "--json"]) == 0
    stored = json.loads(capsys.readouterr().out)
    assert stored
    # Ask the running job the same question.
    answers: list[object] = []

    def ask() -> None:
        deadline_s = time.monotonic() + WAIT_S
        log = ""
        while "/key?key=" not in log and time.monotonic() < deadline_s:
            time.sleep(0.05)
            log += capsys.readouterr().err
        address = log.split("/key?key=… at ")[1].split()[0]
        while time.monotonic() < deadline_s and answers[-1:] != [stored]:
            try:
                with urllib.request.urlopen(f"http://{address}/key?key={key}", timeout=10) as response:
                    answers.append(json.loads(response.read()))
            except urllib.error.HTTPError as error:
                answers.append(error.code)
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    arguments = ["run", "--rules", RULES, "--events", str(tmp_path / "events"), "--key-groups", "16", "--listen", "0"]
    arguments += ["--answer-keys", "yes"]
    assert main([*arguments, "--alerts", str(tmp_path / "alerts")]) == 0
    asking.join()
    assert answers[-1] == stored


def test_a_running_job_answers_nobody_about_a_key_unless_it_was_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place(tmp_path / "events", 0, day()[:100])
    log_parts: list[str] = []
    refused: list[tuple[int, str]] = []

    def ask() -> None:
        deadline_s = time.monotonic() + WAIT_S
        while "/metrics" not in "".join(log_parts) and time.monotonic() < deadline_s:
            time.sleep(0.05)
            log_parts.append(capsys.readouterr().err)
        address = re.findall(r"/metrics.*? at (\S+)", "".join(log_parts))[0]
        try:
            urllib.request.urlopen(f"http://{address}/key?key=c1", timeout=10).close()
        except urllib.error.HTTPError as error:
            refused.append((error.code, error.read().decode()))
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    arguments = ["run", "--rules", RULES, "--events", str(tmp_path / "events"), "--listen", "0"]
    assert main([*arguments, "--alerts", str(tmp_path / "alerts")]) == 0
    asking.join()
    ((code, answer),) = refused
    assert code == 404
    assert answer.startswith("here are /metrics"), "no more is said of a key that is there than of one that is not"
    assert "/key" not in answer


def test_the_place_that_was_asked_for_is_remembered_until_another_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job").mkdir()
    assert not is_embedded(tmp_path / "job")
    assert remembered_target(tmp_path / "job", "elsewhere").url == str(tmp_path / "elsewhere")
    assert is_embedded(tmp_path / "job")
    monkeypatch.chdir("/")
    assert target_of(tmp_path / "job").url == str(tmp_path / "elsewhere")
    assert remembered_target(tmp_path / "job", "memory://far").url == "memory://far"
    assert target_of(tmp_path / "job").url == "memory://far"
    default_url = default_target(tmp_path / "job").url
    assert remembered_target(tmp_path / "job", None).url == target_of(tmp_path / "job").url == default_url


def test_a_damaged_place_is_named(tmp_path: Path) -> None:
    for damaged in (b"\xff", b""):
        (tmp_path / "target").write_bytes(damaged)
        with pytest.raises(StateCorruptError, match="names no place"):
            target_of(tmp_path)
    with pytest.raises(UsageError, match="an empty text"):
        remembered_target(tmp_path, "")
    assert remembered_target(tmp_path, str(tmp_path / "far")).url == target_of(tmp_path).url


@pytest.mark.parametrize("user", ["me:secret", "secret"])
def test_a_password_in_an_address_is_refused_without_being_said(tmp_path: Path, user: str) -> None:
    with pytest.raises(UsageError, match="FSSPEC_SFTP_PASSWORD") as refused:
        remembered_target(tmp_path, f"sftp://{user}@host/job")
    assert "secret" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_job_with_its_checkpoints_elsewhere_is_looked_at_saved_and_restored(
    tmp_path: Path, output_of: OutputOf
) -> None:
    lines = day()
    (tmp_path / "alerts").mkdir()
    place(tmp_path / "events", 0, lines[:3_000])
    assert run(tmp_path / "one", "--checkpoint-target", str(tmp_path / "far" / "one")) == 0
    assert "impossible_travel" in output_of(main(["job", "state", "--checkpoint", str(tmp_path / "one")])).out
    assert main(["job", "savepoint", "--checkpoint", str(tmp_path / "one"), "--to", str(tmp_path / "saved")]) == 0
    assert main(["job", "restore", "--from", str(tmp_path / "saved"), "--checkpoint", str(tmp_path / "two")]) == 0
    place(tmp_path / "events", 1, lines[3_000:])
    assert run(tmp_path / "two", "--checkpoint-target", str(tmp_path / "far" / "two")) == 0
    assert sorted(written(tmp_path / "alerts")) == sorted(expected(list(lines), deployment(), tmp_path))


def test_a_job_whose_machine_is_lost_goes_on_from_an_object_store(s3: S3Server, tmp_path: Path) -> None:
    """Files of alerts report their alerts; the state goes into a savepoint and back again."""
    lines = day()
    (tmp_path / "alerts").mkdir()
    place(tmp_path / "events", 0, lines[:2_000])
    to_s3 = "--checkpoint-target", s3.url("job")
    assert run(tmp_path / "one", *to_s3) == 0
    shutil.rmtree(tmp_path / "one" / "store")
    place(tmp_path / "events", 1, lines[2_000:4_000])
    assert run(tmp_path / "one", *to_s3) == 0
    assert not (tmp_path / "one" / "checkpoints").exists()
    assert main(["job", "savepoint", "--checkpoint", str(tmp_path / "one"), "--to", s3.url("saved")]) == 0
    assert main(["job", "restore", "--from", s3.url("saved"), "--checkpoint", str(tmp_path / "two")]) == 0
    place(tmp_path / "events", 2, lines[4_000:])
    assert run(tmp_path / "two", "--checkpoint-target", s3.url("two")) == 0
    assert sorted(written(tmp_path / "alerts")) == sorted(expected(list(lines), deployment(), tmp_path))


def test_an_object_store_that_goes_away_is_told_while_the_job_runs(s3: S3Server, tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "job", s3.url("job"))
    with Process(settings) as job:
        job.commit()
        s3.stop()
        assert [job.commit() for _ in range(2)] == [2, 3]
        assert job.commits.totals["checkpoints_failed"] == len(job.failed) == 2
        assert "check the address, the credentials and the network" in str(job.failed[0])
        with pytest.raises(StoreError, match="check the address"):
            remembered_target(tmp_path / "job", s3.url("job")).sizes()
        s3.start()
        job.commit()
        assert job.commits.totals["checkpoints_failed"] == 2
    shutil.rmtree(tmp_path / "job")
    with Process(settings) as job:
        assert job.number == 4
