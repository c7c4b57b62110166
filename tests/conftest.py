"""What all tests share: UTC, one hypothesis profile, one Spark session for those that ask for it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

os.environ["TZ"] = "UTC"
time.tzset()

# The same examples on every machine: a red build is red for everyone. No deadline, because the first call of a kernel
# compiles it and machines are shared.
settings.register_profile(
    "house", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("house")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local session for all tests marked `spark`; starting the JVM takes seconds, so only they pay for it."""
    from cep.runners.spark.session import create_session  # noqa: PLC0415 the other tests need no Spark

    session = create_session("cep-tests", 2)
    yield session
    session.stop()
