"""The folders of the last release: this build takes them over and continues with exactly the alerts of the replay."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from operator import itemgetter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cep.base.audit import is_audit
from cep.cli.main import main
from cep.lists.store import ListStore
from cep.model.rule import ControlRecord, UpsertRecord, parse_control
from cep.rulebook.deploy import deploy
from cep.rulebook.files import read_rules
from cep.rulebook.saved import rulebook_from_bytes
from cep.runners.handover.payload import payload_in
from cep.runners.spark.to_savepoint import save_for_both
from cep.state.savepoints import load_beside, open_savepoint
from cep.state.target import Target
from cep.step.job import Job
from tests.rulebook.test_chains import against
from tests.upgrade.make import TIMES, at

RELEASES = sorted(Path(__file__).parent.glob("*.tar.xz"))
END = json.dumps({"kind": "heartbeat", "event_time": at(2_000)})


@pytest.fixture(params=RELEASES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Unpack the folders of a release."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def lines_of(*paths: Path) -> list[str]:
    files = [file for path in paths for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])]
    return [line for file in files for line in file.read_text().splitlines()]


def replayed(left: Path, *more: str) -> list[str]:
    """Return the alerts of this build's replay of all readable events that are not late."""
    given = [line for line in lines_of(left / "events", left / "rest") if line != "{" and '"late' not in line]
    (left / "history.jsonl").write_text("\n".join(given))
    out = left / "replayed-now.jsonl"
    options = ["--rules", str(left / "rules"), "--events", str(left / "history.jsonl"), "--out", str(out)]
    options.append("--to-the-end")  # the jobs get a heartbeat after the last event
    assert main(["replay", *options, *more]) == 0
    return sorted(lines_of(out))


def go_on(left: Path, checkpoint: Path, *more: str) -> int:
    """Run this build twice over the folder: the rest of the events, then the end of the stream."""
    shutil.copy(left / "rest" / "2.jsonl", left / "events")
    code = 0
    for number in range(2):
        if number:
            (left / "control" / "9.jsonl").write_text(END)
        given = ["--rules", str(left / "rules"), "--events", str(left / "events"), "--control", str(left / "control")]
        out = ["--alerts", str(left / "alerts" / "now"), "--checkpoint", str(checkpoint), "--available-now"]
        code = code or main(["run", *given, *TIMES, *out, *more])
    return code


def with_changes(left: Path) -> list[str]:
    return replayed(left, "--control", str(left / "control" / "1.jsonl"))


def check(left: Path, sent: str, wanted: list[str]) -> None:
    """Check that the alerts of the release and of this build are all the alerts, each once."""
    before = lines_of(left / "alerts" / sent) if sent else []
    now = lines_of(left / "alerts" / "now")
    assert now, "something is left for this build"
    assert_same([*before, *now], wanted)


def assert_same(got: list[str], wanted: list[str]) -> None:
    """Compare alerts. Events of an old release lack their origins if the release did not record them."""
    all_got, all_wanted = (sorted(map(json.loads, lines), key=itemgetter("alert_id")) for lines in (got, wanted))
    for alert, other in zip(all_got, all_wanted, strict=False):
        origins, others = alert.pop("origins", ()), other.pop("origins", ())
        other.pop("unconfirmed", None)
        assert [origin for origin in others if origin in origins] == list(origins)
    assert all_got == all_wanted


@pytest.mark.parametrize("name", ["stopped", "memory"])
def test_a_job_that_was_stopped_goes_on(name: str, left: Path) -> None:
    wanted = with_changes(left)
    assert go_on(left, left / "jobs" / name, *(("--store", "memory") if name == "memory" else ())) == 0
    check(left, name, wanted)
    # The release has written no trail of its changes. A trail begins here.
    trail = left / "jobs" / name / "dead_letters"
    assert [json.loads(line)["what"] for line in lines_of(trail) if is_audit(line.encode())][:1] == ["first"]
    assert main(["audit", "verify", str(trail)]) == 0


def test_a_job_whose_store_is_lost_goes_on_from_its_checkpoint(left: Path) -> None:
    wanted = with_changes(left)
    shutil.rmtree(left / "jobs" / "stopped" / "store")
    assert go_on(left, left / "jobs" / "stopped") == 0
    check(left, "stopped", wanted)


def test_a_job_that_was_killed_sends_what_it_owes_and_goes_on(left: Path) -> None:
    wanted = with_changes(left)
    assert go_on(left, left / "jobs" / "killed") == 0
    check(left, "", wanted)


def test_a_savepoint_is_restored(left: Path) -> None:
    wanted = with_changes(left)
    assert main(["restore", "--from", str(left / "savepoint"), "--checkpoint", str(left / "jobs" / "new")]) == 0
    assert go_on(left, left / "jobs" / "new") == 0
    check(left, "stopped", wanted)


