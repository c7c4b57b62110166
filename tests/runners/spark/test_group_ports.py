"""The contract of the ports (tests/step/contract.py), run inside a real Spark query, a Spark group for each check.

A worker's cached pages: never more bytes than allowed, and never other bytes than their hash names.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from cep.runners.spark.group_parts import GroupParts
from cep.runners.spark.group_ports import CachedPages, PagePlace
from tests.step.cases import SparkCase
from tests.step.contract import CHECKS

BYTES_MAX = 1_000


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


@pytest.mark.parametrize("seed", range(20))
def test_bytes_are_those_that_were_put_last_or_none(seed: int) -> None:
    chance = Random(seed)
    cache = CachedPages(BYTES_MAX)
    last: dict[PagePlace, tuple[str, bytes]] = {}
    before: dict[PagePlace, str] = {}
    found_count = 0
    for _ in range(400):
        place = (0, chance.randrange(3), chance.randrange(4))
        if chance.random() < 0.5:
            if place in last:
                before[place] = last[place][0]
            data = chance.randbytes(chance.randrange(1, 300))
            last[place] = cache.put(place, data), data
        elif chance.random() < 0.2:
            cache.drop(place)
            last.pop(place, None)
        elif place in last:
            digest, data = last[place]
            content = cache.get(place, digest)
            assert content in (None, data)
            found_count += content is not None
            assert before.get(place) in (None, digest) or cache.get(place, before[place]) is None
        assert cache.get(place, None) is None
        assert cache.nbytes <= BYTES_MAX
    assert found_count, "what was put a moment ago is there"


def test_what_was_used_longest_ago_goes_first() -> None:
    cache = CachedPages(100)
    digests = {group: cache.put((0, group, 0), bytes([group]) * 40) for group in (1, 2)}
    assert cache.get((0, 1, 0), digests[1]) is not None
    cache.put((0, 3, 0), b"3" * 40)
    assert cache.get((0, 2, 0), digests[2]) is None
    assert cache.get((0, 1, 0), digests[1]) == b"\1" * 40


def test_a_page_that_is_larger_than_all_is_not_held() -> None:
    cache = CachedPages(10)
    assert cache.get((0, 0, 0), cache.put((0, 0, 0), b"x" * 11)) is None
