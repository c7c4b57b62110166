"""Driver and executors see one folder, or the job refuses before it commits anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from cep.base.errors import StoreError
from cep.rulebook.saved import RulebookStore
from cep.runners.spark.match_stage import MatchStage
from cep.runners.spark.place import Place
from cep.step.rules import JobRules
from tests.runners.spark.live_cases import LiveRun, make_job, payments, rules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cep.runners.spark.group_parts import GroupParts


def test_a_place_is_one_folder_and_one_start(tmp_path: Path) -> None:
    for name in ("driver", "executor"):
        (tmp_path / name).mkdir()
    first = Place.of_driver(tmp_path / "driver")
    first.check()
    elsewhere = replace(first, directory=tmp_path / "executor")
    with pytest.raises(StoreError, match=r"does not see the driver's checkpoint folder at .*executor"):
        elsewhere.check()
    Place.of_driver(tmp_path / "executor")  # of another job, or of an earlier start
    with pytest.raises(StoreError, match="does not see"):
        elsewhere.check()
    (tmp_path / "executor" / "place").write_bytes(b"\xff")
    with pytest.raises(StoreError, match="does not see"):
        elsewhere.check()
    Place.of_driver(tmp_path / "driver").check()


def test_a_stage_refuses_before_it_touches_anything(tmp_path: Path) -> None:
    rules_by_id = rules("card_testing")
    job_rules = JobRules(make_job(rules_by_id.values()), (), RulebookStore(tmp_path))
    untouched = cast("GroupParts", None)
    with pytest.raises(StoreError, match="does not see"):
        MatchStage(job_rules, 0, None, Place(tmp_path, "another token"), untouched)
    MatchStage(job_rules, 0, None, Place.of_driver(tmp_path), untouched)


@pytest.mark.spark
@pytest.mark.slow  # Spark takes half a minute to give up a task whose worker raises
def test_a_job_with_an_executor_elsewhere_refuses_and_goes_on_once_that_is_mended(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules_by_id = rules("card_testing")
    job = LiveRun(
        spark, tmp_path, make_job(rules_by_id.values()), tuple(rule.to_json() for rule in rules_by_id.values())
    )
    with monkeypatch.context() as elsewhere:
        seen_by_tasks = staticmethod(lambda directory: Place(directory / "of-the-executor", "token"))
        elsewhere.setattr(Place, "of_driver", seen_by_tasks)
        with pytest.raises(StoreError, match="one file system"):
            job.phase([payments(3)[:200]])
    assert job.reports == []
    assert not list((job.checkpoint / "commits").glob("[0-9]*")), "nothing was committed"
    job.phase([])
    assert job.totals["events"] == 200
