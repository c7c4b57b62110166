"""The contract of a store (tests/state/contract.py), run inside a real Spark query, a Spark group for each check."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from cep.runners.spark.keyed_store import SparkStore
from cep.state.keys import ALL_KEYS
from tests.state.contract import CHECKS, at, everything

LEFT = [(at("left"), b"by the first micro-batch"), (at("right"), b"")]


class Checker(StatefulProcessor):
    """In its first micro-batch a group runs its check, in the second it looks for what the first one left."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._store = SparkStore(handle, "entries")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        rounds = [row.round for row in rows]
        outcome = "ok"
        try:
            if rounds == ["first"]:
                next(check for check in CHECKS if check.__name__ == key[0])(self._store)
                self._store.delete_range(ALL_KEYS)
                for entry in LEFT:
                    self._store.put(*entry)
            else:
                assert everything(self._store) == LEFT
        except Exception:  # noqa: BLE001 the test shows it
            outcome = traceback.format_exc()
        yield Row(check=f"{key[0]} {'+'.join(rounds)}", outcome=outcome)

    def close(self) -> None:
        """Nothing is held."""


@pytest.mark.spark
def test_contract_inside_a_query(spark: SparkSession, tmp_path: Path) -> None:
    found: dict[str, str] = {}
    (tmp_path / "in").mkdir()
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(tmp_path / "in"))
    checks = lines.selectExpr("split(value, ' ')[0] AS check", "split(value, ' ')[1] AS round").groupBy("check")
    outcomes = checks.transformWithState(Checker(), "check string, outcome string", "Append", "None")
    for turn in ("first", "second"):  # a query each, on one checkpoint directory: the second starts from what is stored
        text = "".join(f"{check.__name__} {turn}\n" for check in CHECKS)
        (tmp_path / "in" / f"{turn}.txt").write_text(text)
        query = (
            outcomes.writeStream.foreachBatch(
                lambda batch, _: found.update((r.check, r.outcome) for r in batch.collect())
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
    names = {f"{check.__name__} {turn}" for check in CHECKS for turn in ("first", "second")}
    assert found == dict.fromkeys(names, "ok")
