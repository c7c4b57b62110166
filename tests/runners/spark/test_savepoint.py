"""A job continues from a savepoint as if it had not stopped; a damaged savepoint is refused and leaves no file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cep.base.errors import StateCorruptError, UsageError
from cep.cli.main import main
from cep.runners.live_checkpoint import lock_checkpoint, open_checkpoint, read_progress
from cep.runners.spark.savepoint import KIND, restore, save, savepoints
from cep.state.manifest import Manifest
from cep.state.target import Target
from tests.runners.spark.live_cases import END, LiveRun, make_job, payments, replayed, rows, rules, split

pytestmark = pytest.mark.spark


def test_a_job_goes_on_from_a_savepoint(spark: SparkSession, tmp_path: Path) -> None:
    rules_by_id = rules("card_testing", "small_then_large", "impossible_travel")
    initial = tuple(record.to_json() for record in rules_by_id.values())
    live = LiveRun(spark, tmp_path / "job", make_job(rules_by_id.values()), initial)
    checkpoint = live.checkpoint.parent
    open_checkpoint(checkpoint, live.job, initial)
    parts = split(payments(43), 2)
    live.phase(parts[:1])
    target = Target(str(tmp_path / "saved"))
    first = save(checkpoint, target)
    assert first.copied <= first.size
    assert save(checkpoint, target).copied == 0, "all of it is there already"
    before = len(live.reports)
    live.phase(parts[1:])  # is lost with the folder
    shutil.rmtree(checkpoint)
    del live.reports[before:]
    live.job_folder = "elsewhere"
    checkpoint = live.checkpoint.parent
    restored = restore(target, checkpoint)
    assert (restored.batch_id, restored.size) == (first.batch_id, first.size)
    assert read_progress(checkpoint)[0] == first.batch_id
    live.phase([], [END])
    replay_result = replayed(spark, tmp_path / "job" / "events", live.job, rules_by_id.values())
    assert live.alerts() == rows(replay_result.alerts)

    with lock_checkpoint(checkpoint), pytest.raises(UsageError, match="is in use by process"):
        save(checkpoint, target)
    with pytest.raises(UsageError, match="is not empty"):
        restore(target, checkpoint)
    with pytest.raises(UsageError, match="has no savepoint nonsense"):
        restore(target, tmp_path / "new", "nonsense")
    assert main(["job", "restore", "--from", str(tmp_path / "saved"), "--list"]) == 0
    assert len(savepoints(target)) == 2


def test_a_damaged_savepoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    rules_by_id = rules("small_then_large")
    initial = tuple(record.to_json() for record in rules_by_id.values())
    live = LiveRun(spark, tmp_path / "job", make_job(rules_by_id.values()), initial)
    open_checkpoint(live.checkpoint.parent, live.job, initial)
    live.phase([payments(44)[:100]])
    target = Target(str(tmp_path / "saved"))
    save(live.checkpoint.parent, target)
    largest = max((tmp_path / "saved" / "files").iterdir(), key=lambda path: path.stat().st_size)
    whole = largest.read_bytes()
    for damaged in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        largest.write_bytes(damaged)
        with pytest.raises(StateCorruptError):
            restore(target, tmp_path / "new")
        assert [path.name for path in tmp_path.iterdir() if "new" in path.name] == []
    largest.unlink()
    with pytest.raises(StateCorruptError):
        restore(target, tmp_path / "new")
    with pytest.raises(UsageError, match="has no savepoints"):
        restore(Target(str(tmp_path / "empty")), tmp_path / "new")


def test_an_old_savepoint_under_a_later_name_is_refused(tmp_path: Path) -> None:
    target = Target(str(tmp_path / "saved"))
    target.create("savepoint-000000009-5.manifest", Manifest(KIND, 3, 5, (), ()).to_bytes())
    with pytest.raises(StateCorruptError, match="3 under another number"):
        restore(target, tmp_path / "new")
