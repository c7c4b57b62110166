"""A watermark in the future is set back: later events count again, and its other effects are reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from cep.base.errors import UsageError
from cep.base.exits import Exit
from cep.base.utc import utc_text
from cep.cli.main import main
from cep.runners.handover.beginning import read_beginning
from cep.runners.handover.set_back import consequences, set_back
from cep.step.event_time import PartitionTime, times_from_json
from tests.runners.embedded.test_future import FAR, PAST_MS, fraud, payment, written
from tests.runners.handover.test_group_entries import JOB
from tests.runners.handover.test_payload import GOOD
from tests.step.contract import FAR_MS, SOURCE

NOW_MS = PAST_MS + 5_000
BACK = utc_text(PAST_MS)


def poisoned(folder: Path) -> str:
    """Run a job with one event from the future, after which twenty frauds were late; return its savepoint."""
    (folder / "rules").mkdir()
    (folder / "rules" / "p.cep").write_text(SOURCE)
    (folder / "rules" / "small_large.toml").write_text(
        'id = "small_large"\nversion = 1\npattern = "small_large"\nfile = "p.cep"\nstatus = "live"\n'
        'severity = "low"\nowner = "o"\nmessage = "{key}"\n'
    )
    frauds = [line for card in range(20) for line in fraud(card, PAST_MS + 10 * card)]
    assert run(folder, "old", [payment("far", "z", FAR, 1)], "--ahead-max", "off") == 0
    assert run(folder, "old", frauds) == 1, "all are late"
    assert written(folder / "alerts") == []
    assert [letter["code"] for letter in written(folder / "old" / "dead_letters")] == ["late"] * 40
    place = str(folder / "savepoint")
    assert main(["job", "savepoint", "--checkpoint", str(folder / "old"), "--to", place]) == 0
    return place


def run(folder: Path, name: str, lines: list[bytes], *more: str) -> int:
    events = folder / "events"
    events.mkdir(exist_ok=True)
    (events / f"{len(list(events.iterdir()))}.jsonl").write_bytes(b"\n".join(lines))
    fixed = ["--rules", str(folder / "rules"), "--events", str(events), "--alerts", str(folder / "alerts")]
    return main(["run", *fixed, "--checkpoint", str(folder / name), "--key-groups", "2", "--available-now", *more])


def test_a_job_goes_on_behind_the_time_that_it_was_set_back_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = poisoned(tmp_path)
    capsys.readouterr()
    restore = ["job", "restore", "--from", place, "--checkpoint", str(tmp_path / "new"), "--watermark-back", BACK]
    assert main(restore) == Exit.USAGE, "it is not confirmed"
    printed = capsys.readouterr()
    assert f"from {FAR[:-1]}" in printed.out
    assert "--yes" in printed.err
    assert not (tmp_path / "new").exists()
    assert main([*restore, "--yes"]) == 0
    frauds = [line for card in range(20, 40) for line in fraud(card, PAST_MS + 10 * card)]
    assert run(tmp_path, "new", frauds) == 0
    assert sorted(str(alert["key"]) for alert in written(tmp_path / "alerts")) == [f"c{card}" for card in range(20, 40)]
    assert all(str(alert["history_from"]) > BACK for alert in written(tmp_path / "alerts")), "events may be missing"
    assert main([*restore[:-1], "2199-01-01T00:00:00Z", "--yes"]) == Exit.USAGE, "that is not back"
    assert main([*restore[:-1], "yesterday", "--yes"]) == Exit.USAGE


def test_a_job_on_spark_begins_with_it(tmp_path: Path) -> None:
    place = poisoned(tmp_path)
    restore = ["job", "restore", "--from", place, "--checkpoint", str(tmp_path / "new"), "--engine", "spark"]
    assert main([*restore, "--watermark-back", BACK, "--yes"]) == 0
    begins = read_beginning(tmp_path / "new")
    assert begins is not None
    assert begins.watermark_ms == PAST_MS
    assert begins.times == {"files": PartitionTime(PAST_MS)}


def test_only_a_portable_savepoint_is_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    flags = ["--checkpoint", str(tmp_path / "new"), "--watermark-back", BACK, "--yes"]
    assert main(["job", "restore", "--from", str(tmp_path / "empty"), *flags]) == Exit.USAGE
    assert "--portable" in capsys.readouterr().err


def test_what_is_changed_and_what_is_said() -> None:
    engine = {**GOOD.engine, "watermark_ms": FAR_MS, "since_ms": 7}
    engine["times"] = {"a": [FAR_MS, True, NOW_MS, FAR_MS + 1, FAR_MS + 2], "b": [PAST_MS - 5, False]}
    before = replace(GOOD, engine=engine, job=replace(JOB, lateness_ms=1_000).to_json())
    after = set_back(before, PAST_MS, NOW_MS)
    assert (after.engine["watermark_ms"], after.engine["since_ms"], after.engine["gap_ms"]) == (PAST_MS, 7, NOW_MS)
    assert times_from_json(after.engine["times"]) == {
        "a": PartitionTime(PAST_MS + 1_000, is_behind=True),
        "b": PartitionTime(PAST_MS - 5),
    }
    assert orjson.loads(after.to_bytes())["job"] == before.job
    assert before.engine["watermark_ms"] == FAR_MS, "a value never changes"
    assert any("dead letters" in sentence for sentence in consequences(before, PAST_MS))
    with pytest.raises(UsageError, match="is not back from it"):
        set_back(after, PAST_MS, NOW_MS)