@pytest.mark.parametrize("engine", ["embedded", "spark"])
def test_a_portable_savepoint_of_spark_whose_levels_are_mixed_up_is_refused(
    engine: str, left: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = left / "jobs" / "new"
    assert main(["restore", "--from", str(left / "spark"), "--checkpoint", str(new), "--engine", engine]) == 4
    said = capsys.readouterr().err
    assert "mixed up the levels" in said
    assert "`cep savepoint --portable`" in said
    assert not new.exists()


@pytest.mark.spark
def test_the_folder_of_a_job_on_spark_becomes_a_portable_savepoint(spark: SparkSession, left: Path) -> None:
    wanted = with_changes(left)
    save_for_both(spark, left / "jobs" / "live", Target(str(left / "saved")))
    assert main(["restore", "--from", str(left / "saved"), "--checkpoint", str(left / "jobs" / "new")]) == 0
    assert go_on(left, left / "jobs" / "new") == 0
    check(left, "live", wanted)


@pytest.mark.spark
@pytest.mark.slow
def test_a_job_on_spark_goes_on_in_its_folder(left: Path) -> None:
    wanted = with_changes(left)
    _bring_home(left)
    shutil.copy(left / "rest" / "2.jsonl", left / "events")
    script = "import sys; from cep.cli.main import main; sys.exit(main(sys.argv[1:]))"
    for number in range(2):
        if number:
            (left / "control" / "9.jsonl").write_text(END)
        words = [
            "live", "--rules", str(left / "rules"), "--events", str(left / "events"), "--max-files", "1", *TIMES,
            "--control", str(left / "control"), "--available-now", "--checkpoint", str(left / "jobs" / "live"),
            "--alerts", str(left / "alerts" / "now"),
        ]  # fmt: skip
        done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2_000:]
    check(left, "live", wanted)


def _bring_home(left: Path) -> None:
    """Change the paths in Spark's logs of files to the present folder: Spark knows files by absolute paths."""
    for log in (left / "jobs" / "live" / "query" / "sources").rglob("*"):
        if log.is_file():
            text = log.read_text()
            log.write_text(re.sub(r"file:/+[^\"]*/(events|control)/", f"file://{left}/\\1/", text))


def test_a_folder_becomes_a_savepoint_of_this_build(left: Path) -> None:
    wanted = with_changes(left)
    assert main(["savepoint", "--checkpoint", str(left / "jobs" / "stopped"), "--to", str(left / "saved")]) == 0
    assert main(["restore", "--from", str(left / "saved"), "--checkpoint", str(left / "jobs" / "new")]) == 0
    assert go_on(left, left / "jobs" / "new") == 0
    check(left, "stopped", wanted)


def test_ids_of_events_cannot_be_taken_over_and_the_job_says_what_to_do(
    left: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = left / "jobs" / "dedup" / "checkpoints"
    before = {path: path.stat().st_size for path in kept.rglob("*")}
    assert go_on(left, left / "jobs" / "dedup", "--dedup", "2 h") == 4
    assert "go on with the build that wrote it, or begin a new job with this one" in capsys.readouterr().err
    assert lines_of(left / "alerts" / "now") == []
    assert before == {path: path.stat().st_size for path in kept.rglob("*")}


def test_a_job_begins_where_a_replay_of_the_release_ended(left: Path) -> None:
    wanted = replayed(left)
    before = lines_of(left / "alerts" / "warm.jsonl")
    (left / "control" / "1.jsonl").unlink()
    for number in range(2):
        if number:
            (left / "control" / "9.jsonl").write_text(END)
        given = ["--from", str(left / "warm"), "--events", str(left / "history.jsonl")]
        out = ["--alerts", str(left / "alerts" / "now"), "--checkpoint", str(left / "jobs" / "new"), "--available-now"]
        assert main(["run", *given, "--control", str(left / "control"), *TIMES, *out]) == 0
    assert_same([*before, *lines_of(left / "alerts" / "now")], wanted)


def test_letters_of_the_release_come_back(left: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [line for line in lines_of(left / "events", left / "rest") if line != "{"]
    (left / "history.jsonl").write_text("\n".join(given))
    letters = left / "jobs" / "stopped" / "dead_letters"
    options = ["--rules", str(left / "rules"), "--events", str(left / "history.jsonl")]
    assert main(["letters", "replay", str(letters), *options]) in (0, 1)
    assert "letters: 1 late, 1 unreadable; 1 events come back" in capsys.readouterr().out


def test_a_job_taken_over_and_one_built_from_the_topic_refuse_the_same_change(left: Path) -> None:
    """When two publishers of this build send a change at once, both jobs take the first."""
    savepoint = open_savepoint(Target(str(left / "savepoint")), left / "work")
    payload = payload_in(savepoint)
    job = Job.from_json(payload.job)
    lists = ListStore(left / "lists")
    (left / "lists").mkdir()
    load_beside(savepoint, left / "lists")
    taken_over = rulebook_from_bytes(payload.engine["rulebook"].encode(), job.schema, job.domains, lists)
    taken_over.keep_levels(job.levels_count)
    records = [parsed(json.loads(line)["value"]) for line in lines_of(left / "topic.jsonl")]
    anew = deploy(read_rules(left / "rules")[0]).rulebook
    assert Counter(anew.apply(record, None).kind for record in records) == {"applied": 9}
    base = next(record for record in records if isinstance(record, UpsertRecord) and record.id == "twice")
    first, second = (against(base, base, version=3, severity=level) for level in ("high", "critical"))
    for book in (taken_over, anew):
        assert [book.apply(record, None).kind for record in (first, second)] == ["applied", "refused"]


def parsed(text: str) -> ControlRecord:
    record, problems = parse_control(text)
    assert record is not None, problems
    return record
