"""A new version takes runs over, in every runner: the alerts equal the replay."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.rulebook.carry_cases import drawn
from tests.runners.parity_cases import Stream
from tests.runners.test_parity import ways

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("seed", range(3))
def test_all_runners_agree(spark: SparkSession, seed: int, tmp_path: Path) -> None:
    case = drawn(seed)
    results = ways(spark, tmp_path, Stream(case.lines, list(case.versions("carry"))), seed)
    alerts = {way: alerts for way, (alerts, _) in results.items()}
    assert all(of_way == alerts["replay"] for of_way in alerts.values()), seed
