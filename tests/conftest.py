"""Shared by all tests: UTC, one hypothesis profile, one Spark session and one Kafka for tests that request them."""

from __future__ import annotations

import gc
import os
import sys
import time
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.columnar.protected import KEYS
from tests.java_archive import java_options
from tests.long_tests import function_of, long_tests
from tests.output_of import OutputOf
from tests.real_kafka import MockCluster, RealKafka, open_kafka
from tests.real_prometheus import NoPrometheusError, Tools, open_tools

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.real_s3 import S3Server

gc.disable()  # until all tests are collected

os.environ["TZ"] = "UTC"
os.environ["CEP_DEBUG"] = "1"  # a bug in a test shows its traceback
os.environ.setdefault("SPARK_SUBMIT_OPTS", java_options())
time.tzset()

# The same examples on every machine: a red build is red for everyone. No deadline, because the first call of a kernel
# compiles it and machines are shared.
settings.register_profile(
    "house", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("house")

ROOT = Path(__file__).parents[1]
if "CEP_SPARK" in os.environ:
    from tests.spark_versions import use

    use(os.environ["CEP_SPARK"])  # before the installed one is imported

# Fixtures that take seconds and start a server: a test that requests one of these is `slow` and `always`.
SERVERS = {"kafka_broker", "s3", "language_server", "secure"}

if sys.dont_write_bytecode:
    # Each process of a run, and each that a test starts, would compile all modules again. No compiled file lies next to
    # its module.
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(ROOT / ".pytest_cache" / "compiled")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep servers and long tests out of the inner loop; a test that is only `slow` stays so."""
    long = long_tests()
    for item in items:
        has_server = not SERVERS.isdisjoint(getattr(item, "fixturenames", ()))
        if (has_server or function_of(item.nodeid) in long) and item.get_closest_marker("slow") is None:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.always)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """If a run is only for Spark's tests, import no file that cannot have one: most of a start is imports."""
    marks: str = config.option.markexpr
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if marks.startswith("spark and") and is_test and "spark" not in collection_path.read_text() else None


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end, so no garbage collection has to visit them again."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Objects that were set apart end with the rest; DuckDB would name each of its remaining objects."""
    gc.unfreeze()


# No task of a test takes long; a stopped one must not delay the others for minutes.
_SHORT_WAITS = {
    "spark.python.worker.tracebackDumpIntervalSeconds": "75",
    "spark.python.worker.idleTimeoutSeconds": "90",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Yield one local session for all tests marked `spark`, set up like a live job's session.

    Starting Java takes seconds, so only these tests pay for it. A verb that a test runs in this process does not stop
    it.
    """
    from cep.runners.spark.live import JAVA_OPTIONS, SPARK_SETTINGS  # noqa: PLC0415 the other tests need no Spark
    from cep.runners.spark.session import create_session  # noqa: PLC0415

    with pytest.MonkeyPatch.context() as patched:  # workers inherit it from Java
        patched.setenv("CEP_SECRETS", KEYS)
        session = create_session("cep-tests", 2, {**SPARK_SETTINGS, **_SHORT_WAITS}, JAVA_OPTIONS)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pyspark.sql.SparkSession.stop", lambda _: None)
        yield session
    session.stop()


_KAFKA, _PROMETHEUS = pytest.StashKey[str](), pytest.StashKey[str]()
_NAMED = {"kafka": _KAFKA, "prometheus": _PROMETHEUS}


@pytest.fixture(scope="session")
def kafka_broker(request: pytest.FixtureRequest) -> Iterator[RealKafka | MockCluster]:
    """Yield one broker for all tests that request it: Apache Kafka, or the mock if it is not available."""
    with open_kafka() as kafka:
        request.config.stash[_KAFKA] = kafka.description
        yield kafka


@pytest.fixture
def real_broker(kafka_broker: RealKafka | MockCluster) -> RealKafka:
    """Return the broker. A test that requests it needs what the mock lacks, and is skipped with the mock."""
    if not isinstance(kafka_broker, RealKafka):
        raise unittest.SkipTest(kafka_broker.description)
    return kafka_broker


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One process of several hands its knowledge of servers to the process that prints."""
    output = getattr(session.config, "workeroutput", None)
    for name, key in _NAMED.items():
        if output is not None and key in session.config.stash:
            output[name] = session.config.stash[key]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Store the knowledge of the other process."""
    for name, key in _NAMED.items():
        if name in getattr(node, "workeroutput", {}):
            node.config.stash[key] = node.workeroutput[name]


@pytest.fixture(scope="session")
def prometheus(request: pytest.FixtureRequest) -> Tools:
    """Return Prometheus and promtool. A test that requests them is skipped if they are missing, and the run says so."""
    try:
        tools = open_tools()
    except NoPrometheusError as error:
        request.config.stash[_PROMETHEUS] = f"no Prometheus: {error}"
        raise unittest.SkipTest(str(error)) from error
    request.config.stash[_PROMETHEUS] = tools.description
    return tools


@pytest.fixture
def output_of(capsys: pytest.CaptureFixture[str]) -> OutputOf:
    """Return a reader of what a verb prints in this process, which checks its exit code."""
    return OutputOf(capsys)


@pytest.fixture
def s3() -> Iterator[S3Server]:
    """Yield an S3 server, with the environment that leads to it."""
    from tests.real_s3 import open_s3  # noqa: PLC0415 the other tests need no web server

    with open_s3() as server:
        yield server


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the servers of the tests: a green run on the mock proves less than one on the real server."""
    if "CEP_SPARK" in os.environ:
        terminalreporter.write_line(f"tests of Spark ran on Spark {os.environ['CEP_SPARK']}")
    if _KAFKA in config.stash:
        terminalreporter.write_line(f"tests of Kafka ran on {config.stash[_KAFKA]}")
    if _PROMETHEUS in config.stash:
        terminalreporter.write_line(f"tests of alert rules ran on {config.stash[_PROMETHEUS]}")
