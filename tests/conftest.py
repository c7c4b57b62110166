"""What all tests share: UTC, one hypothesis profile, one Spark session and one Kafka for those that ask for them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.real_kafka import MockCluster, RealKafka, open_kafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.real_s3 import S3Server

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


_KAFKA = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def kafka_broker(request: pytest.FixtureRequest) -> Iterator[RealKafka | MockCluster]:
    """One broker for all tests that ask for it: Apache Kafka, or the mock where that cannot be had."""
    with open_kafka() as kafka:
        request.config.stash[_KAFKA] = kafka.description
        yield kafka


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of several hands what it knows of Kafka to the one that prints."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None and _KAFKA in session.config.stash:
        output["kafka"] = session.config.stash[_KAFKA]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take it from there."""
    if "kafka" in getattr(node, "workeroutput", {}):
        node.config.stash[_KAFKA] = node.workeroutput["kafka"]


@pytest.fixture
def s3() -> Iterator[S3Server]:
    """An S3 server, and the environment that leads to it."""
    from tests.real_s3 import open_s3  # noqa: PLC0415 the other tests need no web server

    with open_s3() as server:
        yield server


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what the tests of Kafka ran on: a green run on the mock is less than one on the real thing."""
    if _KAFKA in config.stash:
        terminalreporter.write_line(f"tests of Kafka ran on {config.stash[_KAFKA]}")
