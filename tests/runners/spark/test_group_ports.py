"""The contract of the ports (tests/step/contract.py), run inside a real Spark query, a Spark group for each check."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from cep.runners.spark.group_parts import GroupParts
from tests.step.cases import SparkCase
from tests.step.contract import CHECKS


class Checker(StatefulProcessor):
    """Runs the check named by the group on the group's state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._parts = GroupParts(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        list(rows)
        outcome = "ok"
        try:
            next(check for check in CHECKS if check.__name__ == key[0])(SparkCase(self._parts))
        except Exception:  # noqa: BLE001 the test shows it
            outcome = traceback.format_exc()
        yield Row(check=key[0], outcome=outcome)

    def close(self) -> None:
        """There is nothing to close."""


@pytest.mark.spark
def test_contract_inside_a_query(spark: SparkSession, tmp_path: Path) -> None:
    outcomes: dict[str, str] = {}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "checks.txt").write_text("".join(f"{check.__name__}\n" for check in CHECKS))
    checks = spark.readStream.format("text").load(str(tmp_path / "in")).groupBy("value")
    check_outcomes = checks.transformWithState(Checker(), "check string, outcome string", "Append", "None")
    query = (
        check_outcomes.writeStream.foreachBatch(
            lambda batch, _: outcomes.update((row.check, row.outcome) for row in batch.collect())
        )
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    assert outcomes == dict.fromkeys((check.__name__ for check in CHECKS), "ok")
